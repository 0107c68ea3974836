#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mlperf.py --model 8b|70b|405b|1t [OPTIONS]: runs the checkpointing workload of MLPerf
Storage.

Makes the tensors of some ranks of a training job. The numbers of elements and the types are
those of MLPerf Storage's program DLIO. The tensors are in GPU memory if there is a GPU, else in
host memory. Each rank is a process. In each of ten rounds all ranks save a checkpoint together,
with fsync, and load it again after it has left the page cache. The slowest rank counts. The
checkpoint is then removed, so that the drive needs room for only one. The first and the last
load are compared with what was saved.

Prints a row for each save and load, their medians, and what the whole model would need. Writes
the rows with --csv. With --peer torch, the first --peer-rounds rounds also run torch's
FileSystemWriter and Reader."""

import argparse
import csv
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import penstock.torch
from dcp import drop_caches

warnings.filterwarnings("ignore")
GIB = 1 << 30
VOCABULARY = 128256
# Number of elements that fill() writes, or check() compares, at once.
PIECE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of MLPerf Storage (configs/dlio/workload/llama3_*.yaml in mlcommons/storage)."""
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    tensor: int  # ranks that share a layer (tensor parallelism)
    pipeline: int  # groups of ranks that have different layers (pipeline parallelism)
    data: int  # replicas of the model (data parallelism)
    zero: int  # stage of ZeRO: 3 splits weights and optimizer, 1 only the optimizer
    vocabulary: int = VOCABULARY

    @property
    def ranks(self):
        return self.tensor * self.pipeline * self.data

    @property
    def projections(self):
        """Returns the number of elements of a layer's matrices for queries, keys and values."""
        kv = max(1, self.hidden // self.heads) * self.kv_heads
        return self.hidden * (self.hidden + 2 * kv)

    def parameters(self):
        layer = self.projections + self.hidden * (self.hidden + 3 * self.ffn + 2)
        return 2 * self.vocabulary * self.hidden + self.layers * layer + self.hidden

    def layer(self, index):
        """Returns a list: for each tensor of layer `index`, the number of elements on one rank.
        Layer 0 is the embedding. The last two layers are the output matrix and the last norm."""
        shards = self.data if self.zero == 3 else 1
        parts = shards * self.tensor
        if index in (0, self.layers + 1):
            return [self.hidden * self.vocabulary // parts]
        if index == self.layers + 2:
            return [self.hidden // shards]
        return [self.hidden // shards, self.projections // parts, self.hidden ** 2 // parts,
                self.hidden // shards, 2 * self.hidden * self.ffn // parts,
                self.hidden * self.ffn // parts]

    def layers_of(self, rank):
        """Returns the layers whose weights a rank saves."""
        if self.zero == 1 and rank >= self.tensor * self.pipeline:
            return range(0)  # the ranks of the first replica save the weights
        stage = rank // self.tensor % self.pipeline
        short, longer = divmod(self.layers, self.pipeline)
        first = 1 + stage * short + min(stage, longer)
        after = first + short + (stage < longer)
        return range(0 if stage == 0 else first,
                     self.layers + 3 if stage == self.pipeline - 1 else after)

    def tensors(self, rank):
        """Returns a dict from the names of a rank's tensors to (number of elements, dtype)."""
        found = {f"rank{rank}.layer.{layer}.{i}": (count, torch.float16)
                 for layer in self.layers_of(rank) for i, count in enumerate(self.layer(layer))}
        for i in range(3):  # fp32 weights and the two moments of Adam, each with a short tensor
            found[f"rank{rank}.optimizer.{2 * i}"] = (self.parameters() // self.ranks,
                                                      torch.float32)
            found[f"rank{rank}.optimizer.{2 * i + 1}"] = (5 * self.hidden, torch.float32)
        return found

    def bytes_of(self, rank):
        return sum(count * dtype.itemsize for count, dtype in self.tensors(rank).values())

    def sizes(self):
        """Returns two numbers, each for all ranks together: the bytes of the weights, and the
        bytes of the optimizer's state."""
        optimizer = self.ranks * 3 * 4 * (self.parameters() // self.ranks + 5 * self.hidden)
        return sum(map(self.bytes_of, range(self.ranks))) - optimizer, optimizer

    def scaled(self, scale):
        return dataclasses.replace(self, hidden=max(self.tensor * self.data, self.hidden // scale),
                                   ffn=self.ffn // scale, vocabulary=self.vocabulary // scale)


MODELS = {
    "8b": Model(32, 4096, 14336, 32, 8, tensor=1, pipeline=1, data=8, zero=3),
    "70b": Model(80, 8192, 28672, 128, 8, tensor=8, pipeline=1, data=8, zero=3),
    "405b": Model(126, 16384, 53248, 128, 8, tensor=8, pipeline=32, data=2, zero=1),
    "1t": Model(128, 25872, 98304, 192, 32, tensor=8, pipeline=64, data=2, zero=1),
}


# ---- the tensors ---------------------------------------------------------------------

def pieces(state):
    """Yields a pair for each piece of each tensor: a view of the piece as integers, and the
    integers that fill() writes into it."""
    base = {}
    for name, tensor in state.items():
        whole = tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
        if tensor.device not in base:
            base[tensor.device] = torch.arange(PIECE, dtype=torch.int32,
                                               device=tensor.device) * -1640531527
        for at in range(0, whole.numel(), PIECE):
            piece = whole[at:at + PIECE]
            seed = zlib.crc32(f"{name} {at}".encode()) >> 1
            value = (base[tensor.device][:piece.numel()] + seed) >> 8
            yield piece, value.to(whole.dtype)


def fill(state):
    """Fills all tensors with values that depend on the rank, the tensor and the place in the
    tensor."""
    for piece, value in pieces(state):
        piece.copy_(value)


def check(state, what):
    """Raises RuntimeError if a tensor has other values than fill() gave it."""
    for piece, value in pieces(state):
        if not torch.equal(piece, value):
            raise RuntimeError(f"{what}: a tensor has other bytes than were saved")


def make(model, rank, device):
    state = {name: torch.empty(count, dtype=dtype, device=device)
             for name, (count, dtype) in model.tensors(rank).items()}
    fill(state)
    return state


# ---- what fits this machine ----------------------------------------------------------

def available():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line[:13] == "MemAvailable:")


def fitting(model, folder, device):
    """Returns how many ranks, counted from rank 0, fit into memory and onto the drive at the
    same time."""
    places = [available() * 0.7]
    if device == "cuda":
        places = [torch.cuda.mem_get_info(i)[0] * 0.9 - GIB
                  for i in range(torch.cuda.device_count())]
    space = os.statvfs(folder)
    left, ranks = space.f_bavail * space.f_frsize * 0.9, 0
    while ranks < model.ranks:
        nbytes, place = model.bytes_of(ranks), ranks % len(places)
        # On a GPU, the rank also needs 1 GiB for its CUDA context.
        places[place] -= nbytes + (GIB if device == "cuda" else 0)
        left -= nbytes
        if places[place] < 0 or left < 0:
            break
        ranks += 1
    return ranks


# ---- the workload --------------------------------------------------------------------

def gather(value):
    """Collects one value from each rank. Returns the list of all values, on each rank."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class Rank:
    """The work of one rank, which is a process with its own tensors."""

    def __init__(self, args, model, folder):
        self.args, self.folder, self.rank = args, folder, args.rank
        device = args.device
        if device == "cuda":
            torch.cuda.set_device(args.rank % torch.cuda.device_count())
            device = f"cuda:{torch.cuda.current_device()}"
        self.state = make(model, args.rank, device)
        self.bytes = sum(gather(sum(t.nbytes for t in self.state.values())))
        self.rows = []

    def synchronize(self):
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, what, who, number, call):
        """Runs a call on all ranks, and records the seconds of the slowest rank."""
        self.synchronize()
        gather(None)  # a barrier
        start = time.monotonic()
        target = call()
        self.synchronize()
        seconds = time.monotonic() - start
        report = getattr(target, "report", None)
        found = gather((seconds, report.path if report else "", report.seconds if report else ""))
        slowest = max(found)
        self.rows.append({"model": self.args.model, "scale": self.args.scale, "what": what,
                          "who": who, "round": number, "ranks": len(found),
                          "bytes": self.bytes, "seconds": round(slowest[0], 4),
                          "fastest_rank_seconds": round(min(found)[0], 4),
                          "gb_s": round(self.bytes / slowest[0] / 1e9, 4),
                          "data_seconds": slowest[2] and round(slowest[2], 4),
                          "path": slowest[1]})
        if not self.rank:
            print(f"{what:5} {who:9} round {number:2}: {slowest[0]:9.3f} s "
                  f"{self.bytes / slowest[0] / 1e9:8.2f} GB/s {slowest[1]}", flush=True)

    def first(self, call):
        """Runs a call on the first rank, while the others wait."""
        if not self.rank:
            call()
        gather(None)

    def run(self):
        last = self.args.rounds - 1
        kinds = {"penstock": (penstock.torch.StorageWriter, penstock.torch.StorageReader)}
        if self.args.peer == "torch":
            kinds["torch"] = (dcp.FileSystemWriter, dcp.FileSystemReader)
        for number in range(self.args.rounds):
            for who, (writer, reader) in kinds.items():
                if who != "penstock" and number >= self.args.peer_rounds:
                    continue
                path = os.path.join(self.folder, f"{who}-{number}")
                self.first(os.sync)

                def save(writer=writer(path)):
                    dcp.save(self.state, storage_writer=writer)
                    return writer

                def load(reader=reader(path)):
                    dcp.load(self.state, storage_reader=reader)
                    return reader

                self.timed("save", who, number, save)
                if number in (0, last):
                    for tensor in self.state.values():
                        tensor.zero_()
                self.first(lambda path=path: drop_caches(path))
                self.timed("load", who, number, load)
                if number in (0, last):
                    check(self.state, f"{who}, rank {self.rank}")
                self.first(lambda path=path: shutil.rmtree(path))


def summary(rows, model, within):
    """Prints the medians of the measured times. Also prints the bytes of the whole model, and the
    storage speed that is needed to save or load it within `within` seconds."""
    ranks, nbytes = rows[0]["ranks"], rows[0]["bytes"]
    whole, largest = sum(model.sizes()), max(map(model.bytes_of, range(model.ranks)))
    found = {}
    for row in rows:
        found.setdefault((row["what"], row["who"]), []).append(row["seconds"])
    print(f"\n{'':15} {'median s':>9} {'min':>9} {'max':>9} {'GB/s':>8}   the whole model, if each "
          "rank were as fast as here")
    for (what, who), seconds in found.items():
        middle = statistics.median(seconds)
        rate = nbytes / ranks / middle
        print(f"{what:5} {who:9} {middle:9.3f} {min(seconds):9.3f} {max(seconds):9.3f} "
              f"{nbytes / middle / 1e9:8.2f}   {largest / rate:.1f} s, with storage of "
              f"{whole / (largest / rate) / 1e9:.1f} GB/s")
    print(f"All {model.ranks} ranks: {whole / GIB:,.1f} GiB. To save or load them within "
          f"{within:g} s takes {whole / within / 1e9:,.1f} GB/s in all, "
          f"{largest / within / 1e9:,.2f} GB/s for the largest rank.")


def work(args, model):
    """Main function of a rank's process: connects to the other ranks and runs the workload."""
    if args.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{args.folder}/store", rank=args.rank,
                                world_size=args.ranks)
    me = Rank(args, model, args.folder)
    me.run()
    if not args.rank:
        summary(me.rows, model, args.within)
        if args.csv:
            with open(args.csv, "w", newline="", encoding="utf-8") as out:
                table = csv.DictWriter(out, me.rows[0])
                table.writeheader()
                table.writerows(me.rows)
    if args.ranks > 1:
        dist.destroy_process_group()


def start(args):
    """Starts one process for each rank, and waits for them. Returns 0 if all of them succeed. If
    one fails, ends the others."""
    processes = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:],
                                   "--ranks", str(args.ranks), "--folder", args.folder,
                                   "--rank", str(rank)]) for rank in range(args.ranks)]
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                return 1
            time.sleep(0.05)
        return 1 if any(process.returncode for process in processes) else 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--ranks", type=int, help="number of the model's ranks to run, from the "
                        "first one on (default: as many as memory and drive allow)")
    parser.add_argument("--rounds", type=int, default=10, help="number of saves, and of loads")
    parser.add_argument("--dir", default="/var/tmp", help="folder on the drive to measure")
    parser.add_argument("--device", choices=("cpu", "cuda"),
                        default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peer", choices=("torch", "none"), default="none")
    parser.add_argument("--peer-rounds", type=int, default=1 << 30)
    parser.add_argument("--scale", type=int, default=1,
                        help="divides the width of the model, for a quick test")
    parser.add_argument("--within", type=float, default=60, help="seconds in which the whole "
                        "model is to be saved or loaded, for the last line")
    parser.add_argument("--csv")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse()
    model = MODELS[args.model].scaled(args.scale)
    if args.rank is not None:
        return work(args, model)
    if args.ranks is None:
        args.ranks = fitting(model, args.dir, args.device)
    if not 1 <= args.ranks <= model.ranks:
        return (f"{args.model}: {args.ranks} ranks of {model.ranks}; the first one has "
                f"{model.bytes_of(0) / GIB:.1f} GiB")
    args.folder = tempfile.mkdtemp(prefix="penstock-mlperf.", dir=args.dir)
    weights, optimizer = model.sizes()
    print(f"{args.model}: {model.ranks} ranks, {weights / GIB:,.1f} GiB of weights and "
          f"{optimizer / GIB:,.1f} GiB of the optimizer; {args.ranks} ranks run here, "
          f"{sum(map(model.bytes_of, range(args.ranks))) / GIB:,.2f} GiB on {args.device}, "
          f"files in {args.dir}", flush=True)
    try:
        return start(args)
    finally:
        shutil.rmtree(args.folder)


if __name__ == "__main__":
    sys.exit(main())
