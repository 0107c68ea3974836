# SPDX-License-Identifier: Apache-2.0
"""Runs the Python programs of examples/ as a user would: into host memory, into the memory of
the stand-in GPU (which tests/standin simulates), and with wrong arguments, for which they print one
line."""

import os
import subprocess
import sys
import tempfile
import unittest

import numpy
import safetensors.numpy

import tap

HERE = os.path.dirname(os.path.abspath(__file__))
LOAD = os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples", "load.py")
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
MODEL = os.path.join(TMP, "model.safetensors")
ARRAYS = {"weight": numpy.arange(40000, dtype=numpy.float32).reshape(100, 400),
          "bias": numpy.arange(7, dtype=numpy.int16)}
safetensors.numpy.save_file(ARRAYS, MODEL)


def load(*args):
    return subprocess.run([sys.executable, LOAD, *args], text=True, capture_output=True,
                          timeout=60, check=False)


class Examples(unittest.TestCase):
    def test_load(self):
        for device in ("host", "cuda:0", "auto"):
            copy = os.path.join(TMP, "copy.safetensors")
            done = load(MODEL, device, copy)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = done.stdout.splitlines()
            self.assertRegex(lines[0], rf"^2 tensors, 160014 bytes on {device}, .* CPU copies$")
            self.assertEqual(lines[1], "rows 0 and 1 of weight, (100, 400): 3200 bytes")
            self.assertEqual(lines[2], f"{copy}: written")
            again = safetensors.numpy.load_file(copy)
            for name, array in ARRAYS.items():
                numpy.testing.assert_array_equal(again[name], array)
            os.unlink(copy)

    def test_errors(self):
        for args in (("none",), (MODEL, "cuda:99"), (MODEL, "host", "no/such/folder"), ()):
            done = load(*args)
            self.assertNotIn(done.returncode, (0,))
            self.assertEqual((done.stdout.count("Traceback"), done.stderr.count("\n")), (0, 1),
                             done.stderr)


if __name__ == "__main__":
    tap.main()
