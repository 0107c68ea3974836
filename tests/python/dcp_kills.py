# SPDX-License-Identifier: Apache-2.0
"""Kills a process with SIGKILL at random times of its saves, again and again in the same
folders.

The process saves step after step with a Checkpointer, and overwrites one checkpoint with a
StorageWriter. After each kill, every complete checkpoint must have the right values, for the
readers of this package and of torch. The newest checkpoint that was reported complete must
exist. PENSTOCK_KILLS sets the number of kills, PENSTOCK_SEED the random numbers."""

import os
import random
import signal
import sys
import time
import traceback
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp

import penstock._part
import penstock.torch as pt
import tap
from states import folder

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
KILLS = int(os.environ.get("PENSTOCK_KILLS", "20"))
SEED = int(os.environ.get("PENSTOCK_SEED", "15"))
# Numbers of elements of the tensors. With short tensors, most kills come during a commit.
SIZES = (5000, 75000, 1000000)


def state_of(step, count):
    # The number of tensors and the size change from step to step.
    value = {f"w{i}": torch.full((count + step % 3,), float(step)) for i in range(2 + step % 2)}
    return {**value, "model": {"b": torch.full((77,), step)}, "step": step}


def saves(run, over, step, count, tell):
    """Saves until the process is killed. Writes the number of each complete save to the pipe
    `tell`."""
    checkpoints = pt.Checkpointer(run, keep=3, raise_errors=True)
    while True:
        step += 1
        if step % 3 == 0:
            checkpoints.save(state_of(step, count), step)
        else:
            state = state_of(step, count)
            future = checkpoints.save_async(state, step)
            for name in ("w0", "w1"):
                state[name].zero_()
            future.result()
        os.write(tell, b"run %d\n" % step)
        dcp.save(state_of(step, count), no_dist=True, storage_writer=pt.StorageWriter(
            over, parts=1 + step % 3))
        os.write(tell, b"over %d\n" % step)


def load(path, reader):
    """Returns the step of a checkpoint. Asserts that all its values are those of this step."""
    metadata = reader.read_metadata().state_dict_metadata
    state = {name: torch.zeros(m.size, dtype=m.properties.dtype) if hasattr(m, "size") else 0
             for name, m in metadata.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    step = state["step"]
    assert len(state) == 4 + step % 2, (path, state)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert bool((value == step).all()), (path, name, value, step)
    return step


def load_both(path):
    reader = pt.StorageReader(path)
    step = load(path, reader)
    assert reader.report.unchecked == "", reader.report
    assert load(path, dcp.FileSystemReader(path)) == step, path
    return step


def check(run, over, last):
    """Raises an error if a complete checkpoint has wrong values, or if a reported checkpoint is
    missing."""
    states = {}
    for found in penstock._part.list_checkpoints(run) if os.path.isdir(run) else []:
        step = int(found.path.rpartition("-")[2])
        states[step] = found.state
        assert found.state != "damaged", found
        if found.state == "complete":
            assert load_both(found.path) == step, found
    assert not last["run"] or states.get(last["run"]) == "complete" or \
        max(s for s in states if states[s] == "complete") > last["run"], (last, states)
    if last["over"]:
        found = penstock._part.list_checkpoints(over)
        assert [f.state for f in found] == ["complete"], found
        assert load_both(over) >= last["over"]


def in_child(call, *args):
    """Forks a child that calls a function. Returns the child's process id, and a pipe from
    which the parent reads what the child writes."""
    here, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return child, here
    try:
        os.close(here)
        call(*args, there)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Kills(unittest.TestCase):
    def test_kills(self):
        rng, last, root = random.Random(SEED), {"run": 0, "over": 0}, folder("kills")
        run, over = os.path.join(root, "run"), os.path.join(root, "over")
        complete = 0
        for kill in range(KILLS):
            where = f"PENSTOCK_SEED={SEED}, kill {kill}"
            count = rng.choice(SIZES)
            child, pipe = in_child(saves, run, over, max(last.values()), count)
            begin, text = time.monotonic(), b""
            if rng.random() < 0.8:
                text = os.read(pipe, 1)  # A first save shows how long a save takes.
            time.sleep(rng.random() * 2 * min(max(time.monotonic() - begin, 0.02), 2))
            os.kill(child, signal.SIGKILL)
            self.assertEqual(os.waitpid(child, 0)[1], signal.SIGKILL, where)
            with os.fdopen(pipe, "rb") as told:
                text += told.read()
            for line in text.split(b"\n")[:-1]:
                kind, step = line.decode().split()
                complete += int(step) > last[kind]
                last[kind] = max(last[kind], int(step))
            child, pipe = in_child(lambda tell: check(run, over, last))
            os.close(pipe)
            self.assertEqual(os.waitpid(child, 0)[1], 0, where)
        print(f"# {KILLS} kills, {complete} complete saves", file=sys.stderr)
        self.assertGreater(complete, KILLS // 4)


if __name__ == "__main__":
    tap.main()
