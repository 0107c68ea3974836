# SPDX-License-Identifier: Apache-2.0
"""Tests docs/python.md: runs its Python blocks together as one program, runs the first block
alone, and checks that the page names everything that the package exports."""

import contextlib
import io
import os
import re
import tempfile
import unittest

import safetensors.numpy

import penstock
import tap
from reference import fill

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "python.md")
ARRAYS = {"layers.0.weight": fill("float32", (100, 30)), "norm": fill("int16", (7,)),
          "layers.1.mlp.up_proj.weight": fill("float32", (8, 30), 2)}


class Documented(unittest.TestCase):
    def setUp(self):
        with open(PAGE, encoding="utf-8") as f:
            self.text = f.read()

        self.blocks = re.findall(r"^```python\n(.*?)^```", self.text, re.S | re.M)

    def run_program(self, program, arrays):
        """Runs a program in a new folder; returns its namespace and its output's lines.

        If `arrays` is not empty, the folder has a file model.safetensors with these arrays."""
        space, output, here = {}, io.StringIO(), os.getcwd()
        os.chdir(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        try:
            if arrays:
                safetensors.numpy.save_file(arrays, "model.safetensors")
            with contextlib.redirect_stdout(output):
                exec(program, space)  # pylint: disable=exec-used
        finally:
            os.chdir(here)
        return space, output.getvalue().splitlines()

    def test_first_block_needs_no_file(self):
        lines = self.run_program(self.blocks[0], {})[1]
        self.assertEqual(lines, ["F32 (6,)"])
        self.assertIn("It prints `F32 (6,)`.", self.text)

    def test_program(self):
        self.assertGreater(len(self.blocks), 4)
        space, lines = self.run_program("\n".join(self.blocks), ARRAYS)
        self.assertEqual(lines.pop(0), "F32 (6,)")
        weight = ARRAYS["layers.0.weight"]
        self.assertEqual(list(space["some"]), ["layers.0.weight"])
        self.assertEqual(space["rows"].tobytes(), weight[10:20].tobytes())
        self.assertEqual(bytes(space["place"]), weight.tobytes())
        self.assertEqual(space["half"]["layers.1.mlp.up_proj.weight"].shape, (4, 30))
        for made in (space["copies"], space["tensors"]):
            self.assertEqual({n: v.tobytes() for n, v in made.items()},
                             {n: v.tobytes() for n, v in ARRAYS.items()})
        self.assertRegex(lines[0], r"^12000 \w+ [0-9.]+$")
        self.assertEqual(sorted(lines[1:4]), sorted(f"{n} {v.nbytes}" for n, v in ARRAYS.items()))
        self.assertEqual(lines[4], "2 not-found missing.safetensors None None")

    def test_names(self):
        self.assertEqual({name for name in penstock.__all__ if name not in self.text}, set())


if __name__ == "__main__":
    tap.main()
