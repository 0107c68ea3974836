# SPDX-License-Identifier: Apache-2.0
"""Waits until a GPU has finished the work that other libraries have queued on the GPU.

The package waits before the C library reads or fills a tensor of another library. The C library
copies on its own CUDA streams, which do not wait for the other library's streams. This module
calls the CUDA driver directly, because the tensor may belong to torch, cupy or numba. This
module never creates a CUDA context: a process that owns tensors on a GPU already has a context
there."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
from typing import Any, Iterable, Iterator, Optional, Set

_driver: Optional[Any] = None


def _libcuda() -> Any:
    """Returns the CUDA driver library, loaded and initialised at the first call."""
    global _driver  # pylint: disable=global-statement
    if _driver is None:
        _driver = ctypes.CDLL(os.environ.get("PENSTOCK_LIBCUDA") or "libcuda.so.1")
        _driver.cuInit(0)
    return _driver


def _driver_call(name: str, *args: Any) -> None:
    """Calls a function of the CUDA driver. Raises RuntimeError if the function fails."""
    code = getattr(_libcuda(), name)(*args)
    if code:
        raise RuntimeError(f"{name} failed: CUDA error {code}")


@contextlib.contextmanager
def _relaxed_capture_mode() -> Iterator[None]:
    """Sets this thread's stream capture mode to relaxed inside the block.

    In the default mode a driver call on any thread would invalidate a CUDA graph that
    another thread is capturing at that time."""
    exchange = getattr(_libcuda(), "cuThreadExchangeStreamCaptureMode", None)  # CUDA 10.1
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    if exchange:
        exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        if exchange:
            exchange(ctypes.byref(mode))


@contextlib.contextmanager
def _primary_context(index: int) -> Iterator[None]:
    """Makes the primary context of GPU `index` the current one inside the block."""
    device, context, popped = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _driver_call("cuDeviceGet", ctypes.byref(device), index)
    with _relaxed_capture_mode():
        _driver_call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            _driver_call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                _driver_call("cuCtxPopCurrent_v2", ctypes.byref(popped))
        finally:
            _driver_call("cuDevicePrimaryCtxRelease_v2", device)


def synchronize(index: int) -> None:
    """Waits until GPU `index` has finished all work queued in its primary context."""
    with _primary_context(index):
        _driver_call("cuCtxSynchronize")


def synchronize_all(devices: Iterable[str]) -> None:
    """Waits for each GPU that `devices` contains, but only once for each GPU.

    `devices` are device names of the library, such as "cuda:0". "host" needs no wait."""
    seen: Set[str] = {name for name in devices if name.startswith("cuda:")}
    for name in sorted(seen):
        synchronize(int(name.partition(":")[2]))


# The handle of the legacy default stream (CU_STREAM_LEGACY), which libraries also write as 0.
LEGACY_STREAM = 1


def stream_handle(stream: Any) -> int:
    """Returns the CUDA driver's handle of a stream. Accepts streams of torch, cupy, numba and
    cuda.core, and handles as an int. Raises TypeError for anything else."""
    for name in ("cuda_stream", "ptr", "handle"):  # torch; cupy; numba, where it is a c_void_p
        handle = getattr(stream, name, None)
        if handle is not None:
            handle = getattr(handle, "value", handle) or 0
            break
    else:
        protocol = getattr(stream, "__cuda_stream__", None)
        handle = protocol()[1] if protocol is not None else stream
    try:
        return operator.index(handle) or LEGACY_STREAM
    except TypeError:
        raise TypeError(f"an object of type {type(stream).__name__} is not a CUDA stream") from None


def is_capturing(stream: int, device: str) -> bool:
    """Returns whether a stream is being captured into a CUDA graph. `stream` is the stream's
    handle, and `device` the library's name of its GPU, such as "cuda:0"."""
    status = ctypes.c_int(0)
    arguments = ctypes.c_void_p(stream), ctypes.byref(status)
    # Older drivers need a current context, which this thread may lack.
    if _libcuda().cuStreamIsCapturing(*arguments):
        with _primary_context(int(device.partition(":")[2])):
            if _libcuda().cuStreamIsCapturing(*arguments):
                return False  # The library's own call will fail and say why.
    return status.value != 0


__all__ = ["is_capturing", "stream_handle", "synchronize", "synchronize_all"]
