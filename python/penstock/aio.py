# SPDX-License-Identifier: Apache-2.0
"""The same for asyncio: each call runs on a thread, without the GIL while bytes
move, and is awaited. `iterate` is an asynchronous generator. Who cancels a call gets
control back when nothing moves any more: a load stops early for it, a save is whole."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, AsyncIterator, Callable, Dict, Tuple

from . import _api
from ._model import Report


async def _run(call: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """On a thread, to its end, also when it is cancelled."""
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
                pass  # once more
        if not task.cancelled():
            task.exception()  # it was asked for
        raise


async def load_file(*args: Any, **how: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = await _run(_api.load_file, *args,
                                       **{"stop": threading.Event(), **how})
    return found


async def load_into(*args: Any, **how: Any) -> Report:
    report: Report = await _run(_api.load_into, *args, **{"stop": threading.Event(), **how})
    return report


async def save_file(*args: Any, **how: Any) -> None:
    await _run(_api.save_file, *args, **how)


async def iterate(*args: Any, **how: Any) -> AsyncIterator[Tuple[str, Any]]:
    steps = await _run(_api.iterate, *args, **how)
    while True:
        step = await _run(next, steps, None)
        if step is None:
            return
        yield step
