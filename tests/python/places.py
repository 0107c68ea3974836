# SPDX-License-Identifier: Apache-2.0
"""Tests load_into: destinations of many types, with and without gaps, and invalid ones. Uses
numpy arrays and the stand-in GPU, which tests/standin simulates."""

import json
import os
import sys
import types
import unittest
import unittest.mock

import numpy
import safetensors.numpy
from hypothesis import given, strategies as st

import penstock
import tap
from arrays import ARRAYS, FILE, TMP, one
from penstock import _tensor
from reference import SETTINGS, fill, same


class Into(unittest.TestCase):
    @SETTINGS
    @given(st.data())
    def test_places(self, data):
        """Any part of a tensor can be loaded into a view with gaps. The bytes in the gaps do not
        change."""
        index = tuple(data.draw(one(n).filter(lambda i: not isinstance(i, slice) or
                                              i.step in (None, 1))) for n in (6, 5, 4))
        want = ARRAYS["box"][index]
        gaps = [data.draw(st.integers(0, 2)) for _ in want.shape]
        if gaps:
            gaps[-1] = 0 if want.shape[-1] > 1 else gaps[-1]
        whole = numpy.full([n + g for n, g in zip(want.shape, gaps)], 7, numpy.int32)
        view = whole[(*(slice(0, n) for n in want.shape), ...)]
        try:
            penstock.load_into(FILE, {"box": (view, index)})
        except ValueError as error:  # The last dimension longer than 1 has gaps.
            self.assertIn("last dimension are not contiguous", str(error))
            return
        self.assertTrue(numpy.array_equal(view, want))
        whole[tuple(slice(0, n) for n in want.shape)] = 7
        self.assertTrue((whole == 7).all())

    def test_elements_below_a_byte(self):
        """Parts of tensors of 4 and 6 bits load if they begin and end at whole bytes."""
        shape = (6, 5, 8)
        for dtype, bits in (("F4", 4), ("F6_E2M3", 6)):
            data = fill("uint8", (6 * 5 * bits,)).tobytes()
            file = os.path.join(TMP, dtype + ".safetensors")
            header = json.dumps({"q": {"dtype": dtype, "shape": shape,
                                       "data_offsets": [0, len(data)]}}).encode()
            with open(file, "wb") as f:
                f.write(len(header).to_bytes(8, "little") + header + data)
            ones = numpy.unpackbits(numpy.frombuffer(data, numpy.uint8), bitorder="little")
            ones = ones.reshape(*shape, bits)
            with penstock.safe_open(file, "dlpack") as f:
                for index in (numpy.s_[:, 2], numpy.s_[1:5, 1:4], numpy.s_[:, :, 4:],
                              numpy.s_[2:4, 1:3, :4], numpy.s_[3, :, 4:8], numpy.s_[::, 0:0]):
                    want = ones[index]
                    into = penstock.allocate(dtype, want.shape[:-1])
                    penstock.load_into(file, {"q": (into, index)})
                    for got in (f.get_slice("q")[index], into):
                        self.assertEqual(got.shape, want.shape[:-1])
                        self.assertEqual(got.buffer().tobytes(),
                                         numpy.packbits(want, bitorder="little").tobytes())
                for index in (numpy.s_[:, :, 1:3], numpy.s_[0, 0, 3]):
                    with self.assertRaisesRegex(penstock.PenstockError, "whole bytes"):
                        f.get_slice("q")[index]
                with self.assertRaisesRegex(ValueError, "step of 1"):
                    f.get_slice("q")[:, :, ::7]

    def test_uneven_gaps(self):
        """Loads into a view with gaps in two dimensions, so the distance between rows varies."""
        want = {"four": fill("int16", (2, 3, 4, 5))}
        file = os.path.join(TMP, "four.safetensors")
        safetensors.numpy.save_file(want, file)
        for gaps in ((0, 1, 0), (0, 0, 1), (1, 2, 3), (0, 2, 1)):
            whole = numpy.full([n + g for n, g in zip((2, 3, 4), gaps)] + [5], 7, numpy.int16)
            view = whole[:2, :3, :4]
            penstock.load_into(file, {"four": view})
            self.assertTrue(numpy.array_equal(view, want["four"]), gaps)
            view[:] = 7
            self.assertTrue((whole == 7).all(), gaps)

    def test_foreign_tensors(self):
        """Objects that have only DLPack or only an array interface can be loaded and saved."""
        class Only:
            """An object with the given attributes only."""
            def __init__(self, **names):
                vars(self).update(names)

        class DlpackOnly:
            """A tensor that has only DLPack and uses the field byte_offset."""
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **_):
                capsule = self.tensor.__dlpack__()
                managed = list(_tensor._exported.values())[-1][0]
                managed.dl_tensor.data -= 4
                managed.dl_tensor.byte_offset = 4
                return capsule

        places = [penstock.allocate("I16", (300,), device) for device in ("cpu", 0)]
        for place in places:
            penstock.load_into(FILE, {"row": DlpackOnly(place)})
            out = os.path.join(TMP, "dlpack.safetensors")
            penstock.save_file({"row": DlpackOnly(place)}, out)
            same(self, safetensors.numpy.load_file(out), {"row": ARRAYS["row"]})
        # Destinations of jax are refused, because jax arrays are immutable.
        with unittest.mock.patch.dict(sys.modules, jax=types.SimpleNamespace(Array=DlpackOnly)):
            with self.assertRaisesRegex(TypeError, "read-only"):
                penstock.load_into(FILE, {"row": DlpackOnly(places[0])})
            penstock.save_file({"row": DlpackOnly(places[0])}, out)
        memory = numpy.zeros((300, 2), numpy.int16)
        view = memory.__array_interface__
        for changed, kind, call in (
                ({"data": (view["data"][0], True), "shape": (300,)}, TypeError,
                 lambda v: penstock.load_into(FILE, {"row": v})),
                ({"strides": (8, 4), "shape": (150, 2)}, ValueError,
                 lambda v: penstock.save_file({"row": v}, out))):
            with self.assertRaises(kind):
                call(Only(__array_interface__=view | changed, keep=memory))
        with self.assertRaises(TypeError):
            penstock.load_into(FILE, {"row": numpy.zeros(300, ">i2")})

    def test_kinds_of_places(self):
        places = {"box": numpy.zeros((6, 5, 4), numpy.int32),
                  "row": memoryview(bytearray(600)).cast("h"),
                  "dot": penstock.allocate("U8", ()), "none": numpy.zeros((0, 4), numpy.float32)}
        report = penstock.load_into(FILE, places)
        self.assertEqual(report.bytes, 480 + 600 + 1)
        self.assertEqual(bytes(places["row"]), ARRAYS["row"].tobytes())
        self.assertEqual(bytes(places["dot"].buffer()), ARRAYS["dot"].tobytes())
        self.assertTrue(numpy.array_equal(places["box"], ARRAYS["box"]))

    def test_refusals(self):
        read_only = numpy.zeros((300,), numpy.int16)
        read_only.flags.writeable = False
        for place, kind in ((numpy.zeros((299,), numpy.int16), ValueError),
                            (numpy.zeros((300,), numpy.uint16), TypeError),
                            (numpy.zeros((600,), numpy.int16)[::2], ValueError),
                            (numpy.zeros((300,), numpy.int16)[::-1], ValueError),
                            (read_only, TypeError), (memoryview(bytes(600)).cast("h"), TypeError),
                            (numpy.int16(7), ValueError), (7, TypeError)):
            with self.assertRaises(kind):
                penstock.load_into(FILE, {"row": place})
        over = numpy.lib.stride_tricks.as_strided
        for place in (numpy.zeros((6, 5, 4), numpy.int32)[::-1],
                      over(numpy.zeros((1, 5, 4), numpy.int32), (6, 5, 4), (0, 16, 4))):
            with self.assertRaisesRegex(ValueError, "overlap"):
                penstock.load_into(FILE, {"box": place})


if __name__ == "__main__":
    tap.main()
