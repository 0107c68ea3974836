# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory of cancelled transfers until their CUDA streams have passed the transfers.

The C library completes a cancelled request in stream order at once. Its stream still executes the
request's operations later, and may then write zeros to the tensors. If the tensors' allocator gave
their memory to another tensor before that, these zeros would destroy its bytes. _queue.py calls
this module. settle() calls the driver, which can wait there for a stream, for example because the
stream's hardware queue is full. So only the submit in stream order and the close of a file call
settle(), because they may wait anyway."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import weakref
from typing import Any, Deque, Dict, List, Set, Tuple

from ._cuda import PER_THREAD_STREAM, destroy_event, has_passed, record_event

# The place of a request: its stream's handle, the library's name of its GPU, and the thread to
# which the handle belongs, or 0 if the handle means the same stream in all threads.
Place = Tuple[int, str, int]


class _Owed:
    """Objects that own memory, the place of their request, and an event that was recorded on the
    stream after the request, or None."""

    __slots__ = ("keep", "place", "event")

    def __init__(self, keep: Any, place: Place) -> None:
        self.keep, self.place = keep, place
        self.event: Any = None


# The library allows 1,024 requests in stream order on a device, and counts each until its stream
# has passed it. Each request in stream order first calls settle(), so this list is hardly longer.
_owed: Deque[_Owed] = collections.deque()
# Entries whose stream the program has destroyed, against the rules of File.read_async. Nothing
# tells when such a stream has passed a request, so their memory is never freed.
_lost: List[Any] = []
# The requests in flight of queues that have made requests in stream order, by weak references to
# the queues. A queue that is dropped without close() runs no Python code, since an exception that
# a signal handler raises there would be lost. So _dropped only notes its reference.
_watched: Dict[Any, Dict[int, Any]] = {}
_dropped: Deque[Any] = collections.deque()
_settler: Dict[str, Any] = {}  # An object of the call of settle() that is at work, if one is.


def place_of_request(stream: int, device: str) -> Place:
    """Returns the place of a request that this thread makes in stream order."""
    return stream, device, threading.get_ident() if stream == PER_THREAD_STREAM else 0


def watch(queue: Any, pending: Dict[int, Any]) -> None:
    """Notes a queue that makes requests in stream order. `pending` are its requests in flight,
    which have the members `keep` and `place`."""
    _watched[weakref.ref(queue, _dropped.append)] = pending


def owe(request: Any) -> None:
    """Keeps the memory of a request until its stream has passed it, if it is in stream order. Does
    not call the driver, so the caller may hold a lock."""
    if request.place is not None:
        _owed.append(_Owed(request.keep, request.place))


def settle() -> None:
    """Frees memory whose streams have passed the requests. Returns at once if another thread is
    doing that. A signal handler can raise at any place: an entry of _owed is removed only after
    its stream has passed it."""
    if not _owed and not _dropped:
        return
    me = object()
    try:
        if _settler.setdefault("", me) is me:
            _settle()
    finally:
        if _settler.get("") is me:
            _settler.clear()


def _settle() -> None:
    while _dropped:
        for request in list(_watched.get(_dropped[0], {}).values()):
            owe(request)
        _watched.pop(_dropped[0], None)
        _dropped.popleft()
    blocked: Set[Place] = set()  # The streams' earlier entries come first.
    for one in list(_owed):
        stream, device, thread = one.place
        if thread not in (0, threading.get_ident()):
            continue
        try:
            if one.event is None:
                one.event = record_event(stream, device)
            if one.event is None or one.place in blocked:
                continue
            if not has_passed(one.event, device):
                blocked.add(one.place)
                continue
        except RuntimeError:
            _lost.append(one)
        _owed.remove(one)
        if one.event is not None:
            with contextlib.suppress(RuntimeError):
                destroy_event(one.event)


def _in_child() -> None:
    """Keeps everything in a child of fork, which cannot use the parent's GPU."""
    _lost.extend((list(_owed), dict(_watched)))
    _owed.clear()
    _watched.clear()
    _dropped.clear()
    _settler.clear()  # The thread that settled may not exist in the child.


os.register_at_fork(after_in_child=_in_child)

__all__ = ["Place", "owe", "place_of_request", "settle", "watch"]
