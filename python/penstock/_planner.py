# SPDX-License-Identifier: Apache-2.0
"""SavePlanner: a planner of saves for torch, which computes a plan quickly and keeps it.

torch's DefaultSavePlanner takes about 10 us for each tensor of each rank on the coordinator, at
each save. At thousands of ranks this takes longer than writing. SavePlanner takes less than 1 us,
and plans again only if the state's tensors or their shards have changed."""

from __future__ import annotations

import collections
import dataclasses
import gc
import math
import os
import uuid
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed
from torch.distributed.checkpoint import default_planner as _default
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                  Metadata, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

# Identifies an item: the name of its tensor or object, and the offset of its shard.
Key = Tuple[str, Any]
# Number of different states whose plans are kept.
STATES = 2


@dataclasses.dataclass(frozen=True)
class _Plan(SavePlan):
    """A plan that a rank and the coordinator send to each other. The receiver may have kept the
    same plan from an earlier save.

    Attributes:
        token: identifies the plan.
        known: True if the items are left out, because the receiver has kept the plan with this
            token.
        nbytes: number of bytes that the rank will write; None before the global plan.
    """
    token: str = ""
    known: bool = False
    nbytes: Optional[int] = None


class _Kept(NamedTuple):
    """The plans of a save that a rank keeps: its local plan with its token, and the final plan."""
    token: str
    local: SavePlan
    final: SavePlan


class _Joined(NamedTuple):
    """The plans of a save that the coordinator keeps: the token of the global plan, the local and
    the final plans of all ranks, and the metadata."""
    token: str
    local: List[SavePlan]
    final: List[SavePlan]
    metadata: Metadata


class _Cache:
    """The plans that a process keeps of its last saves, the least recently used first. All ranks
    use the plans in the same order, so all ranks keep the plans of the same saves."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.kept: "collections.OrderedDict[str, _Kept]" = collections.OrderedDict()
        # Used only on the coordinator: maps the tokens of all ranks' local plans to the plans of
        # the save.
        self.joined: "collections.OrderedDict[Tuple[str, ...], _Joined]" = \
            collections.OrderedDict()
        # True from the start of a save until its plan is finished. If it is still True at the
        # start of the next save, the last save has failed on all ranks. Some ranks may then have
        # kept the plan of that save, and others not. So all ranks drop all plans.
        self.planning = False

    def begin(self) -> None:
        """Prepares the cache for a save. Called when the save starts."""
        if self.planning:
            self.kept.clear()
            self.joined.clear()
        self.planning = True


_caches: Dict[Any, _Cache] = {}


def _put(table: Any, key: Any, value: Any) -> None:
    """Stores an entry at the end of the table, and drops the entries that were used least
    recently, until STATES entries are left."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > STATES:
        table.popitem(last=False)


class SavePlanner(DefaultSavePlanner):
    """Plans saves of torch.distributed.checkpoint. The plans are those of DefaultSavePlanner.

        dcp.save(state, storage_writer=writer, planner=penstock.torch.SavePlanner())

    Args:
        flatten_state_dict, flatten_sharded_tensors: as in DefaultSavePlanner.
        dedup_save_to_lowest_rank: if several ranks have an item, True lets the lowest rank write
            it; False lets the rank write it that has the fewest bytes to write.
        cache: whether a plan is used again if no rank's state has changed its tensors or shards.
            The plans of the last two states are kept. If a process takes part in the saves of
            several process groups, set it to False; otherwise some saves fail, and succeed
            when they are repeated.
    """

    def __init__(self, flatten_state_dict: bool = True, flatten_sharded_tensors: bool = True, *,
                 dedup_save_to_lowest_rank: bool = False, cache: bool = True) -> None:
        super().__init__(flatten_state_dict=flatten_state_dict,
                         flatten_sharded_tensors=flatten_sharded_tensors)
        self.dedup_save_to_lowest_rank = dedup_save_to_lowest_rank
        self.cache = cache
        self._sent: Optional[_Plan] = None

    def _plans(self) -> _Cache:
        """Returns the plans that this process keeps for the current number of ranks and the options
        of this object. A child of fork does not use the plans of its parent."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        key = (torch.distributed.get_world_size() if distributed else 1, type(self),
               self.flatten_state_dict, self.flatten_sharded_tensors,
               self.dedup_save_to_lowest_rank)
        if key not in _caches or _caches[key].pid != os.getpid():
            _caches[key] = _Cache()
        return _caches[key]

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None,
                       is_coordinator: bool = False) -> None:
        if self.cache:
            self._plans().begin()
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        if not self.cache:
            return plan
        for kept in self._plans().kept.values():
            if kept.local.items == plan.items and kept.local.planner_data == plan.planner_data:
                self._sent = _Plan(plan.items, planner_data=plan.planner_data, token=kept.token)
                return _Plan([], token=kept.token, known=True)
        self._sent = _Plan(plan.items, planner_data=plan.planner_data, token=uuid.uuid4().hex)
        return self._sent

    def create_global_plan(self, all_plans: List[SavePlan]) -> Tuple[List[SavePlan], Metadata]:
        tokens = tuple(getattr(plan, "token", "") for plan in all_plans)
        if not self.cache or not all(tokens):
            self.global_plan, self.metadata = self._create_global_plan(all_plans)
            return self.global_plan, self.metadata
        joined = self._plans().joined
        found = joined.get(tokens)
        known = found is not None
        if found is None:
            local = self._with_items(all_plans)
            final, metadata = self._create_global_plan(local)
            final = [_Plan(plan.items, planner_data=plan.planner_data,
                           nbytes=sum(map(_storage_size, plan.items))) for plan in final]
            found = _Joined(uuid.uuid4().hex, local, final, metadata)
        _put(joined, tokens, found)
        # The storage writer changes the Metadata object, so it gets a copy. The writer's own data
        # about this save, storage_data, comes from the plans that the ranks have sent.
        self.global_plan, self.metadata = found.final, dataclasses.replace(found.metadata)
        return [_Plan([] if known else plan.items, storage_data=sent.storage_data,
                      planner_data=None if known else plan.planner_data, token=found.token,
                      known=known, nbytes=getattr(plan, "nbytes"))
                for plan, sent in zip(found.final, all_plans)], self.metadata

    def _with_items(self, plans: Sequence[SavePlan]) -> List[SavePlan]:
        """Returns the ranks' plans with their items. For a plan that its rank has sent without
        items, takes the plan that was kept. Raises ValueError if it was not kept."""
        kept = {getattr(plan, "token"): plan for joined in self._plans().joined.values()
                for plan in joined.local}
        full = [kept.get(getattr(plan, "token")) if getattr(plan, "known") else plan
                for plan in plans]
        missing = [rank for rank, plan in enumerate(full) if plan is None]
        if missing:
            raise ValueError(f"the coordinator does not know the plans that ranks {missing[:20]} "
                             "have kept; the next save sends them again; use cache=False if a "
                             "process takes part in the saves of several process groups")
        return [plan for plan in full if plan is not None]

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        token = getattr(new_plan, "token", "")
        if not self.cache or not token:
            return super().finish_plan(new_plan)
        cache = self._plans()
        if getattr(new_plan, "known"):
            if token not in cache.kept:
                raise ValueError("this rank does not know the plan that the coordinator has kept; "
                                 "the next save plans again")
            final = cache.kept[token].final
            new_plan = dataclasses.replace(final, storage_data=new_plan.storage_data)
        assert self._sent is not None
        _put(cache.kept, token, _Kept(self._sent.token, self._sent, new_plan))
        cache.planning = False
        self.plan = new_plan
        return new_plan

    def _create_global_plan(self, all_plans: List[SavePlan]) -> Tuple[List[SavePlan], Metadata]:
        """Returns the plans of all ranks without duplicates, and the metadata."""
        # Stops Python's garbage collector meanwhile, because it would traverse the plans' millions
        # of objects many times.
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


def _without_duplicates(plans: Sequence[SavePlan], to_lowest: bool) -> List[SavePlan]:
    """Returns copies of the plans in which each item occurs only once."""
    # Maps an item to the first rank that has it, and to the item's position in this rank's plan.
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
    """Returns the bytes of an item. Returns 1 for an object that is not a tensor, because its size
    is not known."""
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

    This function itself checks tensors that are split in only one dimension. torch checks the
    others."""
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
    """Returns whether the shards split only one dimension, follow each other in it without gaps,
    and cover the tensor."""
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
