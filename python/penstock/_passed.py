# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory of cancelled transfers until their CUDA streams have passed the transfers.

The C library completes a cancelled request in stream order at once. Its stream still executes the
request's operations later, and may then write zeros to the tensors. If the tensors' allocator gave
their memory to another tensor before that, these zeros would destroy its bytes. _queue.py calls
this module. The C library tells without a call of the driver whether a stream has passed a request,
so settle() never waits for a stream. But the end of a tensor may wait, because it may free memory
of the GPU. So only the submit in stream order, and the close of a queue that has made such
requests, call settle(), because they may wait anyway."""

from __future__ import annotations

import collections
import contextlib
import weakref
from typing import Any, Deque, Dict, Tuple

from ._lib import ffi, lib

_POINTER = ffi.typeof("void *")

# The objects that own the memory of a request, and the handle of its device, by the number that the
# request has as its `user`. In a child of fork, the library fails for the parent's devices, so all
# of the parent's entries stay.
_owed: Dict[int, Tuple[Any, Any]] = {}
# The requests in flight of queues that have made requests in stream order, by weak references to
# the queues. A queue that is dropped without close() runs no Python code, since an exception that
# a signal handler raises there would be lost. So _dropped only notes its reference.
_watched: Dict[Any, Dict[int, Any]] = {}
_dropped: Deque[Any] = collections.deque()


def watch(queue: Any, pending: Dict[int, Any]) -> None:
    """Notes a queue that makes requests in stream order. `pending` are its requests in flight by
    their numbers. A request has the members `keep` and `device`."""
    _watched[weakref.ref(queue, _dropped.append)] = pending


def _has_passed(number: int, device: Any) -> bool:
    return int(lib.penstock_stream_passed(device, ffi.cast(_POINTER, number))) == 1


def owe(number: int, request: Any) -> None:
    """Keeps the memory of a request until its stream has passed it, if it is in stream order. The
    request may be in flight, and the caller may hold a lock."""
    if request.device is not None and not _has_passed(number, request.device):
        _owed[number] = request.keep, request.device


def settle() -> None:
    """Frees memory whose streams have passed the requests. Any number of threads may call this
    function at the same time. A signal handler can raise at any place, and may call this function:
    an entry is removed only after its stream has passed it."""
    if not _owed and not _dropped:
        return
    for reference in list(_dropped):
        for number, request in list(_watched.get(reference, {}).items()):
            owe(number, request)
        _watched.pop(reference, None)
        with contextlib.suppress(ValueError):  # Another thread has removed it.
            _dropped.remove(reference)
    for number, (_, device) in list(_owed.items()):
        if _has_passed(number, device):
            _owed.pop(number, None)


__all__ = ["owe", "settle", "watch"]
