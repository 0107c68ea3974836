# SPDX-License-Identifier: Apache-2.0
"""penstock.load_file, load_into, save_file and iterate for asyncio programs.

Each function has the arguments and the result of penstock's function of the same name. Each
call runs on a thread and releases the GIL while bytes move. A cancelled call raises
CancelledError, but only when no bytes move any more. A cancelled load stops early. A cancelled
save is completed first."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import Any, AsyncIterator, Callable, Coroutine, Iterator, ParamSpec, TypeVar

from . import _api

P = ParamSpec("P")
T = TypeVar("T")


async def _run(call: Callable[..., T], *args: Any, **how: Any) -> T:
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


def _asynchronous(call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns an asynchronous function with the arguments, the result and the help of `call`, a
    function of _api."""
    stops = "stop" in inspect.signature(call).parameters

    @functools.wraps(call)
    async def run(*args: P.args, **how: P.kwargs) -> T:
        if stops and how.get("stop") is None:
            how["stop"] = threading.Event()
        return await _run(getattr(_api, call.__name__), *args, **how)

    run.__module__ = __name__
    return run


load_file = _asynchronous(_api.load_file)
load_into = _asynchronous(_api.load_into)
save_file = _asynchronous(_api.save_file)


def _asynchronous_steps(call: Callable[P, Iterator[T]]) -> Callable[P, AsyncIterator[T]]:
    """Returns an asynchronous generator with the arguments and the help of the generator
    `call`."""

    @functools.wraps(call)
    async def run(*args: P.args, **how: P.kwargs) -> AsyncIterator[T]:
        steps = await _run(getattr(_api, call.__name__), *args, **how)
        while True:
            step = await _run(next, steps, None)
            if step is None:
                return
            yield step

    run.__module__ = __name__
    return run


iterate = _asynchronous_steps(_api.iterate)
