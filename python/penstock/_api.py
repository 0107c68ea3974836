# SPDX-License-Identifier: Apache-2.0
"""What programs call: load_file, load_into, iterate, safe_open, save_file. The
shapes of the calls are those of the safetensors package where it has them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import sys
import threading
import weakref
from typing import (Any, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple,
                    Union)

from ._cuda import settle
from ._dtypes import BITS, CODES, torch_dtype
from ._group import Group
from ._lib import (PenstockError, also_theirs, check, device_name, ffi, handle_name, heed, lib,
                   open_device, raise_caught, take, to_c)
from ._model import (Info, Model, PathLike, Report, convert, framework_of, new_report, pieces_of,
                     ranges_of, strings, whole_piece, CLASSES, EFFORTS)
from ._tensor import Memory, Place, Tensor, place_of

Paths = Union[PathLike, Sequence[PathLike]]


def load_file(filename: Paths, device: Any = "cpu", *, framework: Optional[str] = None,
              names: Optional[Sequence[str]] = None, backend: Optional[str] = None,
              shard: Optional[Mapping[str, Any]] = None, group: Optional[Group] = None,
              **how: Any) -> Dict[str, Any]:
    """Every tensor of a file or a model, by name, on `device` ("cpu", "cuda:0", 0,
    "auto"). torch tensors where torch is installed, else penstock.Tensor; or as
    `framework` says: "pt", "numpy", "jax", "dlpack". `names` are names, which
    have to be there, or globs. `shard` is what a rank of a tensor parallelism needs,
    {"rank": 0, "ranks": 8}, see Model.load; `group` are the processes that load it
    together. `require` and `effort` as everywhere; `stop` is a threading.Event that ends it
    with ECANCELED once it is set; `backend` means nothing here.

    All of them lie in one allocation, which the last that is kept keeps: clone() the one
    that is to outlive the others, or have load_into fill tensors of your own. Each of torch's
    has a storage of its own, a part of it, so that what saves or copies one does so with that
    one alone. torch's record_stream does nothing for such a part, and its multiprocessing
    refuses it on a GPU: `one_storage=True` is for who uses either."""
    del backend
    with _part_of(group):
        model = Model(filename, names=names)
        try:
            return model.load(device, framework, shard=shard, group=group, **how)[0]
        finally:
            model.close()


def _part_of(group: Optional[Group]) -> ContextManager[None]:
    return contextlib.nullcontext() if group is None else group.or_leave()


class NoTensorError(TypeError, ValueError):
    """The safetensors package says a ValueError of what is no tensor."""


def _told(where: str, error: Exception) -> Exception:
    """What is wrong with an argument, and where."""
    kind = next(kind for kind in (NoTensorError, TypeError, IndexError, BufferError, ValueError)
                if isinstance(error, kind))
    return kind(f"{where}: {error}")


def _place(value: Any) -> Place:
    try:
        return place_of(value)
    except TypeError as error:
        raise NoTensorError(str(error)) from error


def _pieces(info: Info, value: Any) -> Tuple[Place, List[Any]]:
    index = None
    if isinstance(value, tuple):
        if len(value) != 2:
            raise TypeError("a tuple is a destination and the index of its part")
        value, index = value
    place = _place(value)
    device = open_device(place.device)
    whole = whole_piece(info, place, device) if index is None else None
    if whole is None:
        ranges, rest = ranges_of(info.shape, Ellipsis if index is None else index)
        if any(r != 0 and r.step not in (1, None) for r in rest):
            raise ValueError("ranges have a step of 1 here")
        whole = pieces_of(info, ranges, place, device)
    return place, whole


def _all_pieces(model: Model, tensors: Mapping[str, Any]) -> Tuple[List[Place], List[Any]]:
    pieces: List[Any] = []
    keep: List[Place] = []
    for name, value in tensors.items():
        info = model.info(name)
        try:
            place, more = _pieces(info, value)
        except PenstockError:
            raise
        except (BufferError, IndexError, TypeError, ValueError) as error:
            raise _told(model.where(info), error) from error
        keep.append(place)
        pieces += more
    return keep, pieces


def load_into(filename: Paths, tensors: Mapping[str, Any], group: Optional[Group] = None,
              **how: Any) -> Report:
    """Into tensors that are there: name to destination, or to (destination, index) for
    the part that `index` cuts out of it, with ranges of step 1: (slice(0, 8),). A
    destination may have gaps between its rows. All of it is checked before the first
    byte moves. `group` are the processes that do it together."""
    with _part_of(group):
        model = Model(filename)
        try:
            keep, pieces = _all_pieces(model, tensors)
            settle(place.device for place in keep)
            return model.load_into(pieces, group, **how)
        finally:
            model.close()


def iterate(filename: Paths, device: Any = "cpu", *, framework: Optional[str] = None,
            window: int = 0, names: Optional[Sequence[str]] = None,
            **how: Any) -> Iterator[Tuple[str, Any]]:
    """(name, tensor) in file order, through a window of device memory (1 GiB unless
    said) that is filled ahead. A tensor's room is used again when nobody has the tensor
    any more: copy what is to stay. -ENOBUFS when all of the window is held."""
    return Model(filename, names=names).iterate(device, framework, window, **how)


# ---- safe_open -----------------------------------------------------------------

AHEAD_BYTES = 64 << 20
NEAR = 8  # places


class Slice:
    """A tensor that is read when it is indexed, and only the part that was asked for; also
    when the file that it is of has been closed meanwhile."""

    def __init__(self, opened: "safe_open", model: Model, info: Info) -> None:
        self._opened, self._model, self._info = opened, model, info

    def get_shape(self) -> List[int]:
        return list(self._info.shape)

    def get_dtype(self) -> str:
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        if self._opened.framework == "torch" and not _is_plain(index):
            return self._as_torch(index)
        ranges, rest = ranges_of(self._info.shape, index)
        counts = [count for _, count in ranges]
        if rest and rest[-1] != 0 and rest[-1].step not in (1, None) and BITS[self._info.dtype] < 8:
            raise also_theirs(ValueError)("elements of less than a byte are read without steps")
        if counts == list(self._info.shape):
            value = self._opened._read(self._model, self._info)
        else:
            value = self._opened._box(self._model, self._info, ranges)
        if all(r == slice(None, None, 1) or r == slice(None) for r in rest):
            return value
        if self._opened.framework == "dlpack":
            if any(r != 0 and r.step not in (1, None) for r in rest):
                raise ValueError("ranges with a step need numpy or torch")
            kept = [count for count, r in zip(counts, rest) if r != 0]
            return Tensor(value.dtype, kept, value.device, value.ptr, value._owner)
        if any(isinstance(r, slice) and (r.step or 1) < 0 for r in rest):
            raise also_theirs(ValueError)("ranges that run backwards are not read")
        return value[(*rest, ...)]  # an array also where numbers alone leave one element

    def _as_torch(self, index: Any) -> Any:
        """What torch makes of any other index. Of a list of rows, among ranges, only those
        rows are read."""
        shape, items = self._info.shape, list(index) if isinstance(index, tuple) else [index]
        lists = [at for at, item in enumerate(items) if _rows_of(item) is not None]
        at = lists[0] if lists else 0
        plain = [item for item in items[:at] + items[at + 1:]
                 if item is Ellipsis or isinstance(item, slice) and item.step in (1, None)]
        if len(lists) != 1 or len(plain) + 1 != len(items) or BITS[self._info.dtype] < 8 or \
                _dots(items) > 1:
            return self._opened._read(self._model, self._info)[index]
        rows, items[at] = _rows_of(items[at]), slice(None)
        ranges, _ = ranges_of(shape, tuple(items))
        dim = at if Ellipsis not in items[:at] else len(shape) - len(items) + at
        if not all(-shape[dim] <= row < shape[dim] for row in rows):
            raise also_theirs(IndexError)(f"a row of dimension {dim}, which has {shape[dim]}")
        return self._opened._rows(self._model, self._info, ranges, dim,
                                  [row % shape[dim] for row in rows])


def _is_plain(index: Any) -> bool:
    """Of numbers and ranges alone."""
    items = index if isinstance(index, tuple) else (index,)
    return _dots(items) < 2 and all(item is Ellipsis or isinstance(item, slice) or
               hasattr(item, "__index__") and not getattr(item, "shape", ()) and
               not isinstance(item, bool) for item in items)


def _dots(items: Sequence[Any]) -> int:
    return sum(item is Ellipsis for item in items)


def _rows_of(item: Any) -> Any:
    """The numbers in a list of them, in whatever form; None where it is no such list."""
    if getattr(item, "ndim", 0) == 1 and str(item.dtype).rpartition(".")[2] in (
            "int64", "int32", "int16", "int8"):
        item = item.tolist()
    if isinstance(item, (list, range)) and all(type(row) is int for row in item):
        return list(item)
    return None


class _Halt:
    """As a threading.Event that ends a load: one that is set when nobody wants any more what
    is read ahead, or when the caller's own is."""

    def __init__(self, also: Any) -> None:
        self._also, self._set = also, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set or (self._also is not None and bool(self._also.is_set()))


class safe_open:  # pylint: disable=invalid-name
    """A file opened lazily, in the shape of safetensors.safe_open. Tensors asked for in
    the order of the file are read ahead, some 64 MiB at once, by a thread. Any number of
    threads may ask."""

    def __init__(self, filename: Paths, framework: Optional[str] = None, device: Any = "cpu",
                 *, backend: Optional[str] = None, **how: Any) -> None:
        if backend not in (None, "mmap", "pread"):  # what that package has, to no effect here
            raise also_theirs(ValueError)(f"there is no backend {backend!r}")
        if "group" in how:
            raise TypeError("a file opened lazily is no load by a group: load_file is")
        self.framework = framework_of(framework)
        self.device, self._how = device, how
        if not device_name(device).startswith("cuda"):
            open_device(device)  # a GPU gets its context when it gets bytes
        self._opened: Optional[Model] = Model(filename)
        self._opened.options(**how)  # what is wrong with it is wrong now
        self._cache: Dict[int, Any] = {}
        self._next, self._asked_by = -1, 0
        self._lock = threading.Lock()
        self._ahead: Optional[concurrent.futures.Future[Dict[int, Any]]] = None
        self._ahead_end = 0
        self._halt = _Halt(how.get("stop"))
        self._thread: Optional[concurrent.futures.ThreadPoolExecutor] = None
        _all_opened.add(self)

    def _in_child(self) -> None:
        """A child of fork has neither the thread that reads ahead nor who held the lock."""
        self._lock, self._halt = threading.Lock(), _Halt(self._how.get("stop"))
        self._ahead, self._thread = None, None
        self._next, self._asked_by, self._ahead_end = -1, 0, 0

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._opened = None  # first: who reads now looks at it last; slices may have it still
        self._halt.set()
        thread, self._thread = self._thread, None
        self._cache, self._ahead = {}, None
        if thread is not None:
            thread.shutdown(wait=True)

    @property
    def _model(self) -> Model:
        if self._opened is None:
            raise also_theirs(ValueError)("the file is closed")
        return self._opened

    def keys(self) -> List[str]:
        return [info.name for info in sorted(self._model.infos, key=lambda i: i.name)]

    def offset_keys(self) -> List[str]:
        return [info.name for info in self._model.infos]

    def metadata(self) -> Optional[Dict[str, str]]:
        return self._model.metadata() if self._model.has_metadata() else None

    def get_slice(self, name: str) -> Slice:
        return Slice(self, self._model, self._model.info(name))

    def get_tensors(self) -> Dict[str, Any]:
        return self._model.load(self.device, self.framework, **self._how)[0]

    def get_tensor(self, name: str) -> Any:
        return self._read(self._model, self._model.info(name))

    # ---- reading -----------------------------------------------------------------

    def _read(self, model: Model, info: Info) -> Any:
        try:
            return self._read_ordered(model, info)
        except BaseException:  # Ctrl-C, say: whoever leaves waits for the thread to end
            halt, self._halt = self._halt, _Halt(self._how.get("stop"))
            halt.set()
            raise

    def _read_ordered(self, model: Model, info: Info) -> Any:
        with self._lock:
            if self._opened is None:
                return self._load(model, info.index, info.index + 1)[info.index]
            if info.index not in self._cache and self._ahead and info.index < self._ahead_end:
                ahead, self._ahead = self._ahead, None
                with contextlib.suppress(PenstockError):  # told to who asks for what failed
                    self._cache.update(ahead.result())
            sequential = self._sequential(info.index)
            tensor = self._cache.pop(info.index, None)
            if tensor is None:
                tensor = self._miss(model, info.index, sequential)
            if sequential and self._ahead is None and \
                    self._next <= self._ahead_end < len(model.infos):
                self._read_ahead(model)
            if self._opened is None:
                self.close()  # another thread has, before all of this was there
            return tensor

    def _read_ahead(self, model: Model) -> None:
        first, end = self._ahead_end, self._batch_end(model, self._ahead_end)
        self._ahead_end = len(model.infos)  # no further attempt until the next batch
        # No thread is to be had where it has been closed, and once the main thread has ended.
        with contextlib.suppress(RuntimeError):
            thread = self._thread or concurrent.futures.ThreadPoolExecutor(1, "penstock-ahead")
            self._thread = thread
            self._ahead = thread.submit(self._load, model, first, end, self._halt)
            self._ahead_end = end

    def _sequential(self, index: int) -> bool:
        """In the order of the file, or as nearly as threads keep to it that take turns."""
        near = 0 if self._asked_by in (0, threading.get_ident()) else NEAR
        found = self._next >= 0 and abs(index - self._next) <= near
        self._next = max(self._next, index + 1) if found else index + 1
        self._asked_by = threading.get_ident()
        return found

    def _miss(self, model: Model, index: int, sequential: bool) -> Any:
        if not sequential or index < self._next - 1:  # what others ask for stays
            return self._load(model, index, index + 1)[index]
        end = self._batch_end(model, index)
        try:
            batch = self._load(model, index, end)
        except PenstockError:  # it may be another's fault
            end = index + 1
            batch = self._load(model, index, end)
        tensor = batch.pop(index)
        self._cache, self._ahead_end, self._ahead = batch, end, None
        return tensor

    @staticmethod
    def _batch_end(model: Model, first: int) -> int:
        infos, size, end = model.infos, 0, first
        while end < len(infos) and (end == first or size + infos[end].nbytes <= AHEAD_BYTES):
            size += infos[end].nbytes
            end += 1
        return end

    def _load(self, model: Model, first: int, end: int,
              stop: Optional[_Halt] = None) -> Dict[int, Any]:
        how = self._how if stop is None else {**self._how, "stop": stop}
        tensors = model.load(self.device, self.framework, first=first, count=end - first,
                             **how)[0]
        return {i: tensors[model.infos[i].name] for i in range(first, end)}

    def _box(self, model: Model, info: Info, ranges: Sequence[Tuple[int, int]]) -> Any:
        value = self._empty(info, [count for _, count in ranges])
        pieces = pieces_of(info, ranges, place_of(value), open_device(self.device))
        model.load_into(pieces, **self._how)
        return convert(value, self.framework) if isinstance(value, Tensor) else value

    def _rows(self, model: Model, info: Info, ranges: Sequence[Tuple[int, int]], dim: int,
              rows: Sequence[int]) -> Any:
        """Those of a dimension, each where it is wanted; as many at once as lie together."""
        shape = [count for _, count in ranges]
        shape[dim] = len(rows)
        value, pieces, at = self._empty(info, shape), [], 0
        place, device = place_of(value), open_device(self.device)
        while at < len(rows):
            count = 1
            while at + count < len(rows) and rows[at + count] == rows[at] + count:
                count += 1
            part = [*ranges[:dim], (rows[at], count), *ranges[dim + 1:]]
            there = Place(place.ptr + at * place.strides[dim], [n for _, n in part],
                          place.strides, place.dtype, place.device, value)
            pieces += pieces_of(info, part, there, device)
            at += count
        model.load_into(pieces, **self._how)
        return convert(value, self.framework) if isinstance(value, Tensor) else value

    def _empty(self, info: Info, shape: Sequence[int]) -> Any:
        name = handle_name(open_device(self.device))
        if self.framework == "torch" and name.startswith("cuda") and BITS[info.dtype] >= 8:
            import torch  # from its pool
            value: Any = torch.empty(shape, dtype=torch_dtype(torch, info.dtype), device=name)
            settle([name])
            return value
        return allocate(info.dtype, shape, self.device)


_all_opened: "weakref.WeakSet[safe_open]" = weakref.WeakSet()


def _in_child() -> None:
    for opened in list(_all_opened):
        opened._in_child()


os.register_at_fork(after_in_child=_in_child)


def allocate(dtype: str, shape: Sequence[int], device: Any = "cpu") -> Tensor:
    """Memory of the library's for a tensor, with whatever bytes it holds."""
    if dtype not in CODES or any(length < 0 for length in shape):
        raise ValueError(f"no tensor is {dtype} of {tuple(shape)}: {', '.join(CODES)}")
    handle = open_device(device)
    tensor = Tensor(dtype, shape, handle_name(handle), 0, None)
    code, memory = take("void **", functools.partial(lib.penstock_free, handle),
                        lib.penstock_alloc, handle, tensor.nbytes or 1)
    check(code, placed=False)
    tensor.ptr = int(ffi.cast("uintptr_t", memory))
    tensor._owner = Memory(tensor.ptr, tensor.nbytes, tensor.device, memory)
    return tensor


# ---- and out again ---------------------------------------------------------------

def _in_rows(value: Any) -> Any:
    """An array of numpy's with gaps or of another byte order as a file holds it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray) or value.dtype.kind == "O":
        return value
    if value.flags.c_contiguous and value.dtype.isnative:
        return value
    return numpy.array(value, value.dtype.newbyteorder("<"), order="C")


def _refuse_shared(tensors: Mapping[str, Any], places: Mapping[str, Place]) -> None:
    """As the safetensors package: they would be two when they are loaded again."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    taken = sorted((place.device, place.ptr, place.nbytes, name) for name, place in places.items()
                   if place.nbytes and isinstance(tensors[name], torch.Tensor))
    for (device, ptr, nbytes, name), (other, begin, _, second) in zip(taken, taken[1:]):
        if device == other and begin < ptr + nbytes:
            raise RuntimeError(f"Some tensors share memory: {name} and {second}. Save one of "
                               "them, a copy, or the model by safetensors.torch.save_model")


def save_file(tensors: Mapping[str, Any], filename: PathLike,
              metadata: Optional[Mapping[str, str]] = None, *, durable: bool = False,
              require: str = "any", effort: str = "thrifty", path: Optional[str] = None) -> None:
    """Writes tensors, on GPUs or in host memory, as one safetensors file that takes its
    name when all of it is there; `path` is the only one that is taken, for tests."""
    if require not in CLASSES or effort not in EFFORTS:
        raise ValueError(f"require is one of {list(CLASSES)}, effort of {list(EFFORTS)}")
    if not isinstance(tensors, Mapping):
        raise ValueError(f"tensors by name are saved, not a {type(tensors).__name__}")
    places = {}
    for name, value in tensors.items():
        try:
            places[name] = _place(_in_rows(value))
        except (BufferError, TypeError, ValueError) as error:
            raise _told(name, error) from error
    _refuse_shared(tensors, places)
    settle(place.device for place in places.values())
    keep: List[Any] = [places]
    table = ffi.new("struct penstock_out[]", len(places) or 1)
    for row, (name, place) in zip(table, places.items()):
        if place.nbytes and place.split():
            raise ValueError(f"{name}: a tensor with gaps cannot be saved, make it contiguous")
        row.size = ffi.sizeof("struct penstock_out")
        keep += [ffi.new("char[]", to_c(name, str.encode)),
                 ffi.new("uint64_t[]", list(place.shape) or [0])]
        row.name, row.shape = keep[-2], keep[-1]
        row.dtype, row.rank = CODES[place.dtype], len(place.shape)
        row.dev, row.ptr = open_device(place.device), ffi.cast("void *", place.ptr)
    opts = ffi.new("struct penstock_save_opts *")
    opts.size, opts.durable = ffi.sizeof("struct penstock_save_opts"), int(durable)
    opts.require, opts.effort = CLASSES[require], EFFORTS[effort]
    if path is not None:
        keep.append(ffi.new("char[]", to_c(path, str.encode)))
        opts.path = keep[-1]
    if metadata is not None:
        if not isinstance(metadata, Mapping) or \
                not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            raise TypeError("metadata is text by text")
        opts.keys = strings(list(metadata), keep, str.encode)
        opts.values = strings(list(metadata.values()), keep, str.encode)
        opts.pair_count = len(metadata)
    name, caught = os.fspath(filename), heed(opts, keep)
    code = lib.penstock_weights_save(to_c(name), table, len(places), opts, new_report())
    raise_caught(caught)
    check(code, name)


__all__ = ["Slice", "allocate", "device_name", "iterate", "load_file", "load_into", "safe_open",
           "save_file"]
