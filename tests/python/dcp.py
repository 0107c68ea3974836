# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.torch with torch.distributed.checkpoint (DCP) on the CPU. Files of this
package must be readable by torch, and files of torch by this package. Also tests loads by
another number of ranks (resharding), snapshots, commits and faults. The processes communicate
by gloo."""

import errno
import io
import os
import pickle
import shutil
import struct
import sys
import tempfile
import threading
import time
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import penstock
import penstock._part
import penstock.torch as pt
import ranks
import tap
from older_torch import (DTensor, NO_CPU_FSDP, Replicate, Shard, UINT16, distribute_tensor,
                         needs)
from states import ERRORS, bits, emptied, folder, same, stock_load

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")


def plain_state(seed=0):
    """Returns tensors of many dtypes, shapes and layouts, and other objects."""
    torch.manual_seed(seed)
    big = torch.randn(300, 257)
    return {
        "big": big, "bf16": torch.randn(640, 128).to(torch.bfloat16), "half": torch.randn(7).half(),
        "ints": torch.arange(70000), "scalar": torch.tensor(2.5 + seed), "empty": torch.zeros(0, 4),
        "bool": torch.randint(0, 2, (33,)).bool(), "fp8": torch.randn(64).to(torch.float8_e4m3fn),
        "complex": torch.randn(5, dtype=torch.complex64),
        "uint16": torch.arange(9).to(UINT16),
        "view": torch.arange(100000)[7:90000], "transposed": torch.randn(200, 300).t(),
        "last": torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.randn(130, 130)), "shared": big,
        "nested": {"step": seed, "lr": 0.1, "names": ["a", "b"], "t": torch.ones(3) * seed},
        "text": "x" * 100000, "none": None,
    }


class Single(unittest.TestCase):
    """Tests saves and loads by one process."""

    def test_torch_reads_ours(self):
        state, path = plain_state(1), folder()
        writer = pt.StorageWriter(path)
        dcp.save(state, storage_writer=writer)
        got = emptied(state)
        stock_load(got, path)
        same(got, state)
        self.assertGreater(writer.report.bytes, sum(
            t.nbytes for t in state.values() if isinstance(t, torch.Tensor)))

    def test_ours_reads_torch(self):
        state, path = plain_state(2), folder()
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path))
        reader, got = pt.StorageReader(path), emptied(state)
        dcp.load(got, storage_reader=reader)
        same(got, state)
        self.assertEqual(reader.report.checked_bytes, 0)
        self.assertIn("no manifest", reader.report.unchecked)
        # The reader lets torch read "transposed" and "last", because their elements are not in
        # row-major order in the file.
        self.assertEqual(reader.report.through_torch, 2)

    def test_other_shape(self):
        """A load into a tensor of another shape fails, and changes no tensor."""
        path = folder()
        dcp.save({"w": torch.ones(20, 30)}, storage_writer=pt.StorageWriter(path))
        for shape in ((10, 30), (40, 30), (20, 40), (600,), ()):
            with self.subTest(shape):
                got = {"w": torch.zeros(shape)}
                with self.assertRaisesRegex(ERRORS, "20, 30"):
                    dcp.load(got, storage_reader=pt.StorageReader(path))
                self.assertTrue(torch.equal(got["w"], torch.zeros(shape)))

    def test_ours_reads_ours(self):
        state, path = plain_state(3), folder()
        dcp.save(state, storage_writer=pt.StorageWriter(path))
        reader, got = pt.StorageReader(path), emptied(state)
        dcp.load(got, storage_reader=reader)
        same(got, state)
        self.assertEqual(reader.report.unchecked, "")
        self.assertEqual(reader.report.through_torch, 0)

    def test_payloads_are_aligned(self):
        """If the elements of a tensor (its payload) have 64 KiB or more, they begin at a multiple
        of 4096 bytes in the file."""
        state, path = plain_state(4), folder()
        dcp.save(state, storage_writer=pt.StorageWriter(path))
        with open(os.path.join(path, ".metadata"), "rb") as f:
            places = pickle.load(f).storage_data
        found = 0
        for index, place in places.items():
            with open(os.path.join(path, place.relative_path), "rb") as f:
                f.seek(place.offset)
                data = f.read(place.length)
            value = state.get(index.fqn)
            if isinstance(value, torch.Tensor) and value.nbytes >= 65536:
                at = data.index(bytes(bits(value).numpy().tobytes()[:64]))
                self.assertEqual((place.offset + at) % 4096, 0, index.fqn)
                found += 1
        self.assertGreaterEqual(found, 6)

    def test_other_dtype_and_layout(self):
        """The tensors into which a checkpoint is loaded may have another dtype or layout than
        the file."""
        path, value = folder(), torch.randn(300, 200)
        dcp.save({"a": value, "b": value, "c": value}, storage_writer=pt.StorageWriter(path))
        got = {"a": torch.zeros(300, 200, dtype=torch.float64),
               "b": torch.zeros(200, 300).t(), "c": torch.zeros(600, 400)[::2, ::2]}
        dcp.load(got, storage_reader=pt.StorageReader(path))
        for name in "abc":
            self.assertTrue(torch.equal(got[name].float(), value), name)

    def test_overwrite(self):
        """A save into a folder that has a checkpoint replaces the checkpoint, and removes the files
        of the old one."""
        path = folder()
        for seed in (5, 6):
            state = plain_state(seed)
            dcp.save(state, storage_writer=pt.StorageWriter(path))
            got = emptied(state)
            stock_load(got, path)
            same(got, state)
            self.assertEqual(len([n for n in os.listdir(path) if n.endswith(".distcp")]), 1)
        with self.assertRaisesRegex(ERRORS, "overwrite is False"):
            dcp.save(state, storage_writer=pt.StorageWriter(path, overwrite=False))

    def test_interrupted(self):
        """A save that fails leaves the checkpoint in the folder as it was."""
        state, path = plain_state(7), folder()
        dcp.save(state, storage_writer=pt.StorageWriter(path))

        class Failing(pt.StorageWriter):
            def finish(self, metadata, results):
                raise OSError(errno.EIO, "planted")

        with self.assertRaisesRegex(ERRORS, "planted"):
            dcp.save(plain_state(8), storage_writer=Failing(path))
        for reader in (pt.StorageReader(path), dcp.FileSystemReader(path)):
            got = emptied(state)
            dcp.load(got, storage_reader=reader)
            same(got, state)

    def test_damage(self):
        """The error for a changed byte, a truncated part and a truncated marker (.metadata) names
        the file. For a changed byte, it also names the tensor."""
        state, path = {"w": torch.randn(500, 500), "x": torch.randn(5)}, folder()
        dcp.save(state, storage_writer=pt.StorageWriter(path))
        part = os.path.join(path, next(n for n in os.listdir(path) if n.endswith(".distcp")))
        size = os.path.getsize(part)
        with open(part, "r+b") as f:
            f.seek(size // 2)
            byte = f.read(1)
            f.seek(size // 2)
            f.write(bytes([byte[0] ^ 4]))
        with self.assertRaises(ERRORS) as caught:
            dcp.load(emptied(state), storage_reader=pt.StorageReader(path))
        self.assertIn(os.path.basename(part), str(caught.exception))
        self.assertIn("w", str(caught.exception))
        dcp.load(emptied(state), storage_reader=pt.StorageReader(path, checksums=False))
        os.truncate(part, size - 100)
        with self.assertRaises(ERRORS) as caught:
            dcp.load(emptied(state), storage_reader=pt.StorageReader(path))
        self.assertIn(os.path.basename(part), str(caught.exception))
        os.truncate(os.path.join(path, ".metadata"), 100)
        with self.assertRaisesRegex(ERRORS, "metadata"):
            dcp.load(emptied(state), storage_reader=pt.StorageReader(path))
        os.unlink(os.path.join(path, ".metadata"))
        with self.assertRaisesRegex(ERRORS, "interrupted"):
            dcp.load(emptied(state), storage_reader=pt.StorageReader(path))

    def test_two_jobs(self):
        """While one job saves into a folder, a second job that saves into it gets an error."""
        path = folder()
        inside, leave = threading.Event(), threading.Event()

        class Slow(pt.StorageWriter):
            def _write_parts(self, plan, planner):
                inside.set()
                assert leave.wait(30)
                return super()._write_parts(plan, planner)

        first = threading.Thread(target=lambda: dcp.save({"a": torch.ones(9)}, no_dist=True,
                                                         storage_writer=Slow(path)))
        first.start()
        self.assertTrue(inside.wait(30))
        with self.assertRaisesRegex(ERRORS, "another job"):
            dcp.save({"a": torch.zeros(9)}, storage_writer=pt.StorageWriter(path))
        leave.set()
        first.join()
        got = {"a": torch.zeros(9)}
        stock_load(got, path)
        self.assertTrue(torch.equal(got["a"], torch.ones(9)))

    def test_stripe(self):
        """If the parts are on several drives, torch reads them through symbolic links."""
        state, path = plain_state(9), folder()
        drives = [folder("drive0"), folder("drive1")]
        dcp.save(state, storage_writer=pt.StorageWriter(path, stripe=drives))
        for drive in drives:
            self.assertEqual(len(os.listdir(os.path.join(drive, "step"))), 1)
        got = emptied(state)
        stock_load(got, path)
        same(got, state)
        dcp.save(plain_state(10), storage_writer=pt.StorageWriter(path, stripe=drives))
        for drive in drives:
            self.assertEqual(len(os.listdir(os.path.join(drive, "step"))), 1)

    def test_stripe_of_two_runs(self):
        """Two checkpoints whose folders have the same name can be striped over the same
        drive."""
        drive, paths = folder("drive"), [folder("run0/step"), folder("run1/step")]
        states = [plain_state(11), plain_state(12)]
        for state, path in zip(states, paths):
            dcp.save(state, storage_writer=pt.StorageWriter(path, stripe=[drive]))
        for state, path in zip(states, paths):
            got = emptied(state)
            stock_load(got, path)
            same(got, state)

    def test_progress(self):
        told, path = [], folder()
        state = {"a": torch.randn(3 << 20)}
        def tell(done, total):
            told.append((done, total))

        for call in (lambda: dcp.save(state, storage_writer=pt.StorageWriter(path, progress=tell)),
                     lambda: dcp.load(emptied(state),
                                      storage_reader=pt.StorageReader(path, progress=tell))):
            told.clear()
            call()
            self.assertGreater(len(told), 0)
            total = told[0][1]
            self.assertGreaterEqual(total, state["a"].nbytes)
            self.assertTrue(all(done <= of and of == total for done, of in told), told)
            self.assertEqual(told[-1], (total, total))


class Snapshots(unittest.TestCase):
    """Tests async_save: a checkpoint must have the values that the state had at the time of the
    call."""

    def save_and_change(self, writer, stager=None, **how):
        state = {"w": torch.randn(1 << 20), "b": torch.randn(77), "step": 3}
        want = {"w": state["w"].clone(), "b": state["b"].clone(), "step": 3}
        future = dcp.async_save(state, storage_writer=writer, async_stager=stager, **how)
        state["w"].zero_()
        state["b"].zero_()
        getattr(future, "upload_completion", future).result()
        got = {"w": torch.zeros(1 << 20), "b": torch.zeros(77), "step": 0}
        stock_load(got, writer.folder)
        same(got, want)

    def test_never_stale(self):
        writer = pt.StorageWriter(folder())
        pools = []
        for step in range(3):
            writer.reset(folder(f"step-{step}"))
            self.save_and_change(writer)
            pools.append(writer.stager._pool)
        self.assertEqual(writer.stager.report.left_bytes, 0)
        self.assertIsNotNone(pools[0])
        self.assertTrue(all(pool is pools[0] for pool in pools), pools)

    def test_small_pool(self):
        """Tensors that do not fit into the pool (the memory for the snapshot) are written before
        async_save returns."""
        writer = pt.StorageWriter(folder(), pool_bytes=1 << 20)
        self.save_and_change(writer)
        self.assertEqual(writer.report.snapshot.left_bytes, 4 << 20)

    def test_failed_save_with_small_pool(self):
        """async_save waits until the tensors that do not fit into the pool are written. It must
        not wait if the save fails before it writes."""
        path = folder()
        dcp.save({"w": torch.ones(9)}, storage_writer=pt.StorageWriter(path))
        writer = pt.StorageWriter(path, pool_bytes=1 << 20, overwrite=False)
        future = dcp.async_save({"w": torch.ones(1 << 20)}, storage_writer=writer)
        with self.assertRaisesRegex(ERRORS, "overwrite is False"):
            future.result()

    def test_kept_error(self):
        """The program keeps the future of a failed save, whose exception refers to the
        snapshot. The next save must not wait for this snapshot to be released. It logs a
        warning instead."""
        path = folder()
        dcp.save({"w": torch.ones(9)}, storage_writer=pt.StorageWriter(path))
        for stager in (None, pt.Stager()):
            writer = pt.StorageWriter(path, overwrite=False)
            kept = dcp.async_save({"w": torch.ones(1 << 18)}, storage_writer=writer,
                                  async_stager=stager)
            with self.assertRaisesRegex(ERRORS, "overwrite is False"):
                kept.result()
            writer.reset(folder())
            with self.assertLogs("penstock", "WARNING") as log:
                self.save_and_change(writer, stager)
            self.assertIn("future of a failed save", log.output[0])
            self.assertTrue(kept.exception())

    def test_kept_result(self):
        """The result of a failed Checkpointer save must not refer to the snapshot, so the next
        save can use the snapshot's memory."""
        with pt.Checkpointer(folder("run")) as checkpoints:
            os.makedirs(checkpoints.folder)
            with open(checkpoints.path_of(1), "w", encoding="ascii"):
                pass  # A file is where the folder should be.
            with self.assertLogs("penstock", "WARNING") as log:
                kept = checkpoints.save_async({"w": torch.ones(1 << 18)}, 1).result()
                self.assertTrue(checkpoints.save_async({"w": torch.ones(1 << 18)}, 2).result().ok)
            self.assertFalse(kept.ok)
            self.assertEqual(len(log.output), 1)

    def test_stager_alone(self):
        stager = pt.Stager()
        for _ in range(2):
            self.save_and_change(pt.StorageWriter(folder()), stager)
        with self.assertRaises(MemoryError):
            pt.Stager(1 << 20).stage({"w": torch.zeros(2 << 20)})

    def test_torch_writes_our_snapshot(self):
        stager, path = pt.Stager(), folder()
        state = {"w": torch.randn(1 << 18)}
        want = state["w"].clone()
        future = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(path),
                                async_stager=stager)
        state["w"].zero_()
        getattr(future, "upload_completion", future).result()
        got = {"w": torch.zeros(1 << 18)}
        stock_load(got, path)
        self.assertTrue(torch.equal(got["w"], want))

    def test_after_fork(self):
        writer = pt.StorageWriter(folder())
        self.save_and_change(writer)
        child = os.fork()
        if not child:
            try:
                writer.reset(folder())
                self.save_and_change(writer)
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        writer.reset(folder())
        self.save_and_change(writer)


# ---- several ranks -------------------------------------------------------------------

def full_tensors():
    torch.manual_seed(11)
    return {"a": torch.randn(37, 64), "b": torch.randn(128, 33).to(torch.bfloat16),
            "c": torch.arange(1000), "d": torch.randn(6, 10, 4)}


def sharded_state(rank, count, kind, fill):
    """Returns DTensors and replicated objects. The DTensors have the values that full_tensors()
    returns, or zeros."""
    tensors = full_tensors()
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("r", "s"))
        placements = [Replicate(), Shard(0)]
    elif kind == "tp":
        mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("dp", "tp"))
        placements = [Shard(0), Shard(1)]
    else:
        mesh, placements = init_device_mesh("cpu", (count,)), [Shard(0)]
    state = {}
    for name, value in tensors.items():
        value = value if fill else torch.zeros_like(value)
        fits = placements if value.dim() > 1 else \
            [p if p != Shard(1) else Replicate() for p in placements]
        state[name] = distribute_tensor(value, mesh, fits)
    state["same"] = torch.arange(50.0) if fill else torch.zeros(50)
    state[f"own{rank}" if fill == 2 else "step"] = 7 if fill else 0
    return state


def check_sharded(state):
    for name, value in full_tensors().items():
        full = state[name].full_tensor()
        assert torch.equal(full, value), name
    assert torch.equal(state["same"], torch.arange(50.0))
    assert state["step"] == 7


def save_sharded(rank, count, kind, path, stock):
    writer = dcp.FileSystemWriter(path) if stock else pt.StorageWriter(path)
    dcp.save(sharded_state(rank, count, kind, 1), storage_writer=writer)


def load_sharded(rank, count, kind, path, stock):
    state = sharded_state(rank, count, kind, 0)
    reader = dcp.FileSystemReader(path) if stock else pt.StorageReader(path)
    dcp.load(state, storage_reader=reader)
    check_sharded(state)


def pass_on(rank, count, earlier, path):
    load_sharded(rank, count, "fsdp", earlier, False)
    if count > 1:
        save_sharded(rank, count, "fsdp", path, False)


def both_ways(rank, count, kinds, path):
    for kind in kinds:
        for stock_writes, stock_reads in ((False, False), (False, True), (True, False)):
            where = f"{path}-{kind}-{stock_writes}-{stock_reads}"
            save_sharded(rank, count, kind, where, stock_writes)
            load_sharded(rank, count, kind, where, stock_reads)


def fsdp_model(seed):
    from older_torch import fully_shard
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(40, 80), torch.nn.ReLU(), torch.nn.Linear(80, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer


def train(model, optimizer, steps):
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()


def fsdp_save(rank, path):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, optimizer = fsdp_model(1)
    train(model, optimizer, 3)
    weights, moments = get_state_dict(model, optimizer)
    # The save communicates by a process group of its own, because the training uses the
    # default group at the same time.
    future = dcp.async_save({"model": weights, "optim": moments}, process_group=dist.new_group(),
                            storage_writer=pt.StorageWriter(path))
    train(model, optimizer, 2)
    getattr(future, "upload_completion", future).result()
    return [p.full_tensor().detach() for p in model.parameters()]


def fsdp_load(rank, path, stock):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    model, optimizer = fsdp_model(2)
    train(model, optimizer, 1)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": moments}
    dcp.load(state, storage_reader=dcp.FileSystemReader(path) if stock else
             pt.StorageReader(path))
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optim"])
    for step in (0, 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    return [p.full_tensor().detach() for p in model.parameters()]


def save_local(rank, path):
    dcp.save({"mine": torch.full((100,), float(rank)), "same": torch.ones(5)},
             storage_writer=pt.StorageWriter(path), use_collectives=False)
    state = {"mine": torch.zeros(100), "same": torch.zeros(5)}
    dcp.load(state, storage_reader=pt.StorageReader(path))
    assert torch.equal(state["mine"], torch.full((100,), float(rank)))


def fail_then_save(rank, path):
    class Failing(pt.StorageWriter):
        def write_data(self, plan, planner):
            if rank:
                raise OSError(errno.EIO, "planted")
            return super().write_data(plan, planner)

    state = {"a": torch.ones(9), f"b{rank}": torch.ones(5)}
    first = Failing(path)
    try:
        dcp.save(state, storage_writer=first)
    except dcp.CheckpointException as error:
        assert "planted" in str(error)
    else:
        raise AssertionError("no error")
    dcp.save(state, storage_writer=pt.StorageWriter(path))  # `first` still exists.
    stock_load({"a": torch.zeros(9)}, path)


class Ranks(unittest.TestCase):
    """Tests saves and loads by several processes."""

    def test_both_ways(self):
        for count, kinds in ((2, ("fsdp",)), (4, ("fsdp", "hsdp", "tp")), (16, ("hsdp",))):
            ranks.run(count, both_ways, count, kinds, folder("x"))

    def test_reshard(self):
        """Ranks save a checkpoint, and another number of ranks loads it: first 16 ranks, then
        8, 12 and 1."""
        path = folder()
        ranks.run(16, save_sharded, 16, "fsdp", path, False)
        for count in (8, 12, 1):
            path, earlier = folder(), path
            ranks.run(count, pass_on, count, earlier, path)

    @NO_CPU_FSDP
    def test_fsdp(self):
        """fully_shard divides a model and its optimizer among the ranks. They are saved while
        the training goes on."""
        path = folder()
        want = ranks.run(4, fsdp_save, path)[0]
        for count, stock in ((4, False), (2, False), (2, True)):
            for got in ranks.run(count, fsdp_load, path, stock):
                for a, b in zip(got, want):
                    self.assertTrue(torch.allclose(a, b, atol=1e-6))

    def test_failure_of_another_rank(self):
        """After a save that failed on another rank, the folder can be saved into again."""
        ranks.run(2, fail_then_save, folder())

    @needs("use_collectives")
    def test_without_collectives(self):
        path = folder()
        ranks.run(4, save_local, path)
        self.assertEqual(sorted(n for n in os.listdir(path) if n.endswith(".metadata")),
                         [f"__{rank}.metadata" for rank in range(4)])


# ---- the Checkpointer ----------------------------------------------------------------

class Model:
    """A replacement for a model or an optimizer: an object with state_dict and load_state_dict."""

    def __init__(self, value, shape=(300, 100)):
        self.weights = torch.full(shape, float(value))

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


def trained(value):
    return {"model": Model(value), "optim": Model(value + 0.5, (1000, 50)), "step": value}


class Checkpoints(unittest.TestCase):
    """Tests Checkpointer in one process."""

    def test_resume(self):
        path = folder("run")
        with pt.Checkpointer(path, keep=2) as checkpoints:
            state = trained(0)
            self.assertIsNone(checkpoints.load(state))
            for step in (1, 2, 3):
                self.assertTrue(checkpoints.save(trained(step), step).ok)
            self.assertEqual([os.path.basename(c.path) for c in checkpoints.list()],
                             ["step-2", "step-3"])
            self.assertEqual(checkpoints.load(state), checkpoints.path_of(3))
            self.assertEqual((state["step"], float(state["model"].weights[0, 0]),
                              float(state["optim"].weights[0, 0])), (3, 3.0, 3.5))
            self.assertEqual(checkpoints.load(state, 2), checkpoints.path_of(2))
            self.assertEqual(state["step"], 2)

    def test_optimizer(self):
        """A new optimizer gets the moments of the saved one, so that the training goes on with
        the same numbers."""
        def steps(state, count):
            for i in range(count):
                state["model"](torch.full((2, 30), i + 0.5)).square().sum().backward()
                state["optim"].step()
                state["optim"].zero_grad()

        def fresh(kind=torch.optim.AdamW, width=20, **how):
            model = torch.nn.Linear(30, width)
            return {"model": model, "optim": kind(model.parameters(), lr=0.01, **how)}

        for kind, how in ((torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})):
            with self.subTest(kind), pt.Checkpointer(folder("run")) as checkpoints:
                state, other = fresh(kind, **how), fresh(kind, **how)
                steps(state, 3)
                self.assertTrue(checkpoints.save(state, 3).ok)
                before = other["model"].weight
                before.grad = torch.ones_like(before)
                with self.assertNoLogs("penstock", "WARNING"):
                    checkpoints.load(other)
                self.assertTrue(torch.equal(before.grad, torch.ones_like(before)))
                other["optim"].zero_grad()
                for one in (state, other):
                    steps(one, 2)
                self.assertEqual(other["optim"].param_groups[0]["lr"], 0.01)
                self.assertTrue(torch.equal(state["model"].weight, other["model"].weight))

    def test_optimizer_not_loaded(self):
        """A load that fails leaves a new optimizer without moments. A load that does not read
        values of the checkpoint logs a warning."""
        model = torch.nn.Linear(30, 20)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()
        with pt.Checkpointer(folder("run")) as checkpoints:
            checkpoints.save({"model": model, "optim": optimizer}, 1)
            other = torch.nn.Linear(30, 10)
            new = torch.optim.AdamW(other.parameters())
            with self.assertRaises(ERRORS):
                checkpoints.load({"model": other, "optim": new})
            self.assertEqual(len(new.state), 0)
            other = torch.nn.Linear(30, 20, bias=False)
            with self.assertLogs("penstock", "WARNING") as log:
                checkpoints.load({"model": other})
            self.assertIn("1 values that the state lacks, such as model.bias", log.output[0])
            self.assertTrue(torch.equal(other.weight, model.weight))

    def test_async(self):
        with pt.Checkpointer(folder("run")) as checkpoints:
            state = trained(5)
            future = checkpoints.save_async(state, 5)
            state["model"].weights.zero_()
            self.assertTrue(future.result().ok)
            checkpoints.load(state)
            self.assertEqual(float(state["model"].weights[0, 0]), 5.0)

    def test_damaged(self):
        """Checkpointer.load loads the newest checkpoint that is neither incomplete nor
        damaged."""
        with pt.Checkpointer(folder("run")) as checkpoints:
            for step in (1, 2, 3):
                checkpoints.save(trained(step), step)
            os.unlink(os.path.join(checkpoints.path_of(3), ".metadata"))
            part = os.path.join(checkpoints.path_of(2), "__0_0.distcp")
            with open(part, "r+b") as f:
                f.seek(os.path.getsize(part) // 2)
                f.write(b"\xff")
            state = trained(0)
            with self.assertLogs("penstock", "WARNING") as log:
                self.assertEqual(checkpoints.load(state), checkpoints.path_of(1))
            self.assertIn("step-2", log.output[0])
            self.assertEqual(state["step"], 1)
            with self.assertRaises(ERRORS):
                checkpoints.load(state, 2)

    def test_failed_save(self):
        """A failed save raises no exception, unless the program sets raise_errors."""
        path = folder("run")
        with pt.Checkpointer(path) as checkpoints:
            self.assertTrue(checkpoints.save(trained(1), 1).ok)
            with open(checkpoints.path_of(2), "w", encoding="ascii"):
                pass  # A file is where the folder should be.
            with self.assertLogs("penstock", "ERROR"):
                saved = checkpoints.save(trained(2), 2)
            self.assertIsInstance(saved.error, OSError)
            with self.assertLogs("penstock", "ERROR"):
                self.assertFalse(checkpoints.save_async(trained(2), 2).result().ok)
            self.assertTrue(checkpoints.save_async(trained(3), 3).result().ok)
        with pt.Checkpointer(path, raise_errors=True) as checkpoints:
            with self.assertRaises(OSError):
                checkpoints.save(trained(2), 2)

    def test_deadline(self):
        with pt.Checkpointer(folder("run")) as checkpoints:
            checkpoints._rate = 1e6  # As if the drive had written 1 MB a second.
            with self.assertLogs("penstock", "WARNING"):
                saved = checkpoints.save(trained(1), 1, deadline=0.25, priority=("step", "model"))
            self.assertTrue(saved.ok, saved.error)
            self.assertEqual(saved.dropped, ["optim"])
            state = trained(0)
            del state["optim"]
            checkpoints.load(state)
            self.assertEqual(state["step"], 1)
            checkpoints._rate = 1e6
            with self.assertLogs("penstock", "ERROR"):
                saved = checkpoints.save(trained(2), 2, deadline=0.01, priority=("model",))
            self.assertIsInstance(saved.error, pt.DeadlineError)
            self.assertEqual(checkpoints.load(state), checkpoints.path_of(1))
            checkpoints._rate = 0.0  # The drive is measured.
            saved = checkpoints.save(trained(3), 3, deadline=600.0)
            self.assertTrue(saved.ok and not saved.dropped, saved.error)
            self.assertGreater(saved.predicted_seconds, 0)


def die(rank, path, victim, where):
    """Saves a checkpoint, then another during which one rank is killed."""
    checkpoints = pt.Checkpointer(path, patience=5.0)
    state = sharded_state(rank, dist.get_world_size(), "fsdp", 1)
    assert checkpoints.save(state, 1).ok
    if rank == victim:
        kill = lambda *_, **__: os._exit(9)  # noqa: E731
        if where == "plan":
            kill()
        from penstock import _dcp_write
        if where == "write":
            _dcp_write._part.write_part = kill
        else:
            _dcp_write.StorageWriter.finish = kill
            real = _dcp_write.StorageWriter.write_data

            def write(self, plan, planner):
                result = real(self, plan, planner)
                if rank:
                    kill()
                return result
            _dcp_write.StorageWriter.write_data = write
    start = time.monotonic()
    saved = checkpoints.save(state, 2)
    return str(saved.error), time.monotonic() - start


def resume(rank, path):
    checkpoints = pt.Checkpointer(path)
    state = sharded_state(rank, dist.get_world_size(), "fsdp", 0)
    found = checkpoints.load(state)
    check_sharded(state)
    checkpoints.close()
    return found


class Deaths(unittest.TestCase):
    """Tests saves during which one rank dies."""

    def test_deaths(self):
        jobs = [(victim, where, path, ranks.start(4, die, path, victim, where))
                for victim, where, path in (
                    (2, "plan", folder("run")), (2, "write", folder("run")),
                    (2, "finish", folder("run")), (0, "write", folder("run")),
                    (0, "finish", folder("run")))]
        for victim, where, path, started in jobs:
            with self.subTest(victim=victim, where=where):
                for rank, (ok, value) in enumerate(ranks.results(started)):
                    if rank == victim:
                        self.assertFalse(ok)
                        continue
                    self.assertTrue(ok, value)
                    self.assertIn(f"rank {victim}:", value[0])
                    self.assertLess(value[1], 30)
                self.assertFalse(os.path.exists(os.path.join(path, "step-2", ".metadata")))
                states = {os.path.basename(c.path): c.state
                          for c in penstock._part.list_checkpoints(path)}
                self.assertEqual(states["step-1"], "complete")
                self.assertNotEqual(states.get("step-2"), "complete")
                for count in (4, 3) if where == "plan" else (3,):
                    for where_found in ranks.run(count, resume, path):
                        self.assertEqual(os.path.basename(where_found), "step-1")

    def test_error_names_the_rank(self):
        """If one rank fails, the save ends with an error on all ranks, which names the failed
        rank."""
        def fail(rank, path):
            checkpoints = pt.Checkpointer(path)
            if rank == 1:
                from penstock import _dcp_write

                def broken(*_, **__):
                    raise OSError(errno.EIO, "planted")
                _dcp_write._part.write_part = broken
            saved = checkpoints.save({"a": torch.full((1000,), rank), f"b{rank}": torch.ones(5)},
                                     1)
            text = str(saved.error)
            checkpoints.close()
            return text
        for text in ranks.run(3, fail, folder("run")):
            self.assertIn("rank 1:", text)
            self.assertIn("planted", text)


if __name__ == "__main__":
    tap.main()
