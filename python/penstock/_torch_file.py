# SPDX-License-Identifier: Apache-2.0
"""save and load: files of torch.save, whose tensors move directly between storage and devices.

save writes a zip archive that plain torch.load reads; load reads the files of torch.save and save.
load first reads the bytes of all storages into the memory of the right device. Then it calls
torch.load, which rebuilds the object and gets these storages. So a file runs no other code here
than in torch.load. If this module cannot read a file, torch.load reads it, and load says why."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import pickle
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from . import _zip
from ._cuda import synchronize_all
from ._lib import ClassRefusedError, PenstockError, device_name, ffi, without_file_scheme
from ._model import CLASSES, EFFORTS, PathLike, Report
from ._part import Item, Segment, read_part, write_part
from ._progress import Meter, Progress
from ._torch_archive import Contents, Record, Unsuited
from ._torch_object import ObjectContents, is_object, read_object
from ._torch_pickle import storage_identity

_log = logging.getLogger("penstock")
# Kinds of torch devices whose memory the library moves. torch copies the memory of other devices.
_DIRECT = ("cpu", "cuda")

# Maps parts of torch.load's error messages to the reason to report. torch.load raises these errors
# only because load passes mmap=True, and a function as map_location. load then calls torch.load
# again without these two arguments.
_NOT_HERE = {
    "unable to mmap": "it cannot be mapped into memory",
    "Callable map_location not supported": "torch.load rebuilds its tensors on a device itself",
}


def _check_choices(require: str, effort: str) -> None:
    if require not in CLASSES or effort not in EFFORTS:
        raise ValueError(f"require must be one of {list(CLASSES)}, effort one of {list(EFFORTS)}")


def _path_of(filename: Any) -> str:
    """Returns the path as a str. Raises TypeError for an open file."""
    if not isinstance(filename, (str, bytes, os.PathLike)):
        raise TypeError(f"the file must be given by its path, not as a {type(filename).__name__}; "
                        "torch.save and torch.load use open files")
    return os.fsdecode(without_file_scheme(filename))


def _check_stop(stop: Optional[threading.Event], name: str) -> None:
    """Raises PenstockError if `stop` is set. Without this check, a call whose `stop` is set at the
    start could succeed, because the library checks `stop` only after a tenth of a second."""
    if stop is not None and stop.is_set():
        error = PenstockError(errno.ECANCELED, f"{name}: cancelled by the caller", name)
        error.reason = "cancelled"
        raise error


def _teller(meter: Meter) -> Optional[Callable[[int], None]]:
    """Returns a function that passes the number of bytes moved so far to a meter."""
    if not meter.active:
        return None
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        meter.add(done - told)
        told = done

    return tell


# ---- save ------------------------------------------------------------------------------

class _Storages:
    """The storages that a pickle refers to, in the order of their keys "0", "1" and so on."""

    def __init__(self) -> None:
        self.list: List[Any] = []
        self._keys: Dict[int, str] = {}
        self._dtypes: Dict[int, Any] = {}

    def identity(self, obj: Any) -> Optional[Tuple[Any, ...]]:
        """Returns the persistent id of a storage, or None for any other object."""
        typed = isinstance(obj, torch.storage.TypedStorage)
        if not typed and not torch.is_storage(obj):
            return None
        storage = obj._untyped_storage if typed else obj
        self._check_dtype(storage, obj.dtype if typed else torch.uint8)
        key = self._keys.setdefault(storage._cdata, str(len(self.list)))
        if int(key) == len(self.list):
            self.list.append(storage)
        return storage_identity(obj, key, torch.serialization.location_tag(storage))

    def _check_dtype(self, storage: Any, dtype: Any) -> None:
        """Raises RuntimeError, like torch.save, if the same memory was added with another dtype
        before, because a file can state only one dtype for a storage."""
        at = 0 if storage.device.type == "meta" else storage.data_ptr()
        if at and self._dtypes.setdefault(at, dtype) != dtype:
            raise RuntimeError("Cannot save multiple tensors or storages that view the same data "
                               f"as different types: {self._dtypes[at]} and {dtype}")


@functools.lru_cache(maxsize=16)
def _pickler_of(module: Any) -> Any:
    """Returns a Pickler class that gets the persistent ids of storages from its attribute
    `storages`."""

    class Pickler(module.Pickler):
        """Pickles all objects. In place of a storage, it writes the storage's persistent id."""

        storages: _Storages

        def persistent_id(self, obj: Any) -> Any:
            return self.storages.identity(obj)

    return Pickler


def _pickle(obj: Any, module: Any, protocol: int) -> Tuple[bytes, List[Any]]:
    """Returns the pickle of an object, and the storages that it refers to."""
    out = io.BytesIO()
    pickler = _pickler_of(module)(out, protocol=protocol)
    pickler.storages = storages = _Storages()
    pickler.dump(obj)
    return out.getvalue(), storages.list


def bytes_of(storage: Any) -> Any:
    """Returns the bytes of a storage in host memory, as a buffer without a copy."""
    return ffi.buffer(ffi.cast("char *", storage.data_ptr()), storage.nbytes())


def _archive(pickled: bytes, storages: List[Any]) -> _zip.Archive:
    """Returns the layout of the file. Long storages, and storages on GPUs, become payloads, which
    move separately. The bytes of short storages in host memory are copied into the headers and
    other bytes between the payloads."""
    archive = _zip.Archive()
    archive.add("data.pkl", pickled)
    archive.add("byteorder", sys.byteorder.encode())
    archive.add("version", b"3\n")
    for i, storage in enumerate(storages):
        if storage.device.type == "cpu" and storage.nbytes() < _zip.LONG:
            archive.add(f"data/{i}", bytes(bytes_of(storage)), _zip.CACHE_LINE)
        else:
            archive.add_payload(f"data/{i}", storage.nbytes(), i)
    archive.finish()
    return archive


def _items(archive: _zip.Archive, storages: List[Any]) -> List[Item]:
    """Returns the items to write. Each item consists of a payload and the archive's bytes before
    it. The last item has only the bytes after the last payload, with the archive's directory."""
    items: List[Item] = []
    for at, piece in archive.pieces:
        if isinstance(piece, bytes):
            items.append(Item("directory", at, len(piece)))
            items[-1].add_bytes(at, piece)
            continue
        key, nbytes = piece
        storage, item = storages[key], items[-1]
        item.name, item.nbytes = f"data/{key}", item.nbytes + nbytes
        item.segments.append(Segment(at, storage.data_ptr(), nbytes, device_name(storage.device)))
        item.keep.append(storage)
    return items


def save(obj: Any, filename: PathLike, *, durable: bool = True, pickle_module: Any = pickle,
         pickle_protocol: int = 2, require: str = "any", effort: str = "thrifty",
         progress: Progress = False, stop: Optional[threading.Event] = None,
         path: Optional[str] = None) -> Report:
    """Saves an object as torch.save does, and writes its tensors straight from their memory.

    torch.load reads the file. The file appears under its name only when it is complete: if the call
    fails, an older file of this name is unchanged.

    Args:
        obj: any object that torch.save accepts, such as a state dict. Tensors that share memory
            are saved once, and share memory after the load.
        filename: the path of the file, or the URL of an object, s3://bucket/key.
        durable: True makes the call wait until the file would survive a power cut.
        pickle_module, pickle_protocol: as in torch.save.
        require: the class of paths that the save may use, as in penstock.save_file.
        effort: "thrifty", "balanced" or "fast", as in penstock.save_file.
        progress: a function that is called with (written bytes, total bytes), at most ten times
            a second; or True for a bar of tqdm.
        stop: a threading.Event. Setting it ends the save with errno ECANCELED.
        path: name of the only I/O path to use, for tests.

    Returns:
        A Report.

    Raises:
        ClassRefusedError, PenstockError: the file could not be written.
        Any exception that pickling the object raises, before a byte is written.
    """
    _check_choices(require, effort)
    name = _path_of(filename)
    pickled, storages = _pickle(obj, pickle_module, pickle_protocol)
    storages = [one if one.device.type in _DIRECT else one.cpu() for one in storages]
    archive = _archive(pickled, storages)
    items = _items(archive, storages)
    synchronize_all(device_name(one.device) for one in storages)
    _check_stop(stop, name)
    with Meter(progress, archive.end, os.path.basename(_shown(name))) as meter:
        return write_part(name, items, checksums=False, durable=durable, stop=stop,
                          tell=_teller(meter), require=require, effort=effort, path=path)


# ---- load ------------------------------------------------------------------------------

class FileReport:
    """The results of a call of load. The call fills the object that it gets as argument `report`.

    Attributes:
        fallback: None if Penstock read the tensors; else one sentence that says why torch.load
            read them.
        bytes: number of bytes that Penstock read into tensors.
        path: the path that carried the last of these bytes, as in Report.
    """

    def __init__(self) -> None:
        self.fallback: Optional[str] = None
        self.bytes, self.path = 0, "none"

    def __repr__(self) -> str:
        if self.fallback is not None:
            return f"penstock.torch.FileReport(fallback={self.fallback!r})"
        return f"penstock.torch.FileReport({self.bytes} bytes by {self.path})"

    def _add(self, one: Report) -> None:
        self.bytes, self.path = self.bytes + one.bytes, one.path


class _Loader:
    """Reads the storages of one file, and gives them to torch.load."""

    def __init__(self, contents: Contents, map_location: Any, how: Mapping[str, Any],
                 report: FileReport, meter: Meter) -> None:
        self.contents, self.map_location, self.how = contents, map_location, how
        self.report, self.meter = report, meter
        # Whether map_location is a function. Such a function must get each storage with its bytes,
        # so restore() reads them before it calls the function.
        self.asks = not (map_location is None or
                         isinstance(map_location, (str, bytes, torch.device, dict)))
        self._devices: Dict[str, Any] = {}
        # Maps the offset of a payload in the file to the storage into which it was read.
        self._ready: Dict[int, Any] = {}
        # Maps the offset of a payload in the file to its name and its record.
        self._payloads = {record.offset: (name, record) for name, record in
                          contents.records.items()}
        # Address of the file's first byte in the mapping from which torch.load makes storages.
        self._base: Optional[int] = None

    def _location(self, location: str) -> str:
        """Returns the location to which map_location sends a storage that was saved at
        `location`."""
        if self.map_location is None:
            return location
        if isinstance(self.map_location, dict):
            return str(self.map_location.get(location, location))
        if isinstance(self.map_location, bytes):
            return self.map_location.decode()
        return str(self.map_location)

    def _device(self, location: str) -> Any:
        """Returns the torch device of a location. torch raises RuntimeError if this machine has no
        such device."""
        if location not in self._devices:
            nothing = torch.UntypedStorage(0)
            found = torch.serialization.default_restore_location(nothing, location)
            self._devices[location] = found.device
        return self._devices[location]

    def read_all(self) -> None:
        """Reads all storages, unless map_location is a function."""
        if self.asks:
            return
        wanted: List[Tuple[str, Record, Any, str]] = []
        for one in self.contents.storages:
            record, location = self.contents.records[one.name], self._location(one.location)
            device = self._device(location)
            if device.type == "meta":
                self._ready[record.offset] = torch.UntypedStorage(one.nbytes, device=device)
                continue
            place = _new_storage(record, device if device.type in _DIRECT else None)
            wanted.append((one.name, record, place, location))
        self._read([one[:3] for one in wanted])
        for _, record, place, location in wanted:
            if self._device(location).type not in _DIRECT:
                place = torch.serialization.default_restore_location(place, location)
            self._ready[record.offset] = place

    def _read(self, wanted: List[Tuple[str, Record, Any]]) -> None:
        """Reads payloads. `wanted` has the name, the record and the storage of each."""
        items = [Item(name, record.offset, record.nbytes,
                      [Segment(record.offset, place.data_ptr(), record.nbytes,
                               device_name(place.device), room=_room(record, place))], [place])
                 for name, record, place in wanted]
        _check_stop(self.how["stop"], self.contents.name)
        # torch reuses freed memory for new storages. Kernels that are still queued on a stream may
        # use this memory. So this function waits for the GPUs before it writes to the storages.
        synchronize_all(item.segments[0].device for item in items)
        self.report._add(read_part(self.contents.source, items, checksums=False,
                                   tell=_teller(self.meter), **self.how))

    def restore(self, storage: Any, location: str) -> Any:
        """Returns the storage to use in place of `storage`, which maps a part of the file.

        torch.load calls this as its argument map_location."""
        if not storage.nbytes():
            return self._moved(torch.UntypedStorage(0), location)
        name, record = self._payload(storage)
        if self.asks:
            place = _new_storage(record, None)
            self._read([(name, record, place)])
            return self._moved(place, location)
        return self._ready[record.offset]

    def _moved(self, storage: Any, location: str) -> Any:
        """Moves a storage from host memory to its location, as torch.load does, and returns it."""
        if self.asks:
            moved = self.map_location(storage, location)
            if moved is not None:
                return moved
        else:
            location = self._location(location)
        return torch.serialization.default_restore_location(storage, location)

    def _payload(self, storage: Any) -> Tuple[str, Record]:
        """Returns the name and the record of the payload that a storage maps."""
        at = storage.data_ptr()
        if self._base is None:
            self._base = at - self.contents.records[self.contents.storages[0].name].offset
        found = self._payloads.get(at - self._base)
        if found is None or found[1].nbytes != storage.nbytes() or self._base % _zip.PAGE:
            raise Unsuited("torch.load maps the file in an unknown way")
        return found


def _is_long(record: Record) -> bool:
    """Returns whether a drive may write the whole payload directly to host memory."""
    return record.nbytes >= _zip.LONG and not record.offset % _zip.CACHE_LINE


def _new_storage(record: Record, device: Any) -> Any:
    """Returns an uninitialised storage for a payload, in host memory if `device` is None.

    For a long payload, a drive can write to host memory directly. For this, the payload's memory
    has the same offset within a memory page as the payload has within a page of the file, and is
    followed by a page that the read may overwrite."""
    if device is not None and device.type != "cpu":
        return torch.UntypedStorage(record.nbytes, device=device)
    if not _is_long(record):
        return torch.UntypedStorage(record.nbytes)
    whole = torch.UntypedStorage(record.nbytes + 2 * _zip.PAGE)
    start = (record.offset - whole.data_ptr()) % _zip.PAGE
    return whole[start:start + record.nbytes]


def _room(record: Record, place: Any) -> int:
    """Returns the number of bytes after a storage of _new_storage that a read may overwrite."""
    return _zip.PAGE if place.device.type == "cpu" and _is_long(record) else 0


def load(filename: PathLike, map_location: Any = None, *, weights_only: bool = True,
         pickle_module: Any = None, require: str = "any", effort: str = "thrifty",
         progress: Progress = False, stop: Optional[threading.Event] = None,
         report: Optional[FileReport] = None, path: Optional[str] = None) -> Any:
    """Loads an object that torch.save or save wrote. Reads its tensors straight into their memory.

    torch.load rebuilds the object. The file runs no other code than in torch.load.

    Args:
        filename: the path of the file, or the URL of an object, s3://bucket/key.
        map_location: as in torch.load: a device, a dict from locations to locations, or a function
            (storage, location). With a function the storages are read one after the other into
            host memory, and the function moves them.
        weights_only: as in torch.load: False allows the file to run any code.
        pickle_module: as in torch.load.
        require: the class of paths that the load may use, as in penstock.load_file.
        effort: "thrifty", "balanced" or "fast", as in penstock.load_file.
        progress: a function that is called with (delivered bytes, total bytes), at most ten times
            a second; or True for a bar of tqdm.
        stop: a threading.Event. Setting it ends the load with errno ECANCELED.
        report: a FileReport, which the call fills. It says whether torch.load had to read the
            tensors itself, and why. The logger "penstock" gets the same sentence at level DEBUG.
        path: name of the only I/O path to use, for tests.

    Returns:
        The object.

    Raises:
        FormatError: the file is truncated or damaged. The message names the offset.
        NotFoundError: the file does not exist.
        ClassRefusedError: no path meets `require`, or only torch.load can read the file.
        PenstockError: any other failure, such as ECANCELED after `stop` was set.
        Any exception that torch.load raises.
    """
    _check_choices(require, effort)
    name, told = _path_of(filename), report or FileReport()
    how = {"require": require, "effort": effort, "stop": stop, "path": path}
    code = {"weights_only": weights_only, "pickle_module": pickle_module}
    try:
        contents = ObjectContents(name) if is_object(name) else Contents(name)
        with contextlib.closing(contents), \
                Meter(progress, sum(one.nbytes for one in contents.storages),
                      os.path.basename(contents.name)) as meter:
            return _load_directly(contents, map_location, how, code, told, meter)
    except Unsuited as error:
        told.fallback = f"torch.load reads {_shown(name)}: {error}"
    if require != "any":
        raise ClassRefusedError(errno.EOPNOTSUPP, f"{told.fallback}; but require='{require}'",
                                _shown(name))
    _log.debug("%s", told.fallback)
    return torch.load(io.BytesIO(read_object(name)) if is_object(name) else name, map_location,
                      weights_only=weights_only, pickle_module=pickle_module)


def _shown(name: str) -> str:
    """Returns a file's name for messages. For the URL of an object, leaves out its options."""
    return name.partition("?")[0] if is_object(name) else name


def _load_directly(contents: Contents, map_location: Any, how: Mapping[str, Any],
                   code: Mapping[str, Any], report: FileReport, meter: Meter) -> Any:
    """Implements the function `load` for a file that this module can read."""
    loader = _Loader(contents, map_location, how, report, meter)
    loader.read_all()
    try:
        loaded = torch.load(contents.path, loader.restore, mmap=True, **code)
    except Exception as error:
        _check_unchanged(contents)
        for words, reason in _NOT_HERE.items():
            if isinstance(error, RuntimeError) and words in str(error):
                raise Unsuited(reason) from error
        raise
    _check_unchanged(contents)
    return loaded


def _check_unchanged(contents: Contents) -> None:
    if contents.changed():
        error = PenstockError(errno.ESTALE, f"{contents.name}: the file changed while it was read",
                              contents.name)
        error.reason = "file-changed"
        raise error


__all__ = ["FileReport", "load", "save"]
