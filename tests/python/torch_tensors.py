# SPDX-License-Identifier: Apache-2.0
"""torch's tensors in and out, beside safetensors.torch: each dtype that torch has,
slices, parameters with gaps, models, and the patched package. Needs torch, so it is
part of make test-all alone."""

import gc
import os
import tempfile
import unittest

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

    def test_open(self):
        with penstock.safe_open(FILE, framework="pt", device="cpu") as f:
            self.same({name: f.get_tensor(name) for name in f.keys()}, TENSORS)
            self.assertTrue(torch.equal(f.get_slice("bf16")[2:5, 1:4],
                                        TENSORS["bf16"][2:5, 1:4]))

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


if __name__ == "__main__":
    tap.main()
