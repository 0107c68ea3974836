# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of PyTorch: storage for torch.distributed.checkpoint, snapshots, and a Checkpointer
that saves and resumes.

    import torch.distributed.checkpoint as dcp
    import penstock.torch

    writer = penstock.torch.StorageWriter("/ckpt/step-100")
    dcp.save({"model": model.state_dict()}, storage_writer=writer)

    reader = penstock.torch.StorageReader("/ckpt/step-100")
    dcp.load(state, storage_reader=reader)

    checkpoints = penstock.torch.Checkpointer("/ckpt", keep=3)
    checkpoints.save_async({"model": model, "optim": optimizer}, step)

The file docs/python.md in the source tree explains the calls with examples."""

from ._checkpointer import Checkpointer, DeadlineError, Saved
from ._coordination import RankError
from ._dcp import LoadReport, SaveReport, StorageReader, StorageWriter
from ._planner import SavePlanner
from ._staging import SnapshotReport, Stager, free_host_bytes

__all__ = ["Checkpointer", "DeadlineError", "LoadReport", "RankError", "SavePlanner", "SaveReport",
           "Saved", "SnapshotReport", "Stager", "StorageReader", "StorageWriter",
           "free_host_bytes"]
