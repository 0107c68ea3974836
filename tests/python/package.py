# SPDX-License-Identifier: Apache-2.0
"""The package itself: slices, places of the caller's, windows, devices, lifetimes,
errors, threads. Arrays are numpy's, the GPU is the stand-in."""

import asyncio
import concurrent.futures
import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

import numpy
import safetensors
import safetensors.numpy
from hypothesis import given, strategies as st

import penstock
import tap
from penstock import _cuda, _model, _tensor
from penstock._lib import open_device
from reference import SETTINGS, fill, same

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
ARRAYS = {"box": fill("int32", (6, 5, 4)), "row": fill("int16", (300,)),
          "wide": fill("int64", (64, 1000)), "dot": fill("uint8", ()),
          "none": fill("float32", (0, 4))}
FILE = os.path.join(TMP, "arrays.safetensors")
safetensors.numpy.save_file(ARRAYS, FILE, {"format": "np"})


def one(size):
    """An index of a dimension: a number, or a range."""
    ends = st.one_of(st.none(), st.integers(-size - 2, size + 2))
    return st.one_of(st.integers(-size, size - 1), st.builds(slice, ends, ends),
                     st.builds(slice, ends, ends, st.integers(1, 3)))


def indices(shape):
    return st.integers(1, len(shape)).flatmap(
        lambda n: st.tuples(*[one(size) for size in shape[:n]]))


class Open(unittest.TestCase):
    def test_shape_of_the_reference(self):
        with penstock.safe_open(FILE, framework="np") as ours, \
                safetensors.safe_open(FILE, framework="np") as theirs:
            self.assertEqual(ours.keys(), sorted(theirs.keys()))
            self.assertEqual(ours.offset_keys(), theirs.offset_keys())
            self.assertEqual(ours.metadata(), theirs.metadata())
            for name in theirs.keys():
                self.assertEqual(ours.get_tensor(name).tobytes(),
                                 theirs.get_tensor(name).tobytes())
                self.assertEqual(ours.get_slice(name).get_shape(),
                                 theirs.get_slice(name).get_shape())
                self.assertEqual(ours.get_slice(name).get_dtype(),
                                 theirs.get_slice(name).get_dtype())
            same(self, ours.get_tensors(), ARRAYS)
            for index in (numpy.s_[2:4], numpy.s_[:, 1:3], numpy.s_[1:, :, 2], numpy.s_[...],
                          []):
                got, want = ours.get_slice("box")[index], theirs.get_slice("box")[index]
                self.assertEqual((got.shape, got.tobytes()), (want.shape, want.tobytes()))

    @SETTINGS
    @given(indices((6, 5, 4)))
    def test_slices(self, index):
        with penstock.safe_open(FILE, framework="np") as f:
            got, want = f.get_slice("box")[index], ARRAYS["box"][index]
            self.assertEqual(got.shape, want.shape)
            self.assertTrue(numpy.array_equal(got, want))

    def test_slice_reads_its_rows(self):
        model = penstock.Model(FILE)
        info = model.info("wide")
        for ranges, length in (([(3, 9), (0, 1000)], 9 * 8000), ([(5, 1), (100, 50)], 400)):
            tensor = penstock.allocate("I64", [count for _, count in ranges])
            report = model.load_into(_model.pieces_of(info, ranges, _tensor.place_of(tensor),
                                                      _model.open_device("cpu")))
            self.assertEqual(report.bytes, length)
            self.assertLessEqual(report.read, length * 1.05)

    def test_ahead(self):
        many = {f"t{i:03}": fill("float32", (i, 10), i) for i in range(200)}
        file = os.path.join(TMP, "many.safetensors")
        safetensors.numpy.save_file(many, file)
        old = penstock._api.AHEAD_BYTES
        penstock._api.AHEAD_BYTES = 20000
        try:
            with penstock.safe_open(file, framework="np") as f:
                order = f.offset_keys()
                got = {name: f.get_tensor(name) for name in order}
                self.assertIsNotNone(f._thread)
                got.update({name: f.get_tensor(name) for name in order[150:50:-7] + order[60:90]})
            same(self, got, many)
        finally:
            penstock._api.AHEAD_BYTES = old

    def test_threads(self):
        """Several ask at once, in the order of the file, by slices or not: each gets what
        it asked for, and they are read together, not one by one."""
        many = {f"t{i:03}": fill("float32", (64, 2), i) for i in range(200)}
        file = os.path.join(TMP, "threads.safetensors")
        safetensors.numpy.save_file(many, file)
        loads, real = [], penstock.safe_open._load

        def load(opened, model, first, end):
            loads.append(end - first)
            return real(opened, model, first, end)

        with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 20 * 512), \
                unittest.mock.patch.object(penstock.safe_open, "_load", load), \
                penstock.safe_open(file, framework="np") as f, \
                concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = {name: pool.submit(f.get_tensor if i % 2 else f.get_slice(name).__getitem__,
                                       name if i % 2 else ...)
                     for i, name in enumerate(f.offset_keys())}
            same(self, {name: a.result() for name, a in asked.items()}, many)
        self.assertLess(len(loads), 100)

    def test_no_metadata(self):
        file = os.path.join(TMP, "bare.safetensors")
        safetensors.numpy.save_file(ARRAYS, file)
        for module in (safetensors, penstock):
            with module.safe_open(file, framework="np") as f:
                self.assertIsNone(f.metadata())

    def test_closed(self):
        """What was taken of a file while it was open reads on, as in the reference."""
        for module in (safetensors, penstock):
            with module.safe_open(FILE, framework="np") as f:
                box, wide = f.get_slice("box"), f.get_slice("wide")
            self.assertTrue(numpy.array_equal(box[1:3], ARRAYS["box"][1:3]))
            self.assertTrue(numpy.array_equal(wide[:], ARRAYS["wide"]))
            self.assertTrue(numpy.array_equal(box[:], ARRAYS["box"]))
            for ask in (f.keys, f.metadata, lambda: f.get_slice("box"),
                        lambda: f.get_tensor("box")):
                with self.assertRaisesRegex(safetensors.SafetensorError, "closed"):
                    ask()

    def test_removed(self):
        """A file that is open is read, whatever its name is by now."""
        file = os.path.join(TMP, "removed.safetensors")
        for module in (safetensors, penstock):
            safetensors.numpy.save_file(ARRAYS, file)
            with module.safe_open(file, framework="np") as f:
                os.unlink(file)
                for name, value in ARRAYS.items():
                    self.assertEqual(f.get_tensor(name).tobytes(), value.tobytes())
                self.assertEqual(f.get_slice("box")[2:].tobytes(), ARRAYS["box"][2:].tobytes())

    def test_ahead_fails(self):
        """Who asks for a tensor does not pay for one behind it that cannot be read."""
        many = {f"t{i}": fill("uint8", (4096,), i) for i in range(8)}
        file = os.path.join(TMP, "torn.safetensors")
        safetensors.numpy.save_file(many, file)
        real = penstock.safe_open._load

        def load(opened, model, first, end):
            if any(first <= i < end for i in (3, 6)):
                raise penstock.PenstockError(errno.EIO, "torn")
            return real(opened, model, first, end)

        with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 8192), \
                unittest.mock.patch.object(penstock.safe_open, "_load", load), \
                penstock.safe_open(file, framework="np") as f:
            failed = []
            for i, name in enumerate(f.offset_keys()):
                try:
                    self.assertTrue(numpy.array_equal(f.get_tensor(name), many[name]))
                except penstock.PenstockError:
                    failed.append(i)
        self.assertEqual(failed, [3, 6])

    def test_wrong_index(self):
        with penstock.safe_open(FILE, framework="np") as f:
            for index, kind in (((0, 0, 0, 0), IndexError), (6, IndexError), ("x", TypeError),
                                ((..., ...), IndexError), ([1, 2], TypeError),
                                (slice(None, None, -1), ValueError)):
                with self.assertRaises(kind):
                    f.get_slice("box")[index]
            with self.assertRaises(penstock.NotFoundError) as caught:
                f.get_tensor("no")
            self.assertEqual((caught.exception.tensor, caught.exception.path), ("no", FILE))
        with self.assertRaises(ValueError):
            f.get_tensor("box")
        with self.assertRaises(ValueError):
            penstock.safe_open(FILE, framework="tensorflow?")
        with self.assertRaises(ValueError):
            penstock.safe_open(FILE, framework="np", backend="tape")


class Into(unittest.TestCase):
    @SETTINGS
    @given(st.data())
    def test_places(self, data):
        """Any box into any view with gaps; not a byte beside it changes."""
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
        except ValueError as error:  # the last dimension that counts has gaps
            self.assertIn("do not lie together", str(error))
            return
        self.assertTrue(numpy.array_equal(view, want))
        whole[tuple(slice(0, n) for n in want.shape)] = 7
        self.assertTrue((whole == 7).all())

    def test_uneven_gaps(self):
        """Gaps behind two dimensions: no one pitch fits all rows."""
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

    def test_others_tensors(self):
        """Who has nothing but DLPack or an array interface: where it says, as it says."""
        class Only:
            """What it was given, under the names that were asked for."""
            def __init__(self, **names):
                vars(self).update(names)

        class Lent:
            """A DLPack tensor that begins four bytes behind its data."""
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **_):
                capsule = self.tensor.__dlpack__()
                managed = list(_tensor._lent.values())[-1][0]
                managed.dl_tensor.data -= 4
                managed.dl_tensor.byte_offset = 4
                return capsule

        places = [penstock.allocate("I16", (300,), device) for device in ("cpu", 0)]
        for place in places:
            penstock.load_into(FILE, {"row": Lent(place)})
            out = os.path.join(TMP, "lent.safetensors")
            penstock.save_file({"row": Lent(place)}, out)
            same(self, safetensors.numpy.load_file(out), {"row": ARRAYS["row"]})
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


class Walk(unittest.TestCase):
    def test_iterate(self):
        got = {}
        for name, value in penstock.iterate(FILE, framework="numpy", window=1):
            got[name] = value.copy()
        same(self, got, ARRAYS)

    def test_window_full(self):
        big = {f"t{i}": fill("uint8", (100000,), i) for i in range(8)}
        file = os.path.join(TMP, "big.safetensors")
        safetensors.numpy.save_file(big, file)
        held = []
        with self.assertRaises(penstock.PenstockError) as caught:
            for step in penstock.iterate(file, framework="numpy", window=250000):
                held.append(step)
        self.assertEqual(caught.exception.errno, errno.ENOBUFS)
        self.assertGreaterEqual(len(held), 2)
        for name, value in held:  # what was handed out stays what it is
            self.assertTrue(numpy.array_equal(value, big[name]))

    def test_left_early(self):
        steps = penstock.iterate(FILE, framework="dlpack", device="cuda:0")
        next(steps)
        steps.close()


class Devices(unittest.TestCase):
    def test_gpu(self):
        """Onto the GPU and from it into a file: the same bytes."""
        tensors = penstock.load_file(FILE, device="cuda:0")
        self.assertEqual(tensors["box"].__dlpack_device__(), (2, 0))
        view = tensors["box"].__cuda_array_interface__
        self.assertEqual((view["shape"], view["typestr"]), ((6, 5, 4), "<i4"))
        with self.assertRaises(AttributeError):
            _ = tensors["box"].__array_interface__
        with self.assertRaises(BufferError):
            tensors["box"].buffer()
        out = os.path.join(TMP, "from-gpu.safetensors")
        penstock.save_file(tensors, out, {"from": "gpu"})
        same(self, safetensors.numpy.load_file(out), ARRAYS)

    def test_gpu_places(self):
        place = penstock.allocate("I32", (6, 5, 4), "cuda:0")
        part = penstock.allocate("I64", (64, 100), 0)
        penstock.load_into(FILE, {"box": place,
                                  "wide": (part, (slice(None), slice(300, 400)))})
        out = os.path.join(TMP, "from-gpu2.safetensors")
        penstock.save_file({"box": place, "part": part}, out)
        got = safetensors.numpy.load_file(out)
        self.assertTrue(numpy.array_equal(got["box"], ARRAYS["box"]))
        self.assertTrue(numpy.array_equal(got["part"], ARRAYS["wide"][:, 300:400]))

    def test_neighbours(self):
        """Two allocations of which one ends where the other begins, as in the file: no
        copy goes across. Read, by a group, and written."""
        half = 52 * 4096
        arrays = {n: fill("uint8", (half,), i) for i, n in enumerate("ab")}
        file = os.path.join(TMP, "neighbours.safetensors")
        safetensors.numpy.save_file(arrays, file)
        made = sorted((penstock.allocate("U8", (half,), 0) for _ in range(16)),
                      key=lambda t: t.ptr)
        pairs = [p for p in zip(made, made[1:]) if p[0].ptr + half == p[1].ptr]
        if not pairs:
            self.assertEqual(os.environ.get("PENSTOCK_STANDIN"), "0")
            self.skipTest("this driver puts no two allocations side by side")
        places, out = dict(zip("ab", pairs[0])), os.path.join(TMP, "neighbours2.safetensors")
        for group in (None, penstock.Group("neighbours", 0, 1)):
            penstock.load_into(file, places, group)
            penstock.save_file(places, out)
            same(self, safetensors.numpy.load_file(out), arrays)

    def test_dlpack(self):
        tensors = penstock.load_file(FILE, framework="dlpack")
        for how in ({"copy": True}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                tensors["box"].__dlpack__(**how)
        tensors["box"].__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False, stream=None)
        array = numpy.from_dlpack(tensors["box"])
        self.assertTrue(numpy.array_equal(array, ARRAYS["box"]))
        unused = tensors["row"].__dlpack__()
        again = penstock.save_file({"box": array, "mine": tensors["row"]},
                                   os.path.join(TMP, "again.safetensors"))
        self.assertIsNone(again)
        del tensors, unused
        gc.collect()
        self.assertTrue(numpy.array_equal(array, ARRAYS["box"]))
        del array
        gc.collect()
        self.assertEqual(_tensor._lent, {})

    def test_buffers(self):
        """As numpy sees a tensor: by its array interface, from Python 3.12 on by its buffer."""
        kinds = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32",
                 "uint64", "int64", "float64", "float16", "complex64"]
        arrays = {k: fill(k, (2, 3), i) for i, k in enumerate(kinds)} | {
            "dot": fill("int16", ()), "none": fill("float32", (0, 4))}
        file = os.path.join(TMP, "buffers.safetensors")
        safetensors.numpy.save_file(arrays, file)
        for name, tensor in penstock.load_file(file, framework="dlpack").items():
            with self.subTest(name):
                same(self, {name: numpy.asarray(tensor)}, {name: arrays[name]})
                if name in ("float16", "complex64", "none"):
                    with self.assertRaises(BufferError):
                        tensor.__buffer__(0)
                else:
                    same(self, {name: numpy.asarray(tensor.__buffer__(0))}, {name: arrays[name]})

    def test_queued_work(self):
        """What others have queued on their tensors is waited for before these are read,
        filled or used again: once a device."""
        waited = []
        with unittest.mock.patch.object(_cuda, "synchronize", waited.append):
            place = penstock.allocate("I32", (6, 5, 4), 0)
            penstock.load_into(FILE, {"box": place, "row": numpy.zeros(300, numpy.int16)})
            penstock.save_file({"a": place, "b": place}, os.path.join(TMP, "q.safetensors"))
            self.assertEqual(waited, [0, 0])
            for _ in penstock.iterate(FILE, 0, framework="dlpack", window=1):
                pass
            self.assertGreater(len(waited), 2)
            del waited[:]
            for _ in penstock.iterate(FILE, 0, framework="dlpack"):
                pass
            penstock.load_into(FILE, {"box": numpy.zeros((6, 5, 4), numpy.int32)})
            self.assertEqual(waited, [])
        _cuda.settle(["cuda:0", "host", "cuda:0"])

    def test_no_device(self):
        with self.assertRaises(penstock.PenstockError) as caught:
            penstock.load_file(FILE, device="cuda:77")
        self.assertEqual(caught.exception.errno, errno.ENODEV)
        self.assertEqual(caught.exception.reason, "no-device")


class Ranks(unittest.TestCase):
    def test_shard(self):
        """Ranks together are the whole again, along the dimension that is cut."""
        file = os.path.join(TMP, "ranks.safetensors")
        arrays = {"a.q_proj.weight": fill("int32", (16, 8)), "norm": fill("int32", (8,)),
                  "a.o_proj.weight": fill("int32", (8, 16)),
                  "a.k_proj.weight": fill("int32", (4, 8))}
        safetensors.numpy.save_file(arrays, file)
        ranks = [penstock.load_file(file, framework="numpy",
                                    shard={"rank": r, "ranks": 4, "heads": 8, "kv_heads": 2})
                 for r in range(4)]
        join = numpy.concatenate
        same(self, {"a.q_proj.weight": join([r["a.q_proj.weight"] for r in ranks]),
                    "a.o_proj.weight": join([r["a.o_proj.weight"] for r in ranks], axis=1),
                    "a.k_proj.weight": join([r["a.k_proj.weight"] for r in ranks[::2]]),
                    "norm": ranks[3]["norm"]}, arrays)
        with self.assertRaises(penstock.PenstockError):
            penstock.load_file(file, shard={"rank": 0, "ranks": 3})
        for wrong in ({"of": 3}, {"rules": [("*", "diagonal")]}):
            with self.assertRaises(ValueError):
                penstock.load_file(file, shard=wrong)
        rules = {"rank": 1, "ranks": 2, "rules": [("norm", "first"), ("*", "whole")]}
        part = penstock.load_file(file, framework="numpy", shard=rules)
        same(self, part, {**arrays, "norm": arrays["norm"][4:]})


# A rank: all of it or its part, and back into a file of its own.
RANK = """
import sys
import penstock
file, folder, rank, ranks, part = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
with penstock.Group("python", rank, ranks, folder=folder, timeout=60, window=65536) as group:
    place = penstock.allocate("I64", (64, 1000), rank)
    report = penstock.load_into(file, {"wide": place}, group)
    shard = {"rank": rank, "ranks": ranks, "rules": [("wide", "last")]} if part else None
    tensors = penstock.load_file(file, rank, framework="dlpack", group=group, shard=shard)
    penstock.save_file({**tensors, "place": place}, f"{folder}/{rank}.safetensors")
    print(report.read)
"""


class Groups(unittest.TestCase):
    def ranks(self, ranks, part):
        if os.environ.get("PENSTOCK_STANDIN") == "0":  # the stand-in has as many as asked
            try:
                open_device(ranks - 1)
            except penstock.PenstockError as error:
                self.skipTest(f"{ranks} GPUs are wanted: {error}")
        folder = tempfile.mkdtemp(dir=TMP)
        env = dict(os.environ, PENSTOCK_STANDIN_DEVICES=str(ranks))
        started = [subprocess.Popen([sys.executable, "-c", RANK, FILE, folder, str(rank),
                                     str(ranks), str(part)], env=env, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for rank in range(ranks)]
        said = [p.communicate(timeout=90) for p in started]
        self.assertEqual([err for _, err in said], [""] * ranks)
        # The tensor that they loaded into place is read once by all together.
        self.assertLessEqual(sum(int(out) for out, _ in said), 512000 * 1.05)
        return [safetensors.numpy.load_file(f"{folder}/{rank}.safetensors")
                for rank in range(ranks)]

    def test_eight(self):
        """Eight processes, a GPU each: all of it on every one."""
        for got in self.ranks(8, 0):
            same(self, got, {**ARRAYS, "place": ARRAYS["wide"]})

    def test_parts(self):
        got = self.ranks(2, 1)
        self.assertTrue(numpy.array_equal(numpy.concatenate([g["wide"] for g in got], axis=1),
                                          ARRAYS["wide"]))

    def test_effort(self):
        """Several are fast, unless told otherwise or what they register is kept."""
        model = penstock.Model(FILE)
        for how, fast in (({}, 0), ({"ranks": 2}, 1), ({"ranks": 2, "effort": "thrifty"}, 0),
                          ({"effort": "fast"}, 1)):
            self.assertEqual(model.options(**how)[0].effort, fast, how)
        self.assertEqual(penstock.Model(FILE, immutable=True).options(ranks=2)[0].effort, 0)

    def test_errors(self):
        with self.assertRaises(penstock.PenstockError) as caught:
            penstock.Group("alone", 1, 2, folder=tempfile.mkdtemp(dir=TMP), timeout=0.05)
        self.assertEqual(caught.exception.errno, errno.ETIMEDOUT)
        self.assertIn("rank 0 has not come", str(caught.exception))
        with self.assertRaisesRegex(penstock.PenstockError, "host 3 of 3"):
            penstock.Group("one", 0, 1, host=3, hosts=3)
        with penstock.Group("one", 0, 1) as group:
            same(self, penstock.load_file(FILE, framework="numpy", group=group), ARRAYS)
        with self.assertRaises(ValueError):
            penstock.load_file(FILE, group=group)
        with self.assertRaises(TypeError):
            penstock.safe_open(FILE, group=group)


class Life(unittest.TestCase):
    def test_outlives(self):
        for _ in range(20):
            row = penstock.load_file(FILE, framework="numpy")["row"]
            junk = [bytearray(100000) for _ in range(8)]
            self.assertTrue(numpy.array_equal(row, ARRAYS["row"]))
            del junk

    def test_freed(self):
        def resident():
            with open("/proc/self/statm", encoding="ascii") as f:
                return int(f.read().split()[1]) * 4096
        file = os.path.join(TMP, "heavy.safetensors")
        safetensors.numpy.save_file({"w": numpy.zeros(20 << 20, numpy.uint8)}, file)
        for _ in range(3):
            penstock.load_file(file, framework="numpy")
        before = resident()
        for _ in range(20):
            penstock.load_file(file, framework="numpy")
        gc.collect()
        self.assertLess(resident() - before, 100 << 20)

    def test_forked(self):
        """A child has devices of its own."""
        penstock.load_file(FILE, framework="numpy")
        child = os.fork()
        if not child:
            ended = 1
            try:
                got = penstock.load_file(FILE, framework="numpy")
                ended = int(not numpy.array_equal(got["row"], ARRAYS["row"]))
            finally:
                os._exit(ended)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_gil(self):
        """Other threads run while bytes move."""
        counted, stop = [0], threading.Event()

        def count():
            while not stop.is_set():
                counted[0] += 1
                stop.wait(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            model = penstock.Model(FILE)
            for _ in range(50):
                before = counted[0]
                model.load("cpu", "numpy", path="fault:bounce?delay_us=300000")
                if counted[0] > before + 1:
                    break
            else:
                self.fail("no other thread ran in fifty slow loads")
        finally:
            stop.set()
            thread.join()

    def test_asyncio(self):
        async def go():
            tensors, names = await penstock.aio.load_file(FILE, framework="numpy"), []
            async for name, _ in penstock.aio.iterate(FILE, framework="numpy"):
                names.append(name)
            await penstock.aio.save_file(tensors, os.path.join(TMP, "aio.safetensors"))
            return tensors, names
        tensors, names = asyncio.run(go())
        same(self, tensors, ARRAYS)
        self.assertEqual(sorted(names), sorted(ARRAYS))

    def test_stop(self):
        """A load ends early when it is told to, before or between its requests."""
        many = {f"t{i}": fill("uint8", (65536,), i) for i in range(8)}
        file = os.path.join(TMP, "stop.safetensors")
        safetensors.numpy.save_file(many, file)
        stop, asked = threading.Event(), []
        with unittest.mock.patch.object(_model, "STOP_BYTES", 65536):
            same(self, penstock.load_file(file, framework="numpy", stop=stop), many)
            stop.is_set = lambda: asked.append(1) or len(asked) > 2
            with self.assertRaises(penstock.PenstockError) as caught:
                penstock.load_file(file, framework="numpy", stop=stop)
        self.assertEqual(caught.exception.errno, errno.ECANCELED)
        self.assertGreaterEqual(len(asked), 3)

    def test_signal(self):
        """A handler that raises, as that of Ctrl-C, ends a load behind the file that is
        under way, and what it raised is what the caller gets."""
        folder = os.path.join(TMP, "signal")
        os.mkdir(folder)
        for i in range(6):
            safetensors.numpy.save_file({f"t{i}": fill("uint8", (70000,), i)},
                                        os.path.join(folder, f"{i}.safetensors"))
        places = {f"t{i}": numpy.empty(70000, "uint8") for i in range(6)}
        real, calls = _model._call_back, []

        def spied(opts, keep, over):
            def once():
                calls.append(1)
                signal.raise_signal(signal.SIGUSR1)
                return over()
            return real(opts, keep, once)

        def stopped(*_):
            raise InterruptedError("by the handler")

        was = signal.signal(signal.SIGUSR1, stopped)
        try:
            with unittest.mock.patch.object(_model, "_call_back", spied):
                for load in (lambda: penstock.load_file(folder, framework="numpy"),
                             lambda: penstock.load_into(folder, places),
                             lambda: list(penstock.iterate(folder, framework="numpy")),
                             lambda: penstock.load_file(folder, framework="numpy",
                                                        stop=threading.Event())):
                    calls.clear()
                    self.assertRaisesRegex(InterruptedError, "by the handler", load)
                    self.assertEqual(len(calls), 1)
        finally:
            signal.signal(signal.SIGUSR1, was)
        self.assertEqual(len(penstock.load_file(folder, framework="numpy")), 6)

    def test_cancelled(self):
        """Who cancels goes on when nothing moves any more."""
        begun, go, ended = threading.Event(), threading.Event(), []

        def noted(real):
            def call(*args, **how):
                begun.set()
                try:
                    go.wait(60)
                    return real(*args, **how)
                finally:
                    ended.append(how.get("stop"))
            return call

        async def cancel(make):
            begun.clear()
            go.clear()
            task = asyncio.ensure_future(make())
            while not begun.is_set():
                await asyncio.sleep(0.001)
            for _ in range(2):
                task.cancel()
                for _ in range(9):
                    await asyncio.sleep(0)
                self.assertFalse(task.done())
            go.set()
            with self.assertRaises(asyncio.CancelledError):
                await task

        async def steps():
            async for _ in penstock.aio.iterate(FILE):
                pass

        place = numpy.zeros((6, 5, 4), numpy.int32)
        for name, make in (("load_file", lambda: penstock.aio.load_file(FILE)),
                           ("load_into", lambda: penstock.aio.load_into(FILE, {"box": place})),
                           ("iterate", steps)):
            real = getattr(penstock._api, name)
            with unittest.mock.patch.object(penstock._api, name, noted(real)):
                asyncio.run(cancel(make))
        self.assertEqual([stop is not None and stop.is_set() for stop in ended],
                         [True, True, False])

    def test_patched_elsewhere(self):
        """Modules that took the names before or while it is patched, and who means
        penstock.safe_open; what this package does not have stays with the other."""
        opened, before, after = safetensors.safe_open, *map(types.ModuleType, ("one", "two"))
        sys.modules.update(one=before, two=after)
        before.so, before.mine = safetensors.safe_open, penstock.safe_open
        try:
            undo = penstock.patch_safetensors()
            self.assertTrue(issubclass(before.so, penstock.safe_open))
            after.so, after.mine = safetensors.safe_open, penstock.safe_open
            for how in ((FILE, "crayon"), (FILE, "np", "mps"), (FILE, "mlx")):
                with self.assertRaises(Exception) as caught:
                    before.so(*how).get_tensor("box")
                with self.assertRaises(type(caught.exception)):
                    opened(*how).get_tensor("box")
            with before.so(filename=FILE, framework="numpy", device="cpu", backend="mmap") as f:
                self.assertIsInstance(f, penstock.safe_open)
            undo()
            undo()
            self.assertEqual([before.so, after.so, safetensors.safe_open], [opened] * 3)
            self.assertEqual([before.mine, after.mine], [penstock.safe_open] * 2)
        finally:
            del sys.modules["one"], sys.modules["two"]

    def test_patched(self):
        loader = safetensors.numpy.load_file
        with penstock.patch_safetensors():
            self.assertIsNot(safetensors.numpy.load_file, loader)
            same(self, safetensors.numpy.load_file(FILE), ARRAYS)
            with safetensors.safe_open(FILE, framework="np") as f:
                self.assertIsInstance(f, penstock.safe_open)
            safetensors.numpy.save_file(tensor_dict=ARRAYS,
                                        filename=os.path.join(TMP, "p.safetensors"))
        self.assertIs(safetensors.numpy.load_file, loader)
        same(self, loader(os.path.join(TMP, "p.safetensors")), ARRAYS)


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

    def test_save_options(self):
        """Arrive where they are meant for: a class that cannot be met, and durable."""
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
        for call in (lambda: penstock.save_file({"a": 1, "b": ARRAYS["row"]}, out),
                     lambda: penstock.load_into(FILE, {"row": memoryview(b"12")[::2]})):
            with self.assertRaisesRegex(ValueError, "^(a|row): "):
                call()
        self.assertFalse(os.path.exists(out))

    def test_arguments(self):
        """What the library would see otherwise than it was meant."""
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
        for metadata in ({"k": 1}, {1: "v"}, {"k": b"v"}):
            with self.assertRaises(TypeError):
                penstock.save_file({"a": row}, out, metadata)
        with self.assertRaises(TypeError):
            penstock.save_file({1: row}, out)
        with self.assertRaises(TypeError):
            penstock.safe_open(FILE, "np", best=True)
        for names in ("row", ["row"], ("r*",), {"row": 1}):
            self.assertEqual(list(penstock.load_file(FILE, names=names)), ["row"])
        self.assertEqual(penstock.load_file(FILE.encode()).keys(), ARRAYS.keys())
        self.assertEqual([n for n in os.listdir(TMP) if n.startswith("null")], [])

    def test_theirs(self):
        """What the safetensors package refuses with its own error is that error here, too,
        and crosses processes; a file that is not there is none for either."""
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
            # Programs look for words in what theirs has there: its one sentence.
            self.assertEqual(caught.exception.args, (str(caught.exception),))
            again = pickle.loads(pickle.dumps(caught.exception))
            self.assertEqual(str(again), str(caught.exception))
            self.assertIsInstance(again, kind)
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

    def test_save_other_rows(self):
        """Arrays that are not as a file holds them: with gaps, of another byte order."""
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
