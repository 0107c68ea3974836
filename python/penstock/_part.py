# SPDX-License-Identifier: Apache-2.0
"""Writes and reads the part files and the manifests of a checkpoint.

This module only converts arguments and results. The C library moves the bytes and computes the
checksums (penstock_ckpt.h). This module does not use torch."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import (Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence,
                    Tuple, Union)

from ._lib import (call_for_handle, check, ffi, install_stop_check, lib, open_holder, raise_caught,
                   to_c)
from ._model import CLASSES, EFFORTS
from ._report import Report, new_report

SUMMED, CHECKED = 1, 2  # PENSTOCK_ITEM_SUMMED, PENSTOCK_ITEM_CHECKED


class Segment(NamedTuple):
    """Memory for a range of a part (a file of a checkpoint): `rows` rows of `row_bytes` bytes.

    Attributes: off (offset of the first row in the part), ptr (address of the first row), pitch and
    ptr_pitch (bytes from the start of a row to the start of the next, in the part and in memory),
    device (the library's name of the memory's device), room (bytes after the last row that a read
    may overwrite)."""
    off: int
    ptr: int
    row_bytes: int
    device: str = "host"
    rows: int = 1
    pitch: int = 0
    ptr_pitch: int = 0
    room: int = 0


@dataclasses.dataclass
class Item:
    """A range of a part (a file of a checkpoint), and the memory for the bytes of this range.

    Attributes:
        name: the name for messages and manifests.
        off, nbytes: the range in the part, in bytes.
        segments: the memory.
        keep: objects that own the memory.
        crc32c: the checksum of the range, or None if it is unknown.
        checked: whether read_part has compared the bytes with `crc32c`.
    """
    name: str
    off: int
    nbytes: int
    segments: List[Segment] = dataclasses.field(default_factory=list)
    keep: List[Any] = dataclasses.field(default_factory=list)
    crc32c: Optional[int] = None
    checked: bool = False

    def add_bytes(self, off: int, data: Union[bytes, bytearray, memoryview]) -> None:
        """Adds a segment for the bytes of `data`, which must not change until they are written."""
        held = ffi.from_buffer(data)
        self.keep.append(held)
        self.segments.append(Segment(off, int(ffi.cast("uintptr_t", held)), len(held)))


def _options(how: Mapping[str, Any], *, checksums: bool, stop: Any,
             tell: Optional[Callable[[int], Any]], keep: List[Any]
             ) -> Tuple[Any, List[BaseException]]:
    """Returns the library's options for the keyword arguments `how` of a save or load. Also returns
    the list to which install_stop_check's callback appends exceptions."""
    opts = ffi.new("struct penstock_part_opts *")
    opts.size, opts.sum = ffi.sizeof("struct penstock_part_opts"), int(checksums)
    opts.require = CLASSES[how.get("require", "any")]
    opts.effort = EFFORTS[how.get("effort", "thrifty")]
    opts.priority = how.get("priority", 0)
    if how.get("path") is not None:
        keep.append(ffi.new("char[]", to_c(how["path"], str.encode)))
        opts.path = keep[-1]
    return opts, install_stop_check(opts, keep, stop, tell)


def _table(items: Sequence[Item], keep: List[Any]) -> Any:
    """Returns the C array of the items."""
    table = ffi.new("struct penstock_item[]", len(items) or 1)
    segments = ffi.new("struct penstock_seg[]", sum(len(i.segments) for i in items) or 1)
    keep += [table, segments]
    devices: Dict[str, Any] = {}  # The handles of the devices. Looking one up takes a lock.
    at, size = 0, ffi.sizeof("struct penstock_item")
    for row, item in zip(table, items):
        row.size = size
        keep.append(ffi.new("char[]", to_c(item.name, str.encode)))
        row.name, row.off, row.len = keep[-1], item.off, item.nbytes
        row.segs, row.seg_count = segments + at, len(item.segments)
        if item.crc32c is not None:
            row.crc32c, row.flags = item.crc32c, SUMMED
        for segment in item.segments:
            to = segments[at]
            to.off, to.row_len, to.rows = segment.off, segment.row_bytes, segment.rows
            to.pitch, to.buf_pitch = segment.pitch, segment.ptr_pitch
            to.room = segment.room
            if segment.device not in devices:
                devices[segment.device] = open_holder(segment.device)
            to.buf, to.dev = ffi.cast("void *", segment.ptr), devices[segment.device]
            at += 1
    return table


def write_part(file: str, items: Sequence[Item], *, checksums: bool = True, durable: bool = True,
               stop: Any = None, tell: Optional[Callable[[int], Any]] = None, **how: Any) -> Report:
    """Writes a part, which appears under its name when it is complete. Sets crc32c of the items.

    `tell` is called some ten times a second with the number of bytes moved so far.
    `how` has the arguments require, effort, path and priority, as in Model.load."""
    keep: List[Any] = []
    table = _table(items, keep)
    opts, caught = _options(how, checksums=checksums, stop=stop, tell=tell,
                            keep=keep)
    opts.durable, report = int(durable), new_report()
    code = lib.penstock_part_write(to_c(file), table, len(items), opts, report)
    raise_caught(caught)
    check(code, file)
    for row, item in zip(table, items):
        item.crc32c = int(row.crc32c) if row.flags & SUMMED else None
    return Report(report)


def read_part(file: str, items: Sequence[Item], *, checksums: bool = True, stop: Any = None,
              tell: Optional[Callable[[int], Any]] = None, **how: Any) -> Report:
    """Reads ranges of a part. Sets `checked` of the items whose checksum was compared.

    Raises FormatError if the checksum of an item's bytes differs from the item's `crc32c`."""
    keep: List[Any] = []
    table = _table(items, keep)
    opts, caught = _options(how, checksums=checksums, stop=stop, tell=tell,
                            keep=keep)
    report = new_report()
    code = lib.penstock_part_read(to_c(file), table, len(items), opts, report)
    raise_caught(caught)
    check(code, file)
    for row, item in zip(table, items):
        item.checked = bool(row.flags & CHECKED)
    return Report(report)


# ---- segments of a region of a tensor ----------------------------------------------

def region_segments(off: int, itemsize: int, shape: Sequence[int], first: Sequence[int],
                    counts: Sequence[int], ptr: int, strides: Sequence[int], device: str
                    ) -> Optional[List[Segment]]:
    """Returns the segments that move a region of a tensor in a part to or from memory.

    Args:
        off: offset of the tensor in the part, in which its elements are in row-major order.
        itemsize: bytes of an element.
        shape: the tensor's dimensions in the part.
        first, counts: the region: its first index and its length in each dimension.
        ptr: address of the region's first element in memory.
        strides: the region's strides in memory, in elements.
        device: the library's name of the memory's device.

    Returns None if more than SEGMENTS_MAX segments would be needed, if rows overlap in memory, or
    if a stride is negative.
    """
    if 0 in counts:
        return []
    file_strides, step = [0] * len(shape), itemsize
    for d in range(len(shape) - 1, -1, -1):
        file_strides[d] = step
        step *= shape[d]
    start = off + sum(f * s for f, s in zip(first, file_strides))
    # Dimensions that are contiguous in the part and in memory become one row.
    dims = [(n, f, m * itemsize) for n, f, m in zip(counts, file_strides, strides) if n > 1]
    row = itemsize
    while dims and dims[-1][1] == row and dims[-1][2] == row:
        row *= dims.pop()[0]
    rows, pitch, ptr_pitch = 1, 0, 0
    if dims:
        rows, pitch, ptr_pitch = dims.pop()
        if ptr_pitch < row or pitch < row:
            return None
    if math.prod(n for n, _, _ in dims) > SEGMENTS_MAX or any(m < 0 for _, _, m in dims):
        return None
    return [Segment(start + a, ptr + b, row, device, rows, pitch, ptr_pitch)
            for a, b in _offsets(dims)]


# A region that needs more segments than this is read into contiguous memory first.
SEGMENTS_MAX = 4096


def _offsets(dims: Sequence[Tuple[int, int, int]]) -> Iterator[Tuple[int, int]]:
    """Yields two offsets for each index tuple of `dims`: in the part, and in memory, in bytes.

    `dims` has a tuple for each dimension: its length, and the distance between two indices in the
    part and in memory, in bytes."""
    if not dims:
        yield 0, 0
        return
    count, file_step, memory_step = dims[0]
    for i in range(count):
        for a, b in _offsets(dims[1:]):
            yield i * file_step + a, i * memory_step + b


# ---- manifests -----------------------------------------------------------------------

class Part(NamedTuple):
    """A part as a manifest lists it: name, length of the file, and items without memory."""
    name: str
    nbytes: int
    items: List[Item]


def write_manifest(path: str, ranks: int, parts: Sequence[Part]) -> None:
    """Writes a manifest, which lists the parts of a checkpoint, their items and checksums. When the
    function returns, the manifest is durable."""
    keep: List[Any] = []
    table = ffi.new("struct penstock_part[]", len(parts) or 1)
    for row, part in zip(table, parts):
        row.size = ffi.sizeof("struct penstock_part")
        keep.append(ffi.new("char[]", to_c(part.name)))
        row.name, row.bytes = keep[-1], part.nbytes
        row.items, row.item_count = _table(part.items, keep), len(part.items)
    check(lib.penstock_manifest_write(to_c(path), ranks, table, len(parts)), path)


class Manifest:
    """The open manifests in a checkpoint's folder, which list the checksums of its items."""

    def __init__(self, folder: str) -> None:
        code, self._handle = call_for_handle("struct penstock_manifest **",
                                             lib.penstock_manifest_close,
                                             lib.penstock_manifest_open, to_c(folder))
        check(code, folder)

    def crc32c(self, part: str, off: int, nbytes: int) -> Optional[int]:
        """Returns the checksum of the item that is at this range, or None if it is unknown."""
        item = ffi.new("struct penstock_item *")
        item.size = ffi.sizeof("struct penstock_item")
        if lib.penstock_manifest_find(self._handle, to_c(part), off, item) < 0:
            return None
        return int(item.crc32c) if item.flags & SUMMED and item.len == nbytes else None


def find_manifest(folder: str) -> Optional[Manifest]:
    """Returns the manifests of a checkpoint, or None if it has none."""
    try:
        return Manifest(folder)
    except FileNotFoundError:
        return None


# ---- folders with checkpoints --------------------------------------------------------

_STATES = ("complete", "incomplete", "damaged")  # enum penstock_ckpt_state


class Checkpoint(NamedTuple):
    """A checkpoint in a folder: its path, its state ("complete", "incomplete" or "damaged"), a
    sentence about the state, the bytes of its files, the time at which it was saved, in seconds
    since 1970, and the number of ranks that wrote it (0 if it is unknown)."""
    path: str
    state: str
    text: str
    nbytes: int
    saved: float
    ranks: int


def list_checkpoints(folder: str) -> List[Checkpoint]:
    """Returns the checkpoints in a folder, the oldest first."""
    found: List[Checkpoint] = []

    def each(_user: Any, c: Any) -> int:
        found.append(Checkpoint(os.fsdecode(ffi.string(c.path)), _STATES[int(c.state)],
                                ffi.string(c.text).decode("utf-8", "replace"), int(c.bytes),
                                c.saved_ns / 1e9, int(c.ranks)))
        return 0

    call = ffi.callback("int(void *, const struct penstock_ckpt *)", each, error=-1)
    check(lib.penstock_ckpt_list(to_c(folder), call, ffi.NULL), folder)
    return found


def prune(folder: str, keep: int) -> None:
    """Removes the complete and damaged checkpoints of a folder that are older than its newest
    `keep` complete ones, or none of them if `keep` is 0. Also removes the incomplete checkpoints
    that are older than the newest complete one."""
    check(lib.penstock_ckpt_prune(to_c(folder), keep, 0, ffi.NULL, ffi.NULL), folder)


__all__ = ["Checkpoint", "Item", "Manifest", "Part", "Segment", "find_manifest",
           "list_checkpoints", "prune",
           "read_part", "region_segments", "write_manifest", "write_part"]
