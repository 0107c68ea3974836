# SPDX-License-Identifier: Apache-2.0
"""Meter: reports the progress of a load, by calling a function of the program or by a bar of tqdm.

_model.py creates a Meter for each load that has the argument `progress`."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Union

# The type of the argument `progress`, which all functions that load have.
Progress = Union[bool, Callable[[int, int], Any]]

# Shortest time between two calls of the program's function, in seconds.
PERIOD_S = 0.1


class Meter:
    """Counts the delivered bytes of a load and passes the count to the program.

    Args:
        progress: a function that is called with the number of delivered bytes and the total
            number of bytes; True shows a bar of tqdm, if the package tqdm is installed.
        total: the total number of bytes.
        title: the text before the bar.
        scale: number of delivered bytes for each byte that this process reads. In a group a
            process also gets bytes that other processes read.
        shown: False shows no bar. The ranks of a group show only one bar.

    Raises ImportError if `progress` is True and tqdm is not installed, TypeError if `progress` is
    neither a bool nor a function."""

    def __init__(self, progress: Progress, total: int, title: str, scale: float = 1.0,
                 shown: bool = True) -> None:
        self._call: Any = None
        self._bar: Any = None
        if progress is True:
            try:
                from tqdm.auto import tqdm
            except ImportError as error:
                raise ImportError("progress=True needs the package tqdm: pip install tqdm"
                                  ) from error
            self._bar = tqdm(total=total, desc=title, unit="B", unit_scale=True,
                             disable=not shown)
        elif callable(progress):
            self._call = progress
        elif progress not in (False, None):
            raise TypeError("progress must be True, False or a function of two numbers, not "
                            f"{progress!r}")
        self.total, self.scale = total, scale
        self._read, self._told, self._called_at = 0, -1, -math.inf

    @property
    def active(self) -> bool:
        """Whether the meter has a function to call or a bar to show."""
        return self._call is not None or self._bar is not None

    def add(self, nbytes: int) -> None:
        """Counts `nbytes` more bytes."""
        self._read += nbytes
        # The result is limited to `total`, because a read of whole pages also counts bytes that
        # are not delivered.
        self._tell(min(int(self._read * self.scale), self.total))

    def finish(self) -> None:
        """Reports that all bytes have been delivered."""
        self._tell(self.total)

    def _tell(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(done - max(self._told, 0))
            self._told = done
        elif self._call is not None:
            now = time.monotonic()
            if done > self._told and (done == self.total or now - self._called_at >= PERIOD_S):
                self._told, self._called_at = done, now
                self._call(done, self.total)

    def __enter__(self) -> "Meter":
        self._tell(0)
        return self

    def __exit__(self, kind: Any, _error: Any, _trace: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            if self._bar is not None:
                self._bar.close()


__all__ = ["Meter", "Progress"]
