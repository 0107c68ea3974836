# SPDX-License-Identifier: Apache-2.0
"""Tests that Ctrl-C, other signals and `stop` end every call early.

A call that waits for a slow file must return soon, raise what the signal handler raised, and
leave nothing half done. The file is sparse, and an injected fault delays each chunk, so that
a complete load would take long."""

import asyncio
import concurrent.futures
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

import numpy

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "s3"))
import penstock  # noqa: E402
import server  # noqa: E402
import tap  # noqa: E402
from penstock import _engine, _model  # noqa: E402
from penstock._lib import check, ffi, lib, open_device  # noqa: E402

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
FILE = os.path.join(TMP, "many.safetensors")
COUNT, EACH = 64, 16 << 20
NAMES = [f"t{i:02}" for i in range(COUNT)]
LATE = {"path": "fault:bounce?delay_us=300000"}
LIMIT_S = 60  # A time limit that is reached only if there is a bug.


def make():
    header = json.dumps({name: {"dtype": "U8", "shape": [EACH],
                                "data_offsets": [i * EACH, (i + 1) * EACH]}
                         for i, name in enumerate(NAMES)}).encode()
    with open(FILE, "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate(8 + len(header) + COUNT * EACH)


make()
_opts = ffi.new("struct penstock_device_opts *")
_opts.size = ffi.sizeof("struct penstock_device_opts")
_opts.lanes, _opts.slot_bytes = 1, 65536  # A lane has at most 256 chunks in flight.
check(lib.penstock_device_open(b"host", _opts, ffi.new("struct penstock_device **")))


def moved():
    """Returns how many bytes the library has read and written in this process so far."""
    with tempfile.TemporaryFile() as f:
        assert lib.penstock_stats(0, 1, f.fileno()) == 0
        f.seek(0)
        paths = json.load(f)["paths"].values()
    return sum(path["read_bytes"] + path["write_bytes"] for path in paths)


class Raised(BaseException):
    """An exception that `except Exception` does not catch."""


def when_waiting(act):
    """Calls `act` on another thread when the main thread has waited in one call of the package
    for 0.2 s. Returns that thread."""
    main, python = threading.main_thread().ident, os.path.dirname(penstock.__file__)

    def watch():
        seen, since, end = None, 0, time.monotonic() + LIMIT_S
        while since < 20 and time.monotonic() < end:
            frame = sys._current_frames().get(main)
            place, ours = frame and (id(frame), frame.f_lasti), False
            while frame and not ours:
                ours, frame = frame.f_code.co_filename.startswith(python), frame.f_back
            since = since + 1 if ours and place == seen else 0
            seen = place
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def interrupt():
    os.kill(os.getpid(), signal.SIGUSR1)


class Stops(unittest.TestCase):
    def setUp(self):
        def stopped(*_):
            raise Raised
        self.was = signal.signal(signal.SIGUSR1, stopped)
        self.before = moved()

    def tearDown(self):
        signal.signal(signal.SIGUSR1, self.was)

    def early(self, call, kind=Raised, act=interrupt):
        """Asserts that `act` ends `call` early with an exception of type `kind`."""
        thread = when_waiting(act)
        try:
            with self.assertRaises(kind) as caught:
                call()
            self.assertLess(moved() - self.before, COUNT * EACH // 2)
            now = moved()
            gc.collect()
            self.assertEqual(moved(), now)  # No more bytes move.
        finally:
            thread.join()
        return caught.exception

    def test_load_file(self):
        self.early(lambda: penstock.load_file(FILE, framework="numpy", **LATE))

    def test_load_into(self):
        place = numpy.empty(EACH, "uint8")
        self.early(lambda: penstock.load_into(FILE, dict.fromkeys(NAMES, place), **LATE))

    def test_iterate(self):
        self.early(lambda: [name for name, _ in
                            penstock.iterate(FILE, framework="numpy", **LATE)])

    def test_get_tensor(self):
        """A signal also ends the read-ahead, so close() does not wait for the whole batch."""
        with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 3 * EACH):
            def call():
                with penstock.safe_open(FILE, "numpy", **LATE) as f:
                    for name in NAMES:
                        f.get_tensor(name)
            self.early(call)

    def test_ahead(self):
        """Leaving the `with` block of the file ends the read-ahead early."""
        with unittest.mock.patch.object(penstock._api, "AHEAD_BYTES", 40 * EACH), \
                penstock.safe_open(FILE, "numpy", **LATE) as f:
            f._next, f._ahead_end = 0, 1
            f._cache[0] = numpy.zeros(EACH, "uint8")
            f.get_tensor(NAMES[0])
            self.assertIsNotNone(f._ahead)
        self.assertLess(moved() - self.before, COUNT * EACH // 2)

    def test_engine(self):
        """A signal, or closing the iterator, ends the batch that an engine's ranks are loading
        ahead."""
        def steps(**options):
            group = penstock.Group("engine", 0, 1)
            return _engine._read_together([penstock.Model(FILE)], "cpu", "numpy", group, **options)
        self.early(lambda: next(steps(window=2 * COUNT * EACH, **LATE)))
        begun = moved()
        with unittest.mock.patch.object(_engine, "_batches",
                                        lambda model, *_: [[(info, None) for info in part] for part
                                                           in (model.infos[:1],
                                                               model.infos[1:])]):
            some = steps(**LATE)
            next(some)
            some.close()
        self.assertLess(moved() - begun, COUNT * EACH // 2)

    def test_save_file(self):
        out = os.path.join(TMP, "out")
        os.mkdir(out)
        file, one = os.path.join(out, "a.safetensors"), numpy.ones(EACH, "uint8")
        penstock.save_file({"a": one}, file)
        self.early(lambda: penstock.save_file(dict.fromkeys(NAMES, one), file, **LATE))
        self.assertEqual(os.listdir(out), ["a.safetensors"])
        self.assertEqual(list(penstock.load_file(file, framework="numpy")), ["a"])

    def test_group(self):
        """A signal ends the wait of a rank for another rank to join."""
        self.early(lambda: penstock.Group("lonely", 0, 2, folder=tempfile.mkdtemp(dir=TMP)))

    def test_stop(self):
        """The event `stop` ends a load, on the main thread and on another thread."""
        for call in (penstock.load_file, lambda *args, **how: concurrent.futures.
                     ThreadPoolExecutor(1).submit(penstock.load_file, *args, **how).result()):
            stop, self.before = threading.Event(), moved()
            thread = threading.Timer(0.3, stop.set)
            thread.start()
            with self.assertRaises(penstock.PenstockError) as caught:
                call(FILE, framework="numpy", stop=stop, **LATE)
            thread.join()
            self.assertEqual(caught.exception.errno, errno.ECANCELED)
            self.assertLess(moved() - self.before, COUNT * EACH // 2)

    def test_cancelled(self):
        async def go():
            task = asyncio.ensure_future(penstock.aio.load_file(FILE, framework="numpy", **LATE))
            await asyncio.sleep(0.3)
            task.cancel()
            await task
        with self.assertRaises(asyncio.CancelledError):
            asyncio.run(go())
        self.assertLess(moved() - self.before, COUNT * EACH // 2)

    def test_handler_that_returns(self):
        """A signal handler that raises nothing runs while the library waits. The load completes."""
        called = []
        signal.signal(signal.SIGUSR1, lambda *_: called.append(moved()))
        thread = when_waiting(interrupt)
        got = penstock.Model(FILE).load("cpu", "numpy", count=2, **LATE)[0]
        thread.join()
        self.assertEqual(len(got), 2)
        self.assertTrue(called and called[0] - self.before < 2 * EACH)

    def test_commit(self):
        """A signal ends a commit whose server does not answer."""
        s3 = server.Server()
        self.addCleanup(s3.stop)
        s3.fault = lambda r: [("hang",)] if r.method == "POST" and "uploadId" in r.query else None
        env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "PENSTOCK_RDMA": "off",
               "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
        with unittest.mock.patch.dict(os.environ, env):
            client = penstock.ObjectClient(s3.url, region="x")
            data = numpy.zeros(20 << 20, "uint8")
            self.early(lambda: client.put("bucket/key", data))
        self.assertEqual((s3.objects, s3.uploads), ({}, {}))

    def test_other_thread(self):
        """A signal does not end a load on a thread other than the main thread."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(penstock.Model(FILE).load, "cpu", "numpy", count=2, **LATE)
            with self.assertRaises(Raised):
                interrupt()
                time.sleep(LIMIT_S)
            self.assertEqual(len(ahead.result()[0]), 2)

    def test_signal_as_load_returns(self):
        """If a signal handler raises just when the library call returns, the new memory is
        freed."""
        freed = []

        class Library:
            """The library's functions, but a signal arrives at the very end of a load."""
            def __getattr__(self, name):
                return getattr(lib, name)

            @staticmethod
            def penstock_weights_load(*args):
                code = lib.penstock_weights_load(*args)
                assert code == 0
                interrupt()
                time.sleep(LIMIT_S)

            @staticmethod
            def penstock_loaded_free(loaded):
                freed.append(loaded != ffi.NULL)
                lib.penstock_loaded_free(loaded)

        model = penstock.Model(FILE)
        with unittest.mock.patch.object(_model, "lib", Library()), self.assertRaises(Raised):
            model.load("cpu", "numpy", count=1)
        gc.collect()
        self.assertEqual(freed, [True])

    def test_torch_memory(self):
        """An exception that a signal handler raises inside torch's allocator ends the load."""
        memory = _model._TorchMemory(types.SimpleNamespace())

        def empty(*_, **__):
            interrupt()
            time.sleep(LIMIT_S)

        with unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(
                empty=empty, uint8=None)):
            self.assertFalse(memory.calls[0](ffi.NULL, open_device("cpu"), 1, 1))
        self.assertIsInstance(memory.error, Raised)

    def come_at_any_time(self, act, count):
        """Asserts that no exception of a signal handler is lost while `act` runs repeatedly.

        `count` signals arrive one after the other, at different times."""
        def handler(*_):
            raise Raised

        lost, arrived, old = [], 0, signal.signal(signal.SIGALRM, handler)
        try:
            with unittest.mock.patch.object(sys, "unraisablehook", lambda u: lost.append(str(u))):
                for i in range(count):
                    end = time.monotonic() + LIMIT_S
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0.001 + i % 20 * 0.0001)
                        while not lost and time.monotonic() < end:
                            act()
                    except Raised:
                        arrived += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        self.assertEqual((lost, arrived), ([], count))

    def test_collecting(self):
        """No exception of a signal handler is lost in a garbage collection. The collection's
        callbacks are not Python code, so no signal handler can run inside them."""
        self.come_at_any_time(gc.collect, 20)

    def test_tensors_freed(self):
        """A signal handler raises an exception while tensors are freed. The exception must reach
        the caller, and the memory of the tensors must become free."""
        file = os.path.join(TMP, "small.safetensors")
        penstock.save_file({f"t{i:02}": numpy.zeros(1000, "u1") for i in range(50)}, file)

        def walk():
            for _, tensor in penstock.iterate(file, framework="numpy", window=16384):
                del tensor

        self.come_at_any_time(walk, 200)

    def test_keyboard(self):
        """Ctrl-C ends a program that has no signal handler, including its threads."""
        program = f"""
import numpy, penstock  # Imported before the signal: a signal makes numpy's import fail.
f = penstock.safe_open({FILE!r}, "numpy", **{LATE!r})
penstock._api.AHEAD_BYTES = {3 * EACH}
print("open", flush=True)
for name in f.offset_keys():
    f.get_tensor(name)
"""
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
                              ) as child:
            self.assertEqual(child.stdout.readline(), "open\n")
            time.sleep(0.3)  # The program starts to read during this pause.
            child.send_signal(signal.SIGINT)
            _, error = child.communicate(timeout=LIMIT_S)
        self.assertEqual(child.returncode, -signal.SIGINT, error)
        self.assertEqual(error.rpartition("\n")[0].rpartition("\n")[2], "KeyboardInterrupt")


if __name__ == "__main__":
    tap.main()
