# SPDX-License-Identifier: Apache-2.0
"""Tests safe_open: compares results with the safetensors package (the reference), and tests
slices, reading ahead, threads, fork and closing. Uses numpy arrays."""

import concurrent.futures
import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

import numpy
import safetensors
import safetensors.numpy
from hypothesis import given

import penstock
import tap
from arrays import ARRAYS, FILE, TMP, indices
from penstock import _model, _prefetch, _short, _tensor
from reference import SETTINGS, fill, same


# A program in which a thread reads after the main thread has ended.
MAIN_ENDED = """
import sys, threading
import penstock
def work():
    threading.main_thread().join()
    penstock._api.AHEAD_BYTES = 64
    with penstock.safe_open(sys.argv[1], framework="np") as f:
        got = {name: f.get_tensor(name) for name in f.offset_keys()}
    print(*sorted(got))
threading.Thread(target=work).start()
"""


class Open(unittest.TestCase):
    def test_same_as_reference(self):
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
                          numpy.s_[1, 2, 3], []):
                got, want = ours.get_slice("box")[index], theirs.get_slice("box")[index]
                self.assertIs(type(got), type(want))
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
        """Several threads together read all tensors in file order, some through slices. Each
        thread gets the right tensor, and the tensors are loaded in batches, not one by one."""
        many = {f"t{i:03}": fill("float32", (64, 2), i) for i in range(200)}
        file = os.path.join(TMP, "threads.safetensors")
        safetensors.numpy.save_file(many, file)
        loads, real = [], penstock.safe_open._load

        def load(opened, model, first, end, *stop):
            loads.append(end - first)
            return real(opened, model, first, end, *stop)

        with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 20 * 512), \
                unittest.mock.patch.object(penstock.safe_open, "_load", load), \
                penstock.safe_open(file, framework="np") as f, \
                concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = {name: pool.submit(f.get_tensor if i % 2 else f.get_slice(name).__getitem__,
                                       name if i % 2 else ...)
                     for i, name in enumerate(f.offset_keys())}
            same(self, {name: a.result() for name, a in asked.items()}, many)
        self.assertLess(len(loads), 100)

    def test_closed_by_another_thread(self):
        """Another thread closes the file during a read. The read returns its tensor or raises
        "closed", and no read-ahead thread or batch remains."""
        many = {f"t{i:02}": fill("float32", (64, 8), i) for i in range(60)}
        file = os.path.join(TMP, "closed.safetensors")
        safetensors.numpy.save_file(many, file)
        real = penstock.safe_open._batch_end
        for when in range(8):
            calls = itertools.count()

            def end(model, first):
                if next(calls) == when:  # pylint: disable=cell-var-from-loop
                    closer = threading.Thread(target=f.close)
                    closer.start()
                    closer.join()
                return real(model, first)

            with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 4 * 2048), \
                    unittest.mock.patch.object(penstock.safe_open, "_batch_end",
                                               staticmethod(end)):
                f = penstock.safe_open(file, framework="np")
                with self.assertRaisesRegex(ValueError, "closed"):
                    for name in f.offset_keys():
                        self.assertEqual(f.get_tensor(name).tobytes(), many[name].tobytes())
            self.assertEqual((f._thread, f._ahead, f._cache), (None, None, {}))

    def test_main_thread_ended(self):
        """Other threads can read after the main thread ended, as with the safetensors package."""
        done = subprocess.run([sys.executable, "-c", MAIN_ENDED, FILE], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout.split()), (0, sorted(ARRAYS)), done.stderr)

    def test_short(self):
        """Reads of short tensors out of file order use the same options again, except that the main
        thread has its own. Each thread gets the right tensor."""
        many = {f"t{i:03}": fill("int16", (i % 7 + 1, 30), i) for i in range(90)}
        many["long"] = fill("uint8", (_short.SHORT_BYTES + 1,))
        file = os.path.join(TMP, "short.safetensors")
        safetensors.numpy.save_file(many, file)
        calls, real = [], penstock.Model.options

        def options(model, **how):
            calls.append(threading.current_thread() is threading.main_thread())
            return real(model, **how)

        with unittest.mock.patch.object(penstock.Model, "options", options), \
                concurrent.futures.ThreadPoolExecutor(4) as pool:
            f = penstock.safe_open(file, framework="np")
            order = f.offset_keys()[::-1]
            del calls[:]
            for names in (order[0::2], order[1::2]):
                same(self, {name: f.get_tensor(name) for name in names if name != "long"},
                     {name: many[name] for name in names if name != "long"})
            self.assertEqual(calls, [True])
            same(self, dict(zip(order, pool.map(f.get_tensor, order))), many)
            self.assertTrue(not all(calls))
            value = f.get_tensor(order[0])
            value += 1  # Each read returns memory of its own.
            same(self, {"again": f.get_tensor(order[0])}, {"again": many[order[0]]})
            open_files = len(os.listdir("/proc/self/fd"))
            part = f.get_slice("t001")
            f.close()
            self.assertTrue(numpy.array_equal(part[:], many["t001"]))
            del part
            self.assertLess(len(os.listdir("/proc/self/fd")), open_files)

    def test_shown(self):
        """The texts that an interactive session shows name the file and the tensor."""
        with penstock.Model(FILE) as model, penstock.safe_open(FILE, "np") as f:
            self.assertEqual(repr(model), f"penstock.Model({FILE!r}, {len(ARRAYS)} tensors)")
            self.assertEqual(repr(f), f"penstock.safe_open({model!r}, 'numpy', 'cpu')")
            self.assertEqual(repr(f.get_slice("box")), "penstock.Slice('box', I32, (6, 5, 4))")
        self.assertEqual(repr(model), f"penstock.Model({FILE!r}, closed)")
        self.assertEqual(repr(f), "penstock.safe_open(closed, 'numpy', 'cpu')")
        with self.assertRaises(ValueError):
            model.load()

    def test_short_of_changed_file(self):
        file = os.path.join(TMP, "changed.safetensors")
        safetensors.numpy.save_file(ARRAYS, file)
        with penstock.safe_open(file, framework="np") as f:
            for _ in range(2):
                f.get_tensor("row")
            os.utime(file, ns=(1, 1))
            with self.assertRaises(penstock.PenstockError) as caught:
                f.get_tensor("row")
        self.assertEqual((caught.exception.errno, caught.exception.path), (errno.ESTALE, file))

    def test_no_metadata(self):
        file = os.path.join(TMP, "bare.safetensors")
        safetensors.numpy.save_file(ARRAYS, file)
        for module in (safetensors, penstock):
            with module.safe_open(file, framework="np") as f:
                self.assertIsNone(f.metadata())
        for save in (safetensors.numpy.save_file, penstock.save_file):
            for metadata in ({}, None, {"": ""}):
                save(ARRAYS, file, metadata=metadata)
                for module in (safetensors, penstock):
                    with module.safe_open(file, framework="np") as f:
                        self.assertEqual(f.metadata(), metadata)

    def test_closed(self):
        """Slices of a closed file can still be read, as with the safetensors package. Calls of the
        closed file itself fail with "closed"."""
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
        """An open file can be read after it was unlinked."""
        file = os.path.join(TMP, "removed.safetensors")
        for module in (safetensors, penstock):
            safetensors.numpy.save_file(ARRAYS, file)
            with module.safe_open(file, framework="np") as f:
                os.unlink(file)
                for name, value in ARRAYS.items():
                    self.assertEqual(f.get_tensor(name).tobytes(), value.tobytes())
                self.assertEqual(f.get_slice("box")[2:].tobytes(), ARRAYS["box"][2:].tobytes())

    def test_ahead_fails(self):
        """If reading a tensor ahead fails, the tensors before it can still be read."""
        many = {f"t{i}": fill("uint8", (4096,), i) for i in range(8)}
        file = os.path.join(TMP, "torn.safetensors")
        safetensors.numpy.save_file(many, file)
        real = penstock.safe_open._load

        def load(opened, model, first, end, *stop):
            if any(first <= i < end for i in (3, 6)):
                raise penstock.PenstockError(errno.EIO, "torn")
            return real(opened, model, first, end, *stop)

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

    def test_forked(self):
        """A child of fork can read from a file that its parent opened and is reading ahead. The
        reference (safetensors) allows that, too."""
        many = {f"t{i:02}": fill("float32", (64, i), i) for i in range(40)}
        file = os.path.join(TMP, "forked.safetensors")
        safetensors.numpy.save_file(many, file)

        def child(read):
            ended = 1
            signal.alarm(60)  # Ends a child that hangs.
            try:
                ended = int(not all(got.tobytes() == want.tobytes() for got, want in read()))
            except BaseException as error:  # pylint: disable=broad-except
                print(f"# {error!r}", flush=True)
            finally:
                os._exit(ended)

        for module in (safetensors, penstock):
            with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 20000), \
                    module.safe_open(file, framework="np") as f:
                part = f.get_slice("t30")
                for name in list(many)[:20]:
                    f.get_tensor(name)
                for read in (lambda: ((f.get_tensor(name), many[name]) for name in many),
                             lambda: ((f.get_tensor(name), many[name]) for name in
                                      list(many)[20:]),
                             lambda: [(part[3:9], many["t30"][3:9]), (part[:], many["t30"])]):
                    # In a program another thread may own the lock at the fork. In this test
                    # the forking thread owns the lock.
                    with f._lock if module is penstock else contextlib.nullcontext():
                        pid = os.fork()
                        if not pid:
                            child(read)
                    self.assertEqual(os.waitpid(pid, 0)[1], 0)
                for name in list(many)[20:]:
                    self.assertEqual(f.get_tensor(name).tobytes(), many[name].tobytes())

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


class Prefetch(unittest.TestCase):
    """Tests safe_open.prefetch, a call of the safetensors package from version 0.9 on."""

    def setUp(self):
        # Shortens the batches to 1000 bytes, so that the file has several batches. A tensor longer
        # than that is a batch of its own.
        patch = unittest.mock.patch.object(_prefetch, "BATCH_BYTES", 1000)
        patch.start()
        self.addCleanup(patch.stop)

    def test_whole(self):
        for device, framework in (("cpu", "np"), (0, "dlpack"), ("cpu", "dlpack")):
            with penstock.safe_open(FILE, framework, device) as f, f.prefetch() as loader:
                self.assertEqual((len(loader), loader.names()), (len(ARRAYS), f.offset_keys()))
                got = dict(loader)
                self.assertEqual(list(loader), [])
            for name, array in ARRAYS.items():
                value = got[name]
                if framework == "dlpack":
                    self.assertEqual(value.device, "host" if device == "cpu" else "cuda:0")
                    there = numpy.zeros_like(array)
                    self.assertEqual((value.shape, value.nbytes), (array.shape, array.nbytes))
                    penstock.save_file({name: value}, os.path.join(TMP, "one.safetensors"))
                    penstock.load_into(os.path.join(TMP, "one.safetensors"), {name: there})
                    value = there
                self.assertTrue(numpy.array_equal(value, array), name)

    def test_plan(self):
        plan = {"wide": slice(3, 60), "box": None, "row": slice(-7, None), "none": slice(0, 0)}
        with penstock.safe_open(FILE, "np", device=0) as f:
            with f.prefetch(plan, device="cpu", threads=1) as loader:
                self.assertEqual(set(loader.names()), set(plan))
                self.assertTrue(numpy.array_equal(loader.take("row"), ARRAYS["row"][-7:]))
                for name, want in (("row", "has been taken"), ("dot", "not in the plan"),
                                   ("no such", "not in the plan")):
                    with self.assertRaisesRegex(safetensors.SafetensorError, want):
                        loader.take(name)
                got = dict(loader)
            for name in ("wide", "box", "none"):
                want = ARRAYS[name] if plan[name] is None else ARRAYS[name][plan[name]]
                self.assertTrue(numpy.array_equal(got[name], want), name)
                self.assertEqual(got[name].dtype, want.dtype)
            # The loader reads only the requested rows, not the whole tensor.
            with unittest.mock.patch.object(_prefetch.Model, "load_into", autospec=True,
                                            side_effect=_prefetch.Model.load_into) as called:
                dict(f.prefetch({"wide": slice(0, 2)}, device="cpu"))
            self.assertEqual([_model._piece_bytes(piece) for piece in called.call_args.args[1]],
                             [2 * 8000])

    def test_threads(self):
        """Threads that take tensors of one loader get each tensor once."""
        with penstock.safe_open(FILE, "np") as f, f.prefetch() as loader, \
                concurrent.futures.ThreadPoolExecutor(4) as pool:
            taken = [pair for future in [pool.submit(list, loader) for _ in range(4)]
                     for pair in future.result()]
        self.assertEqual(sorted(name for name, _ in taken), sorted(ARRAYS))
        same(self, dict(taken), ARRAYS)

    def test_closed(self):
        """Closing the loader stops the load. Tensors that were taken remain valid, and the object
        that safe_open returned can be closed before the loader."""
        f = penstock.safe_open(FILE, "np")
        loader = f.prefetch()
        f.close()
        row = loader.take("row")
        loader.close()
        loader.close()
        self.assertTrue(numpy.array_equal(row, ARRAYS["row"]))
        self.assertEqual(list(loader), [])
        with self.assertRaisesRegex(ValueError, "the loader is closed"):
            loader.take("box")
        # Every load that a loader starts can be stopped, by the caller or by close().
        stop = threading.Event()
        with unittest.mock.patch.object(_prefetch.Model, "load", autospec=True,
                                        side_effect=_prefetch.Model.load) as called, \
                penstock.safe_open(FILE, "np", stop=stop) as f, f.prefetch() as loader:
            list(loader)
            stops = [call.kwargs["stop"] for call in called.call_args_list]
            self.assertEqual([one.is_set() for one in stops], [False] * len(stops))
            loader.close()
            self.assertEqual([one.is_set() for one in stops], [True] * len(stops))
            with f.prefetch() as other:
                self.assertFalse(other._stop.is_set())
                stop.set()
                self.assertTrue(other._stop.is_set())

    def test_wrong(self):
        with penstock.safe_open(FILE, "np") as f:
            for plan, kind in (({"no such": None}, penstock.NotFoundError),
                               ({"wide": slice(0, 9, 2)}, ValueError),
                               ({"dot": slice(0, 1)}, ValueError), ({"wide": 3}, TypeError)):
                with self.assertRaises(kind) as caught:
                    f.prefetch(plan)
                self.assertIsInstance(caught.exception, safetensors.SafetensorError)
            with self.assertRaises(ValueError):
                f.prefetch(threads=0)
            self.assertEqual(list(f.prefetch({})), [])
        with self.assertRaisesRegex(ValueError, "closed"):
            f.prefetch()

    def test_meta(self):
        with penstock.safe_open(FILE, "np") as f, open(FILE, "rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
            for name in ARRAYS:
                meta = f.get_tensor_meta(name)
                self.assertEqual({"dtype": meta.dtype, "shape": meta.shape,
                                  "data_offsets": list(meta.data_offsets)}, header[name])


if __name__ == "__main__":
    tap.main()
