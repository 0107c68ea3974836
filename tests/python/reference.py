# SPDX-License-Identifier: Apache-2.0
"""Compares the package with the safetensors package, the reference.

Each package reads files that the other one wrote: with every dtype, with empty and one-element
tensors, with ten thousand tensors, with headers of any length. Both packages refuse the same
files, except for two files that only Penstock refuses."""

import glob
import os
import struct
import tempfile
import unittest

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings, strategies as st

import penstock
import tap

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PLAIN = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
         "F16": "float16", "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64",
         "I64": "int64", "F64": "float64", "C64": "complex64"}
# Names in the safetensors package (the reference) for the dtypes that are not in PLAIN but whose
# elements have whole bytes.
OTHERS = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
          "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
          "F8_E5M2FNUZ": "float8_e5m2fnuz"}
SETTINGS = settings(max_examples=60, deadline=None, database=None, derandomize=True,
                    suppress_health_check=list(HealthCheck))


def path(name):
    return os.path.join(TMP, name)


def fill(dtype, shape, seed=1):
    """Returns an array of this dtype and shape, filled with random bytes."""
    count = int(numpy.prod(shape, dtype=numpy.int64))
    size = numpy.dtype(dtype).itemsize
    data = numpy.random.default_rng(seed).integers(0, 256, count * size, numpy.uint8)
    if dtype == "bool":
        data &= 1
    return data.view(dtype).reshape(shape)


def same(test, got, want):
    """Asserts that two dicts of arrays are equal: names, dtypes, shapes and bytes."""
    test.assertEqual(set(got), set(want))
    for name, value in want.items():
        test.assertEqual(got[name].dtype, value.dtype, name)
        test.assertEqual(got[name].shape, value.shape, name)
        test.assertEqual(got[name].tobytes(), value.tobytes(), name)


def both_ways(test, tensors, metadata=None):
    """Asserts that each package can read a file with these tensors that the other wrote."""
    safetensors.numpy.save_file(tensors, path("theirs.safetensors"), metadata)
    same(test, penstock.load_file(path("theirs.safetensors"), framework="numpy"), tensors)
    penstock.save_file(tensors, path("ours.safetensors"), metadata)
    same(test, safetensors.numpy.load_file(path("ours.safetensors")), tensors)
    with safetensors.safe_open(path("ours.safetensors"), "np") as f:
        test.assertEqual(f.metadata() or {}, metadata or {})
    with penstock.safe_open(path("theirs.safetensors"), "np") as f:
        test.assertEqual(f.metadata() or {}, metadata or {})


def raw(filename):
    """Reads a file with the safetensors package. Returns a dict from name to (dtype, shape,
    bytes)."""
    with open(filename, "rb") as f:
        return {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"]))
                for n, t in safetensors.deserialize(f.read())}


def raw_ours(filename):
    """Reads a file with Penstock. Returns a dict from name to (dtype, shape, bytes)."""
    return {n: (t.dtype, t.shape, bytes(t.buffer()))
            for n, t in penstock.load_file(filename, framework="dlpack").items()}


class Both(unittest.TestCase):
    def test_dtypes(self):
        both_ways(self, {name: fill(d, (3, 5)) for name, d in PLAIN.items()}, {"format": "np"})

    def test_other_dtypes(self):
        arrays = {n: fill(getattr(ml_dtypes, d), (4, 6)) for n, d in OTHERS.items()}
        penstock.save_file(arrays, path("others.safetensors"))
        want = {n: (n, (4, 6), a.tobytes()) for n, a in arrays.items()}
        self.assertEqual(raw(path("others.safetensors")), want)
        specs = {n: safetensors.TensorSpec(dtype=OTHERS[n], shape=[4, 6], data_ptr=a.ctypes.data,
                                           data_len=a.nbytes) for n, a in arrays.items()}
        safetensors.serialize_file(specs, path("others2.safetensors"))
        self.assertEqual(raw_ours(path("others2.safetensors")), want)
        same(self, penstock.load_file(path("others2.safetensors"), framework="numpy"), arrays)

    def test_below_a_byte(self):
        data = bytes(range(24))
        header = (b'{"a":{"dtype":"F4","shape":[4,6],"data_offsets":[0,12]},'
                  b'"b":{"dtype":"F6_E2M3","shape":[8],"data_offsets":[12,18]},'
                  b'"c":{"dtype":"F6_E3M2","shape":[2,4],"data_offsets":[18,24]}}')
        with open(path("small.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + data)
        self.assertEqual(raw_ours(path("small.safetensors")), raw(path("small.safetensors")))
        tensors = penstock.load_file(path("small.safetensors"), framework="dlpack")
        penstock.save_file(tensors, path("small2.safetensors"))
        self.assertEqual(raw(path("small2.safetensors")), raw(path("small.safetensors")))

    def test_nothing_and_one(self):
        both_ways(self, {"scalar": fill("float64", ()), "empty": fill("float16", (0, 7)),
                         "hollow": fill("int32", (3, 0, 2)), "one": fill("int8", (1, 1, 1))})
        both_ways(self, {"only": fill("float32", (0,))})
        both_ways(self, {}, {"nothing": "else"})

    def test_ten_thousand(self):
        both_ways(self, {f"layer.{i}.w": fill("float32", (i % 7, 3), i) for i in range(10000)})

    def test_names(self):
        both_ways(self, {"": fill("uint8", (1,)), "a\"b\\c\n\t\x01": fill("uint8", (2,)),
                         "äöü–日本語😀": fill("uint8", (3,)), "x" * 4000: fill("uint8", (4,))},
                  {"ключ": "значение\u0000".rstrip("\u0000"), "q\"": "\\"})

    def test_header_lengths(self):
        arrays = {"a": fill("float64", (5,)), "b": fill("int16", (3,)), "c": fill("uint8", (1,))}
        safetensors.numpy.save_file(arrays, path("base.safetensors"))
        with open(path("base.safetensors"), "rb") as f:
            file = f.read()
        length = struct.unpack("<Q", file[:8])[0]
        head, data = file[8:8 + length].rstrip(b" "), file[8 + length:]
        for pad in range(17):
            with open(path("odd.safetensors"), "wb") as f:
                f.write(struct.pack("<Q", len(head) + pad) + head + b" " * pad + data)
            same(self, penstock.load_file(path("odd.safetensors"), framework="numpy"),
                 safetensors.numpy.load_file(path("odd.safetensors")))
            for name, t in penstock.load_file(path("odd.safetensors"),
                                              framework="dlpack").items():
                self.assertEqual(t.ptr % arrays[name].itemsize, 0)

    @SETTINGS
    @given(st.dictionaries(st.text(max_size=12).filter(lambda n: "\0" not in n),
                           st.tuples(st.sampled_from(sorted(PLAIN.values())),
                                     st.lists(st.integers(0, 6), max_size=4)), max_size=8),
           st.dictionaries(st.text("abc ä\"", max_size=5), st.text("xyz\\\n", max_size=5),
                           max_size=3))
    def test_any(self, described, metadata):
        described.pop("__metadata__", None)
        both_ways(self, {n: fill(d, tuple(s), i) for i, (n, (d, s)) in
                         enumerate(described.items())}, metadata or None)


class Verdicts(unittest.TestCase):
    """Asserts that both packages accept a file or both refuse it."""

    # Names of the files that only Penstock refuses: two readers could interpret such a file
    # differently.
    STRICTER = {"twice", "deep"}

    def verdicts(self, data, name):
        """Reads a file with these bytes with both packages. Returns the tensors, or None if it is
        refused."""
        with open(path("verdict.safetensors"), "wb") as f:
            f.write(data)
        try:
            theirs = raw(path("verdict.safetensors"))
        except safetensors.SafetensorError:
            theirs = None
        try:
            ours = raw_ours(path("verdict.safetensors"))
        except penstock.FormatError:
            ours = None
        if name in self.STRICTER:
            self.assertIsNone(ours, name)
        else:
            self.assertEqual(ours, theirs, name)
        return ours

    def test_corpus(self):
        files = sorted(glob.glob(os.path.join(ROOT, "tests/fuzz/corpus/safetensors/*")))
        self.assertGreater(len(files), 15)
        taken = 0
        for file in files:
            with open(file, "rb") as f:
                taken += self.verdicts(f.read(), os.path.basename(file)) is not None
        self.assertGreater(taken, 5)

    @SETTINGS
    @given(st.data())
    def test_broken(self, data):
        arrays = {"a": fill("float32", (2, 2)), "b": fill("int8", (3,))}
        file = bytearray(safetensors.numpy.save(arrays, {"k": "v"}))
        head = 8 + struct.unpack("<Q", file[:8])[0]
        for _ in range(data.draw(st.integers(1, 2))):
            at = data.draw(st.integers(8, head - 1))
            file[at] = data.draw(st.sampled_from(b'{}[]",:0123456789aFU \\x'))
        self.verdicts(bytes(file), "broken")

    def test_spans(self):
        file = safetensors.numpy.save({"a": fill("float32", (4,)), "b": fill("int8", (3,))})
        for length in list(range(0, 40)) + list(range(len(file) - 20, len(file))):
            self.assertIsNone(self.verdicts(file[:length], "cut"))
        self.assertIsNone(self.verdicts(file + b"\0", "longer"))
        self.assertIsNotNone(self.verdicts(file, "whole"))


if __name__ == "__main__":
    tap.main()
