# SPDX-License-Identifier: Apache-2.0
"""Shared code of the client scripts in this folder. A script starts itself again with `penstock
run`, uses the GPU through another project's program (the client), and prints a line for each step.
This file checks that the client used the drop-in (Penstock's libcufile) and no other libcufile, and
that Penstock counted the bytes. It prints the paths that moved them. The exit status is 0 (passed),
1 (failed) or 77 (not possible on this machine; the reason is printed). This file needs only
Python's standard library. It must never let a client pass if the drop-in did not move the client's
bytes.

Environment: PENSTOCK is the command (default: build/penstock). PENSTOCK_CLIENT_DIR is the folder
for files (default: TMPDIR). PENSTOCK_LIBCUDA is a CUDA driver other than the machine's.
PENSTOCK_WHERE is the library built from where.c, which prints where a client has crashed."""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import traceback

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PENSTOCK = os.path.abspath(os.environ.get(
    "PENSTOCK", os.path.join(os.environ.get("PENSTOCK_BUILD", ROOT + "/build"), "penstock")))
SKIP = 77


def skip(why):
    print(f"skip: {why}", flush=True)
    sys.exit(SKIP)


def step(text):
    print(f"ok - {text}", flush=True)


def need(*packages):
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if not found:
            skip(f"the Python package {package} is not installed")


def version(*names):
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return names[0]


def folder():
    """Returns the folder for the files of this run. The folder is removed when the run
    ends."""
    return os.environ["PENSTOCK_CLIENT"]


def data(length, seed=1):
    return random.Random(seed).randbytes(length)


# ---- start with the drop-in ------------------------------------------------------

def located(env=None):
    """Returns the environment of this process, with the variables in `env` added or
    replaced. If the library of where.c exists, the returned environment preloads it."""
    env, where = dict(os.environ, **(env or {})), os.environ.get("PENSTOCK_WHERE", "")
    if os.path.exists(where):
        env["LD_PRELOAD"] = ":".join(filter(None, (where, env.get("LD_PRELOAD"))))
    return env


def start(audit=False, env=None):
    """Starts this script again in a process with the drop-in (Penstock's libcufile) preloaded.
    Returns only in that process. The first process exits with the exit status of that process."""
    if os.environ.get("PENSTOCK_CLIENT"):
        return
    if not os.access(PENSTOCK, os.X_OK):
        skip(f"no command penstock at {PENSTOCK}")
    place = os.environ.get("PENSTOCK_CLIENT_DIR") or None
    with tempfile.TemporaryDirectory(prefix="penstock-client-", dir=place) as work:
        more = located(dict(env or {}, PENSTOCK_CLIENT=work, PYTHONUNBUFFERED="1",
                            CUFILE_LOGFILE_PATH=os.path.join(work, "cufile.log")))
        command = [PENSTOCK, "run"] + ["--audit"] * audit + ["--", sys.executable] + sys.argv
        done = subprocess.run(command, env=more, stderr=subprocess.PIPE, check=False,
                              encoding="utf-8", errors="replace")
    sys.stderr.write(done.stderr)
    if done.returncode == SKIP:
        sys.exit(SKIP)
    preloaded = [line for line in done.stderr.splitlines()
                 if line.startswith("penstock: ") and ", by LD_PRELOAD" in line]
    if not preloaded:
        print("not ok - `penstock run` did not report that it preloaded the drop-in")
        sys.exit(1)
    print(preloaded[0])
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        print(f"not ok - exit status {done.returncode}: {last}")
    sys.exit(1 if done.returncode else 0)


# ---- the library that was used, and the paths ------------------------------------

class DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def which_library():
    """Returns the path of the library whose cuFileRead this process calls, and checks that it is
    the drop-in (Penstock's libcufile). Also names other libcufiles that are loaded. PyTorch loads
    NVIDIA's libcufile by its absolute path but does not use it; only --audit can replace it by the
    drop-in."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        names = {line.split(None, 5)[5].strip() for line in maps if "libcufile.so" in line}
    found, itself = DlInfo(), ctypes.CDLL(None)
    assert itself.dladdr(ctypes.cast(itself.cuFileRead, ctypes.c_void_p), ctypes.byref(found))
    ours = os.path.realpath(found.file.decode())
    marker = (ctypes.c_char * 9).in_dll(ctypes.CDLL(ours), "penstock_cufile_marker")
    assert marker.value == b"penstock", marker.value
    beside = sorted(name for name in names if os.path.realpath(name) != ours)
    return ours + (f", {', '.join(beside)} is loaded and not used" if beside else
                   ", and no other is loaded")


def counted():
    """Returns the number of bytes that each path moved in this process, as Penstock
    counted them."""
    done = subprocess.run([PENSTOCK, "stats", str(os.getpid()), "--json"], check=True,
                          stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
    paths = json.loads(done.stdout)["paths"]
    moved = {name: path["read_bytes"] + path["write_bytes"] for name, path in paths.items()}
    return {name: size for name, size in moved.items() if size}


def first_uses():
    """Returns the log entries about each file's first read and first write."""
    try:
        with open(os.environ["CUFILE_LOGFILE_PATH"], encoding="utf-8") as log:
            lines = log.read().splitlines()
    except FileNotFoundError:
        return []
    return [match.groups() for line in lines
            for match in [re.search(r": (read into|written from) (\S+) by path (\w+), engine "
                                    r"(\w+)", line)] if match]


def carried(at_least):
    """Checks that Penstock moved at least this many bytes. Prints the paths that moved
    them."""
    paths, uses = counted(), first_uses()
    total = sum(paths.values())
    assert total >= at_least, f"Penstock carried {total} bytes, {at_least} were moved: {paths}"
    assert uses, "the log names no path"
    step(f"Penstock counted {total} bytes ({at_least} were requested)")
    seen = sorted({f"{'read' if how[0] == 'r' else 'write'} {path}/{engine}"
                   for how, _device, path, engine in uses})
    print(f"carried: {', '.join(seen)}; " +
          ", ".join(f"{name} {size >> 10} KiB" for name, size in paths.items()))


def main(name, run):
    """Runs a client by calling `run`, which returns the number of bytes that the client
    moved."""
    print(f"client: {name}", flush=True)
    try:
        moved = run()
        step(f"cuFile is {which_library()}")
        carried(moved)
    except SystemExit:
        raise
    except BaseException as error:  # whatever a client raises is a failure
        traceback.print_exc()
        print(f"not ok - {type(error).__name__}: {error}", flush=True)
        sys.exit(1)
    sys.stdout.flush()


# ---- device memory, without a framework ------------------------------------------

class Cuda:
    """Calls the CUDA driver, for clients that use no framework."""

    def __init__(self):
        try:
            self.lib = ctypes.CDLL(os.environ.get("PENSTOCK_LIBCUDA", "libcuda.so.1"))
        except OSError as error:
            skip(f"there is no CUDA driver: {error}")
        if self.lib.cuInit(0):
            skip("the CUDA driver finds no GPU")
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        assert rc == 0, f"{name}: {rc}"

    def stream(self):
        handle = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(handle), 1)  # non-blocking
        return handle.value

    def wait(self, stream):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))


class Memory:
    """Device memory. Frameworks can use it through __cuda_array_interface__."""

    def __init__(self, cuda, length):
        at = ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(length))
        self.cuda, self.ptr, self.length = cuda, at.value, length
        self.__cuda_array_interface__ = {
            "shape": (length,), "typestr": "|u1", "data": (self.ptr, False),
            "version": 3, "strides": None}

    def put(self, content):
        self.cuda.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.ptr), content,
                       ctypes.c_size_t(len(content)), None)
        self.cuda.call("cuStreamSynchronize", None)

    def clear(self):
        self.put(b"\xa5" * self.length)

    def get(self, length=None, at=0):
        out = ctypes.create_string_buffer(self.length - at if length is None else length)
        self.cuda.call("cuMemcpyDtoHAsync_v2", out, ctypes.c_uint64(self.ptr + at),
                       ctypes.c_size_t(len(out)), None)
        self.cuda.call("cuStreamSynchronize", None)
        return out.raw


def torch_gpu():
    """Returns the module torch. Skips the client if torch finds no GPU."""
    need("torch")
    import torch
    if not torch.cuda.is_available():
        skip("torch finds no GPU")
    return torch


def same(tensor, content):
    """Returns whether a tensor on the GPU contains the bytes `content`."""
    import torch
    flat = tensor.reshape(-1).view(torch.uint8)
    return bytes(flat.cpu().numpy().tobytes()) == bytes(content)
