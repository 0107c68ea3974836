#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python_blocks.py --file F --csv CSV [--reps N] [--bytes N] [--blocks 65536,...]

Measures how fast Python programs read blocks of a cached file into GPU memory, as caches of
key-value blocks do: all blocks of a repetition are submitted, then the program waits once. The
blocks are at random offsets of the file. In each repetition, these subjects alternate:

    early       penstock.File.read_async with a stream and early=True
    early list  the same, with one call for all blocks
    late        penstock.File.read_async with a stream
    list        one penstock.File.read of all blocks
    plain       os.preadv into pinned memory of two blocks, and a copy by the driver
    kvikio      KvikIO's CuFile.pread, if KvikIO is installed
    kvikio raw  KvikIO's CuFile.raw_read_async with a stream, if KvikIO is installed

After each measurement the script compares all bytes with the file. It then prints the medians."""

import argparse
import collections
import contextlib
import ctypes
import importlib.util
import mmap
import os
import random
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "shim"), os.path.join(HERE, "../tests/clients")]
import client  # noqa: E402  device memory by driver calls alone
import common  # noqa: E402
import penstock  # noqa: E402


class Block:
    """A range of GPU memory, which KvikIO and penstock accept as an array."""

    def __init__(self, ptr, length):
        self.ptr = ptr
        self.__cuda_array_interface__ = {"shape": (length,), "typestr": "|u1",
                                         "data": (ptr, False), "version": 3, "strides": None}


class Plain:
    """Reads by os.preadv into two pinned buffers, each of which the driver copies while the next
    block is read."""

    def __init__(self, cuda, path, length):
        self.cuda, self.fd = cuda, os.open(path, os.O_RDONLY)
        self.slots, self.streams = [], []
        for _ in range(2):
            at = ctypes.c_void_p()
            cuda.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(length), 0)
            self.slots.append((at.value, memoryview(
                (ctypes.c_char * length).from_address(at.value)).cast("B")))
            self.streams.append(cuda.stream())

    def __call__(self, blocks, offsets):
        for i, (block, offset) in enumerate(zip(blocks, offsets)):
            (at, view), stream = self.slots[i % 2], self.streams[i % 2]
            self.cuda.wait(stream)
            if os.preadv(self.fd, [view], offset) != len(view):
                raise OSError("the file is too short")
            self.cuda.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(block.ptr),
                           ctypes.c_void_p(at), ctypes.c_size_t(len(view)),
                           ctypes.c_void_p(stream))
        for stream in self.streams:
            self.cuda.wait(stream)


def subjects(args, cuda, stream, length, stack):
    """Returns a dict from names of subjects to functions that read blocks. Each returns when all
    bytes have arrived."""
    file = stack.enter_context(penstock.File(args.file))

    def in_order(early):
        def call(blocks, offsets):
            transfers = [file.read_async(block, offset, stream=stream, early=early)
                         for block, offset in zip(blocks, offsets)]
            cuda.wait(stream)
            for transfer in transfers:
                transfer.result()
        return call

    def at_once(blocks, offsets):
        transfer = file.read_async(blocks, offsets, stream=stream, early=True)
        cuda.wait(stream)
        transfer.result()

    found = {"early": in_order(True), "early list": at_once, "late": in_order(False),
             "list": lambda blocks, offsets: file.read(blocks, offsets, synchronize=False),
             "plain": Plain(cuda, args.file, length)}
    if importlib.util.find_spec("kvikio"):
        import kvikio
        theirs = stack.enter_context(kvikio.CuFile(args.file, "r"))

        def pread(blocks, offsets):
            for future in [theirs.pread(block, file_offset=offset)
                           for block, offset in zip(blocks, offsets)]:
                future.get()

        def raw(blocks, offsets):
            futures = [theirs.raw_read_async(block, stream, file_offset=offset)
                       for block, offset in zip(blocks, offsets)]
            cuda.wait(stream)
            for future in futures:
                future.check_bytes_done()

        found.update({"kvikio": pread, "kvikio raw": raw})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--file", required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=256 << 20, help="bytes of a repetition")
    parser.add_argument("--blocks", default="16384,65536,262144,1048576,4194304")
    args = parser.parse_args()
    size, rows = os.path.getsize(args.file), common.Rows(args.csv)
    rng, cuda = random.Random(1), client.Cuda()
    memory, stream = client.Memory(cuda, args.bytes), cuda.stream()
    rates = collections.defaultdict(list)
    with open(args.file, "rb") as f, \
            mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as whole:
        for length in map(int, args.blocks.split(",")):
            count = min(args.bytes // length, 2048)
            blocks = [Block(memory.ptr + i * length, length) for i in range(count)]
            with contextlib.ExitStack() as stack:
                found = subjects(args, cuda, stream, length, stack)
                for rep in range(-1, args.reps):  # -1 warms up
                    for name, call in sorted(found.items(), key=lambda _: rng.random()):
                        offsets = [rng.randrange(size // length) * length for _ in blocks]
                        memory.clear()
                        common.prepare(args.file, size, False)
                        if rep < 0:
                            call(blocks, offsets)
                        else:
                            rates[length, name].append(common.measure(
                                rows, f"blocks of {length}", name, rep, count * length,
                                lambda: call(blocks, offsets)))  # noqa: B023
                        got = memory.get(count * length)
                        if any(got[i * length:(i + 1) * length] != whole[at:at + length]
                               for i, at in enumerate(offsets)):
                            raise ValueError(f"{name}: wrong bytes in blocks of {length}")
    for (length, name), values in rates.items():
        print(f"| {length} | {name} | {statistics.median(values):.2f} GB/s "
              f"({min(values):.2f} to {max(values):.2f}) |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
