# SPDX-License-Identifier: Apache-2.0
"""Tests HuggingFaceStorageWriter and HuggingFaceStorageReader on the CPU. This package and
torch's classes of the same names read the checkpoints that this package writes. This package also
reads the checkpoints that torch writes. Covers whole and sharded checkpoints, loads by another
number of ranks, models of transformers, other dtypes, and calls that must be refused. Needs torch,
so only make test-all runs it."""

import io
import json
import os
import sys
import tempfile
import unittest
import warnings
from unittest import mock

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import penstock
from penstock import _dcp_safetensors as ours
import ranks
import tap
from older_torch import Replicate, Shard, distribute_tensor

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
WRITERS = {"ours": ours.HuggingFaceStorageWriter, "torch": dcp.HuggingFaceStorageWriter}
READERS = {"ours": ours.HuggingFaceStorageReader, "torch": dcp.HuggingFaceStorageReader}
# Pairs of a writer and a reader, with at least one of this package ("ours") in each.
PAIRS = [("ours", "ours"), ("ours", "torch"), ("torch", "ours")]
INDEX = "model.safetensors.index.json"


def folder():
    return tempfile.mkdtemp(dir=TMP)


def tensors():
    torch.manual_seed(3)
    return {"a": torch.randn(37, 64), "b": torch.randn(128, 33).to(torch.bfloat16),
            "c": torch.randn(1000).half(), "d": torch.randn(6, 10, 4), "e.weight": torch.randn(5)}


def zeros(state):
    return {name: torch.zeros_like(value) for name, value in state.items()}


def load(kind, path, state, **how):
    dcp.load(state, storage_reader=READERS[kind](path, **how))


def metadata(path):
    with safetensors.safe_open(path, "pt") as f:
        return f.metadata()


def sharded(rank, count, kind, fill):
    """Returns DTensors with the values of tensors(), or zeros. The last tensor has no part for
    some of the processes."""
    mesh, placements = init_device_mesh("cpu", (count,)), [Shard(0)]
    if kind == "tp":
        mesh = init_device_mesh("cpu", (2, count // 2))
        placements = [Shard(0), Shard(1)]
    state = {}
    for name, value in tensors().items():
        fits = [Replicate() if value.dim() == 1 and p == Shard(1) else p for p in placements]
        state[name] = distribute_tensor(value if fill else torch.zeros_like(value), mesh, fits)
    return state


def save_sharded(rank, count, kind, path, who, consolidate):
    mapping = {name: 1 + i % 2 for i, name in enumerate(tensors())}
    writer = WRITERS[who](path, mapping, save_distributed=True, enable_consolidation=consolidate)
    dcp.save(sharded(rank, count, kind, True), storage_writer=writer)


def save_integers(rank, count, path):
    mesh = init_device_mesh("cpu", (count,))
    state = {"steps": distribute_tensor(torch.arange(1001), mesh, [Shard(0)]),
             "flag": distribute_tensor(torch.tensor([True, False, True]), mesh, [Replicate()])}
    dcp.save(state, storage_writer=ours.HuggingFaceStorageWriter(
        path, save_distributed=True, enable_consolidation=True, thread_count_consolidation=2))


def load_sharded(rank, count, kind, path, who):
    state = sharded(rank, count, kind, False)
    load(who, path, state)
    for name, value in tensors().items():
        assert torch.equal(state[name].full_tensor(), value), name


class Whole(unittest.TestCase):
    """Tests saves and loads by one process."""

    def same(self, got, want):
        self.assertEqual(list(got), list(want))
        for name, value in want.items():
            self.assertEqual((got[name].dtype, got[name].shape), (value.dtype, value.shape), name)
            self.assertTrue(torch.equal(got[name], value), name)

    def test_both_ways(self):
        """Tensors of all dtypes and shapes are saved and loaded, in one file and in several
        files."""
        state = tensors() | {"ints": torch.arange(70000), "point": torch.tensor(2.5),
                             "empty": torch.zeros(0, 4), "bool": torch.tensor([True, False]),
                             "f8": torch.randn(64).to(torch.float8_e4m3fn)}
        for mapping in (None, {name: 1 + i % 3 for i, name in enumerate(state)}):
            for writer, reader in PAIRS:
                path, got = folder(), zeros(state)
                dcp.save(state, storage_writer=WRITERS[writer](path, mapping))
                load(reader, path, got)
                self.same(got, state)

    def test_same_files(self):
        """The writers of this package and of torch make files with the same names, metadata and
        index."""
        state, paths = tensors(), {who: folder() for who in WRITERS}
        mapping = {name: 1 + i % 2 for i, name in enumerate(state)}
        for who, path in paths.items():
            dcp.save(state, storage_writer=WRITERS[who](path, mapping))
        names = sorted(os.listdir(paths["torch"]))
        self.assertEqual(sorted(os.listdir(paths["ours"])), names)
        for name in names:
            a, b = (os.path.join(path, name) for path in paths.values())
            if name == INDEX:
                with open(a, encoding="utf-8") as f, open(b, encoding="utf-8") as g:
                    self.assertEqual(json.load(f), json.load(g))
                continue
            self.assertEqual(metadata(a), metadata(b))
            self.same(safetensors.torch.load_file(a), safetensors.torch.load_file(b))

    def test_model_folder(self):
        """The reader can load a folder with safetensors files that no checkpoint writer has
        written."""
        path, state = folder(), tensors()
        for i, names in enumerate((("a", "b"), ("c", "d", "e.weight"))):
            safetensors.torch.save_file({name: state[name] for name in names},
                                        os.path.join(path, f"model-{i}.safetensors"))
        for threads in (1, 2):
            got = zeros(state)
            load("ours", path, got, thread_count=threads)
            self.same(got, state)

    def test_layouts(self):
        """Saves and loads tensors that are not contiguous, that share memory, or whose dtype
        differs from the file's."""
        x = torch.randn(40, 30)
        state = {"turned": x.t(), "whole": x, "tied": x, "view": torch.arange(9000.)[7:8000]}
        path = folder()
        dcp.save(state, storage_writer=WRITERS["ours"](path))
        wide = torch.zeros(40, 60)
        got = {"turned": torch.zeros(40, 30).t(), "whole": wide[:, :30],
               "tied": torch.zeros(40, 30, dtype=torch.float64),
               "view": torch.nn.Parameter(torch.zeros(7993))}
        for limit in (1 << 30, 1):
            with mock.patch.object(ours, "_TEMPORARY_BYTES", limit):
                load("ours", path, got)
            for name, value in state.items():
                self.assertTrue(torch.equal(got[name].float(), value), name)
                got[name].data.zero_()
        self.assertFalse(wide[:, 30:].any())

    def test_needed_bytes(self):
        """A load of a small tensor reads only the bytes of this tensor from the file."""
        path, read, real = folder(), [], penstock.Model.load_into
        dcp.save({"big": torch.randn(4096, 1024), "small": torch.ones(50)},
                 storage_writer=WRITERS["ours"](path))

        def load_into(model, *args, **how):
            report = real(model, *args, **how)
            read.append((report.bytes, report.read))
            return report

        with mock.patch.object(penstock.Model, "load_into", load_into):
            load("ours", path, {"small": torch.zeros(50)})
        self.assertEqual([n for n, _ in read], [200])
        self.assertLess(read[0][1], 10000)

    def test_refusals(self):
        path, state = folder(), tensors()
        with self.assertRaisesRegex(dcp.CheckpointException, "holds only tensors"):
            dcp.save({"a": state["a"], "step": 3}, storage_writer=WRITERS["ours"](path))
        dcp.save(state, storage_writer=WRITERS["ours"](path))
        with self.assertRaises((ValueError, dcp.CheckpointException)):
            load("ours", path, {"a": torch.zeros(37, 65)})
        for who in (WRITERS["ours"], READERS["ours"]):
            self.assertRaises(ValueError, who, path, require="never")
            self.assertRaises(ValueError, who, path, effort="never")

    def test_damaged(self):
        path = folder()
        dcp.save(tensors(), storage_writer=WRITERS["ours"](path))
        name = next(n for n in os.listdir(path) if n.endswith(".safetensors"))
        reader, got = READERS["ours"](path), zeros(tensors())
        real = reader.read_data

        def read_data(*args):
            os.truncate(os.path.join(path, name), 5000)
            return real(*args)

        reader.read_data = read_data
        with self.assertRaisesRegex(dcp.CheckpointException, name):
            dcp.load(got, storage_reader=reader)

    def test_failed(self):
        """A failed save leaves the older files as they were, and no temporary files."""
        path = folder()
        dcp.save(tensors(), storage_writer=WRITERS["ours"](path))
        before = {name: open(os.path.join(path, name), "rb").read() for name in os.listdir(path)}
        with mock.patch.object(ours.os, "replace", side_effect=OSError("broken")), \
                self.assertRaises(dcp.CheckpointException):
            dcp.save(tensors(), storage_writer=WRITERS["ours"](path))
        after = {name: open(os.path.join(path, name), "rb").read() for name in os.listdir(path)}
        self.assertEqual(after, before)

    def test_old_torch(self):
        """If the installed torch has no HuggingFaceStorageWriter, the import fails with an error
        that says so."""
        with mock.patch.dict(sys.modules):
            del sys.modules["penstock._dcp_safetensors"]
            with mock.patch.object(dcp, "HuggingFaceStorageWriter", new=None):
                delattr(dcp, "HuggingFaceStorageWriter")
                with self.assertRaisesRegex(ImportError, "has no HuggingFaceStorageWriter"):
                    __import__("penstock._dcp_safetensors")
                dcp.HuggingFaceStorageWriter = None


    def test_lost_shard(self):
        """If some shards of a tensor are missing, the merge of the shards into one file
        fails."""
        path = folder()
        dcp.save(tensors(), storage_writer=WRITERS["ours"](path))
        size = dcp.metadata.TensorStorageMetadata(
            dcp.metadata.TensorProperties(dtype=torch.float32), torch.Size([38, 64]), [])
        shard = mock.Mock()
        shard.index.fqn, shard.index.offset = "a", torch.Size([0, 0])
        shard.storage_data.relative_path = "model-00001-of-00001.safetensors"
        with self.assertRaisesRegex(ValueError, "64 of its 2432 elements are in no shard"):
            ours._Merge(path, {"a": size}, [shard], 1).write(["a"], io.BytesIO())


class Ranks(unittest.TestCase):
    """Tests several processes, each of which writes its own shards."""

    def test_sharded(self):
        for count, kind in ((2, "fsdp"), (4, "tp")):
            for writer, reader in PAIRS:
                path = folder()
                ranks.run(count, save_sharded, count, kind, path, writer, False)
                self.assertEqual(len(os.listdir(path)), 2 * count)
                ranks.run(count, load_sharded, count, kind, path, reader)
        ranks.run(2, load_sharded, 2, "fsdp", path, "ours")  # Saved by 4 ranks.

    def test_consolidated(self):
        """The shards of all processes are merged into files that any program can read. Shards
        of an earlier save by more processes do not disturb this. If a model is long, a few
        tensors are merged at a time."""
        path = folder()
        ranks.run(4, save_sharded, 4, "tp", path, "ours", True)
        with mock.patch.object(ours, "_TEMPORARY_BYTES", 5000):
            ranks.run(2, save_sharded, 2, "fsdp", path, "ours", True)
        self.assertEqual(sorted(os.listdir(path)),
                         ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          INDEX, "sharded"])
        stock = folder()
        ranks.run(2, save_sharded, 2, "fsdp", stock, "torch", True)
        with open(os.path.join(path, INDEX), encoding="utf-8") as f, \
                open(os.path.join(stock, INDEX), encoding="utf-8") as g:
            self.assertEqual(json.load(f), json.load(g))
        for reader in READERS:
            got = zeros(tensors())
            load(reader, path, got)
            for name, value in tensors().items():
                self.assertTrue(torch.equal(got[name], value), name)
        for name, value in penstock.load_file(os.path.join(path, INDEX)).items():
            self.assertTrue(torch.equal(tensors()[name], value), name)

    def test_consolidated_integers(self):
        """Shards of integer and boolean tensors are merged, too."""
        path = folder()
        ranks.run(2, save_integers, 2, path)
        got = safetensors.torch.load_file(os.path.join(path, "model-00001-of-00001.safetensors"))
        self.assertTrue(torch.equal(got["steps"], torch.arange(1001)))
        self.assertTrue(torch.equal(got["flag"], torch.tensor([True, False, True])))


if __name__ == "__main__":
    tap.main()
