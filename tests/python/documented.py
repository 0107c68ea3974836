# SPDX-License-Identifier: Apache-2.0
"""The program that docs/python.md tells in pieces, run as it stands there, and that the
page names what the package has."""

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

    def test_program(self):
        blocks = re.findall(r"^```python\n(.*?)^```", self.text, re.S | re.M)
        self.assertGreater(len(blocks), 3)
        space, said, here = {}, io.StringIO(), os.getcwd()
        os.chdir(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        try:
            safetensors.numpy.save_file(ARRAYS, "model.safetensors")
            with contextlib.redirect_stdout(said):
                exec("\n".join(blocks), space)  # pylint: disable=exec-used
        finally:
            os.chdir(here)
        weight = ARRAYS["layers.0.weight"]
        self.assertEqual(list(space["some"]), ["layers.0.weight"])
        self.assertEqual(space["rows"].tobytes(), weight[10:20].tobytes())
        self.assertEqual(bytes(space["place"]), weight.tobytes())
        self.assertEqual(space["half"]["layers.1.mlp.up_proj.weight"].shape, (4, 30))
        for made in (space["copies"], space["tensors"]):
            self.assertEqual({n: v.tobytes() for n, v in made.items()},
                             {n: v.tobytes() for n, v in ARRAYS.items()})
        lines = said.getvalue().splitlines()
        self.assertRegex(lines[0], r"^12000 \w+ [0-9.]+$")
        self.assertEqual(sorted(lines[1:4]), sorted(f"{n} {v.nbytes}" for n, v in ARRAYS.items()))
        self.assertEqual(lines[4], "2 not-found missing.safetensors None None")

    def test_names(self):
        public = set(penstock.__all__) - {"Model", "Report", "allocate"}
        self.assertEqual({name for name in public if f"{name}" not in self.text}, set())


if __name__ == "__main__":
    tap.main()
