# SPDX-License-Identifier: Apache-2.0
"""gen_ffi.py OUT INCLUDE CC...: generates penstock/_ffi.py from the public headers.

OUT is the file to write, INCLUDE the folder of the headers, CC the C compiler with its
arguments. The compiler preprocesses the headers, this script drops all lines of system
headers, and cffi turns the remaining declarations into a Python module. Importing that
module needs no C parser. Meson and the tests run this script, so that the declarations exist
in one place only: the headers."""

import os
import re
import subprocess
import sys
import tempfile

from cffi import FFI

# The structs with which libraries exchange tensors by the DLPack protocol (from dlpack.h).
DLPACK = """
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data; DLDevice device; int32_t ndim; DLDataType dtype;
    int64_t *shape; int64_t *strides; uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor; void *manager_ctx; void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;
"""


def declarations(include, compiler):
    """Returns the preprocessed declarations of penstock*.h, without compiler attributes."""
    header = os.path.join(include, "penstock_ckpt.h")
    text = subprocess.run([*compiler, "-E", "-I", include, header], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    kept, ours = [], False
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = os.path.basename(marker[1]).startswith("penstock")
        elif ours:
            kept.append(line)
    return re.sub(r"__attribute__\s*\(\(.*?\)\)+", "", "\n".join(kept))


def main():
    out, include, *compiler = sys.argv[1:]
    ffi = FFI()
    ffi.cdef(declarations(include, compiler) + DLPACK)
    ffi.set_source("_ffi", None)
    with tempfile.TemporaryDirectory() as folder:
        made = ffi.compile(tmpdir=folder)
        with open(made, encoding="utf-8") as f:
            text = f.read()
    with open(out, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
