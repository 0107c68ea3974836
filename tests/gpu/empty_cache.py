#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""empty_cache.py LIBCUFILE [SECONDS]: reads a file in stream order with cuFileReadAsync of
LIBCUFILE, Penstock's replacement for NVIDIA's library, in several threads. Meanwhile other threads
allocate tensors, copy to them and free them. They also call torch.cuda.empty_cache(), which frees
device memory and so waits until the GPU is idle. Every byte and every result must be right, and the
program must end. Exits with 0, with 1 after a wrong result, or with 77 if there is no GPU or no
torch."""

import ctypes
import os
import sys
import tempfile
import threading
import time

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(77)

FILE_LEN = 64 << 20
LENS = (1, 4096, 65536, 1 << 20, (4 << 20) + 12345)


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("cuda", ctypes.c_int)]


class Descriptor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_longlong), ("ops", ctypes.c_void_p)]


def check(error, what):
    if error.code:
        raise RuntimeError(f"{what}: cuFile error {error.code}")


class Mover(threading.Thread):
    def __init__(self, lib, handle, data, number, until):
        super().__init__()
        self.lib, self.handle, self.data = lib, handle, data
        self.number, self.until = number, until
        self.count, self.wrong = 0, ""

    def run(self):
        try:
            torch.cuda.set_device(0)
            stream = torch.cuda.Stream()
            memory = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
            flags = (0, 7)[self.number % 2]  # late values, or values that are fixed at the call
            check(self.lib.cuFileStreamRegister(ctypes.c_void_p(stream.cuda_stream), flags),
                  "cuFileStreamRegister")
            while time.monotonic() < self.until and not self.wrong:
                self.once(stream, memory)
                self.count += 1
            stream.synchronize()
            self.lib.cuFileStreamDeregister(ctypes.c_void_p(stream.cuda_stream))
        except Exception as error:  # pylint: disable=broad-except
            self.wrong = repr(error)

    def once(self, stream, memory):
        length = LENS[self.count % len(LENS)]
        offset = (self.count * 7919 * 512 + self.number) % (FILE_LEN - length)
        values = [ctypes.c_size_t(length), ctypes.c_longlong(offset), ctypes.c_longlong(4096),
                  ctypes.c_ssize_t(-1)]
        with torch.cuda.stream(stream):
            memory.fill_(0x5a)
            check(self.lib.cuFileReadAsync(
                self.handle, ctypes.c_void_p(memory.data_ptr()), *map(ctypes.byref, values),
                ctypes.c_void_p(stream.cuda_stream)), "cuFileReadAsync")
            got = memory[4096:4096 + length].clone()
        stream.synchronize()
        if values[3].value != length:
            self.wrong = f"{length} bytes at {offset}: result {values[3].value}"
        elif not torch.equal(got.cpu(), self.data[offset:offset + length]):
            self.wrong = f"{length} bytes at {offset}: wrong bytes"


class Disturber(threading.Thread):
    def __init__(self, until):
        super().__init__()
        self.until, self.count = until, 0

    def run(self):
        torch.cuda.set_device(0)
        host = torch.zeros(1 << 20, dtype=torch.uint8).pin_memory()
        while time.monotonic() < self.until:
            tensor = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
            tensor[:1 << 20].copy_(host, non_blocking=True)
            del tensor
            torch.cuda.empty_cache()
            self.count += 1


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if not torch.cuda.is_available():
        print("there is no GPU")
        sys.exit(77)
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10
    lib = ctypes.CDLL(sys.argv[1])
    for name in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileReadAsync",
                 "cuFileStreamRegister", "cuFileStreamDeregister"):
        getattr(lib, name).restype = Error
    torch.zeros(1, device="cuda")
    check(lib.cuFileDriverOpen(), "cuFileDriverOpen")
    with tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp")) as file:
        data = torch.randint(0, 256, (FILE_LEN,), dtype=torch.uint8)
        file.write(data.numpy().tobytes())
        file.flush()
        handle = ctypes.c_void_p()
        descriptor = Descriptor(1, file.fileno(), None)
        check(lib.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(descriptor)),
              "cuFileHandleRegister")
        until = time.monotonic() + seconds
        movers = [Mover(lib, handle, data, i, until) for i in range(8)]
        disturbers = [Disturber(until) for _ in range(2)]
        for thread in movers + disturbers:
            thread.start()
        for thread in movers + disturbers:
            thread.join()
        print(f"{sum(m.count for m in movers)} stream reads beside "
              f"{sum(d.count for d in disturbers)} empty_cache, "
              f"{sum(bool(m.wrong) for m in movers)} wrong")
        wrong = [m.wrong for m in movers if m.wrong]
        lib.cuFileHandleDeregister(handle)
    if wrong:
        sys.exit(wrong[0])


if __name__ == "__main__":
    main()
