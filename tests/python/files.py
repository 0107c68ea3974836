# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.File: reads and writes of byte ranges, one after the other and at once, in stream
order and in CUDA graphs. Uses numpy arrays and the GPU that tests/standin simulates. Under
tests/gpu/run, the GPU is a real one."""

import asyncio
import contextlib
import copy
import ctypes
import errno
import gc
import os
import pickle
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import weakref

import numpy

import penstock
import tap
from penstock import _cuda, _passed, _queue, _transfer
from penstock._lib import lib

# The number of hardware queues that streams share. With the default of 8 (4 in the stand-in), a
# blocked stream would hold up the transfers of other streams.
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = os.environ["PENSTOCK_STANDIN_HW_QUEUES"] = "32"
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
RANDOM = random.Random(SEED)
LENGTH = 6 << 20
BYTES = numpy.random.default_rng(3).integers(0, 256, LENGTH, numpy.uint8)
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
BLOCK = 64 << 10


def path(name="slab"):
    return os.path.join(TMP, name)


def setUpModule():
    print(f"# seed {SEED}")
    with open(path(), "wb") as f:
        f.write(BYTES)
        os.fsync(f.fileno())


def contents(name):
    with open(path(name), "rb") as f:
        return numpy.frombuffer(f.read(), numpy.uint8)


class Ranges(unittest.TestCase):
    """Reads and writes of host memory."""

    def same(self, got, offset, length=None):
        """Compares a tensor with the file from `offset` on."""
        got = numpy.ascontiguousarray(got).reshape(-1).view(numpy.uint8)[:length]
        self.assertTrue(numpy.array_equal(got, BYTES[offset:offset + len(got)]))

    def test_reads(self):
        """Reads ranges of many lengths, the longer ones through the queue."""
        with penstock.File(path()) as file:
            self.assertEqual((file.length, file.closed), (LENGTH, False))
            for _ in range(60):
                offset = RANDOM.randrange(LENGTH)
                length = RANDOM.choice([1, 512, 4096, BLOCK, 3 << 20])
                out = numpy.zeros(min(length, LENGTH - offset), numpy.uint8)
                report = file.read(out, offset)
                self.same(out, offset)
                self.assertEqual(report.bytes, len(out))
                self.assertEqual(sum(report.paths.values()), len(out))
        self.assertTrue(file.closed)

    def test_reports(self):
        """Equal reads have equal reports, and a change of one report changes no other."""
        out = numpy.zeros(100, numpy.uint8)
        with penstock.File(path()) as file:
            first = file.read(out)
            paths, reasons = dict(first.paths), dict(first.reasons)
            self.assertEqual(sum(paths.values()), 100)
            self.assertTrue(all(reasons.values()))
            first.paths.clear()
            first.reasons["staged"] = "changed"
            for report in (file.read(out), file.read_async(out).result()):
                self.assertEqual((report.paths, report.reasons), (paths, reasons))

    def test_tensors(self):
        """Reads tensors with gaps between their rows, lists of tensors, and parts of a tensor."""
        with penstock.File(path()) as file:
            whole = numpy.zeros((8, 1000), numpy.int32)
            file.read(whole[:, :600], 4096)
            self.same(whole[:, :600], 4096)
            self.assertFalse(whole[:, 600:].any())
            several = [numpy.zeros(n, numpy.uint16) for n in (1, 5000, 0, 777)]
            self.assertEqual(file.read(several, 100).bytes, 2 * 5778)
            self.same(numpy.concatenate(several), 100)
            offsets = [5_000_000, 3, 9, 1_000_000]
            file.read(several, offsets)
            for one, offset in zip(several, offsets):
                self.same(one, offset)
            part = numpy.zeros(1000, numpy.uint8)
            file.read(part, 50, length=300, at=200)
            self.same(part[200:500], 50)
            self.assertFalse(part[:200].any() or part[500:].any())
            self.assertEqual(file.read([], 7).bytes, 0)

    def test_offsets(self):
        """Offsets can be any sequence of integers, also of numpy."""
        with penstock.File(path()) as file:
            outs = [numpy.zeros(100, numpy.uint8) for _ in range(3)]
            for offsets in (range(7, 3007, 1000), numpy.arange(7, 3007, 1000), (7, 1007, 2007)):
                for out in outs:
                    out[:] = 0
                file.read(outs, offsets)
                for out, offset in zip(outs, (7, 1007, 2007)):
                    self.same(out, offset)
            file.read(outs[0], numpy.int64(5))
            self.same(outs[0], 5)

    def test_end(self):
        """The end of the file is an error, unless the caller accepts fewer bytes."""
        out = numpy.zeros(2 << 20, numpy.uint8)
        with penstock.File(path()) as file:
            for count in (1000, len(out)):
                with self.assertRaises(penstock.PenstockError) as caught:
                    file.read(out[:count], LENGTH - 10)
                self.assertEqual(caught.exception.errno, errno.ENODATA)
                self.assertIn("slab", str(caught.exception))
                self.assertEqual(file.read(out[:count], LENGTH - 10, exact=False).bytes, 10)
                self.same(out[:10], LENGTH - 10)
            self.assertEqual(file.read(out, LENGTH + 5, exact=False).bytes, 0)

    def test_writes(self):
        """Writes ranges in place, beyond the end, and of a created file."""
        with penstock.File(path("new"), "r+", create=True, length=1 << 20) as file:
            self.assertEqual(os.path.getsize(path("new")), 1 << 20)
            file.write(BYTES[:5000], 3)
            file.write([BYTES[5000:6000], BYTES[6000:9000]], 5003, durable=True)
            file.write(BYTES[:100], 1 << 20)
            back = numpy.zeros(9000, numpy.uint8)
            file.read(back, 3)
            self.same(back, 0)
            file.sync()
        got = contents("new")
        self.assertEqual(len(got), (1 << 20) + 100)
        self.assertTrue(numpy.array_equal(got[3:9003], BYTES[:9000]))
        with penstock.File(path("new"), "r+") as file:
            file.write(numpy.float32(1.5), 40)
        self.assertEqual(contents("new")[40:44].view(numpy.float32)[0], 1.5)
        with penstock.File(path("new"), "r+", create=True, length=77):
            self.assertEqual(len(contents("new")), (1 << 20) + 100)

    def test_created_without_length(self):
        """Such a file is as long as the bytes that were written."""
        with penstock.File(path("grown"), "r+", create=True) as file:
            self.assertEqual(file.length, 0)
            file.write(BYTES[:12345], 0)
        self.assertTrue(numpy.array_equal(contents("grown"), BYTES[:12345]))

    def test_refusals(self):
        """Wrong arguments raise an error that says what is wrong, and move nothing."""
        array, fixed = numpy.zeros(100, numpy.uint8), numpy.zeros(10, numpy.uint8)
        fixed.flags.writeable = False
        with penstock.File(path()) as file:
            for call, words in (
                    (lambda: penstock.File(path(), "w"), "mode must be 'r' or 'r+'"),
                    (lambda: penstock.File(path(), create=True), "need the mode 'r+'"),
                    (lambda: penstock.File(path(), "r+", length=5), "needs create=True"),
                    (lambda: penstock.File(path(), require="all"), "require must be one of"),
                    (lambda: file.read(fixed), "read-only"),
                    (lambda: file.read(array, -1), "offset must be"),
                    (lambda: file.read([array], [1, 2]), "1 tensors, but 2 offsets"),
                    (lambda: file.read([array], 0, length=5), "need a single tensor"),
                    (lambda: file.read(array, length=80, at=21), "exceed its 100 bytes"),
                    (lambda: file.read(array[::2], length=8), "contiguous"),
                    (lambda: file.read(array, at=101), "0 bytes from byte 101"),
                    (lambda: file.read([array[:1]] * 16385), "use several calls"),
                    (lambda: file.read_async([array[:1]] * 16385), "use several calls"),
                    (lambda: penstock.File("s3://bucket/key", "r+"), "an ObjectClient writes"),
                    (lambda: penstock.File(path("no"), "r+", create=True, length=1 << 70),
                     "length must be"),
                    (lambda: file.read(array, penstock.Late(3)), "needs a stream"),
                    (lambda: file.read_async(array, early=True), "needs a stream"),
                    (lambda: penstock.Late(-1), "from 0 to 2**63 - 1")):
                with self.subTest(words), self.assertRaises(ValueError) as caught:
                    call()
                self.assertIn(words, str(caught.exception))
            for call, words in (
                    (lambda: file.read("text"), "not a tensor"),
                    (lambda: file.read(array, 1.5), "offset must be a whole number, not float"),
                    (lambda: file.read(array, [3]), "offset must be a whole number, not list"),
                    (lambda: file.read_async(array, stream=object()), "not a CUDA stream"),
                    (lambda: pickle.dumps(file), "open the file again"),
                    (lambda: copy.copy(file), "open the file again"),
                    (lambda: pickle.dumps(file.read_async(array, 0, length=0)), "pass its report"),
                    (lambda: pickle.dumps(penstock.Late(3)), "pass its value")):
                with self.subTest(words), self.assertRaises(TypeError) as caught:
                    call()
                self.assertIn(words, str(caught.exception))
            for data in (array, array[:0]):
                with self.assertRaisesRegex(penstock.PenstockError, "slab: .* 'r\\+'") as caught:
                    file.write(data)
                self.assertEqual(caught.exception.errno, errno.EBADF)
            with self.assertRaisesRegex(penstock.PenstockError, "slab: segment 0"):
                file.read(array, (1 << 63) - 1)
            with self.assertRaises(penstock.PenstockError):
                file.read_async(array, stream=1)  # Host memory has no streams.
        self.assertFalse(array.any())
        with self.assertRaises(penstock.NotFoundError):
            penstock.File(path("missing"), "r+")
        for call in (lambda: file.read(array), lambda: file.read_async(array), file.sync,
                     lambda: file.length, file.__enter__):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
        file.close()


class Transfers(unittest.TestCase):
    """Transfers that run while the program goes on."""

    def test_many(self):
        """Eight threads share a File. Each has many transfers in flight."""
        wrong = []

        def run(number):
            rng = random.Random(SEED + number)
            for _ in range(4):
                plan = [(rng.randrange(LENGTH - BLOCK), numpy.zeros(BLOCK, numpy.uint8))
                        for _ in range(30)]
                started = [file.read_async(out, offset) for offset, out in plan]
                rng.shuffle(started)
                if any(one.result().bytes != BLOCK for one in started):
                    wrong.append("length")
                wrong.extend(offset for offset, out in plan
                             if not numpy.array_equal(out, BYTES[offset:offset + BLOCK]))

        with penstock.File(path(), effort="fast") as file:
            threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def test_failed_commit(self):
        """The error of a commit does not keep the storage open."""
        before, kept = len(os.listdir("/proc/self/fd")), []
        os.mkdir(path("folder"))
        storage = _transfer.Storage(path("folder/file"), "file", _transfer.WRITE |
                                    _transfer.REPLACE)
        shutil.rmtree(path("folder"))
        try:
            storage.commit(durable=False)
        except penstock.PenstockError as error:
            kept.append(error)
        storage.close()
        self.assertEqual(len(kept), 1)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_more_than_the_queue_holds(self):
        with penstock.File(path()) as file:
            outs = [numpy.zeros(512, numpy.uint8) for _ in range(3000)]
            started = [file.read_async(out, i * 512) for i, out in enumerate(outs)]
            for one in started:
                one.result()
        for i, out in enumerate(outs):
            self.assertTrue(numpy.array_equal(out, BYTES[i * 512:(i + 1) * 512]))

    def test_submit_takes(self):
        """A submit takes completions, but not while another thread takes them."""
        out = numpy.zeros(100, numpy.uint8)
        with penstock.File(path()) as file:
            with unittest.mock.patch.object(file._queue, "_taking", -1):
                first = file.read_async(out)
                select.select([lib.penstock_queue_fd(file._queue._handle)], [], [], 60)
                file.read_async(out)
                self.assertFalse(first._done)
            for _ in range(500):  # Fewer than fill the queue.
                if first._done:
                    break
                time.sleep(0.01)
                file.read_async(out)
            self.assertTrue(first._done)

    def test_dropped(self):
        """The file keeps the memory of a transfer, and sync raises the error that nobody has asked
        for."""
        with penstock.File(path("dropped"), "r+", create=True, length=1 << 20) as file:
            data = BYTES[:1 << 20].copy()
            alive = weakref.ref(data)
            file.write_async(data, 0)
            del data
            file.sync()
            gc.collect()
            self.assertIsNone(alive())
            file.read_async(numpy.zeros(10, numpy.uint8), 1 << 30)
            with self.assertRaises(penstock.PenstockError) as caught:
                file.sync()
            self.assertEqual(caught.exception.errno, errno.ENODATA)
            file.sync()
            asked = file.read_async(numpy.zeros(10, numpy.uint8), 1 << 30)
            with self.assertRaises(penstock.PenstockError):
                asked.result()
        self.assertTrue(numpy.array_equal(contents("dropped"), BYTES[:1 << 20]))

    def test_asyncio(self):
        async def run(file):
            outs = [numpy.zeros(BLOCK, numpy.uint8) for _ in range(20)]
            reports = await asyncio.gather(*[file.read_async(out, i) for i, out in enumerate(outs)])
            return outs, reports

        with penstock.File(path()) as file:
            outs, reports = asyncio.run(run(file))
        self.assertEqual([r.bytes for r in reports], [BLOCK] * 20)
        for i, out in enumerate(outs):
            self.assertTrue(numpy.array_equal(out, BYTES[i:i + BLOCK]))

    def test_closed_before_the_report_is_read(self):
        """Another thread closes the file when a read has ended. The storage, which owns texts of
        the report, lives until the report has been read."""
        file = penstock.File(path())
        handle, alive = weakref.ref(file._storage.handle), []
        fill = penstock.TransferReport.fill

        def close_first(report, *args):
            together = threading.Thread(target=file.close)
            together.start()
            together.join()
            gc.collect()
            alive.append(handle() is not None)
            fill(report, *args)
        with unittest.mock.patch.object(penstock.TransferReport, "fill", close_first):
            file.read(numpy.zeros(BLOCK, numpy.uint8))
        self.assertEqual(alive, [True])
        self.assertIsNone(handle())

    def test_closed_while_threads_read(self):
        """close() in one thread ends the reads and transfers of others with an error."""
        raised = []

        def run(file, length, how, begun):
            out = numpy.zeros(length, numpy.uint8)
            try:
                while True:
                    how(file, out)
                    begun.set()
            except Exception as error:
                raised.append(error)

        def transfer(file, out):
            for one in [file.read_async(out, i) for i in range(4)]:
                one.result()

        ways = [(4096, penstock.File.read), (2 << 20, penstock.File.read), (BLOCK, transfer)]
        for i in range(90):
            length, how = ways[i % 3]
            file, begun = penstock.File(path()), threading.Event()
            threads = [threading.Thread(target=run, args=(file, length, how, begun))
                       for _ in range(4)]
            for thread in threads:
                thread.start()
            begun.wait()
            file.close()
            for thread in threads:
                thread.join()
        for error in raised:
            self.assertRegex(str(error), "slab: the file is closed|slab: it was closed before")
        self.assertEqual(len(raised), 360)

    def test_signals_at_any_time(self):
        """Exceptions of a signal handler come at many different times. None is lost, and no
        completion."""
        class Raised(BaseException):
            pass

        def handler(*_):
            raise Raised

        long, blocks = numpy.zeros(3 << 20, numpy.uint8), numpy.zeros((30, BLOCK), numpy.uint8)

        def transfers():
            for one in [file.read_async(block, i * BLOCK) for i, block in enumerate(blocks)]:
                one.result()

        def sync():
            with penstock.File(path("signals"), "r+", create=True) as other:
                other.write_async(blocks, 0)
                other.sync()

        def close():
            with penstock.File(path()) as other:
                for i, block in enumerate(blocks):
                    other.read_async(block, i * BLOCK)

        lost, old = [], signal.signal(signal.SIGALRM, handler)
        try:
            with penstock.File(path()) as file, unittest.mock.patch.object(
                    sys, "unraisablehook", lambda u: lost.append(str(u))):
                for act in (lambda: file.read(long), transfers, sync, close):
                    for _ in range(200):
                        with self.assertRaises(Raised):
                            signal.setitimer(signal.ITIMER_REAL, RANDOM.uniform(0.0005, 0.004))
                            while not lost:
                                act()
                        file.sync()
                        self.assertEqual((lost, len(file._queue._pending)), ([], 0))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)

    def test_errors_keep_nothing(self):
        """A failed transfer keeps no tensor alive until the next garbage collection."""
        gc.disable()
        self.addCleanup(gc.enable)

        def read(out):
            file.read(out, 1 << 40)

        def transfer(out):
            file.read_async(out, 1 << 40).result()

        def sync(out):
            file.read_async(out, 1 << 40)
            file.sync()

        with penstock.File(path()) as file:
            for call, length in ((read, 10), (read, 2 << 20), (transfer, 10), (sync, 10)):
                out = numpy.zeros(length, numpy.uint8)
                alive = weakref.ref(out)
                try:  # assertRaises would clear the frames, which keep the tensor.
                    call(out)
                    self.fail("no error")
                except penstock.PenstockError as error:
                    self.assertEqual(error.errno, errno.ENODATA)
                del out
                self.assertIsNone(alive(), (call, length))

    def test_interrupted(self):
        """If a signal handler raises during a read, no byte moves after the exception."""
        wait_for = _queue.Queue.wait_for
        raised = []

        def interrupted(self, transfer, timeout):
            if not raised:
                raised.append(transfer)
                raise KeyboardInterrupt
            wait_for(self, transfer, timeout)

        out = numpy.zeros(LENGTH, numpy.uint8)
        with penstock.File(path()) as file:
            with unittest.mock.patch.object(_queue.Queue, "wait_for", interrupted):
                with self.assertRaises(KeyboardInterrupt):
                    file.read(out)
            self.assertTrue(raised[0].done())
            file.read(out)
        self.assertTrue(numpy.array_equal(out, BYTES))

    def test_forked(self):
        """A File is of no use in a child of fork, and says so."""
        with penstock.File(path()) as file:
            file.read(numpy.zeros(10, numpy.uint8))
            child = os.fork()
            if not child:
                try:
                    file.read(numpy.zeros(10, numpy.uint8))
                except penstock.PenstockError as error:
                    os._exit(0 if "fork" in str(error) else 3)
                except BaseException:
                    os._exit(2)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            file.read(numpy.zeros(10, numpy.uint8))

    def test_forked_while_a_thread_has_the_lock(self):
        with penstock.File(path()) as file:
            held, release = threading.Event(), threading.Event()

            def hold():
                with file._queue._changed:
                    held.set()
                    release.wait()

            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            child = os.fork()
            if not child:
                signal.alarm(20)
                file.close()
                os._exit(0)
            release.set()
            thread.join()
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_without_close(self):
        """A File that is dropped with transfers in flight frees what it holds."""
        gc.collect()  # Frees what other cases have left.
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            file = penstock.File(path())
            outs = [numpy.zeros(BLOCK, numpy.uint8) for _ in range(50)]
            alive = [weakref.ref(out) for out in outs]
            for i, out in enumerate(outs):
                file.read_async(out, i * BLOCK)
            del file, outs, out
            gc.collect()
            self.assertEqual([ref() for ref in alive], [None] * 50)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)


CUDA = _cuda._libcuda()


def driver(name, *args):
    code = getattr(CUDA, name)(*args)
    if code:
        raise AssertionError(f"{name}: {code}")


class Stream:
    """A stream of the CUDA driver, as torch's streams are. `blocked` is a word for which the stream
    waits after block()."""

    def __init__(self):
        handle, word = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuStreamCreate", ctypes.byref(handle), 1)
        driver("cuMemHostAlloc", ctypes.byref(word), 4096, 0)
        self.cuda_stream = handle.value
        self.word = ctypes.c_uint32.from_address(word.value)
        self.word.value = 0

    def block(self):
        driver("cuStreamWaitValue32_v2", ctypes.c_void_p(self.cuda_stream),
               ctypes.c_uint64(ctypes.addressof(self.word)), 1, 0)

    def release(self):
        self.word.value = 1

    @contextlib.contextmanager
    def blocked(self):
        """Blocks the stream inside the `with` block, also if the block raises an exception. Memory
        of the GPU cannot be freed while a stream is blocked."""
        self.word.value = 0
        self.block()
        try:
            yield
        finally:
            self.release()

    def synchronize(self):
        driver("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


def gpu(length):
    """Returns a tensor on the GPU whose bytes are 0."""
    tensor = penstock.allocate("U8", (length,), "cuda:0")
    zeros = numpy.zeros(length, numpy.uint8)
    driver("cuMemcpyHtoD_v2", ctypes.c_uint64(tensor.ptr), ctypes.c_void_p(zeros.ctypes.data),
           ctypes.c_size_t(length))
    return tensor


def fetch(tensor):
    """Returns the bytes of a tensor on the GPU."""
    out = numpy.zeros(tensor.nbytes, numpy.uint8)
    driver("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(tensor.ptr),
           ctypes.c_size_t(out.nbytes))
    return out


def fill(tensor, byte):
    data = numpy.full(tensor.nbytes, byte, numpy.uint8)
    driver("cuMemcpyHtoD_v2", ctypes.c_uint64(tensor.ptr), ctypes.c_void_p(data.ctypes.data),
           ctypes.c_size_t(len(data)))


class Borrowed:
    """A tensor in the memory of another tensor, like a tensor of torch's allocator: its end frees
    no memory of the driver. `count` is the number of these objects."""
    count = 0

    def __init__(self, owner, length):
        Borrowed.count += 1
        self.__cuda_array_interface__ = {"shape": (length,), "typestr": "|u1", "version": 3,
                                         "data": (owner.ptr, False)}

    def __del__(self):
        Borrowed.count -= 1


class Streams(unittest.TestCase):
    """Transfers in stream order, and in graphs."""

    @classmethod
    def setUpClass(cls):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        driver("cuDeviceGet", ctypes.byref(device), 0)
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        driver("cuCtxPushCurrent_v2", context)
        cls.context = context
        with penstock.File(path()) as file:  # Starts the device's threads.
            file.read(gpu(4096))

    def test_gpu(self):
        """Reads and writes of GPU memory without a stream."""
        with penstock.File(path("gpu"), "r+", create=True) as file, penstock.File(path()) as slab:
            one = gpu(3 << 20)
            slab.read(one, 777)
            file.write_async(one, 5).result()
            self.assertEqual(slab.read(one, 0, length=10, at=20).bytes, 10)
        self.assertTrue(numpy.array_equal(contents("gpu")[5:], BYTES[777:777 + (3 << 20)]))
        self.assertTrue(numpy.array_equal(fetch(one)[20:30], BYTES[:10]))

    def test_order(self):
        """A read starts when the stream reaches it, and a later write sees its bytes."""
        stream = Stream()
        with penstock.File(path()) as slab, penstock.File(path("copy"), "r+", create=True) as copy:
            block, small = gpu(2 * BLOCK), gpu(10)
            stream.block()
            read = slab.read_async([block, small], [4096, 0], stream=stream)
            write = copy.write_async(block, 100, stream=stream)
            time.sleep(0.05)
            self.assertFalse(read.done() or write.done())
            with self.assertRaises(TimeoutError):
                read.result(timeout=0.01)
            stream.release()
            self.assertEqual(read.result().bytes, 2 * BLOCK + 10)
            self.assertEqual(write.result(timeout=60).bytes, 2 * BLOCK)
        self.assertTrue(numpy.array_equal(contents("copy")[100:], BYTES[4096:4096 + 2 * BLOCK]))

    def test_kept(self):
        """The file keeps the tensors of a transfer until the transfer has completed."""
        stream = Stream()
        with penstock.File(path()) as file:
            stream.block()
            alive = []
            for wrap, length in ((lambda one: one, None), (lambda one: one, 50),
                                 (lambda one: [one, one], None)):
                block = gpu(100)
                alive.append(weakref.ref(block))
                file.read_async(wrap(block), stream=stream, length=length)
                del block
            gc.collect()
            kept = [ref() is not None for ref in alive]
            stream.release()
            file.sync()
            self.assertEqual((kept, [ref() for ref in alive]), ([True] * 3, [None] * 3))

    def test_early(self):
        """Early reads of many blocks arrive in stream order."""
        stream = Stream()
        with penstock.File(path()) as file:
            blocks = [gpu(BLOCK) for _ in range(64)]
            stream.block()
            reads = [file.read_async(block, i * BLOCK, stream=stream, early=True)
                     for i, block in enumerate(blocks)]
            self.assertFalse(any(fetch(block).any() for block in blocks))
            stream.release()
            for read in reads:
                self.assertEqual(read.result().bytes, BLOCK)
        for i, block in enumerate(blocks):
            self.assertTrue(numpy.array_equal(fetch(block), BYTES[i * BLOCK:(i + 1) * BLOCK]))

    def test_late(self):
        """Values that change after the start are used, and checked."""
        stream, pool = Stream(), gpu(8 * BLOCK)
        length, offset, at = penstock.Late(), penstock.Late(), penstock.Late()
        with penstock.File(path()) as file:
            stream.block()
            read = file.read_async(pool, offset, length=length, stream=stream)
            other = file.read_async(pool, offset, length=BLOCK, at=at, stream=stream)
            length.value, offset.value, at.value = 300, 1 << 20, 3 * BLOCK
            stream.release()
            self.assertEqual((read.result().bytes, other.result().bytes), (300, BLOCK))
            got = fetch(pool)
            self.assertTrue(numpy.array_equal(got[:300], BYTES[1 << 20:(1 << 20) + 300]))
            self.assertTrue(numpy.array_equal(got[3 * BLOCK:4 * BLOCK],
                                              BYTES[1 << 20:(1 << 20) + BLOCK]))
            self.assertFalse(got[300:3 * BLOCK].any() or got[4 * BLOCK:].any())
            at.value = 7 * BLOCK + 1
            with self.assertRaises(penstock.PenstockError) as caught:
                file.read_async(pool, length=BLOCK, at=at, stream=stream).result()
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            with self.assertRaisesRegex(ValueError, "give the length"):
                file.read_async(pool, at=at, stream=stream)

    def test_graph(self):
        """Each replay of a captured read reads the file again, at the Late number's offset."""
        stream, block, offset = Stream(), gpu(BLOCK), penstock.Late()
        handle, graph, replay = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(), \
            ctypes.c_void_p()
        with penstock.File(path()) as file:
            driver("cuStreamBeginCapture_v2", handle, 0)
            read = file.read_async(block, offset, stream=stream)
            driver("cuStreamEndCapture", handle, ctypes.byref(graph))
            driver("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
            self.assertTrue(read.captured)
            with self.assertRaisesRegex(RuntimeError, "no graph has replayed"):
                read.replayed()
            with self.assertRaisesRegex(RuntimeError, "replayed"):
                read.result()

            def launch():
                driver("cuGraphLaunch", replay, handle)
                stream.synchronize()

            for _ in range(20):
                offset.value = RANDOM.randrange(LENGTH - BLOCK)
                launch()
                self.assertEqual(read.replayed(), BLOCK)
                self.assertTrue(numpy.array_equal(
                    fetch(block), BYTES[offset.value:offset.value + BLOCK]))
            offset.value = LENGTH - 3
            launch()
            with self.assertRaises(penstock.PenstockError) as caught:
                read.replayed()
            self.assertEqual(caught.exception.errno, errno.ENODATA)
            offset.value = 0
        launch()  # The file is closed.
        with self.assertRaises(penstock.PenstockError) as caught:
            read.replayed()
        self.assertEqual(caught.exception.errno, errno.EBADF)
        del offset
        gc.collect()
        launch()  # The graph still reads the Late number.
        driver("cuGraphExecDestroy", replay)
        driver("cuGraphDestroy", graph)

    def test_too_many(self):
        """If too many transfers wait for their streams, the next one fails, and does not hang."""
        for count in (1, 8):
            streams, block = [Stream() for _ in range(count)], gpu(512)
            with self.subTest(streams=count), penstock.File(path()) as file:
                for stream in streams:
                    stream.block()
                started = []
                with unittest.mock.patch.object(_queue, "FULL_SECONDS", 0.3):
                    with self.assertRaises(penstock.PenstockError) as caught:
                        while len(started) < 2000:
                            stream = streams[len(started) % count]
                            started.append(file.read_async(block, stream=stream))
                self.assertEqual(caught.exception.errno, errno.EAGAIN)
                self.assertGreaterEqual(len(started), 80 * count)
                for stream in streams:
                    stream.release()
                for one in started:
                    self.assertEqual(one.result().bytes, 512)

    def test_beside_a_full_stream(self):
        """While one thread waits because its stream has too many transfers, another thread
        transfers on another stream. The first thread continues when its stream does."""
        held, free, block, other = Stream(), Stream(), gpu(512), gpu(512)
        full, reports = threading.Event(), []

        class Library:
            """The library's functions. Sets `full` when a submit finds the stream full."""
            def __getattr__(self, name):
                return getattr(lib, name)

            @staticmethod
            def penstock_submit(*args):
                code = lib.penstock_submit(*args)
                if code == -errno.EAGAIN:
                    full.set()
                return code

        def fill():
            driver("cuCtxPushCurrent_v2", self.context)
            reports.extend(one.result().bytes for one in
                           [file.read_async(block, stream=held) for _ in range(300)])

        def beside():
            driver("cuCtxPushCurrent_v2", self.context)
            reports.append(file.read_async(other, 512, stream=free).result(60).bytes)

        with penstock.File(path()) as file, \
                unittest.mock.patch.object(_queue, "lib", Library()):
            held.block()
            filling, reading = threading.Thread(target=fill), threading.Thread(target=beside)
            filling.start()
            was_full = full.wait(20)
            reading.start()
            reading.join(20)
            read_beside = list(reports)
            held.release()
            reading.join()
            filling.join()
            self.assertTrue(was_full)
            self.assertEqual(read_beside, [512])
            self.assertEqual(reports, [512] * 301)
        self.assertTrue(numpy.array_equal(fetch(other), BYTES[512:1024]))

    def test_submit_while_another_waits(self):
        """While one thread waits because the queue is full, another thread submits and succeeds.
        The first thread's failure leaves the transfer of the other in place."""
        stream, block, other = Stream(), gpu(512), gpu(512)
        with penstock.File(path()) as file:
            stream.block()
            take, inner = _queue.Queue._take, []

            class Library:
                """The library's functions, but one submit finds the queue full."""
                def __getattr__(self, name):
                    return getattr(lib, name)

                @staticmethod
                def penstock_submit(*args):
                    return lib.penstock_submit(*args) if inner else -errno.EAGAIN

            def waits(queue, *args):
                if not inner:
                    inner.append(None)
                    inner[0] = file.read_async(other, 512, stream=stream)
                    raise KeyboardInterrupt
                take(queue, *args)

            with unittest.mock.patch.object(_queue, "lib", Library()), \
                    unittest.mock.patch.object(_queue.Queue, "_take", waits):
                file._queue._pending[0] = _queue._Pending(lambda: None, None, None, [0])
                with self.assertRaises(KeyboardInterrupt):
                    file.read_async(block, 0, stream=stream)
                del file._queue._pending[0]
            self.assertEqual(len(file._queue._pending), 1)
            stream.release()
            self.assertEqual(inner[0].result(timeout=60).bytes, 512)
        self.assertTrue(numpy.array_equal(fetch(other), BYTES[512:1024]))

    def test_result_without_waiting(self):
        """result(timeout=0) returns the report of a transfer that has completed."""
        stream, block = Stream(), gpu(BLOCK)
        with penstock.File(path()) as file:
            stream.block()
            read = file.read_async(block, stream=stream)
            self.assertIn("under way", repr(read))
            with self.assertRaises(TimeoutError):
                read.result(timeout=0)
            stream.release()
            end, report = time.monotonic() + 60, None
            while report is None and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    report = read.result(timeout=0)
            self.assertEqual(report.bytes, BLOCK)
            self.assertIn("completed", repr(read))

    def test_await(self):
        """Tasks that wait for blocked transfers use no threads, and can be cancelled."""
        stream, block = Stream(), gpu(512)

        async def run(file):
            async def wait(one):
                return await one

            stream.block()
            blocked = [file.read_async(block, stream=stream) for _ in range(40)]
            tasks = [asyncio.ensure_future(wait(one)) for one in blocked]
            out = numpy.zeros(100, numpy.uint8)
            await asyncio.wait_for(wait(file.read_async(out, 5)), 60)
            await asyncio.wait_for(asyncio.to_thread(int), 60)
            tasks[3].cancel()
            with self.assertRaises(asyncio.CancelledError):
                await tasks[3]
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(blocked[4]), 0.05)
            return out, blocked  # The loop ends while the stream is blocked.

        async def fail():
            out = numpy.zeros(100, numpy.uint8)
            with penstock.File(path()) as file:
                with self.assertRaises(penstock.PenstockError):
                    await file.read_async(out, LENGTH)
                file.sync()

        asyncio.run(fail())  # Also starts the threads for host memory, which have descriptors.
        with penstock.File(path()) as file:
            timer = threading.Timer(60, stream.release)  # For a test that fails.
            timer.start()
            out, blocked = asyncio.run(run(file))
            self.assertTrue(numpy.array_equal(out, BYTES[5:105]))
            before = len(os.listdir("/proc/self/fd"))  # The library has started its threads.
            blocked += asyncio.run(run(file))[1]
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
            self.assertFalse(any(one.done() for one in blocked))
            timer.cancel()
            stream.release()
            for one in blocked:
                self.assertEqual(one.result().bytes, 512)

    def cancelled(self, file, stream, memory, length):
        """Makes a read that is cancelled before its stream reaches it."""
        read = file.read_async(Borrowed(memory, length), stream=stream)
        read.cancel()
        with self.assertRaises(penstock.PenstockError) as caught:
            read.result()
        self.assertEqual(caught.exception.errno, errno.ECANCELED)

    def released(self, file, free, other):
        """Makes transfers on the stream `free` until no cancelled transfer keeps memory."""
        end = time.monotonic() + 60
        while Borrowed.count and time.monotonic() < end:
            file.read_async(other, stream=free).result()
        self.assertEqual((Borrowed.count, len(_passed._owed), len(_passed._lost)), (0, 0, 0))

    def test_cancelled(self):
        """A cancelled read keeps its tensor until the stream has passed the read. Until then the
        stream may write zeros to the tensor's memory."""
        def cancel(file, stream, length):
            self.cancelled(file, stream, memory, length)

        def close(_, stream, length):
            with penstock.File(path()) as file:
                self.cancelled(file, stream, memory, length)

        def drop(_, stream, length):
            penstock.File(path()).read_async(Borrowed(memory, length), stream=stream)

        def interrupt(_, stream, length):
            with unittest.mock.patch.object(_queue.Queue, "wait_for_all",
                                            side_effect=KeyboardInterrupt):
                with self.assertRaises(KeyboardInterrupt), penstock.File(path()) as file:
                    file.read_async(Borrowed(memory, length), stream=stream)

        # The driver may wait for an idle GPU when it creates a stream.
        stream, memory, free, other = Stream(), gpu(BLOCK), Stream(), gpu(512)
        for end in (cancel, close, drop, interrupt):
            for length in (16384, BLOCK):  # Copied by the stream itself, and by a kernel.
                with self.subTest(end.__name__, length=length), penstock.File(path()) as file:
                    with stream.blocked():
                        end(file, stream, length)
                        gc.collect()
                        file.read_async(other, stream=free).result()
                        kept = Borrowed.count
                        if not kept:
                            fill(memory, 0x77)  # As the next owner of the memory does.
                    stream.synchronize()
                    self.released(file, free, other)
                    if kept:
                        fill(memory, 0x77)
                    self.assertTrue((fetch(memory)[:length] == 0x77).all())
                    self.assertEqual(kept, 1)

    def test_cancelled_before_capture(self):
        """While a stream is being captured into a graph, nothing is recorded on the stream."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
                driver("cuStreamBeginCapture_v2", handle, 0)
                try:
                    file.read_async(other, stream=free).result()
                    events = [one.event for one in _passed._owed]
                finally:
                    driver("cuStreamEndCapture", handle, ctypes.byref(graph))
                driver("cuGraphDestroy", graph)
            self.assertEqual(events, [None])
            self.released(file, free, other)

    def test_cancelled_on_lost_stream(self):
        """The memory stays if the program has destroyed the stream of a cancelled read."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
                driver("cuStreamDestroy_v2", ctypes.c_void_p(stream.cuda_stream))
                file.read_async(other, stream=free).result()
                kept = Borrowed.count, len(_passed._lost)
            _passed._lost.clear()
            self.assertEqual(kept, (1, 1))

    def test_cancelled_on_default_stream(self):
        """The default stream of a thread is asked only by this thread."""
        memory, free, other = gpu(4096), Stream(), gpu(512)

        def settle():
            thread = threading.Thread(target=_passed.settle)
            thread.start()
            thread.join()

        with penstock.File(path()) as file:
            for handle, kept in ((2, 1), (1, 0)):
                place = _passed.place_of_request(handle, "cuda:0")
                _passed.owe(_queue._Pending(None, Borrowed(memory, 4096), None, None, place))
                driver("cuCtxSynchronize")
                end = time.monotonic() + 60
                settle()
                while Borrowed.count > kept and time.monotonic() < end:
                    settle()
                self.assertEqual(Borrowed.count, kept)
                self.released(file, free, other)

    def test_cancelled_in_an_ended_thread(self):
        """The default stream of a thread that has ended is asked by no later thread, even if the
        system gives a later thread the number of the ended one."""
        def owe():
            place = _passed.place_of_request(2, "cuda:0")
            _passed.owe(_queue._Pending(None, Borrowed(memory, 4096), None, None, place))

        memory = gpu(4096)
        driver("cuCtxSynchronize")
        for run in (owe, *[_passed.settle] * 20):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        kept = Borrowed.count
        _passed._owed.clear()
        self.assertEqual(kept, 1)

    def test_settle_interrupted(self):
        """After a signal handler has raised in settle(), at whatever place, the next call frees
        memory again."""
        steps = 0

        def trace(frame, event, _):
            nonlocal steps
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code is _passed.settle.__code__:
                steps -= 1
                if not steps:
                    raise KeyboardInterrupt
            return trace

        self.addCleanup(_passed._owed.clear)
        _passed._owed.append(None)
        with unittest.mock.patch.object(_passed, "_settle") as work:
            for first in range(1, 1000):
                steps = first
                try:
                    sys.settrace(trace)
                    _passed.settle()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
                if steps > 0:
                    break  # The call had fewer steps.
                work.reset_mock()
                _passed.settle()
                self.assertEqual(work.call_count, 1, f"after an exception in step {first}")
        self.assertGreater(first, 20)

    def test_close_without_streams(self):
        """The close of a file without transfers in stream order does not call the driver for the
        cancelled transfers of other files."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
                with unittest.mock.patch.object(_passed, "record_event") as record:
                    with penstock.File(path()) as second:
                        second.read(numpy.empty(512, "u1"))
                self.assertFalse(record.called)
            self.released(file, free, other)

    def test_cancelled_before_fork(self):
        """A child of fork keeps the memory, and does not call the driver for that."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
                child = os.fork()
                if not child:
                    signal.alarm(60)
                    with unittest.mock.patch.object(_cuda, "_libcuda", side_effect=SystemError):
                        _passed.settle()
                    os._exit(0 if Borrowed.count == 1 else 1)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            self.assertEqual(code, 0)
            self.released(file, free, other)

    def test_stream_objects(self):
        """The streams of torch, cupy, numba and cuda.core are accepted."""
        handle = Stream().cuda_stream

        class Cupy:
            ptr = handle

        class Numba:
            handle = ctypes.c_void_p(Cupy.ptr)

        class Core:
            def __cuda_stream__(self):
                return (0, handle)

        for stream in (Cupy(), Numba(), Core(), handle):
            self.assertEqual(_cuda.stream_handle(stream), handle)
        default = Numba()
        default.handle = ctypes.c_void_p(0)
        self.assertEqual((_cuda.stream_handle(0), _cuda.stream_handle(default)), (1, 1))
        with penstock.File(path()) as file:
            block = gpu(100)
            self.assertEqual(file.read_async(block, 3, stream=0).result().bytes, 100)
            self.assertTrue(numpy.array_equal(fetch(block), BYTES[3:103]))


if __name__ == "__main__":
    tap.main()
