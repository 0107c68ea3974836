#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weights.py [--dir D] [--device cuda:0] [--layers 15] [--reps 5] [--csv F]
           [warm cold small steps]

Measures the time from opening a model until its tensors can be used. Penstock and the other
installed loaders load the same safetensors file in turn. Each load runs in a separate process,
which earlier has only imported its modules and created the device's context. All processes of a
round are started before the first load of the round. The script prints medians and ratios, and
writes every load to the CSV, whose first lines have the machine, file system and versions. It
compares 16 tensors of each load with the file.

The groups are: `warm`, the file is in the page cache; `cold`, the file was dropped from the
page cache, which is checked before each load; `small`, the microseconds that each of 10,000
tensors of 64 KiB costs, compared with one tensor of the same bytes; `steps`, the time of
each step of the first load in a process.

Limits are measured in the same rounds. For `warm` the limit is a copy from pinned memory.
For `cold` the limit is the fastest of several ways to read with O_DIRECT, as bench_weights
measures it. `raw calls` is not a limit: it loads the file by system and driver calls alone, and
its first load also creates its threads and rings."""

import argparse
import errno
import importlib.metadata
import json
import os
import platform
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import model

OURS = ("penstock thrifty", "penstock fast", "penstock prefetch")
PEERS = ("safetensors", "safetensors prefetch", "fastsafetensors", "runai-model-streamer",
         "instanttensor")
# The fastest ways to read a drive that bench_core has found. A way consists of the engine, the
# number of threads, the number of calls in flight of each thread, and the KiB of a call.
WAYS = (("uring", 1, 16, 1024), ("uring", 4, 4, 1024), ("threads", 16, 1, 1024))
DIRECT = tuple("limit o_direct {} {} x {} x {} KiB".format(*way) for way in WAYS)
SMALL_COUNT, SMALL_BYTES = 10000, 65536
START_S = 90  # Time for a process to import its modules and create its context.

# ---- in the child process: one way to load ------------------------------------------------


def penstock_run(device, effort):
    import penstock
    framework = None if device.startswith("cuda") else "dlpack"
    return lambda path: penstock.load_file(path, device=device, framework=framework,
                                           effort=effort)


def safetensors_run(device):
    try:
        from safetensors.torch import load_file
        return lambda path: load_file(path, device=device)
    except ImportError:
        from safetensors.numpy import load_file as load_numpy
        # load_numpy returns views of a mapped file, whose pages have not been read. A copy
        # reads every page.
        return lambda path: {n: a.copy() for n, a in load_numpy(path).items()}


def prefetch_run(package):
    """Returns a function that loads by safe_open.prefetch of `package`."""
    def make(device):
        safe_open = importlib.import_module(package).safe_open
        if not hasattr(safe_open, "prefetch") or not device.startswith("cuda"):
            raise ImportError(f"this {package} has no prefetch for {device}")

        def run(path):
            with safe_open(path, framework="pt", device=device) as f, f.prefetch() as loader:
                return dict(loader)
        return run
    return make


def fastsafetensors_run(device):
    from fastsafetensors import fastsafe_open

    def run(path):  # The tensors keep their buffer alive: no copy is needed.
        with fastsafe_open(filenames=[path], nogds=True, device=device) as f:
            return {k: f.get_tensor(k) for k in f.keys()}
    return run


def runai_run(device):
    from runai_model_streamer import SafetensorsStreamer

    def run(path):
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return {n: t.to(device) for n, t in streamer.get_tensors()}
    return run


def instanttensor_run(device):
    from instanttensor import safe_open

    def run(path):
        with safe_open(path, framework="pt", device=device) as f:
            return dict(f.tensors())
    return run


def pinned_limit(device):
    import torch
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = []

    def run(path):
        size = os.path.getsize(path)
        for at in range(0, size, host.numel()):
            part = min(host.numel(), size - at)
            there[0][at:at + part].copy_(host[:part], non_blocking=True)

    def before(path):
        there[:] = [torch.empty(os.path.getsize(path), dtype=torch.uint8, device=device)]
    run.before = before
    return run


def in_c(*words):
    """Runs bench_weights and returns the JSON that it prints."""
    program = os.environ.get("BENCH_WEIGHTS") or "build/bench_weights"
    if not os.access(program, os.X_OK):
        raise FileNotFoundError(f"{program} does not exist (--program)")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip()[-200:])
    return json.loads(done.stdout)


def direct_limit(way):
    """Returns a function that reads the file once by bench_weights, which measures the time
    itself."""
    def measure(path):
        got = in_c("drive", path, *map(str, way))
        # bench_weights leaves out the file's last block if it is shorter than the other blocks. So
        # this function scales the times to the whole file.
        whole = os.path.getsize(path) / got["bytes"]
        return got["seconds"] * whole, got["cpu"] * whole

    def run(path):
        raise NotImplementedError(path)
    run.measure = measure
    return run


def raw_calls(device):
    """Loads the file twice by system and driver calls alone, in a process that has only a CUDA
    context."""
    if not device.startswith("cuda"):
        raise RuntimeError("raw calls need a CUDA device")
    again = []

    def measure(path):
        if again:
            return again.pop()
        got = in_c("first", path)
        again.append((got["again"], got["cpu_again"]))
        return got["seconds"], got["cpu"]

    def run(path):
        raise NotImplementedError(path)
    run.measure = measure
    return run


RUNS = {"penstock thrifty": lambda d: penstock_run(d, "thrifty"),
        "penstock fast": lambda d: penstock_run(d, "fast"),
        "penstock prefetch": prefetch_run("penstock"),
        "safetensors": safetensors_run, "safetensors prefetch": prefetch_run("safetensors"),
        "fastsafetensors": fastsafetensors_run,
        "runai-model-streamer": runai_run, "instanttensor": instanttensor_run,
        "raw calls": raw_calls,
        "limit pinned": pinned_limit,
        **{name: lambda _, way=way: direct_limit(way) for name, way in zip(DIRECT, WAYS)}}

# Settings that the manuals of the other loaders recommend for a file in the page cache.
WARM = {"fastsafetensors": {"FASTSAFETENSORS_ODIRECT": "0"},
        "instanttensor": {"INSTANTTENSOR_BACKEND": "BUFFERED"}}


def settle(device):
    if device.startswith("cuda"):
        import torch
        torch.cuda.synchronize()


def warm_up(device):
    if device.startswith("cuda"):
        import torch
        torch.ones(1, device=device).item()


def first_bytes(tensor, count):
    """Returns the first `count` bytes of a tensor of any library, on any device."""
    if type(tensor).__module__.startswith("torch"):
        import torch
        return tensor.reshape(-1)[:count].view(torch.uint8)[:count].cpu().numpy().tobytes()
    if hasattr(tensor, "buffer"):
        return bytes(tensor.buffer()[:count])
    return tensor.tobytes()[:count]


def compare(tensors, path):
    """Compares the first bytes of 16 tensors with the file. Raises ValueError if a tensor is
    missing or differs."""
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        table = json.loads(f.read(length))
        table.pop("__metadata__", None)
        if set(tensors) != set(table):
            raise ValueError(f"{len(tensors)} tensors, the file has {len(table)}")
        for name in random.Random(1).sample(sorted(table), min(16, len(table))):
            begin, end = table[name]["data_offsets"]
            f.seek(8 + length + begin)
            want = f.read(min(4096, end - begin))
            if first_bytes(tensors[name], len(want)) != want:
                raise ValueError(f"{name} has other bytes than the file")


def once(run, path, device):
    if hasattr(run, "measure"):
        return run.measure(path)
    if hasattr(run, "before"):
        run.before(path)
    settle(device)
    cpu, start = time.process_time(), time.monotonic()
    kept = run(path)
    settle(device)
    seconds = time.monotonic() - start
    time.sleep(0.1)  # Work that the load leaves to other threads costs CPU time, too.
    cpu = time.process_time() - cpu
    if kept is not None:
        compare(kept, path)
    return seconds, cpu


def child(name, device):
    """Main function of a child process: prints that it is ready, then reads paths from stdin
    and loads the file of each path."""
    run = RUNS[name](device)
    if not hasattr(run, "measure"):
        warm_up(device)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seconds, cpu = once(run, line.rstrip("\n"), device)
        print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)


def steps(path, device, effort, memory):
    """Prints the time of each step of the first and of the second load in this process. If
    `memory` is true, torch allocates and frees as much GPU memory as the model needs before the
    first load. The driver's time for this allocation is then not part of the first load."""
    import penstock
    from penstock._lib import open_device
    warm_up(device)
    framework = None if device.startswith("cuda") else "dlpack"
    if memory and framework is None:
        import torch
        del_me = torch.empty(os.path.getsize(path) + (1 << 20), dtype=torch.uint8, device=device)
        del del_me
    for which in ("first", "second"):
        settle(device)
        at = [time.monotonic()]
        loaded = penstock.Model(path)
        at.append(time.monotonic())
        open_device(device)
        at.append(time.monotonic())
        tensors, report = loaded.load(device, framework, effort=effort)
        settle(device)
        at.append(time.monotonic())
        took = [1e3 * (b - a) for a, b in zip(at, at[1:])]
        inside = 1e3 * report.seconds
        print(f"{effort:8} {which:7} memory {'there' if memory else 'asked'}: "
              f"header {took[0]:6.2f}, device {took[1]:6.2f}, memory to last byte "
              f"{inside:7.2f}, views and the rest {took[2] - inside:6.2f}, "
              f"in all {sum(took):7.2f} ms by {report.path}", flush=True)
        loaded.close()
        del tensors


# ---- the page cache -----------------------------------------------------------------------


def cached(path):
    """Checks 64 evenly spread places in the file. Returns how many of them are in the page
    cache."""
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
    elif cached(path) < 64:
        while os.read(fd, 16 << 20):
            pass
    os.close(fd)
    found = cached(path)
    return found <= 1 if cold else found >= 63


def file_system(folder):
    best = ("", "?", "?")
    with open("/proc/self/mounts", encoding="utf-8") as f:
        for line in f:
            device, point, kind = line.split()[:3]
            if (os.path.realpath(folder) + "/").startswith(point.rstrip("/") + "/") and \
                    len(point) >= len(best[0]):
                best = (point, kind, device)
    return f"{best[1]} on {best[2]}"


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---- rounds -------------------------------------------------------------------------------


class Child:
    """A child process that has prepared one kind of load, and waits for the parent's request to
    load."""

    def __init__(self, name, device, extra):
        self.name, self.errors = name, tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", name, device], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            env=dict(os.environ, **extra))

    def answer(self, limit):
        """Returns the next line of JSON that the child prints, or the reason why there is
        none. Skips other lines, which libraries print."""
        until = time.monotonic() + limit
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [],
                                        max(0, until - time.monotonic()))
            line = self.process.stdout.readline() if ready else ""
            if line.startswith("{"):
                return json.loads(line), None
            if line:
                continue
            self.process.kill()
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines() or ["the process ended"]
            return None, said[-1][:300] if ready else f"not done within {limit} s"

    def load(self, path, limit=60):
        try:
            self.process.stdin.write(path + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() returns the reason.
        return self.answer(limit)

    def end(self):
        """Ends the process and waits for its exit, so that its memory is free again."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Bench:
    def __init__(self, args):
        self.args, self.rows, self.absent = args, {}, {}
        fresh = not os.path.exists(args.csv)
        self.csv = open(args.csv, "a", encoding="utf-8")
        if fresh:
            versions = {n: version(n) for n in PEERS + ("torch", "penstock")}
            self.csv.write(f"# {platform.platform()}, {file_system(args.dir)}, "
                           f"{os.cpu_count()} CPUs, device {args.device}, {versions}\n")
            self.csv.write("group,name,rep,bytes,seconds,cpu_seconds\n")

    def spawn(self, names, env):
        """Starts the processes. Returns a dict from name to process, with the processes that
        became ready. The script does not start the other processes again."""
        made = [Child(n, self.args.device, env.get(n, {})) for n in names
                if n not in self.absent]
        ready = {}
        for one in made:
            _, why = one.answer(START_S)
            if why:
                self.absent[one.name] = why
                one.end()
            else:
                ready[one.name] = one
        return ready

    def row(self, group, name, rep, path, got):
        size = os.path.getsize(path)
        self.rows.setdefault((group, name), []).append((size, got["seconds"], got["cpu"]))
        self.csv.write(f"{group},{name},{rep},{size},{got['seconds']:.6f},{got['cpu']:.6f}\n")
        self.csv.flush()

    def one(self, group, child_, path, rep, cold):
        name = child_.name
        if not prepare(path, cold):
            self.absent[name] = "the page cache neither kept nor dropped the file as asked"
            return
        got, why = child_.load(path)
        if why:
            self.absent[name] = why
            return
        self.row(group, name, rep, path, got)
        if self.args.again and not cold and not name.startswith("limit"):
            got, why = child_.load(path)
            if not why:
                self.row(group + ", second load of a process", name, rep, path, got)

    def group(self, group, path, cold, names):
        begun = time.monotonic()
        for rep in range(self.args.reps):
            per_round = (time.monotonic() - begun) / rep if rep else 0
            if rep and time.monotonic() + per_round > self.args.until:
                print(f"{group}: {rep} of {self.args.reps} rounds, then the time was over")
                return
            ready = self.spawn(names, {} if cold else WARM)
            order = [n for n in names if n in ready]
            for name in order[rep % len(order):] + order[:rep % len(order)]:
                self.one(group, ready[name], path, rep, cold)
                ready.pop(name).end()

    def median(self, group, name):
        rows = self.rows.get((group, name))
        return rows and (rows[0][0], statistics.median(r[1] for r in rows),
                         statistics.median(r[2] for r in rows))

    def table(self, group, limits):
        bounds = [m for m in (self.median(limits[0], n) for n in limits[1]) if m]
        bound = min(bounds, key=lambda m: m[1]) if bounds else None
        peer = self.median(group, "safetensors")
        print(f"\n{group:60} GB/s    spread      of limit  x safetensors  CPU-s/GB")
        for (where, name), rows in self.rows.items():
            if where != group:
                continue
            size, seconds, cpu = self.median(group, name)
            rates = [size / r[1] / 1e9 for r in rows]
            share = f"{bound[1] / seconds:8.3f}" if bound else "       -"
            times = f"{peer[1] / seconds:8.2f}" if peer else "       -"
            print(f"  {name:56} {size / seconds / 1e9:7.2f} {min(rates):6.2f}-{max(rates):<6.2f}"
                  f" {share} {times:>12} {cpu / size * 1e9:12.4f}")


def small(bench, folder, names):
    """Measures the time that each of many tensors costs. For each package, one process loads two
    files in turn: one with many tensors, and one with a single tensor of the same bytes. The first
    load of each file is not part of the result."""
    many, one = os.path.join(folder, "many.safetensors"), os.path.join(folder, "one.safetensors")
    model.write(many, [(f"t{i:05}", (SMALL_BYTES // 2,)) for i in range(SMALL_COUNT)])
    model.write(one, [("t", (SMALL_COUNT * SMALL_BYTES // 2,))])
    prepare(many, False)
    prepare(one, False)
    ready = bench.spawn(names, WARM)
    for name, running in ready.items():
        for rep in range(-1, bench.args.reps):
            if rep > 0 and time.monotonic() > bench.args.until:
                break
            for group, path in (("one", one), ("many", many)):
                got, why = running.load(path)
                if why:
                    bench.absent[name] = why
                elif rep >= 0:
                    bench.row(group, name, rep, path, got)
            if name in bench.absent:
                break
        running.end()
    print(f"\n{SMALL_COUNT} tensors of 64 KiB compared with one of the same bytes, us per tensor: "
          "more time, more CPU time; GB/s of both")
    for name in names:
        a, b = bench.median("many", name), bench.median("one", name)
        if a and b:
            print(f"  {name:24} {(a[1] - b[1]) / SMALL_COUNT * 1e6:8.2f} "
                  f"{(a[2] - b[2]) / SMALL_COUNT * 1e6:8.2f}   "
                  f"{a[0] / a[1] / 1e9:7.2f} {b[0] / b[1] / 1e9:7.2f}")
    os.unlink(many)
    os.unlink(one)


def bulk(bench, args, groups):
    path, made = args.file, None
    if not path:
        made = path = os.path.join(args.dir, f"penstock-weights-{os.getpid()}.safetensors")
        model.write(path, list(model.llama(args.layers)))
    length = f"{os.path.getsize(path) / 1e9:.1f} GB"
    names = [n for n in OURS + PEERS if not args.only or n in args.only]
    try:
        if "steps" in groups:
            prepare(path, False)
            for effort in ("thrifty", "fast"):
                for memory in ("asked", "there"):
                    subprocess.run([sys.executable, os.path.abspath(__file__), "--steps", path,
                                    args.device, effort, memory], check=False)
        if "warm" in groups:
            title = f"warm {length}"
            bench.group(title, path, False, names + ["raw calls", "limit pinned"])
            bench.table(title, (title, ["limit pinned"]))
            if args.again:
                bench.table(title + ", second load of a process", (title, ["limit pinned"]))
        if "cold" in groups:
            title = f"cold {length}"
            bench.group(title, path, True, names + list(DIRECT))
            bench.table(title, (title, DIRECT))
    finally:
        if made:
            os.unlink(made)


def main():
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
        return
    if sys.argv[1:2] == ["--steps"]:
        steps(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5] == "there")
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="/var/tmp", help="folder for the files that are made")
    parser.add_argument("--file", help="an existing file, which is not removed")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=15, help="15: 8.6 GB, 54: 25.7 GB")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="a second load in each process")
    parser.add_argument("--seconds", type=float, default=1e9,
                        help="no round starts after this time")
    parser.add_argument("--only", action="append",
                        help="only this way to load, such as 'safetensors'")
    parser.add_argument("--csv", default="weights.csv")
    parser.add_argument("--program", help="the program that measures the drive "
                        "(build/bench_weights)")
    parser.add_argument("groups", nargs="*", default=[],
                        choices=["warm", "cold", "small", "steps", []])
    args = parser.parse_args()
    args.until = time.monotonic() + args.seconds
    if args.program:
        os.environ["BENCH_WEIGHTS"] = os.path.abspath(args.program)
    groups = args.groups or ["warm", "cold", "small"]
    bench = Bench(args)
    print(f"{file_system(args.dir)}, device {args.device}, {args.reps} rounds")
    if set(groups) & {"warm", "cold", "steps"}:
        bulk(bench, args, groups)
    if "small" in groups:
        small(bench, args.dir, [n for n in OURS + PEERS if not args.only or n in args.only])
    for name, why in bench.absent.items():
        print(f"left out: {name}: {why}")


if __name__ == "__main__":
    main()
