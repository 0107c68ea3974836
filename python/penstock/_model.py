# SPDX-License-Identifier: Apache-2.0
"""Model: the open files of a model, and three ways to load the tensors: all at once, into the
caller's memory, or one after the other.

This module only converts arguments and results. The C library does the layout, planning,
reading and checking (penstock_weights.h)."""

from __future__ import annotations

import errno
import functools
import importlib.util
import itertools
import math
import operator
import os
import struct
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ._dtensor import Box, local_box, make_dtensor, placements_for
from ._dtypes import BITS, CODES, NAMES, torch_shape
from ._group import Group, GroupLike, joined
from ._cuda import synchronize_all
from ._lib import (FormatError, NotFoundError, PenstockError, also_safetensor_error,
                   call_for_handle, check, ffi, handle_name, install_stop_check, lib, open_device,
                   paths_of, raise_caught, to_c, unsigned)
from ._memory import torch_block
from ._progress import Meter, Progress
from ._report import Report, new_report
from ._reopen import open_again, with_absolute_paths
from ._tensor import Memory, Place, Tensor, place_of

PathLike = Union[str, "os.PathLike[str]"]
EFFORTS = {"thrifty": 0, "fast": 1, "balanced": 2}
FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy",
              "numpy": "numpy", "dlpack": "dlpack", "flax": "jax", "jax": "jax"}
CLASSES = {"any": 0, "no-cpu-copy": 1, "direct": 2}
# Size of a request in bytes if a program wants to know the progress of a load. Smaller requests
# would make the load slower.
STEP_BYTES = 256 << 20
# Number of places at which a load with keep_cached checks whether the files are cached.
CACHE_SAMPLES = 256


def framework_of(name: Optional[str]) -> str:
    """Returns "torch", "numpy", "jax" or "dlpack" for any accepted name of a framework.

    None and "auto" mean torch if it is installed, else "dlpack"."""
    if name in (None, "auto"):
        if "torch" in sys.modules or importlib.util.find_spec("torch"):
            return "torch"
        return "dlpack"
    if name not in FRAMEWORKS:
        raise also_safetensor_error(ValueError)(
            f"unknown framework '{name}': use 'pt', 'numpy', 'jax' or 'dlpack'")
    return FRAMEWORKS[name]


def device_for(device: Any, framework: str) -> Any:
    """Returns the device on which to create tensors of a framework. This is `device`, but "cpu"
    instead of "auto" if the installed torch cannot use GPUs."""
    if framework == "torch" and isinstance(device, str) and device == "auto":
        import torch
        return device if torch.cuda.is_available() else "cpu"
    return device


def convert(tensor: Tensor, framework: str) -> Any:
    """Returns a tensor of `framework` that shares the memory of `tensor`."""
    if framework == "jax":
        import jax.dlpack
        import jax.numpy
        if tensor.device != "host":
            return jax.dlpack.from_dlpack(tensor)
        return jax.numpy.asarray(tensor.numpy())
    return tensor.to(framework)


class Info:
    """The description of a tensor in a file.

    Attributes: index (the tensor's position in the model, in file order), name, dtype (such as
    "BF16"), shape, nbytes, file (the index of the tensor's file) and offset (the offset of
    the tensor's first byte in that file)."""

    __slots__ = ("index", "name", "dtype", "shape", "nbytes", "file", "offset")

    def __init__(self, index: int, name: str, dtype: str, shape: Tuple[int, ...], nbytes: int,
                 file: int, offset: int) -> None:
        self.index, self.name, self.dtype, self.shape = index, name, dtype, shape
        self.nbytes, self.file, self.offset = nbytes, file, offset

    def __repr__(self) -> str:
        return f"penstock.Info({self.name!r}, {self.dtype}, {self.shape})"


class _Columns:
    """The descriptions of all tensors of a model, one list for each field.

    A model may have ten thousand tensors. Creating an object for each would take longer than
    the rest of opening the model."""

    def __init__(self, handle: Any) -> None:
        count, unpack = lib.penstock_weights_count(handle), ffi.unpack
        size = ffi.sizeof("struct penstock_tensor")
        rows = ffi.new("struct penstock_tensor[]", count)
        ffi.buffer(rows)[:] = (size.to_bytes(8, sys.byteorder) + bytes(size - 8)) * count
        for i in range(count):
            lib.penstock_weights_get(handle, i, rows + i)
        fields: Sequence[Sequence[int]] = \
            list(zip(*_ROW.iter_unpack(ffi.buffer(rows)))) if count else [()] * 8
        _, name, dtype, rank, shape, self.nbytes, self.file, self.offset = fields
        self.dtype = [NAMES[code] for code in dtype]
        self.name = [text.decode() for text in map(ffi.string, _pointers("char *", name))]
        self.shape = [tuple(unpack(at, n)) if n else () for at, n in
                      zip(_pointers("uint64_t *", shape), rank)]


# The memory layouts of struct penstock_tensor and struct penstock_piece.
_ROW = struct.Struct("@NPIIPQIQ")
_PIECE = struct.Struct("@NQIQQQQPPQQI4x")
assert _ROW.size == ffi.sizeof("struct penstock_tensor")
assert _PIECE.size == ffi.sizeof("struct penstock_piece")


def _pointers(kind: str, addresses: Sequence[int]) -> Any:
    """Returns a C array of pointers of type `kind` from a list of addresses."""
    table = ffi.new(f"{kind}[]", len(addresses))
    ffi.buffer(table)[:] = struct.pack(f"{len(addresses)}P", *addresses)
    return table


def c_strings(values: Sequence[Any], keep: List[Any],
              encode: Callable[[Any], bytes] = os.fsencode) -> Any:
    """Returns a C array of strings. `keep` receives the objects that own the array's memory."""
    items = [ffi.new("char[]", to_c(v, encode)) for v in values]
    table = ffi.new("char *[]", items)
    keep += [items, table]
    return ffi.cast("const char *const *", table)


class Model:
    """An opened model: its files and the descriptions of its tensors. A process that unpickles a
    Model opens the files again. Use it as a context manager, or call close().

    Args:
        path: a safetensors file, an index (*.json), a folder, a Hugging Face cache folder,
            "owner/name" in that cache, or a list of files.
        names: names or shell patterns of the tensors to include. Default: all tensors. A name
            without wildcards must exist.
        stripes: further folders, on other drives, that hold parts of the model; all drives
            are read at the same time.
        revision: a branch, tag or commit in the Hugging Face cache. Default: "main", or the
            only revision in the cache.
        cache: the folder of the Hugging Face cache. Default: $HF_HUB_CACHE, then
            $HF_HOME/hub, then huggingface/hub in $XDG_CACHE_HOME or ~/.cache.
        immutable: True promises that the files do not change while the model is open. Repeated
            loads are then faster.

    Raises:
        NotFoundError: the model does not exist, or has no tensor for a name in `names`.
        FormatError: a file does not follow its format.
        ValueError: `names` is empty.
    """

    def __init__(self, path: Union[PathLike, Sequence[PathLike]], *,
                 names: Optional[Sequence[str]] = None, stripes: Sequence[PathLike] = (),
                 revision: Optional[str] = None, cache: Optional[PathLike] = None,
                 immutable: bool = False) -> None:
        paths = paths_of(path)
        self.path = os.fsdecode(paths[0]) if paths else ""
        keep: List[Any] = []
        opts = ffi.new("struct penstock_weights_opts *")
        opts.size = ffi.sizeof("struct penstock_weights_opts")
        if names is not None:
            names = [names] if isinstance(names, str) else list(names)
            if not names:
                raise ValueError("names is empty; leave it out to load all tensors")
            opts.names, opts.name_count = c_strings(names, keep, str.encode), len(names)
        if stripes:
            opts.dirs = c_strings([os.fspath(s) for s in stripes], keep)
            opts.dir_count = len(stripes)
        if revision is not None:
            keep.append(ffi.new("char[]", to_c(revision, str.encode)))
            opts.revision = keep[-1]
        if cache is not None:
            keep.append(ffi.new("char[]", to_c(cache)))
            opts.cache = keep[-1]
        opts.flags = 1 if immutable else 0
        code, handle = call_for_handle("struct penstock_weights **", lib.penstock_weights_close,
                                       lib.penstock_weights_open_list,
                                       c_strings([os.fspath(p) for p in paths], keep), len(paths),
                                       opts)
        check(code, self.path)
        self._handle: Any = handle
        # the arguments with which another process opens the model again
        self._arguments = with_absolute_paths({
            "path": paths, "names": names, "stripes": list(stripes), "revision": revision,
            "cache": cache, "immutable": immutable})
        self._columns: Optional[_Columns] = None
        self._infos: Optional[List[Info]] = None
        self._by_name: Dict[str, Info] = {}

    def __repr__(self) -> str:
        count = "closed" if self._handle is None else f"{len(self.columns.name)} tensors"
        return f"penstock.Model({self.path!r}, {count})"

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def handle(self) -> Any:
        """The library's handle. Raises ValueError after close()."""
        if self._handle is None:
            raise also_safetensor_error(ValueError)("the model is closed")
        return self._handle

    def __reduce__(self) -> Any:
        """Pickles the arguments of the model. The process that unpickles them opens the model
        again."""
        return open_again, (type(self), self.reopening())

    def reopening(self) -> Dict[str, Any]:
        """Returns the arguments with which another process opens this model. Raises ValueError
        after close()."""
        self.handle  # pylint: disable=pointless-statement
        return self._arguments

    def __copy__(self) -> "Model":
        """Returns a Model that shares the open files."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def columns(self) -> _Columns:
        """The descriptions of all tensors, one list for each field."""
        if self._columns is None:
            self._columns = _Columns(self.handle)
        return self._columns

    @property
    def infos(self) -> List[Info]:
        """The descriptions of all tensors, as Info objects in file order."""
        if self._infos is None:
            c = self.columns
            infos = list(map(Info, range(len(c.name)), c.name, c.dtype, c.shape, c.nbytes, c.file,
                             c.offset))
            self._by_name = {info.name: info for info in infos}
            self._infos = infos  # Set last: another thread may already read the list.
        return self._infos

    def info(self, name: str) -> Info:
        """Returns the Info of the tensor `name`. Raises NotFoundError if there is none."""
        self.infos  # pylint: disable=pointless-statement
        try:
            return self._by_name[name]
        except KeyError:
            check(lib.penstock_weights_find(self.handle, to_c(name, str.encode)), self.path)
            raise

    def _file(self, file: int) -> Any:
        f = ffi.new("struct penstock_weights_file *")
        f.size = ffi.sizeof("struct penstock_weights_file")
        check(lib.penstock_weights_get_file(self.handle, file, f))
        return f

    def where(self, info: Info) -> str:
        """Returns "FILE: tensor 'NAME'", with which the library's error messages begin."""
        return f"{os.fsdecode(ffi.string(self._file(info.file).path))}: tensor '{info.name}'"

    def has_metadata(self, file: int = 0) -> bool:
        """Returns whether the file with this index has metadata, even if it is empty."""
        return bool(self._file(file).has_metadata)

    def metadata(self, file: int = 0) -> Dict[str, str]:
        """Returns the metadata of the file with this index as a dict."""
        f = self._file(file)
        key, value, found = ffi.new("const char **"), ffi.new("const char **"), {}
        for i in range(f.pair_count):
            check(lib.penstock_weights_get_metadata(self.handle, file, i, key, value))
            found[ffi.string(key[0]).decode()] = ffi.string(value[0]).decode()
        return found

    def data_offset(self, file: int) -> int:
        """Returns the offset of the first tensor in the file with this index."""
        return int(self._file(file).data_off)

    def close(self) -> None:
        """Closes the files. Tensors that were loaded stay valid. Iterators stay usable, and keep
        the files open. A load that another thread has started goes on."""
        # The library closes the model when the last reference to the handle is dropped. Copies of
        # this object have such references, and calls of the library in other threads.
        self._handle = None

    # ---- loading -----------------------------------------------------------------

    def options(self, *, require: str = "any", effort: Optional[str] = None, align: int = 0,
                window: int = 0, ranks: int = 1, keep_cached: bool = False,
                stop: Optional[threading.Event] = None, path: Optional[str] = None
                ) -> Tuple[Any, List[Any], List[BaseException]]:
        """Returns struct penstock_load_opts for a load.

        Also returns a list of objects that must live as long as the struct, and the list that
        install_stop_check returned. Without `effort`, the default effort is chosen for `ranks`
        processes that load at the same time."""
        if require not in CLASSES or effort not in (None, *EFFORTS):
            raise ValueError(f"require must be one of {list(CLASSES)}, effort one of "
                             f"{list(EFFORTS)}")
        if keep_cached:
            if require != "any" or path is not None:
                raise ValueError("keep_cached=True reads through the page cache, so it excludes "
                                 "the arguments require and path")
            if not self._is_cached():
                path, effort = "bounce", effort or "fast"
        opts, keep = ffi.new("struct penstock_load_opts *"), []
        opts.size = ffi.sizeof("struct penstock_load_opts")
        opts.require = CLASSES[require]
        opts.effort = lib.penstock_weights_effort(self.handle, unsigned("ranks", ranks)) \
            if effort is None else EFFORTS[effort]
        opts.align, opts.window = unsigned("align", align, 64), unsigned("window", window, 64)
        if path is not None:
            keep.append(ffi.new("char[]", to_c(path, str.encode)))
            opts.path = keep[0]
        return opts, keep, install_stop_check(opts, keep, stop)

    def _is_cached(self) -> bool:
        """Returns whether the tensors are in the page cache. Checks CACHE_SAMPLES places."""
        columns = self.columns
        step = max(1, sum(columns.nbytes) // CACHE_SAMPLES)
        for file in range(lib.penstock_weights_file_count(self.handle)):
            rows = [(offset, nbytes) for number, offset, nbytes in
                    zip(columns.file, columns.offset, columns.nbytes) if number == file and nbytes]
            data = sorted({offset + at for offset, nbytes in rows
                           for at in (nbytes // 2, *range(0, nbytes, step))})
            places = data[::max(1, len(data) // CACHE_SAMPLES)]
            try:
                fd = os.open(ffi.string(self._file(file).path), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            try:
                for offset in places:
                    os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
            except OSError:  # EAGAIN: the page is not cached. EOPNOTSUPP: it is not known.
                return False
            finally:
                os.close(fd)
        return True

    def shard(self, index: int, how: Any) -> Any:
        """Returns struct penstock_shard: the part of tensor `index` that a rank needs."""
        out = ffi.new("struct penstock_shard *")
        out.size = ffi.sizeof("struct penstock_shard")
        check(lib.penstock_weights_shard(self.handle, index, how, out), self.path)
        return out

    def load(self, device: Any = "host", framework: Optional[str] = None, *, first: int = 0,
             count: int = 0, shard: Optional[Mapping[str, Any]] = None,
             group: Optional[GroupLike] = None, require: str = "any",
             effort: Optional[str] = None, align: int = 0, one_storage: bool = False,
             keep_cached: bool = False, ranks: int = 1, progress: Progress = False,
             stop: Optional[threading.Event] = None, path: Optional[str] = None
             ) -> Tuple[Dict[str, Any], Report]:
        """Loads all tensors, or some consecutive ones, into one new allocation on a device.

        Args:
            first: index of the first tensor to load.
            count: number of tensors to load; 0 means all from `first` on.
            device, framework, shard, group, require, effort, align, one_storage, keep_cached,
                ranks, progress, stop, path: as in penstock.load_file.

        Returns:
            (tensors, report): a dict from name to tensor, and a Report. The allocation is
            freed with the last of the tensors.

        Raises:
            ClassRefusedError, NotFoundError, PenstockError: as in penstock.load_file.
        """
        how = {"require": require, "effort": effort, "align": align, "keep_cached": keep_cached,
               "ranks": ranks, "stop": stop, "path": path}
        first, count = unsigned("first", first, 64), unsigned("count", count, 64)
        with joined(group) as members:
            if shard is not None and not {"mesh", "placements"}.isdisjoint(shard):
                return self._load_dtensors(device, framework, slice(first, first + count or None),
                                           shard, members, one_storage, progress, how)
            return self._load(device, framework, first, count, shard, members, one_storage,
                              progress, how)

    def _load(self, device: Any, framework: Optional[str], first: int, count: int,
              shard: Optional[Mapping[str, Any]], group: Optional[Group], one_storage: bool,
              progress: Progress, how: Mapping[str, Any]) -> Tuple[Dict[str, Any], Report]:
        """Implements load, except for DTensors. `how` has the keyword arguments of options()."""
        framework = framework_of(framework)
        handle = open_device(device_for(device, framework))
        name = handle_name(handle)
        opts, keep, caught = self.options(**{**how, **_ranks_option(group)})
        opts.first, opts.count = first, count
        columns, wanted = self.columns, slice(first, first + count if count else None)
        names, dtypes, shapes = columns.name[wanted], columns.dtype[wanted], columns.shape[wanted]
        nbytes = columns.nbytes[wanted]
        union = sum(nbytes)
        indices: Sequence[int] = range(len(columns.name))[wanted]
        if shard is not None:
            rank, _rules = shard_options(shard)
            opts.shard = rank
            parts = [(i, self.shard(i, rank)) for i in indices]
            parts = [(i, part) for i, part in parts if part.piece_count]
            indices = [i for i, _ in parts]
            names, dtypes = [columns.name[i] for i in indices], [columns.dtype[i] for i in indices]
            shapes = [tuple(part.shape[0:part.rank]) for _, part in parts]
            nbytes = tuple(part.bytes for _, part in parts)
        if framework == "torch" and "F4" in dtypes:
            for dtype, shape in zip(dtypes, shapes):
                torch_shape(dtype, shape)  # Raises ValueError before the bytes move.
        torch_memory = _TorchMemory(opts) if framework == "torch" and name != "host" else None
        report, devices = new_report(), ffi.new("struct penstock_device *[]", [handle])
        call, leading = (lib.penstock_weights_load, (self.handle,)) if group is None else \
            (lib.penstock_group_load, (group.handle_for_load(), self.handle))
        with self._meter(progress, sum(nbytes), union, group) as meter:
            _install_meter(opts, keep, caught, meter)
            code, loaded = call_for_handle("struct penstock_loaded **", lib.penstock_loaded_free,
                                           call, *leading, devices, 1, opts, report)
            if code < 0 and torch_memory is not None and torch_memory.error is not None:
                raise torch_memory.error
            raise_caught(caught)
            check(code, self.path)
        at = _addresses(loaded, indices)
        # `base` is the first tensor's address, rounded down to a multiple of 16. It is inside the
        # allocation, which starts at a page. It is a multiple of every element size, because no
        # element is larger than 16 bytes.
        base = min(at, default=0) & -16
        memory = Memory(base, max(map(operator.add, at, nbytes), default=0) - base, name,
                        (loaded, torch_memory))
        if torch_memory is not None:
            memory.use_torch_tensor(torch_memory.tensor)
        if framework == "torch":
            tensors = dict(zip(names, memory.torch_all(dtypes, shapes, at, one_storage)))
        else:
            tensors = {title: convert(Tensor(dtype, shape, name, ptr, memory), framework)
                       for title, dtype, shape, ptr in zip(names, dtypes, shapes, at)}
        return tensors, Report(report)

    def _meter(self, progress: Progress, total: int, union: int, group: Optional[Group]) -> Meter:
        """Returns the Meter that reports the progress of a load. The load delivers `total` bytes to
        this process.

        `union` is the number of bytes that all processes of the group need. Each of them reads
        about the same share of these bytes."""
        scale = 1.0 if group is None or not union else group.ranks * total / union
        return Meter(progress, total, os.path.basename(self.path), scale,
                     group is None or group.rank == 0)

    def _load_dtensors(self, device: Any, framework: Optional[str], wanted: slice,
                       shard: Mapping[str, Any], group: Optional[Group], one_storage: bool,
                       progress: Progress, how: Mapping[str, Any]
                       ) -> Tuple[Dict[str, Any], Report]:
        """Loads this process's part of each tensor, and returns the tensors as DTensors."""
        if shard.keys() != {"mesh", "placements"}:
            raise ValueError("a shard with a mesh has exactly the keys 'mesh' and 'placements', "
                             f"not {sorted(shard)}")
        if framework_of(framework) != "torch":
            raise ValueError("a shard with a mesh needs framework='pt', because only torch has "
                             "DTensors")
        mesh, infos = shard["mesh"], self.infos[wanted]
        chosen = [placements_for(info.name, shard["placements"], mesh) for info in infos]
        boxes = [dtensor_box(info, mesh, one) for info, one in zip(infos, chosen)]
        shapes = [tuple(count for _, count in box) for box in boxes]
        align, at, size = max(16, how["align"]), [], 0
        for info, shape in zip(infos, shapes):
            at.append(size)
            size += -(-math.prod(shape) * BITS[info.dtype] // 8 // align) * align
        memory, handle = torch_block(size, device), open_device(device)
        parts = memory.torch_all([info.dtype for info in infos], shapes,
                                 [memory.base + offset for offset in at], one_storage)
        pieces: List[Any] = []
        for info, box, part in zip(infos, boxes, parts):
            pieces += pieces_of(info, box, place_of(part), handle)
        report = self.load_into(pieces, group, progress=progress,
                                **{name: how[name] for name in how if name != "align"})
        tensors = {info.name: make_dtensor(part, torch_shape(info.dtype, info.shape), mesh, one)
                   for info, part, one in zip(infos, parts, chosen)}
        return tensors, report

    def load_into(self, pieces: Sequence[Any], group: Optional[GroupLike] = None, *,
                  require: str = "any", effort: Optional[str] = None, keep_cached: bool = False,
                  ranks: int = 1, progress: Progress = False,
                  stop: Optional[threading.Event] = None, path: Optional[str] = None) -> Report:
        """Loads `pieces`, as pieces_of returns them, into the caller's memory.

        All pieces form one load. With `group` the pieces of all its ranks form one load.
        Returns a Report. The other arguments are as in penstock.load_file."""
        how = {"require": require, "effort": effort, "keep_cached": keep_cached, "ranks": ranks,
               "stop": stop, "path": path}
        with joined(group) as members:
            return self._load_into(pieces, members, progress, how)

    def _load_into(self, pieces: Sequence[Any], group: Optional[Group], progress: Progress,
                   how: Mapping[str, Any]) -> Report:
        """Implements load_into. `how` has the keyword arguments of options()."""
        opts, keep, caught = self.options(**{**how, **_ranks_option(group)})
        nbytes = self.columns.nbytes
        table, report = ffi.new("struct penstock_piece[]", len(pieces) or 1), new_report()
        size, devices = ffi.sizeof("struct penstock_piece"), {piece[-1] for piece in pieces}
        address = {dev: int(ffi.cast("uintptr_t", dev)) for dev in devices}
        ffi.buffer(table)[:size * len(pieces)] = b"".join(
            [_PIECE.pack(size, tensor, dim, first, count, outer_first, outer_count, address[dev],
                         ptr, room, pitch, dtype)
             for tensor, dim, first, count, outer_first, outer_count, ptr, room, pitch, dtype, dev
             in pieces])
        union = sum(nbytes[tensor] for tensor in {piece[0] for piece in pieces})
        with self._meter(progress, sum(map(_piece_bytes, pieces)), union, group) as meter:
            _install_meter(opts, keep, caught, meter)
            code = lib.penstock_weights_load_into(self.handle, table, len(pieces), opts, report) \
                if group is None else \
                lib.penstock_group_load_into(group.handle_for_load(), self.handle, table,
                                             len(pieces), opts, report)
            raise_caught(caught)
            check(code, self.path)
        return Report(report)

    def iterate(self, device: Any = "host", framework: Optional[str] = None, window: int = 0, *,
                require: str = "any", effort: Optional[str] = None, align: int = 0,
                keep_cached: bool = False, ranks: int = 1, progress: Progress = False,
                stop: Optional[threading.Event] = None, path: Optional[str] = None
                ) -> Iterator[Tuple[str, Any]]:
        """Returns an iterator over (name, tensor) in file order, like penstock.iterate."""
        framework = framework_of(framework)
        handle = open_device(device_for(device, framework))
        opts, keep, caught = self.options(window=window, require=require, effort=effort,
                                          align=align, keep_cached=keep_cached, ranks=ranks,
                                          stop=stop, path=path)
        code, it = call_for_handle("struct penstock_weights_iter **",
                                   lib.penstock_weights_iter_close,
                                   lib.penstock_weights_iter_open, self.handle, handle, opts)
        check(code, self.path)
        total = sum(self.columns.nbytes)
        self.infos  # pylint: disable=pointless-statement
        return self._steps(_Window(it, handle_name(handle), window, keep, caught), framework,
                           self._meter(progress, total, total, None))

    def _steps(self, window: "_Window", framework: str, meter: Meter
               ) -> Iterator[Tuple[str, Any]]:
        tensor, ptr = ffi.new("uint64_t *"), ffi.new("void **")
        infos = self.infos
        if framework == "torch" and "F4" in self.columns.dtype:
            for info in infos:
                torch_shape(info.dtype, info.shape)  # Raises ValueError before the bytes move.
        with meter:
            while window.next(tensor, ptr, self.path):
                info, base = infos[tensor[0]], int(ffi.cast("uintptr_t", ptr[0]))
                memory = Memory(base, info.nbytes, window.device,
                                window.lease(tensor[0], info.nbytes))
                meter.add(info.nbytes)
                yield info.name, convert(Tensor(info.dtype, info.shape, window.device, base,
                                                memory), framework)
                del memory


class _Window:
    """Wraps an iterator of the library. Collects the tensors whose last reference the caller has
    dropped, and returns their memory to the library in batches.

    Before the library reuses the memory, this class must wait for the GPU, because the caller may
    have queued copies out of the tensors. A single wait is enough for all tensors of a batch."""

    def __init__(self, it: Any, device: str, size: int, keep: Any,
                 caught: List[BaseException]) -> None:
        self.it, self.device, self.keep, self.caught = it, device, keep, caught
        self.batch_bytes = 0 if device == "host" else (size or 1 << 30) // 16
        self.dropped: Dict[int, Any] = {}
        self.bytes = 0  # Number of bytes yielded since the last release.

    def lease(self, tensor: int, nbytes: int) -> Any:
        """Returns an object whose destruction adds `tensor` to self.dropped.

        The caller's tensor refers to this object, so both are destroyed together. A later call of
        next() then releases the tensor's memory. The destructor is dict.setdefault and not Python
        code, for the reason that _release_reference in _tensor.py explains."""
        self.bytes += nbytes
        return ffi.gc(_NONE, functools.partial(self.dropped.setdefault, tensor)), self

    def next(self, tensor: Any, ptr: Any, path: str) -> bool:
        """Waits for the next tensor and stores its index and address. Returns False after the
        last tensor."""
        if self.bytes >= self.batch_bytes:
            self.release()
        code = lib.penstock_weights_iter_next(self.it, tensor, ptr)
        if code == -errno.ENOBUFS and self.dropped:
            self.release()
            code = lib.penstock_weights_iter_next(self.it, tensor, ptr)
        raise_caught(self.caught)
        return check(code, path) > 0

    def release(self) -> None:
        """Returns the memory of all dropped tensors to the library."""
        self.bytes = 0
        # Releases only the tensors that were dropped before the wait for the GPU. Other threads
        # may drop more tensors during the wait, and the GPU may still use those tensors after
        # it.
        count = len(self.dropped)
        if count:
            synchronize_all([self.device])
        for tensor in list(self.dropped)[:count]:
            del self.dropped[tensor]
            lib.penstock_weights_iter_release(self.it, tensor)


def _addresses(loaded: Any, indices: Sequence[int]) -> List[int]:
    """Returns the addresses of the tensors with these indices in a completed load."""
    found = map(lib.penstock_loaded_ptr, itertools.repeat(loaded), itertools.repeat(0), indices)
    table = ffi.new("void *[]", list(found))
    return list(memoryview(ffi.buffer(table)).cast("B").cast("P"))


def _ranks_option(group: Optional[Group]) -> Dict[str, Any]:
    """Returns the argument `ranks` of Model.options, as a dict, for a load by `group`."""
    return {} if group is None else {"ranks": group.ranks}


def _install_meter(opts: Any, keep: List[Any], caught: List[BaseException], meter: Meter) -> None:
    """Makes a load call meter.add after each of its requests. Limits a request to STEP_BYTES, so
    that the load calls it often enough.

    If meter.add raises, the library ends the load, and the exception is appended to `caught`."""
    if not meter.active:
        return
    opts.request_bytes = STEP_BYTES

    def each(_user: Any, _file: int, report: Any) -> int:
        meter.add(int(report.bytes))
        return 0

    keep.append(ffi.callback("int(void *, unsigned, const struct penstock_report *)", each,
                             error=1, onerror=lambda _kind, error, _trace: caught.append(error)))
    opts.each = keep[-1]


def _piece_bytes(piece: Sequence[Any]) -> int:
    """Returns the number of bytes that a piece (see pieces_of) delivers, without the gaps between
    its rows."""
    rows, room, pitch = int(piece[5]), int(piece[7]), int(piece[8])
    return (room - (rows - 1) * pitch) * rows if pitch else room


class _TorchMemory:
    """Makes a load take its GPU memory from torch's allocator.

    torch then counts the memory in its statistics and reuses it for other tensors."""

    def __init__(self, opts: Any) -> None:
        self.tensor: Any = None
        # The exception that `alloc` raised, such as torch.OutOfMemoryError. load raises it
        # again unchanged, because programs catch torch's own exception types.
        self.error: Optional[BaseException] = None
        self.start = 0

        def failed(_kind: Any, error: BaseException, _trace: Any) -> None:
            self.error = error

        @ffi.callback("void *(void *, struct penstock_device *, size_t, size_t)", error=ffi.NULL,
                      onerror=failed)
        def alloc(_user: Any, dev: Any, length: int, align: int) -> Any:
            import torch
            self.tensor = torch.empty(length + align, dtype=torch.uint8, device=handle_name(dev))
            # torch may have freed this memory while kernels that use it were still queued on a
            # stream. torch makes its own streams wait for these kernels, but not the library's
            # streams.
            synchronize_all([handle_name(dev)])
            self.start = -(-self.tensor.data_ptr() // align) * align
            return ffi.cast("void *", self.start)

        @ffi.callback("void(void *, struct penstock_device *, void *, size_t)", onerror=failed)
        def free(_user: Any, _dev: Any, _ptr: Any, _length: int) -> None:
            self.tensor = None

        self.calls = (alloc, free)
        opts.alloc, opts.free = alloc, free


CUTS = {"whole": "WHOLE", "first": "FIRST", "last": "LAST", "heads": "HEADS", "qkv": "QKV",
        "halves": "HALVES", "last-halves": "LAST_HALVES", "words": "WORDS", "inner": "INNER",
        "queries": "QUERIES"}


def shard_options(values: Mapping[str, Any]) -> Tuple[Any, List[Any]]:
    """Returns struct penstock_shard_opts, and a list of objects that the struct points to.

    `values` is the argument `shard` of Model.load."""
    opts, keep = ffi.new("struct penstock_shard_opts *"), []
    opts.size, opts.ranks, opts.expert_ranks = ffi.sizeof("struct penstock_shard_opts"), 1, 1
    known = {"rank", "ranks", "expert_rank", "expert_ranks", "heads", "kv_heads", "experts"}
    rules = list(values.get("rules", ()))
    for name, value in values.items():
        if name not in known | {"rules"}:
            raise ValueError(f"shard has no key '{name}'; keys are {sorted(known)} and 'rules'")
        if name != "rules":
            setattr(opts, name, unsigned(name, value))
    table = ffi.new("struct penstock_cut_rule[]", len(rules) or 1)
    for row, (glob, cut) in zip(table, rules):
        if cut not in CUTS:
            raise ValueError(f"unknown cut '{cut}' in shard's rules; use one of {sorted(CUTS)}")
        keep.append(ffi.new("char[]", to_c(glob, str.encode)))
        row.glob, row.cut = keep[-1], getattr(lib, "PENSTOCK_CUT_" + CUTS[cut])
    opts.rules, opts.rule_count = table, len(rules)
    return opts, keep + [table]


_NONE = ffi.new("char[]", b"none")

# ---- ranges ----------------------------------------------------------------------


def ranges_of(shape: Sequence[int], index: Any) -> Tuple[List[Tuple[int, int]], Any]:
    """Splits an index into a box of elements to read, and an index to apply to that box.

    Returns the box as a list of (first, count), one for each dimension. Also returns a second
    index, which selects the elements of `index` from the box. For a dimension, it is a slice with
    the step if `index` has a range there, and 0 if `index` has a number."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise also_safetensor_error(IndexError)("more than one ellipsis")
    if dots:
        items[dots[0]:dots[0] + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    if len(items) > len(shape):
        raise also_safetensor_error(IndexError)(
            f"{len(items)} indices for a tensor of {len(shape)} dimensions")
    items += [slice(None)] * (len(shape) - len(items))
    ranges: List[Tuple[int, int]] = []
    rest: List[Any] = []
    for d, (item, size) in enumerate(zip(items, shape)):
        if isinstance(item, list) and not item:
            item = slice(0, 0)  # The safetensors package treats an empty list like this.
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            taken = range(start, stop, step)
            low = min(taken[0], taken[-1]) if taken else 0
            ranges.append((low, abs(taken[-1] - taken[0]) + 1 if taken else 0))
            rest.append(slice(None, None, step))
        elif hasattr(item, "__index__") and not getattr(item, "shape", ()):
            at = item.__index__()
            if not -size <= at < size:
                raise also_safetensor_error(IndexError)(
                    f"index {at} is out of range: dimension {d} has length {size}")
            ranges.append((at % size, 1))
            rest.append(0)
        else:
            raise also_safetensor_error(TypeError)(
                "an index must consist of numbers and ranges, not of " + type(item).__name__)
    return ranges, tuple(rest)


def whole_piece(info: Info, place: Place, dev: Any) -> Optional[List[Any]]:
    """Returns the only piece of a load of a whole tensor into a destination without gaps.

    This is a shortcut for the usual case; pieces_of returns the same piece. Returns None if the
    destination has gaps, another shape or another dtype."""
    if place.shape != info.shape or place.dtype != info.dtype or not place.writable or \
            not info.nbytes or place.split():
        return None
    return [(info.index, 0, 0, 0, 0, 0, place.ptr, info.nbytes, 0, CODES[info.dtype], dev)]


def pieces_of(info: Info, ranges: Sequence[Tuple[int, int]], place: Place, dev: Any) -> List[Any]:
    """Returns the pieces that load a box of a tensor into a destination of that shape.

    `ranges` is the box, (first, count) for each dimension; `dev` the destination's device. A
    piece is a tuple of the fields of struct penstock_piece, in the order of _PIECE."""
    shape, size = info.shape, BITS[info.dtype]
    counts = [count for _, count in ranges]
    if tuple(counts) != place.shape and [c for c in counts if c != 1] != \
            [c for c in place.shape if c != 1]:
        raise ValueError(f"a part of shape {tuple(counts)} does not fit a destination of shape "
                         f"{place.shape}")
    if place.dtype != info.dtype:
        raise TypeError(f"the tensor has dtype {info.dtype}, its destination {place.dtype}")
    if not place.writable:
        raise TypeError("the destination is read-only")
    if not info.nbytes or 0 in counts:
        return []
    strides = _strides_for(counts, place)
    cut = max((d for d, (_, count) in enumerate(ranges) if count != shape[d]), default=0)
    gap = _first_plain(counts, strides, size)
    # Dimensions from `dim` on are contiguous in the file and in memory: they form a row.
    dim = max(cut, gap)
    row = size * math.prod(counts[dim:]) // 8
    lead = _first_uniform(ranges, shape, strides, dim)
    inner = math.prod(counts[lead:dim])  # Number of rows in each piece.
    pitch = strides[dim - 1] if dim > lead else 0
    pieces = []
    first, count = ranges[dim] if shape else (0, 0)
    for outer, offset in _outer(ranges, shape, strides, lead, dim):
        room = (inner - 1) * pitch + row
        pieces.append((info.index, dim, first, count, outer, inner, place.ptr + offset, room,
                       pitch if inner > 1 else 0, CODES[info.dtype], dev))
    return pieces


def dtensor_box(info: Info, mesh: Any, placements: Sequence[Any]) -> Box:
    """Returns which part of the tensor `info` this process holds if the tensor is a DTensor with
    these placements. The part is (first, count) for each dimension."""
    shape = torch_shape(info.dtype, info.shape)
    box = local_box(shape, mesh, placements)
    if box and shape != info.shape:
        # torch counts bytes in the last dimension, each of which has two elements of dtype F4.
        box[-1] = (2 * box[-1][0], 2 * box[-1][1])
    return box


def _strides_for(counts: Sequence[int], place: Place) -> List[int]:
    """Returns the destination's strides in bytes for the dimensions of the tensor.

    The shapes of tensor and destination may differ in dimensions of length 1. Elements smaller
    than a byte have no gaps between them."""
    if BITS[place.dtype] < 8:
        return [BITS[place.dtype] * math.prod(counts[d + 1:]) // 8 for d in range(len(counts))]
    left = [s for s, n in zip(place.strides, place.shape) if n != 1]
    strides, step = [], 0
    for count in reversed(counts):
        step = left.pop() if count != 1 else step
        strides.append(step)
    return strides[::-1]


def _first_plain(counts: Sequence[int], strides: Sequence[int], bits: int) -> int:
    """Returns the first dimension from which the destination is contiguous."""
    if bits < 8:
        return 0
    if any(stride <= 0 for stride, count in zip(strides, counts) if count > 1):
        raise ValueError("the rows of a destination overlap or run backwards")
    step, d = bits // 8, len(counts)
    while d and (counts[d - 1] == 1 or strides[d - 1] == step):
        d -= 1
        step *= counts[d]
    if d == len(counts) and d:
        raise ValueError("the elements of a destination's last dimension are not contiguous")
    return d


def _first_uniform(ranges: Sequence[Tuple[int, int]], shape: Sequence[int],
                   strides: Sequence[int], dim: int) -> int:
    """Returns the first dimension from which all rows, up to dimension `dim`, form one piece.

    The rows form one piece under two conditions. The box covers these dimensions completely, so
    that the rows are consecutive in the file. The distance from row to row in memory is
    constant."""
    lead = dim
    while lead:
        d = lead - 1
        whole = all(ranges[k][1] == shape[k] for k in range(lead, dim))
        even = lead == dim or strides[d] == strides[lead] * ranges[lead][1] or ranges[d][1] == 1
        if not whole or not even:
            break
        lead = d
    return lead


def _outer(ranges: Sequence[Tuple[int, int]], shape: Sequence[int], strides: Sequence[int],
           lead: int, dim: int) -> Iterator[Tuple[int, int]]:
    """Yields for each piece the number of its first row in the tensor and its offset in memory."""
    base = 0
    for k in range(lead, dim):
        base = base * shape[k] + ranges[k][0]
    rows = math.prod(shape[lead:dim])
    todo = [(0, 0)]
    for k in range(lead):
        todo = [(at * shape[k] + ranges[k][0] + i, offset + i * strides[k])
                for at, offset in todo for i in range(ranges[k][1])]
    for at, offset in todo:
        yield at * rows + base, offset


__all__ = ["FormatError", "Info", "Model", "NotFoundError", "PenstockError", "Report"]
