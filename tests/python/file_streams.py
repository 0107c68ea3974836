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
from penstock._lib import lib
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
                with unittest.mock.patch.object(_passed, "record_event",
                                                return_value=None) as record:
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
