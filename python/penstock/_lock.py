# SPDX-License-Identifier: Apache-2.0
"""FolderLock: lets only one job at a time save into a folder. Its base SaveLock is also the base of
ObjectLock (_object_lock.py)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import weakref
from typing import Any, Callable, Iterator, Tuple

_log = logging.getLogger("penstock")


class SaveLock:
    """A lock on a place, such as a folder. Errors show the name `place`. In this process, all locks
    on the same place have the same `path`. `take` takes the lock, and returns a tuple: the function
    that releases the lock, and the arguments of this function.

    The constructor raises OSError with errno EBUSY if another object of this process has the lock
    and is inside a `with` block of at_work().

    If a save fails on another rank, the object that has the lock does not learn of it. So a new
    object of this process takes the lock from an object that is not inside a `with` block of
    at_work()."""

    _release: "weakref.finalize[Any, SaveLock]"

    def __init__(self, place: str, path: str, take: Callable[[], Tuple[Any, ...]]) -> None:
        self._place, self._busy = place, False
        key = (type(self), os.getpid(), path)
        earlier = _holders.get(key)
        if earlier is not None and earlier._release.alive:
            if earlier._busy:
                raise busy_error(place)
            earlier.release()
        self._release = weakref.finalize(self, *take())
        _holders[key] = self

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside the block, no other object of this process can take the lock from this one. Raises
        OSError with errno EBUSY if another object has taken it before."""
        if not self._release.alive:
            raise busy_error(self._place)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def release(self) -> None:
        """Releases the lock and removes its file or its objects."""
        self._release()


_holders: "weakref.WeakValueDictionary[Tuple[type, int, str], SaveLock]" = \
    weakref.WeakValueDictionary()


def busy_error(place: str) -> OSError:
    return OSError(errno.EBUSY, "another job is saving a checkpoint there", place)


class FolderLock(SaveLock):
    """A lock on a folder, by flock(2) on the file `name` in it.

    The kernel releases the lock when the process ends. The lock is also released when the object
    is garbage-collected. The constructor raises OSError with errno EBUSY if another process has
    the lock. On a file system without locks, every process gets the lock."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, name)
        super().__init__(folder, os.path.realpath(path),
                         lambda: (_unlock, _open_locked(folder, path), path, os.getpid()))


def _open_locked(folder: str, path: str) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise busy_error(folder) from error
        except OSError as error:
            _log.debug("%s: no lock against other jobs: %s", folder, error)
            return fd
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)  # The process that had the lock has just removed this file.


def _unlock(fd: int, path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)
        # A child of fork has the descriptor, too, so closing it here would not release the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


__all__ = ["FolderLock", "SaveLock", "busy_error"]
