# SPDX-License-Identifier: Apache-2.0
"""Submits requests to a queue of the C library, and waits for their completions.

_transfer.py uses a queue for each transfer, and _file.py one queue for each file. Any number of
threads may use a Queue at the same time. A signal handler, such as that of Ctrl-C, can end a
wait."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import os
import struct
import threading
import time
import weakref
from typing import Any, Callable, Dict, Generator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ._lib import (PenstockError, call_for_handle, check, decode, ffi, lib, make_error,
                   open_holder)
from ._model import CLASSES, EFFORTS
from ._part import Segment
from ._passed import owe, settle, watch

# Longest wait inside the C library, in nanoseconds. Between two waits, Python runs its signal
# handlers.
WAIT_NS = 100_000_000
# A submit waits this long, in seconds, for the completion of any earlier request if the limit of
# requests in flight is reached.
FULL_SECONDS = 10.0
# Maximum number of completions that one call takes.
TAKEN_MAX = 64
# Number of different rows of reports that row_cache remembers.
ROWS_MAX = 64
READING, WRITING = 0, 1  # PENSTOCK_READ, PENSTOCK_WRITE
DURABLE, EXACT, EARLY = 1, 2, 0x10  # PENSTOCK_R_*

# ffi takes less time for a type than for the type's name.
_ADDRESS, _CHARS = ffi.typeof("uintptr_t"), ffi.typeof("char *")
_ID, _REQUESTS = ffi.typeof("uint64_t *"), ffi.typeof("struct penstock_req[]")
# The layouts of the structs that pack_request and LateValues.pack fill.
_SEG = struct.Struct("@PPQQQQQQQP")
_REQ = struct.Struct("@NPPIiiiIiQPPPPPN")
_LATE = struct.Struct("@NPPPPQ")
_SEG_SIZE, _REQ_SIZE = _SEG.size, _REQ.size
assert _SEG_SIZE == ffi.sizeof("struct penstock_seg")
assert _REQ_SIZE == ffi.sizeof("struct penstock_req")
assert _LATE.size == ffi.sizeof("struct penstock_late")
# The members of a struct penstock_report before its rows, and the members of a row. Reading each
# member of a struct of cffi takes more time.
_REPORT = struct.Struct("@NqQQQPPiQQQQi384xI")
_ROW = struct.Struct("@PQiPPQ")
REPORT_SIZE = ffi.sizeof("struct penstock_report")
assert _REPORT.size == ffi.offsetof("struct penstock_report", "paths")
assert _ROW.size == ffi.sizeof("struct penstock_report_path")

# The numbers of the requests of this process. The library tells by the number of a request in
# stream order whether its stream has passed it, so no two Queues may use the same number.
_numbers = itertools.count(1)
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

    def fill(self, r: Any, rows: "Rows") -> None:
        """Sets the attributes from `r`, a pointer to a struct penstock_report. `rows` is the result
        of row_cache for the storage."""
        data = ffi.buffer(r, REPORT_SIZE)
        (_, _, self.bytes, start, end, path, engine, _, copied, _, _, self.retries, _,
         count) = _REPORT.unpack_from(data)
        self.seconds, self.path, self.engine = (end - start) / 1e9, _constant(path), \
            _constant(engine)
        self.cpu_copies = copied / self.bytes if self.bytes else 0.0
        paths, reasons = rows(data[_REPORT.size:_REPORT.size + count * _ROW.size])
        self.paths, self.reasons = paths.copy(), reasons.copy()

    def __repr__(self) -> str:
        return (f"penstock.TransferReport({self.bytes} bytes in {self.seconds:.3f} s by "
                f"{self.path}, {self.cpu_copies:.2f} CPU copies)")


def _text(address: int) -> str:
    """Returns the text of a C string. `address` is 0 if there is none."""
    return str(ffi.string(ffi.cast(_CHARS, address)), "utf-8", "replace") if address else ""


# The names of paths and engines by their addresses, which the library never changes.
_constants: Dict[int, str] = {}


def _constant(address: int) -> str:
    found = _constants.get(address)
    if found is None:
        found = _constants[address] = _text(address)
    return found


# Returns the paths and the reasons of the rows of a struct penstock_report.
Rows = Callable[[bytes], Tuple[Dict[str, int], Dict[str, str]]]


def row_cache() -> Rows:
    """Returns a function of the type Rows that remembers what it has returned, for the reports of
    one storage. Most of them have equal rows. The library neither changes nor frees the texts of
    rows until the storage or the device is closed, and this package closes no device."""
    return functools.lru_cache(maxsize=ROWS_MAX)(_read_rows)


def _read_rows(data: bytes) -> Tuple[Dict[str, int], Dict[str, str]]:
    paths, reasons = {}, {}
    for name, moved, why, text, _, _ in _ROW.iter_unpack(data):
        if moved:
            paths[_constant(name)] = moved
        if why:
            reasons[_constant(name)] = _text(text)
    return paths, reasons


def refusal(code: int, name: str) -> PenstockError:
    """Returns the error of a request that the library refused. Adds the file's name to the
    library's message."""
    return make_error(code, name, has_place=False,
                      message=f"{name}: {decode(lib.penstock_errmsg())}")


def report_error(result: int, report: Any, name: str) -> PenstockError:
    """Returns the error of a request that failed. `report` is its struct penstock_report, which the
    library has not filled if it refused the request."""
    if not report.result:
        return refusal(result, name)
    error = make_error(result, name, has_place=False, message=f"{name}: {decode(report.text)}")
    error.reason = decode(lib.penstock_why_name(int(report.why)))
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

    def __reduce__(self) -> Any:
        raise TypeError("a penstock.Late cannot be copied or pickled; pass its value")


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
        at = [0 if cell is None else int(ffi.cast(_ADDRESS, cell)) for cell in cells]
        return _LATE.pack(_LATE.size, *at, self._room), cells


_NO_REPORT = TransferReport()


class Transfer:
    """A transfer under way, which File.read_async or File.write_async has started.

    `await transfer` waits in an asyncio program, and has the result of result(). If the waiting
    task is cancelled, the transfer goes on.

    Attributes:
        captured: whether the transfer was captured into a CUDA graph. Then it moves bytes when the
            graph is replayed, and only replayed() tells about that.
    """

    __slots__ = ("captured", "_queue", "_number", "_cell", "_done", "_report", "_error",
                 "_futures", "__weakref__")

    def __init__(self, queue: Optional["Queue"] = None) -> None:
        self.captured, self._queue, self._number = False, queue, 0
        self._cell: Any = None
        self._done, self._report = False, _NO_REPORT
        self._error: Optional[PenstockError] = None
        self._futures: List[Tuple[Any, Any]] = []  # Event loops, and their futures for this object.

    def __repr__(self) -> str:
        state = "captured" if self.captured else "under way" if not self._done else \
            "failed" if self._error is not None else "completed"
        name = f"of {self._queue.name!r}, " if self._queue is not None else ""
        return f"<penstock.Transfer {name}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a penstock.Transfer cannot be copied or pickled; pass its report, the "
                        "result of result()")

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
            self._queue.forget_error(self._number)
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The error refers to this frame. If the frame also referred to the error, Python
                # would keep the caller's tensors until its garbage collector runs.
                del self
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
        passed the transfer. Until then do not use the tensors for anything else: the stream may
        write zeros to them. The package keeps the tensors at least as long, also if the File is
        dropped. A later transfer in stream order, of any File, frees them."""
        if self._queue is not None and not self._done:
            self._queue.cancel(self._number)

    def abandon(self) -> None:
        """Cancels the transfer and waits until it has ended, if it is under way. Forgets its
        error."""
        if self._queue is not None and self._queue.cancel(self._number):
            self._queue.wait_for(self, None)
            self._queue.forget_error(self._number)

    def __await__(self) -> Generator[Any, None, TransferReport]:
        return self._wait().__await__()

    async def _wait(self) -> TransferReport:
        if not self.captured and self._queue is not None and not self.done():
            await self._queue.wait_in_loop(self)
        return self.result()

    def begin(self, number: int, captured: bool, cell: Any) -> None:
        """Sets the number of the request, and the cell for a replay's result. Queue calls this."""
        self._number, self.captured, self._cell = number, captured, cell

    def finish(self, report: TransferReport, error: Optional[PenstockError]) -> None:
        """Sets the outcome. Queue calls this."""
        self._report, self._error, self._done = report, error, True
        for loop, future in self._futures:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(_set_future, future)


def _set_future(future: Any) -> None:
    if not future.done():
        future.set_result(None)


class _Pending(NamedTuple):
    """A request in flight: a weak reference to its Transfer, the objects that own its memory, the
    cells of its late values, the cell for the library's id, which is 0 until the library has
    accepted the request, and the handle of the device of a request in stream order."""
    transfer: Any
    keep: Any
    cells: Any
    ident: Any
    device: Any = None


class Queue:
    """A queue of the C library for the requests of one storage.

    Args:
        storage: the handle of the storage.
        name: the storage's name for messages.
        requests, segments: the maximum number of requests in flight, and of one request's segments.
        require, effort: as in load_file.

    Attributes:
        rows: the row_cache for reports of the storage.
        codes: the C library's numbers for `require` and `effort`.

    If a Queue is dropped without close(), its requests are cancelled. The queue and the memory of
    its requests are freed after that, or, if it has made requests in stream order, by settle().

    A signal handler can raise an exception in any method, and at almost any place. No completion is
    lost by that: the next call of a method continues where the interrupted one ended.
    """

    def __init__(self, storage: Any, name: str, requests: int, segments: int, *,
                 require: str = "any", effort: str = "thrifty") -> None:
        self.name, self._storage = name, storage
        self.rows, self.codes = row_cache(), (CLASSES[require], EFFORTS[effort])
        limits = ffi.new("struct penstock_queue_opts *")
        limits.size = ffi.sizeof("struct penstock_queue_opts")
        limits.requests_max, limits.segs_max = requests, segments
        # The requests in flight by their numbers, which the library returns in completions. The
        # destructor of the handle refers to them, so that they live until the C library has closed
        # the queue.
        self._pending: Dict[int, _Pending] = {}
        close: Any = functools.partial(lib.penstock_queue_close)
        close.keep = (self._pending, storage)
        code, self._handle = call_for_handle("struct penstock_queue **", close,
                                             lib.penstock_queue_open, limits)
        check(code, name, has_place=False)
        self._errors: Dict[int, PenstockError] = {}  # Those that no caller has received.
        # The lock of all members. No thread holds it while it waits in the library. `with` takes
        # less time for a lock than for its condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._taking: Optional[int] = None  # The thread that takes completions. Only one may.
        self._taken = ffi.new("struct penstock_done[]", min(requests, TAKEN_MAX))
        self._left = 0  # How many entries of self._taken may not have been passed on.
        self._batches = 0  # How often completions were passed on.
        self._readers: Dict[Any, List[int]] = {}  # For event loops: a descriptor, and its users.
        self._watched = False  # Whether watch() knows this object.
        _queues.add(weakref.ref(self, _queues.discard))

    def unlock_in_child(self) -> None:
        """Replaces the lock in a child of fork. The thread that held it may not exist there."""
        self._lock, self._taking = threading.RLock(), None
        self._changed = threading.Condition(self._lock)

    def close(self) -> None:
        """Cancels the requests in flight, waits for those that have started, and closes the
        queue."""
        with self._lock:
            handle, self._handle = self._handle, None  # From here on, no thread starts to take.
            if handle is not None:
                try:
                    while self._taking not in (None, threading.get_ident()):
                        self._changed.wait(WAIT_NS / 1e9)
                except BaseException:
                    self._handle = handle
                    raise
                ffi.release(handle)
            self._storage = None
            for number, request in self._pending.items():
                owe(number, request)
                transfer = request.transfer()
                if transfer is not None:
                    transfer.finish(TransferReport(), make_error(
                        -errno.ECANCELED, self.name, has_place=False,
                        message=f"{self.name}: it was closed before the transfer had completed"))
            self._pending.clear()
            self._changed.notify_all()
        if self._watched:
            settle()

    def submit(self, transfer: Transfer, op: int, segments: Sequence[Segment], keep: Any,
               flags: int, stream: int = 0, captured: bool = False,
               late: Optional[LateValues] = None) -> None:
        """Submits the request of a Transfer. `keep` are the objects that own the memory and, in
        stream order, the stream.

        While too many requests are in flight, in the queue or on the stream, waits for completions.
        A request in stream order may wait for work that this program queues later. So if no request
        completes for FULL_SECONDS, raises an error with errno EAGAIN. Meanwhile, other threads can
        submit requests."""
        if not segments:
            transfer.finish(TransferReport(), None)
            return
        number = next(_numbers)
        cell = ffi.new("int64_t *", _NOT_REPLAYED) if captured else None
        values, cells = b"", None
        if captured or late is not None:
            values, cells = (late or LateValues()).pack(cell)
        transfer.begin(number, captured, cell)
        if captured:
            _captured.append(cells)
        device = None
        if stream and not captured:  # A captured request ends when it is captured.
            settle()
            device = open_holder(segments[0].device) or None
            if not self._watched:
                watch(self, self._pending)
                self._watched = True
        request = _Pending(weakref.ref(transfer), keep, cells, ffi.new(_ID), device)
        begun, in_flight = 0.0, 0  # The time since which no request has completed, or 0.
        while True:
            batches = self._batches
            is_last = begun > 0 and time.monotonic() - begun > FULL_SECONDS
            if self._submit(request, number, is_last, op, segments, flags, self.codes, stream,
                            values, number):
                break
            if not begun:
                begun, in_flight = time.monotonic(), len(self._pending)
            if self._pending:
                self._take(WAIT_NS, batches)
            else:  # Requests of other queues are in flight on the device.
                time.sleep(0.001)
            if len(self._pending) < in_flight or not stream:
                begun, in_flight = time.monotonic(), len(self._pending)

    def _submit(self, request: _Pending, number: int, is_last: bool, *args: Any) -> bool:
        """Submits a request, and takes the completions that are there. Returns False if too many
        requests are in flight, but with `is_last` raises an error. The other arguments are those of
        pack_request after the storage."""
        with self._lock:
            if self._handle is None:
                raise ValueError(f"{self.name}: the file is closed")
            packed = pack_request(self._storage, *args)
            try:
                self._pending[number] = request
                code = int(lib.penstock_submit(self._handle, packed, 1, request.ident))
            finally:  # A signal handler can raise after the library has accepted the request.
                if not request.ident[0]:
                    self._pending.pop(number, None)
            if code == -errno.EAGAIN and not is_last:
                return False
            if code < 0:
                owe(number, request)  # The driver may have failed after some operations.
                raise refusal(code, self.name)
            if self._taking is None:  # While this thread has the lock, no other can start to take.
                self._take_now(0)
        return True

    def take(self) -> None:
        """Takes the completions that are there, without waiting. Returns at once if another thread
        is taking completions."""
        if self._pending:
            self._take(0, self._batches)

    def _take(self, timeout_ns: int, batches: int) -> None:
        """Takes completions, or lets the thread that is already doing that do it. Waits for that
        for `timeout_ns` at most, and does not wait if self._batches is no longer `batches`."""
        me = threading.get_ident()
        before = me if self._taking == me else None  # A signal handler may call this inside itself.
        try:
            with self._lock:
                if self._batches != batches:
                    return
                if self._handle is None or self._taking not in (None, me):
                    if timeout_ns:
                        self._changed.wait(timeout_ns / 1e9)
                    return
                self._taking = me
            self._take_now(timeout_ns)
        finally:
            if self._taking == me:
                self._taking = before
        with self._lock:
            self._changed.notify_all()

    def _take_now(self, timeout_ns: int) -> None:
        """Takes completions. No other thread may do that meanwhile."""
        if self._left:  # An interrupted call left them.
            self._pass_on(self._left)
            timeout_ns = 0
        count = most = len(self._taken)
        while count == most:
            handle = self._handle  # close() in another thread sets it to None.
            if handle is None:
                break
            # If a signal handler raises as the call returns, the count is unknown.
            self._left = most
            if timeout_ns:
                count = lib.penstock_wait(handle, self._taken, 1, most, timeout_ns)
            else:
                count = lib.penstock_poll(handle, self._taken, most)
            self._left = max(count, 0)
            if count < 0:
                raise refusal(count, self.name)
            self._pass_on(count)
            timeout_ns = 0

    def _pass_on(self, count: int) -> None:
        """Passes completions to their Transfers, except those that were passed on before."""
        if count:
            with self._lock:
                for i in range(count):
                    self._finish(self._taken[i])
                self._left = 0
                self._batches += 1

    def _finish(self, done: Any) -> None:
        """Passes a completion to its Transfer, if that has not been done."""
        number = int(ffi.cast(_ADDRESS, done.user))
        request = self._pending.get(number)
        if request is None:
            return
        transfer = request.transfer()
        if transfer is None or not transfer._done:
            error = None
            if done.result < 0:
                error = self._errors[number] = report_error(int(done.result), done.report,
                                                            self.name)
            if transfer is not None:
                report = TransferReport()
                report.fill(done.report, self.rows)
                transfer.finish(report, error)
        self._pending.pop(number, None)

    def wait_for(self, transfer: Transfer, timeout: Optional[float]) -> None:
        """Waits until a transfer has completed. Raises TimeoutError after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            batches, left = self._batches, WAIT_NS
            if transfer._done:
                return
            if end is not None:
                left = max(0, min(left, int((end - time.monotonic()) * 1e9)))
            self._take(left, batches)
            if not left and not transfer._done:
                raise TimeoutError(f"{self.name}: the transfer has not completed after {timeout} "
                                   "seconds")

    def wait_for_all(self) -> None:
        """Waits until no request is in flight. Raises the first error that no caller has
        received."""
        while True:
            batches = self._batches
            if not self._pending:
                break
            self._take(WAIT_NS, batches)
        with self._lock:
            if self._errors:
                error = self._errors[min(self._errors)]
                self._errors.clear()
                try:
                    raise error
                finally:
                    del error  # See Transfer.result.

    async def wait_in_loop(self, transfer: Transfer) -> None:
        """Waits in an asyncio program until a transfer has completed."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            if self._handle is None:
                return
            reader = self._readers.get(loop)
            if reader is None:
                # A descriptor of the loop's own: the queue's descriptor may be closed, and its
                # number used again, before the loop has removed it.
                reader = self._readers[loop] = \
                    [os.dup(check(lib.penstock_queue_fd(self._handle), self.name)), 0]
                loop.add_reader(reader[0], self.take)
            reader[1] += 1
            transfer._futures.append((loop, future))
        try:
            if not transfer.done():
                await future
        finally:
            with self._lock:
                transfer._futures.remove((loop, future))
                reader[1] -= 1
                if not reader[1]:
                    del self._readers[loop]
                    with contextlib.suppress(RuntimeError):  # The loop is closed.
                        loop.remove_reader(reader[0])
                    os.close(reader[0])

    def forget_error(self, number: int) -> None:
        """Notes that a caller has received the error of request `number`."""
        if self._errors:
            with self._lock:
                self._errors.pop(number, None)

    def cancel(self, number: int) -> bool:
        """Cancels request `number`. Returns whether it was in flight."""
        with self._lock:
            request = self._pending.get(number)
            if request is not None and self._handle is not None:
                # From here on, the request may complete before its stream has passed it.
                owe(number, request)
                lib.penstock_cancel(self._handle, request.ident[0])
            return request is not None


# Weak references to all Queues. A weakref.WeakSet would run Python code when a Queue is freed.
# Python would run signal handlers inside it, and an exception that a handler raises there is lost.
_queues: Set[Any] = set()


def _in_child() -> None:
    for reference in list(_queues):
        queue = reference()
        if queue is not None:
            queue.unlock_in_child()


os.register_at_fork(after_in_child=_in_child)


def pack_request(storage: Any, op: int, segments: Sequence[Segment], flags: int,
                 codes: Tuple[int, int], stream: int = 0, late: bytes = b"", user: int = 0) -> Any:
    """Returns a struct penstock_req, whose memory also contains the segments and `late`. `codes`
    are those of a Queue, and `user` is a number that the library returns in the completion. Packing
    bytes takes less time than setting each member of a struct of cffi."""
    end = _REQ_SIZE + len(segments) * _SEG_SIZE
    memory = bytearray(end + len(late))
    request = ffi.from_buffer(_REQUESTS, memory)
    base, at, last, holder = int(ffi.cast(_ADDRESS, request)), _REQ_SIZE, None, 0
    _REQ.pack_into(memory, 0, _REQ_SIZE, int(ffi.cast(_ADDRESS, storage)), base + _REQ_SIZE,
                   len(segments), op, *codes, flags, 0, 0, 0, user, 0, stream,
                   base + end if late else 0, 0)
    for off, ptr, row_bytes, device, count, pitch, ptr_pitch, room in segments:
        if device != last:
            last, holder = device, int(ffi.cast(_ADDRESS, open_holder(device)))
        _SEG.pack_into(memory, at, ptr, holder, 0, off, row_bytes, count, pitch, ptr_pitch, room, 0)
        at += _SEG_SIZE
    if late:
        memory[end:] = late
    return request


__all__ = ["DURABLE", "EARLY", "EXACT", "READING", "WRITING", "Late", "LateValues", "Queue",
           "Transfer", "TransferReport", "pack_request", "report_error"]
