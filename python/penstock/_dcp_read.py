# SPDX-License-Identifier: Apache-2.0
"""StorageReader: reads checkpoints of torch.distributed.checkpoint (DCP).

It derives from torch's FileSystemReader, and also reads what torch's FileSystemWriter has written.
The bytes move straight from the files to the tensors' memory."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import io
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from . import _part, _torch_pickle, _zip
from ._cuda import synchronize_all
from ._dcp import MANIFEST_OF, MARKER, Total, check_choices, name_of
from ._lib import FormatError, device_name, without_file_scheme
from ._model import Report
from ._staging import is_plain
from ._torch_object import is_object

# Number of bytes to read from the start and from the end of an archive (the ZIP file that
# torch.save makes of a tensor). These bytes say where the tensor's elements (the payload) begin.
# For an archive of one tensor, about 1 KiB at each end is enough.
_ENDS = 2048


class _Wanted:
    """A tensor or object to read: the planner's request, and the range of its bytes in the file."""

    def __init__(self, request: ReadItem, off: int, nbytes: int) -> None:
        self.request, self.off, self.nbytes = request, off, nbytes
        self.front, self.tail = bytearray(min(_ENDS, nbytes)), bytearray(min(_ENDS, nbytes))
        self.payload: Optional[_zip.Entry] = None
        self.what: Optional[_torch_pickle.Description] = None

    def ends(self, name: str) -> _part.Item:
        """Returns an item that reads the first and the last bytes of the archive."""
        item = _part.Item(name, self.off, self.nbytes)
        if self.nbytes:
            item.add_bytes(self.off, self.front)
            item.add_bytes(self.off + self.nbytes - len(self.tail), self.tail)
        return item

    def parse(self) -> None:
        """Parses the archive's ends to find the tensor's elements (the payload). `what` stays None
        if the archive does not have the expected form; torch.load then reads it."""
        place = _zip.directory_range(bytes(self.tail), self.nbytes)
        if place is None or place[0] < self.nbytes - len(self.tail):
            return
        at = place[0] - (self.nbytes - len(self.tail))
        records = {entry.name: entry
                   for entry in _zip.entries(bytes(self.tail[at:at + place[1]])) or ()}
        pickled = self._record(records.get("data.pkl"))
        if pickled is None or pickled.header + pickled.nbytes > len(self.front):
            return
        what = _torch_pickle.describe_tensor(
            bytes(self.front[pickled.header:pickled.header + pickled.nbytes]))
        payload = self._record(records.get(f"data/{what.key}")) if what else None
        order = self._record(records.get("byteorder"))
        little = order is None or order.header + order.nbytes > len(self.front) or \
            self.front[order.header:order.header + order.nbytes] == b"little"
        if what and payload and payload.header + payload.nbytes <= self.nbytes and little and \
                _is_whole(what, payload.nbytes):
            self.what, self.payload = what, payload

    def _record(self, entry: Optional[_zip.Entry]) -> Optional[_zip.Entry]:
        """Returns a copy of the entry, in which `header` is the offset of the record's first byte
        instead of the offset of the record's header. Returns None if there is no such record."""
        if entry is None:
            return None
        skip = _zip.data_offset(bytes(self.front[entry.header:entry.header + _zip.HEADER]))
        return None if skip is None else entry._replace(header=entry.header + skip)


def _is_whole(what: _torch_pickle.Description, nbytes: int) -> bool:
    """Returns whether a payload is exactly the tensor's elements in row-major order."""
    step = 1
    for length, stride in zip(reversed(what.shape), reversed(what.stride)):
        if length != 1 and stride != step:
            return False
        step *= length
    return what.offset == 0 and step * what.dtype.itemsize == nbytes


def _check_shapes(planner: LoadPlanner) -> None:
    """Raises ValueError if a tensor of the state and the saved tensor differ in shape.

    torch 2.4 does not compare the shapes, and would load only the range that both tensors
    have. Does not check the states of planners that are not torch's default planner."""
    if type(planner) is not DefaultLoadPlanner:
        return
    metadata = planner.metadata
    saved = metadata.state_dict_metadata if metadata is not None else {}
    for name, value in planner.state_dict.items():
        wanted, size = saved.get(name), getattr(value, "size", None)
        if isinstance(wanted, TensorStorageMetadata) and callable(size) and \
                tuple(wanted.size) != tuple(size()):
            raise ValueError(f"{name}: the state has the shape {tuple(size())}, the checkpoint "
                             f"{tuple(wanted.size)}")


@dataclasses.dataclass
class LoadReport:
    """The results of a rank's part of a load.

    Attributes:
        bytes: number of bytes delivered.
        seconds: how long the load took.
        path: the path that carried most bytes.
        checked_bytes: bytes whose checksum was compared with the manifest.
        unchecked: why other bytes were not checked: "" or a sentence.
        through_torch: number of items that torch.load read, because they are not plain tensors.
    """
    bytes: int = 0
    seconds: float = 0.0
    path: str = "none"
    checked_bytes: int = 0
    unchecked: str = ""
    through_torch: int = 0


class StorageReader(FileSystemReader):
    """Reads checkpoints for torch.distributed.checkpoint.load, also those that torch wrote.

        dcp.load(state, storage_reader=penstock.torch.StorageReader("/ckpt/step-100"))

    Reads only the bytes that the state needs, straight into the tensors' memory.

    Args:
        path: the checkpoint's folder. With s3://bucket/prefix, the constructor returns an
            ObjectStorageReader.
        checksums: whether to compare the checksums of items that are read as a whole.
        require, effort, path_name: as `require`, `effort` and `path` of Model.load.
        threads: number of parts that are read at the same time.
        progress: a function that is called with the number of bytes that this rank has read
            and the total number, by one thread at a time. The last call has the total twice.
        _extensions: as for FileSystemReader.

    Attributes:
        report: a LoadReport of the last load of this rank, or None.

    Raises FormatError if bytes do not have the checksum of the manifest. The error names the
    file, the item and its offset.
    """

    def __init__(self, path: Any, *, checksums: bool = True, require: str = "any",
                 effort: Optional[str] = None, path_name: Optional[str] = None, threads: int = 4,
                 progress: Any = None, _extensions: Optional[Sequence[Any]] = None) -> None:
        check_choices(require, effort)
        # Older versions of torch have no _extensions.
        torch_options = {} if _extensions is None else {"_extensions": _extensions}
        super().__init__(without_file_scheme(path), **torch_options)
        self.checksums, self.threads, self.progress = checksums, threads, progress
        self.how = {"require": require, "effort": effort or "thrifty", "path": path_name}
        self.report: Optional[LoadReport] = None
        self._has_manifest = False

    def reset(self, checkpoint_id: Any = None) -> None:
        super().reset(without_file_scheme(checkpoint_id))

    @property
    def folder(self) -> str:
        """The checkpoint's folder."""
        return os.fspath(self.path)

    def __new__(cls, path: Any = None, *_args: Any, **_options: Any) -> Any:
        if cls is StorageReader and is_object(str(path)):
            from ._dcp_object import ObjectStorageReader
            return super().__new__(ObjectStorageReader)
        return super().__new__(cls)

    def _url(self) -> str:
        """Returns the path or URL by which the C library opens the checkpoint's folder."""
        return self.folder

    def _is_begun(self) -> bool:
        """Returns whether the checkpoint's folder exists."""
        return os.path.isdir(self.folder)

    def file(self, name: str) -> str:
        """Returns the path or the URL by which the library reads a part (a file with tensors)."""
        return os.path.join(self.folder, name)

    def set_up_storage_reader(self, metadata: Metadata, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, *args, **kwargs)
        # If torch overwrites a checkpoint of this package, the old manifest file remains, but
        # torch's Metadata does not name it. The reader must not use that manifest.
        self._has_manifest = hasattr(metadata, MANIFEST_OF)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            return super().read_metadata(*args, **kwargs)
        except FileNotFoundError as error:
            if not self._is_begun():
                raise
            raise FileNotFoundError(
                errno.ENOENT, f"the checkpoint has no file {MARKER}: its save was interrupted or "
                "still runs; `penstock ckpt list` shows the complete ones", self.folder) from error
        except OSError:
            raise
        except Exception as error:  # A damaged pickle can raise any exception.
            raise FormatError(errno.EBADMSG, f"the file {MARKER} is damaged: {error}",
                              os.path.join(self.folder, MARKER)) from error

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        _check_shapes(planner)
        started, self.report = time.monotonic(), LoadReport()
        manifest = _part.find_manifest(self._url()) \
            if self.checksums and self._has_manifest else None
        if manifest is None:
            self.report.unchecked = "the checkpoint has no manifest" if self.checksums else \
                "checksums=False"
        parts: Dict[str, List[_Wanted]] = {}
        for request in plan.items:
            info = self.storage_data[request.storage_index]
            parts.setdefault(info.relative_path, []).append(
                _Wanted(request, info.offset, info.length))
        tell = Total(self.progress, sum(w.nbytes for wanted in parts.values() for w in wanted))
        jobs = [_PartRead(self, planner, name, wanted, manifest, tell.function(i))
                for i, (name, wanted) in enumerate(parts.items())]
        with concurrent.futures.ThreadPoolExecutor(max(1, min(self.threads, len(jobs)))) as pool:
            list(pool.map(_PartRead.find, jobs))
        # Planners are not thread-safe, so this thread alone calls prepare(), which calls the
        # planner.
        for job in jobs:
            job.prepare()
        synchronize_all(segment.device for job in jobs for item in job.items
                        for segment in item.segments)
        with concurrent.futures.ThreadPoolExecutor(max(1, min(self.threads, len(jobs)))) as pool:
            reports = list(pool.map(_PartRead.read, jobs))
        tell.finish()
        for job in jobs:
            job.deliver()
        self._sum_up(jobs, reports, time.monotonic() - started)
        future: "Future[None]" = Future()
        future.set_result(None)
        return future

    def _sum_up(self, jobs: Sequence["_PartRead"], reports: Sequence[Report], seconds: float
                ) -> None:
        report = self.report
        assert report is not None
        report.seconds, report.bytes = seconds, sum(r.bytes for r in reports)
        if reports:
            report.path = max(reports, key=lambda r: r.bytes).path
        items = [item for job in jobs for item in job.items]
        report.checked_bytes = sum(item.nbytes for item in items if item.checked)
        report.through_torch = sum(job.through_torch for job in jobs)
        if not report.unchecked and not all(item.checked for item in items):
            report.unchecked = "some items were read only in part, or the manifest has no " \
                "checksum of them"


class _PartRead:
    """Reads the tensors that one rank needs from one file (part). First reads the ends of their
    archives, to find the tensors' elements (payloads), then reads the payloads.

    The caller must call find, prepare, read and deliver in this order. `find` and `read` may run on
    any thread. `prepare` and `deliver` call the planner."""

    def __init__(self, reader: StorageReader, planner: LoadPlanner, name: str,
                 wanted: List[_Wanted], manifest: Optional[_part.Manifest], tell: Any) -> None:
        self.reader, self.planner, self.name, self.wanted = reader, planner, name, wanted
        self.manifest, self.tell = manifest, tell
        self.path = reader.file(name)
        self.items: List[_part.Item] = []
        self.through_torch = 0
        self._deliveries: List[Any] = []

    def find(self) -> None:
        """Reads the ends of the tensors' archives, and finds their payloads."""
        tensors = [w for w in self.wanted if w.request.type != LoadItemType.BYTE_IO]
        info = self.reader.storage_data
        plain = [w for w in tensors
                 if not getattr(info[w.request.storage_index], "transform_descriptors", None)]
        self._read([w.ends(name_of(w.request.storage_index)) for w in plain], checksums=False)
        for wanted in plain:
            wanted.parse()

    def _read(self, items: Sequence[_part.Item], checksums: bool, tell: Any = None) -> Report:
        return _part.read_part(self.path, items, checksums=checksums, tell=tell,
                               **self.reader.how)

    def prepare(self) -> None:
        """Gets the destination tensors from the planner, and lists the segments to read for all
        payloads."""
        for wanted in self.wanted:
            item = _part.Item(name_of(wanted.request.storage_index), wanted.off, wanted.nbytes)
            if self.manifest is not None:
                item.crc32c = self.manifest.crc32c(self.name, wanted.off, wanted.nbytes)
            self.items.append(item)
            if wanted.what is not None and self._prepare_direct(wanted, item):
                continue
            data = bytearray(wanted.nbytes)
            if data:
                item.add_bytes(wanted.off, data)
            deliver = self._deliver_bytes if wanted.request.type == LoadItemType.BYTE_IO else \
                self._deliver_archive
            self._deliveries.append((deliver, wanted, data))

    def _prepare_direct(self, wanted: _Wanted, item: _part.Item) -> bool:
        """Lists the segments that read a payload, or the needed region of it. Returns False if the
        whole archive must be read."""
        what, payload, request = wanted.what, wanted.payload, wanted.request
        assert what is not None and payload is not None
        target = self.planner.resolve_tensor(request).detach()
        if tuple(target.shape) != tuple(request.lengths):
            raise ValueError(f"{request.storage_index.fqn}: the state has the shape "
                             f"{tuple(target.shape)}, the checkpoint {tuple(request.lengths)}")
        memory, segments = target, None
        if is_plain(target) and target.dtype == what.dtype:
            segments = self._segments(wanted, target)
        if segments is None:
            device = target.device if target.device.type == "cuda" else "cpu"
            memory = torch.empty(tuple(request.lengths), dtype=what.dtype, device=device)
            segments = self._segments(wanted, memory)
        if segments is None:
            return False
        whole = all(first == 0 for first in request.storage_offsets) and \
            tuple(request.lengths) == what.shape
        if whole and item.crc32c is not None:
            self._add_around(wanted, item, segments)
        else:
            item.segments = segments
        item.keep.append(memory)
        self._deliveries.append((self._deliver_tensor, wanted, (target, memory)))
        return True

    @staticmethod
    def _segments(wanted: _Wanted, memory: torch.Tensor) -> Optional[List[_part.Segment]]:
        what, payload = wanted.what, wanted.payload
        assert what is not None and payload is not None
        return _part.region_segments(
            wanted.off + payload.header, what.dtype.itemsize, what.shape,
            wanted.request.storage_offsets, wanted.request.lengths, memory.data_ptr(),
            memory.stride(), device_name(memory.device))

    @staticmethod
    def _add_around(wanted: _Wanted, item: _part.Item, segments: List[_part.Segment]) -> None:
        """Adds the archive's bytes before and after the payload to the item. The read then covers
        the whole archive, so that the item's checksum can be compared."""
        assert wanted.payload is not None
        start = wanted.payload.header
        end = start + wanted.payload.nbytes
        if start:
            item.add_bytes(wanted.off, bytearray(start))
        item.segments += segments
        if end < wanted.nbytes:
            item.add_bytes(wanted.off + end, bytearray(wanted.nbytes - end))

    def read(self) -> Report:
        """Reads all segments that prepare() has listed."""
        return self._read(self.items, self.reader.checksums and self.manifest is not None,
                          self.tell)

    def deliver(self) -> None:
        """Passes the tensors and objects that were read to the planner."""
        for call, wanted, value in self._deliveries:
            call(wanted, value)

    def _deliver_bytes(self, wanted: _Wanted, data: bytearray) -> None:
        self.planner.load_bytes(wanted.request, io.BytesIO(data))

    def _deliver_tensor(self, wanted: _Wanted, tensors: Tuple[torch.Tensor, torch.Tensor]) -> None:
        target, memory = tensors
        if memory is not target:
            target.copy_(memory)
        self.planner.commit_tensor(wanted.request, target)

    def _deliver_archive(self, wanted: _Wanted, data: bytearray) -> None:
        """Loads the whole archive by torch.load, and copies the tensor to the planner's target.
        Used for tensors whose elements cannot be read directly from the archive."""
        self.through_torch += 1
        request = wanted.request
        info = self.reader.storage_data[request.storage_index]
        stream: Any = io.BytesIO(data)
        descriptors = getattr(info, "transform_descriptors", None)
        if descriptors:
            stream = self.reader.transforms.transform_load_stream(request, descriptors, stream)
            stream = stream if stream.seekable() else io.BytesIO(stream.read(-1))
        tensor = torch.load(stream, map_location="cpu", weights_only=True)
        tensor = narrow_tensor_by_index(tensor, request.storage_offsets, request.lengths)
        target = self.planner.resolve_tensor(request).detach()
        if target.size() != tensor.size():
            raise ValueError(f"{request.storage_index.fqn}: the state has the shape "
                             f"{tuple(target.shape)}, the checkpoint {tuple(tensor.shape)}")
        target.copy_(tensor)
        self.planner.commit_tensor(request, target)


__all__ = ["LoadReport", "StorageReader"]
