# SPDX-License-Identifier: Apache-2.0
"""Loads safetensors models from storage into GPU or host memory by the most direct path.

    import penstock

    # All tensors of a model, as a dict.
    tensors = penstock.load_file("model.safetensors", device="cuda:0")

    # Single tensors, or some rows of one tensor.
    with penstock.safe_open("model.safetensors", framework="pt", device="cuda:0") as f:
        rows = f.get_slice("lm_head.weight")[0:1024]

    # Into tensors that the program has allocated.
    penstock.load_into("model.safetensors", {"lm_head.weight": parameter})

    # One tensor after the other, through a buffer of limited size (the window).
    for name, tensor in penstock.iterate("/models/llama", device="cuda:0"):
        parameters[name].copy_(tensor)

    # Eight processes read one model together, each byte once. Each process runs this:
    with penstock.Group("llama", rank, 8) as group:
        tensors = penstock.load_file("/models/llama", device=f"cuda:{rank}", group=group)

The file docs/python.md in the source tree explains the calls with examples.
"""

from ._api import allocate, iterate, load_file, load_into, safe_open, save_file
from ._file import File
from ._group import Group
from ._lib import (ClassRefusedError, FormatError, NotFoundError, PenstockError, ffi as _ffi,
                   lib as _lib)
from ._model import Model, Report
from ._objects import ObjectClient, ObjectInfo
from ._patch import patch_safetensors
from ._queue import Late, Transfer, TransferReport
from ._tensor import Tensor
from . import aio

__version__ = _ffi.string(_lib.penstock_version()).decode()
__all__ = [
    "ClassRefusedError", "File", "FormatError", "Group", "Late", "Model", "NotFoundError",
    "ObjectClient", "ObjectInfo", "PenstockError", "Report", "Tensor", "Transfer",
    "TransferReport", "aio", "allocate", "iterate", "load_file", "load_into", "patch_safetensors",
    "safe_open", "save_file",
]
