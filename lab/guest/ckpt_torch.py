# SPDX-License-Identifier: Apache-2.0
"""ckpt_torch.py save|load|control FOLDER DEVICE: saves or loads a checkpoint by
torch.distributed.checkpoint. The tensors are in the memory of DEVICE, which torch takes for memory
of the CPU. `control` saves with path bounce. Prints the report as one JSON object. ckpt-torch.sh
runs this script."""

import ctypes
import json
import sys

import torch
import torch.distributed.checkpoint as dcp

import penstock
import penstock.torch

# Number of tensors, and number of 4-byte elements in each tensor. The tensors of `control` are
# shorter, because the CPU reads the memory of an emulated device very slowly.
COUNT, LENGTH = 4, 1 << 14 if sys.argv[1] == "control" else 1 << 18


def content(number):
    return torch.arange(LENGTH, dtype=torch.int32) * 2654435 + number


def main():
    action, folder, device = sys.argv[1:]
    memory = [penstock.allocate("I32", (LENGTH,), device) for _ in range(COUNT)]
    state = {}
    for number, block in enumerate(memory):
        raw = (ctypes.c_char * block.nbytes).from_address(block.ptr)
        state[f"tensor{number}"] = torch.frombuffer(raw, dtype=torch.int32)
        assert state[f"tensor{number}"].data_ptr() == block.ptr
        state[f"tensor{number}"].copy_(content(number) if action != "load" else
                                       torch.zeros(LENGTH, dtype=torch.int32))
    state["step"] = 7 if action != "load" else 0
    if action == "load":
        reader = penstock.torch.StorageReader(folder)
        dcp.load(state, storage_reader=reader, no_dist=True)
        report = reader.report
    else:
        writer = penstock.torch.StorageWriter(
            folder, path_name="bounce" if action == "control" else None)
        dcp.save(state, storage_writer=writer, no_dist=True)
        report = writer.report
    right = all(torch.equal(state[f"tensor{number}"], content(number)) for number in range(COUNT))
    print(json.dumps({"path": report.path, "bytes": report.bytes, "right": right,
                      "payload": COUNT * 4 * LENGTH, "step": state["step"],
                      "unchecked": getattr(report, "unchecked", "")}))


main()
