# SPDX-License-Identifier: Apache-2.0
"""Computes which part of a torch DTensor a process holds. A DTensor is a tensor that is
distributed over a mesh of processes.

Uses only the public attributes of torch's DeviceMesh and Placement objects. Imports nothing of
this package and moves no bytes."""

from __future__ import annotations

import fnmatch
import importlib
import math
import sys
from typing import Any, Iterable, List, Mapping, Sequence, Tuple

Box = List[Tuple[int, int]]
# Names of the module that defines DTensor: the first since torch 2.5, the second in older versions.
_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")


def is_dtensor(value: Any) -> bool:
    """Returns whether `value` is a DTensor."""
    for name in _MODULES:
        kind = getattr(sys.modules.get(name), "DTensor", None)
        if kind is not None:
            return isinstance(value, kind)
    return False


def _split_order(placements: Sequence[Any], mesh: Any) -> Iterable[Tuple[int, Any]]:
    """Returns (mesh dimension, placement) in the order in which the tensor is split.

    Usually the mesh's dimensions split a DTensor in order, from the first to the last. With FSDP2
    and tensor parallelism, a later dimension may split the tensor first. FSDP2 then marks the
    earlier dimension with _StridedShard."""
    late: List[Tuple[int, Any]] = []
    for i, placement in enumerate(placements):
        if type(placement).__name__ != "_StridedShard":
            continue
        before = math.prod(mesh.size(k) for k, other in enumerate(placements)
                           if k > i and type(other).__name__ == "Shard" and
                           other.dim == placement.dim)
        if placement.split_factor != before:
            raise ValueError(f"the placement {placement!r} does not follow from the placements of "
                             "the later dimensions of the mesh")
        late.insert(0, (i, placement))
    return [pair for pair in enumerate(placements) if pair not in late] + late


def local_box(shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> Box:
    """Returns the part of a tensor that this process holds, as (first, count) for each dimension.

    A dimension is split as by torch.chunk: all parts have the same length, except that the last
    parts may be shorter or empty. A process outside the mesh holds nothing."""
    if len(placements) != mesh.ndim:
        raise ValueError(f"{len(placements)} placements for a mesh of {mesh.ndim} dimensions")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return [(0, 0) for _ in shape]
    box = [(0, length) for length in shape]
    for i, placement in _split_order(placements, mesh):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if dim is None:
            raise ValueError(f"a file has no tensors of placement {placement!r}; use Shard and "
                             "Replicate")
        if not -len(shape) <= dim < len(shape):
            raise ValueError(f"the placement {placement!r} does not fit a tensor of shape "
                             f"{tuple(shape)}")
        first, count = box[dim]
        part = -(-count // mesh.size(i))
        low = min(count, part * coordinate[i])
        box[dim] = (first + low, min(count, low + part) - low)
    return box


def _tensors() -> Any:
    """Returns torch's module with DTensor, which was not public before torch 2.5."""
    found = importlib.import_module(_MODULES[0])
    return found if hasattr(found, "DTensor") else importlib.import_module(_MODULES[1])


def placements_for(name: str, placements: Any, mesh: Any) -> Sequence[Any]:
    """Returns the placements of the tensor `name`.

    `placements` are the placements of all tensors, or a mapping from shell patterns of names to
    placements. The first pattern that matches `name` counts. If no pattern matches, the tensor is
    replicated."""
    if not isinstance(placements, Mapping):
        return tuple(placements)
    for pattern, found in placements.items():
        if fnmatch.fnmatchcase(name, pattern):
            return tuple(found)
    return [_tensors().Replicate()] * mesh.ndim


def make_dtensor(local: Any, shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> Any:
    """Returns the DTensor of shape `shape` of which this process holds the part `local`."""
    import torch
    strides = [math.prod(max(1, length) for length in shape[d + 1:]) for d in range(len(shape))]
    return _tensors().DTensor.from_local(local, mesh, placements, run_check=False,
                                         shape=torch.Size(shape), stride=tuple(strides))


__all__ = ["is_dtensor", "local_box", "make_dtensor", "placements_for"]
