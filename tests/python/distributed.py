# SPDX-License-Identifier: Apache-2.0
"""Tests the package with torch.distributed: process groups as the argument group=, DTensors as
destinations, and DTensor placements in the argument shard. Four processes on the CPU, which
communicate by gloo, run each case. Needs torch, so only make test-all runs it."""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

import safetensors.torch
import torch

import tap

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
FILE = os.path.join(TMP, "model.safetensors")
TENSORS = {
    "a.weight": torch.randn(16, 24), "b.weight": torch.randn(7, 5).to(torch.bfloat16),
    "c.bias": torch.arange(3), "d.three": torch.randn(6, 4, 10).half(),
    "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4),
    "big": torch.arange(3 << 20, dtype=torch.int32).reshape(3 << 10, 1 << 10),
}
safetensors.torch.save_file(TENSORS, FILE)

# The beginning of each process's program.
START = """
import os, sys, tempfile
import safetensors.torch, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (DTensor, Partial, Replicate, Shard, distribute_tensor,
                                      zeros)
import penstock
FILE, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=4)
WANT = safetensors.torch.load_file(FILE)

def same(got, want=WANT):
    assert got.keys() == want.keys(), got.keys()
    for name, value in want.items():
        one = got[name]
        assert (one.dtype, one.shape) == (value.dtype, value.shape), (name, one.shape, value.shape)
        assert torch.equal(one, value), name

def same_parts(got, want):
    for name, value in want.items():
        one = got[name]
        assert isinstance(one, DTensor) and one.shape == value.shape, name
        assert (one.device_mesh, tuple(one.placements)) == \\
            (value.device_mesh, tuple(value.placements)), (name, one.placements)
        assert one.stride() == value.stride(), (name, one.stride(), value.stride())
        mine, theirs = one.to_local(), value.to_local()
        assert mine.shape == theirs.shape, (name, mine.shape, theirs.shape)
        assert torch.equal(mine, theirs), name

def sent(value, group=None):
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
"""


class Distributed(unittest.TestCase):
    def ranks(self, program):
        """Runs a program in four processes. Each must end with exit status 0."""
        store = tempfile.mktemp(dir=TMP)
        started = [subprocess.Popen([sys.executable, "-c", START + textwrap.dedent(program) +
                                     "\ndist.destroy_process_group()\n",
                                     FILE, str(rank), store], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                   for rank in range(4)]
        outputs = [p.communicate(timeout=120)[0] for p in started]
        self.assertEqual([p.returncode for p in started], [0] * 4,
                         "\n".join(output[-2000:] for output in outputs))

    def test_process_group(self):
        """The processes of a process group read each byte once, and all get all tensors."""
        self.ranks("""
            same(penstock.load_file(FILE, group=dist.group.WORLD))
            tensors, report = penstock.Model(FILE).load(group=dist.group.WORLD)
            same(tensors)
            read = sum(sent(report.read))
            assert read < 1.1 * os.path.getsize(FILE), read
            place = {name: torch.zeros_like(value) for name, value in WANT.items()}
            penstock.load_into(FILE, place, dist.group.WORLD)
            same(place)
            half = dist.new_group([0, 1]), dist.new_group([2, 3])
            tensors, report = penstock.Model(FILE).load(group=half[rank // 2])
            same(tensors)
            assert sum(sent(report.read)) < 2.1 * os.path.getsize(FILE)
            alone = [dist.new_group([r]) for r in range(4)]
            same(penstock.load_file(FILE, group=alone[rank]))
        """)

    def test_process_group_errors(self):
        """If a process fails, the other processes get an error and do not wait for it."""
        self.ranks("""
            try:
                penstock.load_file(FILE if rank else "missing", group=dist.group.WORLD)
            except penstock.PenstockError as error:
                assert (error.reason == "not-found") == (rank == 0), error
            else:
                raise AssertionError("no error")
            same(penstock.load_file(FILE, group=dist.group.WORLD))
            penstock._group.open_on_host.__defaults__ = (True, 1.0, 0)  # Wait for one second.
            if rank == 3:  # This process looks for the others at another place.
                os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
            try:
                penstock.load_file(FILE, group=dist.group.WORLD)
            except penstock.PenstockError as error:
                assert "could not open a group" in str(error), error
            else:
                raise AssertionError("no error")
            pair = dist.new_group([0, 1])
            for wrong in ("world", 3, *([pair] if rank > 1 else [])):
                try:
                    penstock.load_file(FILE, group=wrong)
                except TypeError as error:
                    assert "ProcessGroup" in str(error)
                else:
                    raise AssertionError("no error")
        """)

    def test_placements(self):
        """If the argument shard has placements, each process gets the part of a tensor that torch's
        distribute_tensor would give it."""
        self.ranks("""
            line = init_device_mesh("cpu", (4,))
            grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            names = [name for name in WANT if WANT[name].ndim > 1]
            for mesh, one in ((line, [Shard(0)]), (line, [Shard(-1)]), (line, [Replicate()]),
                              (grid, [Shard(0), Shard(1)]), (grid, [Shard(0), Shard(0)]),
                              (grid, [Replicate(), Shard(1)]), (grid, [Shard(1), Replicate()])):
                want = {n: distribute_tensor(WANT[n], mesh, one, src_data_rank=None)
                        for n in names}
                for group in (None, dist.group.WORLD):
                    got = penstock.load_file(FILE, names=names, group=group,
                                             shard={"mesh": mesh, "placements": one})
                    same_parts(got, want)
            rules = {"*.weight": [Replicate(), Shard(0)], "d.*": [Shard(2), Shard(0)]}
            got = penstock.load_file(FILE, shard={"mesh": grid, "placements": rules})
            want = {n: distribute_tensor(
                        v, grid, rules["d.*"] if n[0] == "d" else rules["*.weight"]
                        if n.endswith("weight") else [Replicate()] * 2, src_data_rank=None)
                    for n, v in WANT.items()}
            same_parts(got, want)
            assert torch.equal(got["a.weight"].full_tensor(), WANT["a.weight"])
            # The load reads this process's parts only.
            report = penstock.Model(FILE, names=["big"]).load(
                shard={"mesh": line, "placements": [Shard(0)]})[1]
            assert report.read < 1.1 * os.path.getsize(FILE) / 4, report.read
            for one, words in (([Shard(0)] * 2, "2 placements"), ([Partial()], "Partial"),
                               ([Shard(3)], "does not fit")):
                try:
                    penstock.load_file(FILE, shard={"mesh": line, "placements": one})
                except ValueError as error:
                    assert words in str(error), error
                else:
                    raise AssertionError("no error")
            for shard, how, words in (({"mesh": line}, {}, "exactly the keys"),
                                      ({"mesh": line, "placements": [Shard(0)]},
                                       {"framework": "np"}, "only torch")):
                try:
                    penstock.load_file(FILE, shard=shard, **how)
                except ValueError as error:
                    assert words in str(error), error
                else:
                    raise AssertionError("no error")
        """)

    def test_four_bits(self):
        """A DTensor of dtype F4 is split in units of bytes, as torch counts its elements."""
        packed = torch.arange(48, dtype=torch.uint8).reshape(6, 8).view(torch.float4_e2m1fn_x2)
        four = os.path.join(TMP, "four.safetensors")
        safetensors.torch.save_file({"q": packed}, four)
        self.ranks(f"""
            line = init_device_mesh("cpu", (4,))
            got = penstock.load_file({four!r}, shard={{"mesh": line, "placements": [Shard(1)]}})
            want = torch.arange(48, dtype=torch.uint8).reshape(6, 8)[:, 2 * rank:2 * rank + 2]
            assert got["q"].shape == (6, 8)
            assert torch.equal(got["q"].to_local().view(torch.uint8), want)
        """)

    def test_into_dtensors(self):
        """load_into fills the parts of DTensors, also those of FSDP2 and tensor parallelism."""
        self.ranks("""
            line = init_device_mesh("cpu", (4,))
            place = {n: zeros(v.shape, dtype=v.dtype, device_mesh=line,
                              placements=[Shard(0) if v.ndim else Replicate()])
                     for n, v in WANT.items()}
            penstock.load_into(FILE, place)
            for n, v in WANT.items():
                assert torch.equal(place[n].full_tensor(), v), n

            from torch.distributed.fsdp import fully_shard
            from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                           parallelize_module)
            grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            torch.manual_seed(1)
            make = lambda: torch.nn.Sequential(torch.nn.Linear(10, 14), torch.nn.Linear(14, 6))
            whole = make()
            file = os.path.join(os.path.dirname(FILE), f"fsdp{rank}.safetensors")
            safetensors.torch.save_file(whole.state_dict(), file)
            model = make()
            parallelize_module(model, grid["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
            for layer in model:
                fully_shard(layer, mesh=grid["dp"])
            fully_shard(model, mesh=grid["dp"])
            state = model.state_dict()
            kinds = {type(p).__name__ for v in state.values() for p in v.placements}
            assert "_StridedShard" in kinds, kinds
            for value in state.values():
                value.to_local().zero_()
            penstock.load_into(file, state)
            for n, v in whole.state_dict().items():
                assert torch.equal(model.state_dict()[n].full_tensor(), v), n

            for value, kind, words in (
                    ((place["a.weight"], 0), TypeError, "has no index"),
                    (place["b.weight"], ValueError, "does not fit")):
                try:
                    penstock.load_into(FILE, {"a.weight": value})
                except kind as error:
                    assert words in str(error), error
                else:
                    raise AssertionError("no error")
        """)


if __name__ == "__main__":
    tap.main()
