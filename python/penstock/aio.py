# SPDX-License-Identifier: Apache-2.0
"""The same for asyncio: each call runs on a thread, without the GIL while bytes
move, and is awaited. `iterate` is an asynchronous generator."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Dict, Tuple

from . import _api
from ._model import Report


async def load_file(*args: Any, **how: Any) -> Dict[str, Any]:
    return await asyncio.to_thread(_api.load_file, *args, **how)


async def load_into(*args: Any, **how: Any) -> Report:
    return await asyncio.to_thread(_api.load_into, *args, **how)


async def save_file(*args: Any, **how: Any) -> None:
    await asyncio.to_thread(_api.save_file, *args, **how)


async def iterate(*args: Any, **how: Any) -> AsyncIterator[Tuple[str, Any]]:
    steps = await asyncio.to_thread(_api.iterate, *args, **how)
    while True:
        step = await asyncio.to_thread(next, steps, None)
        if step is None:
            return
        yield step
