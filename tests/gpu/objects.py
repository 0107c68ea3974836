#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.ObjectClient, load_file and penstock.torch with tensors on a GPU, against the
server of tests/s3. Needs only the package penstock and torch. Run it alone, or in the build's
environment by `tests/python/run ../gpu/objects.py`. Prints which path moved the bytes. Exits with
77 if there is no GPU or no torch."""

import os
import sys
import unittest

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(77)
if not torch.cuda.is_available():
    print("torch has no GPU here")
    sys.exit(77)

os.environ.update({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "s3"))

import penstock
import penstock.torch
import server

SERVER = server.Server()
CLIENT = penstock.ObjectClient(SERVER.url, bucket="bucket")
GPU = torch.device("cuda:0")


class Objects(unittest.TestCase):
    def test_tensors(self):
        """Stores and loads tensors of many lengths and dtypes, as a whole and as a part of a wider
        tensor."""
        torch.manual_seed(1)
        for count in (1, 1000, 65536, 1 << 20, 5_000_001):
            for dtype in (torch.float32, torch.bfloat16, torch.uint8):
                value = torch.randn(count, device=GPU).to(dtype)
                CLIENT.put("t", value)
                self.assertEqual(SERVER.objects[b"t"],
                                 value.view(torch.uint8).cpu().numpy().tobytes())
                got, report = torch.zeros_like(value), penstock.TransferReport()
                CLIENT.get("t", got, report=report)
                self.assertTrue(torch.equal(got, value))
                self.assertEqual(report.bytes, value.nbytes)
        print(f"# {report}")
        wide = torch.zeros(1000, 3000, device=GPU)
        part = torch.randn(1000, 1000, device=GPU)
        CLIENT.put("part", part)
        CLIENT.get("part", wide[:, 500:1500])
        self.assertTrue(torch.equal(wide[:, 500:1500], part))
        self.assertEqual(int(wide.count_nonzero()), int(part.count_nonzero()))
        self.assertTrue(torch.equal(CLIENT.get("part", device="cuda:0", dtype="F32",
                                               shape=(1000, 1000)), part))

    def test_order(self):
        """A put stores the bytes that the previously queued GPU kernels write. The caller does not
        synchronise."""
        for i in range(20):
            value = torch.zeros(1 << 20, device=GPU)
            for _ in range(50):
                value += 1
            CLIENT.put("ordered", value + i)
            got = torch.empty_like(value)
            CLIENT.get("ordered", got)
            self.assertEqual((got.min().item(), got.max().item()), (50 + i, 50 + i))

    def test_models(self):
        tensors = {"a": torch.randn(3000, 1000, device=GPU),
                   "b": torch.arange(7, device=GPU, dtype=torch.int16)}
        url = CLIENT.url("model/model.safetensors")
        penstock.save_file(tensors, url)
        for name in (url, CLIENT.url("model/")):
            got = penstock.load_file(name, device="cuda:0")
            self.assertTrue(all(torch.equal(got[n], v) for n, v in tensors.items()))
        penstock.torch.save(tensors, CLIENT.url("state.pt"))
        report = penstock.torch.FileReport()
        got = penstock.torch.load(CLIENT.url("state.pt"), report=report)
        self.assertIsNone(report.fallback)
        self.assertTrue(all(v.device == GPU and torch.equal(v, tensors[n])
                            for n, v in got.items()))
        print(f"# {report}")


if __name__ == "__main__":
    try:
        unittest.main(verbosity=2)
    finally:
        SERVER.stop()
