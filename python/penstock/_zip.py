# SPDX-License-Identifier: Apache-2.0
"""Zip archives as torch.save writes them, laid out so that payloads can move directly.

torch.load reads a zip archive whose records are stored without compression: `data.pkl` holds the
pickled object, and `data/0`, `data/1` and so on hold the bytes of the tensors' storages (the
payloads). This module computes the bytes around the payloads, and finds the payloads of an existing
archive. It does no I/O and needs no torch.

Long payloads begin at a multiple of 4096 in the file, so that a drive can transfer them from or
to device memory. For this, the local header of a payload has an extra field of the needed length;
torch.save pads its records in the same way. A payload's CRC-32 field is zero: torch.load ignores
it, as after torch.serialization.set_crc32_options(False).

Format: PKWARE, APPNOTE.TXT, version 6.3.9, sections 4.3 (records) and 4.5.3 (ZIP64)."""

from __future__ import annotations

import struct
import sys
import zlib
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple, Union

# A payload of at least LONG bytes begins at a multiple of PAGE bytes in the file. Any other payload
# begins at a multiple of CACHE_LINE bytes, as in the archives of torch.save.
LONG, PAGE, CACHE_LINE = 64 << 10, 4096, 64

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END, _END64 = struct.Struct("<IHHHHIIH"), struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_MAX32 = 0xFFFFFFFF
_DATE = 0x21  # 1 January 1980, so that equal objects give equal files
_ID_ZIP64, _ID_PADDING = 0x0001, 0x4246
# The extra fields that occur in archives of torch.save and of zip programs: ZIP64, padding, and
# the times and owners that zip programs store.
_IDS = (_ID_ZIP64, _ID_PADDING, 0x5455, 0x5855, 0x7875)


class _Record(NamedTuple):
    name: bytes
    crc: int
    nbytes: int
    header: int  # offset of the local header from the start of the archive


# A piece of a file: its offset, and either its bytes or the key and length of a payload.
Piece = Tuple[int, Union[bytes, Tuple[Any, int]]]


class Archive:
    """The layout of one archive, which begins at offset `start` of its file.

    Attributes:
        pieces: the pieces in order, without gaps.
        end: the offset after the last piece.
    """

    def __init__(self, start: int = 0, folder: str = "archive") -> None:
        self.pieces: List[Piece] = []
        self.start, self.end = start, start
        self._folder = folder
        self._records: List[_Record] = []
        self._text = bytearray()

    def add(self, name: str, data: bytes, align: int = 1) -> None:
        """Adds a record with the bytes `data`, which begin at a multiple of `align` in the file."""
        self._header(name, zlib.crc32(data), len(data), align)
        self._text += data

    def add_payload(self, name: str, nbytes: int, key: Any) -> int:
        """Adds a record for a payload, whose bytes the caller writes. Returns the payload's offset
        in the file."""
        self._header(name, 0, nbytes, PAGE if nbytes >= LONG else CACHE_LINE)
        self._flush()
        at = self.end
        if nbytes:
            self.pieces.append((at, (key, nbytes)))
            self.end += nbytes
        return at

    def finish(self) -> None:
        """Adds the archive's directory. No record may be added afterwards."""
        at = self._at() - self.start
        for record in self._records:
            sizes, extra = (record.nbytes, record.nbytes), b""
            header = record.header
            needed = [value for value in (*sizes, header) if value >= _MAX32]
            if needed:
                extra = struct.pack(f"<HH{len(needed)}Q", _ID_ZIP64, 8 * len(needed), *needed)
            size, header = min(record.nbytes, _MAX32), min(header, _MAX32)
            self._text += _CENTRAL.pack(0x02014B50, 45, 45 if extra else 20, 0, 0, 0, _DATE,
                                        record.crc, size, size, len(record.name), len(extra), 0, 0,
                                        0, 0, header)
            self._text += record.name + extra
        length, count = self._at() - self.start - at, len(self._records)
        if max(at, length) >= _MAX32 or count >= 0xFFFF:
            end64 = self._at() - self.start
            self._text += _END64.pack(0x06064B50, 44, 45, 45, 0, 0, count, count, length, at)
            self._text += _LOCATOR64.pack(0x07064B50, 0, end64, 1)
        count = min(count, 0xFFFF)
        self._text += _END.pack(0x06054B50, 0, 0, count, count, min(length, _MAX32),
                                min(at, _MAX32), 0)
        self._flush()

    def _at(self) -> int:
        return self.end + len(self._text)

    def _flush(self) -> None:
        if self._text:
            self.pieces.append((self.end, bytes(self._text)))
            self.end += len(self._text)
            self._text.clear()

    def _header(self, name: str, crc: int, nbytes: int, align: int) -> None:
        """Adds a local header, after which the next byte is at a multiple of `align` in the
        file."""
        path, extra, size = f"{self._folder}/{name}".encode(), b"", nbytes
        if nbytes >= _MAX32:
            extra, size = struct.pack("<HHQQ", _ID_ZIP64, 16, nbytes, nbytes), _MAX32
        pad = -(self._at() + _LOCAL.size + len(path) + len(extra)) % align
        if pad:
            pad += align if pad < 4 else 0  # An extra field has a header of four bytes.
            extra += struct.pack("<HH", _ID_PADDING, pad - 4) + bytes(pad - 4)
        self._records.append(_Record(path, crc, nbytes, self._at() - self.start))
        self._text += _LOCAL.pack(0x04034B50, 45 if size == _MAX32 else 20, 0, 0, 0, _DATE, crc,
                                  size, size, len(path), len(extra)) + path + extra


def tensor_archive(start: int, pickled: bytes, nbytes: int, key: Any = None) -> Archive:
    """Returns the archive that torch.load reads as one tensor.

    `pickled` is the content of data.pkl, which refers to one storage of `nbytes` bytes."""
    archive = Archive(start)
    archive.add("data.pkl", pickled)
    archive.add("byteorder", sys.byteorder.encode())
    archive.add("version", b"3\n")
    archive.add_payload("data/0", nbytes, key)
    archive.finish()
    return archive


# ---- existing archives -------------------------------------------------------------

class Entry(NamedTuple):
    """A record as an archive's directory lists it.

    Attributes: name (without the archive's folder), header (offset of the local header from the
    start of the archive), nbytes (length of the record) and crc (its CRC-32, or 0 if unknown)."""
    name: str
    header: int
    nbytes: int
    crc: int = 0


# The last TAIL bytes of an archive without a comment contain all its end records.
TAIL = _END64.size + _LOCATOR64.size + _END.size
# Length of a local header without the name and the extra field.
HEADER = _LOCAL.size


def directory_range(tail: bytes, size: int) -> Optional[Tuple[int, int]]:
    """Returns offset and length of an archive's directory, from the archive's last bytes.

    `size` is the length of the archive. Returns None if the end records are not as torch.save
    writes them."""
    at = len(tail) - _END.size
    if at < 0:
        return None
    magic, _, _, _, count, length, start, comment = _END.unpack_from(tail, at)
    if magic != 0x06054B50 or comment:
        return None
    at -= _LOCATOR64.size + _END64.size
    if _MAX32 in (length, start) or count == 0xFFFF:
        if at < 0 or _END64.unpack_from(tail, at)[0] != 0x06064B50:
            return None
        length, start = _END64.unpack_from(tail, at)[8:]
    return (start, length) if start + length <= size else None


def entries(directory: bytes) -> Optional[List[Entry]]:
    """Returns the records that an archive's directory lists, or None if one is compressed or the
    directory is malformed."""
    found: List[Entry] = []
    at = 0
    while at < len(directory):
        if at + _CENTRAL.size > len(directory):
            return None
        magic, _, _, _, method, _, _, crc, packed, nbytes, name_len, extra_len, comment, _, _, _, \
            header = _CENTRAL.unpack_from(directory, at)
        at += _CENTRAL.size
        name = directory[at:at + name_len]
        extra = directory[at + name_len:at + name_len + extra_len]
        at += name_len + extra_len + comment
        values = _wide_values(extra)
        try:
            nbytes, packed, header = (next(values) if value == _MAX32 else value
                                      for value in (nbytes, packed, header))
        except (RuntimeError, StopIteration):
            return None
        if magic != 0x02014B50 or method or packed != nbytes or at > len(directory):
            return None
        title = name.decode("utf-8", "replace").partition("/")[2]
        found.append(Entry(title, header, nbytes, crc))
    return found


def _wide_values(extra: bytes) -> Iterator[int]:
    """Returns the 64-bit numbers in the ZIP64 extra field. A record of the directory has its sizes
    and its offset there if they do not fit in 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ID_ZIP64:
            words = extra[at + 4:at + 4 + length]
            return iter(struct.unpack(f"<{len(words) // 8}Q", words[:len(words) // 8 * 8]))
        at += 4 + length
    return iter(())


def data_offset(header: bytes) -> Optional[int]:
    """Returns the distance from the start of a local header to the record's first byte, or None if
    `header` is not the start of a local header."""
    if len(header) < HEADER:
        return None
    magic, *_, name_len, extra_len = _LOCAL.unpack_from(header)
    return HEADER + name_len + extra_len if magic == 0x04034B50 else None


def names(header: bytes, name: str) -> bool:
    """Returns whether a local header has the name of a record, and well-formed extra fields.

    `header` may lack the end of the last extra field, which is padding."""
    _, *_, name_len, extra_len = _LOCAL.unpack_from(header)
    at = HEADER + name_len
    end = at + extra_len
    if header[HEADER:at].partition(b"/")[2] != name.encode():
        return False
    while at < end and at + 4 <= len(header):
        kind, length = struct.unpack_from("<HH", header, at)
        if kind not in _IDS:
            return False
        at += 4 + int(length)
    return bool(at == end)


def gaps(header: bytes) -> Tuple[int, ...]:
    """Returns the possible numbers of bytes between a record and the header after it.

    With bit 3 of the flags, a data descriptor of one of two lengths follows the record."""
    return (16, 24) if _LOCAL.unpack_from(header)[2] & 8 else (0,)


__all__ = ["Archive", "CACHE_LINE", "Entry", "HEADER", "LONG", "PAGE", "Piece", "TAIL",
           "data_offset", "directory_range", "entries", "gaps", "names", "tensor_archive"]
