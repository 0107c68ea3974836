# SPDX-License-Identifier: Apache-2.0
"""Submits requests to a queue of the C library, and waits for their completions.

_transfer.py uses a queue for each transfer, and _file.py one queue for each file. Any number of
threads may use a Queue at the same time. A signal handler, such as that of Ctrl-C, can end a
wait."""

from __future__ import annotations

import asyncio
import errno
import functools
import struct
import threading
import time
import weakref
from typing import Any, Dict, Generator, List, Optional, Sequence, Tuple

from ._lib import PenstockError, call_for_handle, check, ffi, lib, make_error, open_holder
from ._model import CLASSES, EFFORTS
from ._part import Segment

# Longest wait inside the C library, in nanoseconds. Between two waits, Python runs its signal
# handlers.
WAIT_NS = 100_000_000
# A submit waits this long, in seconds, for the completion of any earlier request if the limit of
# requests in flight is reached.
FULL_SECONDS = 10.0
# Maximum number of completions that one call takes.
TAKEN_MAX = 64
READING, WRITING = 0, 1  # PENSTOCK_READ, PENSTOCK_WRITE
DURABLE, EXACT, EARLY = 1, 2, 0x10  # PENSTOCK_R_*

# The layouts of three structs, which the members of _pack_request fill.
_SEG = struct.Struct("@PPQQQQQQQP")
_REQ = struct.Struct("@NPPIiiiIiQPPPPPN")
_LATE = struct.Struct("@NPPPPQ")
assert _SEG.size == ffi.sizeof("struct penstock_seg")
assert _REQ.size == ffi.sizeof("struct penstock_req")
assert _LATE.size == ffi.sizeof("struct penstock_late")

# The result of a captured transfer that no graph has replayed.
_NOT_REPLAYED = -(1 << 63)
# Memory that graphs read and write when they replay captured transfers. A graph can exist until the
# process ends, so this memory is never freed. A captured transfer needs some 32 bytes.
_captured: List[Any] = []


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
        self.path, self.engine = _constant(r.path), _constant(r.engine)
        self.cpu_copies = r.cpu_copied / r.bytes if r.bytes else 0.0
        self.retries = int(r.retries)
        rows = [r.paths[i] for i in range(r.path_count)]
        self.paths = {_constant(row.name): int(row.bytes) for row in rows if row.bytes}
        self.reasons = {_constant(row.name): _text(row.text) for row in rows if row.why}

    def __repr__(self) -> str:
        return (f"penstock.TransferReport({self.bytes} bytes in {self.seconds:.3f} s by "
                f"{self.path}, {self.cpu_copies:.2f} CPU copies)")


def _text(data: Any) -> str:
    return "" if data == ffi.NULL else str(ffi.string(data).decode("utf-8", "replace"))


# The names of paths and engines by their addresses, which the library never changes.
_constants: Dict[Any, str] = {}


def _constant(data: Any) -> str:
    found = _constants.get(data)
    if found is None:
        found = _constants[data] = _text(data)
    return found


def report_error(result: int, report: Any, name: str) -> PenstockError:
    """Returns the error of a request that failed. `report` is its struct penstock_report, which the
    library has not filled if it refused the request."""
    if not report.result:
        return make_error(result, name, has_place=False)
    error = make_error(result, name, has_place=False, message=f"{name}: {_text(report.text)}")
    error.reason = _text(lib.penstock_why_name(int(report.why)))
    return error


class Late:
    """A whole number that a transfer in stream order uses when the stream reaches the transfer, or
    when a CUDA graph that contains the transfer is replayed.

        offset = penstock.Late()
        file.read_async(block, offset, stream=stream)    # for example captured into a graph
        offset.value = 3 << 20
        graph.replay()                                   # reads the file from 3 MiB on

    Attributes:
        value: the number, from 0 to 2**63 - 1. Do not change it while a replay is under way.
    """

    __slots__ = ("_cell",)

    def __init__(self, value: int = 0) -> None:
        self._cell = ffi.new("uint64_t *")
        self.value = value

    @property
    def value(self) -> int:  # pylint: disable=missing-function-docstring
        return int(self._cell[0])

    @value.setter
    def value(self, value: int) -> None:
        if not 0 <= value < 1 << 63:
            raise ValueError(f"the value must be a whole number from 0 to 2**63 - 1, not {value}")
        self._cell[0] = value

    def __repr__(self) -> str:
        return f"penstock.Late({self.value})"


class LateValues:
    """The values of a request that the library reads when the stream reaches the request.

    Args:
        values: the number of bytes, the offset in the file, and the offset in the memory; None
            where the request itself has the value.
        room: the number of bytes of the memory.
    """

    def __init__(self, values: Sequence[Optional[Late]] = (None, None, None),
                 room: int = 0) -> None:
        self._cells = [None if late is None else late._cell for late in values]
        self._room = room

    def pack(self, result: Any) -> Tuple[bytes, Any]:
        """Returns a struct penstock_late, and the memory to which it refers. `result` is the cell
        for the result."""
        cells = [*self._cells, result]
        at = [0 if cell is None else int(ffi.cast("uintptr_t", cell)) for cell in cells]
        return _LATE.pack(_LATE.size, *at, self._room), cells


class Transfer:
    """A transfer under way, which File.read_async or File.write_async has started.

    `await transfer` waits in an asyncio program, and has the result of result().

    Attributes:
        captured: whether the transfer was captured into a CUDA graph. Then it moves bytes when the
            graph is replayed, and only replayed() tells about that.
    """

    __slots__ = ("captured", "_queue", "_id", "_cell", "_done", "_report", "_error", "__weakref__")

    def __init__(self, queue: Optional["Queue"], captured: bool = False, cell: Any = None) -> None:
        self.captured, self._queue, self._id, self._cell = captured, queue, 0, cell
        self._done, self._report = False, TransferReport()
        self._error: Optional[PenstockError] = None

    def done(self) -> bool:
        """Returns whether the transfer has completed or failed."""
        if not self._done and self._queue is not None:
            self._queue.take()
        return self._done

    def result(self, timeout: Optional[float] = None) -> TransferReport:
        """Waits until the transfer has completed, and returns its report. Raises the error if it
        failed, and TimeoutError if it has not completed after `timeout` seconds."""
        if self.captured:
            raise RuntimeError("the transfer was captured into a CUDA graph: replay the graph, "
                               "wait for its stream, and call replayed()")
        if self._queue is not None:
            self._queue.wait_for(self, timeout)
            self._queue.forget_error(self._id)
        if self._error is not None:
            raise self._error
        return self._report

    def replayed(self) -> int:
        """Returns the number of bytes that the last replay of a captured transfer moved. Raises the
        error if the replay failed, and RuntimeError if there was no replay.

        Wait for the graph's stream first."""
        if not self.captured or int(self._cell[0]) == _NOT_REPLAYED:
            raise RuntimeError("no graph has replayed this transfer" if self.captured else
                               "the transfer was not captured into a CUDA graph")
        result = int(self._cell[0])
        if result < 0:
            assert self._queue is not None
            raise make_error(result, self._queue.name, has_place=False,
                             message=f"{self._queue.name}: the replay of a transfer failed: "
                             f"{errno.errorcode.get(-result, str(-result))}")
        return result

    def cancel(self) -> None:
        """Stops the transfer where that is possible. Its result is then an error with errno
        ECANCELED.

        The memory is in use until the transfer is done and, in stream order, until the stream has
        passed the transfer."""
        if self._queue is not None and not self._done:
            self._queue.cancel(self._id)

    def abandon(self) -> None:
        """Cancels the transfer and waits until it has ended, if it is under way. Forgets its
        error."""
        if self._queue is not None:
            self.cancel()
            self._queue.wait_for(self, None)
            self._queue.forget_error(self._id)

    def __await__(self) -> Generator[Any, None, TransferReport]:
        return asyncio.to_thread(self.result).__await__()

    def finish(self, report: TransferReport, error: Optional[PenstockError]) -> None:
        """Sets the outcome. Queue calls this."""
        self._report, self._error, self._done = report, error, True


class Queue:
    """A queue of the C library for the requests of one storage.

    Args:
        storage: the handle of the storage.
        name: the storage's name for messages.
        requests, segments: the maximum number of requests in flight, and of one request's segments.

    If a Queue is dropped without close(), its requests are cancelled. The queue and the memory of
    its requests are freed after that.
    """

    def __init__(self, storage: Any, name: str, requests: int, segments: int) -> None:
        self.name, self._storage = name, storage
        limits = ffi.new("struct penstock_queue_opts *")
        limits.size = ffi.sizeof("struct penstock_queue_opts")
        limits.requests_max, limits.segs_max = requests, segments
        # For each request in flight: a weak reference to its Transfer, and the objects that own its
        # memory. The destructor of the handle refers to them, so that they live until the C library
        # has closed the queue.
        self._pending: Dict[int, Tuple[Any, Any]] = {}
        close: Any = functools.partial(lib.penstock_queue_close)
        close.keep = (self._pending, storage)
        code, self._handle = call_for_handle("struct penstock_queue **", close,
                                             lib.penstock_queue_open, limits)
        check(code, name, has_place=False)
        self._errors: Dict[int, PenstockError] = {}  # Those that no caller has received.
        self._changed = threading.Condition()
        self._taking = False  # Whether a thread is taking completions. Only one may do that.
        self._taken = ffi.new("struct penstock_done[]", min(requests, TAKEN_MAX))
        self._id = ffi.new("uint64_t *")

    def close(self) -> None:
        """Cancels the requests in flight, waits for those that have started, and closes the
        queue."""
        with self._changed:
            while self._taking:
                self._changed.wait()
            handle, self._handle = self._handle, None
            if handle is not None:
                ffi.release(handle)
            for kept in self._pending.values():
                transfer = kept[0]()
                if transfer is not None:
                    transfer.finish(TransferReport(), make_error(
                        -errno.ECANCELED, self.name, has_place=False,
                        message=f"{self.name}: it was closed before the transfer had completed"))
            self._pending.clear()

    def submit(self, op: int, segments: Sequence[Segment], keep: Any, *, flags: int, require: str,
               effort: str, stream: int = 0, captured: bool = False,
               late: Optional[LateValues] = None) -> Transfer:
        """Submits a request, and returns its Transfer. `keep` are the objects that own the
        memory."""
        if not segments:
            transfer = Transfer(None)
            transfer.finish(TransferReport(), None)
            return transfer
        cell = ffi.new("int64_t *", _NOT_REPLAYED) if stream else None
        late_struct, cells = (late or LateValues()).pack(cell) if stream else (b"", None)
        request, parts = pack_request(self._storage, op, segments, flags=flags, require=require,
                                      effort=effort, stream=stream, late=late_struct)
        transfer = Transfer(self, captured, cell)
        if captured:
            _captured.append(cells)
        with self._changed:
            self._id[0] = 0
            try:
                check(self._submit(request, bool(stream)), self.name, has_place=False)
            finally:  # A signal handler can raise after the library has accepted the request.
                transfer._id = int(self._id[0])
                if transfer._id:
                    self._pending[transfer._id] = weakref.ref(transfer), (keep, cells)
            del parts  # The library has copied the request.
        self.take()
        return transfer

    def _submit(self, request: Any, in_stream_order: bool) -> int:
        """Submits a request. While too many are in flight, waits for completions.

        A request in stream order may wait for work that this program queues later. So if no
        request completes for FULL_SECONDS, the library's code EAGAIN is returned."""
        begun, count = time.monotonic(), len(self._pending)
        while True:
            code = int(lib.penstock_submit(self._handle, request, 1, self._id))
            if code != -errno.EAGAIN:
                return code
            if len(self._pending) < count or not in_stream_order:
                begun, count = time.monotonic(), len(self._pending)
            if time.monotonic() - begun > FULL_SECONDS:
                return code
            if self._pending:
                self._take(WAIT_NS)
            else:  # Requests of other queues are in flight on the device.
                self._changed.wait(0.001)

    def take(self) -> None:
        """Takes the completions that are there, without waiting. Returns at once if another thread
        waits for completions."""
        with self._changed:
            if self._pending and not self._taking:
                self._take(0)

    def _take(self, timeout_ns: int) -> None:
        """Takes completions, or lets the thread that is already doing that do it.

        The caller has locked self._changed, which this method unlocks while it waits."""
        if self._taking:
            self._changed.wait(timeout_ns / 1e9)
            return
        if self._handle is None:
            raise ValueError(f"{self.name}: the file is closed")
        self._taking = True
        try:
            while True:
                if timeout_ns:
                    self._changed.release()
                    try:
                        count = lib.penstock_wait(self._handle, self._taken, 1, len(self._taken),
                                                  timeout_ns)
                    finally:
                        self._changed.acquire()
                else:
                    count = lib.penstock_poll(self._handle, self._taken, len(self._taken))
                check(count, self.name, has_place=False)
                for i in range(count):
                    self._finish(self._taken[i])
                if count < len(self._taken):
                    break
                timeout_ns = 0
        finally:
            self._taking = False
            self._changed.notify_all()

    def _finish(self, done: Any) -> None:
        """Passes a completion to its Transfer."""
        number = int(done.id)
        reference, _ = self._pending.pop(number)
        error = None
        if done.result < 0:
            error = self._errors[number] = report_error(int(done.result), done.report, self.name)
        transfer = reference()
        if transfer is not None:
            report = TransferReport()
            report.fill(done.report)
            transfer.finish(report, error)

    def wait_for(self, transfer: Transfer, timeout: Optional[float]) -> None:
        """Waits until a transfer has completed. Raises TimeoutError after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not transfer._done:
                left = WAIT_NS
                if end is not None:
                    left = min(left, int((end - time.monotonic()) * 1e9))
                    if left <= 0:
                        raise TimeoutError(f"{self.name}: the transfer has not completed after "
                                           f"{timeout} seconds")
                self._take(left)

    def wait_for_all(self) -> None:
        """Waits until no request is in flight. Raises the first error that no caller has
        received."""
        with self._changed:
            while self._pending:
                self._take(WAIT_NS)
            if self._errors:
                error = self._errors[min(self._errors)]
                self._errors.clear()
                raise error

    def forget_error(self, number: int) -> None:
        """Notes that a caller has received the error of request `number`."""
        with self._changed:
            self._errors.pop(number, None)

    def cancel(self, number: int) -> None:
        """Cancels request `number`, if it has not completed."""
        with self._changed:
            if number in self._pending and self._handle is not None:
                lib.penstock_cancel(self._handle, number)


def pack_request(storage: Any, op: int, segments: Sequence[Segment], *, flags: int, require: str,
                 effort: str, stream: int = 0, late: bytes = b"") -> Tuple[Any, Any]:
    """Returns a struct penstock_req, and an object that must live until the library has read the
    struct. Packing bytes takes less time than setting each member of a struct of cffi."""
    holders = {name: int(ffi.cast("uintptr_t", open_holder(name)))
               for name in {s.device for s in segments}}
    table = b"".join([_SEG.pack(s.ptr, holders[s.device], 0, s.off, s.row_bytes, s.rows, s.pitch,
                                s.ptr_pitch, s.room, 0) for s in segments])
    rows, values = ffi.from_buffer(table), ffi.from_buffer(late) if late else ffi.NULL
    packed = _REQ.pack(_REQ.size, int(ffi.cast("uintptr_t", storage)),
                       int(ffi.cast("uintptr_t", rows)), len(segments), op, CLASSES[require],
                       EFFORTS[effort], flags, 0, 0, 0, 0, 0, stream,
                       int(ffi.cast("uintptr_t", values)), 0)
    return ffi.from_buffer("struct penstock_req[]", packed), (rows, values)


__all__ = ["DURABLE", "EARLY", "EXACT", "READING", "WRITING", "Late", "LateValues", "Queue",
           "Transfer", "TransferReport", "pack_request", "report_error"]
