#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model's tensors into device memory, a part of one, and out again to a file.

    load.py MODEL [DEVICE [COPY]]

MODEL is a safetensors file, a folder or an index of several, or owner/name in the
Hugging Face cache; DEVICE is auto unless named: the first GPU, else host memory. Where
torch is installed these are torch's tensors, else penstock.Tensor, which numpy, cupy and
jax take as they are (DLPack)."""

import sys

import penstock


def show(model, device):
    """All of it in one go, and by which path."""
    opened = penstock.Model(model)
    tensors, report = opened.load(device)
    opened.close()
    print(f"{len(tensors)} tensors, {report.bytes} bytes on {device}, "
          f"{report.bytes / report.seconds / 1e9:.2f} GB/s by {report.path}, "
          f"{report.cpu_copies:.2f} CPU copies")
    return tensors


def part(model, device):
    """Two rows of the first tensor that has rows: nothing else is read."""
    with penstock.safe_open(model, framework="dlpack", device=device) as f:
        for name in f.keys():
            piece = f.get_slice(name)
            if len(piece.get_shape()) > 1:
                print(f"rows 0 and 1 of {name}, {tuple(piece.get_shape())}: "
                      f"{piece[:2].nbytes} bytes")
                return


def main():
    """See the module's text."""
    if len(sys.argv) < 2:
        sys.exit("usage: load.py MODEL [DEVICE [COPY]]")
    model, device = sys.argv[1], (sys.argv[2:] + ["auto"])[0]
    try:
        tensors = show(model, device)
        part(model, device)
        if len(sys.argv) > 3:
            # Takes its name when all of it is there, and stays after a power cut.
            penstock.save_file(tensors, sys.argv[3], durable=True)
            print(f"{sys.argv[3]}: written")
    except penstock.PenstockError as error:
        sys.exit(f"load.py: {error}")  # the library says what failed


if __name__ == "__main__":
    main()
