# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory of cancelled transfers until their CUDA streams have passed the transfers.

The C library completes a cancelled request in stream order at once. Its stream still executes the
request's operations later, and may then write zeros to the tensors. If the tensors' allocator gave
their memory to another tensor before that, these zeros would destroy its bytes. _queue.py calls
this module. settle() calls the driver, which can wait there for a stream, for example because the
stream's hardware queue is full. So only the submit in stream order, and the close of a queue that
has made such requests, call settle(), because they may wait anyway."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import weakref
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from ._cuda import PER_THREAD_STREAM, destroy_event, has_passed, record_event

# The place of a request: its stream's handle, the library's name of its GPU, and _here.me of the
# thread to which the handle belongs, or None if the handle means the same stream in all threads.
Place = Tuple[int, str, Any]


class _Thread(threading.local):
    """`me` is another object in each thread. Unlike the number of threading.get_ident, a later
    thread does not get it again."""

    def __init__(self) -> None:
        self.me = object()


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
_here = _Thread()


class _Settler:
    """A call of settle() that is at work."""


# Weak reference to the _Settler, so that a call which a signal handler has interrupted at any place
# is not at work any more. The lock protects it, and is never held during a call of the driver. A
# signal handler may call settle(), too, so a thread can take the lock twice.
_settler: Callable[[], Optional[_Settler]] = lambda: None
_lock = threading.RLock()


def place_of_request(stream: int, device: str) -> Place:
    """Returns the place of a request that this thread makes in stream order."""
    return stream, device, _here.me if stream == PER_THREAD_STREAM else None


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
    global _settler  # pylint: disable=global-statement
    me: Optional[_Settler] = _Settler()
    with _lock:
        if _settler() is not None:
            return
        _settler = weakref.ref(me)
    try:
        _settle()
    finally:
        me = None  # The traceback of an exception keeps this frame.


def _settle() -> None:
    while _dropped:
        for request in list(_watched.get(_dropped[0], {}).values()):
            owe(request)
        _watched.pop(_dropped[0], None)
        _dropped.popleft()
    blocked: Set[Place] = set()  # The streams' earlier entries come first.
    for one in list(_owed):
        stream, device, thread = one.place
        if thread not in (None, _here.me):
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
    global _settler, _lock  # pylint: disable=global-statement
    _lost.extend((list(_owed), dict(_watched)))
    _owed.clear()
    _watched.clear()
    _dropped.clear()
    # The thread that settled, or that held the lock, may not exist in the child.
    _settler, _lock = lambda: None, threading.RLock()


os.register_at_fork(after_in_child=_in_child)

__all__ = ["Place", "owe", "place_of_request", "settle", "watch"]
