#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuda_stubs.py SITE OUT: builds libraries with which torch for CUDA can be imported on a machine
without NVIDIA's libraries. They contain the functions that torch's libraries refer to, but each
of them ends the process. So tests can use an old torch, which PyPI has only for CUDA, without
3 GB of libraries. SITE is the site-packages folder with torch, and OUT the folder for the
libraries, which must be in LD_LIBRARY_PATH. Libraries that SITE has as packages get no stub. One
of them is the CUDA runtime, whose functions torch calls when it is imported. tests/python/run calls
this script."""

import glob
import os
import re
import subprocess
import sys

# Maps the prefix of function names to the library that defines them, for functions without a symbol
# version.
UNVERSIONED = {"nccl": "libnccl.so.2"}


def readelf(option, *files):
    return subprocess.run(["readelf", "-W", option, *files], stdout=subprocess.PIPE, check=True,
                          encoding="utf-8").stdout


def wanted(torch, present):
    """Returns a dict: library -> names of its functions that torch's libraries refer to."""
    files = glob.glob(os.path.join(torch, "*.so*"))
    libraries = {name: set() for name in re.findall(r"\(NEEDED\).*\[(lib(?:cu|nccl)[^]]*)\]",
                                                    readelf("-d", *files))
                 if name not in present and name != "libcuda.so.1"}
    for name, version in re.findall(r" UND (\w+)(?:@(\S+))?", readelf("--dyn-syms", *files)):
        library = version or next((where for prefix, where in UNVERSIONED.items()
                                   if name.startswith(prefix)), None)
        if library in libraries:
            libraries[library].add(name)
    return libraries


def build(library, names, out):
    source = "#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n"
                                               for name in sorted(names))
    script = os.path.join(out, library + ".map")
    with open(script, "w", encoding="ascii") as file:
        file.write(f"{library} {{ global: *; }};\n")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-fno-builtin", "-w", "-x", "c",
                    "-", f"-Wl,-soname,{library},--version-script={script}", "-o",
                    os.path.join(out, library)], input=source, check=True, encoding="ascii")


def main():
    site, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    torch = os.path.join(site, "torch", "lib")
    real = glob.glob(os.path.join(site, "nvidia", "*", "lib", "*.so*"))
    present = set(os.listdir(torch)) | {os.path.basename(path) for path in real}
    for library, names in wanted(torch, present).items():
        build(library, names, out)
    for path in real:
        os.symlink(path, os.path.join(out, os.path.basename(path)))


if __name__ == "__main__":
    main()
