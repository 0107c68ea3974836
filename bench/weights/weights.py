#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weights.py [--dir D] [--device cuda:0] [--mib 8192] [--reps 5] [--csv F] [warm] [cold] [small]

From open to usable tensors: this package and whatever peers are installed load the
same safetensors file in turns, each run a fresh process that has imported what it
needs and has the device's context. `warm`: the file is in the page cache; `cold`: it
was dropped, and is looked for there before the run counts; `small`: 10,000 tensors of
64 KiB beside one tensor of the same bytes, as microseconds a tensor. The limits are
measured in the same rounds: a copy from pinned memory for warm, O_DIRECT reads for
cold. Medians and ratios are printed, every run goes to the CSV. The machine, the file
system and the versions are in its first lines."""

import argparse
import errno
import importlib.metadata
import json
import mmap
import os
import platform
import statistics
import struct
import subprocess
import sys
import threading
import time

PEERS = ("safetensors", "fastsafetensors", "runai-model-streamer", "instanttensor")
OURS = ("penstock thrifty", "penstock fast")


# ---- in the child: one run ---------------------------------------------------------

def done(device):
    if device.startswith("cuda"):
        import torch
        torch.cuda.synchronize()


def warm_up(device):
    if device.startswith("cuda"):
        import torch
        torch.ones(1, device=device).item()


def penstock_run(path, device, effort):
    import penstock
    framework = None if device.startswith("cuda") else "dlpack"
    return lambda: penstock.load_file(path, device=device, framework=framework, effort=effort)


def safetensors_run(path, device):
    try:
        from safetensors.torch import load_file
        return lambda: load_file(path, device=device)
    except ImportError:
        from safetensors.numpy import load_file as load_numpy
        # Views of a mapping are not loaded: every page is touched once.
        return lambda: {n: a.copy() for n, a in load_numpy(path).items()}


def fastsafetensors_run(path, device):
    from fastsafetensors import fastsafe_open
    def run():
        with fastsafe_open(filenames=[path], nogds=True, device=device) as f:
            return {k: f.get_tensor(k).clone().detach() for k in f.keys()}
    return run


def runai_run(path, device):
    from runai_model_streamer import SafetensorsStreamer
    def run():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return {n: t.to(device) for n, t in streamer.get_tensors()}
    return run


def instanttensor_run(path, device):
    from instanttensor import safe_open
    def run():
        with safe_open(path, framework="pt", device=device) as f:
            return dict(f.tensors())
    return run


def pinned_limit(path, device):
    import torch
    size = os.path.getsize(path)
    host = torch.empty(min(size, 1 << 30), dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    def run():
        for at in range(0, size, host.numel()):
            part = min(host.numel(), size - at)
            there[at:at + part].copy_(host[:part], non_blocking=True)
        return there
    return run


def direct_limit(path, _device):
    """Eight threads, pieces of 4 MiB, O_DIRECT, as deep as that."""
    size, piece, lock = os.path.getsize(path), 4 << 20, threading.Lock()
    def run():
        fd, state = os.open(path, os.O_RDONLY | os.O_DIRECT), [0]
        def work():
            buffer = mmap.mmap(-1, piece)
            while True:
                with lock:
                    at, state[0] = state[0], state[0] + piece
                if at >= size:
                    return
                os.preadv(fd, [buffer], at)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        os.close(fd)
    return run


RUNS = {"penstock thrifty": lambda p, d: penstock_run(p, d, "thrifty"),
        "penstock fast": lambda p, d: penstock_run(p, d, "fast"),
        "safetensors": safetensors_run, "fastsafetensors": fastsafetensors_run,
        "runai-model-streamer": runai_run, "instanttensor": instanttensor_run,
        "limit pinned": pinned_limit, "limit o_direct": direct_limit}


def child(name, path, device):
    run = RUNS[name](path, device)
    warm_up(device)
    cpu, start = time.process_time(), time.monotonic()
    kept = run()
    done(device)
    seconds = time.monotonic() - start
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu}))
    del kept


# ---- the file ----------------------------------------------------------------------

def make(path, count, each):
    table = {f"t{i:05}": {"dtype": "U8", "shape": [each],
                          "data_offsets": [i * each, (i + 1) * each]} for i in range(count)}
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        block = os.urandom(1 << 20)
        left = count * each
        while left:
            left -= f.write(block[:min(left, len(block))])
        os.fsync(f.fileno())


def cached(path):
    """Of 64 places in the file, how many are in the page cache."""
    fd, size, found = os.open(path, os.O_RDONLY), os.path.getsize(path), 0
    for i in range(64):
        try:
            os.preadv(fd, [bytearray(1)], size * i // 64, os.RWF_NOWAIT)
            found += 1
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    os.close(fd)
    return found


def prepare(path, cold):
    fd = os.open(path, os.O_RDONLY)
    if cold:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        while os.read(fd, 16 << 20):
            pass
    os.close(fd)
    found = cached(path)
    return found <= 1 if cold else found >= 63


# ---- rounds ------------------------------------------------------------------------

class Bench:
    def __init__(self, args):
        self.args, self.rows, self.absent = args, {}, {}
        self.csv = open(args.csv, "w", encoding="utf-8")
        versions = {n: version(n) for n in PEERS + ("torch", "penstock")}
        self.csv.write(f"# {platform.platform()}, {file_system(args.dir)}, {os.cpu_count()} CPUs, "
                       f"device {args.device}, {versions}\n")
        self.csv.write("group,name,rep,bytes,seconds,cpu_seconds\n")

    def one(self, group, name, path, rep, cold):
        if name in self.absent:
            return
        if not prepare(path, cold):
            self.absent[name] = "the page cache does not do as it is told here"
            return
        command = [sys.executable, os.path.abspath(__file__), "--child", name, path,
                   self.args.device]
        ran = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
        if ran.returncode:
            self.absent[name] = (ran.stderr.strip().splitlines() or ["?"])[-1]
            return
        got, size = json.loads(ran.stdout.splitlines()[-1]), os.path.getsize(path)
        self.rows.setdefault((group, name), []).append((size, got["seconds"], got["cpu"]))
        self.csv.write(f"{group},{name},{rep},{size},{got['seconds']:.6f},{got['cpu']:.6f}\n")
        self.csv.flush()

    def group(self, group, path, cold, names):
        for rep in range(self.args.reps):
            order = list(names)
            for name in order[rep % len(order):] + order[:rep % len(order)]:
                self.one(group, name, path, rep, cold)

    def median(self, group, name):
        rows = self.rows.get((group, name))
        return rows and (rows[0][0], statistics.median(r[1] for r in rows),
                         statistics.median(r[2] for r in rows))

    def table(self, group, limit):
        bound, peer = self.median(group, limit), self.median(group, "safetensors")
        print(f"\n{group}: {'':20} GB/s   of limit   x safetensors   CPU-s/GB")
        for (where, name) in self.rows:
            if where != group:
                continue
            size, seconds, cpu = self.median(group, name)
            share = f"{bound[1] / seconds:8.2f}" if bound else "       -"
            times = f"{peer[1] / seconds:8.2f}" if peer else "       -"
            print(f"  {name:24} {size / seconds / 1e9:8.2f} {share} {times:>15} "
                  f"{cpu / size * 1e9:14.3f}")


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def file_system(folder):
    best = ("", "?", "?")
    with open("/proc/self/mounts", encoding="utf-8") as f:
        for line in f:
            device, point, kind = line.split()[:3]
            if (os.path.realpath(folder) + "/").startswith(point.rstrip("/") + "/") and \
                    len(point) >= len(best[0]):
                best = (point, kind, device)
    return f"{best[1]} on {best[2]}"


def small(bench, folder, names):
    many, one = os.path.join(folder, "many.safetensors"), os.path.join(folder, "one.safetensors")
    make(many, 10000, 65536)
    make(one, 1, 10000 * 65536)
    bench.group("many", many, False, names)
    bench.group("one", one, False, names)
    print("\nsmall: 10,000 tensors of 64 KiB over one of the same bytes, us a tensor")
    for name in names:
        a, b = bench.median("many", name), bench.median("one", name)
        if a and b:
            print(f"  {name:24} {(a[1] - b[1]) / 10000 * 1e6:8.2f}")
    os.unlink(many)
    os.unlink(one)


def main():
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--mib", type=int, default=8192)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--csv", default="weights.csv")
    parser.add_argument("groups", nargs="*", choices=["warm", "cold", "small", []], default=[])
    args = parser.parse_args()
    groups = args.groups or ["warm", "cold", "small"]
    bench = Bench(args)
    print(f"{file_system(args.dir)}, device {args.device}, {args.mib} MiB, {args.reps} rounds")
    names = OURS + PEERS
    path = os.path.join(args.dir, f"penstock-weights-{os.getpid()}.safetensors")
    try:
        if set(groups) & {"warm", "cold"}:
            make(path, 256, args.mib * 4096)
        if "warm" in groups:
            bench.group("warm", path, False, names + ("limit pinned",))
            bench.table("warm", "limit pinned")
        if "cold" in groups:
            bench.group("cold", path, True, names + ("limit o_direct",))
            bench.table("cold", "limit o_direct")
        if "small" in groups:
            small(bench, args.dir, names)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    for name, why in bench.absent.items():
        print(f"left out: {name}: {why}")


if __name__ == "__main__":
    main()
