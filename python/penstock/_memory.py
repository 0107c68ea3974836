# SPDX-License-Identifier: Apache-2.0
"""Allocates memory on a device: one tensor, or one block for torch tensors."""

from __future__ import annotations

import functools
from typing import Any, Sequence

from ._cuda import synchronize_all
from ._dtypes import CODES, torch_dtype, torch_shape
from ._lib import call_for_handle, check, ffi, handle_name, lib, open_device
from ._tensor import Memory, Tensor


def allocate(dtype: str, shape: Sequence[int], device: Any = "cpu") -> Tensor:
    """Allocates an uninitialised tensor on a device.

    Args:
        dtype: an element type as the safetensors format names it, such as "F32" or "BF16".
        shape: the dimensions.
        device: as in load_file.

    Returns:
        A Tensor that owns its memory.

    Raises:
        ValueError: the dtype is unknown, or a dimension is negative.
        PenstockError: with errno ENOMEM if the device has not enough memory.
    """
    if dtype not in CODES or any(length < 0 for length in shape):
        raise ValueError(f"cannot allocate a tensor of dtype {dtype} and shape {tuple(shape)}; "
                         f"dtypes are {', '.join(CODES)}")
    handle = open_device(device)
    tensor = Tensor(dtype, shape, handle_name(handle), 0, None)
    code, memory = call_for_handle("void **", functools.partial(lib.penstock_free, handle),
                                   lib.penstock_alloc, handle, tensor.nbytes or 1)
    check(code, has_place=False)
    tensor.ptr = int(ffi.cast("uintptr_t", memory))
    tensor._owner = Memory(tensor.ptr, tensor.nbytes, tensor.device, memory)
    return tensor


def tensor_from_bytes(dtype: str, shape: Sequence[int], data: Any) -> Tensor:
    """Returns a new tensor in host memory that contains a copy of `data`. Unpickles a Tensor."""
    tensor = allocate(dtype, shape)
    if tensor.nbytes:
        tensor.buffer()[:] = memoryview(data).cast("B")
    return tensor


def allocate_as(dtype: str, shape: Sequence[int], device: Any, framework: str) -> Any:
    """Allocates an uninitialised tensor, into which load_into can load.

    On a GPU, torch allocates the tensor if the framework is torch. Otherwise returns a Tensor.
    Raises ValueError if torch has no such tensor."""
    if framework != "torch":
        return allocate(dtype, shape, device)
    there = torch_shape(dtype, shape)
    name = handle_name(open_device(device))
    if not name.startswith("cuda"):
        return allocate(dtype, shape, device)
    import torch
    value = torch.empty(there, dtype=torch_dtype(torch, dtype), device=name)
    # torch may have freed this memory while kernels that use it were still queued on a stream. So
    # this function waits for the GPU.
    synchronize_all([name])
    return value


def torch_block(nbytes: int, device: Any) -> Memory:
    """Allocates a block of memory for torch tensors. On a GPU torch's allocator allocates it."""
    name = handle_name(open_device(device))
    if name == "host":
        block: Memory = allocate("U8", (nbytes,), device)._owner
        return block
    import torch
    whole = torch.empty(nbytes, dtype=torch.uint8, device=name)
    # torch may have freed this memory while kernels that use it were still queued on a stream. So
    # this function waits for the GPU.
    synchronize_all([name])
    memory = Memory(whole.data_ptr(), nbytes, name, whole)
    memory.use_torch_tensor(whole)
    return memory


__all__ = ["allocate", "allocate_as", "tensor_from_bytes", "torch_block"]
