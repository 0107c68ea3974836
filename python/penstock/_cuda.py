# SPDX-License-Identifier: Apache-2.0
"""Waiting for a GPU: what others have queued on tensors that the library is to read or
to fill. Its copies run in streams of their own, which know nothing of anybody's. By the
driver, as a tensor may be torch's, cupy's or numba's. Never makes a context: who has
tensors there has one."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Iterable, Iterator, Optional, Set

_driver: Optional[Any] = None


def _libcuda() -> Any:
    global _driver  # pylint: disable=global-statement
    if _driver is None:
        _driver = ctypes.CDLL(os.environ.get("PENSTOCK_LIBCUDA") or "libcuda.so.1")
        _driver.cuInit(0)
    return _driver


def _call(name: str, *args: Any) -> None:
    code = getattr(_libcuda(), name)(*args)
    if code:
        raise RuntimeError(f"{name} failed: CUDA error {code}")


@contextlib.contextmanager
def _relaxed() -> Iterator[None]:
    """The thread's calls do not spoil a graph that some thread captures meanwhile."""
    exchange = getattr(_libcuda(), "cuThreadExchangeStreamCaptureMode", None)  # CUDA 10.1
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    if exchange:
        exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        if exchange:
            exchange(ctypes.byref(mode))


def synchronize(index: int) -> None:
    """Returns when the device has done what is queued in its primary context."""
    device, context, popped = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), index)
    with _relaxed():
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            _call("cuCtxPushCurrent_v2", context)
            try:
                _call("cuCtxSynchronize")
            finally:
                _call("cuCtxPopCurrent_v2", ctypes.byref(popped))
        finally:
            _call("cuDevicePrimaryCtxRelease_v2", device)


def settle(devices: Iterable[str]) -> None:
    """Each GPU of these, by the library's names, once."""
    seen: Set[str] = {name for name in devices if name.startswith("cuda:")}
    for name in sorted(seen):
        synchronize(int(name.partition(":")[2]))


__all__ = ["settle", "synchronize"]
