# SPDX-License-Identifier: Apache-2.0
"""Tests errors: exception types, their attributes, wrong arguments, and what save_file and
load_into refuse. Uses numpy arrays and the stand-in GPU, which tests/standin simulates."""

import errno
import importlib
import os
import pickle
import re
import types
import unittest
import unittest.mock
import zipfile

import numpy
import safetensors
import safetensors.numpy

import penstock
import tap
from arrays import ARRAYS, FILE, TMP


class Errors(unittest.TestCase):
    def test_attributes(self):
        bad = os.path.join(TMP, "bad.safetensors")
        with open(FILE, "rb") as f:
            data = f.read()
        with open(bad, "wb") as f:
            f.write(data[:-1])
        with self.assertRaises(penstock.FormatError) as caught:
            penstock.load_file(bad)
        error = caught.exception
        self.assertEqual((error.errno, error.reason, error.path), (errno.EBADMSG, "malformed", bad))
        self.assertIsNotNone(error.tensor)
        self.assertIsInstance(error, ValueError)
        with self.assertRaises(FileNotFoundError) as missing:
            penstock.load_file(os.path.join(TMP, "missing"))
        self.assertEqual(missing.exception.filename, os.path.join(TMP, "missing"))
        with self.assertRaises(penstock.PenstockError) as failed:
            penstock.load_file(FILE, path="fault:bounce?eio=1")
        self.assertEqual((failed.exception.errno, failed.exception.path), (errno.EIO, FILE))
        self.assertIsNotNone(failed.exception.offset)
        with self.assertRaises(penstock.ClassRefusedError):
            penstock.load_file(FILE, device="cuda:0", require="direct")

    def test_place(self):
        """The path in an error is the str that Python uses for this path, even if the path is not
        valid UTF-8. An error that is not about a file or tensor does not have the path, tensor and
        offset of an earlier error."""
        odd = os.path.join(TMP, os.fsdecode(b"odd \xff.safetensors"))
        with open(odd, "wb") as f:
            f.write(b"\2\0\0\0\0\0\0\0{]")
        with self.assertRaises(penstock.FormatError) as caught:
            penstock.load_file(odd)
        self.assertEqual((caught.exception.path, caught.exception.offset), (odd, 9))
        for call in (lambda: penstock.allocate("U8", (1,), "cuda:77"),
                     lambda: penstock.allocate("U8", (1 << 60,), "cuda:0")):
            with self.assertRaises(penstock.NotFoundError):
                penstock.load_into(FILE, {"not there": bytearray(1)})
            with self.assertRaises(penstock.PenstockError) as caught:
                call()
            error = caught.exception
            self.assertEqual((error.path, error.tensor, error.offset), (None, None, None))

    def test_torch_archive(self):
        """A file of torch.save is refused as such. Its first bytes, taken for a length, would only
        confuse."""
        file = os.path.join(TMP, "model.pt")
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("model/data.pkl", b"x")
        with self.assertRaisesRegex(penstock.FormatError, "penstock.torch.load"):
            penstock.load_file(file)

    def test_stop(self):
        """An argument `stop` that is not an event is refused, before the load looks at it."""
        for call in (penstock.load_file, penstock.safe_open,
                     lambda *file, **how: next(penstock.iterate(*file, **how))):
            with self.assertRaisesRegex(TypeError, "threading.Event, not True"):
                call(FILE, framework="np", stop=True)

    def test_file_urls(self):
        """A file URL may name this host. A URL of another host is refused, although a relative path
        would lead to a file."""
        os.makedirs(os.path.join(TMP, "host"), exist_ok=True)
        safetensors.numpy.save_file(ARRAYS, os.path.join(TMP, "host", "a"))
        here = os.getcwd()
        calls = (lambda url: penstock.load_file(url, framework="np"),
                 lambda url: penstock.load_file([url], framework="np"),
                 lambda url: penstock.safe_open(url, framework="np").get_tensors(),
                 lambda url: penstock.save_file(ARRAYS, url))
        os.chdir(TMP)
        try:
            for call in calls:
                for host in ("", "localhost", "LOCALHOST"):
                    self.assertEqual(set(call(f"file://{host}{TMP}/host/a") or ARRAYS), set(ARRAYS))
                for url in ("file://host/a", "file://localhost", "file://./host/a"):
                    with self.assertRaisesRegex(penstock.PenstockError, "another host") as caught:
                        call(url)
                    self.assertEqual((caught.exception.errno, caught.exception.reason),
                                     (errno.EINVAL, "bad-argument"))
                    self.assertIn(url, str(caught.exception))
            self.assertNotIn("file:", os.listdir("."))
        finally:
            os.chdir(here)

    def test_name_of_another_file(self):
        """If a message names another file whose path has the same end, it stays as it is."""
        name = "meta-llama-3-70b-instruct-00001-of-00030.safetensors"
        text, path = f"/mnt/b/{name}: short", f"/data/a/{name}"
        whole = importlib.import_module("penstock._lib")._with_whole_path
        self.assertEqual(whole(text, path), text)
        self.assertEqual(whole(f"cannot open {name}: short", path), f"cannot open {path}: short")

    def test_whole_sentence(self):
        """A message is not truncated: it contains the whole path and the whole tensor name."""
        name, folders = "layers." + "x" * 240, [TMP]
        folders.append(os.path.join(TMP, "d" * 150, "e" * 150, "\u00fc" * 100))
        texts = []
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
            good, bad = (os.path.join(folder, n) for n in ("good.safetensors", "bad.safetensors"))
            safetensors.numpy.save_file({name: numpy.zeros(100, numpy.float32)}, good)
            with open(good, "rb") as f, open(bad, "wb") as g:
                g.write(f.read()[:-1])
            row = []
            for call in (lambda: penstock.load_file(bad),
                         lambda: penstock.load_file(os.path.join(folder, "missing")),
                         lambda: penstock.load_file(good, names=["none"]),
                         lambda: penstock.load_file(good, path="fault:bounce?eio=1"),
                         lambda: penstock.load_file(good, device=0, require="no-cpu-copy",
                                                    path="bounce"),
                         lambda: penstock.load_into(good, {"none": bytearray(3)}),
                         lambda: penstock.save_file(ARRAYS, os.path.join(folder, "no", "a")),
                         lambda: penstock.File(os.path.join(folder, "missing"))):
                with self.assertRaises(penstock.PenstockError) as caught:
                    call()
                row.append(str(caught.exception).replace(folder, "FOLDER"))
            texts.append(row)
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0][0], f"FOLDER/bad.safetensors: tensor '{name}': the file is "
                         "truncated: the tensors need 400 bytes, it has 399 (at byte 10)")
        for text in texts[0]:
            self.assertEqual(text.count("FOLDER"), 1, text)

    def test_null_in_long_text(self):
        """A message about a NUL quotes only the part of the text around the NUL."""
        for before, after in ((0, 5000), (5000, 5000), (5000, 0)):
            for call in (penstock.load_file, lambda path: penstock.load_file(os.fsencode(path))):
                with self.assertRaisesRegex(ValueError, rf"position {before + 1}\b.*00") as caught:
                    call("/" + "a" * before + "\0" + "b" * after)
                self.assertLess(len(str(caught.exception)), 160)

    def test_unknown_device(self):
        """The message about an unknown device names the devices as Python's callers write them."""
        with self.assertRaisesRegex(penstock.PenstockError, r"'mps'.* use 'cpu', 'cuda:N'") as told:
            penstock.load_file(FILE, device="mps")
        self.assertEqual((told.exception.errno, told.exception.reason), (errno.ENODEV, "no-device"))

    def test_negative_numbers(self):
        """A number out of range raises ValueError with the argument's name."""
        model = penstock.Model(FILE)
        for name, call in (
                ("rank", lambda: penstock.Group("a", -1, 1)),
                ("ranks", lambda: penstock.Group("a", 0, -1)),
                ("ranks", lambda: penstock.Group("a", 0, 1 << 40)),
                ("window", lambda: penstock.Group("a", 0, 1, window=-1)),
                ("windows", lambda: penstock.Group("a", 0, 1, windows=-1)),
                ("host", lambda: penstock.Group("a", 0, 1, host=-1)),
                ("hosts", lambda: penstock.Group("a", 0, 1, hosts=-2)),
                ("reads_max", lambda: penstock.Group("a", 0, 1, reads_max=-1)),
                ("timeout", lambda: penstock.Group("a", 0, 1, timeout=-1)),
                ("timeout", lambda: penstock.Group("a", 0, 1, timeout=float("nan"))),
                ("stall", lambda: penstock.Group("a", 0, 1, stall=float("inf"))),
                ("jitter", lambda: penstock.Group("a", 0, 1, jitter=1e9)),
                ("first", lambda: model.load(framework="numpy", first=-1)),
                ("count", lambda: model.load(framework="numpy", count=-1)),
                ("align", lambda: penstock.load_file(FILE, framework="numpy", align=-4)),
                ("window", lambda: penstock.iterate(FILE, framework="numpy", window=-1)),
                ("rank", lambda: penstock.load_file(FILE, shard={"rank": -1})),
                ("heads", lambda: penstock.load_file(FILE, shard={"heads": 1 << 32}))):
            with self.assertRaisesRegex(ValueError, rf"^{name} must be a .*number.* not "):
                call()
        for call in (lambda: penstock.Group("a", "0", 1), lambda: penstock.Group("a", 0, 1.5),
                     lambda: model.load(first="1")):
            with self.assertRaises(TypeError):
                call()
        penstock.Group("a", numpy.int64(0), numpy.int32(1)).close()

    def test_save_options(self):
        """save_file passes its arguments `require`, `durable` and `effort` to the library."""
        out, asked = os.path.join(TMP, "options.safetensors"), []
        with self.assertRaises(penstock.ClassRefusedError):
            penstock.save_file({"a": penstock.allocate("U8", (3,), 0)}, out,
                               require="direct")
        self.assertFalse(os.path.exists(out))
        library = types.SimpleNamespace(
            penstock_weights_save=lambda _path, _table, _count, opts, _report:
            asked.append((opts.durable, opts.effort)) or 0)
        with unittest.mock.patch.object(penstock._api, "lib", library):
            for how in ({}, {"durable": True}, {"effort": "fast"}):
                penstock.save_file(ARRAYS, out, **how)
        self.assertEqual(asked, [(0, 0), (1, 0), (0, 1)])

    def test_save(self):
        out = os.path.join(TMP, "never.safetensors")
        for tensors, kind in ((["a"], ValueError), ({"a": object()}, TypeError),
                              ({"a": numpy.array(["x"])}, TypeError),
                              ({"__metadata__": ARRAYS["row"]}, penstock.PenstockError)):
            with self.assertRaises(kind) as caught:
                penstock.save_file(tensors, out)
            self.assertIsInstance(caught.exception, (ValueError, OSError))
        with self.assertRaisesRegex(ValueError, "^a: "):
            penstock.save_file({"a": 1, "b": ARRAYS["row"]}, out)
        self.assertFalse(os.path.exists(out))

    def test_destinations(self):
        """The error for a destination that does not fit names the file and the tensor."""
        box, read_only = ARRAYS["box"], numpy.zeros(300, numpy.int16)
        read_only.flags.writeable = False

        class Unexportable:
            def __dlpack__(self, **_):
                raise BufferError("cannot export")

        for name, value, kind, words in (
                ("row", memoryview(bytearray(1200)).cast("h")[::2], ValueError,
                 "not contiguous"),
                ("row", 1, TypeError, "type int is not a tensor"),
                ("row", Unexportable(), BufferError, "cannot export"),
                ("row", read_only, TypeError, "read-only"),
                ("row", numpy.zeros(299, numpy.int16), ValueError, "does not fit"),
                ("row", numpy.zeros(300, numpy.int32), TypeError, "dtype I16"),
                ("row", numpy.zeros(600, numpy.int16)[::2], ValueError,
                 "last dimension are not contiguous"),
                ("box", numpy.zeros(box.shape[::-1], box.dtype).T, ValueError,
                 "last dimension are not contiguous"),
                ("box", (box.copy(), 6), IndexError, "index 6"),
                ("box", (box.copy(), [1, 2]), TypeError, "numbers and ranges"),
                ("box", (box.copy(), numpy.s_[::2]), ValueError, "step of 1"),
                ("box", (box.copy(), 1, 2), TypeError, "must be .destination, index")):
            with self.assertRaises(kind) as caught:
                penstock.load_into(FILE, {name: value})
            self.assertRegex(str(caught.exception),
                             f"^{re.escape(FILE)}: tensor '{name}': .*{words}")

    def test_arguments(self):
        """Wrong arguments raise ValueError or TypeError before the C library is called."""
        out, row = os.path.join(TMP, "null.safetensors"), ARRAYS["row"]
        for call in (lambda: penstock.load_file(FILE + "\0"),
                     lambda: penstock.load_file(FILE, names=["ro\0w"]),
                     lambda: penstock.load_file(FILE, names=[]),
                     lambda: penstock.load_file(FILE, device="cuda:0\0"),
                     lambda: penstock.save_file({"a": row}, out + "\0x"),
                     lambda: penstock.save_file({"a\0b": row}, out),
                     lambda: penstock.save_file({"a": row}, out, {"k": "v\0w"}),
                     lambda: penstock.save_file({"a": row}, out, require="best"),
                     lambda: penstock.Group("a\0b", 0, 1),
                     lambda: penstock.allocate("F99", (3,)),
                     lambda: penstock.allocate("F32", (3, -1))):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(ValueError):
            penstock.save_file({"half \udcff": row}, out)
        for metadata in ({"k": 1}, {1: "v"}, {"k": b"v"}, [("k", "v")], "k"):
            with self.assertRaises(TypeError):
                penstock.save_file({"a": row}, out, metadata)
        with self.assertRaisesRegex(TypeError, "not 1"):
            penstock.save_file({1: row}, out)
        for call, kind in ((penstock.load_file, "BufferedReader"), (penstock.iterate, "int")):
            with open(FILE, "rb") as f, self.assertRaisesRegex(TypeError, kind):
                call(f if kind == "BufferedReader" else 3)
            # The argument may be a generator of paths.
            self.assertEqual(len(list(call(path for path in [FILE]))), len(ARRAYS))
        with self.assertRaises(TypeError):
            penstock.safe_open(FILE, "np", best=True)
        for names in ("row", ["row"], ("r*",), {"row": 1}):
            self.assertEqual(list(penstock.load_file(FILE, names=names)), ["row"])
        self.assertEqual(penstock.load_file(FILE.encode()).keys(), ARRAYS.keys())
        self.assertEqual([n for n in os.listdir(TMP) if n.startswith("null")], [])

    def test_safetensor_error(self):
        """Where the safetensors package raises SafetensorError, Penstock's error is a
        SafetensorError, too, even after pickling. Neither package raises SafetensorError for a
        missing file."""
        bad = os.path.join(TMP, "bad2.safetensors")
        with open(bad, "wb") as f:
            f.write(b"\1\0\0\0\0\0\0\0{")
        with safetensors.safe_open(FILE, "np") as theirs, penstock.safe_open(FILE, "np") as ours:
            pass
        for ask, kind in ((lambda f, m: m.safe_open(bad, "np"), penstock.FormatError),
                          (lambda f, m: m.safe_open(FILE, "crayon"), ValueError),
                          (lambda f, m: m.safe_open(FILE, "np", device="tape"), OSError),
                          (lambda f, m: f.keys(), ValueError),
                          (lambda f, m: f.get_tensor("box"), ValueError),
                          (lambda f, m: m.safe_open(FILE, "np").get_tensor("no"),
                           penstock.NotFoundError),
                          (lambda f, m: m.safe_open(FILE, "np").get_slice("box")[6], IndexError),
                          (lambda f, m: m.safe_open(FILE, "np").get_slice("box")["x"], TypeError),
                          (lambda f, m: m.safe_open(FILE, "np").get_slice("box")[[1, 2]],
                           TypeError)):
            with self.assertRaises(safetensors.SafetensorError):
                ask(theirs, safetensors)
            with self.assertRaises(safetensors.SafetensorError) as caught:
                ask(ours, penstock)
            self.assertIsInstance(caught.exception, kind)
            # Programs search for words in args[0], where SafetensorError has its message.
            self.assertEqual(caught.exception.args, (str(caught.exception),))
            again = pickle.loads(pickle.dumps(caught.exception))
            self.assertEqual(str(again), str(caught.exception))
            self.assertIsInstance(again, kind)
            self.assertIsInstance(again, safetensors.SafetensorError)
            self.assertEqual(again.args, caught.exception.args)
        with self.assertRaises(FileNotFoundError) as missing:
            penstock.safe_open(os.path.join(TMP, "missing"), "np")
        self.assertNotIsInstance(missing.exception, safetensors.SafetensorError)
        with self.assertRaises(penstock.FormatError) as caught:
            penstock.load_file(bad)
        again, first = pickle.loads(pickle.dumps(caught.exception)), caught.exception
        for name in ("errno", "reason", "path", "tensor", "offset"):
            self.assertEqual(getattr(again, name), getattr(first, name))
        indices = numpy.s_[numpy.int64(2), 1:3], numpy.array([True] * 6), numpy.array([0, 1])
        with penstock.safe_open(FILE, "np") as f:
            self.assertTrue(numpy.array_equal(f.get_slice("box")[indices[0]],
                                              ARRAYS["box"][indices[0]]))
            for index in indices[1:]:
                with self.assertRaises(TypeError):
                    f.get_slice("box")[index]

    def test_save_other_layouts(self):
        """save_file writes the elements of every array contiguously and in little-endian order,
        even if the array has gaps or another byte order."""
        box = ARRAYS["box"]
        arrays = {"t": box.T, "gaps": box[:, ::2], "big": box.astype(">i4"),
                  "same": numpy.broadcast_to(numpy.int8(3), (5,)), "a": box, "b": box,
                  "dot": numpy.array(7, ">f8")}
        out = os.path.join(TMP, "rows.safetensors")
        penstock.save_file(arrays, out)
        got = safetensors.numpy.load_file(out)
        self.assertEqual({n: (v.tolist(), v.dtype.newbyteorder("=")) for n, v in arrays.items()},
                         {n: (v.tolist(), v.dtype) for n, v in got.items()})


if __name__ == "__main__":
    tap.main()
