# SPDX-License-Identifier: Apache-2.0
"""FolderLock: lets only one job at a time save into a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import weakref
from typing import Any, Iterator, Tuple

_log = logging.getLogger("penstock")


class FolderLock:
    """A lock on a folder, by flock(2) on the file `name` in it.

    The kernel releases the lock when the process ends. The lock is also released when the object
    is garbage-collected. The constructor raises OSError with errno EBUSY if another process has
    the lock, or if another object of this process has it and is inside a `with` block of at_work().

    If a save fails on another rank, the object that has the lock does not learn of it. So a new
    object of this process takes the lock from an object that is not inside a `with` block of
    at_work(). On a file system without locks, every process gets the lock."""

    _release: "weakref.finalize[Any, FolderLock]"

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._busy, self._path = folder, False, os.path.join(folder, name)
        key = (os.getpid(), os.path.realpath(self._path))
        earlier = _holders.get(key)
        if earlier is not None and earlier._release.alive:
            if earlier._busy:
                raise _busy_error(folder)
            earlier.release()
        fd = _open_locked(folder, self._path)
        self._release = weakref.finalize(self, _unlock, fd, self._path, os.getpid())
        _holders[key] = self

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside the block, no other object can take the lock from this one. Raises OSError with
        errno EBUSY if another object has taken it before."""
        if not self._release.alive:
            raise _busy_error(self._folder)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def release(self) -> None:
        """Releases the lock and removes its file."""
        self._release()


_holders: "weakref.WeakValueDictionary[Tuple[int, str], FolderLock]" = \
    weakref.WeakValueDictionary()


def _busy_error(folder: str) -> OSError:
    return OSError(errno.EBUSY, "another job is saving a checkpoint there", folder)


def _open_locked(folder: str, path: str) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise _busy_error(folder) from error
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


__all__ = ["FolderLock"]
