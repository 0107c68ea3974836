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
import threading
import penstock
import penstock.torch
from typing import Any, Dict
tensors: Dict[str, Any] = penstock.load_file("m", device="cuda:0", shard={"rank": 0})
report: penstock.Report = penstock.load_into("m", {"a": bytearray(3)})
seconds: float = report.seconds
with penstock.Group("g", 0, 2) as group:
    penstock.load_file(["a", "b"], group=group)
for name, tensor in penstock.iterate("m"):
    print(name.upper(), tensor)
def show(done: int, total: int) -> None:
    print(done / total)
stop = threading.Event()
tensors = penstock.load_file("m", require="any", effort="fast", align=64, one_storage=True,
                             keep_cached=True, ranks=2, progress=show, stop=stop)
penstock.load_into("m", {}, require="any", effort="fast", keep_cached=True, progress=True)
penstock.iterate("m", window=1, require="any", effort="fast", progress=show, stop=stop)
penstock.safe_open("m", "pt", require="any", effort="fast", keep_cached=True, stop=stop)
penstock.save_file({}, "m", durable=True, require="any", effort="fast")
with penstock.File("m", "r+", create=True, length=5) as file:
    seconds = file.read(bytearray(5), 3, exact=False).seconds
    transfer: penstock.Transfer = file.read_async(bytearray(5), penstock.Late(3), stream=1)
    count: int = transfer.result(timeout=1.5).bytes
penstock.Model("m").load(require="any", effort="fast", first=1, count=2, progress=show)
async def later() -> Dict[str, Any]:
    async for name, tensor in penstock.aio.iterate("m", window=1):
        print(name.upper(), tensor)
    report = await penstock.aio.load_into("m", {}, effort="fast")
    print(report.seconds)
    await penstock.aio.save_file({}, "m", durable=True)
    return await penstock.aio.load_file("m", effort="fast")
written: penstock.Report = penstock.torch.save({}, "m", durable=False, effort="fast",
                                               progress=show, stop=stop)
told = penstock.torch.FileReport()
state: Dict[str, Any] = penstock.torch.load("m", "cuda:0", weights_only=True, report=told)
why: str = told.fallback or ""
client = penstock.ObjectClient("http://h:1", bucket="b", require="any", timeout=3)
moved: penstock.TransferReport = client.put("key", bytearray(3))
tensor = client.get("key", device="cuda:0", dtype="F32", shape=(3, 4), report=moved)
found: penstock.ObjectInfo = client.info("key")
names = [one.name.upper() for one in client.list("prefix/")]
data: bytes = client.get_bytes_range("key", 0, 3)
penstock.torch.HuggingFaceStorageWriter("m", save_distributed=True, effort="fast")
penstock.torch.StorageWriter("m", stripe=["a", "b"], thread_count=2, effort="fast", progress=show)
penstock.torch.StorageReader("m", checksums=False, require="any", progress=show)
penstock.torch.ObjectStorageWriter("s3://b/k", parts=2, keep=3)
with penstock.torch.Checkpointer("m", keep=3, durable=False, pool_bytes=1 << 30) as checkpoints:
    place: str = checkpoints.load({}) or ""
penstock.torch.HuggingFaceStorageReader("m", thread_count=2, require="any")
"""

# Calls with a misspelled or wrong argument, each with a word of mypy's message.
WRONG = [(f"{call}({first}, {bad}=1)", bad)
         for call, first in (("penstock.load_file", "'m'"), ("penstock.load_into", "'m', {}"),
                             ("penstock.iterate", "'m'"), ("penstock.safe_open", "'m', 'pt'"),
                             ("penstock.save_file", "{}, 'm'"), ("penstock.Group", "'g', 0, 1"),
                             ("penstock.Model", "'m'"), ("penstock.Model('m').load", "0"),
                             ("penstock.Model('m').load_into", "[]"),
                             ("penstock.Model('m').iterate", "0"),
                             ("penstock.aio.load_file", "'m'"),
                             ("penstock.aio.load_into", "'m', {}"),
                             ("penstock.aio.iterate", "'m'"),
                             ("penstock.aio.save_file", "{}, 'm'"),
                             ("penstock.ObjectClient", "None"),
                             ("penstock.ObjectClient().get", "'b/k'"),
                             ("penstock.torch.save", "{}, 'm'"), ("penstock.torch.load", "'m'"),
                             ("penstock.torch.HuggingFaceStorageReader", "'m'"),
                             ("penstock.torch.HuggingFaceStorageWriter", "'m'"),
                             ("penstock.torch.StorageReader", "'m'"),
                             ("penstock.torch.StorageWriter", "'m'"),
                             ("penstock.torch.ObjectStorageReader", "'m'"),
                             ("penstock.torch.ObjectStorageWriter", "'m'"),
                             ("penstock.torch.Checkpointer", "'m'"))
         for bad in ("efort", "requires")]
WRONG += [("penstock.load_file('m', progress=3)", "int"),
          ("penstock.load_file('m', stop=True)", "Event"),
          ("penstock.load_file('m', window=1)", "window"),
          ("penstock.load_file('m', group='g')", "group"),
          ("penstock.torch.Checkpointer('m', kep=3)", "kep"),
          ("penstock.torch.Checkpointer('m', keep='3')", "str")]


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

    def test_misspelled(self):
        """mypy reports every argument whose name is misspelled, with the number of its line."""
        status, said = self.program("import penstock.torch\n" +
                                    "".join(f"{wrong}\n" for wrong, _ in WRONG))
        self.assertEqual(status, 1, said)
        for number, (wrong, word) in enumerate(WRONG):
            lines = [line for line in said.splitlines() if f".py:{number + 2}: error" in line]
            self.assertTrue(any(word in line for line in lines), f"{wrong}: {lines}")


if __name__ == "__main__":
    tap.main()
