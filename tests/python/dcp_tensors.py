# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints of the kinds of tensors that a training has: FSDP2 and HSDP models that
another mesh of ranks loads, DTensors, ShardedTensors, tied parameters, parameters with
gradients, and the states of optimizers."""

import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import penstock.torch as pt
import ranks
import tap
from older_torch import DTensor, Replicate, Shard, distribute_tensor, needs
from states import emptied, folder, same, stock_load

warnings.filterwarnings("ignore")


def model_on(shape, seed):
    """Returns an FSDP2 model on a mesh of one or two dimensions, and a trained optimizer."""
    from older_torch import fully_shard
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(24, 36, bias=False), torch.nn.Linear(36, 10))
    model.to(torch.bfloat16)
    names = ("replicate", "shard")[-len(shape):]
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    model(torch.randn(8, 24, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def states_of(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments}


def full(value):
    if isinstance(value, dict):
        return {key: full(member) for key, member in value.items()}
    return value.full_tensor().detach().clone() if isinstance(value, DTensor) else value


def save_model(rank, shape, path):
    model, optimizer = model_on(shape, 1)
    state = states_of(model, optimizer)
    stager = pt.Stager()
    staged = stager.stage(state)
    for name, value in staged["model"].items():
        theirs = state["model"][name]
        assert isinstance(value, DTensor) and value.placements == theirs.placements, name
        assert value._local_tensor.data_ptr() != theirs._local_tensor.data_ptr(), name
    steps = [v["step"] for v in staged["optim"]["state"].values()]
    assert steps and all(s.dim() == 0 and s == 1 for s in steps)
    dtypes = {v["exp_avg"].dtype for v in staged["optim"]["state"].values()}
    assert dtypes == {torch.bfloat16}, dtypes
    want = full(state)
    del staged
    future = dcp.async_save(state, process_group=dist.new_group(), async_stager=stager,
                            storage_writer=pt.StorageWriter(path))
    for value in state["model"].values():
        value._local_tensor.detach().zero_()
    future.result()
    return want


def load_model(rank, shape, path):
    model, optimizer = model_on(shape, 2)
    state = states_of(model, optimizer)
    reader = pt.StorageReader(path)
    dcp.load(state, storage_reader=reader)
    return full(state)


def sharded_tensors(rank, path):
    """Saves ShardedTensors from a snapshot of Stager, and loads them with both readers."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    spec = ChunkShardingSpec(0, [f"rank:{i}/cpu" for i in range(dist.get_world_size())])

    def make(value):
        tensor = sharded_tensor.zeros(spec, 10, 6)
        for shard in tensor.local_shards():
            shard.tensor.fill_(value + rank)
        return tensor
    state = {"t": make(5)}
    future = dcp.async_save(state, process_group=dist.new_group(), async_stager=pt.Stager(),
                            storage_writer=pt.StorageWriter(path))
    for shard in state["t"].local_shards():
        shard.tensor.zero_()
    future.result()
    for reader in (pt.StorageReader(path), dcp.FileSystemReader(path)):
        got = {"t": make(0)}
        dcp.load(got, storage_reader=reader)
        for shard in got["t"].local_shards():
            assert bool((shard.tensor == 5 + rank).all()), shard


def other_meshes(rank, path):
    """Saves a DTensor that is divided unevenly, and loads it on other meshes of the ranks."""
    size = (7, 5)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    value = torch.arange(35.0).reshape(size)
    state = {"d": distribute_tensor(value, mesh, [Shard(0)])}
    dcp.save(state, storage_writer=pt.StorageWriter(path))
    grid = init_device_mesh("cpu", (2, 2))
    for placements in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(0), Shard(0)]):
        for reader in (pt.StorageReader(path), dcp.FileSystemReader(path)):
            got = {"d": distribute_tensor(torch.zeros(size), grid, placements)}
            dcp.load(got, storage_reader=reader)
            assert torch.equal(got["d"].full_tensor(), value), placements


@needs("async_stager")
class Distributed(unittest.TestCase):
    def test_meshes(self):
        """A model that was saved with FSDP2 can be loaded with HSDP, and the other way round,
        by another number of ranks."""
        for shape, others in (((4,), ((2, 2), (3,))), ((2, 2), ((2,),))):
            path = folder()
            want = ranks.run(4, save_model, shape, path)[0]
            for other in others:
                count = other[0] * other[-1] if len(other) > 1 else other[0]
                for got in ranks.run(count, load_model, other, path):
                    same(got, want)

    def test_sharded_tensors(self):
        ranks.run(2, sharded_tensors, folder())

    def test_other_meshes(self):
        ranks.run(4, other_meshes, folder())


class Single(unittest.TestCase):
    def test_tied_and_trained(self):
        """Tied tensors stay tied in a snapshot. Parameters with gradients, results of operations,
        views and expanded tensors can be saved."""
        model = torch.nn.Linear(30, 20)
        model(torch.randn(2, 30)).sum().backward()
        base = torch.randn(40, 40)
        state = {"w": model.weight, "tied": model.weight, "result": model.weight * 2,
                 "view": base[3:7], "expanded": torch.randn(1, 9).expand(5, 9),
                 "conj": torch.randn(4, dtype=torch.complex64).conj(),
                 "step": torch.tensor(3.0), "list": [torch.ones(2), {"x": torch.zeros(1)}]}
        plain = {name: value for name, value in state.items() if name != "list"}
        want = {name: value.detach().clone() for name, value in plain.items()}
        staged = pt.Stager().stage(state)
        self.assertIs(staged["w"], staged["tied"])
        self.assertIsInstance(staged["list"][1]["x"], torch.Tensor)
        path = folder()
        future = dcp.async_save(plain, storage_writer=pt.StorageWriter(path))
        with torch.no_grad():
            model.weight.zero_()
            base.zero_()
        future.result()
        got = emptied(want)
        stock_load(got, path)
        same(got, {name: value.resolve_conj() for name, value in want.items()})


if __name__ == "__main__":
    tap.main()
