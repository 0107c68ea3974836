# SPDX-License-Identifier: Apache-2.0
"""Tests docs/python.md. Runs the page's Python blocks together as one program, and the first
block alone. If torch is installed, runs the blocks that need torch as another program. Checks
that the page names everything that the package exports, and compares its table of parameters
with the functions."""

import contextlib
import importlib.util
import inspect
import io
import os
import re
import tempfile
import unittest

import numpy

import penstock
import tap

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "python.md")
# The tensors of the model that the page's first block saves.
ARRAYS = {"layers.0.weight": numpy.arange(3000, dtype=numpy.float32).reshape(100, 30),
          "layers.1.mlp.up_proj.weight": numpy.arange(240, dtype=numpy.float32).reshape(8, 30),
          "norm": numpy.arange(7, dtype=numpy.int16)}
CALLS = ("load_file", "load_into", "iterate", "safe_open")


class Documented(unittest.TestCase):
    def setUp(self):
        with open(PAGE, encoding="utf-8") as f:
            self.text = f.read()

        self.blocks = re.findall(r"^```python\n(.*?)^```", self.text, re.S | re.M)

    def torch_program(self):
        """Runs the blocks that need torch, and checks that the page names all classes and
        functions for torch."""
        import penstock.torch
        from penstock import _dcp_safetensors, _torch_file
        blocks = re.findall(r"^```python torch\n(.*?)^```", self.text, re.S | re.M)
        self.assertGreater(len(blocks), 1)
        space, lines = self.run_program("\n".join(blocks))
        state = space["state"]["model"]
        self.assertEqual(lines[0], f"None {sum(t.nbytes for t in state.values())}")
        self.assertEqual([line.split(" ")[0] for line in lines[1:]], ["True"])
        for name, value in state.items():
            self.assertTrue(bool((space["loaded"]["model"][name] == value).all()))
        documented = set(_torch_file.__all__ + _dcp_safetensors.__all__)
        documented |= {"Checkpointer", "SavePlanner", "Stager", "StorageReader", "StorageWriter",
                       "ObjectStorageReader", "ObjectStorageWriter"}
        self.assertLessEqual(documented, set(penstock.torch.__all__))
        self.assertEqual({name for name in documented if name not in self.text}, set())

    if importlib.util.find_spec("torch"):
        test_torch_program = torch_program

    def run_program(self, program):
        """Runs a program in an empty folder; returns its namespace and its output's lines."""
        space, output, here = {}, io.StringIO(), os.getcwd()
        os.chdir(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        try:
            with contextlib.redirect_stdout(output):
                exec(program, space)  # pylint: disable=exec-used
        finally:
            os.chdir(here)
        return space, output.getvalue().splitlines()

    def test_first_block_makes_its_file(self):
        space, lines = self.run_program(self.blocks[0])
        self.assertEqual(lines, ["F32 (100, 30)"])
        self.assertIn("prints `F32 (100, 30)`.", self.text)
        self.assertEqual({name: value.nbytes for name, value in space["tensors"].items()},
                         {name: value.nbytes for name, value in ARRAYS.items()})

    def test_program(self):
        self.assertGreater(len(self.blocks), 6)
        space, lines = self.run_program("\n".join(self.blocks))
        self.assertEqual(lines.pop(0), "F32 (100, 30)")
        weight = ARRAYS["layers.0.weight"]
        self.assertEqual(list(space["some"]), ["layers.0.weight"])
        self.assertEqual(space["rows"].tobytes(), weight[10:20].tobytes())
        self.assertEqual(space["norm"].tobytes(), ARRAYS["norm"].tobytes())
        self.assertEqual(space["others"]["layers.0.weight"].tobytes(), weight[10:20].tobytes())
        self.assertEqual(bytes(space["place"]), weight.tobytes())
        self.assertEqual(space["half"]["layers.1.mlp.up_proj.weight"].shape, (4, 30))
        for made in (space["copies"], space["tensors"]):
            self.assertEqual({n: v.tobytes() for n, v in made.items()},
                             {n: v.tobytes() for n, v in ARRAYS.items()})
        self.assertRegex(lines[0], r"^12000 \w+ [0-9.]+$")
        self.assertEqual(sorted(lines[1:4]), sorted(f"{n} {v.nbytes}" for n, v in ARRAYS.items()))
        total = sum(value.nbytes for value in ARRAYS.values())
        self.assertEqual(lines[4], f"0 of {total} bytes")
        self.assertTrue(numpy.array_equal(space["other"], numpy.arange(1024, dtype=numpy.float32)))
        self.assertRegex(lines.pop(-2), r"^4096 \w+$")
        self.assertEqual(lines[-2:], [f"{total} of {total} bytes",
                                      "2 not-found missing.safetensors None None"])

    def test_parameters(self):
        """The page's table has every parameter of the four calls, with its default, and no
        other parameters."""
        rows = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\| (.*?) \| \S.* \|$", self.text, re.M)
        told = {(call, name, default) for name, default, calls in rows
                for call in (CALLS if calls == "all" else re.findall(r"`(\w+)`", calls))}
        real = set()
        for call in CALLS:
            for name, parameter in inspect.signature(getattr(penstock, call)).parameters.items():
                empty = parameter.default is inspect.Parameter.empty
                real.add((call, name, "" if empty else repr(parameter.default).replace("'", '"')))
        self.assertEqual(told, real)

    def test_names(self):
        self.assertEqual({name for name in penstock.__all__ if name not in self.text}, set())


if __name__ == "__main__":
    tap.main()
