#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests loading and saving torch tensors on a real GPU, and compares the results with
safetensors.torch: each dtype, slices, parameters with gaps between rows, iterators, files
saved from GPU memory, and which allocator owns the memory of the tensors. Prints TAP; the
script `run` in this folder runs it."""

import gc
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))

import safetensors.torch as reference
import torch

import penstock
import tap

DEVICE = "cuda:0"
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
FILE = os.path.join(TMP, "a.safetensors")
torch.manual_seed(1)
TENSORS = {
    "bf16": torch.randn(33, 17).to(torch.bfloat16), "f16": torch.randn(5, 3).half(),
    "f8": torch.randn(8, 8).to(torch.float8_e4m3fn), "f8b": torch.randn(8).to(torch.float8_e5m2),
    "f64": torch.tensor(3.5, dtype=torch.float64), "empty": torch.zeros(0, 4),
    "bool": torch.tensor([True, False]), "c64": torch.randn(4, dtype=torch.complex64),
    "u16": torch.arange(5).to(torch.uint16), "i64": torch.arange(7),
    "large": torch.randn(4096, 3000), "wide": torch.randn(300, 20000).to(torch.bfloat16),
}
reference.save_file(TENSORS, FILE)


def raw(t):
    return t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class Gpu(unittest.TestCase):
    def same(self, got, want, device=DEVICE):
        self.assertEqual(set(got), set(want))
        for name, value in want.items():
            self.assertEqual((got[name].dtype, got[name].shape, str(got[name].device)),
                             (value.dtype, value.shape, device), name)
            self.assertTrue(raw(got[name]) == raw(value), name)

    def test_both_ways(self):
        for effort in ("thrifty", "fast"):
            got = penstock.load_file(FILE, device=DEVICE, effort=effort)
            self.same(got, TENSORS)
        out = os.path.join(TMP, "b.safetensors")
        penstock.save_file(got, out, {"format": "pt"})
        self.same(reference.load_file(out), TENSORS, "cpu")

    def test_computes(self):
        """Loaded tensors are views of one allocation. They work in kernels like any other
        tensors."""
        got = penstock.load_file(FILE, device=DEVICE)
        want = TENSORS["large"].to(DEVICE)
        self.assertTrue(torch.equal(got["large"] * 2 + 1, want * 2 + 1))
        got["large"].add_(1)  # The caller may write to loaded tensors.
        self.assertTrue(torch.equal(got["large"], want + 1))
        self.assertTrue(raw(got["wide"]) == raw(TENSORS["wide"]))

    def test_memory_is_torchs(self):
        gc.collect()
        before = torch.cuda.memory_allocated(DEVICE)
        got = penstock.load_file(FILE, device=DEVICE)
        size = sum(t.numel() * t.element_size() for t in TENSORS.values())
        held = torch.cuda.memory_allocated(DEVICE) - before
        self.assertGreaterEqual(held, size)
        self.assertLess(held, size + (4 << 20))
        one = got["bool"]
        del got
        gc.collect()
        self.assertEqual(one.tolist(), [True, False])
        del one
        gc.collect()
        self.assertEqual(torch.cuda.memory_allocated(DEVICE), before)

    def test_open(self):
        with penstock.safe_open(FILE, framework="pt", device=DEVICE) as f:
            self.same({name: f.get_tensor(name) for name in f.offset_keys()}, TENSORS)
            part = f.get_slice("wide")[7:99, 1000:1501]
            self.assertTrue(raw(part) == raw(TENSORS["wide"][7:99, 1000:1501]))
            self.assertEqual(str(part.device), DEVICE)
            self.assertTrue(raw(f.get_slice("large")[...]) == raw(TENSORS["large"]))

    def test_parameter(self):
        p = torch.nn.Parameter(torch.zeros(300, 30000, dtype=torch.bfloat16, device=DEVICE))
        part = torch.zeros(300, 5000, dtype=torch.bfloat16, device=DEVICE)
        penstock.load_into(FILE, {"wide": p.data[:, :20000]})
        self.assertTrue(raw(p.data[:, :20000]) == raw(TENSORS["wide"]))
        self.assertFalse(p.data[:, 20000:].any().item())
        penstock.load_into(FILE, {"wide": (part, (slice(None), slice(2500, 7500)))})
        self.assertTrue(raw(part) == raw(TENSORS["wide"][:, 2500:7500]))

    def test_iterate(self):
        """The window of an iterator, which is its device memory, may be much smaller than the file.
        The caller may queue copies out of the window on a stream."""
        got = {}
        for name, value in penstock.iterate(FILE, device=DEVICE, window=1 << 20):
            got[name] = value.clone()
        self.same(got, TENSORS)

    def test_interfaces(self):
        got = penstock.load_file(FILE, device=DEVICE, framework="dlpack")
        self.assertTrue(raw(torch.from_dlpack(got["large"])) == raw(TENSORS["large"]))
        self.assertTrue(raw(torch.as_tensor(got["i64"], device=DEVICE)) == raw(TENSORS["i64"]))
        try:
            import cupy
        except ImportError:
            self.skipTest("cupy is not installed")
        array = cupy.from_dlpack(got["large"])
        self.assertTrue(raw(torch.as_tensor(array, device=DEVICE)) == raw(TENSORS["large"]))

    def test_patched(self):
        with penstock.patch_safetensors():
            self.same(reference.load_file(FILE, device=DEVICE), TENSORS)


if __name__ == "__main__":
    tap.main()
