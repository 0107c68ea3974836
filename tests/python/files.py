# SPDX-License-Identifier: Apache-2.0
"""Tests penstock.File: reads and writes of byte ranges, one after the other and at once. Uses numpy
arrays. file_streams.py tests transfers in stream order."""

import asyncio
import copy
import errno
import gc
import os
import pickle
import random
import select
import shutil
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
from penstock import _queue, _transfer
from penstock._lib import lib
from slab import BLOCK, BYTES, LENGTH, RANDOM, SEED, contents, make, path

setUpModule = make


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


if __name__ == "__main__":
    tap.main()
