# SPDX-License-Identifier: Apache-2.0
"""File: byte ranges of a file, straight from and to the memory of tensors.

A file of tensors with names is a model, see _model.py. This module is for programs that have their
own format, such as a cache of key-value blocks."""

from __future__ import annotations

import errno
import operator
import os
from typing import Any, List, Optional, Sequence, Tuple, Union

from ._cuda import is_capturing, stream_handle, synchronize_all
from ._lib import PenstockError, ffi, lib
from ._model import CLASSES, EFFORTS, PathLike
from ._part import Segment
from ._queue import (DURABLE, EARLY, EXACT, READING, REPORT_SIZE, WRITING, Late, LateValues, Queue,
                     Transfer, TransferReport, pack_request, report_error)
from ._tensor import place_of
from ._transfer import CREATE, WRITE, Storage, segments_of

# Limits of the queue. The C library allows no more than 16 Mi requests times segments.
REQUESTS_MAX, SEGMENTS_MAX = 1024, 16384
# Maximum length in bytes of a transfer that the calling thread makes itself. Meanwhile Python runs
# no signal handler.
SHORT_BYTES = 1 << 20

# The URLs of objects begin so. A transfer to or from a server can take long.
OBJECTS = ("s3://", "http://", "https://")

Offset = Union[int, Sequence[int], Late]


class File:
    """A file whose byte ranges move straight from and to tensors, on a GPU or in host memory.

        with penstock.File("cache.bin", "r+", create=True, length=1 << 30) as file:
            file.write(block, 4096)                      # a tensor, from offset 4096 on
            file.read(other, 4096)
            file.read([a, b], [0, 65536])                # several tensors at once
            transfer = file.read_async(block, 4096, stream=torch.cuda.current_stream())

    Tensors may be of torch, numpy, cupy, jax (only to write) or penstock, or other objects with a
    buffer, an array interface or DLPack. A dtype that safetensors lacks needs a view as bytes. All
    methods release the GIL while bytes move, and any number of threads may use a File at the same
    time. A child of fork must open its own File.

    Args:
        path: a file or block device. With mode "r" also a URL s3://bucket/key.
        mode: "r" for reading, "r+" for reading and writing. Neither truncates the file.
        create: whether mode "r+" creates the file if it does not exist.
        length: the length of a created file in bytes. Its space is reserved. With 0, the file is as
            long as the bytes that were written.
        require: the class of paths that may be used, as in load_file.
        effort: "thrifty", "balanced" or "fast", as in load_file.

    Attributes:
        name: the path.
        closed: whether the file is closed.
    """

    def __init__(self, path: PathLike, mode: str = "r", *, create: bool = False, length: int = 0,
                 require: str = "any", effort: str = "thrifty") -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}; with create=True, 'r+' "
                             "creates the file")
        if require not in CLASSES or effort not in EFFORTS:
            raise ValueError(f"require must be one of {list(CLASSES)}, effort one of "
                             f"{list(EFFORTS)}")
        if mode == "r" and (create or length):
            raise ValueError("create and length need the mode 'r+'")
        length = _whole("length", length)
        if length and not create:
            raise ValueError("length is the length of a created file in bytes, and needs "
                             "create=True")
        self.name = os.fsdecode(path)
        self._writable, self._local = mode == "r+", not self.name.startswith(OBJECTS)
        if self._writable and not self._local:
            raise ValueError(f"{self.name}: mode 'r+' needs a file or block device; an "
                             "ObjectClient writes objects")
        # The query of a URL can be long, and errors do not need it.
        shown = self.name if self._local else self.name.partition("?")[0]
        flags = (WRITE if self._writable else 0) | (CREATE if create else 0)
        self._storage = Storage(path, shown, flags, length)
        if length:
            self._storage.commit(durable=False)  # Sets the length of a created file.
        self._queue = Queue(self._storage.handle, shown, REQUESTS_MAX, SEGMENTS_MAX,
                            require=require, effort=effort)

    def __repr__(self) -> str:
        return f"penstock.File({self.name!r}, {'r+' if self._writable else 'r'!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a penstock.File cannot be copied or pickled; open the file again, also in "
                        "another process")

    def __enter__(self) -> "File":
        self._check_open()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def closed(self) -> bool:  # pylint: disable=missing-function-docstring
        return self._storage.closed

    @property
    def length(self) -> int:
        """The length of the file in bytes."""
        self._check_open()
        return self._storage.length

    def close(self) -> None:
        """Waits until no transfer is under way, and closes the file. Raises the error of a transfer
        whose result nobody has asked for.

        A transfer in stream order is under way until its stream has passed it, or until it is
        cancelled. If a signal handler raises an exception meanwhile, as Ctrl-C does, close cancels
        the transfers. The streams may still write zeros to the tensors of cancelled reads; see
        Transfer.cancel. A read or write that another thread has begun ends normally, or raises
        ValueError."""
        if self.closed:
            return
        try:
            self._queue.wait_for_all()
        finally:
            self._queue.close()
            self._storage.close()

    def sync(self, durable: bool = True) -> None:
        """Waits until no transfer is under way and, with `durable`, until all bytes that were
        written survive a power cut. Raises the error of a transfer whose result nobody has asked
        for."""
        self._check_open()
        self._queue.wait_for_all()
        if durable and self._writable:
            self._storage.commit(durable=True)

    # ---- transfers ----

    def read(self, out: Any, offset: Union[int, Sequence[int]] = 0, *, length: Optional[int] = None,
             at: int = 0, exact: bool = True, synchronize: bool = True) -> TransferReport:
        """Reads bytes of the file into a tensor, or into several, and returns when they have
        arrived.

        Args:
            out: a tensor, or a list of tensors, with at most 16,384 contiguous pieces in total.
            offset: where the bytes begin in the file. For a list of tensors, a sequence of offsets;
                with a single offset, the tensors' bytes follow each other in the file.
            length: number of bytes to read, if not the whole tensor. Needs a single contiguous
                tensor, as does `at`.
            at: offset in bytes of the first byte in the tensor's memory.
            exact: whether the end of the file before the end of the range is an error with errno
                ENODATA. Otherwise the report's `bytes` tells how many bytes were read.
            synchronize: whether to wait first until the GPU has finished all queued work. Pass
                False if no queued work uses the tensors' memory.
        """
        return self._move(READING, out, offset, length, at, EXACT if exact else 0, synchronize)

    def write(self, data: Any, offset: Union[int, Sequence[int]] = 0, *,
              length: Optional[int] = None, at: int = 0, durable: bool = False,
              synchronize: bool = True) -> TransferReport:
        """Writes the bytes of a tensor, or of several, to the file, and returns when the file has
        them. With `durable`, returns only when they survive a power cut. The other arguments are
        those of read. A write beyond the end makes the file longer."""
        return self._move(WRITING, data, offset, length, at, DURABLE if durable else 0, synchronize)

    def read_async(self, out: Any, offset: Offset = 0, *, length: Union[int, Late, None] = None,
                   at: Union[int, Late] = 0, exact: bool = True, stream: Any = None,
                   early: bool = False, synchronize: bool = True) -> Transfer:
        """Starts a read, and returns a Transfer.

        With `stream`, the read is in stream order: it starts when the work that was queued on the
        stream before is done, and work that is queued later sees the bytes. If the stream is being
        captured into a CUDA graph, the read becomes a part of the graph, and each replay reads the
        file again. While the graph exists, keep the tensors and do not close the file.

        Args:
            offset, length, at: as in read, or Late numbers, whose values are read when the stream
                reaches the read. Late numbers need a single contiguous tensor.
            stream: a CUDA stream of torch, cupy, numba or cuda.core, or a handle as an int. The
                tensors must be on the stream's GPU. If the stream is an object, the File keeps it
                until the stream has passed the transfer. A stream may be destroyed before that: it
                still executes the work that is queued on it.
            early: whether the file may be read before the stream reaches the read, so that several
                reads overlap. Only the copy to the tensors is then in stream order. No earlier work
                of the stream may write these bytes of the file.
            exact, synchronize: as in read. With `stream`, nothing is synchronized.

        If too many transfers are in flight, waits until one has completed. Raises an error with
        errno EAGAIN if none completes within 10 s. About 80 short transfers of one stream can be in
        flight.
        """
        flags = (EXACT if exact else 0) | (EARLY if early else 0)
        return self._start(READING, out, offset, length, at, flags, stream, synchronize)

    def write_async(self, data: Any, offset: Offset = 0, *, length: Union[int, Late, None] = None,
                    at: Union[int, Late] = 0, durable: bool = False, stream: Any = None,
                    synchronize: bool = True) -> Transfer:
        """Starts a write, and returns a Transfer. The arguments are those of write and
        read_async."""
        return self._start(WRITING, data, offset, length, at, DURABLE if durable else 0, stream,
                           synchronize)

    # ---- inside ----

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: the file is closed")

    def _move(self, op: int, data: Any, offset: Any, length: Any, at: Any, flags: int,
              synchronize: bool) -> TransferReport:
        self._check_open()
        segments, late, keep = self._checked_segments(op, data, offset, length, at)
        _refuse_late(late)
        if synchronize:
            synchronize_all({s.device for s in segments})
        if not segments or not self._local or \
                sum([s.row_bytes * s.rows for s in segments]) > SHORT_BYTES:
            transfer = Transfer(self._queue)
            try:
                self._queue.submit(transfer, op, segments, keep, flags)
                return transfer.result()
            finally:
                transfer.abandon()  # Does nothing unless a signal handler has raised an exception.
                del transfer  # See Transfer.result.
        # While this function refers to the handle, close() in another thread does not close the
        # storage.
        handle = self._storage.handle
        request = pack_request(handle, op, segments, flags, self._queue.codes)
        answer = ffi.new("struct penstock_report *")
        answer.size = REPORT_SIZE
        code = lib.penstock_transfer(request, answer)
        del keep  # The transfer used it up to here.
        if code < 0:
            raise report_error(code, answer, self._storage.name)
        report = TransferReport()
        report.fill(answer, self._queue.rows)
        del handle  # The texts of the report are valid up to here.
        return report

    def _start(self, op: int, data: Any, offset: Any, length: Any, at: Any, flags: int,
               stream: Any, synchronize: bool) -> Transfer:
        self._check_open()
        segments, late, keep = self._checked_segments(op, data, offset, length, at)
        transfer = Transfer(self._queue)
        if stream is None:
            if flags & EARLY:
                raise ValueError("early=True needs a stream")
            _refuse_late(late)
            if synchronize:
                synchronize_all({s.device for s in segments})
            self._queue.submit(transfer, op, segments, keep, flags)
            return transfer
        handle, gpu = stream_handle(stream), segments[0].device if segments else "host"
        captured = gpu.startswith("cuda:") and is_capturing(handle, gpu)
        self._queue.submit(transfer, op, segments, (keep, stream), flags, handle, captured, late)
        return transfer

    def _checked_segments(self, op: int, data: Any, offset: Any, length: Any, at: Any
                          ) -> Tuple[List[Segment], Optional[LateValues], Any]:
        """Returns what _segments returns, after checks of the mode and of the limit."""
        if op == WRITING and not self._writable:
            error = PenstockError(errno.EBADF, f"{self._storage.name}: the file is open with mode "
                                  "'r'; writes need the mode 'r+'", self._storage.name)
            error.reason = "bad-argument"
            raise error
        found = _segments(op, data, offset, length, at)
        if len(found[0]) > SEGMENTS_MAX:
            raise ValueError(f"the tensors are in {len(found[0])} contiguous pieces; one call "
                             f"moves at most {SEGMENTS_MAX}, so use several calls")
        return found


def _segments(op: int, data: Any, offset: Any, length: Any, at: Any
              ) -> Tuple[List[Segment], Optional[LateValues], Any]:
    """Returns the segments of a transfer, its values that are read late, and the memory's owners.
    The arguments are those of File.read_async."""
    if isinstance(data, (list, tuple)):
        if length is not None or at != 0 or isinstance(offset, Late):
            raise ValueError("length, at and Late numbers need a single tensor, not a list")
        places = [place_of(one) for one in data]
        if _is_sequence(offset):
            if len(offset) != len(places):
                raise ValueError(f"{len(places)} tensors, but {len(offset)} offsets")
            offsets = [_whole("offset", one) for one in offset]
        else:
            offsets, end = [], _whole("offset", offset)
            for place in places:
                offsets.append(end)
                end += place.nbytes
        return [segment for place, start in zip(places, offsets)
                for segment in segments_of(place, start, to_memory=op == READING)], None, \
            [place.keep for place in places]
    place = place_of(data)
    late = None
    if length is None and at == 0 and not isinstance(at, Late) and not isinstance(offset, Late):
        return segments_of(place, _whole("offset", offset), to_memory=op == READING), None, \
            place.keep
    if place.split() or not place.nbytes:
        raise ValueError("length, at and Late numbers need a contiguous tensor that is not empty")
    if isinstance(at, Late) and length is None:
        raise ValueError("with a Late number as `at`, give the length, too")
    (whole,) = segments_of(place, 0, to_memory=op == READING)
    first = 0 if isinstance(at, Late) else _whole("at", at)
    count = place.nbytes - first if length is None or isinstance(length, Late) else \
        _whole("length", length)
    if first > place.nbytes or first + count > place.nbytes:
        raise ValueError(f"{max(count, 0)} bytes from byte {first} of the tensor's memory on "
                         f"exceed its {place.nbytes} bytes")
    values = [value if isinstance(value, Late) else None for value in (length, offset, at)]
    if any(value is not None for value in values):
        late = LateValues(values, place.nbytes - first)
    start = 0 if isinstance(offset, Late) else _whole("offset", offset)
    return [Segment(start, whole.ptr + first, count, whole.device)], late, place.keep


def _is_sequence(value: Any) -> bool:
    """Returns whether the value is a sequence or an array, and not a number. Arrays of all shapes
    have __len__ and __index__."""
    if hasattr(value, "ndim"):
        return bool(value.ndim)
    return hasattr(value, "__len__")


def _whole(name: str, value: Any) -> int:
    """Returns an offset or a length as an int. Raises ValueError if it is out of range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}") from None
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{name} must be a whole number from 0 to 2**63 - 1, not {number}")
    return number


def _refuse_late(late: Optional[LateValues]) -> None:
    if late is not None:
        raise ValueError("a Late number needs a stream")


__all__ = ["File"]
