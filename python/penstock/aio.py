# SPDX-License-Identifier: Apache-2.0
"""penstock.load_file, load_into, save_file and iterate for asyncio programs.

Each function has the arguments and the result of penstock's function of the same name. Each
call runs on a thread and releases the GIL while bytes move. A cancelled call raises
CancelledError, but only when no bytes move any more. A cancelled load stops early. A cancelled
save is completed first."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, AsyncIterator, Callable, Dict, Tuple

from . import _api
from ._model import Report


async def _run(call: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """Runs a call on a thread and waits until it has returned, even if this task is
    cancelled. If the call has an argument `stop`, cancelling the task sets this event."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args, **how))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop = how.get("stop")
        if stop is not None:
            stop.set()
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                pass  # Cancelled again: the thread still has to return.
        if not task.cancelled():
            task.exception()  # Marks the exception as retrieved, else asyncio logs it.
        raise


async def load_file(*args: Any, **how: Any) -> Dict[str, Any]:
    """Loads every tensor of a file or a model; see penstock.load_file."""
    found: Dict[str, Any] = await _run(_api.load_file, *args,
                                       **{"stop": threading.Event(), **how})
    return found


async def load_into(*args: Any, **how: Any) -> Report:
    """Loads tensors into the caller's memory; see penstock.load_into."""
    report: Report = await _run(_api.load_into, *args, **{"stop": threading.Event(), **how})
    return report


async def save_file(*args: Any, **how: Any) -> None:
    """Writes tensors into one safetensors file; see penstock.save_file."""
    await _run(_api.save_file, *args, **how)


async def iterate(*args: Any, **how: Any) -> AsyncIterator[Tuple[str, Any]]:
    """Yields (name, tensor) in file order, as an asynchronous generator; see
    penstock.iterate."""
    steps = await _run(_api.iterate, *args, **how)
    while True:
        step = await _run(next, steps, None)
        if step is None:
            return
        yield step
