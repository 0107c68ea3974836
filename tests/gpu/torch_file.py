#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.torch.save and load, and the classes for safetensors checkpoints, with tensors on
a GPU. Needs only the package penstock and torch. Run it alone, or in the build's environment by
`tests/python/run ../gpu/torch_file.py`. Prints which path moved the bytes. Exits with 77 if there
is no GPU or no torch."""

import gc
import os
import sys
import tempfile
import unittest
import warnings

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(77)
if not torch.cuda.is_available():
    print("torch has no GPU here")
    sys.exit(77)

import torch.distributed.checkpoint as dcp

import penstock.torch

warnings.simplefilter("ignore")
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
GPU = torch.device("cuda:0")


def path(name):
    return os.path.join(TMP, name)


def state(device):
    torch.manual_seed(1)
    big = torch.randn(3 << 20, device=device)
    made = {f"n{n}": torch.randn(n, device=device) for n in
            (0, 1, 7, 1000, 16383, 16384, 16385, 100003, 5 << 20)}
    return made | {
        "big": big, "view": big[5:70000], "turned": big.view(1024, -1).t(),
        "bf16": torch.randn(512, 512, device=device).to(torch.bfloat16),
        "f8": torch.randn(70001, device=device).to(torch.float8_e4m3fn),
        "bool": torch.randn(70001, device=device) > 0, "host": torch.arange(70000),
        "parameter": torch.nn.Parameter(torch.randn(300, 300, device=device)),
        "sparse": torch.eye(30, device=device).to_sparse(), "step": 7}


class Files(unittest.TestCase):
    def same(self, got, want, device=None):
        self.assertEqual(list(got), list(want))
        for name, value in want.items():
            if not isinstance(value, torch.Tensor):
                self.assertEqual(got[name], value)
                continue
            one = got[name]
            self.assertEqual((type(one), one.dtype, one.shape), (type(value), value.dtype,
                                                                 value.shape), name)
            self.assertEqual(one.device, device or value.device, name)
            if value.is_sparse:
                one, value = one.to_dense(), value.to_dense()
            else:
                self.assertEqual(one.stride(), value.stride(), name)
            a, b = (t.detach().cpu().contiguous().view(torch.uint8) if t.numel() and t.dim()
                    else t.cpu() for t in (one, value))
            self.assertTrue(torch.equal(a, b), name)

    def load(self, name, *args, **how):
        report = penstock.torch.FileReport()
        loaded = penstock.torch.load(path(name), *args, report=report, **how)
        self.assertIsNone(report.fallback)
        print(f"# load {name} {args}: {report}")
        return loaded

    def test_both_ways(self):
        want = state(GPU)
        print("# save:", penstock.torch.save(want, path("o.pt")))
        torch.save(want, path("t.pt"))
        self.same(torch.load(path("o.pt")), want)
        self.same(torch.load(path("o.pt"), mmap=True), want)
        cpu = torch.device("cpu")
        for name in ("o.pt", "t.pt"):
            self.same(self.load(name), want)
            self.same(self.load(name, "cpu"), want, cpu)
            self.same(self.load(name, {"cuda:0": "cpu"}), want, cpu)
            self.same(self.load(name, "cuda"), want, GPU)
            self.same(self.load(name, lambda storage, location: storage.cuda()), want, GPU)
            self.same(self.load(name, effort="fast"), want)
            got = self.load(name)
            self.assertEqual(got["view"].untyped_storage().data_ptr(),
                             got["big"].untyped_storage().data_ptr())
        penstock.torch.save(state("cpu"), path("c.pt"))
        self.same(self.load("c.pt", GPU), state("cpu"), GPU)

    @unittest.skipUnless(torch.cuda.device_count() > 1, "two GPUs are wanted")
    def test_two_gpus(self):
        other = torch.device("cuda:1")
        want = {"a": torch.randn(1 << 20, device=GPU), "b": torch.randn(1 << 20, device=other)}
        penstock.torch.save(want, path("2.pt"))
        self.same(self.load("2.pt"), want)
        self.same(self.load("2.pt", {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}),
                  {"a": want["a"].to(other), "b": want["b"].to(GPU)})

    def test_pending(self):
        """Kernels are queued on another stream, and a save follows. The file has the results of
        these kernels."""
        stream = torch.cuda.Stream()
        for value in range(5):
            x = torch.zeros(8 << 20, device=GPU)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1 << 28)
                x.fill_(value)
            penstock.torch.save({"x": x}, path("p.pt"), durable=False)
            self.assertTrue(bool((torch.load(path("p.pt"))["x"] == value).all()))

    def test_reused(self):
        """A tensor is freed while a queued kernel still writes to it, and a load gets the same
        memory. The kernel must not overwrite the loaded bytes."""
        want = torch.arange(8 << 20, device=GPU)
        penstock.torch.save({"x": want}, path("r.pt"))
        for _ in range(5):
            old = torch.empty(8 << 20, dtype=torch.int64, device=GPU)
            torch.cuda._sleep(1 << 28)
            old.fill_(-1)
            del old
            self.assertTrue(torch.equal(self.load("r.pt")["x"], want))

    def test_memory(self):
        """torch's allocator owns the memory of each loaded tensor, and frees it with the
        tensor. The tensors support record_stream and handles for other processes."""
        want = {"a": torch.randn(4 << 20, device=GPU), "b": torch.randn(4 << 20, device=GPU)}
        penstock.torch.save(want, path("m.pt"))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        got = self.load("m.pt")
        self.assertEqual(torch.cuda.memory_allocated() - before, 32 << 20)
        got["a"].record_stream(torch.cuda.Stream())
        got["a"].untyped_storage()._share_cuda_()
        del got["b"]
        gc.collect()
        self.assertEqual(torch.cuda.memory_allocated() - before, 16 << 20)

    def test_large(self):
        big = torch.arange((4 << 30) // 8 + 1000, device=GPU)
        print("# save:", penstock.torch.save({"big": big}, path("l.pt")))
        self.assertTrue(torch.equal(self.load("l.pt")["big"], big))
        self.assertTrue(torch.equal(torch.load(path("l.pt"), mmap=True)["big"], big))
        os.unlink(path("l.pt"))

    def test_no_memory(self):
        """If the GPU has too little memory, load raises torch's own exception."""
        penstock.torch.save({"x": torch.zeros(4 << 20, device=GPU)}, path("n.pt"))
        torch.cuda.set_per_process_memory_fraction(1e-5)
        torch.cuda.empty_cache()
        try:
            with self.assertRaises(torch.OutOfMemoryError):
                penstock.torch.load(path("n.pt"))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_safetensors(self):
        want = {"a": torch.randn(1000, 700), "b": torch.randn(70).bfloat16(),
                "turned": torch.randn(300, 200).t(), "ints": torch.arange(5)}
        want = {name: value.to(GPU) for name, value in want.items()}
        ours, theirs = tempfile.mkdtemp(dir=TMP), tempfile.mkdtemp(dir=TMP)
        dcp.save(want, storage_writer=penstock.torch.HuggingFaceStorageWriter(ours))
        solid = {name: value.contiguous() for name, value in want.items()}
        dcp.save(solid, storage_writer=dcp.HuggingFaceStorageWriter(theirs))
        for folder, reader in ((ours, dcp.HuggingFaceStorageReader),
                               (ours, penstock.torch.HuggingFaceStorageReader),
                               (theirs, penstock.torch.HuggingFaceStorageReader)):
            got = {name: torch.zeros_like(value) for name, value in want.items()}
            got["b"] = got["b"].float()
            dcp.load(got, storage_reader=reader(folder))
            for name, value in want.items():
                self.assertTrue(torch.equal(got[name], value.to(got[name].dtype)), name)


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    # test_memory makes a handle of GPU memory for other processes, but no process opens it. At a
    # normal exit, torch's allocator would abort because of it, so the program calls os._exit.
    sys.stdout.flush()
    os._exit(0 if program.result.wasSuccessful() else 1)
