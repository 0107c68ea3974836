# SPDX-License-Identifier: Apache-2.0
"""Moves bytes between one storage of the C library and the memory of tensors.

A storage is a file or an object of an S3 store; _objects.py uses this module for objects, and
_file.py for files. A signal handler, such as that of Ctrl-C, can end a transfer. This module does
not depend on file formats or object stores."""

from __future__ import annotations

import _thread
import contextlib
import math
import threading
from typing import Any, List, Sequence

from ._cuda import synchronize_all
from ._dtypes import BITS
from ._lib import call_for_handle, check, ffi, lib, to_c
from ._part import Segment, region_segments
from ._queue import EXACT, READING, WRITING, Queue, Transfer, TransferReport
from ._tensor import Place

# Maximum number of contiguous pieces of a tensor to move. Each piece is a request to the store, so
# segments_of refuses a tensor with more pieces.
PIECES_MAX = 64
WRITE, CREATE, REPLACE, PREFETCH = 1, 2, 4, 32  # PENSTOCK_O_*


class Storage:
    """An open storage; close() or the end of a `with` block closes it.

    Args:
        url: what penstock_open accepts.
        name: the name for messages.
        flags: PENSTOCK_O_* flags; 0 opens the storage for reading.
        length: the length of a storage that the open creates; 0 if it is unknown.
    """

    def __init__(self, url: Any, name: str, flags: int = 0, length: int = 0) -> None:
        opts = ffi.new("struct penstock_storage_opts *")
        opts.size, self.name = ffi.sizeof("struct penstock_storage_opts"), name
        opts.flags, opts.length = flags, length
        code, self._handle = call_for_handle("struct penstock_storage **", lib.penstock_close,
                                             lib.penstock_open, to_c(url), opts)
        check(code, name, has_place=False)

    def __enter__(self) -> "Storage":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the storage. What was written without a commit is lost. If another thread is
        inside a call with the handle, that thread closes the storage after the call."""
        self._handle = None  # Its destructor closes the storage.

    @property
    def handle(self) -> Any:
        """The C library's handle. Raises ValueError if the storage is closed."""
        if self._handle is None:
            raise ValueError(f"{self.name}: the file is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None

    @property
    def length(self) -> int:
        """The length in bytes."""
        return check(lib.penstock_storage_length(self.handle), self.name, has_place=False)

    def commit(self, durable: bool = True) -> None:
        """Makes what was written visible under the storage's name. A server may need minutes for
        that. If a signal handler raises an exception meanwhile, the commit is stopped."""
        raised: List[BaseException] = []
        opts, stop = ffi.new("struct penstock_end_opts *"), ffi.new("int *")
        opts.size, opts.durable, opts.stop = ffi.sizeof(opts[0]), int(durable), stop
        ended: List[bool] = []
        # The call takes the handle out of the list. So the frames of an error do not refer to it,
        # and close() closes the storage.
        gate, handles = threading.Lock(), [self.handle]

        def run() -> None:
            try:
                check(lib.penstock_commit_with(handles.pop(), opts), self.name, has_place=False)
            except BaseException as error:
                raised.append(error)
            ended.append(True)
            gate.release()

        # Python's signal handlers run only on the main thread, and not during a call of the
        # library. So on the main thread, this method lets another thread make the call, and waits
        # for it.
        gate.acquire()
        if threading.current_thread() is not threading.main_thread():
            run()
        else:
            # The classes Thread and Event contain Python code in which an exception of a signal
            # handler is lost or replaced by another one. A lock does not.
            _thread.start_new_thread(run, ())
            try:
                gate.acquire()
            except BaseException:
                stop[0] = 1
                while not ended:  # The thread uses the storage.
                    with contextlib.suppress(BaseException):
                        gate.acquire(timeout=0.1)
                raise
        if raised:
            error = raised.pop()
            try:
                raise error
            finally:
                # The error refers to this frame. If the frame also referred to the error, Python
                # would keep the caller's data until its garbage collector runs.
                del error

    def move(self, op: int, segments: Sequence[Segment], *, exact: bool = True,
             require: str = "any", effort: str = "thrifty") -> TransferReport:
        """Reads or writes segments, and returns when all their bytes have arrived. With `exact`, a
        read beyond the end is an error."""
        synchronize_all({s.device for s in segments})
        queue = Queue(self.handle, self.name, 1, len(segments) or 1, require=require,
                      effort=effort)
        try:
            transfer = Transfer(queue)
            queue.submit(transfer, op, segments, None, EXACT if exact else 0)
            return transfer.result()
        finally:
            queue.close()  # Cancels a request that has not completed.


def segments_of(place: Place, off: int, *, to_memory: bool) -> List[Segment]:
    """Returns the segments that move a whole tensor, whose bytes follow each other in the storage
    from `off` on. Raises ValueError if the tensor is read-only, or consists of more than PIECES_MAX
    pieces in memory.

    Segments have only addresses. place.keep owns the memory, so the caller must keep that object
    until the transfer has ended."""
    if to_memory and not place.writable:
        raise ValueError("the destination is read-only")
    nbytes = place.nbytes
    if not nbytes:
        return []
    if not place.split():
        return [Segment(off, place.ptr, nbytes, place.device)]
    size = BITS[place.dtype] // 8
    found = None
    if size and all(stride % size == 0 for stride in place.strides):
        found = region_segments(off, size, place.shape, [0] * len(place.shape), place.shape,
                                place.ptr, [stride // size for stride in place.strides],
                                place.device)
    if found is None or len(found) > PIECES_MAX:
        raise ValueError(f"the tensor of shape {tuple(place.shape)} is too scattered in memory to "
                         "be moved in place; use a contiguous one")
    return found


def bytes_place(data: Any) -> Place:
    """Returns the Place of the bytes of `data`, an object with a buffer. The Place describes them
    as a one-dimensional tensor of dtype U8."""
    view = memoryview(data).cast("B")
    raw = ffi.from_buffer(view, require_writable=False)
    return Place(int(ffi.cast("uintptr_t", raw)), (math.prod(view.shape or (1,)),), None, "U8",
                 "host", (raw, view), not view.readonly)


__all__ = ["CREATE", "PREFETCH", "READING", "REPLACE", "WRITE", "WRITING", "Storage",
           "TransferReport", "bytes_place", "segments_of"]
