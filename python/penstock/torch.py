# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of PyTorch: storage for torch.distributed.checkpoint, snapshots, and single files.

    import torch.distributed.checkpoint as dcp
    import penstock.torch

    writer = penstock.torch.StorageWriter("/ckpt/step-100")
    dcp.save({"model": model.state_dict()}, storage_writer=writer)

    reader = penstock.torch.StorageReader("/ckpt/step-100")
    dcp.load(state, storage_reader=reader)

The file docs/python.md in the source tree explains the calls with examples."""

from ._dcp import LoadReport, SaveReport, StorageReader, StorageWriter
from ._staging import SnapshotReport, Stager, free_host_bytes

__all__ = ["LoadReport", "SaveReport", "SnapshotReport", "Stager", "StorageReader",
           "StorageWriter", "free_host_bytes"]
