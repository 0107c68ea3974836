#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt_ranks.py FOLDER [GB]: saves and loads a model and its optimizer, which are sharded over
all GPUs of this machine. One process for each GPU holds about GB gigabytes, 2 by default. The
processes communicate by NCCL. The program compares every byte.

torch's FileSystemReader and Penstock's StorageReader read what Penstock saved, and Penstock's
reader reads what torch saved. async_save runs while the training changes the state, a
Checkpointer resumes, and a process dies during a save. The program prints the rates. Exits with
0, with 1 after an error, or with 77 if there is no GPU."""

import os
import shutil
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

warnings.filterwarnings("ignore")
COLUMNS = 8192


def sharded(mesh, rows, seed):
    """Returns a DTensor whose element (i, j) is a function of i, j and the seed."""
    local = rows // mesh.size()
    first = mesh.get_rank() * local
    i = torch.arange(first, first + local, device="cuda", dtype=torch.int32).reshape(-1, 1)
    j = torch.arange(COLUMNS, device="cuda", dtype=torch.int32)
    values = (i * 131 + j * 7 + seed) % 509
    whole = torch.distributed.tensor.DTensor.from_local(values.to(torch.bfloat16), mesh,
                                                        [Shard(0)])
    return whole


def make_state(mesh, gb, seed):
    rows = int(gb * 1e9) // (2 * COLUMNS * 4) * mesh.size()
    state = {f"layer{i}.weight": sharded(mesh, rows, seed + i) for i in range(4)}
    state["norm"] = distribute_tensor(torch.full((777,), float(seed), device="cuda"), mesh,
                                      [Shard(0)])
    state["step"] = seed
    return state


def blank(state):
    return {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0
            for key, value in state.items()}


def same(got, want):
    for key, value in want.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(got[key].to_local(), value.to_local()), key
        else:
            assert got[key] == value, key


def local_bytes(state):
    return sum(value.to_local().nbytes for value in state.values()
               if isinstance(value, torch.Tensor))


def timed(name, nbytes, call):
    dist.barrier()
    torch.cuda.synchronize()
    start = time.monotonic()
    result = call()
    torch.cuda.synchronize()
    dist.barrier()
    seconds = time.monotonic() - start
    if not dist.get_rank():
        print(f"{name:28} {nbytes / seconds / 1e9:7.2f} GB/s  {seconds:7.3f} s", flush=True)
    return result


def rank_main(rank, count, folder, gb, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(count), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=count)
    import penstock.torch as pt
    mesh = init_device_mesh("cuda", (count,))
    state = make_state(mesh, gb, 5)
    total = local_bytes(state) * count
    ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "torch")
    timed("save torch", total, lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(theirs)))
    timed("save penstock", total, lambda: dcp.save(state, storage_writer=pt.StorageWriter(ours)))
    for name, reader in (("load torch", dcp.FileSystemReader(theirs)),
                         ("load penstock", pt.StorageReader(ours)),
                         ("load torch's by penstock", pt.StorageReader(theirs)),
                         ("load penstock's by torch", dcp.FileSystemReader(ours))):
        got = blank(state)
        timed(name, total, lambda r=reader, g=got: dcp.load(g, storage_reader=r))
        same(got, state)
        del got
    asynchronous(pt, mesh, folder, gb, total)
    checkpointer(pt, mesh, folder, rank, count)
    dist.destroy_process_group()


def asynchronous(pt, mesh, folder, gb, total):
    """Calls async_save and then changes the state. The checkpoint must have the values that the
    state had at the time of the call."""
    state = make_state(mesh, gb, 6)
    writer = pt.StorageWriter(os.path.join(folder, "async"))
    for turn in range(2):
        start = time.monotonic()
        future = dcp.async_save(state, storage_writer=writer)
        stall = time.monotonic() - start
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.to_local().zero_()
        getattr(future, "upload_completion", future).result()
        del future
        got = blank(state)
        dcp.load(got, storage_reader=pt.StorageReader(writer.folder))
        want = make_state(mesh, gb, 6)
        same(got, want)
        shot = writer.report.snapshot
        if not dist.get_rank():
            print(f"stall {turn}: {total / stall / 1e9:.2f} GB/s {stall:.3f} s, pin "
                  f"{shot.pin_seconds:.3f} s", flush=True)
        state = want
        del got
    writer.close()


def checkpointer(pt, mesh, folder, rank, count):
    """Saves and resumes with a Checkpointer. Then a process dies during a save, and the older
    checkpoint stays complete."""
    run = os.path.join(folder, "run")
    checkpoints = pt.Checkpointer(run, patience=5.0)
    state = make_state(mesh, 0.2, 7)
    assert checkpoints.save(state, 1).ok
    got = blank(state)
    assert checkpoints.load(got) == checkpoints.path_of(1)
    same(got, state)
    if count > 1:
        if rank == count - 1:
            os._exit(0)  # The process dies before the plan.
        start = time.monotonic()
        saved = checkpoints.save(state, 2)
        assert f"rank {count - 1}:" in str(saved.error), saved.error
        assert time.monotonic() - start < 30
        if not rank:
            print(f"a dead rank was noticed after {time.monotonic() - start:.1f} s: {saved.error}")
        assert [c.state for c in checkpoints.list() if c.path.endswith("step-1")] == ["complete"]
        os._exit(0)  # torch would wait for the dead process.
    checkpoints.close()


def main():
    if not torch.cuda.is_available():
        print("no GPU")
        sys.exit(77)
    folder = os.path.join(sys.argv[1], f"penstock-ranks.{os.getpid()}")
    gb = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    os.makedirs(folder)
    count = torch.cuda.device_count()
    print(f"{count} GPUs, {gb} GB each", flush=True)
    try:
        mp.spawn(rank_main, (count, folder, gb, 29500 + os.getpid() % 1000), nprocs=count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("all right")


if __name__ == "__main__":
    main()
