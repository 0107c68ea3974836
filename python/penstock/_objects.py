# SPDX-License-Identifier: Apache-2.0
"""ObjectClient: objects of an S3 store, straight from and to the memory of tensors.

The bytes of objects move through the C library's storage s3://. _s3.py makes the small requests:
for the size of an object, for lists, and to delete."""

from __future__ import annotations

import datetime
import errno
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from . import _s3
from ._dtypes import BITS
from ._lib import NotFoundError, PenstockError
from ._memory import allocate_as
from ._model import CLASSES, EFFORTS, convert, framework_of
from ._tensor import Place, Tensor, place_of
from ._transfer import (CREATE, PREFETCH, READING, REPLACE, WRITE, WRITING, Storage, TransferReport,
                        bytes_place, segments_of)


# The values of the argument `rdma`, and of the option of the same name of s3:// URLs.
RDMA = ("auto", "off", "on", "require")


class ObjectInfo(NamedTuple):
    """An object of a store.

    Attributes:
        name: its bucket and key, "bucket/key"; only the key if the client has a bucket.
        nbytes: its length in bytes.
        etag: the entity tag, by which the store identifies this version, without quotes.
        modified: the time of its last change, in seconds since 1970; None if unknown.
    """
    name: str
    nbytes: int
    etag: str
    modified: Optional[float]


class ObjectClient:
    """Moves objects between an S3 store and the memory of tensors, in host memory or on a GPU.

        client = penstock.ObjectClient("http://store:9000")
        client.put("weights/layer0", tensor)
        client.get("weights/layer0", out=other)

    The keys come from the environment (AWS_ACCESS_KEY_ID and the like), from a profile in ~/.aws,
    or from the arguments.

    Args:
        endpoint: the store's address, http://HOST:PORT or https://HOST. Default:
            AWS_ENDPOINT_URL, then the profile's, then Amazon S3.
        bucket: a bucket. The names of objects are then keys in it. Without a bucket, a name is
            "bucket/key" or "s3://bucket/key".
        profile: the profile in ~/.aws.
        access_key, secret_key, session_token: keys that replace those of the environment and of
            ~/.aws. A URL of this client then names a profile that only this process has.
        region: the region; default: that of the environment or the profile, else "us-east-1".
        anonymous: whether to send requests without a signature.
        path_style: whether the bucket is in the path of a request, or in the name of the host;
            None chooses by the endpoint.
        insecure: True does not check the server's certificate.
        timeout: longest wait for an answer, in whole seconds; None for the library's choice.
        rdma: when the store moves bytes by S3 over RDMA instead of HTTP: "off": never; "auto": if
            it is on this host; "on": also if it is on another host; "require": nothing else is
            allowed. None for PENSTOCK_RDMA, or "auto".
        rdma_transports: the transports of S3 over RDMA, the preferred one first, such as
            "shm1,tcp1". None for PENSTOCK_RDMA_TRANSPORTS, or "shm1,rc1".
        rdma_addresses: the numeric addresses of this host's network cards for S3 over RDMA, such as
            "192.0.2.1,192.0.2.2". Each transfer uses the card that is nearest to its memory. If it
            fails, the library repeats it through the next card. None for PENSTOCK_RDMA_ADDRESSES,
            or the address that leads to the store.
        require, effort: as in load_file. With require="no-cpu-copy", an object that the store
            cannot move by RDMA to or from a GPU is an error. No object meets "direct".

    Any number of threads may use a client at the same time.

    put_rdma, get_rdma, put_bytes, get_bytes, get_bytes_range, size, list_objects and exists are
    the methods that storage classes for torch.distributed.checkpoint over RDMA call on a client.
    """

    def __init__(self, endpoint: Optional[str] = None, *, bucket: Optional[str] = None,
                 profile: Optional[str] = None, access_key: Optional[str] = None,
                 secret_key: Optional[str] = None, session_token: Optional[str] = None,
                 region: Optional[str] = None,
                 anonymous: bool = False, path_style: Optional[bool] = None,
                 insecure: bool = False, timeout: Optional[int] = None, require: str = "any",
                 effort: str = "thrifty", rdma: Optional[str] = None,
                 rdma_transports: Optional[str] = None,
                 rdma_addresses: Optional[str] = None) -> None:
        if bucket is not None:
            _check_bucket(bucket)
        if require not in CLASSES or effort not in EFFORTS:
            raise ValueError(f"require must be one of {list(CLASSES)}, effort one of "
                             f"{list(EFFORTS)}")
        if rdma is not None and rdma not in RDMA:
            raise ValueError(f"rdma must be one of {list(RDMA)}, or None")
        if endpoint is not None and "@" in endpoint:
            # Object names and messages contain the endpoint's URL, so it must not have a password.
            raise ValueError("an endpoint has no user and no password; keys come from the "
                             "environment or a profile")
        if access_key is not None or secret_key is not None:
            if profile is not None or access_key is None or secret_key is None:
                raise ValueError("give access_key and secret_key together, and no profile")
            profile = _s3.profile_of_keys(access_key, secret_key, session_token)
        options = {"endpoint": endpoint, "region": region, "profile": profile,
                   "anonymous": "1" if anonymous else None,
                   "path-style": None if path_style is None else str(int(path_style)),
                   "insecure": "1" if insecure else None,
                   "timeout": None if timeout is None else str(timeout),
                   "rdma": rdma, "rdma-transports": rdma_transports,
                   "rdma-addresses": rdma_addresses}
        words = [f"{name}={_s3.quote(value, ':/[]')}" for name, value in options.items() if value]
        self.bucket, self._query = bucket, "?" + "&".join(words) if words else ""
        self._how: Dict[str, Any] = {"require": require, "effort": effort}

    def __repr__(self) -> str:
        return f"penstock.ObjectClient({self._query[1:]!r}, bucket={self.bucket!r})"

    # ---- names ----

    def _split(self, name: str) -> List[str]:
        """Returns the bucket and the key of an object's name."""
        name = os.fspath(name)
        if self.bucket is not None:
            bucket, key = self.bucket, name
        else:
            bucket, _, key = name.removeprefix("s3://").partition("/")
        if not key or "\0" in key:
            raise ValueError(f"{name!r} names no object; a name is " +
                             ("a key" if self.bucket is not None else "bucket/key"))
        _check_bucket(bucket)
        return [bucket, key]

    def url(self, name: str) -> str:
        """Returns the URL of an object, for load_file, the command penstock and the C library. The
        URL has the client's endpoint, region, profile and other options, but no secret."""
        bucket, key = self._split(name)
        return f"s3://{bucket}/{_s3.quote(key, '/')}{self._query}"

    def _open(self, name: str, length: Optional[int] = None, *, new: bool = False,
              prefetch: bool = False) -> Storage:
        """Opens an object for reading or, if it has a length, a new one for writing. The length 0
        means that it is unknown. With `new`, raises an error with errno EEXIST if the object exists
        now or at the commit. `prefetch` announces a read of the object's first bytes."""
        url = self.url(name)
        if length is None:
            # The library prefetches by HTTP, which a stricter class refuses.
            flags = PREFETCH if prefetch and self._how["require"] == "any" else 0
        else:
            flags = WRITE | (CREATE if new else REPLACE)
        return Storage(url, url.partition("?")[0], flags, length or 0)

    # ---- tensors ----

    def put(self, name: str, source: Any) -> TransferReport:
        """Writes the bytes of a tensor or buffer to an object, which it creates or replaces.

        `source` is a tensor of torch, numpy, cupy, jax or penstock, or an object with a buffer,
        an array interface or DLPack. The object appears when all its bytes have arrived. If the
        call fails, an earlier object of this name is unchanged."""
        return self._write(name, place_of(source))

    def _write(self, name: str, place: Place, *, new: bool = False) -> TransferReport:
        segments = segments_of(place, 0, to_memory=False)
        with self._open(name, place.nbytes, new=new) as storage:
            report = storage.move(WRITING, segments, **self._how)
            storage.commit()
        return report

    def get(self, name: str, out: Any = None, *, device: Any = "cpu", dtype: str = "U8",
            shape: Optional[Sequence[int]] = None, framework: Optional[str] = None,
            offset: int = 0, report: Optional[TransferReport] = None) -> Any:
        """Reads an object, or a part of it, into the memory of a tensor, and returns the tensor.

        Args:
            name: the object.
            out: the destination: a tensor or buffer as in put. The call reads as many bytes as
                `out` has.
            device: without `out`, the device of a new tensor, as in load_file.
            dtype, shape: the type and the dimensions of a new tensor. Default: bytes, all from
                `offset` on.
            framework: the type of a new tensor, as in load_file.
            offset: offset of the first byte in the object.
            report: a TransferReport to fill.

        Raises:
            NotFoundError: the object does not exist.
            PenstockError: any other failure; errno ENODATA if the object is too short, ESTALE if
                it has changed meanwhile. The contents of the destination are undefined then.
        """
        if offset < 0:
            raise ValueError(f"offset must not be negative, not {offset}")
        with self._open(name, prefetch=offset == 0) as storage:
            made = None
            if out is None:
                framework = framework_of(framework)
                shape = _shape_of_rest(storage, dtype, offset) if shape is None else shape
                made = allocate_as(dtype, shape, device, framework)
            place = place_of(out if made is None else made)  # Keeps the memory during the move.
            done = storage.move(READING, segments_of(place, offset, to_memory=True), **self._how)
        if report is not None:
            report.__dict__.update(done.__dict__)
        return convert(made, str(framework)) if isinstance(made, Tensor) else \
            out if made is None else made

    put_rdma = put

    def get_rdma(self, name: str, tensor: Any) -> None:
        """Reads an object into a tensor: get(name, out=tensor). A tensor that is shorter than the
        object gets its first bytes. With a client that requires "no-cpu-copy", only by RDMA."""
        self.get(name, tensor)

    # ---- bytes ----

    def put_bytes(self, name: str, data: Any) -> None:
        """Writes a bytes-like object to an object."""
        self.put(name, memoryview(data).cast("B"))

    def get_bytes(self, name: str) -> bytes:
        """Returns the bytes of an object."""
        with self._open(name, prefetch=True) as storage:
            return self._read(storage, 0, storage.length)

    def get_bytes_range(self, name: str, offset: int, length: int) -> bytes:
        """Returns `length` bytes of an object from `offset` on, or fewer if it ends before."""
        with self._open(name, prefetch=offset == 0) as storage:
            return self._read(storage, offset, max(0, min(length, storage.length - offset)))

    def _read(self, storage: Storage, offset: int, length: int) -> bytes:
        data = bytearray(length)
        place = bytes_place(data)
        storage.move(READING, segments_of(place, offset, to_memory=True), **self._how)
        return bytes(data)

    # ---- questions ----

    def info(self, name: str) -> ObjectInfo:
        """Returns the description of an object. Raises NotFoundError if it does not exist."""
        answer = _s3.ask(self.url(name), "HEAD")
        return ObjectInfo(os.fspath(name), answer.length, answer.etag, _seconds(answer.modified))

    def exists(self, name: str) -> bool:
        """Returns whether an object exists. Raises PenstockError if the request fails for another
        reason than a missing object."""
        try:
            self.info(name)
        except NotFoundError:
            return False
        return True

    def size(self, name: str) -> int:
        """Returns the length of an object in bytes."""
        return self.info(name).nbytes

    def list(self, prefix: str = "", *, delimiter: str = "") -> Iterator[ObjectInfo]:
        """Yields the objects whose names begin with `prefix`, sorted by name.

        Without a client's bucket, `prefix` begins with the bucket. With `delimiter="/"`, the
        objects below the next slash are yielded as one, whose name ends with the slash and whose
        etag is "". Raises NotFoundError if the bucket does not exist."""
        if self.bucket is not None:
            bucket, start, front = self.bucket, prefix, ""
        else:
            bucket, _, start = prefix.removeprefix("s3://").partition("/")
            front = bucket + "/"
        _check_bucket(bucket)
        query = {name: value for name, value in (("prefix", start), ("delimiter", delimiter))
                 if value}
        for page in _s3.pages(f"s3://{bucket}/{self._query}", query):
            rows = [ObjectInfo(front + _s3.text_of(row, "Key"),
                               int(_s3.text_of(row, "Size") or 0),
                               _s3.text_of(row, "ETag").strip('"'),
                               _seconds(_s3.text_of(row, "LastModified")))
                    for row in page.findall("Contents")]
            rows += [ObjectInfo(front + _s3.text_of(row, "Prefix"), 0, "", None)
                     for row in page.findall("CommonPrefixes")]
            yield from sorted(rows)

    def list_objects(self, prefix: str) -> List[str]:
        """Returns the names of the objects whose names begin with `prefix`."""
        return [found.name for found in self.list(prefix)]

    def delete(self, name: str) -> None:
        """Deletes an object. An object that does not exist is no error."""
        _s3.ask(self.url(name), "DELETE")

    def copy(self, name: str, to: str) -> None:
        """Copies an object of at most 5 GiB inside the store. The store may take 10 minutes, or the
        client's timeout if that is longer."""
        bucket, key = self._split(name)
        source = f"/{_s3.quote(bucket)}/{_s3.quote(key, '/')}"
        url = self.url(to)
        answer = _s3.ask(url, "PUT", headers={"x-amz-copy-source": source})
        # The server sends the status before it copies, so an error may be in the body.
        root = _s3.parse(answer.body, url)
        if root.tag == "Error":
            raise PenstockError(errno.EIO, f"{self.url(name).partition('?')[0]}: the server could "
                                f"not copy it: {_s3.text_of(root, 'Code')[:80]}")


def _shape_of_rest(storage: Storage, dtype: str, offset: int) -> List[int]:
    """Returns the shape of a tensor with all elements from `offset` to the end of an object."""
    if dtype not in BITS:
        raise ValueError(f"there is no dtype {dtype}; dtypes are {', '.join(BITS)}")
    left = storage.length - offset
    if left < 0 or left * 8 % BITS[dtype]:
        raise ValueError(f"{storage.name} has {storage.length} bytes, which from offset {offset} "
                         f"on are no whole number of elements of dtype {dtype}")
    return [left * 8 // BITS[dtype]]


def _check_bucket(bucket: str) -> None:
    """Raises ValueError if S3 does not allow this name for a bucket. Characters such as "/" would
    change the request's path."""
    if not 1 <= len(bucket) <= 255 or not all(
            c.isascii() and (c.isalnum() or c in "-._") for c in bucket) or bucket in (".", ".."):
        raise ValueError(f"{bucket!r} is no name of a bucket")


def _seconds(text: str) -> Optional[float]:
    """Converts a time to seconds since 1970. Accepts the form of the header Last-Modified, and the
    forms in lists of objects."""
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            when = datetime.datetime.strptime(text, form)
        except ValueError:
            continue
        return when.replace(tzinfo=datetime.timezone.utc).timestamp()
    return None


__all__ = ["ObjectClient", "ObjectInfo", "TransferReport"]
