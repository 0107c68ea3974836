# SPDX-License-Identifier: Apache-2.0
"""Checks the package's type annotations with mypy --strict. Also checks programs that use the
package: mypy must accept a correct program and refuse wrong ones. Needs mypy, so only make
test-all runs it."""

import os
import tempfile
import unittest

from mypy import api

import tap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
PROGRAM = """
import penstock
from typing import Any, Dict
tensors: Dict[str, Any] = penstock.load_file("m", device="cuda:0", shard={"rank": 0})
report: penstock.Report = penstock.load_into("m", {"a": bytearray(3)})
seconds: float = report.seconds
with penstock.Group("g", 0, 2) as group:
    penstock.load_file(["a", "b"], group=group)
for name, tensor in penstock.iterate("m"):
    print(name.upper(), tensor)
"""


def mypy(*words):
    out, err, status = api.run(["--config-file", os.path.join(ROOT, "pyproject.toml"),
                                "--cache-dir", TMP, *words])
    return status, out + err


class Types(unittest.TestCase):
    def test_package(self):
        status, said = mypy(os.path.join(ROOT, "python", "penstock"))
        self.assertEqual(status, 0, said)

    def program(self, text):
        os.environ["MYPYPATH"] = os.path.join(ROOT, "python")
        self.count = getattr(self, "count", 0) + 1
        path = os.path.join(TMP, f"program{self.count}.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return mypy(path)

    def test_program(self):
        status, said = self.program(PROGRAM)
        self.assertEqual(status, 0, said)
        for wrong, words in (("penstock.Group(0, 1)", "Group"),
                             ("penstock.load_file()", "load_file"),
                             ("penstock.load_into('m', {}).speed", "speed"),
                             ("x: str = penstock.load_into('m', {}).seconds", "float")):
            status, said = self.program("import penstock\n" + wrong + "\n")
            self.assertEqual(status, 1, wrong)
            self.assertIn(words, said)


if __name__ == "__main__":
    tap.main()
