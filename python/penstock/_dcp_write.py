# SPDX-License-Identifier: Apache-2.0
"""StorageWriter: writes checkpoints of torch.distributed.checkpoint (DCP).

It derives from torch's FileSystemWriter and keeps the format: FileSystemReader reads its files
without this package. The bytes move straight from the tensors' memory to the files.

A save commits in four steps. Each rank writes its files (parts) under names that no other save
uses. A part gets its final name when all its bytes are on the drive. The coordinator then writes
the manifest (names, sizes and checksums), and at last the marker, the file .metadata. So a
checkpoint without a marker is incomplete. A save into a folder with a checkpoint leaves that
checkpoint readable until the new marker replaces the old one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import inspect
import io
import os
import pickle
import re
import time
from typing import Any, ContextManager, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.distributed.checkpoint import filesystem as _filesystem
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _part, _torch_pickle, _zip
from ._cuda import synchronize_all
from ._dcp import DRAFT, LOCK, MANIFEST, MANIFEST_OF, MARKER, SUFFIX, Total, check_choices, name_of
from ._folders import Place, file_system, make_folder, place_of, sync_folder
from ._lib import device_name, without_file_scheme
from ._lock import FolderLock
from ._model import Report
from ._staging import Stager, is_plain
from ._torch_object import is_object

# Maximum number of parts (files) that a rank writes at the same time on a tmpfs.
TMPFS_PARTS = 8


# ---- what a rank has written ---------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class _Written(WriteResult):
    """The result of writing one item, with the values that the manifest lists for it. Its
    storage_data is torch's _StorageInfo, which the marker contains."""
    crc32c: Optional[int] = None
    part_bytes: int = 0


def _item_bytes(item: WriteItem) -> int:
    """Returns the bytes of a planned tensor or shard, and 0 for other objects."""
    data = item.tensor_data
    if data is None:
        return 0
    sizes = data.chunk.sizes if data.chunk is not None else data.size
    return int(sizes.numel() * data.properties.dtype.itemsize)


class SaveReport:
    """The results of a rank's part of a save.

    Attributes:
        bytes: number of bytes written.
        seconds: how long writing them took; with durable=True, until they were on the drive.
        path: the path that carried most bytes, such as "p2p", "staged" or "bounce".
        cpu_copies: how often the CPU copied each byte, on average.
        snapshot: a SnapshotReport if the state was staged by this writer, else None.
    """

    def __init__(self, writer: StorageWriter, reports: Sequence[Report], seconds: float) -> None:
        self.bytes = sum(report.bytes for report in reports)
        self.seconds = seconds
        longest = max(reports, key=lambda report: report.bytes, default=None)
        self.path = longest.path if longest else "none"
        copied = sum(report.cpu_copies * report.bytes for report in reports)
        self.cpu_copies = copied / self.bytes if self.bytes else 0.0
        self.snapshot = writer.stager.report if writer.stager else None

    def __repr__(self) -> str:
        return (f"penstock.torch.SaveReport({self.bytes} bytes in {self.seconds:.3f} s by "
                f"{self.path})")


def _manifest_parts(written: Sequence[WriteResult]) -> List[_part.Part]:
    """Returns the list of parts and their items for a manifest, from the results of all ranks."""
    parts: Dict[str, _part.Part] = {}
    for result in written:
        info = result.storage_data
        part = parts.setdefault(info.relative_path, _part.Part(
            info.relative_path, getattr(result, "part_bytes", 0), []))
        part.items.append(_part.Item(name_of(result.index), info.offset, info.length,
                                     crc32c=getattr(result, "crc32c", None)))
    for part in parts.values():
        part.items.sort(key=lambda item: item.off)
    return [parts[name] for name in sorted(parts)]


# ---- the layout of a part ------------------------------------------------------------

class _PartLayout:
    """The items of one part (file) in the order of their offsets. Each new item starts at the end
    of the item before it."""

    def __init__(self) -> None:
        self.items: List[_part.Item] = []
        self.indices: List[Any] = []
        self.end = 0

    def add_bytes(self, index: Any, data: bytes) -> None:
        """Adds an item that consists of the bytes `data`."""
        item = _part.Item(name_of(index), self.end, len(data))
        if data:
            item.add_bytes(self.end, data)
        self._append(index, item)

    def add_tensor(self, index: Any, tensor: torch.Tensor) -> None:
        """Adds a tensor as the archive that torch.save would make of it."""
        if not is_plain(tensor):
            out = io.BytesIO()
            torch.save(tensor.cpu(), out)
            self.add_bytes(index, out.getvalue())
            return
        tensor = tensor.contiguous()
        pickled = _torch_pickle.dump_tensor(tensor.dtype, tuple(tensor.shape))
        archive = _zip.tensor_archive(self.end, pickled, tensor.nbytes)
        item = _part.Item(name_of(index), self.end, archive.end - self.end, keep=[tensor])
        device = device_name(tensor.device)
        for off, piece in archive.pieces:
            if isinstance(piece, bytes):
                item.add_bytes(off, piece)
            else:
                item.segments.append(_part.Segment(off, tensor.data_ptr(), piece[1], device))
        self._append(index, item)

    def _append(self, index: Any, item: _part.Item) -> None:
        self.items.append(item)
        self.indices.append(index)
        self.end += item.nbytes


# ---- writing -------------------------------------------------------------------------

def _check_format(single_file_per_rank: bool, serialization_format: Any, extensions: Any) -> None:
    """Raises ValueError for arguments with which torch's FileSystemWriter would write another file
    format."""
    written = serialization_format
    if extensions:
        raise ValueError("StorageWriter cannot apply _extensions, because the bytes go straight to "
                         "the file; use torch's FileSystemWriter, whose files StorageReader reads")
    if written is not None and getattr(written, "name", written) != "TORCH_SAVE":
        raise ValueError("StorageWriter writes only serialization_format TORCH_SAVE; use "
                         "HuggingFaceStorageWriter for safetensors")
    if not single_file_per_rank:
        raise ValueError("StorageWriter writes one part per rank, so single_file_per_rank=False is "
                         "not possible; `parts` sets another number")


class _Stop:
    """Object with is_set(), which ends the writing of all parts. It is set when one part has
    failed, or when the caller's object `also` is set."""

    def __init__(self, also: Any) -> None:
        self.failed, self._also = False, also

    def is_set(self) -> bool:
        """Whether the parts must no longer be written."""
        return self.failed or (self._also is not None and bool(self._also.is_set()))


def _striped_part(path: str) -> Optional[str]:
    """Returns the target of `path` if it is a link that a striped save has made to a part on
    another drive, else None. The target of such a link has the same file name and the same folder
    name, and its folder is no checkpoint itself."""
    if not os.path.islink(path):
        return None
    target, folder = os.readlink(path), os.path.dirname(os.path.abspath(path))
    there = os.path.dirname(target)
    if not os.path.isabs(target) or os.path.basename(target) != os.path.basename(path) or \
            os.path.basename(there) != os.path.basename(folder):
        return None
    with contextlib.suppress(OSError):
        if any(name.endswith((MARKER, MANIFEST)) for name in os.listdir(there)):
            return None
    return target


class StorageWriter(FileSystemWriter):
    """Writes checkpoints for torch.distributed.checkpoint.save and async_save.

        dcp.save(state, storage_writer=penstock.torch.StorageWriter("/ckpt/step-100"))

    torch's FileSystemReader reads the result, also without this package.

    Args:
        path: the checkpoint's folder. It is created. With s3://bucket/prefix, the constructor
            returns an ObjectStorageWriter.
        stripe: folders on other drives, over which the parts are spread. The checkpoint's
            folder gets symbolic links to these parts.
        parts: number of parts that this rank writes at the same time. None means one for each
            drive, or several on a tmpfs, where only one thread at a time can write to a file.
        checksums: whether to compute a CRC-32C of each item, and to write a manifest.
        durable: whether the save returns only when the checkpoint survives a power cut.
        overwrite: False refuses to save into a folder with a complete checkpoint. The files of
            an earlier checkpoint in the folder are removed after the new one is complete.
        keep: number of complete checkpoints to keep in the parent folder, the newest ones;
            None keeps all. Incomplete older ones are removed too.
        require, effort, path_name: as `require`, `effort` and `path` of Model.load.
        pool_bytes: most host memory for snapshots of async_save, see Stager.
        progress: a function that is called with the number of bytes that this rank has written
            and the total number, by one thread at a time. The last call has the total twice.
        thread_count: the same as `parts`.
        single_file_per_rank, serialization_format, _extensions: arguments of FileSystemWriter.
            Values that would make other files are refused.
        per_thread_copy_ahead, cache_staged_state_dict: arguments of FileSystemWriter without
            effect here.

    Attributes:
        report: a SaveReport of the last save of this rank, or None.

    Raises PenstockError with errno ENOSPC, before it writes, if the space is too small, and
    EBUSY if another job saves into the folder.
    """

    def __init__(self, path: Any, *, stripe: Sequence[Any] = (), parts: Optional[int] = None,
                 checksums: bool = True, durable: bool = True, overwrite: bool = True,
                 keep: Optional[int] = None, require: str = "any", effort: str = "thrifty",
                 path_name: Optional[str] = None, pool_bytes: Optional[int] = None,
                 progress: Any = None, thread_count: Optional[int] = None,
                 single_file_per_rank: bool = True, per_thread_copy_ahead: int = 10_000_000,
                 cache_staged_state_dict: bool = False, serialization_format: Any = None,
                 _extensions: Optional[Sequence[Any]] = None) -> None:
        check_choices(require, effort)
        _check_format(single_file_per_rank, serialization_format, _extensions)
        super().__init__(without_file_scheme(path), sync_files=durable, overwrite=overwrite,
                         thread_count=thread_count or 1,
                         per_thread_copy_ahead=per_thread_copy_ahead,
                         cache_staged_state_dict=cache_staged_state_dict)
        self.stripe = [os.fspath(without_file_scheme(folder)) for folder in stripe]
        self.parts = parts or thread_count
        self.checksums, self.durable, self.keep = checksums, durable, keep
        self.how = {"require": require, "effort": effort, "path": path_name}
        self.progress = progress
        self.report: Optional[SaveReport] = None
        self.stager: Optional[Stager] = Stager(pool_bytes, may_leave=True)
        # An object with is_set(), such as a threading.Event, that ends a save early.
        self.stop: Any = None
        self._folder_lock: Any = None  # a FolderLock or an ObjectLock
        self._draft = b""  # the marker of the save that runs
        self._coordinator = False

    def __new__(cls, path: Any = None, *_args: Any, **_options: Any) -> Any:
        if cls is StorageWriter and is_object(str(path)):
            from ._dcp_object import ObjectStorageWriter
            return super().__new__(ObjectStorageWriter)
        return super().__new__(cls)

    def __getstate__(self) -> Dict[str, Any]:
        if self.stager is not None and self.stager.unwritten_bytes:
            error = MemoryError(
                f"the snapshot pool is too small: {self.stager.unwritten_bytes} bytes did not fit, "
                "and in process mode another process cannot write them; set pool_bytes, or use "
                "thread mode")
            self.stager.release(error)
            raise error
        return {**self.__dict__, "stager": None, "progress": None, "stop": None, "_draft": b"",
                "_folder_lock": None}

    # ---- staging, for async_save ----

    def stage(self, state_dict: Any) -> Any:
        """Returns a copy of the state in host memory, see Stager."""
        if self.stager is None:
            self.stager = Stager(may_leave=True)
        return self.stager.stage(state_dict)

    @property
    def should_synchronize_after_execute(self) -> bool:
        return True

    def synchronize_staging(self) -> None:
        """Waits until the save has written all tensors that stage() did not copy to the snapshot
        pool. The program must not change these tensors before they are written."""
        if self.stager is not None:
            self.stager.synchronize_staging()

    def close(self) -> None:
        """Frees the memory for snapshots."""
        if self.stager is not None:
            self.stager.close()

    # ---- planning ----

    @property
    def folder(self) -> str:
        """The checkpoint's folder."""
        return os.fspath(self.path)

    def _is_local(self) -> bool:
        """Whether each rank has a marker of its own (use_collectives=False)."""
        return self.rank is not None and not getattr(self, "use_collectives", True)

    def _marker(self) -> str:
        return f"__{self.rank}{MARKER}" if self._is_local() else MARKER

    def reset(self, checkpoint_id: Any = None) -> None:
        self._unlock()  # An earlier save may have failed on another rank.
        super().reset(without_file_scheme(checkpoint_id))
        self.report = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        setup = super().set_up_storage_writer
        if len(inspect.signature(setup).parameters) == 1:  # before torch 2.7
            setup(is_coordinator)
        else:
            setup(is_coordinator, *args, **kwargs)
        if self.stager is not None:
            self.stager.begin()
        self.rank = kwargs.get("rank", getattr(self, "rank", None))
        self._coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for folder in {self.folder, *self._drives()}:
            make_folder(folder, self.durable)
        if self._coordinator or self._is_local():
            self._lock()
            if os.path.exists(os.path.join(self.folder, self._marker())) and not self.overwrite:
                self._unlock()
                raise FileExistsError(errno.EEXIST, "a checkpoint exists there, and overwrite is "
                                      "False", self.folder)
            if self._is_local() and os.path.exists(os.path.join(self.folder, MARKER)):
                self._unlock()
                # After this save, readers would still read the checkpoint of all ranks, but the
                # save would have removed this rank's parts of that checkpoint.
                raise FileExistsError(errno.EEXIST, "a checkpoint of all ranks exists there, which "
                                      "a save of one rank (use_collectives=False) cannot replace",
                                      self.folder)
        return dataclasses.replace(plan, storage_data=place_of(self._drives()[0]))

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        try:
            self._check_space(plans)
        except BaseException:
            self._unlock()
            raise
        ranks = [self.rank] if self._is_local() else range(len(plans))
        return [dataclasses.replace(plan, storage_data=_filesystem._StoragePrefix(f"__{rank}_"))
                for rank, plan in zip(ranks, plans)]

    def _check_space(self, plans: Sequence[SavePlan]) -> None:
        """Raises an error if the file systems have too little space for all plans."""
        needed: Dict[Tuple[Any, int], int] = {}
        free: Dict[Tuple[Any, int], int] = {}
        for plan in plans:
            place = plan.storage_data
            if not isinstance(place, Place):
                return
            key = ("", place.total) if place.shared else (place.host, place.device)
            # If SavePlanner uses the plan of an earlier save again, the plan has no items, but it
            # has the number of bytes.
            nbytes = getattr(plan, "nbytes", None)
            needed[key] = needed.get(key, 0) + (
                sum(map(_item_bytes, plan.items)) if nbytes is None else nbytes)
            free[key] = min(place.free, free.get(key, place.free))
        for key, nbytes in needed.items():
            if nbytes > free[key]:
                raise OSError(errno.ENOSPC, f"the checkpoint needs {nbytes} bytes, but "
                              f"{key[0] or 'the file system'} has only {free[key]}; free space, "
                              "or remove old checkpoints with penstock ckpt prune", self.folder)

    def _drives(self) -> List[str]:
        """Returns the folders into which the parts are written: one on each drive of `stripe`, or
        the checkpoint's folder."""
        name = os.path.basename(os.path.normpath(self.folder))
        return [os.path.join(folder, name) for folder in self.stripe] or [self.folder]

    def _lock(self) -> None:
        """Locks the folder against saves of other jobs."""
        if self._folder_lock is None:
            name = f"__{self.rank}{LOCK}" if self._is_local() else LOCK
            self._folder_lock = FolderLock(self.folder, name)

    def _unlock(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()
            self._folder_lock = None

    def _at_work(self) -> ContextManager[None]:
        lock = self._folder_lock
        return lock.at_work() if lock is not None else contextlib.nullcontext()

    def abandon(self) -> None:
        """Unlocks the folder. Must be called when a save that has begun is given up."""
        self._unlock()

    # ---- the parts ----

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        future: "Future[List[WriteResult]]" = Future()
        try:
            with self._at_work():
                future.set_result(self._write_parts(plan, planner))
        except BaseException as error:
            self._unlock()
            if self.stager is not None:
                self.stager.release(error)
            raise
        return future

    def _write_parts(self, plan: SavePlan, planner: SavePlanner) -> List[WriteResult]:
        started = time.monotonic()
        layouts = self._lay_out(plan, planner)
        total = sum(layout.end for layout in layouts)
        drives = self._drives()
        names = self._part_names(plan.storage_data.prefix, len(layouts))
        link_first = self._may_link_first()
        tell = Total(self.progress, total)
        synchronize_all(segment.device for layout in layouts for item in layout.items
                        for segment in item.segments)
        stop = _Stop(self.stop)

        def write(i: int) -> Report:
            folder = drives[i % len(drives)]
            try:
                if link_first:
                    self._link(folder, names[i])
                report = _part.write_part(self._file(folder, names[i]), layouts[i].items,
                                          checksums=self.checksums, durable=self.durable,
                                          stop=stop, tell=tell.function(i), **self.how)
                self._link(folder, names[i])
            except BaseException:
                stop.failed = True  # Stops the other parts, which are useless, too.
                raise
            return report

        try:
            with concurrent.futures.ThreadPoolExecutor(max(1, len(layouts))) as pool:
                reports = list(pool.map(write, range(len(layouts))))
            tell.finish()
        except BaseException:
            self._remove_parts(names)
            raise
        self.report = SaveReport(self, reports, time.monotonic() - started)
        if self.stager is not None:
            self.stager.release(None)
        return [_Written(index, item.nbytes,
                         _filesystem._StorageInfo(names[i], item.off, item.nbytes),
                         item.crc32c, layout.end)
                for i, layout in enumerate(layouts)
                for index, item in zip(layout.indices, layout.items)]

    def _remove_parts(self, names: Sequence[str]) -> None:
        """Removes the parts of a failed save, so that the next save can use their space."""
        for folder in {*self._drives(), self.folder}:
            for name in names:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))

    def _may_link_first(self) -> bool:
        """Returns whether the links to parts on other drives may be made before the parts exist. If
        a save then dies, it leaves no part without a link, so the next save or prune finds all
        parts. But in a complete checkpoint without a manifest, a link without a target counts as
        damage."""
        names = os.listdir(self.folder)
        return self._marker() not in names or any(name.endswith(MANIFEST) for name in names)

    def _link(self, folder: str, name: str) -> None:
        """Makes a symbolic link in the checkpoint's folder to a part on another drive."""
        if folder == self.folder:
            return
        link, scratch = os.path.join(self.folder, name), os.path.join(self.folder, f".{name}.link")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        os.symlink(os.path.abspath(os.path.join(folder, name)), scratch)
        os.replace(scratch, link)

    def _lay_out(self, plan: SavePlan, planner: SavePlanner) -> List[_PartLayout]:
        """Returns the layouts of this rank's parts (files). In each part, byte objects and short
        tensors come first, so that the longer tensors after them follow each other with few
        gaps."""
        count = self.parts or self._usual_parts()
        buckets = [plan.items] if count == 1 else \
            _filesystem._split_by_size_and_type(count, plan.items)
        layouts = []
        for bucket in buckets:
            layout = _PartLayout()
            ordered = sorted(bucket, key=lambda item: (item.type != WriteItemType.BYTE_IO,
                                                       _item_bytes(item) >= _zip.LONG))
            for item in ordered:
                data = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    layout.add_bytes(item.index, data.getvalue())
                else:
                    layout.add_tensor(item.index, data.detach())
            if layout.items:
                layouts.append(layout)
        return layouts

    def _usual_parts(self) -> int:
        if self.stripe:
            return len(self.stripe)
        if file_system(os.stat(self.folder).st_dev) != "tmpfs":
            return 1
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        return max(1, min(TMPFS_PARTS, len(os.sched_getaffinity(0)) // max(1, ranks)))

    def _part_names(self, prefix: str, count: int) -> List[str]:
        """Returns `count` names for new parts. No file of an earlier save has one of these names.
        Also checks the folders on the other drives, because another checkpoint may use folders of
        the same name."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)" + re.escape(SUFFIX))
        taken = [int(match[1]) for folder in {self.folder, *self._drives()}
                 for match in map(pattern.fullmatch, self._names(folder)) if match]
        first = max(taken, default=-1) + 1
        return [f"{prefix}{first + i}{SUFFIX}" for i in range(count)]

    # ---- the commit ----

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        try:
            with self._at_work():
                self._commit(metadata, results)
        finally:
            self._unlock()

    def _commit(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        # The planner may pass the Metadata object of the last save. That object names the manifest
        # of the last save, but this save may write no manifest.
        metadata.__dict__.pop(MANIFEST_OF, None)
        written = [result for of_rank in results for result in of_rank]
        metadata.storage_data = {result.index: result.storage_data for result in written}
        if hasattr(metadata, "storage_meta") and hasattr(self, "storage_meta"):
            metadata.storage_meta = self.storage_meta()
        version = getattr(_filesystem, "CURRENT_DCP_VERSION", None)
        if version is not None:
            metadata.version = version
        keep = {result.storage_data.relative_path for result in written}
        if self.checksums:
            manifest = self._free_name(MANIFEST)
            keep.add(manifest)
            setattr(metadata, MANIFEST_OF, manifest)
            marker = [self._write_draft(metadata)]
            _part.write_manifest(self._file(self.folder, manifest), self._ranks(results),
                                 _manifest_parts(written) + marker)
        else:
            self._write_draft(metadata)
        self._publish_marker()
        self._remove_strays(keep)
        if self.keep is not None and not self._is_local():
            _part.prune(self._parent(), max(1, self.keep))

    def _ranks(self, results: Sequence[Any]) -> int:
        """Returns the number of ranks that write this checkpoint."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if self._is_local() and distributed else \
            len(results)

    def _free_name(self, end: str) -> str:
        """Returns a file name that ends with `end` and that no file in the folder has. An earlier
        checkpoint in the folder needs its files until the new marker is written."""
        start = f"__{self.rank}." if self._is_local() else ""
        names = [f"{start}{end}", *(f"{start}{i}.{end}" for i in range(2, 1000))]
        taken = set(self._names(self.folder))
        return next(name for name in names if name not in taken)

    def _write_draft(self, metadata: Metadata) -> _part.Part:
        """Writes the marker's bytes to a file with a temporary name. Returns the marker's entry for
        the manifest, with its checksum. A manifest describes a checkpoint only if the checkpoint's
        marker has this checksum."""
        data = self._draft = pickle.dumps(metadata)
        item = _part.Item("", 0, len(data))
        item.add_bytes(0, data)
        _part.write_part(self._file(self.folder, self._marker() + DRAFT), [item],
                         checksums=self.checksums, durable=self.durable)
        return _part.Part(self._marker(), len(data), [item])

    def _publish_marker(self) -> None:
        marker = os.path.join(self.folder, self._marker())
        if self.durable:
            sync_folder(self.folder)  # The parts' links must not appear after the marker.
        os.replace(marker + DRAFT, marker)
        if self.durable:
            sync_folder(self.folder)

    def _remove_strays(self, keep: Set[str]) -> None:
        """Removes the files of earlier saves from the folder. `keep` has the names of the new
        checkpoint's files. Removes markers of single ranks first, then manifests, and then parts,
        so that after an interruption no remaining file refers to a removed file."""
        own = re.compile(rf"__{self.rank}[_.].*") if self._is_local() else \
            re.compile(r"__.*|(\d+\.)?" + re.escape(MANIFEST))
        ends = ([] if self._is_local() else [MARKER]) + [MANIFEST, SUFFIX]
        names = [name for name in self._names(self.folder) if own.fullmatch(name)]
        for name in [name for end in ends for name in names if name.endswith(end)]:
            if name not in keep:
                self._remove(name)

    # ---- files; ObjectStorageWriter has objects instead ----

    def _file(self, folder: str, name: str) -> str:
        return os.path.join(folder, name)

    def _parent(self) -> str:
        return os.path.dirname(os.path.abspath(self.folder))

    def _names(self, folder: str) -> Sequence[str]:
        return os.listdir(folder)

    def _remove(self, name: str) -> None:
        """Removes a file. If the file is a link to a part on another drive, removes this part
        too."""
        path = os.path.join(self.folder, name)
        target = _striped_part(path)
        for file in filter(None, (target, path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)


__all__ = ["SaveReport", "StorageWriter"]
