# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of PyTorch: single files, storage for torch.distributed.checkpoint, snapshots, and a
Checkpointer that saves and resumes.

    import torch.distributed.checkpoint as dcp
    import penstock.torch

    penstock.torch.save(model.state_dict(), "model.pt")
    weights = penstock.torch.load("model.pt", map_location="cuda:0")

    writer = penstock.torch.StorageWriter("/ckpt/step-100")
    dcp.save({"model": model.state_dict()}, storage_writer=writer)

    reader = penstock.torch.StorageReader("/ckpt/step-100")
    dcp.load(state, storage_reader=reader)

    checkpoints = penstock.torch.Checkpointer("/ckpt", keep=3)
    checkpoints.save_async({"model": model, "optim": optimizer}, step)

The file docs/python.md in the source tree explains the calls with examples."""

from typing import TYPE_CHECKING, Any

from ._checkpointer import Checkpointer, DeadlineError, Saved
from ._coordination import RankError
from ._dcp_object import ObjectStorageReader, ObjectStorageWriter
from ._dcp_read import LoadReport, StorageReader
from ._dcp_write import SaveReport, StorageWriter
from ._planner import SavePlanner
from ._staging import SnapshotReport, Stager, free_host_bytes
from ._torch_file import FileReport, load, save

if TYPE_CHECKING:
    from ._dcp_safetensors import HuggingFaceStorageReader, HuggingFaceStorageWriter

__all__ = ["Checkpointer", "DeadlineError", "FileReport", "HuggingFaceStorageReader",
           "HuggingFaceStorageWriter", "LoadReport", "ObjectStorageReader",
           "ObjectStorageWriter", "RankError", "SavePlanner", "SaveReport",
           "Saved", "SnapshotReport", "Stager", "StorageReader", "StorageWriter",
           "free_host_bytes", "load", "save"]


def __getattr__(name: str) -> Any:
    """Imports the classes for safetensors at their first use, because some versions of torch have
    no base classes for them."""
    if name in ("HuggingFaceStorageReader", "HuggingFaceStorageWriter"):
        from . import _dcp_safetensors
        return getattr(_dcp_safetensors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
