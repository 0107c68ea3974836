# SPDX-License-Identifier: Apache-2.0
"""Converts between memory and tensors of other libraries, without copies.

Tensor and Memory describe memory that the C library filled, and export it to numpy, torch
and all libraries that use DLPack or an array interface. place_of returns the address, shape
and strides of a tensor of another library. This module moves no bytes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import math
import operator
import pickle
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

# A library imports a tensor by DLPack in two steps. __dlpack__ returns a capsule that points
# to a DLManagedTensor. The consumer renames the capsule when it takes the tensor over, and
# calls the struct's deleter when it no longer needs the memory. The keys of both tables
# are addresses of DLManagedTensors.
_exported: Dict[int, Any] = {}  # Tensors that a consumer has or may still take over.
_offered: Dict[int, Any] = {}  # Capsules that no consumer is known to have taken over.


@ffi.callback("void(struct DLManagedTensor *)")
def _dlpack_deleter(managed: Any) -> None:
    _exported.pop(int(ffi.cast("uintptr_t", managed)), None)


def _capsule_references(address: int) -> int:
    return sys.getrefcount(_offered[address])


# The reference count of a capsule to which only _offered refers, measured with a new capsule.
_offered[0] = _capsule_new(8, b"dltensor", None)
_UNREFERENCED = _capsule_references(0)
_offered.clear()


def _drop_abandoned(_phase: Any = None, _info: Any = None) -> None:
    """Drops exports whose capsule was freed before any consumer had taken it over.

    This happens, for example, if a consumer raises an exception because it does not support the
    dtype. The capsule's destructor cannot drop the export, because it would run while that
    exception is set, when no Python code may run."""
    for address in list(_offered):
        with contextlib.suppress(KeyError):  # Another thread may run this loop, too.
            if not _capsule_valid(_offered[address], b"dltensor"):
                del _offered[address]  # A consumer took it over and will call the deleter.
            elif _capsule_references(address) == _UNREFERENCED:
                _exported.pop(address, None)
                del _offered[address]
    if not _offered:
        _set_gc_callback(_no_op)


# The function in gc.callbacks while _offered is empty. It must not be Python code: Python
# would run signal handlers inside it, and an exception that a handler raises there, such as
# KeyboardInterrupt, is lost. dict.setdefault accepts the two arguments and does no harm.
_no_op: Any = {}.setdefault


def _set_gc_callback(call: Any) -> None:
    """Puts `call` into gc.callbacks. `call` is _drop_abandoned or _no_op, and replaces the
    other of these two."""
    with contextlib.suppress(ValueError):  # `call` is already there.
        other = _no_op if call is _drop_abandoned else _drop_abandoned
        gc.callbacks[gc.callbacks.index(other)] = call


@atexit.register
def _remove_gc_callback() -> None:
    _set_gc_callback(_no_op)
    gc.callbacks.remove(_no_op)


gc.callbacks.append(_no_op)


def _dl_device(device: str) -> Tuple[int, int]:
    """Returns DLPack's device type (2 is CUDA, 1 is the CPU) and the device number."""
    kind, _, index = device.partition(":")
    return (2, int(index or 0)) if kind == "cuda" else (1, 0)


# ---- memory of the library -------------------------------------------------------

class Tensor:
    """A tensor in GPU or host memory that belongs to the library.

    numpy, torch, cupy and jax accept it without a copy: numpy.asarray(t),
    torch.from_dlpack(t), cupy.asarray(t), jax.dlpack.from_dlpack(t). The memory is freed when
    this tensor and all tensors and arrays made from it are gone.

    Attributes:
        dtype: the element type as the safetensors format names it, such as "BF16".
        shape: a tuple.
        device: "host" or "cuda:N".
        ptr: the address, in host or GPU memory.
        nbytes: the size in bytes.
    """

    __slots__ = ("dtype", "shape", "device", "ptr", "nbytes", "_owner", "__weakref__")

    def __init__(self, dtype: str, shape: Sequence[int], device: str, ptr: int,
                 owner: Any) -> None:
        self.dtype, self.shape, self.device, self.ptr = dtype, tuple(shape), device, ptr
        self.nbytes = math.prod(self.shape) * _dtypes.BITS[dtype] // 8
        self._owner = owner

    def __repr__(self) -> str:
        return f"penstock.Tensor({self.dtype}, {self.shape}, {self.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the bytes of a tensor in host memory, from protocol 5 on without a copy. Raises
        TypeError if the tensor is on a GPU."""
        from ._memory import tensor_from_bytes
        if self.device != "host":
            raise TypeError(f"a penstock.Tensor on {self.device} cannot be pickled, because its "
                            "bytes are not in host memory; pickle torch.from_dlpack(tensor).cpu(), "
                            "or load the tensor in the other process")
        data = self.buffer() if self.nbytes else b""
        return tensor_from_bytes, (self.dtype, self.shape, pickle.PickleBuffer(data)
                                   if protocol >= 5 else bytearray(data))

    def __copy__(self) -> "Tensor":
        """Returns a tensor that shares the memory."""
        return Tensor(self.dtype, self.shape, self.device, self.ptr, self._owner)

    def _view(self, typestr: str, shape: Tuple[int, ...]) -> Dict[str, Any]:
        return {"shape": shape, "typestr": typestr, "data": (self.ptr, False), "version": 3,
                "strides": None}

    def _interface(self) -> Dict[str, Any]:
        typestr = _dtypes.TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"{self.dtype} has no type string in the array interface; use "
                                 "DLPack or .bytes()")
        return self._view(typestr, self.shape)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self.device.startswith("cuda"):
            raise AttributeError(f"the tensor is not in GPU memory but on {self.device}")
        return self._interface()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.device != "host":
            raise AttributeError(f"the tensor is not in host memory but on {self.device}")
        return self._interface()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Returns a numpy array of a dtype that numpy has only with the package ml_dtypes.

        numpy calls this if __array_interface__ raises AttributeError."""
        array = self.numpy()
        if copy or dtype not in (None, array.dtype):
            if copy is False:
                raise ValueError(f"cannot convert {array.dtype} to {dtype} without a copy")
            array = array.astype(dtype or array.dtype)
        return array

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _dl_device(self.device)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        # The bytes had arrived before this object was created, so no stream has to wait.
        del stream, max_version
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a tensor is exported without a copy and on its own device only")
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
        managed.deleter = _dlpack_deleter
        _drop_abandoned()
        capsule = _capsule_new(address, b"dltensor", None)
        _exported[address], _offered[address] = (managed, shape, self), capsule
        _set_gc_callback(_drop_abandoned)
        return capsule

    def buffer(self) -> memoryview:
        """Returns the bytes of a tensor in host memory. Raises BufferError if it is on a GPU."""
        if self.device != "host":
            raise BufferError(f"the tensor is not in host memory but on {self.device}")
        return memoryview(self._owner.buffer())[self.ptr - self._owner.base:][:self.nbytes]

    def __buffer__(self, flags: int) -> memoryview:
        """Returns a memoryview with dtype and shape. From Python 3.12 on memoryview(tensor) calls
        this method, and numpy prefers it to the array interface."""
        del flags
        code = _FORMAT_OF.get(self.dtype)
        if code is None or not self.nbytes:
            raise BufferError(f"a memoryview cannot have dtype {self.dtype} and shape "
                              f"{self.shape}; .buffer() returns the bytes")
        seen: memoryview = self.buffer().cast(code, self.shape)
        return seen

    def bytes(self) -> "Tensor":
        """Returns the same memory as a one-dimensional tensor of dtype U8."""
        return Tensor("U8", (self.nbytes,), self.device, self.ptr, self._owner)

    def numpy(self) -> Any:
        """Returns a numpy array that shares the memory.

        Raises TypeError if the tensor is on a GPU or numpy has no such dtype."""
        import numpy
        dtype = _dtypes.numpy_dtype(self.dtype)
        if self.device != "host":
            raise TypeError(f"numpy reads host memory only, but the tensor is on {self.device}")
        if not self.nbytes:
            return numpy.empty(self.shape, dtype)
        return numpy.frombuffer(self._owner.buffer(), dtype, math.prod(self.shape),
                                self.ptr - self._owner.base).reshape(self.shape)

    def torch(self) -> Any:
        """Returns a torch tensor that shares the memory. Raises TypeError if torch lacks the
        dtype."""
        return self._owner.torch(self.dtype, self.shape, self.ptr)

    def to(self, framework: str) -> Any:
        """Returns numpy() for "numpy", torch() for "torch", and this object otherwise."""
        if framework == "numpy":
            return self.numpy()
        return self.torch() if framework == "torch" else self


def torch_device(device: str) -> str:
    return "cpu" if device == "host" else device


class Memory:
    """An allocation that holds tensors; it is freed with the last of them.

    `keep` is the object whose destructor frees the memory."""

    def __init__(self, base: int, length: int, device: str, keep: Any) -> None:
        self.base, self.length, self.device, self.keep = base, length, device, keep
        self._buffer: Any = None
        self._torch: Any = None
        self._typed: Dict[str, Tuple[Any, int, int, Any]] = {}

    def buffer(self) -> Any:
        """Returns a buffer of the whole allocation, which is in host memory."""
        if self._buffer is None:
            # The buffer refers to the pointer, and the pointer's destructor to self.keep. So
            # the memory lives as long as the buffer, even if this object is gone.
            pointer = ffi.gc(ffi.cast("char *", self.base),
                             functools.partial(_release_reference, self.keep))
            self._buffer = ffi.buffer(pointer, self.length)
        return self._buffer

    def use_torch_tensor(self, tensor: Any) -> None:
        """Sets the torch tensor whose memory contains the allocation. Later torch tensors of this
        object share its storage."""
        self._torch = tensor

    def _torch_bytes(self) -> Any:
        """Returns a torch tensor of all bytes of the allocation.

        The torch tensor refers to self.keep and not to this object. This object refers to the torch
        tensor, so a reference back would make a cycle, and Python's garbage collector cannot free
        cycles through torch."""
        import torch
        if self.device == "host":
            return torch.frombuffer(self.buffer(), dtype=torch.uint8)
        whole = Tensor("U8", (self.length,), self.device, self.base, self.keep)
        return torch.as_tensor(whole, device=self.device)

    def _typed_row(self, dtype: str) -> Tuple[Any, int, int, Any]:
        """Returns the four objects with which torch_all creates tensors of a dtype.

        They are the whole storage as a one-dimensional tensor of the dtype, the storage's
        address, the element size, and torch.as_strided. One call of as_strided creates a
        tensor; slicing and viewing would take three calls."""
        import torch
        kind = _dtypes.torch_dtype(torch, dtype)
        if self._torch is None and self.length:
            self._torch = self._torch_bytes()
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
        """Returns one torch tensor of the memory at `ptr`. For many tensors, torch_all takes less
        time for each."""
        if self._torch is None and self.device == "host" and self.length and ptr == self.base:
            import torch
            kind, size = _dtypes.torch_dtype(torch, dtype), max(8, _dtypes.BITS[dtype]) // 8
            nbytes = math.prod(shape) * _dtypes.BITS[dtype] // 8
            if nbytes == self.length:  # The tensor is the whole allocation.
                flat = torch.frombuffer(self.buffer(), dtype=kind, count=nbytes // size)
                return flat.view(_dtypes.torch_shape(dtype, shape))
        return self.torch_all([dtype], [shape], [ptr])[0]

    def torch_all(self, dtypes: Sequence[str], shapes: Sequence[Tuple[int, ...]],
                  at: Sequence[int], one_storage: bool = False) -> List[Any]:
        """Returns torch tensors at the addresses `at`.

        Each tensor has its own storage, which is a part of the allocation's storage and keeps
        the allocation alive. Programs that save or copy tensors assume that tensors of one
        storage are views of each other. With `one_storage` all tensors share the allocation's
        storage, because record_stream and CUDA's handles for other processes accept only
        storages that torch's allocator created. One call then creates all tensors of the same
        dtype and shape whose addresses are equally spaced. `.data` detaches each tensor from
        the tensor that it was made from, so that autograd treats them separately."""
        made: List[Any] = [None] * len(at)
        kinds: Dict[Tuple[str, Tuple[int, ...]], List[int]] = {}
        for i, kind in enumerate(zip(dtypes, shapes)):
            kinds.setdefault(kind, []).append(i)
        for (dtype, shape), places in kinds.items():
            row, origin, size, as_strided = self._typed.get(dtype) or self._typed_row(dtype)
            shape = _dtypes.torch_shape(dtype, shape)
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
    """Splits `places` into runs of equally spaced addresses. Yields each run, and the distance
    from one of its addresses to the next.

    `places` are indices into the addresses `at`. The distance is in bytes, a multiple of the
    element size `size`. It is 0 for a run of one tensor."""
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
    """Returns the strides of a contiguous tensor in elements, and its number of elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides)), step


# A destructor that does nothing: functools.partial(_release_reference, x) as a destructor keeps
# x alive until the object is freed. It must not be Python code: Python would run signal handlers
# inside it, and an exception that a handler raises in a destructor is lost.
_release_reference = operator.is_


# ---- memory of other libraries -----------------------------------------------------

class Place:
    """Address, shape, strides (in bytes), dtype and device of a tensor of another library.

    It holds a reference to `keep`, the tensor itself."""

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
        self.strides = tuple(strides)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements, without gaps."""
        return math.prod(self.shape) * _dtypes.BITS[self.dtype] // 8

    def split(self) -> int:
        """Returns the first dimension from which the tensor is contiguous. Returns 0 if the
        whole tensor is contiguous."""
        step, d = _dtypes.BITS[self.dtype] // 8, len(self.shape)
        while d and (self.strides[d - 1] == step or self.shape[d - 1] == 1):
            d -= 1
            step *= self.shape[d]
        return d


# device_name for the devices of torch tensors. The device of a tensor on a GPU has the GPU's index,
# so its name never changes.
_torch_device_name = functools.lru_cache(maxsize=256)(device_name)


def _torch_place(value: Any) -> Place:
    if str(value.layout) != "torch.strided" or value.is_meta:
        raise ValueError("the tensor is sparse or has no memory (meta); make it dense first")
    if value.is_conj() or value.is_neg():
        raise ValueError("the tensor is a conjugate or negative view, whose memory holds other "
                         "numbers; call resolve_conj() or resolve_neg() first")
    dtype, shape = _dtypes.from_torch_dtype(value.dtype), list(value.shape)
    size = value.element_size()
    strides = [s * size for s in value.stride()]
    if dtype == "F4" and shape:
        shape[-1] *= 2
        if not value.is_contiguous():
            raise ValueError("the tensor has dtype F4 and is not contiguous; make it contiguous")
        return Place(value.data_ptr(), shape, None, dtype, _torch_device_name(value.device), value)
    return Place(value.data_ptr(), shape, strides, dtype, _torch_device_name(value.device), value)


def _interface_place(value: Any, view: Dict[str, Any], device: str) -> Place:
    dtype = _dtypes.FROM_TYPESTR.get(view["typestr"].replace("=", "<"))
    if dtype is None:
        raise TypeError(f"a safetensors file cannot hold elements of type {view['typestr']}")
    ptr, read_only = view["data"]
    return Place(ptr or 0, view["shape"], view.get("strides"), dtype, device, value,
                 not read_only)


def _dlpack_place(value: Any) -> Place:
    capsule = value.__dlpack__()
    if not _capsule_valid(capsule, b"dltensor"):
        raise TypeError("the version of the DLPack capsule is not supported")
    t = ffi.cast("struct DLManagedTensor *", _capsule_pointer(capsule, b"dltensor")).dl_tensor
    dtype = _dtypes.FROM_DLPACK.get((t.dtype.code, t.dtype.bits))
    if dtype is None or t.dtype.lanes != 1 or t.device.device_type not in (1, 2, 3, 13):
        raise TypeError(f"a safetensors file cannot hold this DLPack tensor (type code "
                        f"{t.dtype.code}, {t.dtype.bits} bits, {t.dtype.lanes} lanes, device "
                        f"type {t.device.device_type})")
    shape = [t.shape[i] for i in range(t.ndim)]
    step = _dtypes.BITS[dtype] // 8
    strides: Optional[List[int]] = None
    if t.strides != ffi.NULL and step:
        strides = [t.strides[i] * step for i in range(t.ndim)]
    device = f"cuda:{t.device.device_id}" if t.device.device_type in (2, 13) else "host"
    address = int(ffi.cast("uintptr_t", t.data)) + t.byte_offset
    return Place(address, shape, strides, dtype, device, (capsule, value), not _is_jax(value))


def _is_jax(value: Any) -> bool:
    """Returns whether the value is a jax array. jax arrays cannot be destinations, because they are
    immutable and may share memory. Their DLPack capsules do not mark them as read-only."""
    kind = getattr(sys.modules.get("jax"), "Array", None)
    return kind is not None and isinstance(value, kind)


# Maps format characters of memoryview and the module struct to dtypes. _FORMAT_OF is the reverse.
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
        raise TypeError(f"a safetensors file cannot hold elements of format {view.format}")
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous")
    raw = ffi.from_buffer(view, require_writable=False)
    return Place(int(ffi.cast("uintptr_t", raw)), view.shape or (), None, dtype, "host",
                 (raw, view), not view.readonly)


def place_of(value: Any) -> Place:
    """Returns the Place of a tensor of penstock, torch or numpy, or of any object that has an array
    interface, DLPack or a buffer. Raises TypeError or ValueError for anything else."""
    if isinstance(value, Tensor):
        return Place(value.ptr, value.shape, None, value.dtype, value.device, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_place(value)
    numpy = sys.modules.get("numpy")
    writable = True
    if numpy is not None and isinstance(value, numpy.generic):
        value, writable = numpy.asarray(value), False  # numpy makes a copy of a scalar.
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
        raise TypeError(f"an object of type {type(value).__name__} is not a tensor: {error}"
                        ) from error
