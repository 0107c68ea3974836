# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.torch.SavePlanner, which plans which rank saves which tensors. Compares it
with torch's DefaultSavePlanner. One process makes the plans of many ranks. Also tests the plans
that ranks keep from one save to the next."""

import collections
import itertools
import logging
import os
import random
import time
import unittest
import unittest.mock
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import penstock.torch as pt
import tap
from penstock import _planner
from states import ERRORS, emptied, folder, same, stock_load

warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
logging.getLogger(default_planner.__name__).setLevel(logging.ERROR)
SEED = int(os.environ.get("PENSTOCK_SEED", "15"))


def shard(name, size, offset, part, dtype=torch.float32):
    offset = torch.Size(offset)
    return WriteItem(MetadataIndex(name, offset), WriteItemType.SHARD, tensor_data=TensorWriteData(
        ChunkStorageMetadata(offset, torch.Size(part)), TensorProperties(dtype=dtype),
        torch.Size(size)))


def tensor(name, size, dtype=torch.float32):
    offset = torch.Size([0] * len(size))
    return WriteItem(MetadataIndex(name, offset), WriteItemType.TENSOR, tensor_data=TensorWriteData(
        ChunkStorageMetadata(offset, torch.Size(size)), TensorProperties(dtype=dtype),
        torch.Size(size)))


def other(name):
    return WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)


def cuts(rng, length):
    """Divides a dimension of this length at random. Returns the pieces as (offset, length)
    pairs."""
    at = sorted({0, length, *(rng.randint(0, length) for _ in range(rng.randint(0, 4)))})
    return [(a, b - a) for a, b in zip(at, at[1:])] or [(0, length)]


def random_items(rng, ranks):
    """Returns a list of items for each rank. Each shard is on one rank or on several ranks."""
    found = [[] for _ in range(ranks)]
    for i in range(rng.randint(1, 8)):
        kind, name = rng.random(), f"t{i}"
        size = [rng.randint(1, 20) for _ in range(rng.randint(0, 3))]
        holders = rng.sample(range(ranks), rng.randint(1, ranks))
        if kind < 0.2:
            for rank in holders:
                found[rank].append(other(name))
        elif kind < 0.4 or not size:
            for rank in holders:
                found[rank].append(tensor(name, size))
        else:
            split = [cuts(rng, n) if rng.random() < 0.6 else [(0, n)] for n in size]
            for box in itertools.product(*split):
                item = shard(name, size, [a for a, _ in box], [n for _, n in box])
                for rank in rng.sample(range(ranks), rng.randint(1, ranks)):
                    found[rank].append(item)
    for items in found:
        rng.shuffle(items)
    return found


def break_items(rng, items):
    """Removes a random shard from all ranks, or moves it. Returns False if the items have no
    shard."""
    shards = sorted({(i.index.fqn, tuple(i.index.offset)) for of_rank in items for i in of_rank
                     if i.type == WriteItemType.SHARD})
    if not shards:
        return False
    name, offset = rng.choice(shards)
    hole = rng.random() < 0.5
    for rank, of_rank in enumerate(items):
        for i, item in enumerate(of_rank):
            if (item.index.fqn, tuple(item.index.offset or ())) == (name, offset):
                part = list(item.tensor_data.chunk.sizes)
                part[0] += -1 if hole else 1
                of_rank[i] = shard(name, item.tensor_data.size, offset, part)
    return True


def plans_of(items):
    return [SavePlan(list(of_rank), planner_data={f"m{rank}": rank})
            for rank, of_rank in enumerate(items)]


def described(metadata):
    """Returns the metadata in a form that does not depend on the order of the shards."""
    return {name: (value.properties, value.size,
                   sorted((tuple(c.offsets), tuple(c.sizes)) for c in value.chunks))
            if isinstance(value, TensorStorageMetadata) else value
            for name, value in metadata.state_dict_metadata.items()}


def keys(plan):
    return collections.Counter((i.index.fqn, i.index.offset) for i in plan.items)


class Equality(unittest.TestCase):
    def test_random_plans(self):
        rng, refused = random.Random(SEED), 0
        for case in range(400):
            items = random_items(rng, rng.randint(1, 9))
            broken = rng.random() < 0.3 and break_items(rng, items)
            results = []
            for planner in (default_planner.DefaultSavePlanner(), pt.SavePlanner()):
                try:
                    results.append(planner.create_global_plan(plans_of(items)))
                except (ValueError, AssertionError) as error:
                    results.append(error)
            theirs, ours = results
            where = f"PENSTOCK_SEED={SEED}, case {case}: {theirs} {ours}"
            if isinstance(theirs, Exception):
                refused += 1
                self.assertIsInstance(ours, ValueError, where)
                continue
            self.assertNotIsInstance(ours, Exception, where)
            self.assertEqual(described(theirs[1]), described(ours[1]), where)
            self.assertEqual(theirs[1].planner_data, ours[1].planner_data, where)
            total = sum(map(keys, ours[0]), collections.Counter())
            self.assertEqual(total, sum(map(keys, theirs[0]), collections.Counter()), where)
            self.assertEqual(set(total.values()) | {1}, {1}, where)
            for plan, had in zip(ours[0], items):
                self.assertLessEqual(keys(plan), keys(SavePlan(had)), where)
            if broken:
                self.assertEqual(len(items), 1, where)  # torch does not check a single rank.
        self.assertGreater(refused, 20)

    def test_2816_ranks(self):
        """A plan for 28,160 shards takes less than 5 s of CPU time. bench/ckpt/plan.py measures
        more."""
        size = [2816 * 4, 64]
        plans = [_planner._Plan([shard(f"t{i}", size, [4 * rank, 0], [4, 64]) for i in range(10)] +
                                [tensor("step", []), other("lr")], planner_data={}, token=str(rank))
                 for rank in range(2816)]
        start = time.process_time()
        final, metadata = pt.SavePlanner().create_global_plan(plans)
        self.assertLess(time.process_time() - start, 5)
        self.assertEqual(sum(len(plan.items) for plan in final), 2816 * 10 + 2)
        self.assertEqual(len(metadata.state_dict_metadata["t3"].chunks), 2816)
        self.assertEqual([plan.nbytes for plan in final[5:7]], [10 * 4 * 64 * 4] * 2)


class Job:
    """Simulates a job: several ranks in one process, each of which keeps its plans."""

    def __init__(self, ranks):
        self.caches = [_planner._Cache() for _ in range(ranks)]
        self.planned = 0  # How often the coordinator has planned.

    def save(self, items, fail=""):
        """Plans a save, and compares the result with a plan that torch makes. `fail` names the
        step that fails. Returns whether the coordinator made a new plan."""
        def local(state, _):
            return SavePlan(list(state["items"]))
        planners = [pt.SavePlanner(False, False) for _ in items]
        before = self.planned
        with unittest.mock.patch.object(default_planner, "create_default_local_save_plan", local):
            sent = []
            for rank, planner in enumerate(planners):
                planner._plans = lambda rank=rank: self.caches[rank]
                planner.set_up_planner({"items": items[rank]}, None, not rank)
                sent.append(planner.create_local_plan())
        real = planners[0]._create_global_plan

        def count(plans):
            self.planned += 1
            if fail == "global":
                raise ValueError("planted")
            return real(plans)
        planners[0]._create_global_plan = count
        plans, metadata = planners[0].create_global_plan(sent)
        if fail == "scatter":
            raise ValueError("planted")
        final = [planner.finish_plan(plan) for planner, plan in zip(planners, plans)]
        want, described_want = default_planner.DefaultSavePlanner(False, False).create_global_plan(
            [SavePlan(list(of_rank)) for of_rank in items])
        assert described(metadata) == described(described_want)
        total = sum(map(keys, final), collections.Counter())
        assert total == sum(map(keys, want), collections.Counter()), total
        for plan, had in zip(final, items):
            assert all(item in had for item in plan.items)
        return self.planned > before


def state(ranks, length=8, dtype=torch.float32, more=()):
    return [[shard("w", [length * ranks], [length * rank], [length], dtype), tensor("same", [3]),
             *(tensor(name, [2]) for name in more)] for rank in range(ranks)]


class Kept(unittest.TestCase):
    """Tests plans that ranks keep from one save to the next."""

    def test_unchanged_and_changed(self):
        job = Job(3)
        self.assertTrue(job.save(state(3)))
        self.assertFalse(job.save(state(3)))
        for changed in (state(3, 9), state(3, dtype=torch.bfloat16), state(3, more=["n"])):
            self.assertTrue(job.save(changed))
            self.assertFalse(job.save(changed))
        one = state(3)
        one[1].append(tensor("own", [5]))  # Only one rank has changed.
        self.assertTrue(job.save(one))
        self.assertFalse(job.save(one))

    def test_alternating_states(self):
        job, a, b, c = Job(3), state(3), state(3, 9), state(3, more=["n"])
        for items, planned in ((a, True), (b, True), (a, False), (b, False), (c, True), (b, False),
                               (a, True), (c, True)):
            self.assertEqual(job.save(items), planned)

    def test_failed_saves(self):
        a, b = state(3), state(3)
        b[1].append(tensor("own", [5]))
        for fail in ("global", "scatter"):
            job = Job(3)
            job.save(a)
            with self.assertRaisesRegex(ValueError, "planted"):
                job.save(b, fail)
            mixed = [a[0], a[1], a[2] + [tensor("third", [4])]]
            for items in (b, mixed, a, b, mixed):
                job.save(items)

    def test_unknown_plans(self):
        """A rank and the coordinator keep different plans. One save fails with an error, and
        later saves succeed."""
        job = Job(3)
        job.save(state(3))
        job.caches[0].joined.clear()
        with self.assertRaisesRegex(ValueError, r"ranks \[0, 1, 2\]"):
            job.save(state(3))
        job.save(state(3))
        job.caches[2].kept.clear()
        job.save(state(3))
        job.caches[2].kept = collections.OrderedDict(
            (key + "x", value) for key, value in job.caches[2].kept.items())
        with self.assertRaisesRegex(ValueError, "this rank does not know"):
            job.save(state(3))
        for _ in range(2):
            try:
                job.save(state(3))
                break
            except ValueError:
                continue
        self.assertFalse(job.save(state(3)))

    def test_files(self):
        """One planner plans several saves of a state that changes. Each checkpoint has the
        right bytes."""
        planner, path = pt.SavePlanner(), folder()
        torch.manual_seed(3)
        for value in ({"a": torch.randn(9, 9)}, {"a": torch.randn(9, 9)},
                      {"a": torch.randn(9, 9).bfloat16()}, {"a": torch.randn(4, 9), "b": 3},
                      {"a": {"b": torch.randn(3)}}, {"a.b": torch.randn(3)}):
            dcp.save(value, storage_writer=pt.StorageWriter(path), planner=planner)
            got = emptied(value)
            stock_load(got, path)
            same(got, value)
            metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
            for name, described_value in metadata.items():
                if name in value and isinstance(value[name], torch.Tensor):
                    self.assertEqual(described_value.properties.dtype, value[name].dtype)
        with self.assertRaises(ERRORS):
            planner.set_up_planner(None, None, True)


if __name__ == "__main__":
    tap.main()
