# SPDX-License-Identifier: Apache-2.0
"""Compares penstock.torch's save and load of single files with torch.save and torch.load. Each
must read what the other wrote, for random objects. Also tests devices, files that only
torch.load can read, and damaged files. Needs torch, so only make test-all runs it."""

import collections
import copy
import copyreg
import errno
import io
import os
import pickle
import random
import tempfile
import threading
import unittest
import warnings
import zipfile
from unittest import mock

import torch
from hypothesis import given, settings, strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import penstock
from penstock import _torch_archive, _torch_file as ours, _zip
import tap

# torch warns about sparse and quantized tensors and typed storages.
warnings.simplefilter("ignore")
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
          torch.float8_e5m2, torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8,
          torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def can_save(dtype):
    """Returns whether torch.save accepts the dtype. Before torch 2.5, it refuses uint16."""
    try:
        torch.save(torch.zeros(1, dtype=dtype), io.BytesIO())
    except KeyError:
        return False
    return True


DTYPES = [dtype for dtype in DTYPES if can_save(dtype)]
# With weights_only, torch 2.4 refuses to load objects of type bytes.
OLD = torch.__version__.startswith("2.4.")
LONG = 1 << 16


class Tagged(torch.Tensor):
    """A tensor subclass."""


class Doubled:
    """An object that computes with its tensor when it is unpickled."""

    def __init__(self, values):
        self.values = values

    def __setstate__(self, state):
        self.values, self.total = state["values"], float(state["values"].sum())


class Evil:
    """An object whose pickle creates a file."""

    def __reduce__(self):
        return open, (os.path.join(TMP, "evil"), "w")


def path(name):
    return os.path.join(TMP, name)


def make(seed, dtype, count):
    """Returns a tensor of `count` random elements."""
    numbers = random.Random(seed).randbytes(count * dtype.itemsize)
    if dtype == torch.bool:
        numbers = bytes(b & 1 for b in numbers)
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(numbers), dtype=dtype)


def content(tensor):
    return bytes(tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
                 .view(torch.uint8).numpy()) if tensor.numel() else b""


def repack(name, new_name, method):
    """Copies the records of an archive to a new archive, without the gaps that align the
    payloads."""
    with zipfile.ZipFile(path(name)) as old, zipfile.ZipFile(path(new_name), "w", method) as new:
        for one in old.infolist():
            new.writestr(one.filename, old.read(one.filename))


class Base(unittest.TestCase):
    """Base of the test classes below: compares objects and loads files."""

    def same(self, got, want, seen=None):
        """Asserts that two objects are equal, and that tensors which share memory in one object
        also share memory in the other object."""
        seen = {} if seen is None else seen
        self.assertIs(type(got), type(want))
        if isinstance(want, torch.Tensor):
            self.same_tensor(got, want, seen)
        elif isinstance(want, dict):
            self.assertEqual(list(got), list(want))
            for key, value in want.items():
                self.same(got[key], value, seen)
        elif isinstance(want, (list, tuple)):
            self.assertEqual(len(got), len(want))
            for a, b in zip(got, want):
                self.same(a, b, seen)
        else:
            self.assertEqual(got, want)

    def same_tensor(self, got, want, seen):
        self.assertEqual((got.dtype, got.shape, got.layout, got.requires_grad, got.is_quantized),
                         (want.dtype, want.shape, want.layout, want.requires_grad,
                          want.is_quantized))
        if want.layout != torch.strided:
            self.assertTrue(torch.equal(got.to_dense(), want.to_dense()))
            return
        if want.is_quantized:
            self.assertTrue(torch.equal(got.int_repr(), want.int_repr()))
            self.assertEqual(got.q_scale(), want.q_scale())
            return
        self.assertEqual((got.stride(), got.storage_offset(), got.is_conj()),
                         (want.stride(), want.storage_offset(), want.is_conj()))
        self.assertEqual(content(got), content(want))
        a, b = got.untyped_storage(), want.untyped_storage()
        self.assertEqual(a.nbytes(), b.nbytes())
        if a.nbytes():
            self.assertEqual(seen.setdefault(("got", a.data_ptr()), b.data_ptr()), b.data_ptr())
            self.assertEqual(seen.setdefault(("want", b.data_ptr()), a.data_ptr()), a.data_ptr())

    def directly(self, name, *args, **how):
        """Loads a file and returns the object. Asserts that Penstock has read the tensors, not
        torch.load."""
        report = ours.FileReport()
        loaded = ours.load(path(name), *args, report=report, **how)
        self.assertIsNone(report.fallback)
        return loaded

    def both_ways(self, obj, **how):
        ours.save(obj, path("o.pt"), durable=False)
        torch.save(obj, path("t.pt"))
        for mmap in (False, True):
            self.same(torch.load(path("o.pt"), mmap=mmap, **how), obj)
        for name in ("o.pt", "t.pt"):
            self.same(self.directly(name, **how), obj)
            self.same(self.directly(name, lambda storage, location: storage, **how), obj)


@st.composite
def objects(draw):
    """Generates an object of tensors, some of which share a storage (their memory), and of
    plain values."""
    wholes = [make(draw(st.integers(0, 9)), draw(st.sampled_from(DTYPES)),
                   draw(st.sampled_from([0, 1, 2, 7, 24, 1000, 30000])))
              for _ in range(draw(st.integers(1, 4)))]

    @st.composite
    def tensors(draw):
        whole = draw(st.sampled_from(wholes))
        kind = draw(st.sampled_from(["whole", "part", "grid", "turned", "point", "parameter",
                                     "grown"]))
        n = whole.numel()
        if kind == "part":
            first = draw(st.integers(0, n))
            return whole[first:draw(st.integers(first, n))]
        if kind in ("grid", "turned") and n % 2 == 0:
            grid = whole.view(2, n // 2)
            return grid.t() if kind == "turned" else grid[:, ::2]
        if kind == "point" and n:
            return whole[n - 1]
        if kind == "grown":
            return whole[:1].expand(3, min(n, 1))
        if kind == "parameter":
            return torch.nn.Parameter(whole, whole.dtype.is_floating_point and
                                      draw(st.booleans()))
        return whole

    leaves = st.one_of(tensors(), st.integers(), st.text(max_size=4), st.none(), st.booleans(),
                       st.floats(allow_nan=False), st.binary(min_size=1, max_size=3))
    keys = st.one_of(st.integers(0, 9), st.text(max_size=3))
    return draw(st.recursive(leaves, lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)), max_leaves=12))


class Files(Base):
    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(objects())
    def test_random(self, obj):
        """Each package loads the objects that the other package saves, with the same views and the
        same shared memory."""
        self.both_ways(obj, weights_only=not OLD)

    def test_kinds(self):
        """Saves and loads tensors of all dtypes, and the kinds of tensors for which torch has
        special pickle formats."""
        x, big = torch.randn(40, 30), torch.randn(300, 200)
        obj = {str(t): make(3, t, 50000) for t in DTYPES}
        obj |= {"sparse": x.to_sparse(), "csr": x.to_sparse_csr(), "view": big[10:20, 5:],
                "turned": big.t(), "conj": torch.randn(9, dtype=torch.complex64).conj(),
                "quantized": torch.quantize_per_tensor(x, 0.1, 3, torch.qint8),
                "parameter": torch.nn.Parameter(big), "empty": torch.zeros(0, 4),
                "point": torch.tensor(2.5), "size": big.shape, "dtype": torch.bfloat16,
                "storage": None, "meta": None}
        self.both_ways(obj)
        obj["meta"] = torch.empty(3, 4, device="meta")
        ours.save(obj, path("m.pt"))
        self.assertEqual(self.directly("m.pt")["meta"].device.type, "meta")

    def test_code(self):
        """A class whose unpickling uses its tensors gets the tensors' bytes. A file can run no
        code that it could not run in torch.load."""
        obj = [Doubled(torch.ones(30000)), torch.randn(5).as_subclass(Tagged),
               torch.nn.Linear(3, 3)]
        ours.save(obj, path("c.pt"))
        torch.save(obj, path("t.pt"))
        for got in (self.directly("c.pt", weights_only=False), torch.load(path("c.pt"),
                    weights_only=False), self.directly("t.pt", weights_only=False)):
            self.assertEqual(got[0].total, 30000)
            self.same(got[1], obj[1])
            self.same(got[2].state_dict(), obj[2].state_dict())
        for save in (ours.save, torch.save):
            save({"a": torch.ones(3), "b": Evil()}, path("e.pt"))
            with self.assertRaises(pickle.UnpicklingError):
                ours.load(path("e.pt"))
            self.assertFalse(os.path.exists(path("evil")))

    def test_layout(self):
        """A payload is the bytes of one tensor's storage. In the file, payloads of 64 KiB and more
        begin at multiples of 4096 bytes, all others at multiples of 64. In host memory, a payload
        has the same offset within a page as in the file, so that O_DIRECT reads can fill it."""
        obj = {"a": make(1, torch.uint8, LONG), "b": make(2, torch.uint8, LONG - 1),
               "c": make(3, torch.float32, LONG)}
        report = ours.save(obj, path("l.pt"))
        self.assertEqual(report.bytes, os.path.getsize(path("l.pt")))
        with zipfile.ZipFile(path("l.pt")) as archive, open(path("l.pt"), "rb") as f:
            at = {}
            for one in archive.infolist():
                f.seek(one.header_offset + 26)
                lengths = f.read(4)
                at[one.filename] = one.header_offset + 30 + int.from_bytes(lengths[:2], "little") \
                    + int.from_bytes(lengths[2:], "little")
        self.assertEqual([at[f"archive/data/{i}"] % n for i, n in enumerate((4096, 64, 4096))],
                         [0, 0, 0])
        got = self.directly("l.pt")
        self.assertEqual([got[name].data_ptr() % 4096 for name in "ac"], [0, 0])
        torch.save(obj, path("t.pt"))
        where, got = _torch_archive.Contents(path("t.pt")).records, self.directly("t.pt")
        self.assertEqual(got["c"].data_ptr() % 4096, where["data/2"].offset % 4096)

    def test_large(self):
        """Records of 4 GiB and more are read and written, although their length needs a ZIP64
        field."""
        big = torch.empty((1 << 32) + 5, dtype=torch.uint8)
        big[::4096], big[-5:] = 7, torch.arange(5)
        obj = {"big": big, "after": torch.arange(70000)}
        for save in (ours.save, torch.save):
            save(obj, path("big.pt"))
            got = self.directly("big.pt")
            self.assertTrue(torch.equal(got["big"][::4096], big[::4096]))
            self.assertTrue(torch.equal(got["big"][-5:], big[-5:]))
            self.assertTrue(torch.equal(got["after"], obj["after"]))
            del got
            back = torch.load(path("big.pt"), mmap=True)
            self.assertTrue(torch.equal(back["big"][-5:], big[-5:]))
            self.assertTrue(torch.equal(back["after"], obj["after"]))
        os.unlink(path("big.pt"))

    def test_two_dtypes(self):
        """save refuses memory that is shared by tensors of two dtypes, as torch.save does."""
        x = torch.randn(4)
        for save in (torch.save, ours.save):
            with self.assertRaisesRegex(RuntimeError, "different types"):
                save([x, x.view(torch.int32)], path("never.pt"))
        self.assertRaises(FileNotFoundError, os.stat, path("never.pt.tmp"))

    def test_pickle_module(self):
        """A program may bring its own pickle module, and choose the protocol."""
        class Module:
            Pickler, Unpickler = pickle.Pickler, pickle.Unpickler
            __name__ = "mine"
        obj = {"a": torch.arange(30000), "b": collections.OrderedDict(c=1)}
        for protocol in (2, 4, 5):
            ours.save(obj, path("p.pt"), pickle_module=Module, pickle_protocol=protocol)
            self.same(torch.load(path("p.pt"), weights_only=False), obj)
            self.same(self.directly("p.pt", weights_only=False, pickle_module=Module), obj)

    def test_memory(self):
        """The tensors of a loaded file can be changed, shared, copied and saved independently
        of each other."""
        ours.save({"a": torch.zeros(50000), "b": torch.zeros(50000)}, path("f.pt"))
        got = self.directly("f.pt")
        got["a"].add_(1)
        self.assertEqual(float(got["b"].sum()), 0)
        self.assertEqual(got["a"].untyped_storage().nbytes(), 200000)
        self.same(copy.deepcopy(got), got)
        out = io.BytesIO()
        torch.save(got["a"], out)
        self.assertLess(len(out.getvalue()), 210000)
        self.assertTrue(got["a"].share_memory_().is_shared())
        self.assertEqual(float(got["a"].sum()), 50000)
        self.same(self.directly("f.pt")["b"], got["b"])


class Places(Base):
    """Tests the argument map_location."""

    def setUp(self):
        self.obj = {"a": torch.randn(30000), "b": torch.randn(7), "e": torch.zeros(0)}
        ours.save(self.obj, path("a.pt"))

    def test_names(self):
        for place in (None, "cpu", torch.device("cpu"), {"cpu": "cpu"}, {"cuda:0": "cpu"}):
            self.same(self.directly("a.pt", place), self.obj)
        for place in ("meta", torch.device("meta"), {"cpu": "meta"}):
            got = self.directly("a.pt", place)
            self.assertEqual({t.device.type for t in got.values()}, {"meta"})

    def test_function(self):
        """If map_location is a function, it gets each storage with its bytes. It may return
        another storage or None."""
        seen = []

        def choose(storage, location):
            seen.append((location, bytes(storage.tolist())))
            return storage.clone() if storage.nbytes() > 100 else None

        self.same(self.directly("a.pt", choose), self.obj)
        self.assertEqual(seen, [("cpu", content(t)) for t in self.obj.values()])

    def test_no_gpu(self):
        """Tensors of a GPU that does not exist give the same error as in torch.load."""
        with mock.patch.object(torch.serialization, "location_tag", lambda _: "cuda:77"):
            ours.save(self.obj, path("g.pt"))
        with self.assertRaisesRegex(RuntimeError, "deserialize object on"):
            ours.load(path("g.pt"))
        self.same(self.directly("g.pt", "cpu"), self.obj)
        self.same(self.directly("g.pt", {"cuda:77": "cpu"}), self.obj)


class Other(Base):
    """Tests files that only torch.load can read. penstock.torch.load passes them to torch.load, and
    reports why."""

    def fallback(self, words, obj, place=None, **how):
        report = ours.FileReport()
        with self.assertLogs("penstock", "DEBUG") as logs:
            self.same(ours.load(path("x.pt"), place, report=report, **how), obj)
        self.assertRegex(report.fallback, words)
        self.assertIn(report.fallback, logs.output[0])

    def refused(self, words, obj, place=None, **how):
        """Asserts what fallback() asserts, and that penstock.torch.load refuses the file if the
        caller requires class direct."""
        self.fallback(words, obj, place, **how)
        with self.assertRaisesRegex(penstock.ClassRefusedError, words):
            ours.load(path("x.pt"), place, require="direct", **how)

    def test_formats(self):
        obj = {"a": torch.randn(30000)}
        torch.save(obj, path("x.pt"), _use_new_zipfile_serialization=False)
        self.refused("not a zip archive", obj)
        torch.save(obj, path("t.pt"))
        repack("t.pt", "x.pt", zipfile.ZIP_DEFLATED)
        self.assertEqual(self.unread("x.pt"), "it has compressed records")
        repack("t.pt", "x.pt", zipfile.ZIP_STORED)
        # Penstock reads the file, although its payloads are not aligned.
        self.same(self.directly("x.pt"), obj)
        with zipfile.ZipFile(path("x.pt"), "a") as new:
            new.comment = b"made elsewhere"
        self.refused("not as torch.save writes it", obj)

    def unread(self, name):
        """Returns the reason why penstock.torch.load would pass a file to torch.load."""
        with self.assertRaises(_torch_archive.Unsuited) as caught:
            _torch_archive.Contents(path(name))
        return str(caught.exception)

    def test_byte_order(self):
        obj = {"a": torch.arange(30000)}
        with mock.patch.object(ours.sys, "byteorder", "big"):
            ours.save(obj, path("x.pt"))
        swapped = {"a": torch.from_numpy(obj["a"].numpy().byteswap())}
        self.refused("byte order is big", swapped)

    def test_script(self):
        torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), path("t.pt"))
        self.assertIn("compressed", self.unread("t.pt"))
        repack("t.pt", "x.pt", zipfile.ZIP_STORED)
        self.assertIn("TorchScript", self.unread("x.pt"))

    def test_rebuilt_on_device(self):
        """torch.load rebuilds wrapper subclasses on the device that map_location names."""
        pair = TwoTensor(torch.randn(30000), torch.randn(30000))
        torch.save(pair, path("x.pt"))
        report = ours.FileReport()
        got = ours.load(path("x.pt"), "cpu", weights_only=False, report=report)
        self.assertIn("rebuilds on a device itself", report.fallback)
        self.assertTrue(torch.equal(got.a, pair.a) and torch.equal(got.b, pair.b))

    def test_fake_mode(self):
        """In torch's fake tensor mode, tensors have no memory into which Penstock could
        read."""
        ours.save({"a": torch.randn(30000)}, path("x.pt"))
        with FakeTensorMode():
            report = ours.FileReport()
            self.assertIsInstance(ours.load(path("x.pt"), report=report)["a"], FakeTensor)
        self.assertRegex(report.fallback, "rebuilds its tensors|maps the file in an unknown way")

    def test_extension_codes(self):
        """If the process has registered extension codes (copyreg), an unpickler does not call
        find_class for all classes. So penstock.torch.load lets torch.load read the file."""
        obj = {"a": torch.randn(30000)}
        ours.save(obj, path("x.pt"))
        copyreg.add_extension("decimal", "Decimal", 77)
        try:
            self.fallback("extension codes", obj)
        finally:
            copyreg.remove_extension("decimal", "Decimal", 77)
        self.same(self.directly("x.pt"), obj)

    def test_not_mapped(self):
        """To rebuild the object, penstock.torch.load calls torch.load with mmap=True. If torch.load
        cannot map the file, or does not map it as expected, penstock.torch.load lets torch.load
        read the file."""
        obj = {"a": torch.randn(30000), "b": torch.randn(30000)}
        ours.save(obj, path("x.pt"))
        real = torch.load
        for error in (RuntimeError("unable to mmap 5 bytes"), _torch_archive.Unsuited("mapped")):
            def refuse(*args, mmap=False, **how):
                if mmap:
                    raise error
                return real(*args, **how)
            with mock.patch.object(torch, "load", refuse):
                self.fallback("mapped", obj)
        with mock.patch.object(ours._zip, "PAGE", 4096 * 7919):
            with self.assertLogs("penstock", "DEBUG"):
                self.same(ours.load(path("x.pt")), obj)

    def test_missing(self):
        with self.assertRaises(penstock.NotFoundError) as caught:
            ours.load(path("none.pt"))
        self.assertEqual(caught.exception.path, path("none.pt"))
        for wrong in (io.BytesIO(), 3):
            self.assertRaises(TypeError, ours.load, wrong)
            self.assertRaises(TypeError, ours.save, {}, wrong)
        self.assertRaises(ValueError, ours.load, path("x.pt"), require="never")
        self.assertRaises(ValueError, ours.save, {}, path("x.pt"), effort="never")


class Damage(Base):
    def setUp(self):
        self.obj = {"a": torch.randn(20000), "b": [torch.arange(9), "text", 12345]}

    def test_truncated(self):
        """For every truncation of a file, load raises an error that names the file and an
        offset in it."""
        for save in (ours.save, torch.save):
            save(self.obj, path("d.pt"))
            with open(path("d.pt"), "rb") as f:
                data = f.read()
            for end in [*range(80), *range(80, len(data) - 400, 997),
                        *range(len(data) - 400, len(data))]:
                with open(path("d.pt"), "wb") as f:
                    f.write(data[:end])
                with self.assertRaisesRegex(penstock.FormatError,
                                            r"d\.pt: at offset \d+") as caught:
                    ours.load(path("d.pt"))
                self.assertLessEqual(caught.exception.offset, end)

    def test_flipped(self):
        """The test flips a bit outside of the payloads (the tensors' bytes). load must raise an
        error or return the right object. So it must detect a change that moves a payload, or that
        changes the pickle."""
        rand = random.Random(5)
        for save in (ours.save, torch.save):
            save(self.obj, path("d.pt"))
            contents = _torch_archive.Contents(path("d.pt"))
            inside = [range(r.offset, r.offset + r.nbytes) for r in contents.records.values()]
            with open(path("d.pt"), "rb") as f:
                data = bytearray(f.read())
            outside = [i for i in range(len(data)) if not any(i in r for r in inside)]
            errors = 0
            for at in [i for i in outside if data[i]] + rand.sample(outside, 300):
                bit = 1 << rand.randrange(8)
                data[at] ^= bit
                with open(path("d.pt"), "wb") as f:
                    f.write(data)
                data[at] ^= bit
                try:
                    got = ours.load(path("d.pt"))
                except Exception as error:  # torch.load raises various exceptions.
                    self.assertNotIsInstance(error, (LookupError, TypeError, AttributeError))
                    errors += isinstance(error, penstock.FormatError)
                    continue
                try:
                    self.same(got, self.obj)
                except AssertionError as error:
                    raise AssertionError(f"bit {bit:#x} of byte {at} went unnoticed") from error
            self.assertGreater(errors, 300)

    def test_header(self):
        """The local header of a record is valid only if it has the record's name, and if the
        lengths of its extra fields add up to the length that the header states for them."""
        archive = _zip.Archive()
        archive.add_payload("data/0", LONG, None)
        header = archive.pieces[0][1]
        self.assertTrue(_zip.names(header, "data/0") and _zip.names(header[:200], "data/0"))
        self.assertFalse(_zip.names(header, "data/1"))
        length = int.from_bytes(header[28:30], "little")
        for wrong in (length - 8, length + 8, 0):
            changed = header[:28] + wrong.to_bytes(2, "little") + header[30:] + bytes(8)
            self.assertEqual(_zip.names(changed, "data/0"), wrong == 0)

    def test_references(self):
        """A pickle that refers to records which the archive does not have, or has with another
        length, is an error. It is raised before any payload is read."""
        ours.save(self.obj, path("d.pt"))
        real, fake = _torch_archive.scan, _torch_archive.Reference
        for wrong, words in ((fake("data/7", 8, "cpu"), "data/7, which the archive does not have"),
                             (fake("data/0", 80001, "cpu"), "has 80000 bytes, but its storage has"
                              " 80001")):
            with mock.patch.object(_torch_archive, "scan", lambda p: ([wrong], real(p)[1])), \
                    self.assertRaisesRegex(penstock.FormatError, words):
                ours.load(path("d.pt"))

    def test_changed(self):
        """A file that is replaced during the load is an error."""
        ours.save(self.obj, path("d.pt"))
        real = ours.read_part

        def read_part(*args, **how):
            report = real(*args, **how)
            ours.save({"a": 1}, path("d.pt"))
            return report

        with mock.patch.object(ours, "read_part", read_part), \
                self.assertRaisesRegex(penstock.PenstockError, "changed while") as caught:
            ours.load(path("d.pt"))
        self.assertEqual(caught.exception.reason, "file-changed")


class Control(Base):
    """Tests progress, cancelled calls, and saves that fail."""

    def test_progress(self):
        obj, told = {"a": torch.zeros(3 << 20)}, []
        ours.save(obj, path("p.pt"), progress=lambda *at: told.append(at))
        size = os.path.getsize(path("p.pt"))
        self.assertEqual((told[0], told[-1]), ((0, size), (size, size)))
        told.clear()
        self.directly("p.pt", progress=lambda *at: told.append(at))
        self.assertEqual((told[0], told[-1]), ((0, 12 << 20), (12 << 20, 12 << 20)))

    def test_stopped(self):
        stop = threading.Event()
        ours.save({"a": 1}, path("s.pt"))
        ours.save({"a": torch.zeros(30000), "b": torch.zeros(30000)}, path("t.pt"))

        def once(storage, location):
            stop.set()  # The second storage is not read.
            return storage

        for call in (lambda: ours.load(path("t.pt"), once, stop=stop),
                     lambda: ours.load(path("t.pt"), stop=stop),
                     lambda: ours.save({"a": torch.zeros(30000)}, path("s.pt"), stop=stop)):
            with self.assertRaises(penstock.PenstockError) as caught:
                call()
            self.assertEqual((caught.exception.errno, caught.exception.reason),
                             (errno.ECANCELED, "cancelled"))
        self.assertEqual(ours.load(path("s.pt")), {"a": 1})

    def test_failed(self):
        """A failed save leaves the older file as it was, and no other file."""
        ours.save({"a": 1}, path("s.pt"))
        before = sorted(os.listdir(TMP))
        with self.assertRaises((pickle.PicklingError, AttributeError, TypeError)):
            ours.save({"a": torch.zeros(30000), "b": lambda: 0}, path("s.pt"))
        with self.assertRaises(penstock.PenstockError):
            ours.save({"a": torch.zeros(30000)}, path("none/s.pt"))
        with self.assertRaises(penstock.PenstockError):
            ours.save({"a": torch.zeros(30000)}, path("s.pt"), path="nonesuch")
        self.assertEqual(sorted(os.listdir(TMP)), before)
        self.assertEqual(ours.load(path("s.pt")), {"a": 1})


if __name__ == "__main__":
    tap.main()
