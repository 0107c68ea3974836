#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvikio_modes.py --file F --csv CSV [--reps N] [--threads 1,8,16] [--name NAME]

Measures how fast KvikIO reads a cached file into GPU memory. Rounds in KvikIO's own POSIX mode
(compat mode on) alternate with rounds in its cuFile mode (compat mode off). Under `penstock run`,
the cuFile mode uses Penstock's libcufile (the drop-in). With --name the script measures only the
cuFile mode, and uses NAME in the CSV. Without `penstock run`, the cuFile mode uses NVIDIA's
library. In each mode the script measures CuFile.read, which KvikIO splits among its threads, and
one raw_read of the whole file. All settings except the number of threads are KvikIO's defaults.
bench/shim/run calls this script."""

import argparse
import os
import sys

import common

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/clients"))
import client  # noqa: E402  device memory by driver calls alone
import kvikio  # noqa: E402
import kvikio.defaults  # noqa: E402

MODES = (("KvikIO POSIX", "ON"), ("KvikIO drop-in", "OFF"))


def measure_mode(args, rows, memory, size, threads, name, mode, rep):
    raw = threads == 0
    kvikio.defaults.set({"compat_mode": getattr(kvikio.CompatMode, mode),
                         "num_threads": max(threads, 1)})
    memory.clear_gpu()
    common.prepare(args.file, size, False)
    group = "warm kvikio " + ("raw_read" if raw else f"x {threads}")
    with kvikio.CuFile(args.file, "r") as file:
        def call():
            got = file.raw_read(memory, size) if raw else file.read(memory, size)
            if got != size:
                raise OSError(f"KvikIO read {got} of {size} bytes")
        if rep < 0:
            call()
        else:
            common.measure(rows, group, name, rep, size, call)
    common.compare_samples(args.file, size, lambda at, length: memory.get(length, at))


class Memory(client.Memory):
    def clear_gpu(self):
        import ctypes
        self.cuda.call("cuMemsetD8Async", ctypes.c_uint64(self.ptr), ctypes.c_ubyte(0x5c),
                       ctypes.c_size_t(self.length), None)
        self.cuda.call("cuStreamSynchronize", None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--file", required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--name")
    parser.add_argument("--threads", default="1,8,16,0", help="0: one raw_read")
    args = parser.parse_args()
    size, rows = os.path.getsize(args.file), common.Rows(args.csv)
    memory = Memory(client.Cuda(), size)
    modes = ((args.name, "OFF"),) if args.name else MODES
    for threads in map(int, args.threads.split(",")):
        for rep in range(-1, args.reps):  # -1 warms up
            for name, mode in modes if rep % 2 else modes[::-1]:
                measure_mode(args, rows, memory, size, threads, name, mode, rep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
