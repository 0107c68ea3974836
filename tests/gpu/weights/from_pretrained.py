#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""from_pretrained.py FOLDER [--device cuda:0]: loads a generated model with transformers.

It loads the model twice with the safetensors package and twice with
penstock.patch_safetensors(), alternately. Each load runs in a new process. For the same tokens,
the logits of all loads must be equal bit by bit. Prints how many seconds from_pretrained took,
and the results. Exits with 0, with 1 if the logits differ, or with 77 if a package is
missing."""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time


def run(folder, device, patched):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if device.startswith("cuda"):
        torch.ones(1, device=device).item()
    opened = [0]
    if patched:
        import penstock
        penstock.patch_safetensors()
        old = penstock.safe_open.__init__

        def counted(self, *args, **how):
            opened[0] += 1
            old(self, *args, **how)
        penstock.safe_open.__init__ = counted
    cpu, start = time.process_time(), time.monotonic()
    made = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map=device, attn_implementation="eager")
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    words = torch.arange(1, 65, device=device).reshape(1, -1) * 11
    with torch.no_grad():
        logits = made(words).logits.float().cpu()
    digest = hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()
    print(json.dumps({
        "seconds": seconds, "cpu": cpu, "logits": digest, "shape": list(logits.shape),
        "finite": bool(torch.isfinite(logits).all()), "spread": float(logits.std()),
        "opened": opened[0], "where": str(next(made.parameters()).device),
        "bytes": sum(p.numel() * p.element_size() for p in made.parameters())}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--one", choices=["patched", "unpatched"], help="in this process")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if args.one:
        run(args.folder, args.device, args.one == "patched")
        return 0
    for name in ("torch", "transformers", "accelerate", "safetensors"):
        if not importlib.util.find_spec(name):
            print(f"the package {name} is not installed")
            return 77
    got = {}
    for i in range(args.rounds):
        for kind in ("unpatched", "patched") if i % 2 == 0 else ("patched", "unpatched"):
            ran = subprocess.run([sys.executable, os.path.abspath(__file__), args.folder,
                                  "--device", args.device, "--one", kind], text=True,
                                 capture_output=True, timeout=200, check=False)
            if ran.returncode:
                print(f"{kind}: {ran.stderr[-3000:]}")
                return 1
            one = json.loads(ran.stdout.splitlines()[-1])
            got.setdefault(kind, []).append(one)
            print(f"{kind:10} {one['seconds']:7.2f} s  {one['bytes'] / one['seconds'] / 1e9:6.2f} "
                  f"GB/s  {one['cpu'] / one['bytes'] * 1e9:.3f} CPU-s/GB  logits "
                  f"{one['logits'][:16]} {one['shape']} spread {one['spread']:.4f} on "
                  f"{one['where']}", flush=True)
    everything = got["patched"] + got["unpatched"]
    same = len({one["logits"] for one in everything}) == 1
    useful = all(one["finite"] and one["spread"] > 0 for one in everything)
    ours = all(one["opened"] for one in got["patched"])
    print(", ".join(["the same logits" if same else "OTHER LOGITS"] +
                    ([] if useful else ["NO USEFUL LOGITS"]) +
                    ([] if ours else ["THE PATCH WAS NOT USED"])))
    return 0 if same and useful and ours else 1


if __name__ == "__main__":
    sys.exit(main())
