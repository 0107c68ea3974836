#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plain.py [OPTIONS]: measures torch.save and torch.load of one file, and penstock.torch.save and
load. Their runs alternate on the same drive. Also measures the limits of the drive.

Prints a table, and writes the raw numbers with --csv. Each row is the median of --runs runs:

  limit write, limit read   plain O_DIRECT calls between host memory and the drive
  save                      the whole call, and fsync of the file and its folder
  load cold                 the whole call into the memory of --device; the page cache is dropped
                            before it
  load cached               the same again, from the page cache

Every loaded object is compared once with the saved one.
"""

import argparse
import os
import shutil
import statistics
import sys

import torch

import penstock.torch
from dcp import drop_caches, in_turn, make_state, plain_io, record, size_of, write_csv


def torch_save(state, path):
    torch.save(state, path)
    for name in (path, os.path.dirname(path)):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def savers(state, folder):
    """Returns a dict of the ways to save. A value is a function that removes the file of an
    earlier save, and returns the function to measure."""
    def case(name, call, **how):
        def make():
            path = os.path.join(folder, name)
            if os.path.exists(path):
                os.unlink(path)
            return lambda: call(state, path, **how)
        return make

    return {"torch": case("torch.pt", torch_save),
            "penstock": case("ours.pt", penstock.torch.save, effort="thrifty"),
            "penstock fast": case("ours.pt", penstock.torch.save, effort="fast")}


class Load:
    """One way to load a file. check() compares the loaded object with `state`."""

    def __init__(self, state, path, device, **how):
        self.state, self.path, self.device, self.how = state, path, device, how

    def __call__(self):
        report = None
        if "effort" in self.how:
            report = penstock.torch.FileReport()
            loaded = penstock.torch.load(self.path, self.device, report=report, **self.how)
            if report.fallback:
                raise RuntimeError(report.fallback)
        else:
            loaded = torch.load(self.path, self.device, **self.how)
        self.loaded = loaded
        return report

    def check(self):
        for name, value in self.state.items():
            if not torch.equal(self.loaded[name], value):
                raise RuntimeError(f"{self.path}: {name} has other bytes than were saved")
        del self.loaded


def loaders(state, folder, device):
    ours, theirs = os.path.join(folder, "ours.pt"), os.path.join(folder, "torch.pt")
    found = {"torch": Load(state, theirs, device),
             "penstock": Load(state, ours, device, effort="thrifty"),
             "penstock fast": Load(state, ours, device, effort="fast"),
             "penstock torch's": Load(state, theirs, device, effort="thrifty")}
    if device != "cpu":  # In host memory a mapped file is not loaded at all.
        found["torch mapped"] = Load(state, theirs, device, mmap=True)
    return found


def run_load(load):
    """Runs a load and drops the loaded object at once, so that memory holds only one object at
    a time."""
    report = load()
    del load.loaded
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp", help="folder on the drive to measure")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bytes", type=float, help="default: 14e9 on a GPU, else 2e9")
    parser.add_argument("--tensor", type=float, default=128e6, help="bytes of a large tensor")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--csv")
    args = parser.parse_args()
    folder = os.path.join(args.dir, f"penstock-plain.{os.getpid()}")
    os.makedirs(folder)
    try:
        wanted = args.bytes or (2e9 if args.device == "cpu" else 14e9)
        state = make_state(int(wanted), args.device, int(args.tensor))
        nbytes = size_of(state)
        print(f"{len(state)} tensors, {nbytes} bytes on {args.device}, files in {args.dir}")
        plain = os.path.join(folder, "plain")
        whole = nbytes // (4 << 20) * (4 << 20)
        for what, write in (("limit write", True), ("limit read", False)):
            for depth in (4, 16):
                times = [plain_io(plain, whole, write, depth) for _ in range(args.runs)]
                record(what, f"{depth} threads", whole, statistics.median(times), 0)
        os.unlink(plain)
        in_turn("save", savers(state, folder), lambda call: call(), nbytes, args.runs, os.sync)
        ways = loaders(state, folder, args.device)
        for load in ways.values():
            load()
            load.check()
        for what, before in (("load cold", lambda: drop_caches(folder)),
                             ("load cached", lambda: None)):
            if what == "load cached":
                for name in ("ours.pt", "torch.pt"):
                    with open(os.path.join(folder, name), "rb") as f:
                        while f.read(64 << 20):
                            pass
            in_turn(what, {name: lambda load=load: load for name, load in ways.items()}, run_load,
                    nbytes, args.runs, before)
    finally:
        shutil.rmtree(folder)
    if args.csv:
        write_csv(args.csv)


if __name__ == "__main__":
    sys.exit(main())
