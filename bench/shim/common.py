# SPDX-License-Identifier: Apache-2.0
"""Functions that torch_gds.py, kvikio_modes.py and ../python_blocks.py share. They write CSV rows
in the format of bench_shim, query the page cache with cachestat(2), and call Penstock's own API
(the core) in the same process through bench_core.so. A caller must compare the bytes before it
uses a measured value."""

import ctypes
import os
import resource
import struct
import sys
import time

CACHESTAT = 451
PIECE = 4096


class Rows:
    def __init__(self, path):
        self.path = path

    def add(self, group, name, rep, size, seconds, cpu, note=""):
        with open(self.path, "a", encoding="ascii", errors="replace") as out:
            out.write(f"{group},{name},{rep},{size},{seconds:.9f},{cpu:.6f},0.000,0,"
                      f"0.000,0.000,,,{note}\n")
        print(f"{group:28} {name:24} {rep:2} {size / seconds / 1e9:8.2f} GB/s  "
              f"{cpu / size * 1e9:6.4f} CPU-s/GB {note}", file=sys.stderr, flush=True)


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cached(fd, size):
    """Returns the number of the file's bytes in the page cache."""
    span, found = struct.pack("QQ", 0, size), ctypes.create_string_buffer(40)
    if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, fd, span, found, 0):
        raise OSError(ctypes.get_errno(), "cachestat")
    return struct.unpack("5Q", found.raw)[0] * 4096


def prepare(path, size, cold):
    """Drops the whole file from the page cache if `cold` is true, or else reads it into the
    cache. Raises OSError if that fails."""
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(10):
            if cold:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                if not cached(fd, size):
                    return
            else:
                if cached(fd, size) >= size:
                    return
                buffer = bytearray(8 << 20)
                for at in range(0, size, len(buffer)):
                    os.preadv(fd, [buffer], at)
            time.sleep(0.02)
        raise OSError(f"the page cache cannot be made {'cold' if cold else 'warm'} for the file: "
                      f"{cached(fd, size)} of {size} bytes are cached")
    finally:
        os.close(fd)


def compare_samples(path, size, get):
    """Compares 17 pieces of the destination with the file. get(at, length) returns a piece of
    the destination."""
    with open(path, "rb", buffering=0) as file:
        for i in range(17):
            at = min(size - PIECE, size * i // 16)
            file.seek(at)
            want = file.read(PIECE)
            if bytes(get(at, PIECE)) != want:
                raise ValueError(f"the bytes at {at} differ from the file")


def measure(rows, group, name, rep, size, call, note=""):
    """Measures the time of call(), which must return only when all bytes have arrived. Returns the
    rate in GB/s."""
    cpu, began = cpu_seconds(), time.monotonic()
    call()
    seconds = time.monotonic() - began
    rows.add(group, name, rep, size, seconds, cpu_seconds() - cpu, note)
    return size / seconds / 1e9


class Core:
    """Penstock's own API (the core) with one file and one GPU, called through bench_core.so."""

    def __init__(self, library, path):
        self.lib = ctypes.CDLL(library)
        self.lib.core_read.restype = ctypes.c_int64
        if self.lib.core_open(path.encode(), b"cuda:0") < 0:
            raise OSError("the core cannot open the file or the GPU")

    def read(self, pointer, size):
        got = self.lib.core_read(ctypes.c_void_p(pointer), ctypes.c_uint64(size),
                                 ctypes.c_uint64(0))
        if got != size:
            raise OSError(f"the core read {got} of {size} bytes")

    def close(self):
        self.lib.core_close()
