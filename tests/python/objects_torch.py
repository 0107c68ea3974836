# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints of torch in an object store: penstock.torch.save and load with s3://,
torch.distributed.checkpoint through penstock.fsspec, and through the methods of ObjectClient."""

import errno
import io
import os
import pickle
import random
import tempfile
import unittest
import unittest.mock
import warnings
import zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import penstock
import penstock.fsspec
import penstock.torch as pt
import ranks
import store
import tap
from penstock import _torch_file
from states import ERRORS, emptied, same
from store import TMP, Store, body, client, put

warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))


def setUpModule():
    print(f"# seed {SEED}")
    store.start()


def tearDownModule():
    store.stop()


def state(seed=0):
    torch.manual_seed(seed)
    big = torch.randn(300, 400)
    return {"big": big, "shared": big[10:], "half": torch.randn(70_000).half(),
            "short": torch.ones(3), "empty": torch.zeros(0, 4),
            "nested": {"step": seed, "text": "x" * 200_000},
            "more": {str(i): torch.full((20_000,), float(i)) for i in range(20)}}


FULL = torch.arange(5000.0).reshape(500, 10)


def sharded(value):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(value.clone(), mesh, [Shard(0)])


def save_ranks(rank, url):
    dcp.save({"w": sharded(FULL), "step": 7}, storage_writer=pt.ObjectStorageWriter(url))


def load_ranks(rank, url):
    got = {"w": sharded(torch.zeros_like(FULL)), "step": 0}
    dcp.load(got, storage_reader=pt.ObjectStorageReader(url))
    return bool(torch.equal(got["w"].full_tensor(), FULL)) and got["step"] == 7


def save_local(rank, url):
    mine = {"mine": torch.full((9,), float(rank))}
    dcp.save(mine, storage_writer=pt.ObjectStorageWriter(url), use_collectives=False)


class Files(unittest.TestCase):
    """Tests penstock.torch.save and load with objects."""

    def test_ours(self):
        url, want = client().url("bucket/ours dir/x.pt"), state(1)
        told = pt.save(want, url)
        self.assertEqual(told.bytes, len(body("ours dir/x.pt")))
        same(torch.load(io.BytesIO(body("ours dir/x.pt"))), want)
        report = pt.FileReport()
        got = pt.load(url, report=report)
        same(got, want)
        self.assertIsNone(report.fallback)
        self.assertGreater(report.bytes, 1_500_000)
        self.assertEqual(got["shared"].data_ptr(), got["big"][10:].data_ptr())

    def test_torchs(self):
        want, out = state(2), io.BytesIO()
        torch.save(want, out)
        put("theirs.pt", out.getvalue())
        report = pt.FileReport()
        same(pt.load(client().url("bucket/theirs.pt"), report=report), want)
        self.assertIsNone(report.fallback)

    def test_only_what_is_needed(self):
        """A load reads the bytes of each tensor (its payload) once. Of the object's other bytes, it
        reads less than 1 MiB."""
        url, seen, payloads = client().url("bucket/holes.pt"), [], []
        ones = torch.ones(1 << 22)
        pt.save({"a": ones, "b": torch.zeros(1 << 22), "view": ones[5:]}, url)
        real, real_part = penstock._transfer.Storage.move, _torch_file.read_part

        def move(storage, op, segments, **how):
            seen.append(sum(s.row_bytes for s in segments))
            return real(storage, op, segments, **how)

        def read_part(source, items, **how):
            payloads.extend(item.name for item in items)
            return real_part(source, items, **how)
        for where in (None, lambda storage, _: storage):
            report = pt.FileReport()
            seen.clear()
            payloads.clear()
            with unittest.mock.patch.object(penstock._transfer.Storage, "move", move), \
                    unittest.mock.patch.object(_torch_file, "read_part", read_part):
                got = pt.load(url, map_location=where, report=report)
            self.assertTrue((got["a"] == 1).all() and not got["b"].any())
            self.assertEqual(got["view"].data_ptr(), got["a"][5:].data_ptr())
            self.assertEqual((len(payloads), len(set(payloads))), (2, 2), payloads)
            self.assertEqual(report.bytes, 2 * 4 << 22)
            self.assertGreater(sum(seen), 0)
            self.assertLess(sum(seen), 1 << 20)

    def test_fallback(self):
        """torch.load reads a file whose format this package does not read."""
        want, out = state(3), io.BytesIO()
        torch.save(want, out, _use_new_zipfile_serialization=False)
        put("old.pt", out.getvalue())
        report = pt.FileReport()
        same(pt.load(client().url("bucket/old.pt"), report=report), want)
        self.assertRegex(report.fallback, "torch.load reads s3://bucket/old.pt: it is not a zip")
        with self.assertRaisesRegex(penstock.ClassRefusedError, "s3://bucket/old.pt"):
            pt.load(client().url("bucket/old.pt"), require="no-cpu-copy")

    def test_damage(self):
        """A load of a truncated or changed object raises an error, or returns the right object."""
        rng, whole = random.Random(SEED), state(4)
        pt.save(whole, os.path.join(TMP, "whole.pt"))
        with open(os.path.join(TMP, "whole.pt"), "rb") as f:
            data = f.read()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            directory = archive.start_dir
        wrong = [data[:rng.randrange(len(data))] for _ in range(20)] + [b"", data[:-1]]
        for _ in range(40):
            at = rng.randrange(directory, len(data))
            wrong.append(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:])
        url, errors = client().url("bucket/damaged.pt"), 0
        for number, bytes_ in enumerate(wrong):
            put("damaged.pt", bytes_)
            try:
                got = pt.load(url)
            except Exception as error:  # pylint: disable=broad-except
                # The package leaves some files to torch.load, which raises errors of many kinds.
                self.assertNotIn("/proc/self", str(error), number)
                errors += 1
                continue
            same(got, whole)
        print(f"# {errors} errors of {len(wrong)} loads")
        self.assertGreater(errors, 22)

    def test_changed(self):
        """If an object is replaced while it is loaded, the load fails."""
        url = client().url("bucket/changing.pt")
        pt.save(state(5), url)
        real = _torch_file.read_part

        def late(*args, **how):
            pt.save(state(6), client().url("bucket/changing.pt"))
            return real(*args, **how)
        with unittest.mock.patch.object(_torch_file, "read_part", late):
            with self.assertRaisesRegex(penstock.PenstockError, "s3://bucket/changing.pt: .*chang"):
                pt.load(url)
        with self.assertRaises(FileNotFoundError):
            pt.load(client().url("bucket/absent.pt"))

    def test_leaks(self):
        """Loads leave no file in memory (memfd) open."""
        def count():
            return sum("memfd:penstock" in os.readlink(f"/proc/self/fd/{fd}")
                       for fd in os.listdir("/proc/self/fd")
                       if os.path.islink(f"/proc/self/fd/{fd}"))
        url = client().url("bucket/fds.pt")
        pt.save(state(7), url)
        before = count()
        kept = [pt.load(url) for _ in range(3)]
        with self.assertRaises(penstock.PenstockError):
            pt.load(client().url("bucket/absent.pt"))
        self.assertEqual(count(), before)
        same(kept[0], state(7))


class Checkpoints(unittest.TestCase):
    """Tests checkpoints of torch.distributed.checkpoint."""

    def test_fsspec(self):
        """torch's own classes for fsspec write and read through penstock.fsspec."""
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
        penstock.fsspec.register("penstock")
        want = state(8)
        where = {"path": "penstock://bucket/dcp/step-1", "endpoint": Store.endpoint}
        dcp.save(want, storage_writer=FsspecWriter(where["path"], endpoint=Store.endpoint),
                 no_dist=True)
        self.assertIn("bucket/dcp/step-1/.metadata", client().list_objects("bucket/dcp/"))
        got = emptied(want)
        dcp.load(got, storage_reader=FsspecReader(where["path"], endpoint=Store.endpoint),
                 no_dist=True)
        same(got, want)

    def test_ours(self):
        """torch's reader for fsspec reads what ObjectStorageWriter writes, and ObjectStorageReader
        reads what torch's writer for fsspec writes."""
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
        penstock.fsspec.register("penstock")
        for number, (writer, reader) in enumerate((
                (pt.ObjectStorageWriter, pt.ObjectStorageReader),
                (pt.ObjectStorageWriter, FsspecReader), (FsspecWriter, pt.ObjectStorageReader))):
            with self.subTest(writer=writer, reader=reader):
                key, want, ends = f"bucket/dcp ours/step-{number}", state(number), []
                for kind in (writer, reader):
                    ends.append(kind(f"penstock://{key}", endpoint=Store.endpoint)
                                if "Fsspec" in kind.__name__ else kind(client().url(key)))
                dcp.save(want, storage_writer=ends[0], no_dist=True)
                got = emptied(want)
                dcp.load(got, storage_reader=ends[1], no_dist=True)
                same(got, want)

    def test_replaced(self):
        """A save below a prefix replaces the checkpoint there. A save that fails before it writes
        the marker (.metadata) leaves the old checkpoint unchanged."""
        url, told = client().url("bucket/replaced/step"), []
        for seed in (1, 2):
            writer = pt.ObjectStorageWriter(url, parts=seed,
                                            progress=lambda *row: told.append(row))
            dcp.save(state(seed), storage_writer=writer, no_dist=True)
            self.assertEqual(told[-1], (told[-1][1],) * 2)
            self.assertEqual(len(client().list_objects("bucket/replaced/")), 2 + seed)
        with self.assertRaisesRegex(ERRORS, "overwrite is False"):
            dcp.save(state(3), storage_writer=pt.ObjectStorageWriter(url, overwrite=False),
                     no_dist=True)

        class Failing(pt.ObjectStorageWriter):
            def _publish_marker(self):
                raise OSError(errno.EIO, "planted")
        with self.assertRaisesRegex(ERRORS, "planted"):
            dcp.save(state(3), storage_writer=Failing(url), no_dist=True)
        reader, got = pt.ObjectStorageReader(url), emptied(state(2))
        dcp.load(got, storage_reader=reader, no_dist=True)
        same(got, state(2))
        self.assertGreater(reader.report.bytes, 1_000_000)
        dcp.save(state(4), storage_writer=pt.ObjectStorageWriter(url), no_dist=True)
        self.assertEqual(len(client().list_objects("bucket/replaced/")), 3)
        with self.assertRaises(ERRORS) as caught:
            dcp.load(got, storage_reader=pt.ObjectStorageReader(client().url("bucket/none")),
                     no_dist=True)
        self.assertIn("s3://bucket/none/.metadata", str(caught.exception))
        for wrong, words in ((pt.HuggingFaceStorageWriter, "save_file writes single objects"),
                             (pt.HuggingFaceStorageReader, "load_into reads models of a store")):
            with self.assertRaisesRegex(ValueError, words):
                wrong(url)

    def test_ranks(self):
        """Three ranks save shards; two ranks, and then one rank, load them. Then two ranks save
        without each other."""
        url = client().url("bucket/ranks")
        ranks.run(3, save_ranks, url)
        self.assertEqual(sorted(name.rpartition("/")[2] for name in
                                client().list_objects("bucket/ranks/")),
                         [".metadata", *(f"__{rank}_0.distcp" for rank in range(3)),
                          "penstock.manifest"])
        for count in (2, 1):
            self.assertEqual(ranks.run(count, load_ranks, url), [True] * count)
        url = client().url("bucket/local")
        ranks.run(2, save_local, url)
        self.assertIn("bucket/local/__1.metadata", client().list_objects("bucket/local/"))

    def test_async(self):
        """async_save writes a snapshot, so the program may change its tensors meanwhile."""
        url, want = client().url("bucket/async"), {"w": torch.randn(1 << 20)}
        kept = {"w": want["w"].clone()}
        writer = pt.ObjectStorageWriter(url)
        future = dcp.async_save(want, storage_writer=writer)
        want["w"].zero_()
        getattr(future, "upload_completion", future).result()
        got = {"w": torch.zeros(1 << 20)}
        dcp.load(got, storage_reader=pt.ObjectStorageReader(url), no_dist=True)
        same(got, kept)

    def test_seam(self):
        """Tests the methods of ObjectClient that other projects' storage classes for RDMA call,
        with contiguous tensors."""
        seam = client(bucket="bucket")
        tensor = torch.randn(1000, 300)
        seam.put_rdma("seam/__0_0.distcp", tensor)
        seam.put_bytes("seam/.metadata", pickle.dumps({"a": 1}))
        other = torch.empty_like(tensor)
        seam.get_rdma("seam/__0_0.distcp", other)
        self.assertTrue(torch.equal(tensor, other))
        self.assertEqual(seam.size("seam/__0_0.distcp"), tensor.nbytes)
        self.assertEqual(seam.get_bytes_range("seam/__0_0.distcp", 4, 8),
                         tensor.numpy().tobytes()[4:12])
        self.assertEqual(seam.list_objects("seam/"), ["seam/.metadata", "seam/__0_0.distcp"])
        self.assertTrue(seam.exists("seam/.metadata") and not seam.exists("seam/other"))
        self.assertEqual(pickle.loads(seam.get_bytes("seam/.metadata")), {"a": 1})
        transposed = torch.zeros(300, 1000).t()
        with self.assertRaisesRegex(ValueError, "scattered"):
            seam.get_rdma("seam/__0_0.distcp", transposed)
        wide = torch.zeros(1000, 400)
        seam.get_rdma("seam/__0_0.distcp", wide[:, 50:350])
        self.assertTrue(torch.equal(wide[:, 50:350], tensor))
        got = seam.get("seam/__0_0.distcp", dtype="F32", shape=(1000, 300))
        self.assertTrue(torch.equal(got, tensor))


if __name__ == "__main__":
    store.exit_without_objects()
    tap.main()
