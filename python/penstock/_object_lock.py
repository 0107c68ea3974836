# SPDX-License-Identifier: Apache-2.0
"""ObjectLock: lets only one job at a time save below a prefix of an object store.

A store has no locks, but it can create an object only if the object does not exist. So the job
whose PUT creates the lock's object has the lock. A killed job does not delete this object.
Therefore the job that has the lock replaces a second object, the beat, every BEAT_S seconds.
Another job takes the lock if the beat does not change for LEASE_S seconds of its own clock. So a
job that was only stopped can lose its lock. Each job checks its lock before it writes its marker,
and fails if it has lost the lock."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
import uuid
from typing import Any, Optional, Tuple

from ._lib import NotFoundError, PenstockError
from ._lock import SaveLock, busy_error

_log = logging.getLogger("penstock")
# Seconds between two writes of the beat, and seconds without a new beat after which another job may
# take the lock. src/ckpt/prune.c has the same numbers.
BEAT_S, LEASE_S = 2.0, 20.0
# Maximum length of the text in a lock's object, in bytes. The text is a token that identifies the
# lock's owner.
_TEXT_MAX = 200


class ObjectLock(SaveLock):
    """A lock that protects the objects below a prefix. `prefix` has the methods of _Prefix. The
    lock is the object `name` below the prefix.

    The lock is released by release(), when the ObjectLock is garbage-collected, and when the
    program ends. If another job saves below the prefix, the constructor raises OSError with errno
    EBUSY within a few seconds. If the job that has the lock was killed, the constructor waits
    LEASE_S seconds, and takes the lock. If the store does not support the condition "only if the
    object does not exist", every job gets the lock."""

    def __init__(self, prefix: Any, name: str) -> None:
        self._prefix, self._name, self._token = prefix, name, uuid.uuid4().hex
        super().__init__(prefix.name, prefix.object(name), self._take)

    def _beat_name(self, token: str) -> str:
        return f"{self._name}-{token}"

    def _take(self) -> Tuple[Any, ...]:
        self._wait()
        stop = threading.Event()
        beat = threading.Thread(target=_beat, name="penstock-lock", daemon=True,
                                args=(self._prefix, self._beat_name(self._token), stop))
        beat.start()
        return _give_back, self._prefix, self._name, self._token, stop, beat, os.getpid()

    def _wait(self) -> None:
        """Creates the lock's object. If it exists, watches its beat: raises OSError with errno
        EBUSY if the beat changes, and removes the lock if the beat does not change for LEASE_S
        seconds."""
        seen: Optional[str] = None
        since = 0.0
        while not self._create():
            now = time.monotonic()
            signs = self._signs()
            if seen is None or signs.partition(" ")[0] != seen.partition(" ")[0]:
                seen, since = signs, now  # The first look, or another job has taken the lock.
            elif signs != seen:
                raise busy_error(self._prefix.name)
            elif now - since > LEASE_S:
                _log.warning("%s: a job that saved there has been killed; its lock is removed",
                             self._prefix.name)
                self._break(signs.partition(" ")[0])
                seen = None
            if seen is not None:
                time.sleep(BEAT_S / 2)

    def _create(self) -> bool:
        try:
            self._prefix.write(self._name, self._token.encode(), new=True)
        except PenstockError as error:
            if error.errno == errno.EEXIST:
                # An earlier attempt of this request may have created the object although its
                # response was lost. The object then has this lock's token.
                return _token_of(self._prefix, self._name) == self._token
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            _log.debug("%s: no lock against other jobs: %s", self._prefix.name, error)
        return True

    def _signs(self) -> str:
        """Returns a text with the lock's token and the ETag of its beat. The text changes while the
        job that has the lock runs."""
        token = _token_of(self._prefix, self._name)
        return f"{token} {self._prefix.etag(self._beat_name(token)) if token else ''}"

    def _break(self, token: str) -> None:
        if _token_of(self._prefix, self._name) == token:
            self._prefix.remove(self._name)
        if token:
            self._prefix.remove(self._beat_name(token))

    def check(self) -> None:
        """Raises OSError with errno EBUSY if another job has taken the lock."""
        token = _token_of(self._prefix, self._name)
        if token and token != self._token:
            raise busy_error(self._prefix.name)


def _token_of(prefix: Any, name: str) -> str:
    """Returns the token in a lock, or "" if there is no lock."""
    try:
        text = prefix.read(name)
    except NotFoundError:
        return ""
    token = text[:_TEXT_MAX].decode("ascii", "replace")
    return token if token.isalnum() else "unknown"


def _beat(prefix: Any, name: str, stop: threading.Event) -> None:
    """Replaces the beat's object every BEAT_S seconds until the lock is released."""
    count = 0
    while not stop.is_set():
        count += 1
        with contextlib.suppress(OSError):  # The next beat may succeed.
            prefix.write(name, str(count).encode())
        stop.wait(BEAT_S)
    with contextlib.suppress(OSError):
        prefix.remove(name)


def _give_back(prefix: Any, name: str, token: str, stop: threading.Event, beat: threading.Thread,
               owner: int) -> None:
    if os.getpid() != owner:
        return
    stop.set()
    if beat is not threading.current_thread():
        beat.join(LEASE_S)
    with contextlib.suppress(OSError):
        if _token_of(prefix, name) == token:
            prefix.remove(name)


__all__ = ["BEAT_S", "LEASE_S", "ObjectLock"]
