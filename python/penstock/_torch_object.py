# SPDX-License-Identifier: Apache-2.0
"""ObjectContents: where the bytes of each storage are in an object of an S3 store that torch.save
or penstock.torch.save wrote.

torch.load can only map files. So this module makes a file in memory (memfd) with the object's
length. It copies the bytes around the payloads (the storages' bytes) from the object to this file.
In place of the payloads, the file has holes, which take no memory. The C library then reads the
payloads from the object straight into the tensors' memory."""

from __future__ import annotations

import errno
import mmap
import os
from typing import Iterator, List, Tuple

from . import _s3, _zip
from ._lib import FormatError, ffi
from ._part import Segment
from ._torch_archive import HEADER_MAX, Contents
from ._transfer import READING, Storage, bytes_place, segments_of

# Maximum number of segments of one read.
SEGMENTS_MAX = 4096
# Number of bytes to read first, from the end of the object. Most directories of archives are
# shorter, and so is the longest comment of an archive.
TAIL_BYTES = 128 << 10
# Maximum number of bytes around the payloads. Most of these bytes are the pickle.
AROUND_MAX = 4 << 30


def is_object(name: str) -> bool:
    """Returns whether a name is the URL of an object, not the path of a file."""
    return name.startswith("s3://")


class ObjectContents(Contents):
    """Contents of an object that torch.save wrote. close() frees the file in memory.

    `path` is the file in memory, `source` the object's URL and `name` its URL without options."""

    def __init__(self, url: str) -> None:
        name = url.partition("?")[0]
        found = _s3.ask(url, "HEAD")
        self._etag = found.etag
        self._memory = os.memfd_create("penstock", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._memory, found.length)
            if found.length:
                with Storage(url, name) as storage:
                    _fill(storage, self._memory, found.length)
            super().__init__(f"/proc/self/fd/{self._memory}", name)
        except BaseException:
            self.close()
            raise
        self.source = url

    def close(self) -> None:
        """Frees the file in memory."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def changed(self) -> bool:
        """Returns whether the object has changed."""
        return _s3.ask(self.source, "HEAD").etag != self._etag


def _fill(storage: Storage, memory: int, length: int) -> None:
    """Reads the bytes around the payloads into the file in memory."""
    with mmap.mmap(memory, length) as mapped:
        held = ffi.from_buffer(mapped, require_writable=True)
        base = int(ffi.cast("uintptr_t", held))

        def read(ranges: List[Tuple[int, int]]) -> None:
            for first in range(0, len(ranges), SEGMENTS_MAX):
                storage.move(READING, [Segment(start, base + start, end - start, "host")
                                       for start, end in ranges[first:first + SEGMENTS_MAX]])

        try:
            tail = max(0, length - TAIL_BYTES)
            read([(tail, length), (0, min(tail, HEADER_MAX))])
            place = _zip.directory_range(bytes(mapped[tail:]), length)
            if place is None:
                return  # Stop here: Contents finds the same damage and reports it.
            if place[0] < tail:
                read([(place[0], tail)])
            entries = _zip.entries(bytes(mapped[place[0]:place[0] + place[1]])) or []
            ranges = list(_joined(_around(entries, place[0])))
            if sum(end - start for start, end in ranges) > AROUND_MAX:
                raise FormatError(errno.EBADMSG, f"{storage.name}: it has more than {AROUND_MAX} "
                                  "bytes besides its tensors", storage.name)
            read(ranges)
        finally:
            ffi.release(held)


def _around(entries: List[_zip.Entry], directory: int) -> Iterator[Tuple[int, int]]:
    """Yields the byte ranges of an archive that do not belong to long payloads: the records'
    headers, and all other records."""
    starts = sorted(entry.header for entry in entries if 0 <= entry.header < directory)
    after = dict(zip(starts, starts[1:] + [directory]))
    for entry in sorted(entries, key=lambda entry: entry.header):
        end = after.get(entry.header)
        if end is None:
            continue  # Contents reports that this header lies beyond the end of the object.
        long = entry.name.startswith("data/") and entry.nbytes >= _zip.LONG
        yield entry.header, min(end, entry.header + HEADER_MAX) if long else end


def _joined(ranges: Iterator[Tuple[int, int]]) -> Iterator[Tuple[int, int]]:
    """Joins ranges that have only few bytes between them, because one request is faster than
    two."""
    start, end = 0, 0
    for first, last in ranges:
        if first - end > _zip.LONG:
            if end > start:
                yield start, end
            start = first
        end = max(end, last)
    if end > start:
        yield start, end


def read_object(url: str) -> bytearray:
    """Returns all bytes of an object."""
    with Storage(url, url.partition("?")[0]) as storage:
        data = bytearray(storage.length)
        storage.move(READING, segments_of(bytes_place(data), 0, to_memory=True))
    return data


__all__ = ["ObjectContents", "is_object", "read_object"]
