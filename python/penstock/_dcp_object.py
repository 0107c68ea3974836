# SPDX-License-Identifier: Apache-2.0
"""ObjectStorageWriter and ObjectStorageReader: checkpoints of torch.distributed.checkpoint in an
object store.

They write and read the same contents as StorageWriter and StorageReader, but as objects below a
common prefix: parts with the tensors, a manifest with checksums, and the marker (.metadata). So
torch's FsspecReader reads the result, and these classes read what FsspecWriter wrote. A part
appears when it is complete, and the marker is the last object of a save. ObjectLock lets only one
job at a time save below a prefix."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
from typing import Any, List, Optional, Sequence, Union

from torch.distributed.checkpoint.planner import SavePlan

from . import _s3
from ._dcp import DRAFT, LOCK, MARKER
from ._dcp_read import StorageReader
from ._dcp_write import StorageWriter
from ._lib import NotFoundError
from ._object_lock import ObjectLock
from ._torch_object import is_object, read_object
from ._transfer import CREATE, REPLACE, WRITE, WRITING, Storage, bytes_place, segments_of


class _Prefix:
    """The objects of one checkpoint: s3://bucket/prefix, with options after a question mark.

    It also has the methods of torch's FileSystem by which torch's reader reads the marker."""

    def __init__(self, url: Any) -> None:
        self.url = str(url)
        if not is_object(self.url):
            raise ValueError(f"{self.url} is not of the form s3://bucket/prefix")
        self.name, question, options = self.url.partition("?")
        self.name = self.name.rstrip("/")
        self._options = question + options

    @property
    def parent(self) -> str:
        """The URL of the parent prefix, which is the name up to the last slash."""
        return self.name.rpartition("/")[0] + self._options

    def object(self, name: str) -> str:
        """Returns the URL of an object."""
        return f"{self.name}/{_s3.quote(name)}{self._options}"

    def exists(self, name: str) -> bool:
        """Returns whether an object exists."""
        try:
            _s3.ask(self.object(name), "HEAD")
        except NotFoundError:
            return False
        return True

    def names(self) -> List[str]:
        """Returns the names of the objects below the prefix."""
        bucket, _, prefix = self.name[len("s3://"):].partition("/")
        start = _s3.unquote(prefix.replace("+", "%2B")) + "/" if prefix else ""
        query = {"delimiter": "/", **({"prefix": start} if start else {})}
        return [_s3.text_of(row, "Key")[len(start):]
                for page in _s3.pages(f"s3://{bucket}/{self._options}", query)
                for row in page.findall("Contents")]

    def etag(self, name: str) -> str:
        """Returns the ETag of an object, or "" if it does not exist."""
        try:
            return _s3.ask(self.object(name), "HEAD").etag
        except NotFoundError:
            return ""

    def read(self, name: str) -> bytes:
        """Returns the bytes of an object."""
        return bytes(read_object(self.object(name)))

    def write(self, name: str, data: bytes, *, new: bool = False) -> None:
        """Writes an object. If `new` is true and the object exists, raises an error with errno
        EEXIST."""
        flags = WRITE | (CREATE if new else REPLACE)
        with Storage(self.object(name), f"{self.name}/{name}", flags, len(data)) as storage:
            place = bytes_place(data)
            storage.move(WRITING, segments_of(place, 0, to_memory=False))
            storage.commit()

    def remove(self, name: str) -> None:
        """Removes an object."""
        _s3.ask(self.object(name), "DELETE")

    # ---- torch's FileSystem ----

    @staticmethod
    def init_path(path: Any) -> str:
        """Returns the path."""
        return str(path)

    @staticmethod
    def concat_path(path: Any, suffix: str) -> str:
        """Returns `suffix`, because the names of objects are relative to this prefix."""
        del path
        return suffix

    @contextlib.contextmanager
    def create_stream(self, path: Union[str, Any], mode: str) -> Any:
        """Opens an object for reading."""
        assert mode == "rb", mode
        yield io.BytesIO(read_object(self.object(str(path))))


class _AtPrefix:
    """Base class of ObjectStorageWriter and ObjectStorageReader. Its methods replace those of torch
    that regard the checkpoint's location as a folder, because here it is a prefix of objects."""

    _prefix: _Prefix

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Returns whether `checkpoint_id` is the URL of objects, which this class can use."""
        return is_object(str(checkpoint_id))

    @property
    def checkpoint_id(self) -> Any:
        """The prefix, without options."""
        return self._prefix.name

    @property
    def folder(self) -> str:
        return self._prefix.name


class ObjectStorageWriter(_AtPrefix, StorageWriter):
    """Writes checkpoints for torch.distributed.checkpoint to an object store.

        dcp.save(state, storage_writer=penstock.torch.ObjectStorageWriter("s3://bucket/step-100"))

    torch's FsspecReader reads the result, also without this package.

    Args:
        path: s3://bucket/prefix, with options as ObjectClient.url writes them.
        parts: number of parts that this rank writes at the same time.
        checksums, keep: as in StorageWriter. `keep` counts the checkpoints below the parent of
            this prefix.
        overwrite: False refuses to save below a prefix with a complete checkpoint. The objects of
            an earlier checkpoint there are removed after the new one is complete.
        stripe: refused unless it is empty, because a store spreads its objects itself.
        require, effort, path_name, pool_bytes, progress, thread_count, single_file_per_rank,
            per_thread_copy_ahead, cache_staged_state_dict, serialization_format, _extensions: as
            in StorageWriter.

    Raises OSError with errno EBUSY if another job saves below the prefix. If a job was killed
    during its save, the next save below the prefix first waits 20 s.

    Attributes:
        report: a SaveReport of the last save of this rank, or None.
    """

    def __init__(self, path: Any, *, parts: Optional[int] = 1, checksums: bool = True,
                 durable: bool = True, overwrite: bool = True, keep: Optional[int] = None,
                 require: str = "any", effort: str = "thrifty", path_name: Optional[str] = None,
                 pool_bytes: Optional[int] = None, progress: Any = None,
                 stripe: Sequence[Any] = (), thread_count: Optional[int] = None,
                 single_file_per_rank: bool = True, per_thread_copy_ahead: int = 10_000_000,
                 cache_staged_state_dict: bool = False, serialization_format: Any = None,
                 _extensions: Optional[Sequence[Any]] = None) -> None:
        if stripe:
            raise ValueError("a checkpoint in an object store has no stripes; a store spreads its "
                             "objects itself")
        self._prefix = _Prefix(path)
        if keep is not None and self._prefix.parent.partition("?")[0] == "s3:/":
            raise ValueError(f"{self._prefix.name} is a bucket, so no prefix has it and `keep` "
                             "cannot count the checkpoints beside it")
        super().__init__(path, parts=parts or 1, checksums=checksums, durable=durable,
                         overwrite=overwrite, keep=keep, require=require, effort=effort,
                         path_name=path_name, pool_bytes=pool_bytes, progress=progress,
                         thread_count=thread_count, single_file_per_rank=single_file_per_rank,
                         per_thread_copy_ahead=per_thread_copy_ahead,
                         cache_staged_state_dict=cache_staged_state_dict,
                         serialization_format=serialization_format, _extensions=_extensions)

    def reset(self, checkpoint_id: Any = None) -> None:
        super().reset(checkpoint_id)
        if checkpoint_id:
            self._prefix = _Prefix(checkpoint_id)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._coordinator or self._is_local():
            self._lock()
            try:
                self._check_earlier()
            except BaseException:
                self._unlock()
                raise
        return dataclasses.replace(plan, storage_data=None)

    def _check_earlier(self) -> None:
        """Raises FileExistsError if the save must not replace the checkpoint below the prefix."""
        if not self.overwrite and self._prefix.exists(self._marker()):
            raise FileExistsError(errno.EEXIST, "a checkpoint exists there, and overwrite is "
                                  "False", self.folder)
        if self._is_local() and self._prefix.exists(MARKER):
            raise FileExistsError(errno.EEXIST, "a checkpoint of all ranks exists there, which "
                                  "a save of one rank (use_collectives=False) cannot replace",
                                  self.folder)

    def _lock(self) -> None:
        if self._folder_lock is None:
            name = f"__{self.rank}{LOCK}" if self._is_local() else LOCK
            self._folder_lock = ObjectLock(self._prefix, name)

    def _publish_marker(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.check()
        self._prefix.write(self._marker(), self._draft)
        self._remove(self._marker() + DRAFT)

    # ---- objects in place of files ----

    def _file(self, folder: str, name: str) -> str:
        return self._prefix.object(name)

    def _parent(self) -> str:
        return self._prefix.parent

    def _names(self, folder: str) -> Sequence[str]:
        return self._prefix.names()

    def _remove(self, name: str) -> None:
        self._prefix.remove(name)

    def _remove_parts(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self._prefix.remove(name)

    def _drives(self) -> List[str]:
        return [self.folder]

    def _may_link_first(self) -> bool:
        return False


class ObjectStorageReader(_AtPrefix, StorageReader):
    """Reads checkpoints for torch.distributed.checkpoint from an object store, also those that
    torch's FsspecWriter wrote.

        dcp.load(state, storage_reader=penstock.torch.ObjectStorageReader("s3://bucket/step-100"))

    Args:
        path: s3://bucket/prefix, with options as ObjectClient.url writes them.
        checksums, require, effort, path_name, threads, progress, _extensions: as in
            StorageReader.

    Attributes:
        report: a LoadReport of the last load of this rank, or None.
    """

    def __init__(self, path: Any, *, checksums: bool = True, require: str = "any",
                 effort: Optional[str] = None, path_name: Optional[str] = None, threads: int = 4,
                 progress: Any = None, _extensions: Optional[Sequence[Any]] = None) -> None:
        self._prefix = _Prefix(path)
        super().__init__(path, checksums=checksums, require=require, effort=effort,
                         path_name=path_name, threads=threads, progress=progress,
                         _extensions=_extensions)
        self.fs = self._prefix

    def reset(self, checkpoint_id: Any = None) -> None:
        super().reset(checkpoint_id)
        if checkpoint_id:
            self._prefix = self.fs = _Prefix(checkpoint_id)

    def file(self, name: str) -> str:
        return self._prefix.object(name)

    def _url(self) -> str:
        return self._prefix.url

    def _is_begun(self) -> bool:
        return bool(self._prefix.names())


__all__ = ["ObjectStorageReader", "ObjectStorageWriter"]
