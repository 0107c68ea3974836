# SPDX-License-Identifier: Apache-2.0
"""Loads chosen tensors of a model in batches. PrefetchLoader does so in the background.

PrefetchLoader has the methods of the class of that name in the package safetensors. The loaders
for serving engines also use the batches of this module, for the tensors that a rank needs."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ._dtypes import torch_dtype, torch_shape
from ._group import Group
from ._lib import also_safetensor_error, open_device
from ._memory import allocate_as
from ._model import Info, Model, convert, pieces_of
from ._tensor import Tensor, place_of

# Number of bytes that one load of a PrefetchLoader reads. Larger loads are faster, but their first
# tensor arrives later, and their memory is freed later.
BATCH_BYTES = 256 << 20
# Number of loads that are under way at the same time, so that the drive is never idle.
LOADS = 2

# A tensor to load: its description, and its first row and number of rows, or None for all rows.
Part = Tuple[Info, Optional[Tuple[int, int]]]


def parts_of(model: Model, plan: Optional[Mapping[str, Optional[slice]]],
             framework: str) -> List[Part]:
    """Returns the tensors of a plan in file order. `plan` is the argument of safe_open.prefetch.

    Raises an error if a tensor does not exist, if its slice has another step than 1, or if torch
    lacks its dtype."""
    if plan is None:
        plan = dict.fromkeys(info.name for info in model.infos)
    parts: List[Part] = []
    for name, rows in plan.items():
        info, taken = model.info(name), None
        if rows is not None:
            if not isinstance(rows, slice):
                raise also_safetensor_error(TypeError)(
                    f"{model.where(info)}: a plan has None or a slice for each tensor, not "
                    f"{rows!r}")
            if rows.step not in (None, 1) or not info.shape:
                raise also_safetensor_error(ValueError)(
                    f"{model.where(info)}: a plan needs slices with a step of 1, and tensors "
                    "with at least one dimension for them")
            first, end, _ = rows.indices(info.shape[0])
            taken = (first, max(0, end - first))
        if framework == "torch":
            import torch
            torch_dtype(torch, info.dtype)  # Raises TypeError if torch has no such dtype.
            torch_shape(info.dtype, part_shape((info, taken)))
        parts.append((info, taken))
    return sorted(parts, key=lambda part: part[0].index)


def part_shape(part: Part) -> Tuple[int, ...]:
    """Returns the shape of a part of a tensor."""
    info, rows = part
    return info.shape if rows is None else (rows[1], *info.shape[1:])


def batches_of(parts: Sequence[Part], capacity: int) -> List[List[Part]]:
    """Divides the parts into batches of at most `capacity` bytes. A part that is longer than
    `capacity` becomes a batch with only this part."""
    batches: List[List[Part]] = []
    size = capacity
    for part in parts:
        info, rows = part
        nbytes = info.nbytes if rows is None else info.nbytes * rows[1] // max(1, info.shape[0])
        if not batches or size + nbytes > capacity:
            batches.append([])
            size = 0
        batches[-1].append(part)
        size += nbytes
    return batches


def load_batch(batch: List[Part], model: Model, device: Any, framework: str,
               group: Optional[Group] = None, **how: Any) -> Dict[str, Any]:
    """Loads the parts of a batch. Returns a dict from name to tensor.

    `how` are arguments of Model.load_into. In a group, all ranks load the same batch."""
    first, last = batch[0][0].index, batch[-1][0].index
    if last - first + 1 == len(batch) and not any(rows for _, rows in batch):
        # The tensors are consecutive in the model, so one call loads them. In a group, they share
        # one torch storage, which takes the least time to create.
        return model.load(device, framework, first=first, count=len(batch), group=group,
                          one_storage=group is not None, **how)[0]
    tensors: Dict[str, Any] = {}
    pieces: List[Any] = []
    for part in batch:
        info, rows = part
        ranges = [(0, length) for length in info.shape]
        if rows is not None:
            ranges[0] = rows
        value = tensors[info.name] = allocate_as(info.dtype, part_shape(part), device, framework)
        pieces += pieces_of(info, ranges, place_of(value), open_device(device))
    model.load_into(pieces, group, **how)
    return {name: convert(value, framework) if isinstance(value, Tensor) else value
            for name, value in tensors.items()}


class PrefetchLoader:
    """Tensors that load in the background. safe_open.prefetch returns it.

    Each tensor is handed out once, by `take` or by iterating over the loader. Tensors that were
    loaded together share memory, which is freed with the last of them. The loader keeps tensors
    that nobody has taken until close(). Several threads may take tensors. Use it as a context
    manager, or call close()."""

    def __init__(self, model: Model, parts: Sequence[Part], device: Any, framework: str,
                 how: Mapping[str, Any], stop: Any) -> None:
        self._names = [info.name for info, _ in parts]
        self._stop, self._lock = stop, threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(LOADS, "penstock-prefetch")
        # Maps the names of the tensors that nobody has taken to the load that contains them.
        self._left: Dict[str, Any] = {}
        for batch in batches_of(parts, BATCH_BYTES):
            load = self._pool.submit(load_batch, batch, model, device, framework,
                                     **{**how, "stop": stop})
            self._left.update((info.name, load) for info, _ in batch)

    def __reduce__(self) -> Any:
        raise TypeError("a PrefetchLoader cannot be pickled or copied, because its threads belong "
                        "to one process; pickle the safe_open, and call prefetch in the other "
                        "process")

    def names(self) -> List[str]:
        """Returns the names of the planned tensors, in file order."""
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def take(self, name: str) -> Any:
        """Waits for a tensor and returns it. Raises an error if the tensor was not planned or was
        taken before. If its load failed, raises the error of the load."""
        with self._lock:
            load = self._left.pop(name, None)
        if load is None:
            raise also_safetensor_error(ValueError)(
                f"tensor '{name}' " + ("has been taken" if name in self._names else
                                       "is not in the plan") + ", or the loader is closed")
        return load.result().pop(name)

    def __iter__(self) -> Iterator[Tuple[str, Any]]:
        """Yields (name, tensor) of the tensors that nobody has taken, as they arrive."""
        while True:
            with self._lock:
                loads = dict.fromkeys(self._left.values())
            if not loads:
                return
            # Prefers a load that has ended. Otherwise waits for the load that started first.
            load = next((one for one in loads if one.done()), next(iter(loads)))
            for name in [name for name, one in list(self._left.items()) if one is load]:
                with self._lock:
                    found = self._left.pop(name, None)
                if found is not None:
                    yield name, load.result().pop(name)

    def close(self) -> None:
        """Stops loading, and drops the tensors that nobody has taken. Tensors that were taken
        remain valid."""
        self._stop.set()
        with self._lock:
            self._left = {}
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "PrefetchLoader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


__all__ = ["Part", "PrefetchLoader", "batches_of", "load_batch", "parts_of"]
