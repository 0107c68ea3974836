# SPDX-License-Identifier: Apache-2.0
"""Tests async_save in process mode: for each rank, torch starts a second process, which writes
the checkpoint. The second process gets the state through shared memory."""

import os
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import penstock.torch as pt
import ranks
import tap
from older_torch import needs
from states import ERRORS, emptied, folder, same, stock_load

warnings.filterwarnings("ignore", category=FutureWarning)


def state_of(rank, step):
    torch.manual_seed(100 * step + rank)
    return {"same": torch.arange(70000.0) + step, f"w{rank}": torch.randn(300, 400),
            "step": step, "nested": {f"b{rank}": torch.randn(7).to(torch.bfloat16)}}


def begin(state, writer, **how):
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    return dcp.async_save(state, storage_writer=writer,
                          async_checkpointer_type=AsyncCheckpointerType.PROCESS, **how)


def clobber(state):
    for value in state.values():
        if isinstance(value, dict):
            clobber(value)
        elif isinstance(value, torch.Tensor):
            value.fill_(-1)


def shared_files():
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}


def never_stale(path, kind):
    """Saves several steps, and changes the state immediately after each call of async_save."""
    rank = dist.get_rank()
    stager = pt.Stager() if kind != "writer" else None
    writer = pt.StorageWriter(os.path.join(path, "none"))
    for step in range(3):
        where = os.path.join(path, f"step-{step}")
        writer.reset(where)
        state = state_of(rank, step)
        future = begin(state, dcp.FileSystemWriter(where) if kind == "stock" else writer,
                       async_stager=stager)
        clobber(state)
        future.result(60)
    for step in range(3):
        got = emptied(state_of(rank, step))
        stock_load(got, os.path.join(path, f"step-{step}"))
        same(got, state_of(rank, step))


def error_of(future):
    try:
        future.result(60)
    except ERRORS as error:
        return str(error)
    return ""


def failures(path):
    """A save fails, and the program keeps the future of this save. The next save must succeed."""
    rank = dist.get_rank()
    writer = pt.StorageWriter(os.path.join(path, "ok"), overwrite=False)
    begin(state_of(rank, 1), writer).result(60)
    failed = begin(state_of(rank, 2), writer)
    text = error_of(failed)
    writer.reset(os.path.join(path, "next"))
    begin(state_of(rank, 3), writer).result(60)
    for name, step in (("ok", 1), ("next", 3)):
        got = emptied(state_of(rank, step))
        dcp.load(got, storage_reader=pt.StorageReader(os.path.join(path, name)))
        same(got, state_of(rank, step))
    # The process that writes gets only the snapshot. If the snapshot's memory is too small for a
    # tensor, the save fails.
    small = pt.StorageWriter(os.path.join(path, "small"), pool_bytes=1 << 16)
    return text, error_of(begin(state_of(rank, 4), small))


def process_mode(rank, path):
    """Runs all cases in the same two ranks, because the writing processes take seconds to
    start."""
    os.environ.update(MASTER_ADDR="localhost")
    for kind in ("writer", "stager", "stock"):
        never_stale(os.path.join(path, kind), kind)
    return failures(path)


@needs("async_checkpointer_type", "async_stager")
class Process(unittest.TestCase):
    def test_process_mode(self):
        before = shared_files()
        for error, small in ranks.run(2, process_mode, folder("run")):
            self.assertIn("overwrite is False", error)
            self.assertIn("pool_bytes", small)
        self.assertEqual(shared_files() - before, set())


if __name__ == "__main__":
    tap.main()
