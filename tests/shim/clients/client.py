# SPDX-License-Identifier: Apache-2.0
"""What the client scripts share: the program starts again with the drop-in in front
(preloaded) and with a CUDA driver, the machine's or the stand-in; device memory by
that driver alone, so that no client needs a framework. A package that is not there
ends the script with 77 and says so. Called by the scripts beside it."""

import ctypes
import glob
import importlib.util
import os
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 3))
BUILD = os.environ.get("PENSTOCK_BUILD", os.path.join(ROOT, "build"))
SHIM = os.path.join(BUILD, "shim", "libcufile.so.0")
# KvikIO looks up all it knows at once; what it does not call may be this.
ABSENT = ["cuMemcpyBatchAsync"]


def skip(why):
    print(why)
    sys.exit(77)


def driver(folder):
    """The stand-in, with the functions that it lacks as refusals."""
    objects = glob.glob(os.path.join(BUILD, "tests", "standin",
                                     "libcuda.so.1.p", "*.o"))
    source, library = (os.path.join(folder, name)
                       for name in ("absent.c", "libcuda.so.1"))
    with open(source, "w", encoding="utf-8") as f:
        f.write("".join(f"int {name}(void);\nint {name}(void) "
                        "{ return 801; }\n" for name in ABSENT))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library,
                    "-Wl,-soname,libcuda.so.1", *objects, source,
                    "-lpthread"], check=True)
    return library


def start(*packages):
    """Returns in the process that has the drop-in; never in the first one."""
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if not found:
            skip(f"the Python package {package} is not installed")
    if os.environ.get("PENSTOCK_CLIENT"):
        return
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, PENSTOCK_CLIENT=folder, LD_PRELOAD=SHIM)
        if os.environ.get("PENSTOCK_STANDIN") != "0":
            env["PENSTOCK_LIBCUDA"] = driver(folder)
            env["LD_LIBRARY_PATH"] = folder
        done = subprocess.run([sys.executable] + sys.argv, env=env,
                              check=False)
    sys.exit(done.returncode if done.returncode >= 0 else 1)


def which_library():
    """The cuFile library that this process has: the drop-in, and no other."""
    with open("/proc/self/maps", encoding="utf-8") as f:
        names = {line.split()[-1] for line in f if "libcufile.so" in line}
    assert names == {os.path.realpath(SHIM)}, names
    lib = ctypes.CDLL("libcufile.so.0")
    marker = (ctypes.c_char * 9).in_dll(lib, "penstock_cufile_marker")
    assert marker.value == b"penstock", marker.value


class Cuda:
    def __init__(self):
        name = os.environ.get("PENSTOCK_LIBCUDA", "libcuda.so.1")
        try:
            self.lib = ctypes.CDLL(name)
        except OSError as error:
            skip(f"there is no CUDA driver: {error}")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        assert rc == 0, f"{name}: {rc}"


class Memory:
    """Device bytes that clients take by __cuda_array_interface__."""

    def __init__(self, cuda, length):
        at = ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(length))
        self.cuda, self.ptr, self.length = cuda, at.value, length
        self.__cuda_array_interface__ = {
            "shape": (length,), "typestr": "|u1", "data": (self.ptr, False),
            "version": 3, "strides": None}

    def put(self, data):
        self.cuda.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.ptr), data,
                       ctypes.c_size_t(len(data)), None)
        self.cuda.call("cuStreamSynchronize", None)

    def get(self, length=None):
        data = ctypes.create_string_buffer(length or self.length)
        self.cuda.call("cuMemcpyDtoHAsync_v2", data, ctypes.c_uint64(self.ptr),
                       ctypes.c_size_t(len(data)), None)
        self.cuda.call("cuStreamSynchronize", None)
        return data.raw
