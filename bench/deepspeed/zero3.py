#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zero3.py --dir DIR [OPTIONS]: measures a ZeRO-3 training step of DeepSpeed that swaps to a drive.

It compares the steps with DeepSpeed's option aio.use_gds and without. Each variant is a process of
its own, which trains the same model from the same seed. The processes start together. Then they
take turns, so that only one of them uses the drive at a time: each trains --steps steps, and this
is repeated --rounds times. The losses of all variants must be equal, bit by bit.

Variants: `aio` and `gds` swap parameters and optimizer, without and with use_gds; `aio-optimizer`
and `gds-optimizer` swap only the optimizer. DeepSpeed 0.19.8 reads use_gds for parameters and for
checkpoints, and always swaps the optimizer by aio. `nvidia` is like `gds`, on NVIDIA's libcufile.
The variants with use_gds run on Penstock's drop-in library for cuFile, which the command of
--penstock loads. Their report has the bytes that each of Penstock's paths carried. With --save, two
more variants, `aio-writer` and `gds-writer`, swap nothing: they train one step and save a
checkpoint with DeepSpeed's option checkpoint.writer, which torch.load must be able to read.

Every second round has the opposite order, so that each variant comes after different ones. With
--seconds, no round begins after that time. Prints a table in markdown, also to --table, and writes
the rows to --csv. Exits with 1 if a variant other than `nvidia` failed or has other losses, or if
`gds` moved less than half of the parameters in a step by GDS. SIGINT ends the measurement early,
and the table has the steps until then."""

import argparse
import contextlib
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PEER = "nvidia"
ALL = ("aio", "gds", "aio-optimizer", "gds-optimizer", PEER)


# ---- one variant, in a process of its own ----

def config_of(args):
    """Returns DeepSpeed's configuration of the variant args.worker."""
    elements = args.hidden * args.hidden
    gds = not args.worker.startswith("aio")
    offload = {"device": "nvme", "nvme_path": os.path.join(args.dir, args.worker),
               "pin_memory": True}
    zero = {"stage": 3, "sub_group_size": elements, "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": elements, "stage3_max_live_parameters": elements,
            "offload_optimizer": dict(offload, buffer_count=5)}
    if args.worker.endswith("-writer"):
        zero["offload_optimizer"] = {"device": "cpu"}
        checkpoint = {"writer": {"type": "fast", "io_buffer_size": 64 << 20}}
    else:
        checkpoint = {}
        if not args.worker.endswith("-optimizer"):
            # Without max_in_cpu, DeepSpeed keeps up to 1e9 parameters in host memory.
            zero["offload_param"] = dict(offload, buffer_count=args.layers + 2,
                                         buffer_size=elements, max_in_cpu=0)
    return {"train_micro_batch_size_per_gpu": args.batch, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": zero,
            "checkpoint": checkpoint,
            "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 4,
                    "single_submit": False, "overlap_events": True, "use_gds": gds}}


def engine_of(args):
    import torch
    import deepspeed
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(args.port), CROSS_SIZE="1", CROSS_RANK="0")
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(7)
    layers = []
    for _ in range(args.layers):
        layers += [torch.nn.Linear(args.hidden, args.hidden, bias=False), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                config=config_of(args))[0]


def step_of(engine, args):
    """Returns a function that trains one step and returns the loss."""
    import torch
    from deepspeed.accelerator import get_accelerator
    device = get_accelerator()
    torch.manual_seed(8)
    size = (args.batch, args.hidden)
    data, goal = (torch.randn(size).to(torch.bfloat16).to(device.current_device_name())
                  for _ in range(2))

    def step():
        loss = torch.nn.functional.mse_loss(engine(data).float(), goal.float())
        engine.backward(loss)
        engine.step()
        device.synchronize()
        return loss.item()

    return step


def counted(args):
    """Returns a dict from the name of each path of Penstock to the bytes that this path has carried
    in this process."""
    if args.worker.startswith("aio") or args.worker == PEER or not args.penstock:
        return {}
    done = subprocess.run([args.penstock, "stats", str(os.getpid()), "--json"], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          env={"PATH": os.environ["PATH"]})
    if done.returncode:
        return {}  # This process has not used the library.
    return {f"{name} {way}": path[way + "_bytes"]
            for name, path in json.loads(done.stdout)["paths"].items()
            for way in ("read", "write") if path[way + "_bytes"]}


def save(engine, args):
    """Saves a checkpoint by DeepSpeed's writer. torch.load must be able to read its files."""
    import torch
    folder = os.path.join(args.dir, args.worker, "checkpoint")
    began = time.perf_counter()
    engine.save_checkpoint(folder, tag="t")
    took = time.perf_counter() - began
    names = sorted(os.listdir(os.path.join(folder, "t")))
    for name in names:
        torch.load(os.path.join(folder, "t", name), map_location="cpu", weights_only=False)
    return {"saved": names, "seconds": took, "writer": type(engine.checkpoint_engine).__name__}


def worker(args):
    """Runs in the process of a variant. Reads lines from standard input: a number of steps to
    train, or `save`. Ends when standard input ends."""
    answers = os.fdopen(args.answers, "w", buffering=1)
    engine = engine_of(args)
    step = step_of(engine, args)
    print(json.dumps({"ready": True, "paths": counted(args)}), file=answers)
    for line in sys.stdin:
        if line.strip() == "save":
            answer = save(engine, args)
        else:
            answer = {"seconds": [], "losses": []}
            for _ in range(int(line)):
                began = time.perf_counter()
                loss = step()
                answer["seconds"].append(time.perf_counter() - began)
                answer["losses"].append(loss)
        print(json.dumps(dict(answer, paths=counted(args))), file=answers)
    answers.close()
    sys.stdout.flush()
    os._exit(0)  # Skips the clean-up of DeepSpeed and the libraries, which is not measured.


# ---- the run ----

class Variant:
    """A process that trains with one variant, and the reports that it has printed."""

    def __init__(self, name, number, args):
        self.name, self.seconds, self.losses, self.error = name, [], [], ""
        self.paths, self.before, self.saved = {}, {}, None
        work = os.path.join(args.dir, name)
        os.makedirs(work)
        self.log = os.path.join(args.logs, f"zero3-{name}.log")
        read, write = os.pipe()
        command = [sys.executable, os.path.abspath(__file__), "--worker", name, "--answers",
                   str(write), "--port", str(29600 + number)]
        for option in ("dir", "hidden", "layers", "batch", "penstock"):
            command += [f"--{option}", str(getattr(args, option))]
        env = dict(os.environ, CUFILE_LOGFILE_PATH=os.path.join(args.logs, f"cufile-{name}.log"))
        if name.startswith("gds") and args.penstock:
            command = [args.penstock, "run", "--"] + command
        # Each process ends when its standard input is closed. The kernel closes it also if this
        # script is killed.
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log,
                                            stderr=log, pass_fds=[write], cwd=work, env=env,
                                            encoding="utf-8", start_new_session=True)
        os.close(write)
        self.answers = os.fdopen(read)

    def answer(self):
        """Returns the next report, or None if the process has ended."""
        line = self.answers.readline()
        if not line:
            code = self.process.wait()
            with open(self.log, encoding="utf-8", errors="replace") as log:
                lines = [line for line in log.read().splitlines() if line.strip()]
            self.error = f"exit status {code}: {lines[-1] if lines else 'no output'}"
            return None
        answer = json.loads(line)
        self.paths = answer["paths"]
        return answer

    def ask(self, line):
        if self.error:
            return None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        return self.answer()

    def train(self, steps, measured):
        answer = self.ask(steps)
        if answer:
            self.losses += answer["losses"]
            if measured:
                self.seconds += answer["seconds"]
            else:
                self.before = self.paths

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def moved(self):
        """Returns how many bytes Penstock carried in a measured step, on average."""
        return (sum(self.paths.values()) - sum(self.before.values())) / max(1, len(self.seconds))

    def carried(self):
        """Returns a text with the MB that each path of Penstock carried in a measured step, on
        average."""
        steps = max(1, len(self.seconds))
        return ", ".join(f"{name} {(size - self.before.get(name, 0)) / steps / 1e6:.0f} MB"
                         for name, size in self.paths.items()
                         if size > self.before.get(name, 0))


def rows_of(variants, wanted, args):
    # Half of the parameters' bytes: each of the `layers` layers has hidden * hidden parameters of
    # two bytes.
    least = args.layers * args.hidden * args.hidden
    for variant in variants:
        error = variant.error
        if not error and variant.losses != wanted[:len(variant.losses)]:
            error = f"the losses {variant.losses} are not {wanted}"
        if not error and variant.name == "gds" and args.penstock and variant.moved() < least:
            error = f"{variant.moved():.0f} bytes a step by GDS, at least {least} expected"
        middle = statistics.median(variant.seconds) if variant.seconds else 0.0
        yield {"variant": variant.name, "steps": len(variant.seconds),
               "median_s": f"{middle:.3f}", "min_s": f"{min(variant.seconds, default=0):.3f}",
               "max_s": f"{max(variant.seconds, default=0):.3f}",
               "penstock_per_step": variant.carried() or "nothing",
               "losses": f"{variant.losses[0]:.6f} to {variant.losses[-1]:.6f}"
               if variant.losses else "",
               "checkpoint": variant.saved["writer"] + f" {variant.saved['seconds']:.2f} s"
               if variant.saved else "", "error": error}


def ratios_of(variants, args):
    """Yields a line for each pair of variants. The line has the median step time of the first
    variant divided by that of the second, and the same ratio for each round."""
    seconds = {variant.name: variant.seconds for variant in variants}
    for one, other in (("gds", "aio"), ("gds-optimizer", "aio-optimizer"), ("gds", PEER)):
        ours, peers = seconds.get(one), seconds.get(other)
        if not ours or not peers:
            continue
        rounds = [sum(ours[first:first + args.steps]) / sum(peers[first:first + args.steps])
                  for first in range(0, min(len(ours), len(peers)), args.steps)]
        yield (f"{one} / {other}: {statistics.median(ours) / statistics.median(peers):.3f} of the "
               f"step time; in each round " + ", ".join(f"{ratio:.3f}" for ratio in rounds))


def show(rows, variants, args):
    size = args.layers * args.hidden * args.hidden
    heads = list(rows[0])
    lines = [f"{args.layers} layers, {size} parameters, {12 * size / 1e9:.2f} GB of optimizer "
             f"state, {len(variants[0].seconds) // args.steps} rounds of {args.steps} steps; the "
             "losses of all variants "
             f"{'differ' if any(' are not ' in row['error'] for row in rows) else 'equal'}", "",
             "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(str(value).replace("|", "/") for value in row.values()) + " |"
              for row in rows]
    lines += ["", *ratios_of(variants, args)]
    print("\n".join(lines), flush=True)
    if args.table:
        with open(args.table, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
    if args.csv:
        with open(args.csv, "w", encoding="utf-8", newline="") as out:
            table = csv.DictWriter(out, heads, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


def measure(variants, args):
    began = time.monotonic()
    for variant in variants:
        variant.answer()
    print(f"all variants started after {time.monotonic() - began:.0f} s", flush=True)
    for number in range(args.rounds + 1):
        if number and args.seconds and time.monotonic() - began > args.seconds:
            break
        for variant in variants[::-1] if number % 2 else variants:
            if not number:
                variant.train(1, False)
            elif not variant.name.endswith("-writer"):
                variant.train(args.steps, True)
        print(f"round {number} done after {time.monotonic() - began:.0f} s", flush=True)
    for variant in variants:
        if variant.name.endswith("-writer"):
            variant.saved = variant.ask("save")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--dir", required=True)
    parser.add_argument("--csv")
    parser.add_argument("--table")
    parser.add_argument("--logs")
    parser.add_argument("--penstock", default="")
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(ALL))
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
    args.variants += ["aio-writer", "gds-writer"] if args.save else []
    args.penstock = args.penstock and os.path.abspath(args.penstock)
    args.dir = tempfile.mkdtemp(prefix="penstock-zero3-", dir=args.dir)
    args.logs = os.path.abspath(args.logs or args.dir)
    variants = [Variant(name, number, args) for number, name in enumerate(args.variants)]
    try:
        measure(variants, args)
    except KeyboardInterrupt:
        for variant in variants:
            variant.error = variant.error or "interrupted"
    finally:
        for variant in variants:
            variant.end()
        shutil.rmtree(args.dir, ignore_errors=True)
    ours = [variant for variant in variants if variant.name != PEER]
    rows = list(rows_of(variants, ours[0].losses, args))
    show(rows, variants, args)
    return 1 if any(row["error"] for row in rows if row["variant"] != PEER) else 0


if __name__ == "__main__":
    sys.exit(main())
