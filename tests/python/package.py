# SPDX-License-Identifier: Apache-2.0
"""Tests the package: iterate, devices, DLPack, groups, lifetimes, threads and the patch of the
safetensors package. Uses numpy arrays and the stand-in GPU, which tests/standin simulates."""

import asyncio
import contextlib
import copy
import errno
import gc
import itertools
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
import weakref

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy

import penstock
import tap
from arrays import ARRAYS, FILE, TMP
from penstock import _cuda, _model, _tensor
from penstock._lib import open_device
from reference import fill, same


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
        for name, value in held:  # The tensors yielded so far stay valid.
            self.assertTrue(numpy.array_equal(value, big[name]))

    def test_left_early(self):
        steps = penstock.iterate(FILE, framework="dlpack", device="cuda:0")
        next(steps)
        steps.close()


class Devices(unittest.TestCase):
    def test_names(self):
        """device= accepts all spellings; torch.device("cpu", 0) is spelled "cpu:0"."""
        for device, want in (("cpu", "host"), ("cpu:0", "host"), (None, "host"), (0, "cuda:0"),
                             ("cuda:0", "cuda:0"), (numpy.int64(0), "cuda:0"), ("cuda", "cuda:0")):
            self.assertEqual(penstock.load_file(FILE, device, framework="dlpack")["row"].device,
                             want)

    def test_gpu(self):
        """Tensors loaded into GPU memory and saved from there have the same bytes."""
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
        """Loads two adjacent tensors of a file into two adjacent allocations, and saves them. No
        copy may cross the border between the allocations."""
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
        self.assertEqual((_tensor._exported, _tensor._offered), ({}, {}))

    def test_dlpack_refused(self):
        """A DLPack consumer that does not support the dtype raises its own error, and the memory is
        freed."""
        file = os.path.join(TMP, "halves.safetensors")
        safetensors.numpy.save_file({"b": numpy.arange(6, dtype=ml_dtypes.bfloat16)}, file)
        tensor = penstock.load_file(file, framework="dlpack")["b"]
        with self.assertRaisesRegex((RuntimeError, BufferError), "(?i)unsupported dtype"):
            numpy.from_dlpack(tensor)
        kept, given = weakref.ref(tensor), tensor.__dlpack__()
        gc.collect()
        self.assertEqual(len(_tensor._exported), 1)  # The capsule still exists.
        del tensor, given
        gc.collect()
        self.assertEqual((_tensor._exported, _tensor._offered), ({}, {}))
        self.assertIsNone(kept())

    def test_array(self):
        """numpy.asarray returns an array of the right dtype or raises TypeError, but never an
        array of dtype object."""
        file = os.path.join(TMP, "kinds.safetensors")
        arrays = {"b": numpy.arange(6, dtype=ml_dtypes.bfloat16), "f": ARRAYS["row"]}
        safetensors.numpy.save_file(arrays, file)
        for name, tensor in penstock.load_file(file, framework="dlpack").items():
            self.assertEqual((numpy.asarray(tensor).dtype, numpy.asarray(tensor).tobytes()),
                             (arrays[name].dtype, arrays[name].tobytes()))
            self.assertEqual(numpy.asarray(tensor, "f8").tolist(), arrays[name].tolist())
        for tensor in (penstock.allocate("F4", (2,)), penstock.allocate("BF16", (2,), 0)):
            with self.assertRaises(TypeError):
                numpy.asarray(tensor)

    def test_buffers(self):
        """numpy gets the same array through the array interface and through __buffer__. From
        Python 3.12 on, numpy uses __buffer__."""
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
        """Before the package reads or fills tensors on GPUs, or reuses a window's memory, it waits
        once for the queued work of each GPU."""
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
        _cuda.synchronize_all(["cuda:0", "host", "cuda:0"])

    def test_no_device(self):
        with self.assertRaises(penstock.PenstockError) as caught:
            penstock.load_file(FILE, device="cuda:77")
        self.assertEqual(caught.exception.errno, errno.ENODEV)
        self.assertEqual(caught.exception.reason, "no-device")


class Ranks(unittest.TestCase):
    def test_shard(self):
        """The parts of all ranks, joined along the divided dimension, form the whole tensor."""
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


# The program of one rank. Together with the group it loads all tensors, or this rank's part of
# each, and saves them into a file of its own. It prints how many bytes load_into has read.
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
        # The simulated CUDA driver of tests/standin can have any number of GPUs. A real machine may
        # have too few.
        if os.environ.get("PENSTOCK_STANDIN") == "0":
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
        outputs = [p.communicate(timeout=90) for p in started]
        self.assertEqual([err for _, err in outputs], [""] * ranks)
        # RANK prints the bytes that load_into has read. All ranks together read the tensor once.
        self.assertLessEqual(sum(int(out) for out, _ in outputs), 512000 * 1.05)
        return [safetensors.numpy.load_file(f"{folder}/{rank}.safetensors")
                for rank in range(ranks)]

    def test_eight(self):
        """Each of eight processes, on a GPU of its own, gets all tensors."""
        for got in self.ranks(8, 0):
            same(self, got, {**ARRAYS, "place": ARRAYS["wide"]})

    def test_parts(self):
        got = self.ranks(2, 1)
        self.assertTrue(numpy.array_equal(numpy.concatenate([g["wide"] for g in got], axis=1),
                                          ARRAYS["wide"]))

    def test_effort(self):
        """The default effort is "fast" if several processes load, unless the caller opens the model
        as immutable."""
        model = penstock.Model(FILE)
        for how, fast in (({}, 0), ({"ranks": 2}, 1), ({"ranks": 2, "effort": "thrifty"}, 0),
                          ({"effort": "fast"}, 1), ({"effort": "balanced"}, 2)):
            self.assertEqual(model.options(**how)[0].effort, fast, how)
        self.assertEqual(penstock.Model(FILE, immutable=True).options(ranks=2)[0].effort, 0)

    def test_errors(self):
        with self.assertRaises(penstock.PenstockError) as caught:
            penstock.Group("alone", 1, 2, folder=tempfile.mkdtemp(dir=TMP), timeout=0.05)
        self.assertEqual(caught.exception.errno, errno.ETIMEDOUT)
        self.assertIn("rank 0 has not joined", str(caught.exception))
        with self.assertRaisesRegex(penstock.PenstockError, "host 3 of 3"):
            penstock.Group("one", 0, 1, host=3, hosts=3)
        with penstock.Group("one", 0, 1) as group:
            same(self, penstock.load_file(FILE, framework="numpy", group=group), ARRAYS)
        with self.assertRaises(ValueError):
            penstock.load_file(FILE, group=group)
        with self.assertRaises(TypeError):
            penstock.safe_open(FILE, group=group)

    def test_fails_alone(self):
        """If a rank fails before its load starts, the other ranks get an error at once."""
        folder = tempfile.mkdtemp(dir=TMP)
        row = numpy.zeros(3, numpy.int16)
        for number, call in enumerate((
                lambda group: penstock.load_file(FILE + ".no", group=group),
                lambda group: penstock.load_file(FILE, "cuda:99", group=group),
                lambda group: penstock.load_file(FILE, group=group, effort="best"),
                lambda group: penstock.load_into(FILE, {"row": row}, group))):
            name, (reader, writer) = f"alone{number}", os.pipe()
            child = os.fork()
            if not child:
                try:
                    os.close(writer)
                    group = penstock.Group(name, 1, 2, folder=folder)
                    with contextlib.suppress(OSError, ValueError):
                        call(group)
                    os.read(reader, 1)  # Stays alive and keeps the group object.
                finally:
                    os._exit(0)
            try:
                group = penstock.Group(name, 0, 2, folder=folder, stall=20)
                with self.assertRaisesRegex(penstock.PenstockError, "rank 1 .*closed the group"):
                    penstock.load_file(FILE, framework="numpy", group=group)
            finally:
                os.close(reader)
                os.close(writer)
                os.waitpid(child, 0)
            group.close()


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

    def test_model_closed(self):
        """Iterators, copies and loads of other threads keep a closed model's files open."""
        model = penstock.Model(FILE)
        copied, steps = copy.copy(model), model.iterate("cpu", "np", window=1)
        got, loaded, entered, go_on = {}, [], threading.Event(), threading.Event()

        def wait(_done, _total):
            entered.set()
            go_on.wait()

        thread = threading.Thread(
            target=lambda: loaded.append(model.load("cpu", "np", progress=wait)[0]))
        thread.start()
        entered.wait()
        model.close()
        go_on.set()
        thread.join()
        same(self, loaded[0], ARRAYS)
        for name, value in steps:
            got[name] = value.copy()
        same(self, got, ARRAYS)
        same(self, copied.load("cpu", "np")[0], ARRAYS)
        self.assertRaisesRegex(ValueError, "closed", model.load, "cpu", "np")

    def test_model_copied(self):
        """The files of a model are closed when all copies of the object are closed."""
        def is_open():
            links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
            return any(os.path.exists(link) and os.path.samefile(link, file) for link in links)
        file = os.path.join(TMP, "copied.safetensors")
        safetensors.numpy.save_file(ARRAYS, file)
        model = penstock.Model(file)
        copied = copy.copy(model)
        model.close()
        self.assertTrue(is_open())
        copied.close()
        self.assertFalse(is_open())

    def test_forked(self):
        """A child of fork opens devices of its own and can load."""
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
        """Other threads run during a load, since it releases the GIL."""
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

    def test_cancelled(self):
        """A cancelled call of penstock.aio raises only after its thread has returned."""
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
        """The patch and its removal affect modules that imported safe_open before or during the
        patch. Neither affects a module that uses penstock.safe_open itself. Calls for
        frameworks and devices that Penstock does not support go to the safetensors package."""
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

    def test_patched_twice(self):
        """Three patches can be undone in any order."""
        names = ((safetensors, "safe_open"), (safetensors.numpy, "load_file"),
                 (safetensors.numpy, "save_file"))
        theirs = [getattr(*name) for name in names]
        for order in itertools.permutations(range(3)):
            undo = [penstock.patch_safetensors() for _ in order]
            for i in order:
                with safetensors.safe_open(FILE, "np") as f:
                    self.assertIsInstance(f, penstock.safe_open)
                undo[i]()
            self.assertEqual([getattr(*name) for name in names], theirs)

    def test_patched_pickled(self):
        """The functions of the patch can be pickled, although pickle stores only their names."""
        theirs = safetensors.numpy.load_file
        with penstock.patch_safetensors():
            for call in (safetensors.numpy.load_file, safetensors.numpy.save_file):
                self.assertIs(pickle.loads(pickle.dumps(call)), call)
            sent = pickle.dumps(safetensors.numpy.load_file)
        self.assertIs(pickle.loads(sent), theirs)

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


if __name__ == "__main__":
    tap.main()
