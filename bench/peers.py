#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py --file F --csv CSV [--core COMMAND] [--reps N] [warm] [cold] [save]

Measures other programs on the file and the machine that bench_core uses: safetensors'
load_file and save_file, a loop of pread and cudaMemcpy over one buffer (pageable and
pinned), and torch's copy of the same bytes from pageable host memory. The CSV rows have the
format of bench_core. With --core, each round also runs bench_core once, so that both are
measured in the same minute. bench/gpu.sh calls this script. It needs torch. Without
safetensors it skips the measurements of safetensors."""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import time

import torch

PIECE = 64 << 20
SAVE_BYTES = 2 << 30


class Rows:
    """Appends measurements to the CSV, in the format of bench_core."""

    def __init__(self, path):
        self.path = path

    def add(self, group, name, rep, size, seconds, cpu, note=""):
        with open(self.path, "a", encoding="ascii") as out:
            out.write(f"{group},{name},{rep},{size},{seconds:.9f},{cpu:.6f},0.000,0,"
                      f"0.000,0.000,,,{note}\n")
        print(f"{group:10} {name:28} {rep:2} {size / seconds / 1e9:8.2f} GB/s  "
              f"{cpu / size * 1e9:6.4f} CPU-s/GB", file=sys.stderr, flush=True)


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Timer:
    def __enter__(self):
        self.cpu, self.began = cpu_seconds(), time.monotonic()
        return self

    def __exit__(self, *_):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.monotonic() - self.began
        self.cpu = cpu_seconds() - self.cpu


class Peers:
    def __init__(self, args):
        self.file, self.args, self.rows = args.file, args, Rows(args.csv)
        self.size = os.path.getsize(args.file)
        self.device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self.dst = None

    def measure(self, group, name, rep, size, call, note=""):
        with Timer() as timer:
            kept = call()
        del kept
        if rep >= 0:  # -1 warms up
            self.rows.add(group, name, rep, size, timer.seconds, timer.cpu, note)

    def gpu_bytes(self):
        if self.dst is None:
            self.dst = torch.empty(self.size, dtype=torch.uint8, device=self.device)
        return self.dst

    def load_file(self):
        from safetensors.torch import load_file
        return load_file(self.file, device=self.device)

    def pread_copy(self, buf):
        dst, view = self.gpu_bytes(), memoryview(buf.numpy())
        fd = os.open(self.file, os.O_RDONLY)
        try:
            for off in range(0, self.size, PIECE):
                n = min(PIECE, self.size - off)
                if os.preadv(fd, [view[:n]], off) != n:
                    raise OSError("short read")
                dst[off:off + n].copy_(buf[:n])
        finally:
            os.close(fd)

    def warm(self):
        pageable = torch.empty(PIECE, dtype=torch.uint8)
        pageable.fill_(1)
        pinned = pageable.pin_memory() if self.device != "cpu" else None
        source = torch.empty(self.size, dtype=torch.uint8)
        with open(self.file, "rb", buffering=0) as src:
            view = memoryview(source.numpy())
            for off in range(0, self.size, PIECE):
                src.readinto(view[off:off + PIECE])
        for rep in range(-1, self.args.reps):
            if rep >= 0:
                self.core("peer_warm", rep)
            self.measure("peer_warm", "torch pageable copy", rep, self.size,
                         lambda: self.gpu_bytes().copy_(source))
            self.measure("peer_warm", "pread + cudaMemcpy", rep, self.size,
                         lambda: self.pread_copy(pageable))
            if pinned is not None:
                self.measure("peer_warm", "pread + cudaMemcpy pinned", rep, self.size,
                             lambda: self.pread_copy(pinned))
            self.measure_safetensors("peer_warm", rep)

    def measure_safetensors(self, group, rep):
        try:
            self.measure(group, "safetensors load_file", rep, self.size, self.load_file)
        except ImportError as error:
            print(f"peers: safetensors is missing: {error}", file=sys.stderr)

    def drop_cache(self):
        fd = os.open(self.file, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    def cold(self):
        for rep in range(min(self.args.reps, 3)):
            self.drop_cache()
            self.measure_safetensors("peer_cold", rep)

    def save(self):
        from safetensors.torch import save_file
        out = self.file + ".peer"
        count = max(1, min(SAVE_BYTES, self.size) // PIECE)
        tensors = {f"t{i:04}": torch.randint(0, 255, (PIECE,), dtype=torch.uint8,
                                            device=self.device) for i in range(count)}
        size = count * PIECE

        def durable():
            fd = os.open(out, os.O_RDONLY)
            os.fdatasync(fd)
            os.close(fd)

        for rep in range(min(self.args.reps, 3)):
            with Timer() as with_sync:
                self.measure("peer_save", "safetensors save_file", rep, size,
                             lambda: save_file(tensors, out))
                durable()
            self.rows.add("peer_save", "safetensors save_file + fdatasync", rep, size,
                          with_sync.seconds, with_sync.cpu)
            os.unlink(out)

    def core(self, group, rep):
        """Runs one round of bench_core in a separate process."""
        if self.args.core:
            subprocess.run(shlex.split(self.args.core) +
                           ["-g", group, "-r", str(rep), "-n", "1", "beside"], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--file", required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--core", help="command that runs bench_core, without a section")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("parts", nargs="*", default=["warm", "cold", "save"])
    args = parser.parse_args()
    peers = Peers(args)
    failed = False
    for part in args.parts:
        try:
            {"warm": peers.warm, "cold": peers.cold, "save": peers.save}[part]()
        except (ImportError, OSError, RuntimeError) as error:
            print(f"peers: {part}: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
