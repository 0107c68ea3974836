# SPDX-License-Identifier: Apache-2.0
"""The pickles inside the archives of torch.save: writes them without touching a tensor's bytes, and
reads the description of a tensor out of them.

A pickle of torch.save refers to each storage by a persistent id: ("storage", type, key, location,
count). This module makes and reads such ids. It runs no code of a pickle that it reads."""

from __future__ import annotations

import collections
import functools
import io
import pickle
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch


class _StorageMark:
    """Stands for a storage in a pickle that dump_tensor writes."""

    def __init__(self, identity: Tuple[Any, ...]) -> None:
        self.identity = identity


class _Rebuilt:
    """An object whose pickle is the call that rebuilds a tensor."""

    def __init__(self, call: Any, args: Tuple[Any, ...]) -> None:
        self.call = (call, args)

    def __reduce__(self) -> Any:
        return self.call


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.identity if isinstance(obj, _StorageMark) else None


def storage_identity(storage: Any, key: str, location: str,
                     nbytes: Optional[int] = None) -> Tuple[Any, ...]:
    """Returns the persistent id of a typed or untyped storage.

    `nbytes` is the length that the id states; None means the storage's own length."""
    kind: Any = torch.UntypedStorage
    if isinstance(storage, torch.storage.TypedStorage):
        kind = getattr(torch, storage._pickle_storage_type())
        size = storage._element_size()
        count = storage._size() if nbytes is None else nbytes // size
    else:
        count = storage.nbytes() if nbytes is None else nbytes
    return ("storage", kind, key, location, count)


@functools.lru_cache(maxsize=4096)
def dump_tensor(dtype: torch.dtype, shape: Tuple[int, ...]) -> bytes:
    """Returns the pickle of a contiguous tensor whose bytes are in the record data/0."""
    twin = torch.empty(0, dtype=dtype)
    call, args = twin.__reduce_ex__(2)[:2]
    nbytes = dtype.itemsize
    strides: List[int] = []
    for length in reversed(shape):
        strides.insert(0, nbytes // dtype.itemsize)
        nbytes *= max(length, 1)
    if 0 in shape:
        nbytes = 0
    mark = _StorageMark(storage_identity(args[0], "0", "cpu", nbytes))
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=2)
    pickler.dump(_Rebuilt(call, (mark, 0, tuple(shape), tuple(strides), *args[4:])))
    return out.getvalue()


class Description(NamedTuple):
    """A tensor as a pickle describes it. `offset` and `stride` count elements; `key` is the name of
    the storage's record without "data/"."""
    dtype: torch.dtype
    key: str
    offset: int
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]


class _Storage(NamedTuple):
    dtype: Optional[torch.dtype]
    key: str


def _describe(storage: _Storage, offset: int, shape: Sequence[int], stride: Sequence[int],
              _grad: bool, _hooks: Any, *more: Any) -> Description:
    """_Unpickler calls this in place of torch._utils._rebuild_tensor_v2 and _v3. It returns a
    Description instead of a tensor. The arguments of _v3 also contain the dtype."""
    dtype = next((value for value in more if isinstance(value, torch.dtype)), storage.dtype)
    if dtype is None:
        raise pickle.UnpicklingError("the storage has no dtype")
    return Description(dtype, storage.key, int(offset), tuple(shape), tuple(stride))


# The dtypes of the storages that have a class of their own in pickles. Tensors of all other dtypes
# have an UntypedStorage, and their pickle states the dtype.
_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool, "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
_ALLOWED: Dict[Tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _describe,
    ("torch._utils", "_rebuild_tensor_v3"): _describe,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch.storage", "UntypedStorage"): None,
    ("torch", "UntypedStorage"): None,
}


class _Unpickler(pickle.Unpickler):
    """Reads the pickle of one plain tensor, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a plain tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) < 3 or pid[0] != "storage":
            raise pickle.UnpicklingError("unknown persistent id")
        return _Storage(pid[1], str(pid[2]))


def describe_tensor(pickled: bytes) -> Optional[Description]:
    """Returns the description of the plain tensor in a pickle, or None for any other pickle."""
    try:
        found = _Unpickler(io.BytesIO(pickled)).load()
    except Exception:  # pylint: disable=broad-except
        # A damaged pickle can raise any exception. The caller then uses torch.load, which reports
        # the error.
        return None
    return found if isinstance(found, Description) else None


__all__ = ["Description", "describe_tensor", "dump_tensor", "storage_identity"]
