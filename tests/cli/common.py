# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of the command: they run it with and without the stand-in GPU (a simulated
CUDA driver), query the page cache, and print TAP. Only the suites of tests/cli import them. A
helper must never retry, and must never turn a failure into a skip."""

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("PENSTOCK_BUILD",
                                       os.path.join(ROOT, "build")))
PENSTOCK = os.path.join(BUILD, "penstock")
LIBRARY = os.path.join(BUILD, "src", "libpenstock.so.0")
STANDIN = os.path.join(BUILD, "tests", "standin", "libcuda.so.1")
NO_DRIVER = "/no/such/libcuda.so.1"
LIMIT_S = 40
SYS_CACHESTAT = 451


class Skip(Exception):
    """A case raises this exception, with the reason, if it cannot run on this machine."""


class Tap:
    """Counts the cases and prints their results as TAP. The number of cases is the last
    line."""

    def __init__(self):
        self.count = self.failed = 0
        print("TAP version 13", flush=True)

    def ok(self, name, passed, detail=""):
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} - "
              f"{name.replace('#', '')}")
        if not passed:
            for line in str(detail).splitlines():
                print(f"# {line}")
        sys.stdout.flush()
        return passed

    def case(self, name, function, *args):
        """Runs a case, which is a function. The function returns "" if the case passed, and
        otherwise a text that says what is wrong."""
        try:
            wrong = function(*args)
        except Skip as skip:
            self.count += 1
            print(f"# skip: {skip}\nok {self.count} - {name} # SKIP", flush=True)
            return
        except Exception:  # an exception is a failed case
            wrong = traceback.format_exc()
        self.ok(name, not wrong, wrong)

    def end(self):
        print(f"1..{self.count}", flush=True)
        return 1 if self.failed else 0


def environment(gpu=False, **more):
    """Returns the environment of a child process. The child uses a simulated GPU if `gpu` is true
    and no GPU otherwise. It never uses the machine's own GPU."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env["PENSTOCK_BUILD"] = BUILD
    env["PENSTOCK_LIBCUDA"] = STANDIN if gpu else NO_DRIVER
    env["LC_ALL"] = "C"
    env.update(more)
    return env


def run(*args, gpu=False, cwd=None, env=None, prefix=(), **options):
    """Runs penstock with these arguments. Returns its output and exit status."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.run([*prefix, PENSTOCK, *args], cwd=cwd, encoding="utf-8",
                          errors="surrogateescape", stdin=subprocess.DEVNULL,
                          timeout=LIMIT_S, check=False,
                          env=environment(gpu, **(env or {})), **options)


def told(done):
    """Returns the output and exit status of a run as text, for the report of a failure."""
    return (f"exit {done.returncode}\nstdout: {done.stdout}\n"
            f"stderr: {done.stderr}")


def folder(name, place=None):
    """Creates an empty folder, in TMPDIR unless the caller names another place."""
    return tempfile.mkdtemp(prefix=f"penstock-{name}.", dir=place)


def write(path, length, seed=7):
    """Writes a file of `length` bytes and syncs it to the drive. The bytes repeat with a period of
    16396, which is no power of two, so that two chunks of the file never have the same bytes."""
    block = b"".join((i * 2654435761 + seed & 0xffffffff).to_bytes(4, "little")
                     for i in range(4099))
    with open(path, "wb") as f:
        for at in range(0, length, len(block)):
            f.write(block[:length - at])
        f.flush()
        os.fsync(f.fileno())
    return path


def cached_pages(path):
    """Returns how many pages of the file are in the page cache, or None if the kernel does not
    report it."""
    class Range(ctypes.Structure):
        _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]

    class Stat(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in
                    ("cache", "dirty", "writeback", "evicted", "recently")]

    libc = ctypes.CDLL(None, use_errno=True)
    stat, whole = Stat(), Range(0, 0)
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.syscall(SYS_CACHESTAT, fd, ctypes.byref(whole),
                        ctypes.byref(stat), 0):
            return None
    finally:
        os.close(fd)
    return stat.cache


def make_cold(path):
    """Drops the file's pages from the page cache. Raises Skip if the pages stay in the
    cache, or if the kernel does not report whether they stay."""
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 1, 0)
    seen = cached_pages(path)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if seen is None:
        raise Skip("the kernel has no cachestat(2)")
    if not seen:
        raise Skip("TMPDIR's file system does not report what the page cache holds")
    if cached_pages(path):
        raise Skip("TMPDIR's file system keeps its files in memory")


def must_tell(path):
    """Raises Skip if the kernel reports no cached bytes of the file right after a read of
    the file."""
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 1, 0)
    os.close(fd)
    if cached_pages(path) == 0:
        raise Skip("TMPDIR's file system does not report what the page cache holds")


def make_warm(path):
    with open(path, "rb") as f:
        while f.read(1 << 20):
            pass


class Locked:
    """Keeps a file in the page cache by locking its pages, because the kernel may drop pages at
    any time. If this process may lock no memory, it only reads the file."""

    def __init__(self, path):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.length = ctypes.c_size_t(os.path.getsize(path))
        make_warm(path)
        fd = os.open(path, os.O_RDONLY)
        self.at = ctypes.c_void_p(self.libc.mmap(
            None, self.length, mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0)))
        os.close(fd)
        self.locked = self.libc.mlock(self.at, self.length) == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.libc.munmap(self.at, self.length)


def default_signals():
    """Restores the default handling of signals in a child process. This is needed because a
    background job of a shell script ignores SIGINT, and its children inherit this."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


# --- checkpoints ----------------------------------------------------------------

def crc32c(data):
    """Computes the CRC-32C of RFC 3720 bit by bit. It is independent of the library."""
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def checkpoint(folder, seconds, marker=True, manifest=True):
    """Makes a checkpoint in the format of torch.distributed.checkpoint: two parts with two
    items each. Sets the files' modification time to `seconds` after the start of 2020."""
    os.makedirs(folder)
    lines = ['{"penstock_manifest":1,"ranks":2}']
    names = []
    for rank in range(2):
        name = f"__{rank}_0.distcp"
        items = [(f"layer{rank}.weight", bytes([rank + 1]) * 3000),
                 (f"layer{rank}.bias", bytes([rank + 7]) * 500)]
        with open(os.path.join(folder, name), "wb") as f:
            f.write(b"".join(data for _, data in items))
        lines.append(json.dumps({"part": name, "bytes": 3500, "items": [
            [items[0][0], 0, 3000, crc32c(items[0][1])],
            [items[1][0], 3000, 500, crc32c(items[1][1]) if rank else None]]}))
        names.append(name)
    text = "\n".join(lines).encode() + b"\n"
    if manifest:
        with open(os.path.join(folder, "penstock.manifest"), "wb") as f:
            f.write(text + f'{{"parts":2,"crc32c":{crc32c(text)}}}\n'.encode())
        names.append("penstock.manifest")
    if marker:
        with open(os.path.join(folder, ".metadata"), "wb") as f:
            f.write(b"pickle")
        names.append(".metadata")
    for name in names:
        os.utime(os.path.join(folder, name), (1577836800 + seconds,) * 2)
    return folder
