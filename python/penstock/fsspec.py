# SPDX-License-Identifier: Apache-2.0
"""The file system "penstock" for fsspec: objects of an S3 store.

    with fsspec.open("penstock://bucket/key", endpoint="http://store:9000") as f:
        header = f.read(8)

Programs that use fsspec, such as pandas, datasets and torch's FsspecWriter, find it through the
package's entry point. `register` makes it also the file system of another protocol, such as
"s3"."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import errno
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from ._lib import NotFoundError, PenstockError
from ._objects import ObjectClient, ObjectInfo
from ._transfer import READING, WRITING, Storage, bytes_place, segments_of

# Maximum number of deletions that run at the same time.
DELETES = 16


class PenstockFileSystem(AbstractFileSystem):
    """A file system of fsspec over ObjectClient. A path is "bucket/key".

    Args:
        endpoint, profile, region, anonymous, require, effort, rdma, rdma_transports,
            rdma_addresses: as in ObjectClient. endpoint_url and anon are other names of endpoint
            and anonymous, as s3fs calls them; key, secret and token are those of access_key,
            secret_key and session_token.
        storage_options: arguments of fsspec's AbstractFileSystem.
    """

    protocol = ("penstock", "s3", "s3a")
    root_marker = ""

    def __init__(self, endpoint: Optional[str] = None, *, profile: Optional[str] = None,
                 region: Optional[str] = None, anonymous: bool = False, require: str = "any",
                 effort: str = "thrifty", endpoint_url: Optional[str] = None, anon: bool = False,
                 key: Optional[str] = None, secret: Optional[str] = None,
                 token: Optional[str] = None, rdma: Optional[str] = None,
                 rdma_transports: Optional[str] = None, rdma_addresses: Optional[str] = None,
                 **storage_options: Any) -> None:
        super().__init__(**storage_options)
        self.client = ObjectClient(endpoint or endpoint_url, profile=profile, region=region,
                                   access_key=key, secret_key=secret, session_token=token,
                                   anonymous=anonymous or anon, require=require, effort=effort,
                                   rdma=rdma, rdma_transports=rdma_transports,
                                   rdma_addresses=rdma_addresses)

    # ---- questions ----

    def info(self, path: str, **_: Any) -> Dict[str, Any]:
        """Returns the description of an object or of a folder. A folder is a bucket, or a name that
        is followed by a slash in some keys."""
        path = self._strip_protocol(path)
        if "/" in path:
            try:
                return _entry(self.client.info(path))
            except NotFoundError:
                pass
        below = self.client.list(path + "/", delimiter="/")
        if next(below, None) is None and "/" in path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> List[Any]:
        """Lists the objects and folders in a folder."""
        path = self._strip_protocol(path)
        if not path:
            raise PermissionError(errno.EPERM, "buckets cannot be listed; name one", path)
        found = [_entry(info) for info in self.client.list(path + "/", delimiter="/")
                 if info.name != path + "/"]
        if not found:
            found = [self.info(path)]
            found = [] if found[0]["type"] == "directory" else found
        return found if detail else [row["name"] for row in found]

    def find(self, path: str, maxdepth: Optional[int] = None, withdirs: bool = False,
             detail: bool = False, **kwargs: Any) -> Any:
        """Lists all objects below a folder, by one request for each 1,000 objects."""
        path = self._strip_protocol(path)
        if maxdepth is not None or withdirs or "/" not in path + "/" or not path:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        rows = [_entry(info) for info in self.client.list(path + "/")]
        rows = [row for row in rows if row["type"] == "file"]
        if not rows and self.exists(path) and self.isfile(path):
            rows = [self.info(path)]
        return {row["name"]: row for row in rows} if detail else [row["name"] for row in rows]

    def created(self, path: str) -> datetime.datetime:
        """Returns the time of an object's last change."""
        return self.modified(path)

    def modified(self, path: str) -> datetime.datetime:
        """Returns the time of an object's last change."""
        when = self.info(path).get("mtime")
        if when is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return datetime.datetime.fromtimestamp(when, datetime.timezone.utc)

    # ---- changes ----

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None,
                 **_: Any) -> bytes:
        """Returns the bytes of an object, or a part of them; negative limits count from the end."""
        path = self._strip_protocol(path)
        with self.client._open(path, prefetch=not start) as storage:
            first, last, _step = slice(start, end).indices(storage.length)
            return self.client._read(storage, first, max(0, last - first))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Writes an object. With mode="create", the object must not exist: the store also refuses
        the write if another client has created the object meanwhile."""
        path, new = self._strip_protocol(path), _is_new(mode)
        with _exists_error(path):
            self.client._write(path, bytes_place(value), new=new)

    def put_file(self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK,
                 mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a local file to an object. `mode` is as in pipe_file."""
        if not _is_new(mode) or os.path.isdir(lpath):
            super().put_file(lpath, rpath, callback, **kwargs)
            return
        with open(lpath, "rb") as source, self.open(rpath, "xb", **kwargs) as f:
            callback.set_size(os.fstat(source.fileno()).st_size)
            while data := source.read(f.blocksize):
                callback.relative_update(f.write(data))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies an object inside the store."""
        if not self.isdir(path1):
            self.client.copy(self._strip_protocol(path1), self._strip_protocol(path2))

    def rm_file(self, path: str) -> None:
        """Deletes an object."""
        path = self._strip_protocol(path)
        self.client.info(path)  # Raises FileNotFoundError, which the store's DELETE does not.
        self.client.delete(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        """Deletes objects. If `recursive` is true, it also deletes the objects in folders. A folder
        exists only as long as an object is in it."""
        names = [name for root in ([path] if isinstance(path, str) else path)
                 for name in self.expand_path(root)]
        if recursive:
            names = [name for root in names for name in self.find(root, maxdepth=maxdepth)]
        with concurrent.futures.ThreadPoolExecutor(DELETES) as pool:
            list(pool.map(self.client.delete if recursive else self.rm_file, names))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Does nothing: a folder exists as long as an object is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: a folder exists as long as an object is in it."""

    def rmdir(self, path: str) -> None:
        """Does nothing: a folder exists as long as an object is in it."""

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
              cache_options: Any = None, **kwargs: Any) -> "PenstockFile":
        if mode == "ab":
            raise NotImplementedError("an object cannot be appended to; write it anew")
        return PenstockFile(self, path, mode, block_size or 8 << 20, autocommit,
                            cache_options=cache_options, **kwargs)


class PenstockFile(AbstractBufferedFile):
    """An open object. What is written becomes visible at the close.

    With the mode "rb" and without the object's size, the open requests the size and the first bytes
    at the same time. With the mode "xb", the open fails if the object exists, and so does the
    close."""

    def __init__(self, fs: Any, path: str, mode: str = "rb", block_size: Any = "default",
                 autocommit: bool = True, cache_type: str = "readahead", cache_options: Any = None,
                 size: Optional[int] = None, **kwargs: Any) -> None:
        self._storage: Optional[Storage] = None
        self._process = 0  # The process that opened the storage. A child of fork cannot use it.
        self.fs, self.path, self.mode = fs, path, mode  # _opened needs them before the base.
        if mode == "rb" and size is None:
            size = self._opened(prefetch=True).length
        super().__init__(fs, path, mode, block_size, autocommit, cache_type, cache_options, size,
                         **kwargs)
        if mode == "xb":
            try:
                with _exists_error(path):
                    self._opened(0)
            except BaseException:
                self.closed = True  # The base's finalizer would write an empty object.
                raise

    def _opened(self, length: Optional[int] = None, prefetch: bool = False) -> Storage:
        if self._storage is None or self.mode == "rb" and self._process != os.getpid():
            self._storage = self.fs.client._open(self.path, length, new=self.mode == "xb",
                                                 prefetch=prefetch)
            self._process = os.getpid()
        return self._storage

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self._read(bytearray(end - start), start))

    def _read(self, data: bytearray, start: int) -> bytearray:
        place = bytes_place(data)
        self._opened(prefetch=start == 0).move(
            READING, segments_of(place, start, to_memory=True), **self.fs.client._how)
        return data

    def _initiate_upload(self) -> None:
        self._opened(0)

    def _upload_chunk(self, final: bool = False) -> bool:
        data = self.buffer.getbuffer()
        place = bytes_place(data)
        self._opened(0).move(WRITING, segments_of(place, self.offset, to_memory=False),
                             **self.fs.client._how)
        del place, data
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Makes the written object visible in the store under its name."""
        with _exists_error(self.path):
            self._opened(0).commit()
        self._end()

    def discard(self) -> None:
        """Discards the bytes that the program has written to the object."""
        self._end()

    def _end(self) -> None:
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def close(self) -> None:
        """Closes the object. If the program has written to the object, the object becomes
        visible."""
        try:
            super().close()
        finally:
            if self.mode == "rb" or self.autocommit:
                self._end()


def _entry(info: ObjectInfo) -> Dict[str, Any]:
    """Returns fsspec's description of an object or folder."""
    name = info.name.rstrip("/")
    if info.name.endswith("/") and not info.etag:
        return {"name": name, "size": 0, "type": "directory"}
    return {"name": info.name, "size": info.nbytes, "type": "file", "ETag": info.etag,
            "mtime": info.modified}


def _is_new(mode: str) -> bool:
    """Returns whether a mode of pipe_file refuses an object that exists."""
    if mode not in ("overwrite", "create"):
        raise ValueError(f"mode must be 'overwrite' or 'create', not {mode!r}")
    return mode == "create"


@contextlib.contextmanager
def _exists_error(path: str) -> Iterator[None]:
    """Raises FileExistsError if the `with` block raises a PenstockError with errno EEXIST."""
    try:
        yield
    except PenstockError as error:
        if error.errno != errno.EEXIST:
            raise
        raise FileExistsError(errno.EEXIST, str(error), path) from error


def register(protocol: str = "s3", clobber: bool = True) -> None:
    """Makes PenstockFileSystem the file system of a protocol in this process."""
    fsspec.register_implementation(protocol, PenstockFileSystem, clobber=clobber)


__all__: Tuple[str, ...] = ("PenstockFile", "PenstockFileSystem", "register")
