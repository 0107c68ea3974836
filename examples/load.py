#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a model's tensors into device memory, reads a part of one tensor, and saves all.

    load.py MODEL [DEVICE [COPY]]

MODEL is a safetensors file, a folder, an index file, or owner/name in the Hugging Face
cache. DEVICE is "auto" by default: the first GPU, or host memory if there is none. COPY is
the file to save to. The tensors are torch tensors if torch is installed. Otherwise
they are of class penstock.Tensor, which numpy, cupy and jax accept without a copy (DLPack)."""

import sys

import penstock


def show(model, device):
    """Loads all tensors at once and prints which path carried the bytes."""
    opened = penstock.Model(model)
    tensors, report = opened.load(device)
    opened.close()
    print(f"{len(tensors)} tensors, {report.bytes} bytes on {device}, "
          f"{report.bytes / report.seconds / 1e9:.2f} GB/s by {report.path}, "
          f"{report.cpu_copies:.2f} CPU copies")
    return tensors


def part(model, device):
    """Reads only two rows, of the first tensor with two dimensions or more."""
    with penstock.safe_open(model, framework="dlpack", device=device) as f:
        for name in f.keys():
            piece = f.get_slice(name)
            if len(piece.get_shape()) > 1:
                print(f"rows 0 and 1 of {name}, {tuple(piece.get_shape())}: "
                      f"{piece[:2].nbytes} bytes")
                return


def main():
    """Parses the arguments and runs the steps."""
    if len(sys.argv) < 2:
        sys.exit("usage: load.py MODEL [DEVICE [COPY]]")
    model, device = sys.argv[1], (sys.argv[2:] + ["auto"])[0]
    try:
        tensors = show(model, device)
        part(model, device)
        if len(sys.argv) > 3:
            # The file appears only when it is complete. durable=True makes the call wait until
            # the file would survive a power cut.
            penstock.save_file(tensors, sys.argv[3], durable=True)
            print(f"{sys.argv[3]}: written")
    except penstock.PenstockError as error:
        sys.exit(f"load.py: {error}")  # The message names what failed and what to do.


if __name__ == "__main__":
    main()
