# SPDX-License-Identifier: Apache-2.0
"""HuggingFaceStorageWriter and HuggingFaceStorageReader: safetensors files as checkpoints of
torch.distributed.checkpoint.

They are subclasses of torch's classes of these names, with the same arguments and the same files.
torch's classes plan, name the files and write the index; these classes move the bytes. A writer
moves the bytes straight from device memory to the file. A reader moves only the bytes that are
needed, straight to the tensors of the program."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import queue
from typing import (Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence,
                    Tuple, TypeVar)

import torch
from torch.distributed.checkpoint import FileSystemWriter

from ._api import save_places
from ._cuda import synchronize_all
from ._dcp import check_choices, refuse_object
from ._dtypes import from_torch_dtype, torch_dtype
from ._folders import sync_folder
from ._lib import PenstockError, open_device, without_file_scheme
from ._model import Info, Model, pieces_of
from ._tensor import place_of
from ._torch_file import bytes_of
from ._zip import PAGE

try:
    from torch.distributed.checkpoint import (HuggingFaceStorageReader as _TorchReader,
                                              HuggingFaceStorageWriter as _TorchWriter)
    from torch.distributed.checkpoint._hf_utils import _gen_file_name
    from torch.distributed.checkpoint.filesystem import FileSystem, WriteResult, _StorageInfo
    from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
except ImportError as _error:
    raise ImportError(f"torch {torch.__version__} has no HuggingFaceStorageWriter and no "
                      "HuggingFaceStorageReader in torch.distributed.checkpoint: penstock.torch "
                      "needs a later version of torch for safetensors checkpoints") from _error

# Keys and values of the metadata in each file, as torch's classes write them.
_SHARDING_KEY, _OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"
_FIXED = {"DCP_VERSION": "1.0", "format": "pt"}
# Maximum number of bytes of temporary tensors, unless a single tensor is longer.
_TEMPORARY_BYTES = 1 << 30


_T = TypeVar("_T")


def batches(items: Sequence[_T], nbytes: Callable[[_T], int], limit: int) -> Iterator[List[_T]]:
    """Divides items into lists of at most `limit` bytes, or of one longer item."""
    batch: List[_T] = []
    size = 0
    for one in items:
        if batch and size + nbytes(one) > limit:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += nbytes(one)
    if batch:
        yield batch


# ---- writer ----------------------------------------------------------------------------

class _WholeFiles(FileSystem):
    """A file system for torch's writer. A new file appears under its name only when it is complete
    and durable."""

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """Opens a file. A file that is opened for writing has a temporary name until it is
        closed."""
        if "w" not in mode:
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        aside = f"{os.fspath(path)}.{os.getpid()}.tmp"
        try:
            with open(aside, mode, encoding=None if "b" in mode else "utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            raise
        sync_folder(os.path.dirname(os.fspath(path)))


class _Writes(FileSystemWriter):
    """Replaces the part of torch's writer that moves bytes. It must come after torch's class in the
    order of base classes."""

    fs: Any
    require: str
    effort: str

    def _write_data(self, planner: Any, file_queue: "queue.Queue[Any]") -> Any:
        """Writes the files of this rank. The queue contains a tuple (path, name, items) for each
        file."""
        results: List[Any] = []
        with contextlib.suppress(queue.Empty):
            while True:
                results += self._write_file(planner, *file_queue.get_nowait())
        done: Any = torch.futures.Future()
        done.set_result(results)
        return done

    def _write_file(self, planner: Any, path: Any, name: str, items: Sequence[Any]) -> List[Any]:
        places, offsets, results = {}, {}, []
        for item in items:
            title = item.index.fqn
            if item.type == WriteItemType.BYTE_IO:
                raise ValueError(f"'{title}' is not a tensor: a safetensors file holds only "
                                 "tensors. Save the model's state dict alone")
            if title in places:
                raise ValueError(f"this rank has two parts of tensor '{title}', but a safetensors "
                                 "file holds one tensor of each name")
            tensor = _movable(planner.resolve_data(item).detach())
            places[title] = place_of(tensor)
            offsets[title] = {_OFFSETS_KEY: list(item.tensor_data.chunk.offsets)}
            results.append(WriteResult(index=item.index, size_in_bytes=tensor.nbytes,
                                       storage_data=_StorageInfo(name, 0, tensor.nbytes)))
        save_places(places, os.fspath(path), {_SHARDING_KEY: json.dumps(offsets), **_FIXED},
                    durable=self.sync_files, require=self.require, effort=self.effort)
        return results


def _movable(tensor: Any) -> Any:
    """Returns the tensor if it is contiguous and in host or GPU memory. Otherwise returns a
    contiguous copy in host or GPU memory."""
    if tensor.device.type not in ("cpu", "cuda"):
        tensor = tensor.cpu()
    return tensor.resolve_conj().resolve_neg().contiguous()


class HuggingFaceStorageWriter(_TorchWriter, _Writes):
    """Writes a checkpoint as safetensors files, like torch's class of this name.

    Each file appears under its name only when it is complete. The index file is written last.

    Args:
        path, fqn_to_index_mapping, thread_count, save_distributed, enable_consolidation,
            thread_count_consolidation: as for torch's class. thread_count has no effect, because
            the library has its own threads.
        require: the class of paths that the writer may use, as in penstock.save_file.
        effort: "thrifty", "balanced" or "fast", as in penstock.save_file.

    A consolidation merges the shards into files with whole tensors. These files, too, appear under
    their names only when they are complete.
    """

    def __init__(self, path: Any, fqn_to_index_mapping: Optional[Dict[str, int]] = None,
                 thread_count: int = 1, save_distributed: bool = False,
                 enable_consolidation: bool = False, thread_count_consolidation: int = 1, *,
                 require: str = "any", effort: str = "thrifty") -> None:
        check_choices(require, effort)
        refuse_object(path, "penstock.save_file writes single objects")
        super().__init__(without_file_scheme(path), fqn_to_index_mapping, thread_count,
                         save_distributed, enable_consolidation, thread_count_consolidation)
        self.require, self.effort = require, effort
        if type(self.fs) is FileSystem:  # pylint: disable=unidiomatic-typecheck
            self.fs = _WholeFiles()

    def finish(self, metadata: Any, results: Any) -> None:
        """Writes the index, or merges the shards. The coordinator calls it after all writes."""
        if not self.save_distributed or not self.enable_consolidation:
            super().finish(metadata, results)
            return
        sizes = metadata.state_dict_metadata
        mapping = self.fqn_to_index_mapping or dict.fromkeys(sizes, 1)
        last, weight_map, total = max(mapping.values()), {}, 0
        merge = _Merge(str(self.path), sizes, [one for of_rank in results for one in of_rank],
                       max(1, self.thread_count_consolidation))
        for number in sorted(set(mapping.values())):
            names = [name for name in mapping if mapping[name] == number and name in sizes]
            file = _gen_file_name(number, last)
            with self.fs.create_stream(os.path.join(self.consolidated_output_path, file),
                                       "wb") as out:
                total += merge.write(names, out)
            weight_map.update(dict.fromkeys(names, file))
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        with self.fs.create_stream(os.path.join(self.consolidated_output_path, self.metadata_path),
                                   "w") as out:
            json.dump(index, out, indent=2)


class _Merge:
    """Merges the shards of a checkpoint into files with whole tensors.

    `sizes` has torch's description of each tensor, `chunks` a WriteResult for each shard."""

    def __init__(self, folder: str, sizes: Mapping[str, Any], chunks: Sequence[Any], threads: int
                 ) -> None:
        self.folder, self.sizes, self.threads = folder, sizes, threads
        # Maps a tensor's name to the list of its shards: (file, offset of the shard in the tensor).
        self.shards: Dict[str, List[Tuple[str, Any]]] = {}
        for one in chunks:
            self.shards.setdefault(one.index.fqn, []).append(
                (one.storage_data.relative_path, one.index.offset))

    def _nbytes(self, name: str) -> int:
        return int(self.sizes[name].size.numel()) * int(self.sizes[name].properties.dtype.itemsize)

    def write(self, names: Sequence[str], out: Any) -> int:
        """Writes a file with the named tensors. Returns the number of bytes of these tensors."""
        header, end = {}, 0
        for name in names:
            nbytes = self._nbytes(name)
            header[name] = {"dtype": from_torch_dtype(self.sizes[name].properties.dtype),
                            "shape": list(self.sizes[name].size),
                            "data_offsets": [end, end + nbytes]}
            end += nbytes
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % PAGE)
        out.write(len(text).to_bytes(8, "little") + text)
        for batch in batches(names, self._nbytes, _TEMPORARY_BYTES):
            for tensor in self._read(batch):
                out.write(bytes_of(tensor.untyped_storage()))
        return end

    def _read(self, names: Sequence[str]) -> List[Any]:
        """Returns whole tensors in host memory, from their shards."""
        whole = {name: torch.empty(self.sizes[name].size, device="cpu",
                                   dtype=self.sizes[name].properties.dtype) for name in names}
        missing = {name: tensor.numel() for name, tensor in whole.items()}
        files: Dict[str, List[Tuple[str, Any]]] = {}
        for name in names:
            for file, offset in self.shards[name]:
                files.setdefault(file, []).append((name, offset))

        def read(file: str) -> List[Tuple[str, int]]:
            """Reads the shards of a file into the whole tensors. Returns the number of elements
            that it has read of each tensor."""
            model = Model(os.path.join(self.folder, file))
            counts: List[Tuple[str, int]] = []
            try:
                pieces: List[Any] = []
                for name, offset in files[file]:
                    info, target = model.info(name), whole[name]
                    counts.append((name, math.prod(info.shape)))
                    for d, count in enumerate(info.shape):
                        target = target.narrow(d, offset[d], count)
                    pieces += pieces_of(info, [(0, count) for count in info.shape],
                                        place_of(target), open_device("cpu"))
                if pieces:
                    model.load_into(pieces)
                return counts
            finally:
                model.close()

        with concurrent.futures.ThreadPoolExecutor(self.threads, "penstock-merge") as pool:
            for name, count in itertools.chain(*pool.map(read, files)):
                missing[name] -= count
        for name, count in missing.items():
            if count > 0:
                raise ValueError(f"'{name}' cannot be merged: {count} of its "
                                 f"{whole[name].numel()} elements are in no shard")
        return list(whole.values())


# ---- reader ----------------------------------------------------------------------------

class _Read(NamedTuple):
    """One request of a plan: a tensor, or a part of it, to read.

    Attributes: request (torch's ReadItem), target (the program's tensor), info (the tensor in the
    file), ranges (the part to read, (first, count) for each dimension)."""
    request: Any
    target: Any
    info: Info
    ranges: List[Tuple[int, int]]


class HuggingFaceStorageReader(_TorchReader):
    """Reads a checkpoint of safetensors files, like torch's class of this name.

    Args:
        path: as for torch's class.
        thread_count: number of files that are read at the same time. The default, 1, is fast
            enough unless there are many short files.
        require: the class of paths that the reader may use, as in penstock.load_file.
        effort: as in penstock.load_file.

    The reader reads only the bytes of the requested tensors and parts, straight into the program's
    tensors. If a tensor has another dtype than the file, or its rows are not contiguous, a
    temporary tensor on the same device gets the bytes.
    """

    def __init__(self, path: Any, thread_count: int = 1, *, require: str = "any",
                 effort: Optional[str] = None) -> None:
        check_choices(require, effort)
        refuse_object(path, "penstock.load_into reads models of a store")
        super().__init__(path=without_file_scheme(path), thread_count=thread_count)
        self.require, self.effort = require, effort

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Reads the tensors and parts of tensors that a plan requests."""
        files: Dict[str, List[Any]] = {}
        for request in plan.items:
            if request.type == LoadItemType.BYTE_IO:
                raise ValueError(f"'{request.storage_index.fqn}' is not a tensor: safetensors "
                                 "files hold only tensors")
            files.setdefault(self.storage_data[request.storage_index].relative_path,
                             []).append((request, planner.resolve_tensor(request).detach()))
        threads = min(self.thread_count, len(files))
        if threads <= 1:
            for name, wanted in files.items():
                self._read_file(name, wanted)
        else:
            with concurrent.futures.ThreadPoolExecutor(threads, "penstock-read") as pool:
                for _ in pool.map(self._read_file, files, files.values()):
                    pass
        for wanted in files.values():
            for request, target in wanted:
                planner.commit_tensor(request, target)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _read_file(self, name: str, wanted: Sequence[Tuple[Any, Any]]) -> None:
        model = Model(name)
        try:
            straight: List[Any] = []
            indirect: List[_Read] = []
            keep: List[Any] = []
            for one in [_read_of(model, request, target) for request, target in wanted]:
                pieces = _straight_pieces(one)
                if pieces is None:
                    indirect.append(one)
                    continue
                keep.append(one.target)
                straight += pieces
            self._load(model, straight, keep)
            for batch in batches(indirect, _temporary_bytes, _TEMPORARY_BYTES):
                self._read_indirectly(model, batch)
        finally:
            model.close()

    def _load(self, model: Model, pieces: Sequence[Any], tensors: Sequence[Any]) -> None:
        synchronize_all(place_of(tensor).device for tensor in tensors)
        if pieces:
            model.load_into(pieces, require=self.require, effort=self.effort)

    def _read_indirectly(self, model: Model, batch: Sequence[_Read]) -> None:
        """Reads parts into temporary tensors, and copies the temporary tensors to the targets."""
        pieces, made = [], []
        for one in batch:
            device = one.target.device if one.target.device.type in ("cpu", "cuda") else "cpu"
            made.append(torch.empty([count for _, count in one.ranges],
                                    dtype=torch_dtype(torch, one.info.dtype), device=device))
            place = place_of(made[-1])
            pieces += pieces_of(one.info, one.ranges, place, open_device(place.device))
        self._load(model, pieces, made)
        for one, tensor in zip(batch, made):
            one.target.copy_(tensor)


def _read_of(model: Model, request: Any, target: Any) -> _Read:
    """Checks that a request fits its target and the tensor in the file. Returns the _Read for
    it."""
    info = model.info(request.storage_index.fqn)
    ranges = list(zip(request.storage_offsets, request.lengths))
    if tuple(target.shape) != tuple(request.lengths) or len(ranges) != len(info.shape) or \
            any(first + count > size for (first, count), size in zip(ranges, info.shape)):
        raise ValueError(f"{model.where(info)}: the part {ranges} of shape {info.shape} does not "
                         f"fit a tensor of shape {tuple(target.shape)}")
    return _Read(request, target, info, ranges)


def _temporary_bytes(one: _Read) -> int:
    return int(one.target.numel()) * int(torch_dtype(torch, one.info.dtype).itemsize)


def _straight_pieces(one: _Read) -> Optional[List[Any]]:
    """Returns the pieces that read a part into its target, or None if a temporary tensor is
    needed."""
    try:
        place = place_of(one.target)
        return pieces_of(one.info, one.ranges, place, open_device(place.device))
    except (TypeError, ValueError, PenstockError):
        return None


__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]
