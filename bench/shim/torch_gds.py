#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_gds.py --file F --csv CSV [--core LIB] [--name NAME] [--reps N] [warm] [cold]

Measures torch.cuda.gds, which loads a file into a tensor. With --core, rounds of torch alternate
with rounds of the core (Penstock's own API). The core reads the same file into the same tensor in
the same process. Under `penstock run`, torch uses Penstock's libcufile (the drop-in), otherwise
NVIDIA's. --name is the name in the CSV; it should name the library that torch uses. In part `warm`
the file is in the page cache. Before part `cold` the script drops the file from the page cache.
bench/shim/run calls this script."""

import argparse
import os
import sys

import common
import torch
from torch.cuda import gds


def measure_rounds(args, rows, group, calls, tensor, size):
    def get(at, length):
        return tensor[at:at + length].cpu().numpy().tobytes()

    names = list(calls)
    for rep in range(-1, args.reps):  # -1 warms up
        for name in names[rep % len(names):] + names[:rep % len(names)]:
            tensor.fill_(0x5c)
            torch.cuda.synchronize()
            common.prepare(args.file, size, group.startswith("cold"))
            if rep < 0:
                calls[name]()
            else:
                common.measure(rows, group, name, rep, size, calls[name])
            common.compare_samples(args.file, size, get)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--file", required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--core")
    parser.add_argument("--name", default="torch.cuda.gds")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("parts", nargs="*", default=["warm", "cold"])
    args = parser.parse_args()
    size, rows = os.path.getsize(args.file), common.Rows(args.csv)
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    storage = tensor.untyped_storage()
    file = gds.GdsFile(args.file, os.O_RDONLY)
    calls = {args.name: lambda: file.load_storage(storage, 0)}
    core = common.Core(args.core, args.file) if args.core else None
    if core:
        calls["core"] = lambda: core.read(tensor.data_ptr(), size)
    for part in args.parts:
        measure_rounds(args, rows, f"{part} torch load", calls, tensor, size)
        gds.gds_register_buffer(storage)
        measure_rounds(args, rows, f"{part} torch load registered", calls, tensor, size)
        gds.gds_deregister_buffer(storage)
    del file
    if core:
        core.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
