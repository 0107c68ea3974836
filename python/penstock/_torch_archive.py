# SPDX-License-Identifier: Apache-2.0
"""Contents: where the bytes of each storage are in a file that torch.save wrote.

Reads the directory of the zip archive and the pickle in it. Runs no code that the pickle names, and
moves no bytes of tensors. Raises Unsuited for an archive that torch.load can read but this module
cannot describe. Raises FormatError, with the file's name and an offset, for a damaged archive."""

from __future__ import annotations

import bisect
import contextlib
import copyreg
import errno
import io
import os
import pickle
import struct
import sys
import zipfile
import zlib
from typing import Any, Dict, List, NamedTuple, NoReturn, Set, Tuple

import torch

from . import _zip
from ._lib import FormatError, NotFoundError
from ._torch_pickle import _STORAGES

_LOCAL_MAGIC, _END_MAGIC = b"PK\x03\x04", b"PK\x05\x06"
# Length of a zip archive's end record, and of the longest comment after it, in bytes.
_END_BYTES, _COMMENT_MAX = 22, 65535
# Number of bytes of a local header to read. The rest of a longer header is padding.
HEADER_MAX = 1024
# Functions that rebuild a tensor on the device that torch.load's argument map_location names. For
# a pickle with one of them, torch.load does not accept a function as map_location.
_DEVICE_CALLS = {"_rebuild_wrapper_subclass", "_rebuild_device_tensor_from_cpu_tensor",
                 "_rebuild_device_tensor_from_numpy", "_rebuild_xla_tensor"}


class Unsuited(Exception):
    """Raised if only torch.load can read a file. The message is the reason."""


class Record(NamedTuple):
    """A record's offset in the file, and its length."""
    offset: int
    nbytes: int


class Reference(NamedTuple):
    """A storage as a pickle refers to it: the name of its record, its length in bytes, and its
    location, such as "cuda:0"."""
    name: str
    nbytes: int
    location: str


def damaged(path: str, offset: int, text: str) -> NoReturn:
    """Raises a FormatError about the byte at `offset` of a file."""
    error = FormatError(errno.EBADMSG, f"{path}: at offset {offset}: {text}", path)
    error.offset, error.reason = offset, "malformed"
    raise error


# ---- the pickle ------------------------------------------------------------------------

class _Inert:
    """Takes the place of every class, function and object of a pickle during a scan. All its
    methods do nothing, so that the scan runs no code of the pickle."""

    def __new__(cls, *_args: Any, **_named: Any) -> "_Inert":
        return object.__new__(cls)

    def __init__(self, *_args: Any, **_named: Any) -> None:
        pass

    def __call__(self, *_args: Any, **_named: Any) -> "_Inert":
        return self

    def __setitem__(self, _key: Any, _value: Any) -> None:
        pass

    def __setstate__(self, _state: Any) -> None:
        pass

    append = extend = add = __setstate__


# Names of torch's storage classes for quantized dtypes whose elements take one byte.
_QUANTIZED = {f"{name}Storage": 1 for name in ("QInt8", "QUInt8", "QUInt4x2", "QUInt2x4")}


class _Scanner(pickle.Unpickler):
    """Finds the storages that a pickle refers to, without running the code that it names."""

    def __init__(self, pickled: bytes) -> None:
        super().__init__(io.BytesIO(pickled), encoding="utf-8")
        self.found: Dict[str, Reference] = {}
        self.names: Set[str] = set()

    def find_class(self, _module: str, name: str) -> Any:
        self.names.add(name)
        if name in _STORAGES:
            return _STORAGES[name].itemsize
        if name == "UntypedStorage" or name in _QUANTIZED:
            return 1
        return 4 if name == "QInt32Storage" else _Inert

    def persistent_load(self, pid: Any) -> _Inert:
        word, size, key, location, count = pid
        word, key, location = [part.decode("ascii") if isinstance(part, bytes) else part
                               for part in (word, key, location)]
        if word != "storage" or not isinstance(size, int) or count < 0:
            raise pickle.UnpicklingError("unknown persistent id")
        if count:
            self.found.setdefault(str(key), Reference(f"data/{key}", count * size, location))
        return _Inert()


def scan(pickled: bytes) -> Tuple[List[Reference], Set[str]]:
    """Returns the non-empty storages that a pickle refers to, each once and in order of their first
    occurrence, and the names of the classes and functions in the pickle.

    Raises Unsuited for a pickle that cannot be scanned."""
    if getattr(copyreg, "_extension_registry"):
        # For a class with a registered code, an unpickler does not call find_class. So the scan
        # would use the class itself.
        raise Unsuited("the program has registered pickle extension codes")
    scanner = _Scanner(pickled)
    try:
        scanner.load()
    except Exception as error:  # pylint: disable=broad-except
        # A damaged pickle can raise any exception. The caller then uses torch.load, which reports
        # the error.
        raise Unsuited(f"its pickle cannot be scanned: {error}") from error
    return list(scanner.found.values()), scanner.names


# ---- the archive -----------------------------------------------------------------------

class Contents:
    """The storages of a file that torch.save wrote.

    Attributes:
        path: the file, which torch.load maps.
        name: its name in messages.
        source: the path or URL from which the C library reads the storages' bytes.
        storages: the storages with bytes, in the order in which torch.load meets them.
        records: the record of each storage, by name.
        identity: numbers that identify the file and its version; changed() compares them.
    """

    def __init__(self, path: str, name: str = "") -> None:
        self.path, self.name, self.source = path, name or path, path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFoundError(errno.ENOENT, f"{path}: no such file", path) from error
        try:
            self.identity = _identity(os.fstat(self._fd))
            self._size = os.fstat(self._fd).st_size
            # The local headers are far apart, so the kernel need not read ahead.
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
            # Offsets of the local headers, of the directory and of the end of the file.
            self._headers: List[int] = []
            self._entries = self._read_directory()
            self.storages, names = scan(self._read_pickle())
            if names & _DEVICE_CALLS:
                raise Unsuited("it has tensors that torch.load rebuilds on a device itself")
            self.records = {one.name: self._payload(one) for one in self.storages}
        finally:
            os.close(self._fd)

    def close(self) -> None:
        """Does nothing here. Subclasses free their resources."""

    def changed(self) -> bool:
        """Returns whether another file has this name, or the file has changed."""
        try:
            return _identity(os.stat(self.path)) != self.identity
        except OSError:
            return True

    def _read(self, offset: int, nbytes: int) -> bytes:
        parts = []
        while nbytes:
            part = os.pread(self._fd, nbytes, offset)
            if not part:
                damaged(self.name, offset, "the file ends here, too early")
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return b"".join(parts)

    def _read_directory(self) -> Dict[str, _zip.Entry]:
        """Returns the entries of the archive's directory by name."""
        length = min(self._size, _zip.TAIL)
        place = _zip.directory_range(self._read(self._size - length, length), self._size)
        begins = _LOCAL_MAGIC.startswith(self._read(0, min(self._size, len(_LOCAL_MAGIC))))
        if place is None and not begins:
            raise Unsuited("it is not a zip archive")
        if not begins:
            damaged(self.name, 0, "an archive's first header is damaged")
        if place is None:
            if self._has_comment():
                raise Unsuited("its directory is not as torch.save writes it")
            damaged(self.name, self._size, "the archive's directory is missing: the file is "
                    "truncated, or was not written completely")
        found = _zip.entries(self._read(*place))
        if found is None:
            self._explain(place[0])
        self._headers = sorted([place[0], self._size, *(entry.header for entry in found)])
        table = {entry.name: entry for entry in found}
        if "constants.pkl" in table:
            raise Unsuited("it is a TorchScript archive")
        if "data.pkl" not in table:
            damaged(self.name, place[0], "the archive's directory lists no record data.pkl")
        return table

    def _has_comment(self) -> bool:
        """Returns whether the archive ends with an end record and a comment."""
        length = min(self._size, _END_BYTES + _COMMENT_MAX)
        tail = self._read(self._size - length, length)
        at = tail.rfind(_END_MAGIC)
        comment = length - at - _END_BYTES
        return at >= 0 and comment >= 0 and \
            int.from_bytes(tail[at + _END_BYTES - 2:at + _END_BYTES], "little") == comment

    def _explain(self, directory: int) -> NoReturn:
        """Raises the exception for a directory that _zip cannot read."""
        with contextlib.suppress(zipfile.BadZipFile, NotImplementedError, struct.error), \
                zipfile.ZipFile(self.path) as archive:
            packed = [one for one in archive.infolist() if one.compress_type]
            # The method of compression is also in the local header, two bytes at offset 8. If both
            # agree, the archive is not damaged.
            if packed and all(self._read(one.header_offset + 8, 2) ==
                              one.compress_type.to_bytes(2, "little") for one in packed):
                raise Unsuited("it has compressed records")
        damaged(self.name, directory, "the archive's directory is damaged")

    def _record(self, name: str) -> Record:
        """Checks a record's local header. Returns the offset and the length of the record."""
        entry = self._entries[name]
        if entry.header + _zip.HEADER > self._size:
            damaged(self.name, entry.header, f"record {name} begins after the end of the file")
        header = self._read(entry.header, min(self._size - entry.header, HEADER_MAX))
        distance = _zip.data_offset(header)
        if distance is None or not _zip.names(header, name):
            damaged(self.name, entry.header, f"the header of record {name} is damaged")
        offset = entry.header + distance
        if offset + entry.nbytes > self._size:
            damaged(self.name, offset, f"record {name} has {entry.nbytes} bytes, but the file ends "
                    f"after {max(0, self._size - offset)} of them")
        after = self._headers[bisect.bisect_right(self._headers, entry.header)]
        if after - offset - entry.nbytes not in _zip.gaps(header):
            damaged(self.name, entry.header, f"record {name} does not end where the next "
                    "one begins")
        return Record(offset, entry.nbytes)

    def _read_record(self, name: str) -> bytes:
        """Returns the bytes of a record. Compares them with their checksum, if there is one."""
        place, crc = self._record(name), self._entries[name].crc
        data = self._read(*place)
        if crc and zlib.crc32(data) != crc:
            damaged(self.name, place.offset, f"record {name} of {place.nbytes} bytes has another "
                    "checksum than its header: the file is damaged")
        return data

    def _read_pickle(self) -> bytes:
        """Returns the bytes of the record data.pkl. Raises Unsuited if the file has another byte
        order than this machine."""
        if "byteorder" in self._entries:
            order = self._read_record("byteorder")
            if order != sys.byteorder.encode():
                raise Unsuited(f"its byte order is {order.decode('ascii', 'replace')}")
        elif torch.serialization.get_default_load_endianness() is not None:
            raise Unsuited("the program has set a byte order for files that state none")
        return self._read_record("data.pkl")

    def _payload(self, one: Reference) -> Record:
        """Returns the part of a storage's record that the pickle refers to."""
        if one.name not in self._entries:
            damaged(self.name, self._record("data.pkl").offset,
                    f"record data.pkl refers to {one.name}, which the archive does not have")
        record = self._record(one.name)
        if record.nbytes < one.nbytes:
            damaged(self.name, record.offset, f"record {one.name} has {record.nbytes} bytes, but "
                    f"its storage has {one.nbytes}")
        return Record(record.offset, one.nbytes)


def _identity(info: os.stat_result) -> Tuple[int, ...]:
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


__all__ = ["HEADER_MAX", "Contents", "Record", "Reference", "Unsuited", "damaged", "scan"]
