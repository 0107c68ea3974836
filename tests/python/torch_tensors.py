# SPDX-License-Identifier: Apache-2.0
"""Compares loading and saving of torch tensors with safetensors.torch: each dtype of torch,
slices, parameters with gaps, whole models, and the patched package. Needs torch, so only make
test-all runs it."""

import copy
import gc
import io
import os
import tempfile
import unittest
from unittest import mock

import safetensors
import safetensors.torch as reference
import torch

import penstock
import tap

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
FILE = os.path.join(TMP, "a.safetensors")
TENSORS = {
    "bf16": torch.randn(33, 17).to(torch.bfloat16), "f16": torch.randn(5, 3).half(),
    "f8": torch.randn(8, 8).to(torch.float8_e4m3fn), "f8b": torch.randn(8).to(torch.float8_e5m2),
    "f64": torch.tensor(3.5, dtype=torch.float64), "empty": torch.zeros(0, 4),
    "bool": torch.tensor([True, False]), "c64": torch.randn(4, dtype=torch.complex64),
    "u16": torch.arange(5).to(torch.uint16), "i64": torch.arange(7),
}
reference.save_file(TENSORS, FILE)


def raw(t):
    return bytes(t.contiguous().flatten().view(torch.uint8).numpy())


class Rows(torch.utils.data.Dataset):
    """A dataset of the tensors of an open file."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(TENSORS)

    def __getitem__(self, i):
        name = sorted(TENSORS)[i]
        if isinstance(self.source, penstock.safe_open):
            return name, self.source.get_tensor(name)
        return name, self.source.load(first=self.source.info(name).index, count=1)[0][name]


class Torch(unittest.TestCase):
    def same(self, got, want):
        self.assertEqual(set(got), set(want))
        for name, value in want.items():
            self.assertEqual((got[name].dtype, got[name].shape), (value.dtype, value.shape), name)
            self.assertEqual(raw(got[name]), raw(value), name)

    def test_both_ways(self):
        self.same(penstock.load_file(FILE), TENSORS)
        out = os.path.join(TMP, "b.safetensors")
        penstock.save_file(TENSORS, out, {"format": "pt"})
        self.same(reference.load_file(out), TENSORS)

    def test_four_bits(self):
        packed = torch.arange(24, dtype=torch.uint8).reshape(4, 6).view(torch.float4_e2m1fn_x2)
        out = os.path.join(TMP, "four.safetensors")
        for save in (reference.save_file, penstock.save_file):
            save({"q": packed}, out)
            got = penstock.load_file(out)["q"]
            self.assertEqual((got.dtype, got.shape), (packed.dtype, packed.shape))
            self.assertTrue(torch.equal(got.view(torch.uint8), packed.view(torch.uint8)))

    def test_odd_four_bits(self):
        """torch packs two elements of 4 bits into a byte, so torch cannot represent a tensor whose
        last dimension is odd. The load refuses such a tensor before its bytes move, as safetensors
        does."""
        out, data = os.path.join(TMP, "odd.safetensors"), bytes(range(9))
        header = b'{"q":{"dtype":"F4","shape":[6,3],"data_offsets":[0,9]}}'
        with open(out, "wb") as f:
            f.write(len(header).to_bytes(8, "little") + header + data)
        with self.assertRaises(safetensors.SafetensorError):
            reference.load_file(out)
        opened = penstock.safe_open(out, "pt")
        for call in (lambda: penstock.load_file(out), lambda: dict(penstock.iterate(out)),
                     lambda: opened.get_tensor("q"), lambda: opened.get_tensors(),
                     lambda: opened.prefetch(), lambda: opened.prefetch({"q": slice(0, 2)}),
                     lambda: opened.get_slice("q")[:2], lambda: opened.get_slice("q")[...],
                     lambda: penstock.load_file(out, framework="dlpack")["q"].torch()):
            with self.assertRaisesRegex(ValueError, "odd last dimension") as caught:
                call()
            self.assertIsInstance(caught.exception, safetensors.SafetensorError)
        self.assertEqual(bytes(penstock.load_file(out, framework="dlpack")["q"].buffer()), data)

    def test_open(self):
        with penstock.safe_open(FILE, framework="pt", device="cpu") as f:
            self.same({name: f.get_tensor(name) for name in f.keys()}, TENSORS)
            self.assertTrue(torch.equal(f.get_slice("bf16")[2:5, 1:4],
                                        TENSORS["bf16"][2:5, 1:4]))

    def test_workers(self):
        """A dataset that holds an open file works in the processes of a DataLoader, with each start
        method. The tensors that the processes return are right."""
        for method in ("spawn", "fork"):
            for source in (penstock.safe_open(FILE), penstock.Model(FILE)):
                loader = torch.utils.data.DataLoader(
                    Rows(source), batch_size=None, num_workers=2, timeout=120,
                    multiprocessing_context=method)
                self.same(dict(loader), TENSORS)

    def test_auto(self):
        """With device "auto", a torch without CUDA gets tensors in host memory, although the
        library has a GPU. Other frameworks get the GPU."""
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        with penstock.safe_open(FILE, device="auto") as f, f.prefetch(device="auto") as loader:
            for got in (penstock.load_file(FILE, "auto"), dict(penstock.iterate(FILE, "auto")),
                        {"i64": f.get_tensor("i64")}, dict(loader)):
                self.assertEqual({value.device.type for value in got.values()}, {kind})
        tensors = penstock.load_file(FILE, "auto", framework="dlpack")
        self.assertEqual({value.device for value in tensors.values()}, {"cuda:0"})

    def test_short(self):
        """Short tensors are ordinary tensors in host memory, even if torch creates its own tensors
        on another device."""
        with penstock.safe_open(FILE) as f, torch.device("meta"):
            self.same({name: f.get_tensor(name) for name in reversed(f.offset_keys())}, TENSORS)
        empty = torch.empty
        with penstock.safe_open(FILE) as f, mock.patch.object(
                torch, "empty", lambda shape, **how:
                empty(shape, **{**how, "device": "meta" if shape else how["device"]})):
            self.same({name: f.get_tensor(name) for name in ("i64", "bf16", "bool")},
                      {name: TENSORS[name] for name in ("i64", "bf16", "bool")})

    def test_prefetch(self):
        with penstock.safe_open(FILE, framework="pt") as f:
            with f.prefetch() as loader:
                self.same(dict(loader), TENSORS)
            plan = {"bf16": slice(2, 5), "f64": None, "c64": slice(1, None)}
            with f.prefetch(plan) as loader:
                self.same(dict(loader), {"bf16": TENSORS["bf16"][2:5], "f64": TENSORS["f64"],
                                         "c64": TENSORS["c64"][1:]})

    def test_indices(self):
        """Slices accept torch's indices. For a list of row indices only those rows are read."""
        file = os.path.join(TMP, "indices.safetensors")
        reference.save_file({"a": torch.randn(70, 6, 5), "b": torch.randn(4)}, file)
        read, real = [], penstock.Model.load_into

        def load_into(model, *args, **how):
            report = real(model, *args, **how)
            read.append(report.read)
            return report

        rows = ([0, 1], [3, 4, 9, 3, -1], range(7), torch.tensor([1, 3]), [])
        indices = [i for r in rows for i in (r, (r, ...), (slice(None), [0, 2], ...),
                                             (..., [4, 0]), (slice(2, 9), slice(None), [1]))]
        indices += [None, (None, slice(2)), torch.tensor([True] * 70), (0, [1, 2]), (..., ...),
                    ([1, 2], ..., ...), ([0, 1], [1, 2]), torch.tensor(2),
                    (slice(None, None, 2), [0, 3]), ()]
        with safetensors.safe_open(file, "pt") as theirs, \
                penstock.safe_open(file, "pt") as ours, \
                mock.patch.object(penstock.Model, "load_into", load_into):
            for index in indices:
                want, got = theirs.get_slice("a")[index], ours.get_slice("a")[index]
                self.assertTrue(torch.equal(got, want) and got.shape == want.shape, index)
            for index in ([70], (..., [5]), ([0],) * 4, 1.5, "x"):
                for f in (theirs, ours):
                    with self.assertRaises((IndexError, TypeError)):
                        f.get_slice("a")[index]
            del read[:]
            ours.get_slice("a")[[2, 3, 60], 1:]
        self.assertLess(read[0], 400)  # The rows have 300 bytes, the tensor 8400.

    def test_parameter(self):
        p = torch.nn.Parameter(torch.zeros(33, 34, dtype=torch.bfloat16))
        penstock.load_into(FILE, {"bf16": p.data[:, :17]})
        self.assertTrue(torch.equal(p.data[:, :17], TENSORS["bf16"]))
        self.assertFalse(p.data[:, 17:].any())

    def test_patched(self):
        model, out = torch.nn.Linear(4, 4), os.path.join(TMP, "m.safetensors")
        with penstock.patch_safetensors():
            self.same(reference.load_file(FILE), TENSORS)
            with safetensors.safe_open(FILE, "pt") as f:
                self.assertIsInstance(f, penstock.safe_open)
            reference.save_model(model, out)
        other = torch.nn.Linear(4, 4)
        reference.load_model(other, out)
        self.assertTrue(torch.equal(other.weight, model.weight))

    def test_life(self):
        got = {name: value.clone() for name, value in penstock.iterate(FILE, window=1)}
        self.same(got, TENSORS)
        one = penstock.load_file(FILE)["i64"]
        gc.collect()
        one += 1
        self.assertTrue(torch.equal(one, torch.arange(7) + 1))
        shared = torch.from_dlpack(penstock.load_file(FILE, framework="dlpack")["f16"])
        self.assertTrue(torch.equal(shared, TENSORS["f16"]))

    def test_independent_tensors(self):
        """Tensors of one load share an allocation and nothing else. A change or a gradient of one
        tensor does not affect autograd's state of the other tensors."""
        file = os.path.join(TMP, "alike.safetensors")
        made = {f"t{i}": torch.randn(3, 4) for i in range(6)} | {"u": torch.randn(2)}
        reference.save_file(made, file)
        for one_storage in (False, True):
            got, want = penstock.load_file(file, one_storage=one_storage), dict(made)
            self.assertFalse(any(t._is_view() for t in got.values()))
            before = {name: t._version for name, t in got.items()}
            got["t1"].add_(1)
            self.assertEqual({name: t._version - before[name] for name, t in got.items()},
                             {name: int(name == "t1") for name in want})
            got["t2"].mul_(torch.ones(3, 4, requires_grad=True))
            self.assertEqual([name for name, t in got.items() if t.requires_grad], ["t2"])
            got.pop("t2")
            want["t1"] = want["t1"] + 1
            self.same(got, {name: want[name] for name in got})

    def own_storage(self, device):
        """Asserts that each tensor has a PyTorch storage (its memory) of its own, as with
        safetensors.torch.

        Therefore saving or copying one tensor takes only the bytes of that tensor. A model that
        got its tensors by load_state_dict(assign=True) can be saved, too. Then loads with
        one_storage, asserts that all tensors are in one storage, and returns them."""
        file, out = os.path.join(TMP, "linear.safetensors"), os.path.join(TMP, "out.safetensors")
        reference.save_model(torch.nn.Linear(30, 40), file)
        with penstock.safe_open(file, "pt", device) as f:
            opened = {name: f.get_tensor(name) for name in f.offset_keys()}
        for got in (penstock.load_file(file, device), reference.load_file(file, device), opened):
            for tensor in got.values():
                storage = tensor.untyped_storage()
                self.assertEqual((storage.data_ptr(), storage.nbytes()),
                                 (tensor.data_ptr(), tensor.nbytes))
                self.assertEqual(copy.deepcopy(tensor).untyped_storage().nbytes(), tensor.nbytes)
            alone = [io.BytesIO(), io.BytesIO()]
            for to, tensor in zip(alone, (got["bias"], got["bias"].clone())):
                torch.save(tensor, to)
            self.assertEqual(*[len(to.getvalue()) for to in alone])
        model = torch.nn.Linear(30, 40, device=device)
        model.load_state_dict(penstock.load_file(file, device), assign=True)
        reference.save_model(model, out)
        self.same(reference.load_file(out), reference.load_file(file))
        shared = penstock.load_file(file, device, one_storage=True)
        self.assertEqual(len({t.untyped_storage().data_ptr() for t in shared.values()}), 1)
        self.same({name: t.cpu() for name, t in shared.items()}, reference.load_file(file))
        return shared

    def test_own_storage(self):
        self.own_storage("cpu")

    @unittest.skipUnless(torch.cuda.is_available(), "a GPU is wanted")
    def test_on_gpu(self):
        """With one_storage, record_stream prevents reuse of the memory until the stream is idle."""
        shared, stream = self.own_storage("cuda:0"), torch.cuda.Stream()
        ptr, nbytes = shared["weight"].untyped_storage().data_ptr(), shared["weight"].nbytes
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1 << 30)
            shared["weight"].record_stream(stream)
        shared.clear()
        gc.collect()
        other = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
        self.assertFalse(stream.query())
        self.assertNotEqual(other.untyped_storage().data_ptr(), ptr)
        stream.synchronize()

    def test_no_memory(self):
        """load_file raises torch.OutOfMemoryError unchanged, since programs catch that type."""
        with mock.patch.object(torch, "empty", side_effect=torch.OutOfMemoryError("no more")), \
                self.assertRaisesRegex(torch.OutOfMemoryError, "no more"):
            penstock.load_file(FILE, device="cuda:0")

    def test_save_refusals(self):
        """save_file refuses tensors that the reference refuses. It also refuses conjugate and
        negative views, whose memory does not hold the values of the tensor."""
        x, out = torch.arange(12.).reshape(3, 4), os.path.join(TMP, "never.safetensors")
        for tensors, kind, words in (({"a": x, "b": x}, RuntimeError, "share memory"),
                                     ({"a": x[:2], "b": x[1:]}, RuntimeError, "share memory"),
                                     ({"a": x.t()}, ValueError, "contiguous"),
                                     ({"a": x.to_sparse()}, ValueError, "dense")):
            for save in (reference.save_file, penstock.save_file):
                with self.assertRaisesRegex(kind, words):
                    save(tensors, out)
        z = torch.view_as_complex(torch.ones(3, 2)).conj()
        for odd in (z, torch.zeros(2, device="meta"), torch._neg_view(x)):
            with self.assertRaises(ValueError):
                penstock.save_file({"a": odd}, out)
        self.assertFalse(os.path.exists(out))
        halves = {"a": x[:1], "b": x[1:], "c": x[3:]}
        penstock.save_file(halves, out)
        self.same(reference.load_file(out), halves)
        with self.assertRaises(ValueError):
            penstock.load_into(out, {"a": torch._neg_view(torch.zeros(1, 4))})

    def test_uneven(self):
        """Loads tensors of the same dtype and shape that are at different distances from each
        other, spread over several files, or divided between ranks."""
        files, want = [], {}
        for part in range(3):
            made = {f"{part}.{i:02}": torch.randn((4, 4) if i % 3 else (4, 8)).to(
                torch.bfloat16 if i % 5 else torch.float32) for i in range(part, 40)}
            files.append(os.path.join(TMP, f"part{part}.safetensors"))
            reference.save_file(made, files[-1])
            want |= made
        for one_storage in (False, True):
            self.same(penstock.load_file(files[::-1], one_storage=one_storage), want)
        self.same(penstock.load_file(files, names=["*7", "1.*"]),
                  {n: t for n, t in want.items() if n.endswith("7") or n.startswith("1.")})
        halves = [penstock.load_file(files, shard={"rank": r, "ranks": 2,
                                                   "rules": [("*", "last")]}) for r in (0, 1)]
        self.same({n: torch.cat([h[n] for h in halves], dim=1) for n in want}, want)
        places = {n: torch.zeros_like(t) for n, t in want.items()}
        penstock.load_into(files, places)
        self.same(places, want)


if __name__ == "__main__":
    tap.main()
