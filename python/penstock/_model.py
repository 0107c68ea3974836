# SPDX-License-Identifier: Apache-2.0
"""Models: what the C library found in their files, and the three ways to receive
them. Thin: layout, planning, reading and checking are the library's."""

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

from ._dtypes import BITS, CODES, NAMES
from ._group import Group
from ._cuda import settle
from ._lib import (FormatError, NotFoundError, PenstockError, also_theirs, check, ffi, handle_name,
                   heed, lib, open_device, paths_of, raise_caught, take, to_c)
from ._tensor import Memory, Place, Tensor, place_of

PathLike = Union[str, "os.PathLike[str]"]
EFFORTS = {"thrifty": 0, "fast": 1}
FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy",
              "numpy": "numpy", "dlpack": "dlpack", "flax": "jax", "jax": "jax"}
CLASSES = {"any": 0, "no-cpu-copy": 1, "direct": 2}


def framework_of(name: Optional[str]) -> str:
    """"torch", "numpy", "jax" or "dlpack"; None: torch where there is one."""
    if name in (None, "auto"):
        if "torch" in sys.modules or importlib.util.find_spec("torch"):
            return "torch"
        return "dlpack"
    if name not in FRAMEWORKS:
        raise also_theirs(ValueError)(
            f"there is no framework '{name}': pt, numpy, jax or dlpack")
    return FRAMEWORKS[name]


def convert(tensor: Tensor, framework: str) -> Any:
    if framework == "jax":
        import jax.dlpack
        import jax.numpy
        if tensor.device != "host":
            return jax.dlpack.from_dlpack(tensor)
        return jax.numpy.asarray(tensor.numpy())
    return tensor.to(framework)


class Info:
    """A tensor as its file describes it."""

    __slots__ = ("index", "name", "dtype", "shape", "nbytes", "file", "offset")

    def __init__(self, index: int, name: str, dtype: str, shape: Tuple[int, ...], nbytes: int,
                 file: int, offset: int) -> None:
        self.index, self.name, self.dtype, self.shape = index, name, dtype, shape
        self.nbytes, self.file, self.offset = nbytes, file, offset

    def __repr__(self) -> str:
        return f"penstock.Info({self.name!r}, {self.dtype}, {self.shape})"


class _Columns:
    """What the library knows of a model's tensors, a list a field: a model may have ten
    thousand, and an object for each would cost more than all else together."""

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


_ROW = struct.Struct("@NPIIPQIQ")  # struct penstock_tensor
_PIECE = struct.Struct("@NQIQQQQPPQQI4x")  # struct penstock_piece
assert _ROW.size == ffi.sizeof("struct penstock_tensor")
assert _PIECE.size == ffi.sizeof("struct penstock_piece")


def _pointers(kind: str, addresses: Sequence[int]) -> Any:
    table = ffi.new(f"{kind}[]", len(addresses))
    ffi.buffer(table)[:] = struct.pack(f"{len(addresses)}P", *addresses)
    return table


class Report:
    """What a load did: bytes, seconds, the path that carried most and what it cost."""

    def __init__(self, r: Any) -> None:
        self.bytes, self.read, self.device_bytes = int(r.bytes), int(r.read), int(r.device_bytes)
        self.seconds: float = (r.end_ns - r.start_ns) / 1e9
        self.path: str = ffi.string(r.path).decode()
        self.engine: str = ffi.string(r.engine).decode()
        self.cpu_copies: float = r.cpu_copied / r.read if r.read else 0.0
        self.dram_passes: float = r.dram_laid / r.read if r.read else 0.0
        self.retries, self.requests = int(r.retries), int(r.requests)

    def __repr__(self) -> str:
        return (f"penstock.Report({self.bytes} bytes in {self.seconds:.3f} s by {self.path}, "
                f"{self.cpu_copies:.2f} CPU copies)")


def strings(values: Sequence[Any], keep: List[Any],
            encode: Callable[[Any], bytes] = os.fsencode) -> Any:
    items = [ffi.new("char[]", to_c(v, encode)) for v in values]
    table = ffi.new("char *[]", items)
    keep += [items, table]
    return ffi.cast("const char *const *", table)


class Model:
    """The files of a model, opened: `path` is a file, an index, a directory, a Hugging
    Face cache folder or owner/name in that cache, or a list of files."""

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
                raise ValueError("no names at all; without `names` all tensors are meant")
            opts.names, opts.name_count = strings(names, keep, str.encode), len(names)
        if stripes:
            opts.dirs = strings([os.fspath(s) for s in stripes], keep)
            opts.dir_count = len(stripes)
        if revision is not None:
            keep.append(ffi.new("char[]", to_c(revision, str.encode)))
            opts.revision = keep[-1]
        if cache is not None:
            keep.append(ffi.new("char[]", to_c(cache)))
            opts.cache = keep[-1]
        opts.flags = 1 if immutable else 0
        code, handle = take("struct penstock_weights **", lib.penstock_weights_close,
                            lib.penstock_weights_open_list,
                            strings([os.fspath(p) for p in paths], keep), len(paths), opts)
        check(code, self.path)
        self._handle: Any = handle
        self._columns: Optional[_Columns] = None
        self._infos: Optional[List[Info]] = None
        self._by_name: Dict[str, Info] = {}

    @property
    def handle(self) -> Any:
        if self._handle is None:
            raise also_theirs(ValueError)("the model is closed")
        return self._handle

    @property
    def columns(self) -> _Columns:
        if self._columns is None:
            self._columns = _Columns(self.handle)
        return self._columns

    @property
    def infos(self) -> List[Info]:
        """Every tensor, in file order."""
        if self._infos is None:
            c = self.columns
            infos = list(map(Info, range(len(c.name)), c.name, c.dtype, c.shape, c.nbytes, c.file,
                             c.offset))
            self._by_name = {info.name: info for info in infos}
            self._infos = infos  # last: another thread may look, too
        return self._infos

    def info(self, name: str) -> Info:
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
        """File and tensor, as the library's errors have them."""
        return f"{os.fsdecode(ffi.string(self._file(info.file).path))}: tensor '{info.name}'"

    def has_metadata(self, file: int = 0) -> bool:
        """Also where they are empty."""
        return bool(self._file(file).has_metadata)

    def metadata(self, file: int = 0) -> Dict[str, str]:
        f = self._file(file)
        key, value, found = ffi.new("const char **"), ffi.new("const char **"), {}
        for i in range(f.pair_count):
            check(lib.penstock_weights_get_metadata(self.handle, file, i, key, value))
            found[ffi.string(key[0]).decode()] = ffi.string(value[0]).decode()
        return found

    def close(self) -> None:
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    # ---- receiving ---------------------------------------------------------------

    def options(self, require: str = "any", effort: Optional[str] = None,
                path: Optional[str] = None, align: int = 0, window: int = 0,
                ranks: int = 1, stop: Optional[threading.Event] = None
                ) -> Tuple[Any, List[Any], List[BaseException]]:
        """The library's struct, what has to live as long as it, and what handlers of signals
        will have raised. `effort` is what suits so many processes that load at the same time,
        unless it is said; `stop` ends a load with ECANCELED when it is set."""
        if require not in CLASSES or effort not in (None, *EFFORTS):
            raise ValueError(f"require is one of {list(CLASSES)}, effort of {list(EFFORTS)}")
        opts, keep = ffi.new("struct penstock_load_opts *"), []
        opts.size = ffi.sizeof("struct penstock_load_opts")
        opts.require = CLASSES[require]
        opts.effort = lib.penstock_weights_effort(self.handle, ranks) if effort is None \
            else EFFORTS[effort]
        opts.align, opts.window = align, window
        if path is not None:
            keep.append(ffi.new("char[]", to_c(path, str.encode)))
            opts.path = keep[0]
        return opts, keep, heed(opts, keep, stop)

    def shard(self, index: int, how: Any) -> Any:
        """What of a tensor a rank needs, as the library says it."""
        out = ffi.new("struct penstock_shard *")
        out.size = ffi.sizeof("struct penstock_shard")
        check(lib.penstock_weights_shard(self.handle, index, how, out), self.path)
        return out

    def load(self, device: Any = "host", framework: Optional[str] = None, *, first: int = 0,
             count: int = 0, shard: Optional[Mapping[str, Any]] = None,
             group: Optional[Group] = None, one_storage: bool = False,
             **how: Any) -> Tuple[Dict[str, Any], Report]:
        """All tensors, or `count` from the `first` on, in one allocation, which with
        `one_storage` is one storage for torch, too; with `shard` only what a rank needs of
        each: rank, ranks, expert_rank, expert_ranks, and heads, kv_heads, experts where no
        config.json says them; rules, (glob, cut) each, hold before the library's own. With
        `group` all its ranks load together."""
        framework = framework_of(framework)
        handle = open_device(device)
        name = handle_name(handle)
        opts, keep, caught = self.options(**_ranks_of(group), **how)
        opts.first, opts.count = first, count
        columns, wanted = self.columns, slice(first, first + count if count else None)
        names, dtypes, shapes = columns.name[wanted], columns.dtype[wanted], columns.shape[wanted]
        nbytes = columns.nbytes[wanted]
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
        torch_memory = _TorchMemory(opts) if framework == "torch" and name != "host" else None
        report, devices = new_report(), ffi.new("struct penstock_device *[]", [handle])
        call, who = (lib.penstock_weights_load, (self.handle,)) if group is None else \
            (lib.penstock_group_load, (group.take_part(), self.handle))
        code, loaded = take("struct penstock_loaded **", lib.penstock_loaded_free, call, *who,
                            devices, 1, opts, report)
        if code < 0 and torch_memory is not None and torch_memory.error is not None:
            raise torch_memory.error
        raise_caught(caught)
        check(code, self.path)
        at = _addresses(loaded, indices)
        # Every element lies at a multiple of its size from there; an allocation begins
        # at a page.
        base = min(at, default=0) & -16
        memory = Memory(base, max(map(operator.add, at, nbytes), default=0) - base, name,
                        (loaded, torch_memory))
        if torch_memory is not None:
            memory.lend(torch_memory.tensor)
        if framework == "torch":
            tensors = dict(zip(names, memory.torch_all(dtypes, shapes, at, one_storage)))
        else:
            tensors = {title: convert(Tensor(dtype, shape, name, ptr, memory), framework)
                       for title, dtype, shape, ptr in zip(names, dtypes, shapes, at)}
        return tensors, Report(report)

    def load_into(self, pieces: Sequence[Any], group: Optional[Group] = None,
                  **how: Any) -> Report:
        """`pieces` as made by `pieces_of`, all in one go, or by all ranks of a group."""
        opts, keep, caught = self.options(**_ranks_of(group), **how)
        table, report = ffi.new("struct penstock_piece[]", len(pieces) or 1), new_report()
        size, devices = ffi.sizeof("struct penstock_piece"), {piece[-1] for piece in pieces}
        address = {dev: int(ffi.cast("uintptr_t", dev)) for dev in devices}
        ffi.buffer(table)[:size * len(pieces)] = b"".join(
            [_PIECE.pack(size, tensor, dim, first, count, outer_first, outer_count, address[dev],
                         ptr, room, pitch, dtype)
             for tensor, dim, first, count, outer_first, outer_count, ptr, room, pitch, dtype, dev
             in pieces])
        code = lib.penstock_weights_load_into(self.handle, table, len(pieces), opts, report) \
            if group is None else \
            lib.penstock_group_load_into(group.take_part(), self.handle, table, len(pieces), opts,
                                         report)
        raise_caught(caught)
        check(code, self.path)
        return Report(report)

    def iterate(self, device: Any = "host", framework: Optional[str] = None,
                window: int = 0, **how: Any) -> Iterator[Tuple[str, Any]]:
        framework = framework_of(framework)
        handle = open_device(device)
        opts, keep, caught = self.options(window=window, **how)
        code, it = take("struct penstock_weights_iter **", lib.penstock_weights_iter_close,
                        lib.penstock_weights_iter_open, self.handle, handle, opts)
        check(code, self.path)
        return self._steps(_Window(it, handle_name(handle), window, keep, caught), framework)

    def _steps(self, window: "_Window", framework: str) -> Iterator[Tuple[str, Any]]:
        tensor, ptr = ffi.new("uint64_t *"), ffi.new("void **")
        infos = self.infos
        while window.next(tensor, ptr, self.path):
            info, base = infos[tensor[0]], int(ffi.cast("uintptr_t", ptr[0]))
            memory = Memory(base, info.nbytes, window.device, window.lease(tensor[0], info.nbytes))
            yield info.name, convert(Tensor(info.dtype, info.shape, window.device, base, memory),
                                     framework)
            del memory


class _Window:
    """An iterator of the library's, and the tensors that nobody has any more: on a GPU
    what is queued on them is waited for once for many."""

    def __init__(self, it: Any, device: str, size: int, keep: Any,
                 caught: List[BaseException]) -> None:
        self.it, self.device, self.keep, self.caught = it, device, keep, caught
        self.enough = 0 if device == "host" else (size or 1 << 30) // 16
        self.done: Dict[int, Any] = {}
        self.bytes = 0  # handed out since some were released

    def lease(self, tensor: int, nbytes: int) -> Any:
        """A tensor's room, to be given back when nobody has the tensor any more, by the thread
        that asks for the next one. What tells it so is no Python, as `_drop`."""
        self.bytes += nbytes
        return ffi.gc(_NONE, functools.partial(self.done.setdefault, tensor)), self

    def next(self, tensor: Any, ptr: Any, path: str) -> bool:
        if self.bytes >= self.enough:
            self.release()
        code = lib.penstock_weights_iter_next(self.it, tensor, ptr)
        if code == -errno.ENOBUFS and self.done:
            self.release()
            code = lib.penstock_weights_iter_next(self.it, tensor, ptr)
        raise_caught(self.caught)
        return check(code, path) > 0

    def release(self) -> None:
        self.bytes = 0
        count = len(self.done)  # another thread may add to it
        if count:
            settle([self.device])  # copies out of them may be queued, their room is filled
        for tensor in list(self.done)[:count]:
            del self.done[tensor]
            lib.penstock_weights_iter_release(self.it, tensor)


def _addresses(loaded: Any, indices: Sequence[int]) -> List[int]:
    found = map(lib.penstock_loaded_ptr, itertools.repeat(loaded), itertools.repeat(0), indices)
    table = ffi.new("void *[]", list(found))
    return list(memoryview(ffi.buffer(table)).cast("B").cast("P"))


def _ranks_of(group: Optional[Group]) -> Dict[str, Any]:
    return {} if group is None else {"ranks": group.ranks}


class _TorchMemory:
    """GPU memory from torch's allocator, so that it is in its books and its pool."""

    def __init__(self, opts: Any) -> None:
        self.tensor: Any = None
        self.error: Optional[BaseException] = None  # of torch's own, which programs look for
        self.start = 0

        def failed(_kind: Any, error: BaseException, _trace: Any) -> None:
            self.error = error

        @ffi.callback("void *(void *, struct penstock_device *, size_t, size_t)", error=ffi.NULL,
                      onerror=failed)
        def alloc(_user: Any, dev: Any, length: int, align: int) -> Any:
            import torch
            self.tensor = torch.empty(length + align, dtype=torch.uint8, device=handle_name(dev))
            # It may have been somebody's whose work on it is still queued: torch's streams
            # know of each other's turn, the library's copies know nothing of it.
            settle([handle_name(dev)])
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
    """The library's struct, and what has to live as long as it."""
    opts, keep = ffi.new("struct penstock_shard_opts *"), []
    opts.size, opts.ranks, opts.expert_ranks = ffi.sizeof("struct penstock_shard_opts"), 1, 1
    known = {"rank", "ranks", "expert_rank", "expert_ranks", "heads", "kv_heads", "experts"}
    rules = list(values.get("rules", ()))
    for name, value in values.items():
        if name not in known | {"rules"}:
            raise ValueError(f"shard has no '{name}': {sorted(known)}, rules")
        if name != "rules":
            setattr(opts, name, value)
    table = ffi.new("struct penstock_cut_rule[]", len(rules) or 1)
    for row, (glob, cut) in zip(table, rules):
        if cut not in CUTS:
            raise ValueError(f"there is no cut '{cut}': {sorted(CUTS)}")
        keep.append(ffi.new("char[]", to_c(glob, str.encode)))
        row.glob, row.cut = keep[-1], getattr(lib, "PENSTOCK_CUT_" + CUTS[cut])
    opts.rules, opts.rule_count = table, len(rules)
    return opts, keep + [table]


def new_report() -> Any:
    report = ffi.new("struct penstock_load_report *")
    report.size = ffi.sizeof("struct penstock_load_report")
    report.path = report.engine = _NONE
    return report


_NONE = ffi.new("char[]", b"none")

# ---- ranges ----------------------------------------------------------------------


def ranges_of(shape: Sequence[int], index: Any) -> Tuple[List[Tuple[int, int]], Any]:
    """What an index reads of each dimension, as (first, count), and the index that
    makes of what was read what was asked for."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise also_theirs(IndexError)("more than one ellipsis")
    if dots:
        items[dots[0]:dots[0] + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    if len(items) > len(shape):
        raise also_theirs(IndexError)(f"{len(items)} indices for {len(shape)} dimensions")
    items += [slice(None)] * (len(shape) - len(items))
    ranges: List[Tuple[int, int]] = []
    rest: List[Any] = []
    for d, (item, size) in enumerate(zip(items, shape)):
        if isinstance(item, list) and not item:
            item = slice(0, 0)  # what the safetensors package takes it for
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            taken = range(start, stop, step)
            low = min(taken[0], taken[-1]) if taken else 0
            ranges.append((low, abs(taken[-1] - taken[0]) + 1 if taken else 0))
            rest.append(slice(None, None, step))
        elif hasattr(item, "__index__") and not getattr(item, "shape", ()):
            at = item.__index__()
            if not -size <= at < size:
                raise also_theirs(IndexError)(f"index {at} of dimension {d} of {size}")
            ranges.append((at % size, 1))
            rest.append(0)
        else:
            raise also_theirs(TypeError)("a slice is made of numbers and ranges, not of "
                                         + type(item).__name__)
    return ranges, tuple(rest)


def whole_piece(info: Info, place: Place, dev: Any) -> Optional[List[Any]]:
    """What `pieces_of` makes for all of a tensor, where it is as simple as it mostly is:
    to a place of its shape, without gaps; None where it is not."""
    if place.shape != info.shape or place.dtype != info.dtype or not place.writable or \
            not info.nbytes or place.split():
        return None
    return [(info.index, 0, 0, 0, 0, 0, place.ptr, info.nbytes, 0, CODES[info.dtype], dev)]


def pieces_of(info: Info, ranges: Sequence[Tuple[int, int]], place: Place, dev: Any) -> List[Any]:
    """The pieces that carry a box of a tensor to a place of that shape."""
    shape, size = info.shape, BITS[info.dtype]
    counts = [count for _, count in ranges]
    if tuple(counts) != place.shape and [c for c in counts if c != 1] != \
            [c for c in place.shape if c != 1]:
        raise ValueError(f"{tuple(counts)} do not fit a destination of {place.shape}")
    if place.dtype != info.dtype:
        raise TypeError(f"it is {info.dtype}, its destination {place.dtype}")
    if not place.writable:
        raise TypeError("its destination is read-only")
    if not info.nbytes or 0 in counts:
        return []
    strides = _strides_for(counts, place)
    cut = max((d for d, (_, count) in enumerate(ranges) if count != shape[d]), default=0)
    gap = _first_plain(counts, strides, size)
    dim = max(cut, gap)          # rows are what lies behind it, in file and memory
    row = size * math.prod(counts[dim:]) // 8
    lead = _uniform(ranges, shape, strides, dim)
    inner = math.prod(counts[lead:dim])  # rows of one piece
    pitch = strides[dim - 1] if dim > lead else 0
    pieces = []
    first, count = ranges[dim] if shape else (0, 0)
    for outer, offset in _outer(ranges, shape, strides, lead, dim):
        room = (inner - 1) * pitch + row
        pieces.append((info.index, dim, first, count, outer, inner, place.ptr + offset, room,
                       pitch if inner > 1 else 0, CODES[info.dtype], dev))
    return pieces


def _strides_for(counts: Sequence[int], place: Place) -> List[int]:
    """The place's strides, by the tensor's dimensions: those of length 1 may differ. What is
    less than a byte lies without gaps."""
    if BITS[place.dtype] < 8:
        return [BITS[place.dtype] * math.prod(counts[d + 1:]) // 8 for d in range(len(counts))]
    left = [s for s, n in zip(place.strides, place.shape) if n != 1]
    strides, step = [], 0
    for count in reversed(counts):
        step = left.pop() if count != 1 else step
        strides.append(step)
    return strides[::-1]


def _first_plain(counts: Sequence[int], strides: Sequence[int], bits: int) -> int:
    """The first dimension from which on the destination has no gaps."""
    if bits < 8:
        return 0
    if any(stride <= 0 for stride, count in zip(strides, counts) if count > 1):
        raise ValueError("the rows of a destination overlap or run backwards")
    step, d = bits // 8, len(counts)
    while d and (counts[d - 1] == 1 or strides[d - 1] == step):
        d -= 1
        step *= counts[d]
    if d == len(counts) and d:
        raise ValueError("the elements of a destination's last dimension do not lie together")
    return d


def _uniform(ranges: Sequence[Tuple[int, int]], shape: Sequence[int], strides: Sequence[int],
             dim: int) -> int:
    """The first dimension from which on rows follow each other evenly, in the file (no
    range cut out) and in memory (one pitch)."""
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
    """Row number in the file and offset in memory, of each piece."""
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
