# SPDX-License-Identifier: Apache-2.0
"""Several processes of a host that load a model together, each a share of it, and copy
the rest from each other's device memory. Thin: who reads what is the library's."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator, List, Optional, Union

from ._lib import check, ffi, heed, lib, raise_caught, take, to_c


class Group:
    """Rank `rank` of the `ranks` processes of this user that open a group of this name;
    returns when all are there. Give it to load_file or load_into on every rank, with the
    same files, each with a device, destinations or shard of its own.

    `folder` is where they meet, one that this user alone may enter. A rank that does not
    come within `timeout` seconds, or hangs for `stall` seconds while others wait for it,
    is an error that names it, as is one that ends. Where several hosts load the same
    model, `host` of `hosts` begins at its own place, up to `jitter` seconds later, with
    at most `reads_max` requests under way at one file system.

    What goes wrong in a load goes wrong on all ranks. A rank that finds something wrong
    before it takes part, a file or a device that is not there, leaves the group: the others
    would wait for it."""

    def __init__(self, name: str, rank: int, ranks: int, *,
                 folder: Optional[Union[str, "os.PathLike[str]"]] = None,
                 timeout: float = 120.0, stall: float = 600.0, window: int = 0,
                 windows: int = 0, host: int = 0, hosts: int = 1, jitter: float = 0.0,
                 reads_max: int = 0) -> None:
        self.name, self.rank, self.ranks = name, rank, ranks
        opts = ffi.new("struct penstock_group_opts *")
        opts.size = ffi.sizeof("struct penstock_group_opts")
        place = ffi.new("char[]", to_c(folder)) if folder is not None else ffi.NULL
        opts.dir, opts.window, opts.windows = place, window, windows
        opts.timeout_ms, opts.stall_ms = int(timeout * 1000), int(stall * 1000)
        opts.host, opts.hosts, opts.reads_max = host, hosts, reads_max
        opts.jitter_ms = int(jitter * 1000)
        keep: List[Any] = []
        caught = heed(opts, keep)
        code, handle = take("struct penstock_group **", lib.penstock_group_close,
                            lib.penstock_group_open, to_c(name, str.encode), rank, ranks, opts)
        raise_caught(caught)
        check(code)
        self._handle: Any = handle
        self._loads = 0

    def take_part(self) -> Any:
        """The handle for the library's call, by which the others hear of what goes wrong."""
        self._loads += 1
        return self.handle

    @contextlib.contextmanager
    def or_leave(self) -> Iterator[None]:
        """Around all that comes before such a call."""
        loads = self._loads
        try:
            yield
        except BaseException:
            if self._loads == loads:
                self.close()
            raise

    @property
    def handle(self) -> Any:
        if self._handle is None:
            raise ValueError("the group is closed")
        return self._handle

    def close(self) -> None:
        """Leaves: ranks that still load are told so."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"penstock.Group({self.name!r}, {self.rank}, {self.ranks})"
