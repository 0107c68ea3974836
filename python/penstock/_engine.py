# SPDX-License-Identifier: Apache-2.0
"""What the loaders for serving engines share: a model's weights one after the other,
by one process or by all ranks of a host together, and where the ranks meet. Knows no
engine; who asks says what its options are and which ranks there are."""

from __future__ import annotations

import concurrent.futures
import errno
import itertools
import logging
import os
import sys
import threading
import uuid
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ._group import Group
from ._lib import device_name
from ._model import Model, PenstockError, framework_of

log = logging.getLogger("penstock")

# What an engine's options for its loader may hold beside those of its own.
OPTIONS = {"effort", "require", "window", "group"}
WINDOW = 1 << 30
JOIN_S = 60.0

Steps = Iterator[Tuple[str, Any]]


def options_of(extra: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """An engine's loader options, as ours and as what is left for the engine."""
    given = dict(extra or {})
    ours = {name: given.pop(name) for name in OPTIONS & set(given)}
    if ours.get("group") not in (None, True, False):
        raise ValueError("group is true or false: do ranks of a host read a model together")
    return ours, given


def weights(model: Any, revision: Any = None, device: Any = None, *, cache: Any = None,
            framework: Optional[str] = None, **options: Any) -> Steps:
    """(name, tensor) of a model's folder, file, list of files or owner/name in the local
    cache. Who keeps more of them than the window holds gets the rest in memory of their
    own."""
    yield from _alone(Model(model, revision=revision, cache=cache), device, framework, **options)


def _alone(model: Model, device: Any, framework: Optional[str], **options: Any) -> Steps:
    count = 0
    try:
        for step in model.iterate(device, framework, **options):
            count += 1
            yield step
        return
    except PenstockError as error:
        if error.errno != errno.ENOBUFS:
            raise
    options.pop("window", None)
    for info in model.infos[count:]:
        yield from model.load(device, framework, first=info.index, count=1,
                              **options)[0].items()


def _batches(model: Model, room: int) -> List[Tuple[int, int]]:
    """Consecutive tensors that fit into `room` together, or one that does not."""
    found: List[Tuple[int, int]] = []
    first, size = 0, 0
    for index, nbytes in enumerate(model.columns.nbytes):
        if index > first and size + nbytes > room:
            found.append((first, index - first))
            first, size = index, 0
        size += nbytes
    count = len(model.columns.nbytes) - first
    return found + [(first, count)] if count else found


def _together(models: Sequence[Model], device: Any, framework: Optional[str], group: Group,
              window: int = 0, **options: Any) -> Steps:
    """By all ranks of a group, batch for batch, the next while this one is used: two of
    them are a window. Whoever stops early leaves the group, which tells the others so."""
    framework = framework_of(framework)
    todo = iter([(model, *batch) for model in models
                 for batch in _batches(model, (window or WINDOW) // 2)])

    def load(model: Model, first: int, count: int) -> Dict[str, Any]:
        return model.load(device, framework, first=first, count=count, group=group, stop=stop,
                          one_storage=True, **options)[0]  # copied from, and gone

    stop = threading.Event()
    pool = concurrent.futures.ThreadPoolExecutor(1, "penstock-weights")
    try:
        batch = next(todo, None)
        ahead = None if batch is None else pool.submit(load, *batch)
        while ahead is not None:
            tensors, batch = ahead.result(), next(todo, None)
            ahead = None if batch is None else pool.submit(load, *batch)
            yield from tensors.items()
            del tensors
    finally:
        stop.set()  # who leaves early has it told to the others in the middle of a batch
        pool.shutdown(wait=True)
        group.close()


# ---- the ranks of a host ---------------------------------------------------------


def _here() -> Tuple[str, int, int]:
    """The same for processes that can meet: kernel, file systems, user."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        boot = f.read().strip()
    return boot, os.stat("/proc/self/ns/mnt").st_ino, os.getuid()


def _share(window: int) -> int:
    """What ranks read at once: a thirty-second of a batch, so that each of them has some of
    it to read, and reads on while it copies."""
    return max(1, (window or WINDOW) // 64 // 65536) * 65536


def _gather(ranks: Any, value: Any) -> List[Any]:
    """What every rank has said, by its rank."""
    if hasattr(ranks, "all_gather_object"):
        return list(ranks.all_gather_object(value))
    import torch
    said: List[Any] = [None] * ranks.world_size
    torch.distributed.all_gather_object(said, value, group=ranks.cpu_group)
    return said


def group_of(ranks: Any, device: Any, wanted: Optional[bool] = None,
             window: int = 0) -> Optional[Group]:
    """The group of those of `ranks` (an engine's GroupCoordinator: rank_in_group,
    world_size, cpu_group) that run on this host; None where there is one alone, where it
    is not `wanted`, and, unless it is, where the device is no GPU. All ranks call it, and
    all get a group or none."""
    size = int(getattr(ranks, "world_size", 1)) if ranks is not None else 1
    if size < 2:
        return None
    mine = int(ranks.rank_in_group)
    joins = device_name(device).startswith("cuda") if wanted is None else bool(wanted)
    # A short name: with the folder it has to fit into a socket's address.
    said = _gather(ranks, (_here() if joins else None, uuid.uuid4().hex[:16]))
    places = [place for place, _ in said]
    if None in places:
        return None
    hosts = list(dict.fromkeys(places))
    members = [rank for rank, place in enumerate(places) if place == places[mine]]
    made, why = None, ""
    if len(members) > 1:
        try:
            made = Group("w-" + said[members[0]][1], members.index(mine), len(members),
                         timeout=JOIN_S, window=_share(window), host=hosts.index(places[mine]),
                         hosts=len(hosts))
        except PenstockError as error:
            why = str(error)
    failed = [text for text in _gather(ranks, why) if text]
    if failed:
        if made is not None:
            made.close()
        log.warning("each rank reads the model for itself: %s", failed[0])
        return None
    return made


def process_count() -> int:
    """The engine's processes, which load at the same time."""
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return 1
    return int(group.get_world_size())


def cuda_or_cpu() -> str:
    """The device that an engine's process works on."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def _open(files: Sequence[str]) -> List[Model]:
    """As one model; where two of them have a name, which engines take as it comes, each
    for itself."""
    try:
        return [Model(files)]
    except PenstockError:
        return [Model(file) for file in files]


def file_weights(files: Iterable[str], device: Any, ranks: Any, options: Mapping[str, Any],
                 prefix: str = "") -> Steps:
    """Those of the safetensors files that an engine has chosen; `ranks` load them at the
    same time, and together where they can. Files go by name, so that all ranks read them
    in the same order."""
    how = dict(options)
    models = _open(sorted(files))
    group = group_of(ranks, device, how.pop("group", None), how.get("window", 0))
    if group is not None:
        steps = _together(models, device, None, group, **how)
    else:
        alone = [_alone(model, device, None, ranks=process_count(), **how) for model in models]
        steps = itertools.chain.from_iterable(alone)
    for name, tensor in steps:
        yield prefix + name, tensor


__all__ = ["file_weights", "group_of", "options_of", "weights"]
