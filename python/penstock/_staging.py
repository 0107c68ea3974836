# SPDX-License-Identifier: Apache-2.0
"""Stager: copies the tensors of a state to host memory, so that a save can write them while
training goes on.

The copies go to a pool of pinned memory, which is allocated once and used again for each save.
The pool is never larger than the host's free memory. Tensors that do not fit into the pool stay on
the GPU. The save writes them first, and async_save returns only when they are written."""

from __future__ import annotations

import copy
import ctypes
import gc
import logging
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.distributed.checkpoint.staging import AsyncStager

from ._cuda import synchronize_all
from ._lib import check, device_name, ffi, lib, open_device

_log = logging.getLogger("penstock")
# Copies begin at multiples of this in the pool, so that drives can read them directly.
ALIGN = 4096
# Memory of the host that the pool leaves free: 1 / SPARE_SHARE, but at least SPARE_MIN bytes.
SPARE_SHARE, SPARE_MIN = 20, 2 << 30
# A new snapshot waits for the memory of an earlier snapshot. It ends this wait if no thread has
# worked on the earlier snapshot for this many seconds.
KEPT_S = 2.0


def free_host_bytes() -> int:
    """Returns how much memory this process may allocate without the kernel killing a process.

    Takes the host's available memory, or less if a control group of this process allows less.
    Subtracts a spare, and divides the rest by the number of ranks on this host (LOCAL_WORLD_SIZE).
    """
    total = available = 0
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                nbytes = int(value.split()[0]) << 10
                total, available = (nbytes, available) if name == "MemTotal" else (total, nbytes)
    available = min([available, *_group_room()])
    spare = max(total // SPARE_SHARE, SPARE_MIN)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(0, available - spare) // max(1, ranks)


def _group_room() -> Iterator[int]:
    """Yields, for each control group of this process that limits memory, the number of bytes that
    the process may still allocate."""
    try:
        with open("/proc/self/cgroup", encoding="ascii") as lines:
            groups = [line.strip().split(":", 2) for line in lines]
    except OSError:
        return
    for _, kinds, path in groups:
        version1 = "memory" in kinds.split(",")
        if kinds and not version1:
            continue
        root = "/sys/fs/cgroup/memory" if version1 else "/sys/fs/cgroup"
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version1 else \
            ("memory.max", "memory.current")
        parts = path.strip("/").split("/") if path != "/" else []
        for depth in range(len(parts), -1, -1):
            folder = "/".join([root, *parts[:depth]])
            try:
                with open(f"{folder}/{limit}", encoding="ascii") as most, \
                        open(f"{folder}/{used}", encoding="ascii") as current:
                    yield max(0, int(most.read()) - int(current.read()))
            except (OSError, ValueError):  # The group is not visible, or has no limit ("max").
                continue


class SnapshotReport:
    """A report of one snapshot.

    Attributes:
        bytes: number of bytes copied to the pool.
        left_bytes: number of bytes that did not fit; async_save waits until they are written.
        seconds: how long the copies took. Training is stopped for this time.
        predicted_seconds: how long training was expected to stop, from the rates of earlier
            saves; None for the first save.
        pin_seconds: how long allocating and pinning the pool took. 0.0 if the pool existed.
        wait_seconds: how long the snapshot waited for an earlier save to release the pool.
    """

    def __init__(self) -> None:
        self.bytes = self.left_bytes = 0
        self.seconds = self.pin_seconds = self.wait_seconds = 0.0
        self.predicted_seconds: Optional[float] = None

    def __repr__(self) -> str:
        return (f"penstock.torch.SnapshotReport({self.bytes} bytes in {self.seconds:.3f} s, "
                f"{self.left_bytes} left)")


class _Pool:
    """Pinned host memory for one snapshot at a time."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.pid = nbytes, os.getpid()
        self._host = open_device("host")
        out = ffi.new("void **")
        check(lib.penstock_alloc(self._host, nbytes, out), has_place=False)
        self._memory = out[0]
        self.ptr = int(ffi.cast("uintptr_t", self._memory))
        self._pinned: Set[str] = set()
        # The lock is reentrant, because the finalizer of a lease takes it, and may run while this
        # thread holds it.
        self._released = threading.Condition(threading.RLock())
        self._leases, self._retired = 0, False

    def pin(self, devices: Set[str]) -> None:
        """Pins the memory for copies from these devices."""
        for name in sorted(devices - self._pinned):
            code = lib.penstock_register(open_device(name), self._memory, self.nbytes)
            if code < 0:  # Copies work without pinned memory, too, but are slower.
                _log.warning("snapshot pool: %s bytes could not be pinned for %s: %s", self.nbytes,
                             name, ffi.string(lib.penstock_errmsg()).decode())
            else:
                self._pinned.add(name)

    def lease(self) -> Any:
        """Returns the pool's memory as an object with a buffer. The pool is in use until all
        references to the object are gone."""
        buffer = (ctypes.c_ubyte * self.nbytes).from_address(self.ptr)
        with self._released:
            self._leases += 1
        weakref.finalize(buffer, self._end).atexit = False
        return buffer

    def _end(self) -> None:
        with self._released:
            self._leases -= 1
            self._released.notify_all()
            last = self._retired and not self._leases
        if last:
            self._free()

    def await_free(self, busy: Callable[[], bool]) -> bool:
        """Waits until no tensor of an earlier snapshot exists, and returns True.

        Returns False if an object still refers to the snapshot although no thread has worked on it
        for KEPT_S seconds. The error of a failed save is such an object, for example. `busy` tells
        whether a thread works on the snapshot."""
        with self._released:
            if self._leases:
                gc.collect()  # The last references may be in reference cycles.
            idle_since = time.monotonic()
            while self._leases:
                self._released.wait(0.1)
                if busy():
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > KEPT_S:
                    return False
        return True

    def retire(self) -> None:
        """Frees the memory as soon as no object that lease() returned exists. The pool cannot be
        used again."""
        with self._released:
            self._retired = True
            last = not self._leases
        if last:
            self._free()

    def _free(self) -> None:
        """Frees the memory. In a child of fork, does nothing."""
        if self.pid != os.getpid():
            return
        for name in self._pinned:
            lib.penstock_unregister(open_device(name), self._memory)
        self._pinned.clear()
        lib.penstock_free(self._host, self._memory)


class Stager(AsyncStager):
    """Stages states for async_save in a reused pool of pinned memory.

        stager = penstock.torch.Stager()
        future = dcp.async_save(state, storage_writer=writer, async_stager=stager)

    A StorageWriter of this package has a Stager of its own. async_save uses that Stager if the call
    has no argument async_stager. With that Stager, a state may be larger than the pool.

    Args:
        pool_bytes: most bytes of the pool; None means free_host_bytes() at the first save.
        may_leave: whether tensors that do not fit into the pool stay where they are. The writer
            must then call `release` when they are written; StorageWriter does.

    Attributes:
        report: a SnapshotReport of the last snapshot, or None.

    `stage` raises MemoryError if the state is larger than the pool and `may_leave` is False.
    """

    _synchronize_after_execute = True

    def __init__(self, pool_bytes: Optional[int] = None, *, may_leave: bool = False) -> None:
        self.pool_bytes, self.may_leave = pool_bytes, may_leave
        self.report: Optional[SnapshotReport] = None
        self._pool: Optional[_Pool] = None
        self._written = threading.Event()
        self._copy_rate = 0.0  # bytes a second of earlier snapshots
        self._write_rate = 0.0  # bytes a second of earlier saves of tensors that were left
        self._left_since = 0.0
        # The threads that existed before the last snapshot, and the thread that saves it.
        self._before: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
        self._saver: Optional[threading.Thread] = None
        self._released = False  # Whether the writer has called `release`.

    def __getstate__(self) -> Dict[str, Any]:
        return {"pool_bytes": self.pool_bytes, "may_leave": self.may_leave}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def stage(self, state_dict: Any, **_: Any) -> Any:
        """Returns a copy of the state. Its tensors are copies in host memory, except those that do
        not fit into the pool, if `may_leave` is True."""
        self._written.clear()
        self._saver, self._released = None, False
        report = self.report = SnapshotReport()
        found = _Tensors(state_dict)
        sizes = {key: tensor.nbytes for key, tensor in found.tensors.items()}
        wanted = sum(_padded(nbytes) for nbytes in sizes.values())
        started = time.monotonic()
        pool = self._ready_pool(wanted, found.devices, report)
        kept, left = _fit(sizes, pool.nbytes)
        report.left_bytes = sum(sizes[key] for key in left)
        if left and not self.may_leave:
            raise MemoryError(
                f"the state has {wanted} bytes, but the snapshot pool only {pool.nbytes}; "
                "set pool_bytes, use penstock.torch.StorageWriter without async_stager, or "
                "dcp.save")
        report.predicted_seconds = self._predict(sum(sizes[key] for key in kept),
                                                 report.left_bytes)
        staged = self._copy(found, kept, pool, report)
        report.seconds = time.monotonic() - started
        self._left_since = time.monotonic()
        self._before = weakref.WeakSet(threading.enumerate())
        if not left:
            self._written.set()
        return found.replaced(staged)

    def _predict(self, copied: int, left: int) -> Optional[float]:
        if not self._copy_rate or (left and not self._write_rate):
            return None
        seconds = copied / self._copy_rate + (left / self._write_rate if left else 0.0)
        if left:
            _log.warning("the snapshot pool is too small for %d bytes: training stands still for "
                         "about %.1f s", left, seconds)
        return seconds

    def _ready_pool(self, wanted: int, devices: Set[str], report: SnapshotReport) -> _Pool:
        """Waits until no earlier snapshot uses the pool, and returns the pool. Replaces a pool of
        less than `wanted` bytes by a larger one. A pool has at most pool_bytes bytes; if pool_bytes
        is None, the limit is the free host memory."""
        started = time.monotonic()
        if self._pool is not None and self._pool.pid != os.getpid():
            self._pool = None  # The parent's pool is not in this child of fork.
        if self._pool is not None:
            if not self._pool.await_free(self._is_busy):
                self._give_up_pool()
            report.wait_seconds = time.monotonic() - started
        held = self._pool.nbytes if self._pool is not None else 0
        most = self.pool_bytes if self.pool_bytes is not None else free_host_bytes() + held
        nbytes = max(ALIGN, min(wanted, most // ALIGN * ALIGN))
        started = time.monotonic()
        if self._pool is None or self._pool.nbytes < nbytes:
            self.close()
            self._pool = _Pool(nbytes)
        self._pool.pin(devices)
        report.pin_seconds = time.monotonic() - started
        return self._pool

    def _copy(self, found: "_Tensors", kept: List[Any], pool: _Pool, report: SnapshotReport
              ) -> Dict[Any, torch.Tensor]:
        """Copies tensors to the pool, and returns the copies."""
        lease, at, staged = pool.lease(), 0, {}
        args = ffi.new("struct penstock_copy_args[]", len(kept) or 1)
        host, count = open_device("host"), 0
        sources = []
        for key in kept:
            source = found.tensors[key].detach().contiguous()
            sources.append(source)  # contiguous() may have made a copy, which must stay for now.
            staged[key] = _view(lease, at, source)
            if source.nbytes:
                row = args[count]
                row.size = ffi.sizeof("struct penstock_copy_args")
                row.src, row.dst = (ffi.cast("void *", source.data_ptr()),
                                    ffi.cast("void *", pool.ptr + at))
                row.src_dev, row.dst_dev = open_device(device_name(source.device)), host
                row.row_len, row.rows = source.nbytes, 1
                count += 1
            at += _padded(source.nbytes)
            report.bytes += source.nbytes
        synchronize_all(found.devices)
        started = time.monotonic()
        check(lib.penstock_copy(args, count), has_place=False)
        seconds = time.monotonic() - started
        if seconds > 0 and report.bytes:
            self._copy_rate = report.bytes / seconds
        return staged

    def release(self, error: Optional[BaseException]) -> None:
        """Ends the wait of synchronize_staging and await_written. The writer calls this method when
        this rank's tensors are written, or cannot be written."""
        report = self.report
        if error is None and report is not None and report.left_bytes:
            seconds = time.monotonic() - self._left_since
            self._write_rate = report.left_bytes / seconds if seconds > 0 else 0.0
        self._released = True
        self._written.set()

    def begin(self) -> None:
        """Records which thread saves the snapshot. The writer calls this on that thread."""
        self._saver = threading.current_thread()

    @property
    def unwritten_bytes(self) -> int:
        """Number of bytes that are not in the pool and have yet to be written."""
        if self._written.is_set() or self.report is None:
            return 0
        return self.report.left_bytes

    def synchronize_staging(self) -> None:
        """Waits until all tensors that are not in the pool are written, or the save has failed."""
        savers = self._new_threads()
        while not self._written.wait(0.1):
            # If the save fails before it writes, nobody calls release(). So this loop also ends
            # when the saving threads have ended.
            if self._saver is not None:
                savers = [self._saver]
            if savers and not any(thread.is_alive() for thread in savers):
                return

    def await_written(self) -> None:
        """Waits until the writer has called `release`. Returns at once if all tensors fit into the
        pool."""
        self._written.wait()

    def _new_threads(self) -> List[threading.Thread]:
        """Returns the threads that torch has started after the last snapshot. For each save, torch
        makes an executor with one thread."""
        return [thread for thread in threading.enumerate()
                if thread.name.startswith("ThreadPoolExecutor") and thread not in self._before]

    def _is_busy(self) -> bool:
        """Whether a thread may be saving the last snapshot."""
        if self._saver is not None:
            return self._saver.is_alive() and not self._released
        return bool(self._new_threads())  # A writer of another class calls no begin().

    def _give_up_pool(self) -> None:
        assert self._pool is not None
        _log.warning("something still refers to the last snapshot, such as the future of a failed "
                     "save; its %d bytes of host memory stay allocated until then",
                     self._pool.nbytes)
        self._pool.retire()
        self._pool = None

    def close(self) -> None:
        """Frees the pool as soon as no tensor of the last snapshot exists. Does not wait."""
        if self._pool is not None:
            self._pool.retire()
            self._pool = None


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the bytes, the dtype and the shape describe the tensor completely."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and \
        tensor.layout is torch.strided and not tensor.is_quantized and \
        tensor.device.type in ("cpu", "cuda") and not tensor.is_conj() and not tensor.is_neg()


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _fit(sizes: Dict[Any, int], room: int) -> Tuple[List[Any], List[Any]]:
    """Divides tensors into those that fit into `room` bytes and the others."""
    kept, left = [], []
    for key, nbytes in sorted(sizes.items(), key=lambda pair: pair[1]):
        if _padded(nbytes) <= room:
            kept.append(key)
            room -= _padded(nbytes)
        else:
            left.append(key)
    return kept, left


def _view(lease: Any, at: int, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the pool, at offset `at`, with the dtype and shape of `like`."""
    if not like.nbytes:
        return torch.empty(like.shape, dtype=like.dtype)
    row = torch.frombuffer(lease, dtype=torch.uint8, count=like.nbytes, offset=at)
    return row.view(like.dtype).view(like.shape)


class _Tensors:
    """Finds the tensors of a state, and makes copies of the state with other tensors in their
    place.

    Attributes:
        tensors: the tensors by id; the local shards of a distributed tensor count as tensors.
        devices: the library's names of the GPUs on which tensors are.
    """

    def __init__(self, state: Any) -> None:
        self.tensors: Dict[int, torch.Tensor] = {}
        self.devices: Set[str] = set()
        # All tensors of the state, also distributed ones, by id.
        self._owners: Dict[int, torch.Tensor] = {}
        # Copies of tensors that consist of more than their bytes, such as sparse ones, by id.
        self._copies: Dict[int, torch.Tensor] = {}
        self._state = state
        self._find(state, set())

    def _find(self, value: Any, seen: Set[int]) -> None:
        if id(value) in seen:
            return
        if isinstance(value, torch.Tensor):
            seen.add(id(value))
            self._owners[id(value)] = value
            for local in _locals(value):
                if not is_plain(local):
                    self._copies[id(local)] = local.detach().cpu().clone()
                    continue
                self.tensors[id(local)] = local
                if local.device.type == "cuda":
                    self.devices.add(device_name(local.device))
        elif isinstance(value, dict):
            seen.add(id(value))
            for member in value.values():
                self._find(member, seen)
        elif isinstance(value, (list, tuple)):
            seen.add(id(value))
            for member in value:
                self._find(member, seen)

    def replaced(self, staged: Dict[int, torch.Tensor]) -> Any:
        """Returns a deep copy of the state with the staged tensors."""
        memo: Dict[int, Any] = {}
        staged = {**staged, **self._copies}
        for owner in self._owners.values():
            memo[id(owner)] = _with_locals(owner, [staged.get(id(local), local)
                                                   for local in _locals(owner)])
        return copy.deepcopy(self._state, memo)


def tensor_bytes(state: Any) -> int:
    """Returns the bytes of this process's tensors in a state."""
    return sum(tensor.nbytes for tensor in _Tensors(state).tensors.values())


def _locals(value: torch.Tensor) -> List[torch.Tensor]:
    """Returns the tensors of this process that `value` consists of: the local shards of a
    distributed tensor, or else `value` itself. Every call returns the same objects, so callers can
    compare ids."""
    if hasattr(value, "local_shards"):  # ShardedTensor
        return [shard.tensor for shard in value.local_shards()]
    if hasattr(value, "device_mesh"):  # DTensor
        return [value._local_tensor]
    return [value]


def _with_locals(value: torch.Tensor, parts: List[torch.Tensor]) -> Any:
    """Returns a copy of the tensor `value` whose local tensors are `parts`."""
    if hasattr(value, "local_shards"):
        twin = copy.copy(value)
        twin._local_shards = [type(shard)(tensor=part, metadata=shard.metadata)
                              for shard, part in zip(value.local_shards(), parts)]
        return twin
    if hasattr(value, "device_mesh"):
        twin = value.detach()
        twin._local_tensor = parts[0]
        return twin
    return parts[0]


__all__ = ["SnapshotReport", "Stager", "free_host_bytes", "is_plain", "tensor_bytes"]
