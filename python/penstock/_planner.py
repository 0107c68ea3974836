# SPDX-License-Identifier: Apache-2.0
"""SavePlanner: torch's planner of saves, with a plan that is computed quickly and kept.

torch's DefaultSavePlanner takes about 10 us for each tensor of each rank on the coordinator, at
each save. At thousands of ranks this takes longer than writing. SavePlanner takes less than 1 us,
and plans again only if the state's tensors or their shards have changed."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import math
import os
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed
from torch.distributed.checkpoint import default_planner as _default
from torch.distributed.checkpoint import planner as _planner
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                  Metadata, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

# Identifies an item: name and offset of the shard.
Key = Tuple[str, Any]


class SavePlanner(DefaultSavePlanner):
    """Plans saves of torch.distributed.checkpoint. The plans are those of DefaultSavePlanner.

        dcp.save(state, storage_writer=writer, planner=penstock.torch.SavePlanner())

    Args:
        flatten_state_dict, flatten_sharded_tensors: as in DefaultSavePlanner.
        dedup_save_to_lowest_rank: whether the lowest rank writes what several ranks have;
            otherwise the rank writes it that has least to write.
        cache: whether a plan is used again if no rank's state has changed its tensors or shards.
            Needs torch 2.7; earlier versions plan at each save.
    """

    def __init__(self, flatten_state_dict: bool = True, flatten_sharded_tensors: bool = True, *,
                 dedup_save_to_lowest_rank: bool = False, cache: bool = True) -> None:
        known = inspect.signature(DefaultSavePlanner.__init__).parameters
        options: Dict[str, Any] = {"flatten_state_dict": flatten_state_dict,
                                   "flatten_sharded_tensors": flatten_sharded_tensors}
        if "enable_plan_caching" in known:
            options["enable_plan_caching"] = cache
        super().__init__(**options)
        self.dedup_save_to_lowest_rank = dedup_save_to_lowest_rank
        # torch keeps the plans of all planners of a process in tables of the class. The key must
        # not be that of another number of ranks, or of the parent of a forked process.
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        ranks = torch.distributed.get_world_size() if distributed else 1
        self._cached_plans_key = f"penstock {os.getpid()} {ranks}"

    def forget(self) -> None:
        """Makes the next save plan again. All ranks must call this after a failed save."""
        for name in ("_cached_save_plan", "_cached_final_save_plan", "_cached_all_plans",
                     "_cached_global_plan", "_cached_metadata"):
            getattr(_planner.SavePlanner, name, {}).pop(self._cached_plans_key, None)

    def _create_global_plan(self, all_plans: List[SavePlan]) -> Tuple[List[SavePlan], Metadata]:
        """Returns the plans of all ranks without duplicates, and the metadata."""
        # The garbage collector would look at the plans' millions of objects again and again.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._plan_all(all_plans)
        finally:
            if collecting:
                gc.enable()

    def _plan_all(self, all_plans: List[SavePlan]) -> Tuple[List[SavePlan], Metadata]:
        plans = _without_duplicates(all_plans, self.dedup_save_to_lowest_rank)
        metadata = Metadata(_state_metadata(plans))
        if self.flatten_state_dict:
            merged: Dict[Any, Any] = {}
            for plan in reversed(plans):
                merged.update(plan.planner_data or {})
            metadata.planner_data = merged
        _check(plans, metadata)
        return plans, metadata

    if not hasattr(DefaultSavePlanner, "_create_global_plan"):
        def create_global_plan(self, all_plans: List[SavePlan]
                               ) -> Tuple[List[SavePlan], Metadata]:
            self.global_plan, self.metadata = self._create_global_plan(all_plans)
            return self.global_plan, self.metadata


def _without_duplicates(plans: Sequence[SavePlan], to_lowest: bool) -> List[SavePlan]:
    """Returns the plans, in which each item occurs only once."""
    # The first rank that has an item, with the item's position in the rank's plan.
    owners: Dict[Key, Tuple[int, int]] = {}
    shared: Dict[Key, List[Tuple[int, int]]] = {}
    for rank, plan in enumerate(plans):
        for position, item in enumerate(plan.items):
            index, place = item.index, (rank, position)
            key = (index.fqn, index.offset)
            first = owners.setdefault(key, place)
            if first is not place:
                shared.setdefault(key, [first]).append(place)
    sizes = [0] * len(plans)  # bytes of the shared items that each rank writes
    dropped: List[Set[int]] = [set() for _ in plans]
    for places in shared.values():
        chosen = places[0] if to_lowest else min(places, key=lambda place: sizes[place[0]])
        sizes[chosen[0]] += _storage_size(plans[chosen[0]].items[chosen[1]])
        for place in places:
            if place != chosen:
                dropped[place[0]].add(place[1])
    return [dataclasses.replace(plan, items=[item for i, item in enumerate(plan.items)
                                             if i not in gone])
            if gone else plan for plan, gone in zip(plans, dropped)]


def _storage_size(item: WriteItem) -> int:
    """Returns the bytes of an item; 1 for other objects than tensors, whose size is unknown."""
    data = item.tensor_data
    if data is None:
        return 1
    sizes = data.chunk.sizes if data.chunk is not None else data.size
    return int(math.prod(sizes) * data.properties.dtype.itemsize)


def _state_metadata(plans: Sequence[SavePlan]) -> Dict[str, Any]:
    """Returns the description of all tensors and objects, by name."""
    found: Dict[str, Any] = {}
    for plan in plans:
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            known = found.get(name)
            if known is not None and item.type != WriteItemType.SHARD:
                raise ValueError(f"{name}: two ranks save different objects under this name")
            if item.type == WriteItemType.BYTE_IO:
                found[name] = BytesStorageMetadata()
                continue
            if data is None or data.chunk is None:
                raise ValueError(f"{name}: the plan has no shard for this tensor")
            if known is None:
                known = found[name] = TensorStorageMetadata(properties=data.properties,
                                                            size=data.size, chunks=[])
            known.chunks.append(data.chunk)
    return found


def _check(plans: List[SavePlan], metadata: Metadata) -> None:
    """Raises ValueError if the shards of a tensor overlap or do not cover the tensor.

    Shards that split only one dimension are checked here, all others by torch."""
    hard = {name: value for name, value in metadata.state_dict_metadata.items()
            if isinstance(value, TensorStorageMetadata) and not _is_row_of_shards(value)}
    if not hard:
        return
    # The check of torch returned a bool before version 2.9.
    wrong = _default._validate_global_plan(plans, Metadata(hard))
    if wrong is False or (wrong and wrong is not True):
        detail = "; ".join(wrong) if isinstance(wrong, list) else ", ".join(hard)
        raise ValueError(f"shards overlap or do not cover their tensor: {detail[:500]}")


def _is_row_of_shards(value: TensorStorageMetadata) -> bool:
    """Returns whether the shards lie beside each other in one dimension and cover the tensor."""
    chunks, size = value.chunks, value.size
    if len(chunks) == 1:
        return tuple(chunks[0].sizes) == tuple(size) and not any(chunks[0].offsets)
    split = _split_dimension(chunks, size)
    if split is None:
        return False
    at = 0
    for offset, length in sorted((c.offsets[split], c.sizes[split]) for c in chunks):
        if offset != at and length:
            return False
        at += length
    return bool(at == size[split])


def _split_dimension(chunks: Sequence[ChunkStorageMetadata], size: Sequence[int]
                     ) -> Optional[int]:
    """Returns the only dimension in which the shards are shorter than the tensor, or None."""
    first = chunks[0]
    split = [d for d, length in enumerate(size) if first.sizes[d] != length]
    if len(split) != 1:
        return None
    d = split[0]
    for chunk in chunks:
        if sum(chunk.offsets) != chunk.offsets[d]:
            return None
        if chunk.sizes != first.sizes and \
                any(chunk.sizes[other] != length for other, length in enumerate(size)
                    if other != d):
            return None
    return d


__all__ = ["SavePlanner"]
