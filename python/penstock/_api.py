# SPDX-License-Identifier: Apache-2.0
"""The functions that programs call: load_file, load_into, iterate, safe_open, save_file.

A function that also exists in the safetensors package accepts the arguments of that function."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import threading
import weakref
from typing import (Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple,
                    Type, Union)

from ._cuda import synchronize_all
from ._dtensor import is_dtensor
from ._dtypes import BITS, CODES, torch_shape
from ._group import GroupLike, joined
from ._lib import (PenstockError, also_safetensor_error, check, device_name, ffi,
                   install_stop_check, lib, open_device, raise_caught, to_c)
from ._memory import allocate, allocate_as
from ._model import (Info, Model, PathLike, c_strings, convert, device_for, dtensor_box,
                     framework_of, pieces_of, ranges_of, whole_piece, CLASSES, EFFORTS)
from ._prefetch import PrefetchLoader, parts_of
from ._progress import Progress
from ._report import Report, new_report
from ._short import ShortReads
from ._tensor import Place, Tensor, place_of

Paths = Union[PathLike, Sequence[PathLike]]


def load_file(filename: Paths, device: Any = "cpu", *, framework: Optional[str] = None,
              names: Optional[Sequence[str]] = None, backend: Optional[str] = None,
              shard: Optional[Mapping[str, Any]] = None, group: Optional[GroupLike] = None,
              require: str = "any", effort: Optional[str] = None, align: int = 0,
              one_storage: bool = False, keep_cached: bool = False, ranks: int = 1,
              progress: Progress = False, stop: Optional[threading.Event] = None,
              path: Optional[str] = None) -> Dict[str, Any]:
    """Loads every tensor of a file or a model into new memory on one device.

    Args:
        filename: a safetensors file, an index (*.json), a folder, "owner/name" in the Hugging
            Face cache, or a list of files.
        device: "cpu", "cuda:0", "cuda", a GPU's index, a torch.device, or "auto" (the first
            GPU, else "cpu").
        framework: the type of the tensors: "pt" (torch), "np" or "numpy", "jax" or "flax",
            "dlpack" (penstock.Tensor). Default: torch if torch is installed, else "dlpack".
        names: names or shell patterns ("layers.0.*") of the tensors to load. Default: all.
        backend: ignored; programs written for the safetensors package may pass it.
        shard: a dict, to load only this process's part of each tensor. For tensor parallelism,
            its keys are:
            rank, ranks: this rank's number and the number of ranks.
            expert_rank, expert_ranks: this rank's number and the number of ranks among which
            the experts are divided. If expert_ranks is above 1, each rank gets some whole
            experts, instead of a part of every expert.
            heads, kv_heads, experts: the model's numbers of heads, key-value heads and experts.
            Needed only if the config.json beside the model lacks them.
            rules: a list of (glob, cut), used before the built-in rules. `glob` matches tensor
            names; `cut` is a key of CUTS in penstock._model, such as "first" or "last".
            To get DTensors of torch, the dict has these two keys instead:
            mesh: a torch DeviceMesh.
            placements: a list of Shard and Replicate, one for each dimension of the mesh; or a
            dict from shell patterns of tensor names to such lists. A tensor that matches no
            pattern is replicated.
        group: a Group or a torch.distributed.ProcessGroup. All its ranks make the same call;
            together they read the files only once on each host.
        require: the class of paths that the load may use. "any" allows all paths,
            "no-cpu-copy" only paths on which DMA engines move all bytes, "direct" only paths
            on which the drive's DMA writes the destination.
        effort: "thrifty" uses the least CPU time, "fast" gives the highest throughput,
            "balanced" is in between.
            Default: "fast" if several processes load together, else "thrifty"; always "thrifty"
            for a Model with immutable=True.
        align: alignment of each tensor in bytes, a power of two up to 4096; 0 means the
            alignment of its dtype.
        one_storage: True gives all torch tensors one common storage. Programs need a common
            storage on a GPU if they call record_stream or pass tensors through
            torch.multiprocessing.
        keep_cached: True reads the files through the page cache and leaves them there, for the
            next load or for programs that map the files. Without it, a load of files that are
            not cached leaves nothing in the page cache. Excludes `require` and `path`.
        ranks: number of processes that load at the same time, if `group` is not used.
        progress: a function that the load calls with (delivered bytes, total bytes), at most
            ten times a second, on the thread that called load_file; or True for a bar of tqdm.
            An exception that the function raises ends the load. In a group, the number of
            delivered bytes is an estimate.
        stop: a threading.Event. Setting it ends the load with errno ECANCELED.
        path: name of the only I/O path to use, for tests.

    Returns:
        A dict from name to tensor, in file order. All tensors are parts of one allocation,
        which is freed when the last tensor is freed. To keep one tensor without the memory of
        the others, clone() it, or use load_into. Each torch tensor has its own storage, so that
        saving or copying a tensor includes only the bytes of that tensor.

    Raises:
        NotFoundError: a file or a tensor in `names` does not exist.
        FormatError: a file does not follow its format.
        ClassRefusedError: no path meets `require`.
        PenstockError: any other failure, such as ECANCELED after `stop` was set. After any of
            these errors no memory stays allocated.
    """
    del backend
    with joined(group) as members:
        model = Model(filename, names=names)
        try:
            return model.load(device, framework, shard=shard, group=members, require=require,
                              effort=effort, align=align, one_storage=one_storage,
                              keep_cached=keep_cached, ranks=ranks, progress=progress,
                              stop=stop, path=path)[0]
        finally:
            model.close()


class NoTensorError(TypeError, ValueError):
    """Raised for an argument that is not a tensor. The exception is also a ValueError, because
    safetensors raises ValueError for such an argument."""


def _with_place(where: str, error: Exception) -> Exception:
    """Returns an exception of the same type as `error`, whose message starts with `where`."""
    kind = next(kind for kind in (NoTensorError, TypeError, IndexError, BufferError, ValueError)
                if isinstance(error, kind))
    return kind(f"{where}: {error}")


def _place_of_argument(value: Any) -> Place:
    """Returns place_of(value). Raises NoTensorError if `value` is not a tensor."""
    try:
        return place_of(value)
    except TypeError as error:
        raise NoTensorError(str(error)) from error


def _pieces_for(info: Info, value: Any) -> Tuple[Place, List[Any]]:
    """Returns a destination's Place (its memory's address, layout and device), and the list of
    pieces of the tensor `info` to read into it.

    `value` is a destination or a pair (destination, index), as in load_into."""
    index = None
    if isinstance(value, tuple):
        if len(value) != 2:
            raise TypeError("a tuple must be (destination, index of the part to load)")
        value, index = value
    if is_dtensor(value):
        return _pieces_for_dtensor(info, value, index)
    place = _place_of_argument(value)
    device = open_device(place.device)
    whole = whole_piece(info, place, device) if index is None else None
    if whole is None:
        ranges, rest = ranges_of(info.shape, Ellipsis if index is None else index)
        if any(r != 0 and r.step not in (1, None) for r in rest):
            raise ValueError("load_into supports only ranges with a step of 1")
        whole = pieces_of(info, ranges, place, device)
    return place, whole


def _pieces_for_dtensor(info: Info, value: Any, index: Any) -> Tuple[Place, List[Any]]:
    """Does what _pieces_for does, for a destination that is a DTensor: reads only the part that
    this process holds."""
    if index is not None:
        raise TypeError("a DTensor has no index: its placements tell which part to load")
    if tuple(value.shape) != torch_shape(info.dtype, info.shape):
        raise ValueError(f"a tensor of shape {info.shape} does not fit a destination of shape "
                         f"{tuple(value.shape)}")
    place = _place_of_argument(value.detach().to_local())
    box = dtensor_box(info, value.device_mesh, value.placements)
    return place, pieces_of(info, box, place, open_device(place.device))


def _all_pieces(model: Model, tensors: Mapping[str, Any]) -> Tuple[List[Place], List[Any]]:
    """Checks that each destination fits its tensor in the model. Returns the Places of all
    destinations, and the pieces to read into them."""
    pieces: List[Any] = []
    keep: List[Place] = []
    for name, value in tensors.items():
        info = model.info(name)
        try:
            place, more = _pieces_for(info, value)
        except PenstockError:
            raise
        except (BufferError, IndexError, TypeError, ValueError) as error:
            raise _with_place(model.where(info), error) from error
        keep.append(place)
        pieces += more
    return keep, pieces


def load_into(filename: Paths, tensors: Mapping[str, Any], group: Optional[GroupLike] = None, *,
              require: str = "any", effort: Optional[str] = None, keep_cached: bool = False,
              ranks: int = 1, progress: Progress = False,
              stop: Optional[threading.Event] = None, path: Optional[str] = None) -> Report:
    """Loads tensors into memory that the caller has allocated.

    Args:
        filename: as in load_file.
        tensors: a dict from name to destination. A destination is a tensor of torch, numpy,
            cupy, jax or penstock, or any object with a buffer, an array interface or DLPack.
            It must have the dtype and shape of the tensor in the file. The destination may
            have gaps between its rows. The dict may also contain a pair (destination, index) in
            place of a destination. Only the part of the tensor that the index selects is then
            loaded: (t, (slice(0, 8),)) loads the first 8 rows into t. Slices must have a
            step of 1. If a destination is a DTensor of torch, only the part that this process
            holds is loaded.
        group, require, effort, keep_cached, ranks, progress, stop, path: as in load_file.

    Returns:
        A Report.

    Raises:
        TypeError, ValueError, IndexError: a destination does not fit. All destinations are
            checked before the first byte moves.
        NotFoundError, FormatError, ClassRefusedError, PenstockError: as in load_file. After an
            error during the load the contents of the destinations are undefined.
    """
    with joined(group) as members:
        model = Model(filename)
        try:
            keep, pieces = _all_pieces(model, tensors)
            synchronize_all(place.device for place in keep)
            return model.load_into(pieces, members, require=require, effort=effort,
                                   keep_cached=keep_cached, ranks=ranks, progress=progress,
                                   stop=stop, path=path)
        finally:
            model.close()


def iterate(filename: Paths, device: Any = "cpu", *, framework: Optional[str] = None,
            window: int = 0, names: Optional[Sequence[str]] = None, require: str = "any",
            effort: Optional[str] = None, align: int = 0, keep_cached: bool = False,
            ranks: int = 1, progress: Progress = False, stop: Optional[threading.Event] = None,
            path: Optional[str] = None) -> Iterator[Tuple[str, Any]]:
    """Yields (name, tensor) in file order, through a window of device memory.

    The library fills the window ahead of the caller. It reuses a tensor's memory after the
    caller has dropped the last reference to the tensor, so copy tensors that must stay.

    Args:
        window: size of the window in bytes. 0 means 1 GiB; values from 1 to 256 KiB mean 256
            KiB. A tensor longer than a quarter of the window gets its own memory outside the
            window. At most two such tensors have memory at the same time.
        filename, device, framework, names, require, effort, align, keep_cached, ranks,
            progress, stop, path: as in load_file.

    Raises:
        PenstockError: with errno ENOBUFS if the tensors that the caller still holds fill the
            window; for other failures as in load_file.
    """
    return Model(filename, names=names).iterate(
        device, framework, window, require=require, effort=effort, align=align,
        keep_cached=keep_cached, ranks=ranks, progress=progress, stop=stop, path=path)


# ---- safe_open -----------------------------------------------------------------

# Size of a batch of tensors that safe_open reads ahead, in bytes.
AHEAD_BYTES = 64 << 20
# If several threads read, a request still counts as sequential if its tensor is at most this
# number of tensors away from the next tensor in file order.
NEAR_TENSORS = 8


class Slice:
    """A tensor in a file. Each indexing reads only the indexed part of the tensor.

    safe_open.get_slice returns a Slice. It still works after the safe_open was closed."""

    def __init__(self, opened: "safe_open", model: Model, info: Info) -> None:
        self._opened, self._model, self._info = opened, model, info

    def __reduce__(self) -> Any:
        """Pickles the safe_open and the name. See safe_open.__reduce__."""
        return self._opened.get_slice, (self._info.name,)

    def __repr__(self) -> str:
        return f"penstock.Slice({self._info.name!r}, {self._info.dtype}, {self._info.shape})"

    def __copy__(self) -> "Slice":
        return Slice(self._opened, self._model, self._info)

    def get_shape(self) -> List[int]:
        """Returns the shape of the whole tensor."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Returns the dtype as the safetensors format names it, such as "BF16"."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        """Reads the indexed part and returns it as a tensor of safe_open's framework."""
        if self._opened.framework == "torch" and not _is_plain(index):
            return self._as_torch(index)
        ranges, rest = ranges_of(self._info.shape, index)
        counts = [count for _, count in ranges]
        if rest and rest[-1] != 0 and rest[-1].step not in (1, None) and BITS[self._info.dtype] < 8:
            raise also_safetensor_error(ValueError)(
                "elements smaller than a byte can only be read with a step of 1")
        if counts == list(self._info.shape):
            value = self._opened._read(self._model, self._info)
        else:
            value = self._opened._read_box(self._model, self._info, ranges)
        if all(r == slice(None, None, 1) or r == slice(None) for r in rest):
            return value
        if self._opened.framework == "dlpack":
            if any(r != 0 and r.step not in (1, None) for r in rest):
                raise ValueError("ranges with a step need framework='pt' or 'numpy'")
            kept = [count for count, r in zip(counts, rest) if r != 0]
            return Tensor(value.dtype, kept, value.device, value.ptr, value._owner)
        if any(isinstance(r, slice) and (r.step or 1) < 0 for r in rest):
            raise also_safetensor_error(ValueError)("ranges with a negative step are not supported")
        return value[(*rest, ...)]  # The ellipsis makes a single element an array, too.

    def _as_torch(self, index: Any) -> Any:
        """Returns the same result as torch's indexing. Used for indices that do not only consist of
        numbers and ranges, for example lists of row indices.

        If the index has ranges and one list of row indices, only those rows are read. Otherwise
        the whole tensor is read."""
        shape, items = self._info.shape, list(index) if isinstance(index, tuple) else [index]
        lists = [at for at, item in enumerate(items) if _row_list(item) is not None]
        at = lists[0] if lists else 0
        plain = [item for item in items[:at] + items[at + 1:]
                 if item is Ellipsis or isinstance(item, slice) and item.step in (1, None)]
        if len(lists) != 1 or len(plain) + 1 != len(items) or BITS[self._info.dtype] < 8 or \
                _ellipsis_count(items) > 1:
            return self._opened._read(self._model, self._info)[index]
        rows, items[at] = _row_list(items[at]), slice(None)
        ranges, _ = ranges_of(shape, tuple(items))
        dim = at if Ellipsis not in items[:at] else len(shape) - len(items) + at
        if not all(-shape[dim] <= row < shape[dim] for row in rows):
            raise also_safetensor_error(IndexError)(
                f"a row is out of range: dimension {dim} has {shape[dim]} rows")
        return self._opened._read_rows(self._model, self._info, ranges, dim,
                                       [row % shape[dim] for row in rows])


def _is_plain(index: Any) -> bool:
    """Returns whether an index consists of numbers, ranges and at most one ellipsis."""
    items = index if isinstance(index, tuple) else (index,)
    return _ellipsis_count(items) < 2 and all(
        item is Ellipsis or isinstance(item, slice) or
        hasattr(item, "__index__") and not getattr(item, "shape", ()) and
        not isinstance(item, bool) for item in items)


def _ellipsis_count(items: Sequence[Any]) -> int:
    return sum(item is Ellipsis for item in items)


def _row_list(item: Any) -> Any:
    """Converts row indices in a list, a range or a one-dimensional integer array to a list of
    ints. Returns None for any other index."""
    if getattr(item, "ndim", 0) == 1 and str(item.dtype).rpartition(".")[2] in (
            "int64", "int32", "int16", "int8"):
        item = item.tolist()
    if isinstance(item, (list, range)) and all(type(row) is int for row in item):
        return list(item)
    return None


class TensorMeta(NamedTuple):
    """The description of a tensor in a file, as safe_open.get_tensor_meta returns it.

    dtype is a name of the safetensors format, such as "F32". data_offsets are the offsets of the
    tensor's first byte and of the byte after its last byte, counted from the first tensor's first
    byte in the file."""

    dtype: str
    shape: List[int]
    data_offsets: Tuple[int, int]


class _ReadAheadStop:
    """An event that stops a read-ahead. It is set when safe_open calls set() or when the
    caller's own `stop` event is set.

    The class has the two methods of threading.Event that a load uses."""

    def __init__(self, also: Any) -> None:
        self._also, self._set = also, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set or (self._also is not None and bool(self._also.is_set()))


class safe_open:  # pylint: disable=invalid-name
    """Opens a file or model and reads single tensors on demand, like safetensors.safe_open.

    While a program reads tensors in file order, a thread reads the next tensors ahead, in
    batches of 64 MiB. Any number of threads may read from one safe_open. A child of fork may
    use the parent's safe_open for host memory, but not for GPUs. A process that unpickles a
    safe_open opens the file again. Use it as a context manager, or call close().

    Args:
        filename, framework, device: as in load_file.
        backend: None, "mmap" or "pread", as in the safetensors package. The value has no
            effect.
        require, effort, keep_cached, ranks, stop, path: as in load_file. Each of them applies
            to every read.

    Raises:
        NotFoundError, FormatError, PenstockError: as in load_file.
        ValueError, TypeError: an argument is invalid.
    """

    def __init__(self, filename: Paths, framework: Optional[str] = None, device: Any = "cpu",
                 *, backend: Optional[str] = None, require: str = "any",
                 effort: Optional[str] = None, keep_cached: bool = False, ranks: int = 1,
                 stop: Optional[threading.Event] = None, path: Optional[str] = None) -> None:
        # The safetensors package accepts these backends. This package ignores them.
        if backend not in (None, "mmap", "pread"):
            raise also_safetensor_error(ValueError)(
                f"unknown backend {backend!r}: use 'mmap', 'pread' or None")
        how: Dict[str, Any] = {"require": require, "effort": effort, "keep_cached": keep_cached,
                               "ranks": ranks, "stop": stop, "path": path}
        self.framework = framework_of(framework)
        self.device = device = device_for(device, self.framework)
        self._how = how
        # This constructor does not open a GPU, because that creates a CUDA context. The first read
        # opens the GPU.
        if not device_name(device).startswith("cuda"):
            open_device(device)
        self._opened: Optional[Model] = Model(filename)
        self._opened.options(**how)  # Raises an error if an option is invalid.
        self._cache: Dict[int, Any] = {}
        self._next, self._last_reader = -1, 0
        self._lock = threading.Lock()
        self._ahead: Optional[concurrent.futures.Future[Dict[int, Any]]] = None
        self._ahead_end = 0
        self._ahead_stop = _ReadAheadStop(stop)
        self._thread: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._short: Optional[ShortReads] = None
        _all_opened.add(self)

    def __reduce__(self) -> Any:
        """Pickles the path and the arguments. The process that unpickles them opens the file again,
        and gets the tensors that the file has then. Raises ValueError after close(), and TypeError
        if the safe_open has a `stop`."""
        if self._how["stop"] is not None:
            raise TypeError("a safe_open with the argument stop cannot be pickled: an event "
                            "belongs to one process; open the file in the other process")
        return self._open_again, (type(self), self._model.reopening()["path"], self.framework,
                                  self.device, self._how)

    def __repr__(self) -> str:
        opened = self._opened or "closed"
        return f"penstock.safe_open({opened}, {self.framework!r}, {self.device!r})"

    def __copy__(self) -> "safe_open":
        """Opens the file again, with the same arguments."""
        return self._open_again(type(self), self._model.reopening()["path"], self.framework,
                                self.device, self._how)

    @staticmethod
    def _open_again(kind: Type[safe_open], paths: List[str], framework: str, device: Any,
                    how: Mapping[str, Any]) -> safe_open:
        return kind(paths if len(paths) > 1 else paths[0], framework, device, **how)

    def _in_child(self) -> None:
        """Resets the lock and the read-ahead in a child of fork: the parent's threads do not
        exist there."""
        self._lock, self._ahead_stop = threading.Lock(), _ReadAheadStop(self._how["stop"])
        self._ahead, self._thread, self._short = None, None, None
        self._next, self._last_reader, self._ahead_end = -1, 0, 0

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file and stops the read-ahead thread. Tensors and slices stay usable."""
        # close() clears _opened first. Another thread may be reading at the same time. At the end
        # of its read, it finds _opened cleared, and calls close() again. Slices keep references to
        # the model, so they still work.
        self._opened = None
        self._ahead_stop.set()
        thread, self._thread = self._thread, None
        self._cache, self._ahead, self._short = {}, None, None
        if thread is not None:
            thread.shutdown(wait=True)

    @property
    def _model(self) -> Model:
        if self._opened is None:
            raise also_safetensor_error(ValueError)("the file is closed")
        return self._opened

    def keys(self) -> List[str]:
        """Returns the names of all tensors, sorted."""
        return [info.name for info in sorted(self._model.infos, key=lambda i: i.name)]

    def offset_keys(self) -> List[str]:
        """Returns the names of all tensors in file order, the fastest order to read them."""
        return [info.name for info in self._model.infos]

    def metadata(self) -> Optional[Dict[str, str]]:
        """Returns the metadata of the first file, or None if that file has no metadata."""
        return self._model.metadata() if self._model.has_metadata() else None

    def get_slice(self, name: str) -> Slice:
        """Returns a Slice of a tensor, which reads parts of it when it is indexed."""
        return Slice(self, self._model, self._model.info(name))

    def get_tensors(self) -> Dict[str, Any]:
        """Loads all tensors as load_file does and returns them as a dict by name."""
        return self._model.load(self.device, self.framework, **self._how)[0]

    def get_tensor(self, name: str) -> Any:
        """Reads one tensor and returns it. Raises NotFoundError if no tensor has this name.

        Tensors that were read ahead together share one allocation, which is freed with the
        last of these tensors. The allocation has at most 64 MiB, or holds a single longer
        tensor."""
        return self._read(self._model, self._model.info(name))

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Returns the dtype, shape and data offsets of a tensor, without reading its data."""
        info = self._model.info(name)
        start = info.offset - self._model.data_offset(info.file)
        return TensorMeta(info.dtype, list(info.shape), (start, start + info.nbytes))

    def prefetch(self, plan: Optional[Mapping[str, Optional[slice]]] = None, *,
                 device: Any = None, threads: int = 8) -> PrefetchLoader:
        """Starts to load tensors in the background, like prefetch of the safetensors package.

        Args:
            plan: a dict from the names of the tensors to load to None, for the whole tensor, or
                to a slice of its first dimension. Default: all tensors.
            device: as in load_file. Default: the device of the safe_open.
            threads: has no effect, because the library has its own threads.

        Returns:
            A PrefetchLoader, which hands out each tensor once. Several loaders may run at the
            same time. Closing the safe_open does not stop them.

        Raises:
            NotFoundError: a tensor in `plan` does not exist.
            ValueError, TypeError: a tensor has no such slice or no dtype in the framework.
        """
        if threads < 1:
            raise ValueError(f"threads must be a positive number, not {threads}")
        model, there = self._model, self.device if device is None else device
        there = device_for(there, self.framework)
        open_device(there)
        return PrefetchLoader(model, parts_of(model, plan, self.framework), there,
                              self.framework, self._how, _ReadAheadStop(self._how["stop"]))

    # ---- reading -----------------------------------------------------------------

    def _read(self, model: Model, info: Info) -> Any:
        try:
            return self._read_ordered(model, info)
        except BaseException:
            # After any exception, such as KeyboardInterrupt, the read-ahead must stop soon,
            # because close() and the interpreter's exit wait for the read-ahead thread.
            stop, self._ahead_stop = self._ahead_stop, _ReadAheadStop(self._how["stop"])
            stop.set()
            raise

    def _read_ordered(self, model: Model, info: Info) -> Any:
        """Returns a tensor from the cache or from the batch that was read ahead, or reads it.

        If the caller requests the tensors in file order, also starts to read the next batch
        ahead."""
        with self._lock:
            if self._opened is None:
                return self._load(model, info.index, info.index + 1)[info.index]
            if info.index not in self._cache and self._ahead and info.index < self._ahead_end:
                ahead, self._ahead = self._ahead, None
                # If the read-ahead failed, the read of the tensor itself reports the error.
                with contextlib.suppress(PenstockError):
                    self._cache.update(ahead.result())
            sequential = self._sequential(info.index)
            tensor = self._cache.pop(info.index, None)
            if tensor is None:
                tensor = self._read_missing(model, info.index, sequential)
            if sequential and self._ahead is None and \
                    self._next <= self._ahead_end < len(model.infos):
                self._read_ahead(model)
            if self._opened is None:
                self.close()  # Another thread closed the file during this read.
            return tensor

    def _read_ahead(self, model: Model) -> None:
        """Starts to load the next batch on the read-ahead thread."""
        first, end = self._ahead_end, self._batch_end(model, self._ahead_end)
        # If the thread cannot be started, _ahead_end keeps this value. Then nothing is read ahead
        # until _read_missing sets _ahead_end again.
        self._ahead_end = len(model.infos)
        # thread.submit raises RuntimeError after close() or after the main thread's exit. No batch
        # is then read ahead.
        with contextlib.suppress(RuntimeError):
            thread = self._thread or concurrent.futures.ThreadPoolExecutor(1, "penstock-ahead")
            self._thread = thread
            self._ahead = thread.submit(self._load, model, first, end, self._ahead_stop)
            self._ahead_end = end

    def _sequential(self, index: int) -> bool:
        """Returns whether a request for tensor `index` continues the file order. Records the
        request.

        If another thread made the last request, `index` may be up to NEAR_TENSORS away from the
        next tensor in file order."""
        near = 0 if self._last_reader in (0, threading.get_ident()) else NEAR_TENSORS
        found = self._next >= 0 and abs(index - self._next) <= near
        self._next = max(self._next, index + 1) if found else index + 1
        self._last_reader = threading.get_ident()
        return found

    def _read_missing(self, model: Model, index: int, sequential: bool) -> Any:
        """Reads a tensor that is not in the cache. A sequential read also reads the following
        tensors of the same batch."""
        if not sequential or index < self._next - 1:
            # Read this tensor only, so that the cache keeps the batch of the sequential readers.
            return self._load(model, index, index + 1)[index]
        end = self._batch_end(model, index)
        try:
            batch = self._load(model, index, end)
        except PenstockError:  # Another tensor of the batch may be the cause: read this one.
            end = index + 1
            batch = self._load(model, index, end)
        tensor = batch.pop(index)
        self._cache, self._ahead_end, self._ahead = batch, end, None
        return tensor

    @staticmethod
    def _batch_end(model: Model, first: int) -> int:
        """Returns the index after the last tensor of the batch that begins with tensor `first`.

        A batch has at most AHEAD_BYTES, or is a single longer tensor."""
        infos, size, end = model.infos, 0, first
        while end < len(infos) and (end == first or size + infos[end].nbytes <= AHEAD_BYTES):
            size += infos[end].nbytes
            end += 1
        return end

    def _load(self, model: Model, first: int, end: int,
              stop: Optional[_ReadAheadStop] = None) -> Dict[int, Any]:
        """Loads tensors `first` to `end` - 1. Returns a dict from index to tensor."""
        if end == first + 1 and stop is None and self._opened is not None:
            short = self._short
            if short is None:
                short = self._short = ShortReads(model, self.device, self.framework, self._how)
            tensor = short.read(model.infos[first])
            if tensor is not None:
                return {first: tensor}
        how = self._how if stop is None else {**self._how, "stop": stop}
        tensors = model.load(self.device, self.framework, first=first, count=end - first,
                             **how)[0]
        return {i: tensors[model.infos[i].name] for i in range(first, end)}

    def _read_box(self, model: Model, info: Info, ranges: Sequence[Tuple[int, int]]) -> Any:
        """Reads the part of a tensor that `ranges` selects: (first, count) for each dimension."""
        value = allocate_as(info.dtype, [count for _, count in ranges], self.device,
                            self.framework)
        pieces = pieces_of(info, ranges, place_of(value), open_device(self.device))
        model.load_into(pieces, **self._how)
        return convert(value, self.framework) if isinstance(value, Tensor) else value

    def _read_rows(self, model: Model, info: Info, ranges: Sequence[Tuple[int, int]], dim: int,
                   rows: Sequence[int]) -> Any:
        """Reads the listed rows of dimension `dim`, in the order of the list.

        Consecutive row indices in the list become one piece of the read."""
        shape = [count for _, count in ranges]
        shape[dim] = len(rows)
        value, pieces, at = allocate_as(info.dtype, shape, self.device, self.framework), [], 0
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


_all_opened: "weakref.WeakSet[safe_open]" = weakref.WeakSet()


def _in_child() -> None:
    for opened in list(_all_opened):
        opened._in_child()


os.register_at_fork(after_in_child=_in_child)


# ---- saving ----------------------------------------------------------------------

def _in_file_order(value: Any) -> Any:
    """Returns a numpy array without gaps and in little-endian byte order, as files store it.

    Copies an array that has gaps or another byte order. Returns any other value unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray) or value.dtype.kind == "O":
        return value
    if value.flags.c_contiguous and value.dtype.isnative:
        return value
    return numpy.array(value, value.dtype.newbyteorder("<"), order="C")


def _refuse_shared(tensors: Mapping[str, Any], places: Mapping[str, Place]) -> None:
    """Raises RuntimeError, as the safetensors package does, if two torch tensors share memory.
    Loading the saved file would return separate tensors that no longer share memory."""
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
    """Writes tensors from GPUs or host memory into one safetensors file.

    The file appears under its name, or replaces an older file, only when it is complete.

    Args:
        tensors: a dict from name to tensor, of any type that load_into accepts. The tensors
            must be contiguous, except numpy arrays, which are copied if they have gaps.
        filename: the path of the file.
        metadata: a dict from str to str for the file's header; None for no metadata.
        durable: True makes the call wait until the file would survive a power cut.
        require: "any", "no-cpu-copy" or "direct", as in Model.load.
        effort: "thrifty", "balanced" or "fast", as in Model.load.
        path: name of the only I/O path to use, for tests.

    Raises:
        ValueError, TypeError: a tensor or the metadata cannot be saved.
        RuntimeError: two torch tensors share memory.
        ClassRefusedError, PenstockError: the file could not be written; an older file of
            this name is unchanged.
    """
    if require not in CLASSES or effort not in EFFORTS:
        raise ValueError(f"require must be one of {list(CLASSES)}, effort one of {list(EFFORTS)}")
    if not isinstance(tensors, Mapping):
        raise ValueError(f"tensors must be a mapping from name to tensor, not a "
                         f"{type(tensors).__name__}")
    places = {}
    for name, value in tensors.items():
        try:
            places[name] = _place_of_argument(_in_file_order(value))
        except (BufferError, TypeError, ValueError) as error:
            raise _with_place(name, error) from error
    _refuse_shared(tensors, places)
    save_places(places, filename, metadata, durable=durable, require=require, effort=effort,
                path=path)


def save_places(places: Mapping[str, Place], filename: PathLike,
                metadata: Optional[Mapping[str, str]] = None, *, durable: bool = False,
                require: str = "any", effort: str = "thrifty", path: Optional[str] = None
                ) -> Report:
    """Writes the memory that each Place describes into one safetensors file, as save_file does. The
    memory of two Places may overlap."""
    synchronize_all(place.device for place in places.values())
    keep: List[Any] = [places]
    table = ffi.new("struct penstock_out[]", len(places) or 1)
    for row, (name, place) in zip(table, places.items()):
        if place.nbytes and place.split():
            raise ValueError(f"{name}: a tensor with gaps cannot be saved; make it contiguous")
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
            raise TypeError("metadata must be a mapping from str to str")
        opts.keys = c_strings(list(metadata), keep, str.encode)
        opts.values = c_strings(list(metadata.values()), keep, str.encode)
        opts.pair_count = len(metadata)
    name, caught, report = os.fspath(filename), install_stop_check(opts, keep), new_report()
    code = lib.penstock_weights_save(to_c(name), table, len(places), opts, report)
    raise_caught(caught)
    check(code, name)
    return Report(report)


__all__ = ["Slice", "allocate", "device_name", "iterate", "load_file", "load_into", "safe_open",
           "save_file"]
