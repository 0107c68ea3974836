#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plan.py [RANKS [WEIGHTS]]: measures how long the coordinator of a save needs to plan for many
ranks.

Each rank has a shard of each weight and of the weight's two Adam moments. It also has a copy of the
step counter of each weight, and of two objects. This process makes the plans of all ranks, so the
time to send them over the network is not measured. Prints the CPU seconds of torch's
DefaultSavePlanner and of penstock.torch.SavePlanner, for the first save and for a second save of
the same state. For plans of 500,000 items, the script needs 1 GB of memory."""

import gc
import sys
import time

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, MetadataIndex,
                                                   TensorProperties)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import penstock.torch as pt
from penstock import _planner


def plans_of(ranks, weights):
    """Returns one local SavePlan for each rank, like those for a model that torch's fully_shard
    has divided among the ranks."""
    properties = TensorProperties(dtype=torch.bfloat16)
    rows, columns = 8 * ranks, 4096
    size, part = torch.Size([rows, columns]), torch.Size([8, columns])
    scalar = TensorWriteData(ChunkStorageMetadata(torch.Size([]), torch.Size([])), properties,
                             torch.Size([]))
    names = [f"model.layers.{i}.weight" for i in range(weights)]
    found = []
    for rank in range(ranks):
        offset = torch.Size([8 * rank, 0])
        items = []
        for name in names:
            for kind in (name, f"optim.{name}.exp_avg", f"optim.{name}.exp_avg_sq"):
                items.append(WriteItem(
                    MetadataIndex(kind, offset), WriteItemType.SHARD,
                    tensor_data=TensorWriteData(ChunkStorageMetadata(offset, part), properties,
                                                size)))
            items.append(WriteItem(MetadataIndex(f"optim.{name}.step", torch.Size([])),
                                   WriteItemType.TENSOR, tensor_data=scalar))
        items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in ("lr", "epoch")]
        found.append(SavePlan(items, planner_data={}))
    return found


def seconds(call, *args):
    gc.collect()
    start = time.process_time()
    result = call(*args)
    return time.process_time() - start, result


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2816
    weights = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    plans = plans_of(ranks, weights)
    print(f"{ranks} ranks, {sum(len(plan.items) for plan in plans)} items, CPU seconds")
    tokens = [_planner._Plan(p.items, planner_data={}, token=str(i)) for i, p in enumerate(plans)]
    known = [_planner._Plan([], token=str(i), known=True) for i in range(ranks)]
    planner = pt.SavePlanner()
    first, _ = seconds(planner.create_global_plan, tokens)
    again, _ = seconds(planner.create_global_plan, known)
    print(f"penstock  first {first:8.3f}  again {again:8.3f}", flush=True)
    try:
        theirs = DefaultSavePlanner(enable_plan_caching=True)
    except TypeError:  # This version of torch keeps no plans.
        theirs = DefaultSavePlanner()
    first, _ = seconds(theirs.create_global_plan, plans)
    unchanged = [SavePlan([], usable=False)] * ranks
    again, _ = seconds(theirs.create_global_plan, unchanged)
    print(f"torch     first {first:8.3f}  again {again:8.3f}")


if __name__ == "__main__":
    main()
