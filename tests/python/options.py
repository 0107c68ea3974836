# SPDX-License-Identifier: Apache-2.0
"""Tests the options that all functions share: their signatures, progress and keep_cached.

With TQDM=real in the environment, the tests use the package tqdm. Otherwise they use the class Bar,
which has the same interface."""

import asyncio
import functools
import inspect
import os
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

import numpy
import safetensors.numpy

import penstock
import tap
from penstock import _model, _progress
from reference import fill, same

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
FILE = os.path.join(TMP, "model.safetensors")
ARRAYS = {f"t{i}": fill("float32", (256, 1000 + i), i) for i in range(20)}
TOTAL = sum(array.nbytes for array in ARRAYS.values())
safetensors.numpy.save_file(ARRAYS, FILE)
LOADS = {
    "load_file": lambda **how: penstock.load_file(FILE, framework="numpy", **how),
    "load_file on a GPU": lambda **how: penstock.load_file(FILE, 0, framework="dlpack", **how),
    "load_into": lambda **how: penstock.load_into(
        FILE, {name: numpy.empty_like(array) for name, array in ARRAYS.items()}, **how),
    "iterate": lambda **how: list(penstock.iterate(FILE, framework="numpy", **how)),
    "aio": lambda **how: asyncio.run(penstock.aio.load_file(FILE, framework="numpy", **how)),
}


class Signatures(unittest.TestCase):
    def test_explicit(self):
        """Every public function shows its parameters and their defaults in its help."""
        public = [getattr(penstock, name) for name in penstock.__all__]
        public += [penstock.Model.load, penstock.Model.load_into, penstock.Model.iterate]
        public += [getattr(penstock.aio, name) for name in
                   ("load_file", "load_into", "iterate", "save_file")]
        for call in public:
            if isinstance(call, types.ModuleType) or \
                    isinstance(call, type) and issubclass(call, Exception):
                continue
            kinds = [p.kind for p in inspect.signature(call).parameters.values()]
            self.assertNotIn(inspect.Parameter.VAR_KEYWORD, kinds, call)
        for name in ("load_file", "load_into", "iterate", "save_file"):
            self.assertEqual(inspect.signature(getattr(penstock, name)),
                             inspect.signature(getattr(penstock.aio, name)))

    def test_help(self):
        """The help of a function describes every parameter."""
        for call in (penstock.load_file, penstock.load_into, penstock.iterate,
                     penstock.save_file, penstock.Model.load, penstock.aio.load_file):
            for name in inspect.signature(call).parameters:
                if name != "self":
                    self.assertRegex(inspect.getdoc(call), rf"\b{name}\b", call)


class Bar:
    """Replaces tqdm.auto.tqdm in the tests."""

    made = []

    def __init__(self, total, desc, unit, unit_scale, disable):
        self.total, self.desc, self.n, self.closed = total, desc, 0, False
        self.disable, self.unit = disable, (unit, unit_scale)
        self.made.append(self)

    def update(self, n):
        assert n >= 0 and not self.closed
        self.n += n

    def close(self):
        self.closed = True


class Progress(unittest.TestCase):
    def setUp(self):
        # With a period of 0, the library calls the progress function for every request, instead of
        # at most ten times a second. With the small step, each request carries one tensor.
        for name, place, value in (("PERIOD_S", _progress, 0.0),
                                   ("STEP_BYTES", _model, 1 << 20)):
            patch = unittest.mock.patch.object(place, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_function(self):
        """The progress function gets growing numbers, from 0 to the total."""
        for title, load in LOADS.items():
            told = []
            load(progress=lambda done, total, told=told: told.append((done, total)))
            self.assertEqual({total for _, total in told}, {TOTAL}, title)
            numbers = [done for done, _ in told]
            self.assertEqual((numbers[0], numbers[-1]), (0, TOTAL), title)
            self.assertEqual(numbers, sorted(set(numbers)), title)
            self.assertGreater(len(numbers), 2, title)

    def test_result(self):
        same(self, LOADS["load_file"](progress=lambda *_: None), ARRAYS)
        same(self, dict(LOADS["iterate"](progress=lambda *_: None)), ARRAYS)

    def test_parts(self):
        """The total is the number of bytes that the call delivers."""
        for how in ({"names": ["t3"]}, {"shard": {"rank": 1, "ranks": 2,
                                                  "rules": [("*", "first")]}}):
            told = []
            got = penstock.load_file(FILE, framework="numpy",
                                     progress=lambda *pair, told=told: told.append(pair), **how)
            want = sum(array.nbytes for array in got.values())
            self.assertLess(want, TOTAL)
            self.assertEqual(told[-1], (want, want))
        told, place = [], numpy.zeros((4, 9000), numpy.float32)
        penstock.load_into(FILE, {"t0": (place[:, :500], numpy.s_[3:7, 500:])},
                           progress=lambda *pair: told.append(pair))
        self.assertEqual(told[-1], (8000, 8000))

    def test_period(self):
        """The progress function is called at most ten times a second."""
        with unittest.mock.patch.object(_progress, "PERIOD_S", 3600.0):
            told = []
            LOADS["iterate"](progress=lambda *pair: told.append(pair))
            self.assertEqual(told, [(0, TOTAL), (TOTAL, TOTAL)])

    def test_error(self):
        """If the progress function raises an exception, the load ends and the exception reaches
        the caller."""
        class Enough(BaseException):
            pass

        for title, load in LOADS.items():
            calls = []

            def stop(done, _total, calls=calls):
                calls.append(done)
                if done:
                    raise Enough

            with self.assertRaises(Enough, msg=title):
                load(progress=stop)
            self.assertLess(calls[-1], TOTAL, title)

    def test_thread(self):
        """The progress function runs on the thread that loads."""
        seen = set()
        LOADS["load_file"](progress=lambda *_: seen.add(threading.get_ident()))
        self.assertEqual(seen, {threading.get_ident()})

    def test_wrong(self):
        for wrong in (3, "yes", object()):
            with self.assertRaisesRegex(TypeError, "progress must be"):
                LOADS["load_file"](progress=wrong)

    def test_bar(self):
        real = os.environ.get("TQDM") == "real"
        if real:
            from tqdm import auto

            class Noted(auto.tqdm):
                def __init__(self, *args, **how):
                    super().__init__(*args, file=open(os.devnull, "w", encoding="ascii"), **how)
                    Bar.made.append(self)

                closed = property(lambda self: self.disable)
        module = types.SimpleNamespace(tqdm=Noted if real else Bar)
        with unittest.mock.patch.dict(sys.modules, {"tqdm": types.ModuleType("tqdm"),
                                                    "tqdm.auto": module}):
            for title, load in LOADS.items():
                Bar.made.clear()
                load(progress=True)
                bar, = Bar.made
                self.assertEqual((bar.n, bar.total, bar.closed), (TOTAL, TOTAL, True), title)
                self.assertIn("model.safetensors", bar.desc)
            Bar.made.clear()
            with self.assertRaises(penstock.PenstockError):
                penstock.load_file(FILE, framework="numpy", progress=True,
                                   path="fault:bounce?eio=1")
            self.assertTrue(Bar.made[0].closed)
        with unittest.mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}), \
                self.assertRaisesRegex(ImportError, "pip install tqdm"):
            LOADS["load_file"](progress=True)

    def test_group(self):
        """In a group, the progress function of each rank gets numbers up to the rank's own total.
        Rank 0 shows the bar."""
        told, rows = {}, {}

        def rank(number):
            with penstock.Group("progress", number, 2, folder=TMP) as group:
                rows[number] = penstock.load_file(
                    FILE, framework="numpy", group=group,
                    progress=lambda *pair: told.setdefault(number, []).append(pair))

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(2):
            same(self, rows[number], ARRAYS)
            self.assertEqual((told[number][0], told[number][-1]), ((0, TOTAL), (TOTAL, TOTAL)))
            self.assertEqual(told[number], sorted(set(told[number])))
        model = penstock.Model(FILE)
        with unittest.mock.patch.dict(sys.modules, {
                "tqdm": types.ModuleType("tqdm"), "tqdm.auto": types.SimpleNamespace(tqdm=Bar)}):
            for number in range(2):
                meter = model._meter(True, 6, 12, types.SimpleNamespace(rank=number, ranks=2))
                self.assertEqual((meter._bar.disable, meter.scale), (number != 0, 1.0))


def cached():
    """Returns the part of FILE that is in the page cache, from 0 to 1."""
    found, count = 0, os.path.getsize(FILE) // 4096
    fd = os.open(FILE, os.O_RDONLY)
    for page in range(count):
        try:
            found += os.preadv(fd, [bytearray(1)], page * 4096, os.RWF_NOWAIT)
        except BlockingIOError:
            pass
    os.close(fd)
    return found / count


def drop():
    """Removes FILE from the page cache."""
    fd = os.open(FILE, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def cached_after(load):
    """Returns cached() after a cold load. Repeats the load up to four times if the page cache
    lacks bytes, because some kernels drop page cache at any time."""
    found = 0
    for _ in range(5):
        drop()
        load()
        found = max(found, cached())
        if found > 0.99:
            break
    return found


class KeepCached(unittest.TestCase):
    def test_keeps(self):
        """A cold load with keep_cached leaves all bytes of the tensors in the page cache."""
        def by_tensor():
            with penstock.safe_open(FILE, "np", keep_cached=True) as f:
                same(self, {name: f.get_tensor(name) for name in f.offset_keys()}, ARRAYS)

        for title, load in LOADS.items():
            found = cached_after(functools.partial(load, keep_cached=True))
            self.assertGreater(found, 0.99, title)
        self.assertGreater(cached_after(by_tensor), 0.99)

    def test_cached_already(self):
        """If the files are cached, a load uses the path that it would use without keep_cached."""
        model = penstock.Model(FILE)
        for _ in range(5):
            asked = []
            with open(FILE, "rb") as f:
                f.read()
            for how in ({}, {"keep_cached": True}):
                opts = model.options(**how)[0]
                asked.append((opts.path, opts.effort))
            # They can differ if the kernel has dropped page cache in the meantime.
            if asked[0] == asked[1]:
                break
        self.assertEqual(asked[0], asked[1])

    def test_effort(self):
        """If the files are not cached, a load with keep_cached has the effort "fast", unless the
        caller sets another effort."""
        model = penstock.Model(FILE)
        with unittest.mock.patch.object(model, "_is_cached", lambda: False):
            for effort, want in ((None, 1), ("fast", 1), ("thrifty", 0)):
                self.assertEqual(model.options(keep_cached=True, effort=effort)[0].effort, want)

    def test_replaced(self):
        """A file that has been removed counts as not cached."""
        copy = os.path.join(TMP, "copy.safetensors")
        safetensors.numpy.save_file(ARRAYS, copy)
        model = penstock.Model(copy)
        os.unlink(copy)
        same(self, model.load(framework="numpy", keep_cached=True)[0], ARRAYS)

    def test_refused(self):
        for how in ({"require": "direct"}, {"require": "no-cpu-copy"}, {"path": "odirect"}):
            for title in ("load_file", "load_into", "iterate"):
                with self.assertRaisesRegex(ValueError, "keep_cached=True"):
                    LOADS[title](keep_cached=True, **how)


if __name__ == "__main__":
    tap.main()
