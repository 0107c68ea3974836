#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcp.py [OPTIONS]: measures saves and loads of torch.distributed.checkpoint in one process. Runs
with torch's own storage and with penstock.torch alternate. Also measures the limits of both.

Prints a table, and writes the raw numbers with --csv. Each row is the median of --runs runs:

  limit write, limit read   plain O_DIRECT calls between pinned host memory and the drive
  limit copy                copies from the GPU into one pinned buffer, made by torch
  save, load                the whole call, with fsync; the page cache is dropped before a load.
                            Each save writes into a folder that does not exist. The column data_s
                            has the seconds in which the bytes moved, from Penstock's reports; the
                            rest of the call is planning, the manifest and the marker
  stall                     the time until async_save returns to the caller
  loop                      a fixed loop of GPU kernels, alone and while async_save writes
"""

import argparse
import csv
import gc
import mmap
import os
import resource
import shutil
import statistics
import sys
import threading
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp

import penstock.torch

warnings.filterwarnings("ignore")
rows = []


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def drop_caches(path):
    """Writes dirty pages, and drops the page cache of all files below `path`."""
    os.sync()
    for folder, _, names in os.walk(path):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def record(what, who, nbytes, seconds, cpu, note="", data=None):
    rows.append({"what": what, "who": who, "bytes": nbytes, "seconds": round(seconds, 4),
                 "gb_s": round(nbytes / seconds / 1e9, 3),
                 "data_s": "" if data is None else round(data, 4),
                 "cpu_s_per_gb": round(cpu / (nbytes / 1e9), 4), "note": note})
    moved = "" if data is None else f", data {data:.3f} s"
    print(f"{what:12} {who:22} {nbytes / seconds / 1e9:8.2f} GB/s {seconds:8.3f} s{moved} "
          f"{cpu / (nbytes / 1e9):7.3f} CPU-s/GB {note}", flush=True)


def write_csv(path):
    with open(path, "w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, rows[0])
        table.writeheader()
        table.writerows(rows)


def timed(call):
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    cpu, start = cpu_seconds(), time.monotonic()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - start, cpu_seconds() - cpu, result


def plain_io(path, nbytes, write, depth):
    """Moves a file by O_DIRECT calls of 4 MiB from `depth` threads, and returns the seconds."""
    piece, flags = 4 << 20, os.O_DIRECT | (os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY)
    buffers = [mmap.mmap(-1, piece) for _ in range(depth)]
    if write and os.path.exists(path):
        os.unlink(path)  # A save writes new files, which takes longer than to overwrite one.
    start = time.monotonic()
    fd = os.open(path, flags, 0o600)
    if write:
        os.posix_fallocate(fd, 0, nbytes)
    offsets, lock = iter(range(0, nbytes, piece)), threading.Lock()

    def work(buffer):
        while True:
            with lock:
                at = next(offsets, None)
            if at is None:
                return
            os.pwrite(fd, buffer, at) if write else os.preadv(fd, [buffer], at)

    threads = [threading.Thread(target=work, args=(b,)) for b in buffers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if write:
        os.fsync(fd)
    seconds = time.monotonic() - start
    os.close(fd)
    return seconds


def make_state(nbytes, device, tensor_bytes):
    torch.manual_seed(0)
    state, left, i = {}, nbytes, 0
    while left > 0:
        count = min(tensor_bytes, left) // 2
        state[f"layers.{i}.weight"] = torch.randn(max(1, count // 1024), 1024, device=device,
                                                  dtype=torch.bfloat16)
        state[f"layers.{i}.norm"] = torch.randn(1024, device=device, dtype=torch.bfloat16)
        left -= state[f"layers.{i}.weight"].nbytes + 2048
        i += 1
    return state


def size_of(state):
    return sum(t.nbytes for t in state.values())


def cleared(folder, name):
    """Removes the folder `name` in `folder` if it exists, and returns its path."""
    path = os.path.join(folder, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def writers(folder):
    return {
        "torch": lambda: dcp.FileSystemWriter(cleared(folder, "torch")),
        "penstock": lambda: penstock.torch.StorageWriter(cleared(folder, "ours")),
        "penstock unsummed": lambda: penstock.torch.StorageWriter(
            cleared(folder, "ours-unsummed"), checksums=False),
    }


def readers(folder):
    return {
        "torch": lambda: dcp.FileSystemReader(os.path.join(folder, "torch")),
        "penstock": lambda: penstock.torch.StorageReader(os.path.join(folder, "ours")),
        "penstock unchecked": lambda: penstock.torch.StorageReader(
            os.path.join(folder, "ours"), checksums=False),
        "penstock torch's": lambda: penstock.torch.StorageReader(os.path.join(folder, "torch")),
    }


def in_turn(what, cases, run, nbytes, runs, before=lambda: None):
    """Measures all cases in turn, `runs` times, and records the median of each case. `cases` is a
    dict from the name of a case to its function make(). For each measurement, calls make() and
    before(), and then run() with the result of make(). Only the time of run() is measured."""
    found = {name: [] for name in cases}
    for _ in range(runs):
        for name, make in cases.items():
            case = make()
            before()
            found[name].append(timed(lambda case=case: run(case)))
    for name, times in found.items():
        middle = sorted(times, key=lambda t: t[0])[len(times) // 2]
        record(what, name, nbytes, middle[0], middle[1], getattr(middle[2], "path", ""),
               getattr(middle[2], "seconds", None))


def snapshot(state, folder, nbytes, runs):
    if not state[next(iter(state))].is_cuda:
        return
    buffer = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    seconds = min(timed(lambda: [buffer.copy_(source, non_blocking=True) for _ in range(8)])[0]
                  for _ in range(3))
    record("limit copy", "torch, 8 GiB", 8 << 30, seconds, 0)
    del buffer, source
    writer = penstock.torch.StorageWriter(os.path.join(folder, "snapshot"))
    kernel = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def loop(until):
        count, start = 0, time.monotonic()
        while not until():
            for _ in range(20):
                torch.mm(kernel, kernel)
            torch.cuda.synchronize()
            count += 20
        return count / (time.monotonic() - start)

    for i in range(runs + 1):
        end = time.monotonic() + 3
        alone = loop(lambda: time.monotonic() > end)
        start = time.monotonic()
        future = dcp.async_save(state, storage_writer=writer)
        stall = time.monotonic() - start
        future = getattr(future, "upload_completion", future)
        beside = loop(future.done)
        future.result()
        shot = writer.report.snapshot
        record("stall", f"penstock save {i}", nbytes, stall, 0,
               f"copies {shot.seconds:.3f} s, pin {shot.pin_seconds:.3f} s, wait "
               f"{shot.wait_seconds:.3f} s, left {shot.left_bytes}")
        record("loop", f"beside save {i}", nbytes, 1, 0, f"ratio {beside / alone:.3f}")
        del future
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp", help="folder on the drive to measure")
    parser.add_argument("--bytes", type=float, default=8e9)
    parser.add_argument("--tensor", type=float, default=128e6, help="bytes of a large tensor")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", default="limits,save,load,snapshot")
    parser.add_argument("--csv")
    args = parser.parse_args()
    folder = os.path.join(args.dir, f"penstock-ckpt.{os.getpid()}")
    os.makedirs(folder)
    try:
        state = make_state(int(args.bytes), args.device, int(args.tensor))
        nbytes = size_of(state)
        print(f"{len(state)} tensors, {nbytes} bytes on {args.device}, files in {args.dir}")
        if "limits" in args.parts:
            plain = os.path.join(folder, "plain")
            whole = nbytes // (4 << 20) * (4 << 20)
            for what, write in (("limit write", True), ("limit read", False)):
                for depth in (4, 16):
                    times = [plain_io(plain, whole, write, depth) for _ in range(args.runs)]
                    record(what, f"{depth} threads", whole, statistics.median(times), 0)
            os.unlink(plain)
        if "save" in args.parts or "load" in args.parts:
            in_turn("save", writers(folder),
                    lambda writer: (dcp.save(state, storage_writer=writer),
                                    getattr(writer, "report", None))[1], nbytes, args.runs,
                    os.sync)
        if "load" in args.parts:
            in_turn("load cold", readers(folder),
                    lambda reader: (dcp.load(state, storage_reader=reader),
                                    getattr(reader, "report", None))[1], nbytes, args.runs,
                    lambda: drop_caches(folder))
        if "snapshot" in args.parts:
            snapshot(state, folder, nbytes, args.runs)
    finally:
        shutil.rmtree(folder)
    if args.csv:
        write_csv(args.csv)


if __name__ == "__main__":
    sys.exit(main())
