# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of checkpoints: temporary folders, and comparisons of states."""

import os
import tempfile

import torch
import torch.distributed.checkpoint as dcp

import older_torch  # pylint: disable=unused-import # adds arguments to functions of dcp

# All exceptions that a save or load may raise. CheckpointException is not a subclass of Exception.
ERRORS = (Exception, dcp.CheckpointException)
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))


def folder(name="step"):
    return os.path.join(tempfile.mkdtemp(dir=TMP), name)


def bits(tensor):
    tensor = tensor.detach()
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def same(got, want, where=""):
    if isinstance(want, dict):
        assert got.keys() == want.keys(), (where, got.keys(), want.keys())
        for key in want:
            same(got[key], want[key], f"{where}.{key}")
    elif isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape, (where, got.dtype, got.shape)
        assert torch.equal(bits(got), bits(want)), where
    else:
        assert got == want, (where, got, want)


def emptied(state):
    """Returns a state of the same shape with other values."""
    def other(value):
        if isinstance(value, dict):
            return {key: other(member) for key, member in value.items()}
        if isinstance(value, torch.Tensor):
            made = torch.zeros_like(value.detach())
            return torch.nn.Parameter(made) if isinstance(value, torch.nn.Parameter) else made
        return None if value is None else type(value)()
    return other(state)


def stock_load(state, path):
    dcp.load(state, storage_reader=dcp.FileSystemReader(path))
