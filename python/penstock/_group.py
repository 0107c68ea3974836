# SPDX-License-Identifier: Apache-2.0
"""Group: several processes of one host that load a model together.

Each process reads a share of the files. It copies the bytes that it did not read itself from
the device memory of the other processes. The C library decides which process reads which
bytes. This module also opens the groups of processes that already have a communicator, such as
a process group of torch."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import uuid
from typing import Any, Callable, Iterator, List, Optional, Protocol, Tuple, Union

from ._lib import (PenstockError, call_for_handle, check, ffi, install_stop_check, lib,
                   milliseconds, raise_caught, to_c, unsigned)


class Group:
    """Several processes of one user on one host that read a model together, each byte once.

    Every process creates a Group with the same name and number of ranks. The constructor
    returns when all ranks have created their Group. Then every rank calls load_file or
    load_into with `group=` and the same files. Each rank may use a different device, different
    destinations and a different shard. Use the group as a context manager, or call close().

    If a load fails on one rank, it fails on all ranks, with an error that names the failed
    rank. A load also fails on all ranks if a rank exits or hangs. A rank that fails before its
    load starts, for example because a file is missing, leaves the group, so that the others do
    not wait for it.

    Args:
        name: the group's name, without a slash.
        rank: this process's rank, from 0.
        ranks: the number of processes, at most 64.
        folder: the folder in which the ranks meet. Only this user may have access to the
            folder.
            Default: $XDG_RUNTIME_DIR, else /tmp/penstock-UID.
        timeout: seconds that the constructor waits for all ranks. After that time it raises an
            error that names a missing rank.
        stall: seconds that ranks wait for a missing rank during a load, before the load fails.
        window: size of one window in bytes; 0 means 64 MiB. The ranks exchange data through
            windows in device memory.
        windows: number of windows of each rank; 0 means 4.
        host, hosts: this host's number, counted from 0, and the number of hosts. Set these if
            groups on several hosts load the same model from one store. Each host then starts
            at a different place in the files.
        jitter: seconds over which the hosts spread their starts, so that they do not all start
            at the same moment.
        reads_max: maximum number of requests that all ranks together have in flight at one
            file system; 0 means no limit.

    Raises:
        PenstockError: with errno ETIMEDOUT if a rank is missing, EINVAL or EEXIST if the ranks
            disagree about their numbers, EPERM if other users have access to `folder`.
    """

    def __init__(self, name: str, rank: int, ranks: int, *,
                 folder: Optional[Union[str, "os.PathLike[str]"]] = None,
                 timeout: float = 120.0, stall: float = 600.0, window: int = 0,
                 windows: int = 0, host: int = 0, hosts: int = 1, jitter: float = 0.0,
                 reads_max: int = 0) -> None:
        self.name, self.rank, self.ranks = name, rank, ranks
        opts = ffi.new("struct penstock_group_opts *")
        opts.size = ffi.sizeof("struct penstock_group_opts")
        place = ffi.new("char[]", to_c(folder)) if folder is not None else ffi.NULL
        opts.dir, opts.window = place, unsigned("window", window, 64)
        opts.windows = unsigned("windows", windows)
        opts.reads_max = unsigned("reads_max", reads_max)
        opts.host, opts.hosts = unsigned("host", host), unsigned("hosts", hosts)
        opts.timeout_ms = milliseconds("timeout", timeout)
        opts.stall_ms, opts.jitter_ms = milliseconds("stall", stall), milliseconds("jitter", jitter)
        keep: List[Any] = []
        caught = install_stop_check(opts, keep)
        code, handle = call_for_handle("struct penstock_group **", lib.penstock_group_close,
                                       lib.penstock_group_open, to_c(name, str.encode),
                                       unsigned("rank", rank), unsigned("ranks", ranks), opts)
        raise_caught(caught)
        check(code)
        self._handle: Any = handle
        self._loads = 0

    def handle_for_load(self) -> Any:
        """Returns the library's handle of the group, and records that a load starts.

        If an error happens during the load, the library itself informs the other ranks."""
        self._loads += 1
        return self.handle

    @contextlib.contextmanager
    def leave_on_error(self) -> Iterator[None]:
        """Context manager: closes the group if its block raises an exception before the block has
        called handle_for_load. The other ranks then get an error instead of waiting."""
        loads = self._loads
        try:
            yield
        except BaseException:
            if self._loads == loads:
                self.close()
            raise

    @property
    def handle(self) -> Any:
        """The library's handle. Raises ValueError after close()."""
        if self._handle is None:
            raise ValueError("the group is closed")
        return self._handle

    def close(self) -> None:
        """Leaves the group. A load that is still running on other ranks fails."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def __reduce__(self) -> Any:
        raise TypeError("a Group cannot be pickled or copied, because it is one rank, which is a "
                        "process; create the Group in the other process")

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"penstock.Group({self.name!r}, {self.rank}, {self.ranks})"


# ---- processes that already have a communicator ----------------------------------


class ProcessGroup(Protocol):
    """The methods of torch.distributed.ProcessGroup that this module calls, for type checks."""

    def rank(self) -> int:
        """Returns this process's rank."""

    def size(self) -> int:
        """Returns the number of processes."""


GroupLike = Union[Group, ProcessGroup]


def host_identity() -> Tuple[str, int, int]:
    """Returns (boot id, mount namespace, user). Processes can open a group together if all three
    are equal, because they then share the kernel, the file systems and the user."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        boot = f.read().strip()
    return boot, os.stat("/proc/self/ns/mnt").st_ino, os.getuid()


def open_on_host(gather: Callable[[Any], List[Any]], rank: int, joins: bool = True,
                 timeout: float = 120.0, window: int = 0) -> Tuple[Optional[Group], str]:
    """Opens a group of the processes that run on this host. All processes make this call.

    `gather` sends a value to all processes and returns the values of all, indexed by rank.
    Returns (group, ""). A process that is alone on its host needs no group and gets (None, "").
    If `joins` is False on one process, every process gets (None, ""). If one process cannot open
    its group, every process gets (None, the text of that error)."""
    # The group's name is short, because folder and name are parts of a Unix socket's address, which
    # has a maximum length.
    gathered = gather((host_identity() if joins else None, uuid.uuid4().hex[:16]))
    identities = [identity for identity, _ in gathered]
    if None in identities:
        return None, ""
    hosts = list(dict.fromkeys(identities))
    members = [r for r, identity in enumerate(identities) if identity == identities[rank]]
    made, why = None, ""
    if len(members) > 1:
        try:
            made = Group("w-" + gathered[members[0]][1], members.index(rank), len(members),
                         timeout=timeout, window=window, host=hosts.index(identities[rank]),
                         hosts=len(hosts))
        except PenstockError as error:
            why = str(error)
    failed = [text for text in gather(why) if text]
    if failed and made is not None:
        made.close()
    return (None, failed[0]) if failed else (made, "")


def _from_process_group(ranks: Any) -> Optional[Group]:
    """Opens a group of the processes of a torch process group that run on this host.

    Returns None if this process is alone on its host. Raises PenstockError on all processes if
    one of them cannot open its group."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    kind: Any = getattr(distributed, "ProcessGroup", None)
    if kind is None or not isinstance(ranks, kind):
        raise TypeError("group must be a penstock.Group or a torch.distributed.ProcessGroup that "
                        f"this process belongs to, not {ranks!r}")

    def gather(value: Any) -> List[Any]:
        values: List[Any] = [None] * ranks.size()
        distributed.all_gather_object(values, value, group=ranks)
        return values

    if ranks.size() < 2:
        return None
    made, why = open_on_host(gather, ranks.rank())
    if why:
        raise PenstockError(errno.ECONNABORTED, "the processes could not open a group: " + why)
    return made


@contextlib.contextmanager
def joined(group: Optional[GroupLike]) -> Iterator[Optional[Group]]:
    """Yields the Group for an argument `group`, which may be a process group of torch.

    Closes the group if the block raises before the group's load starts. A Group that this
    function has opened is closed at the end of the block."""
    made = group if group is None or isinstance(group, Group) else _from_process_group(group)
    if made is None:
        yield None
        return
    try:
        with made.leave_on_error():
            yield made
    finally:
        if made is not group:
            made.close()
