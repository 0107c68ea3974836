# SPDX-License-Identifier: Apache-2.0
"""Moves bytes between one storage of the C library and the memory of tensors.

A storage is a file or an object of an S3 store; _objects.py uses this module for objects. A signal
handler, such as that of Ctrl-C, can end a transfer. This module does not depend on file formats or
object stores."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any, Dict, List, Optional, Sequence

from ._cuda import synchronize_all
from ._dtypes import BITS
from ._lib import call_for_handle, check, ffi, lib, make_error, open_device, to_c
from ._model import CLASSES, EFFORTS
from ._part import Segment, region_segments
from ._tensor import Place

# Longest wait inside the C library, in nanoseconds. Between two waits, Python runs its signal
# handlers.
WAIT_NS = 100_000_000
# Maximum number of contiguous pieces of a tensor to move. Each piece is a request to the store, so
# segments_of refuses a tensor with more pieces.
PIECES_MAX = 64
WRITE, CREATE, REPLACE = 1, 2, 4  # PENSTOCK_O_*
READING, WRITING, EXACT = 0, 1, 2  # PENSTOCK_READ, PENSTOCK_WRITE, PENSTOCK_R_EXACT


class TransferReport:
    """The results of a transfer.

    Attributes:
        bytes: number of bytes moved.
        seconds: how long that took.
        path: the path that carried most bytes, such as "rdma" or "object".
        engine: the method of making system calls.
        cpu_copies: how often the CPU copied each byte, on average.
        retries: number of chunks that had to be moved again.
        paths: the bytes that each path moved.
        reasons: for each path that moved no or not all bytes, a sentence that says why.
    """

    def __init__(self) -> None:
        self.bytes, self.seconds, self.path, self.engine = 0, 0.0, "none", "none"
        self.cpu_copies, self.retries = 0.0, 0
        self.paths: Dict[str, int] = {}
        self.reasons: Dict[str, str] = {}

    def fill(self, r: Any) -> None:
        """Sets the attributes from `r`, a struct penstock_report."""
        self.bytes, self.seconds = int(r.bytes), (r.end_ns - r.start_ns) / 1e9
        self.path, self.engine = _text(r.path), _text(r.engine)
        self.cpu_copies = r.cpu_copied / r.bytes if r.bytes else 0.0
        self.retries = int(r.retries)
        rows = [r.paths[i] for i in range(r.path_count)]
        self.paths = {_text(row.name): int(row.bytes) for row in rows if row.bytes}
        self.reasons = {_text(row.name): _text(row.text) for row in rows if row.why}

    def __repr__(self) -> str:
        return (f"penstock.TransferReport({self.bytes} bytes in {self.seconds:.3f} s by "
                f"{self.path}, {self.cpu_copies:.2f} CPU copies)")


def _text(data: Any) -> str:
    return "" if data == ffi.NULL else str(ffi.string(data).decode("utf-8", "replace"))


class Storage:
    """An open storage; close() or the end of a `with` block closes it.

    Args:
        url: what penstock_open accepts.
        name: the name for messages.
        length: None opens the storage for reading. A number opens it for writing new contents of
            this length; 0 means an unknown length.
        new: True raises an error with errno EEXIST if the storage exists now or at the commit.
    """

    def __init__(self, url: str, name: str, length: Optional[int] = None, *,
                 new: bool = False) -> None:
        opts = ffi.new("struct penstock_storage_opts *")
        opts.size, self.name = ffi.sizeof("struct penstock_storage_opts"), name
        if length is not None:
            opts.flags, opts.length = WRITE | (CREATE if new else REPLACE), length
        code, self._handle = call_for_handle("struct penstock_storage **", lib.penstock_close,
                                             lib.penstock_open, to_c(url), opts)
        check(code, name, has_place=False)

    def __enter__(self) -> "Storage":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the storage. What was written without a commit is lost."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    @property
    def length(self) -> int:
        """The length in bytes."""
        return check(lib.penstock_storage_length(self._handle), self.name, has_place=False)

    def commit(self, durable: bool = True) -> None:
        """Makes what was written visible under the storage's name. A server may need minutes for
        that. If a signal handler raises an exception meanwhile, the commit is stopped."""
        raised: List[BaseException] = []
        opts, stop = ffi.new("struct penstock_end_opts *"), ffi.new("int *")
        opts.size, opts.durable, opts.stop = ffi.sizeof(opts[0]), int(durable), stop
        ended = threading.Event()

        def run() -> None:
            try:
                check(lib.penstock_commit_with(self._handle, opts), self.name, has_place=False)
            except BaseException as error:
                raised.append(error)
            ended.set()

        # Python's signal handlers run only on the main thread, and not during a call of the
        # library. So on the main thread, this method lets another thread make the call, and waits
        # for it.
        if threading.current_thread() is not threading.main_thread():
            run()
        else:
            # Waits for an event instead of Thread.join: in older versions of Python, join regards
            # the thread as ended if a signal handler raises an exception.
            threading.Thread(target=run, name="penstock-commit").start()
            try:
                ended.wait()
            except BaseException:
                stop[0] = 1
                while not ended.is_set():  # The thread uses the storage.
                    with contextlib.suppress(BaseException):
                        ended.wait()
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
        report = TransferReport()
        table = ffi.new("struct penstock_seg[]", len(segments) or 1)
        devices = {name: open_device(name) for name in {s.device for s in segments}}
        for row, s in zip(table, segments):
            row.buf, row.dev = ffi.cast("void *", s.ptr), devices[s.device]
            row.off, row.row_len, row.rows = s.off, s.row_bytes, s.rows
            row.pitch, row.buf_pitch, row.room = s.pitch, s.ptr_pitch, s.room
        if not segments:
            return report
        synchronize_all(devices)
        req = ffi.new("struct penstock_req *")
        req.size, req.storage, req.segs = ffi.sizeof("struct penstock_req"), self._handle, table
        req.seg_count, req.op, req.flags = len(segments), op, EXACT if exact else 0
        req.require, req.effort = CLASSES[require], EFFORTS[effort]
        limits = ffi.new("struct penstock_queue_opts *")
        limits.size, limits.requests_max = ffi.sizeof("struct penstock_queue_opts"), 1
        limits.segs_max = len(segments)
        code, queue = call_for_handle("struct penstock_queue **", lib.penstock_queue_close,
                                      lib.penstock_queue_open, limits)
        check(code, self.name, has_place=False)
        try:
            check(lib.penstock_submit(queue, req, 1, ffi.NULL), self.name, has_place=False)
            done = ffi.new("struct penstock_done *")
            # Between two waits, Python runs the handlers of signals.
            while not check(lib.penstock_wait(queue, done, 1, 1, WAIT_NS), self.name,
                            has_place=False):
                pass
            report.fill(done.report)
            if done.result < 0:
                error = make_error(int(done.result), self.name, has_place=False,
                                   message=f"{self.name}: {_text(done.report.text)}")
                error.reason = _text(lib.penstock_why_name(int(done.report.why)))
                raise error
        finally:
            ffi.release(queue)  # Cancels a request that has not completed.
        return report


def segments_of(place: Place, off: int, *, to_memory: bool) -> List[Segment]:
    """Returns the segments that move a whole tensor, whose bytes follow each other in the storage
    from `off` on. Raises ValueError if the tensor is read-only, or consists of more than PIECES_MAX
    pieces in memory.

    Segments have only addresses. The Place keeps the memory, so the caller must keep the Place
    until the transfer has ended."""
    if to_memory and not place.writable:
        raise ValueError("the destination is read-only")
    if not place.nbytes:
        return []
    if not place.split():
        return [Segment(off, place.ptr, place.nbytes, place.device)]
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


__all__ = ["READING", "WRITING", "Storage", "TransferReport", "bytes_place", "segments_of"]
