# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.File in stream order and in CUDA graphs, and that it keeps the memory of cancelled
transfers. Uses the GPU that tests/standin simulates. Under tests/gpu/run, the GPU is a real one.
"""

import asyncio
import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import threading
import time
import unittest
import unittest.mock
import weakref

import numpy

import penstock
import tap
from penstock import _cuda, _passed, _queue
from penstock._lib import ffi, lib
from slab import BLOCK, BYTES, LENGTH, RANDOM, contents, make, path

# The number of hardware queues that streams share. With the default of 8 (4 in the stand-in), a
# blocked stream would hold up the transfers of other streams.
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = os.environ["PENSTOCK_STANDIN_HW_QUEUES"] = "32"

setUpModule = make

CUDA = _cuda._libcuda()


def driver(name, *args):
    code = getattr(CUDA, name)(*args)
    if code:
        raise AssertionError(f"{name}: {code}")


class Stream:
    """A stream of the CUDA driver, as torch's streams are. `word` is a word for which the stream
    waits after block(). `handle` is the handle of an existing stream, or None for a new stream."""

    def __init__(self, handle=None):
        word = ctypes.c_void_p()
        if handle is None:
            made = ctypes.c_void_p()
            driver("cuStreamCreate", ctypes.byref(made), 1)
            handle = made.value
        driver("cuMemHostAlloc", ctypes.byref(word), 4096, 0)
        self.cuda_stream = handle
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
        self.assertEqual((Borrowed.count, len(_passed._owed)), (0, 0))

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
        """While streams are being captured into graphs, the memory of a cancelled read is kept
        until its stream has passed the read, and then freed. The graphs stay valid."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        captured = Stream()
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
                for one in (stream, captured):
                    handle, graph = ctypes.c_void_p(one.cuda_stream), ctypes.c_void_p()
                    driver("cuStreamBeginCapture_v2", handle, 0)
                    try:
                        file.read_async(other, stream=free).result()
                        kept = Borrowed.count
                        if one is captured:
                            stream.release()
                            self.released(file, free, other)
                    finally:
                        driver("cuStreamEndCapture", handle, ctypes.byref(graph))
                    driver("cuGraphDestroy", graph)
                    self.assertEqual(kept, 1)

    def test_cancelled_on_destroyed_stream(self):
        """The program destroys the stream of a cancelled read. The stream still executes the work
        that is queued on it. The memory is kept until then, and then freed."""
        memory, free, other = gpu(BLOCK), Stream(), gpu(512)
        for length in (16384, BLOCK):  # Copied by the stream itself, and by a kernel.
            stream = Stream()
            with self.subTest(length=length), penstock.File(path()) as file:
                with stream.blocked():
                    self.cancelled(file, stream, memory, length)
                    driver("cuStreamDestroy_v2", ctypes.c_void_p(stream.cuda_stream))
                    file.read_async(other, stream=free).result()
                    kept = Borrowed.count
                self.released(file, free, other)
                fill(memory, 0x77)
                self.assertEqual(kept, 1)
                self.assertTrue((fetch(memory)[:length] == 0x77).all())

    def test_cancelled_on_default_stream(self):
        """A read on a default stream is cancelled. Its memory is freed after the stream has passed
        the read, also if the stream belongs to a thread that has ended."""
        memory, free, other = gpu(4096), Stream(), gpu(512)

        def start():
            driver("cuCtxPushCurrent_v2", self.context)
            stream.block()
            self.cancelled(file, stream, memory, 4096)

        for handle in (1, 2):  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
            stream = Stream(handle)
            with self.subTest(handle), penstock.File(path()) as file:
                try:
                    thread = threading.Thread(target=start)
                    thread.start()
                    thread.join()
                    file.read_async(other, stream=free).result()
                    kept = Borrowed.count
                finally:
                    stream.release()
                self.released(file, free, other)
                self.assertEqual(kept, 1)

    def test_cancel_without_effect(self):
        """The memory of a read that was cancelled too late is kept, and freed like that of other
        cancelled reads. Such a read may succeed before its stream has passed it."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)

        class Library:
            """The library's functions, but no cancel has an effect."""
            def __getattr__(self, name):
                return getattr(lib, name)

            @staticmethod
            def penstock_cancel(*_):
                return 0

        with penstock.File(path()) as file:
            with stream.blocked():
                read = file.read_async(Borrowed(memory, 4096), stream=stream)
                with unittest.mock.patch.object(_queue, "lib", Library()):
                    read.cancel()
                owed = len(_passed._owed)
            self.assertEqual((owed, read.result(60).bytes), (1, 4096))
            self.released(file, free, other)

    def test_refused(self):
        """The library refuses a read because the driver has failed. The memory is kept while the
        stream may execute operations of the read."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)

        class Library:
            """The library's functions, but each submit fails. `passed` is what the library tells
            about streams."""
            passed = 0

            def __getattr__(self, name):
                return getattr(lib, name)

            @staticmethod
            def penstock_submit(*_):
                return -errno.EIO

            def penstock_stream_passed(self, *_):
                return self.passed

        with penstock.File(path()) as file:
            for passed in (0, 1):
                library = Library()
                library.passed = passed
                with unittest.mock.patch.object(_queue, "lib", library), \
                        unittest.mock.patch.object(_passed, "lib", library):
                    with self.assertRaises(penstock.PenstockError):
                        file.read_async(Borrowed(memory, 4096), stream=stream)
                    self.assertEqual(Borrowed.count, 1 - passed)
                self.released(file, free, other)

    def test_numbers(self):
        """Cancelled reads of two files on one GPU are told apart."""
        streams, memory, free, other = [Stream(), Stream()], gpu(4096), Stream(), gpu(512)
        with penstock.File(path()) as one, penstock.File(path()) as two:
            with streams[0].blocked():
                with streams[1].blocked():
                    self.cancelled(one, streams[0], memory, 100)
                    self.cancelled(two, streams[1], memory, 100)
                streams[1].synchronize()
                two.read_async(other, stream=free).result()
                two.read_async(other, stream=free).result()
                kept = Borrowed.count
            self.assertEqual(kept, 1)
            self.released(one, free, other)

    def test_settle_interrupted(self):
        """A signal handler raises in settle(), at whatever place. No memory is freed too early, and
        the next call frees all memory whose streams have passed."""
        class Library:
            """Tells that streams have passed the requests with odd numbers."""
            @staticmethod
            def penstock_stream_passed(_, user):
                return int(ffi.cast("uintptr_t", user)) % 2

        class Dropped:
            """A queue that is dropped without close()."""

        def trace(frame, event, _):
            nonlocal steps
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_filename == _passed.__file__:
                steps -= 1
                if not steps:
                    raise KeyboardInterrupt
            return trace

        def request():
            return _queue._Pending(None, Memory(), None, None, device)

        class Memory:
            """The memory of a request."""

        self.addCleanup(_passed._owed.clear)
        device = _queue.open_holder("cuda:0")
        with unittest.mock.patch.object(_passed, "lib", Library()):
            for first in range(1, 2000):
                queue, pending = Dropped(), {5: request(), 6: request()}
                requests = {1: request(), 2: request(), 3: request(), **pending}
                memory = {number: weakref.ref(one.keep) for number, one in requests.items()}
                for number in (1, 2, 3):
                    _passed._owed[number] = requests[number].keep, device
                _passed.watch(queue, pending)
                del queue, pending, requests
                steps = first
                try:
                    sys._getframe().f_trace_opcodes = True  # Else Python 3.12 traces no steps.
                    sys.settrace(trace)
                    _passed.settle()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
                early = [number for number in (2, 6) if memory[number]() is None]
                done = steps > 0  # The call had fewer steps.
                _passed.settle()
                gc.collect()
                self.assertEqual((early, sorted(_passed._owed), len(_passed._dropped)),
                                 ([], [2, 6], 0), f"after an exception in step {first}")
                self.assertEqual([number for number in memory if memory[number]() is not None],
                                 [2, 6])
                if done:
                    break
                _passed._owed.clear()
        self.assertGreater(first, 50)

    def test_settle_in_threads(self):
        """Threads that settle at the same time free all memory, and never fail."""
        class Library:
            """Tells that streams have passed all requests, but takes a while for that."""
            @staticmethod
            def penstock_stream_passed(*_):
                time.sleep(0.0001)
                return 1

        def run():
            try:
                for _ in range(20):
                    _passed.settle()
            except BaseException as error:  # pylint: disable=broad-exception-caught
                errors.append(error)

        class Dropped:
            """A queue that is dropped without close()."""

        class Pending:
            """A request that is not in stream order. Lets other threads run."""
            @property
            def device(self):
                time.sleep(0.0001)

        errors, device = [], _queue.open_holder("cuda:0")
        with unittest.mock.patch.object(_passed, "lib", Library()):
            for _ in range(10):
                threads = [threading.Thread(target=run) for _ in range(4)]
                for number in range(50):
                    _passed._owed[number] = object(), device
                for _ in range(20):
                    _passed.watch(Dropped(), {1: Pending()})
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual((errors, len(_passed._owed), len(_passed._dropped)), ([], 0, 0))

    def test_close_without_streams(self):
        """The close of a file without transfers in stream order frees no memory of cancelled
        transfers of other files, because that may wait for the GPU."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
            stream.synchronize()
            with penstock.File(path()) as second:
                second.read(numpy.empty(512, "u1"))
            kept = Borrowed.count
            self.released(file, free, other)
            self.assertEqual(kept, 1)

    def test_close_with_streams(self):
        """The close of a file with transfers in stream order frees memory."""
        stream, memory, other = Stream(), gpu(4096), gpu(512)
        with penstock.File(path()) as file:
            with penstock.File(path()) as second:
                second.read_async(other, stream=stream).result()
                with stream.blocked():
                    self.cancelled(file, stream, memory, 4096)
                stream.synchronize()
                self.assertEqual(Borrowed.count, 1)
            self.assertEqual(Borrowed.count, 0)

    def test_cancelled_before_fork(self):
        """A child of fork keeps the memory, and can call settle()."""
        stream, memory, free, other = Stream(), gpu(4096), Stream(), gpu(512)
        with penstock.File(path()) as file:
            with stream.blocked():
                self.cancelled(file, stream, memory, 4096)
                child = os.fork()
                if not child:
                    signal.alarm(60)
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
