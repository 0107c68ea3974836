# SPDX-License-Identifier: Apache-2.0
"""Memory as tensors: what was loaded, handed to numpy, torch and everything that
speaks DLPack or an array interface, without a copy; and the other way, where a
tensor of somebody else's lies. No bytes are moved here."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import math
import operator
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _dtypes
from ._lib import device_name, ffi

# ---- DLPack ------------------------------------------------------------------

_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_valid.restype = ctypes.c_int
_capsule_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_lent: Dict[int, Any] = {}  # what DLPack consumers hold, by the address of its description
_offered: Dict[int, Any] = {}  # capsules that were not seen to be consumed, by the same


@ffi.callback("void(struct DLManagedTensor *)")
def _give_back(managed: Any) -> None:
    _lent.pop(int(ffi.cast("uintptr_t", managed)), None)


def _holders(address: int) -> int:
    return sys.getrefcount(_offered[address])


_offered[0] = _capsule_new(8, b"dltensor", None)
_NOBODY = _holders(0)
_offered.clear()


def _look_through(_phase: Any = None, _info: Any = None) -> None:
    """What was offered and nobody took, as its kind is none of theirs, is lent to nobody. A
    capsule's destructor would be told at once: with the consumer's error raised, in which no
    Python runs."""
    for address in list(_offered):
        with contextlib.suppress(KeyError):  # another thread looks, too
            if not _capsule_valid(_offered[address], b"dltensor"):
                del _offered[address]  # its consumer gives back
            elif _holders(address) == _NOBODY:
                _lent.pop(address, None)
                del _offered[address]
    if not _offered:
        _when_collected(_nothing)


# No Python runs in garbage collections while nothing is offered: handlers of signals that come
# meanwhile would run in that, and what they raise, as that of Ctrl-C does, would be lost.
_nothing: Any = {}.setdefault


def _when_collected(call: Any) -> None:
    """One of the two is among gc's callbacks; which one."""
    with contextlib.suppress(ValueError):  # it is this one
        other = _nothing if call is _look_through else _look_through
        gc.callbacks[gc.callbacks.index(other)] = call


@atexit.register
def _never_collected() -> None:
    _when_collected(_nothing)
    gc.callbacks.remove(_nothing)


gc.callbacks.append(_nothing)


def _dl_device(device: str) -> Tuple[int, int]:
    kind, _, index = device.partition(":")
    return (2, int(index or 0)) if kind == "cuda" else (1, 0)


# ---- what was loaded -----------------------------------------------------------

class Tensor:
    """A tensor in device or host memory that the library filled. It keeps its memory
    alive, and so does everything that was made of it."""

    __slots__ = ("dtype", "shape", "device", "ptr", "nbytes", "_owner", "__weakref__")

    def __init__(self, dtype: str, shape: Sequence[int], device: str, ptr: int,
                 owner: Any) -> None:
        self.dtype, self.shape, self.device, self.ptr = dtype, tuple(shape), device, ptr
        self.nbytes = math.prod(self.shape) * _dtypes.BITS[dtype] // 8
        self._owner = owner

    def __repr__(self) -> str:
        return f"penstock.Tensor({self.dtype}, {self.shape}, {self.device})"

    def _view(self, typestr: str, shape: Tuple[int, ...]) -> Dict[str, Any]:
        return {"shape": shape, "typestr": typestr, "data": (self.ptr, False), "version": 3,
                "strides": None}

    def _interface(self) -> Dict[str, Any]:
        typestr = _dtypes.TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"{self.dtype} has no type string; use DLPack, or .bytes()")
        return self._view(typestr, self.shape)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self.device.startswith("cuda"):
            raise AttributeError("it is not in the memory of a GPU")
        return self._interface()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.device != "host":
            raise AttributeError("it is not in host memory")
        return self._interface()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """For numpy, where there is no type string: what it has of ml_dtypes, or why not."""
        array = self.numpy()
        if copy or dtype not in (None, array.dtype):
            if copy is False:
                raise ValueError(f"{array.dtype} is not {dtype} without a copy")
            array = array.astype(dtype or array.dtype)
        return array

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _dl_device(self.device)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        # The bytes were there before this object was: no stream has to wait.
        del stream, max_version
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("it is given as it is, where it is")
        managed = ffi.new("struct DLManagedTensor *")
        shape = ffi.new("int64_t[]", list(self.shape) or [0])
        address = int(ffi.cast("uintptr_t", managed))
        tensor = managed.dl_tensor
        tensor.data = ffi.cast("void *", self.ptr)
        tensor.device.device_type, tensor.device.device_id = self.__dlpack_device__()
        tensor.ndim = len(self.shape)
        tensor.dtype.code = _dtypes.DLPACK[self.dtype]
        tensor.dtype.bits, tensor.dtype.lanes = _dtypes.BITS[self.dtype], 1
        tensor.shape = shape
        managed.deleter = _give_back
        _look_through()
        capsule = _capsule_new(address, b"dltensor", None)
        _lent[address], _offered[address] = (managed, shape, self), capsule
        _when_collected(_look_through)
        return capsule

    def buffer(self) -> memoryview:
        """Its bytes, in host memory."""
        if self.device != "host":
            raise BufferError("it is not in host memory")
        return memoryview(self._owner.buffer())[self.ptr - self._owner.base:][:self.nbytes]

    def __buffer__(self, flags: int) -> memoryview:
        """From Python 3.12 on, memoryview() of it: with its kind and shape, as numpy takes
        that before it looks for an array interface."""
        del flags
        code = _FORMAT_OF.get(self.dtype)
        if code is None or not self.nbytes:
            raise BufferError(f"no buffer of {self.dtype}, {self.shape}: .buffer() has its bytes")
        seen: memoryview = self.buffer().cast(code, self.shape)
        return seen

    def bytes(self) -> "Tensor":
        """The same memory as a row of U8."""
        return Tensor("U8", (self.nbytes,), self.device, self.ptr, self._owner)

    def numpy(self) -> Any:
        import numpy
        dtype = _dtypes.numpy_dtype(self.dtype)
        if self.device != "host":
            raise TypeError("it is in the memory of a GPU, numpy reads host memory")
        if not self.nbytes:
            return numpy.empty(self.shape, dtype)
        return numpy.frombuffer(self._owner.buffer(), dtype, math.prod(self.shape),
                                self.ptr - self._owner.base).reshape(self.shape)

    def torch(self) -> Any:
        return self._owner.torch(self.dtype, self.shape, self.ptr)

    def to(self, framework: str) -> Any:
        if framework == "numpy":
            return self.numpy()
        return self.torch() if framework == "torch" else self


def torch_device(device: str) -> str:
    return "cpu" if device == "host" else device


class Memory:
    """An allocation that tensors lie in: freed with the last of them."""

    def __init__(self, base: int, length: int, device: str, keep: Any) -> None:
        self.base, self.length, self.device, self.keep = base, length, device, keep
        self._buffer: Any = None
        self._torch: Any = None
        self._typed: Dict[str, Tuple[Any, int, int, Any]] = {}

    def buffer(self) -> Any:
        if self._buffer is None:
            # The buffer keeps the pointer, the pointer's destructor this object's `keep`.
            pointer = ffi.gc(ffi.cast("char *", self.base), functools.partial(_drop, self.keep))
            self._buffer = ffi.buffer(pointer, self.length)
        return self._buffer

    def lend(self, tensor: Any) -> None:
        """It is part of this tensor of torch's, of which tensors then are views."""
        self._torch = tensor

    def _bytes(self) -> Any:
        """A tensor of torch's over all of it. It keeps `keep`, and not this object, which
        has it: no cycle that nobody would find."""
        import torch
        if self.device == "host":
            return torch.frombuffer(self.buffer(), dtype=torch.uint8)
        whole = Tensor("U8", (self.length,), self.device, self.base, self.keep)
        return torch.as_tensor(whole, device=self.device)

    def _type(self, dtype: str) -> Tuple[Any, int, int, Any]:
        """The storage as one row of a dtype, its address, an element's size, torch's
        as_strided: one call of it, where slices and views take three."""
        import torch
        kind = _dtypes.torch_dtype(torch, dtype)
        if self._torch is None and self.length:
            self._torch = self._bytes()
        size = max(8, _dtypes.BITS[dtype]) // 8
        if self._torch is None:
            row, origin = torch.empty(0, dtype=kind, device=torch_device(self.device)), 0
        else:
            storage = self._torch.untyped_storage()
            origin = storage.data_ptr()
            row = torch.empty(0, dtype=kind, device=self._torch.device)
            row.set_(storage, 0, (storage.nbytes() // size,), (1,))
        typed = self._typed[dtype] = (row, origin, size, torch.as_strided)
        return typed

    def torch(self, dtype: str, shape: Tuple[int, ...], ptr: int) -> Any:
        """One tensor. Of many, torch_all makes each in a fraction of the time."""
        if self._torch is None and self.device == "host" and self.length and ptr == self.base:
            import torch
            kind, size = _dtypes.torch_dtype(torch, dtype), max(8, _dtypes.BITS[dtype]) // 8
            nbytes = math.prod(shape) * _dtypes.BITS[dtype] // 8
            if nbytes == self.length:  # it has the memory for itself
                shape = shape if dtype != "F4" or not shape else (*shape[:-1], shape[-1] // 2)
                return torch.frombuffer(self.buffer(), dtype=kind, count=nbytes // size).view(shape)
        return self.torch_all([dtype], [shape], [ptr])[0]

    def torch_all(self, dtypes: Sequence[str], shapes: Sequence[Tuple[int, ...]],
                  at: Sequence[int], one_storage: bool = False) -> List[Any]:
        """Tensors of torch's at these addresses. Each stands for itself: what autograd knows
        of one is not of others. Each has a storage of its own, a part of the allocation's,
        which it keeps: programs that save or copy tensors take those of one storage for views
        of each other. With `one_storage` it is the allocation's, as record_stream and CUDA's
        handles for other processes know only what the allocator has given out; those of a
        kind that lie equally far from each other are made by one call then. `.data` leaves
        behind what a tensor was made of."""
        made: List[Any] = [None] * len(at)
        kinds: Dict[Tuple[str, Tuple[int, ...]], List[int]] = {}
        for i, kind in enumerate(zip(dtypes, shapes)):
            kinds.setdefault(kind, []).append(i)
        for (dtype, shape), places in kinds.items():
            row, origin, size, as_strided = self._typed.get(dtype) or self._type(dtype)
            if dtype == "F4" and shape:  # two elements in a byte
                shape = shape[:-1] + (shape[-1] // 2,)
            strides, count = _strides(shape)
            if not count:
                for i in places:
                    made[i] = row.new_empty(shape)
                continue
            if not one_storage:
                storage, none, nbytes = row.untyped_storage(), row.new_empty(0), count * size
                for i in places:
                    first = at[i] - origin
                    made[i] = none.data.set_(storage[first:first + nbytes], 0, shape, strides)
                continue
            for run, step in _runs(places, at, size):
                several = as_strided(row, (len(run), *shape), (step // size, *strides),
                                     (at[run[0]] - origin) // size)
                for i, one in zip(run, several.unbind(0)):
                    made[i] = one.data
        return made


def _runs(places: List[int], at: Sequence[int], size: int) -> Iterator[Tuple[List[int], int]]:
    """Places that lie equally far from each other, and how far, in whole elements."""
    first, count = 0, len(places)
    while first < count:
        end, step = first + 1, 0
        if end < count:
            step = at[places[end]] - at[places[first]]
            if step > 0 and not step % size:
                while end < count and at[places[end]] - at[places[end - 1]] == step:
                    end += 1
        yield places[first:end], step if end > first + 1 else 0
        first = end


@functools.lru_cache(maxsize=4096)
def _strides(shape: Tuple[int, ...]) -> Tuple[Tuple[int, ...], int]:
    """Of rows without gaps, and how many elements there are."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides)), step


# Its first argument was alive until here; that is all. No Python: handlers of signals run in
# that, and what they raise as something is freed would be lost.
_drop = operator.is_


# ---- somebody else's -----------------------------------------------------------

class Place:
    """Where a tensor of somebody else's lies; `keep` is alive as long as this is."""

    __slots__ = ("ptr", "shape", "strides", "dtype", "device", "keep", "writable")

    def __init__(self, ptr: int, shape: Sequence[int], strides: Optional[Sequence[int]], dtype: str,
                 device: str, keep: Any, writable: bool = True) -> None:
        self.ptr, self.shape, self.dtype, self.device = ptr, tuple(shape), dtype, device
        self.keep, self.writable = keep, writable
        if strides is None:
            strides, step = [0] * len(self.shape), _dtypes.BITS[dtype] // 8
            for i in range(len(self.shape) - 1, -1, -1):
                strides[i] = step
                step *= self.shape[i]
        self.strides = tuple(strides)  # bytes

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _dtypes.BITS[self.dtype] // 8

    def split(self) -> int:
        """The first dimension from which on it is without gaps."""
        step, d = _dtypes.BITS[self.dtype] // 8, len(self.shape)
        while d and (self.strides[d - 1] == step or self.shape[d - 1] == 1):
            d -= 1
            step *= self.shape[d]
        return d


def _torch_place(value: Any) -> Place:
    if str(value.layout) != "torch.strided" or value.device.type == "meta":
        raise ValueError("a tensor that is sparse or has no memory, make it a dense one")
    if value.is_conj() or value.is_neg():
        raise ValueError("a view that stands for other numbers than its memory: resolve it, "
                         "with resolve_conj() or resolve_neg()")
    dtype, shape = _dtypes.from_torch_dtype(value.dtype), list(value.shape)
    size = value.element_size()
    strides = [s * size for s in value.stride()]
    if dtype == "F4" and shape:
        shape[-1] *= 2
        if not value.is_contiguous():
            raise ValueError("a tensor of F4 that is not contiguous")
        return Place(value.data_ptr(), shape, None, dtype, device_name(value.device), value)
    return Place(value.data_ptr(), shape, strides, dtype, device_name(value.device), value)


def _interface_place(value: Any, view: Dict[str, Any], device: str) -> Place:
    dtype = _dtypes.FROM_TYPESTR.get(view["typestr"].replace("=", "<"))
    if dtype is None:
        raise TypeError(f"a file cannot hold elements of type {view['typestr']}")
    ptr, read_only = view["data"]
    return Place(ptr or 0, view["shape"], view.get("strides"), dtype, device, value,
                 not read_only)


def _dlpack_place(value: Any) -> Place:
    capsule = value.__dlpack__()
    if not _capsule_valid(capsule, b"dltensor"):
        raise TypeError("its DLPack capsule is of a version that is not known")
    t = ffi.cast("struct DLManagedTensor *", _capsule_pointer(capsule, b"dltensor")).dl_tensor
    dtype = _dtypes.FROM_DLPACK.get((t.dtype.code, t.dtype.bits))
    if dtype is None or t.dtype.lanes != 1 or t.device.device_type not in (1, 2, 3, 13):
        raise TypeError("a file cannot hold this DLPack tensor")
    shape = [t.shape[i] for i in range(t.ndim)]
    step = _dtypes.BITS[dtype] // 8
    strides: Optional[List[int]] = None
    if t.strides != ffi.NULL and step:
        strides = [t.strides[i] * step for i in range(t.ndim)]
    device = f"cuda:{t.device.device_id}" if t.device.device_type in (2, 13) else "host"
    address = int(ffi.cast("uintptr_t", t.data)) + t.byte_offset
    return Place(address, shape, strides, dtype, device, (capsule, value), not _is_jax(value))


def _is_jax(value: Any) -> bool:
    """Its arrays never change, which their capsules do not say: others may have the memory."""
    kind = getattr(sys.modules.get("jax"), "Array", None)
    return kind is not None and isinstance(value, kind)


_FORMATS = {"?": "BOOL", "B": "U8", "c": "U8", "b": "I8", "H": "U16", "h": "I16", "e": "F16",
            "I": "U32", "i": "I32", "f": "F32", "Q": "U64", "q": "I64", "L": "U64", "l": "I64",
            "d": "F64"}


_FORMAT_OF: Dict[str, Any] = {
    "BOOL": "?", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i",
    "F32": "f", "U64": "Q", "I64": "q", "F64": "d"}


def _buffer_place(value: Any) -> Place:
    view = memoryview(value)
    dtype = _FORMATS.get(view.format.lstrip("@=<") if view.format else "B")
    if dtype is None or _dtypes.BITS[dtype] != view.itemsize * 8:
        raise TypeError(f"a file cannot hold elements of format {view.format}")
    if not view.c_contiguous:
        raise ValueError("a buffer with gaps")
    raw = ffi.from_buffer(view, require_writable=False)
    return Place(int(ffi.cast("uintptr_t", raw)), view.shape or (), None, dtype, "host",
                 (raw, view), not view.readonly)


def place_of(value: Any) -> Place:
    """Where `value` lies: penstock, torch and numpy tensors, and whatever has an array
    interface, DLPack or a buffer."""
    if isinstance(value, Tensor):
        return Place(value.ptr, value.shape, None, value.dtype, value.device, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_place(value)
    numpy = sys.modules.get("numpy")
    writable = True
    if numpy is not None and isinstance(value, numpy.generic):
        value, writable = numpy.asarray(value), False  # a copy of it
    if numpy is not None and isinstance(value, numpy.ndarray):
        return Place(value.ctypes.data, value.shape, value.strides,
                     _dtypes.from_numpy_dtype(value.dtype), "host", value,
                     writable and value.flags.writeable)
    view = getattr(value, "__cuda_array_interface__", None)
    if view is not None:
        device = f"cuda:{value.__dlpack_device__()[1]}" if hasattr(value, "__dlpack_device__") \
            else "cuda"
        return _interface_place(value, view, device_name(device))
    if hasattr(value, "__dlpack__"):
        return _dlpack_place(value)
    view = getattr(value, "__array_interface__", None)
    if view is not None:
        return _interface_place(value, view, "host")
    try:
        return _buffer_place(value)
    except TypeError as error:
        raise TypeError(f"{type(value).__name__} is no tensor: {error}") from error
