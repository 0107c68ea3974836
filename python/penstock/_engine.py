# SPDX-License-Identifier: Apache-2.0
"""The common part of the loaders for serving engines (vllm.py and sglang.py).

This module yields a model's tensors one after the other. Either one process reads them, or all
ranks of a host read them together, in a group that this module opens. The module is independent
of the engine: the caller passes the engine's options and ranks."""

from __future__ import annotations

import concurrent.futures
import errno
import itertools
import logging
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ._group import Group, open_on_host
from ._lib import device_name
from ._model import Model, PenstockError, framework_of
from ._progress import Meter, Progress

log = logging.getLogger("penstock")

# Names of this package's options, which users write among an engine's loader options.
OPTIONS = {"effort", "require", "window", "group", "keep_cached"}
# Default size of the window, in bytes.
WINDOW = 1 << 30
# Time that a rank waits for the other ranks to join the group, in seconds.
JOIN_S = 60.0

Steps = Iterator[Tuple[str, Any]]


def options_of(extra: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Splits loader options into the options in OPTIONS and the engine's options.

    Raises ValueError if the option `group` or `keep_cached` is neither true nor false."""
    given = dict(extra or {})
    ours = {name: given.pop(name) for name in OPTIONS & set(given)}
    if ours.get("keep_cached", False) not in (True, False):
        raise ValueError("keep_cached must be true or false: whether the files stay in the page "
                         "cache")
    if ours.get("group") not in (None, True, False):
        raise ValueError("group must be true or false: whether the ranks of a host read a "
                         "model together")
    return ours, given


def weights(model: Any, revision: Optional[str] = None, device: Any = None, *,
            cache: Any = None, framework: Optional[str] = None, require: str = "any",
            effort: Optional[str] = None, window: int = 0, keep_cached: bool = False,
            ranks: int = 1, progress: Progress = False,
            stop: Optional[threading.Event] = None) -> Steps:
    """Yields (name, tensor) of a model in file order.

    `model` is a folder, a file, a list of files or owner/name in the Hugging Face cache. If the
    caller keeps more tensors than fit into the window, all further tensors get their own
    memory. The other arguments are as in penstock.iterate."""
    yield from _read_alone(Model(model, revision=revision, cache=cache), device, framework,
                           require=require, effort=effort, window=window,
                           keep_cached=keep_cached, ranks=ranks, progress=progress, stop=stop)


def _read_alone(model: Model, device: Any, framework: Optional[str], **options: Any) -> Steps:
    """Yields (name, tensor) of a model that this process reads alone."""
    count = 0
    try:
        for step in model.iterate(device, framework, **options):
            count += 1
            yield step
        return
    except PenstockError as error:
        if error.errno != errno.ENOBUFS:
            raise
    for name in ("window", "progress"):
        options.pop(name, None)
    for info in model.infos[count:]:
        yield from model.load(device, framework, first=info.index, count=1,
                              **options)[0].items()


def _batches(model: Model, capacity: int) -> List[Tuple[int, int]]:
    """Divides a model's tensors into batches, as (index of the first tensor, count).

    A batch has at most `capacity` bytes, or consists of a single longer tensor."""
    found: List[Tuple[int, int]] = []
    first, size = 0, 0
    for index, nbytes in enumerate(model.columns.nbytes):
        if index > first and size + nbytes > capacity:
            found.append((first, index - first))
            first, size = index, 0
        size += nbytes
    count = len(model.columns.nbytes) - first
    return found + [(first, count)] if count else found


def _read_together(models: Sequence[Model], device: Any, framework: Optional[str], group: Group,
                   window: int = 0, **options: Any) -> Steps:
    """Yields (name, tensor) of models that all ranks of a group read together.

    The ranks load the next batch while the caller uses the current one, so a batch is half as
    large as the window. A rank that stops early leaves the group, and the other ranks get an
    error."""
    framework = framework_of(framework)
    todo = iter([(model, *batch) for model in models
                 for batch in _batches(model, (window or WINDOW) // 2)])

    def load(model: Model, first: int, count: int) -> Dict[str, Any]:
        # Loads all tensors into a common torch storage, because that is fastest. Separate
        # storages are not needed, because the engine only copies the data out of the tensors.
        return model.load(device, framework, first=first, count=count, group=group, stop=stop,
                          one_storage=True, **options)[0]

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
        # If the caller stops early, setting `stop` ends the load that is still running.
        stop.set()
        pool.shutdown(wait=True)
        group.close()


# ---- the ranks of a host ---------------------------------------------------------


def _group_window(window: int) -> int:
    """Returns the size of a group's exchange windows, for a loader window of `window` bytes.

    The result is 1/32 of a batch, in multiples of 64 KiB. Each rank then has several parts of
    a batch to read, and can read one while it copies another."""
    return max(1, (window or WINDOW) // 64 // 65536) * 65536


def _all_gather(ranks: Any, value: Any) -> List[Any]:
    """Sends `value` to all ranks and returns the values of all ranks, indexed by rank."""
    if hasattr(ranks, "all_gather_object"):
        return list(ranks.all_gather_object(value))
    import torch
    values: List[Any] = [None] * ranks.world_size
    torch.distributed.all_gather_object(values, value, group=ranks.cpu_group)
    return values


def group_of(ranks: Any, device: Any, wanted: Optional[bool] = None,
             window: int = 0) -> Optional[Group]:
    """Opens a group of the ranks that run on this host. Returns None if each rank reads alone.

    All ranks call this function. Either every rank gets a group, or every rank gets None.
    `ranks` is an engine's GroupCoordinator, of which rank_in_group, world_size and cpu_group
    are used. `wanted` is the option `group`: False never opens a group, None opens a group only
    for GPUs. A rank that is alone on its host needs no group."""
    size = int(getattr(ranks, "world_size", 1)) if ranks is not None else 1
    if size < 2:
        return None
    joins = device_name(device).startswith("cuda") if wanted is None else bool(wanted)
    made, why = open_on_host(lambda value: _all_gather(ranks, value), int(ranks.rank_in_group),
                             joins, timeout=JOIN_S, window=_group_window(window))
    if why:
        log.warning("the ranks could not open a group, each rank reads the model for itself: %s",
                    why)
    return made


def process_count() -> int:
    """Returns the number of the engine's processes, which all load at the same time."""
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return 1
    return int(group.get_world_size())


def cuda_or_cpu() -> str:
    """Returns the device that this process of an engine uses: torch's current GPU or "cpu"."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def refuse_own_loader(options: Mapping[str, Any], engine: str, why: str) -> None:
    """Tells the user that the engine's own loader reads weights, without Penstock.

    `why` is a sentence without its period. Raises ValueError if the user has set `require`,
    because the engine's loader meets no requirement. Else logs a warning."""
    text = f"{why}, so {engine}'s own loader reads the weights, without Penstock"
    if options.get("require", "any") != "any":
        raise ValueError(f"{text}. The option require={options['require']!r} forbids this")
    log.warning("%s", text)


def _open_models(files: Sequence[str], names: Optional[Sequence[str]] = None) -> List[Model]:
    """Opens all files as one model, or each file as a separate model.

    Two files may contain a tensor of the same name. One Model cannot have both tensors, but
    engines accept such files. With `names`, only these tensors are opened."""
    if names is not None and not names:
        return []
    try:
        return [Model(files, names=names)]
    except PenstockError:
        if names is None:
            return [Model(file) for file in files]
    models = []
    for file in files:
        in_file = set(Model(file).columns.name) & set(names)
        models += [Model(file, names=sorted(in_file))] if in_file else []
    return models


def _split_models(files: Sequence[str], needs: Optional[Callable[[str], Optional[bool]]]
                  ) -> Tuple[List[Model], List[Model]]:
    """Opens the tensors that all ranks need, and the tensors that only this rank needs.

    `needs` tells for a tensor's name whether this rank needs the tensor, or returns None if all
    ranks need it. `needs=None` means that all ranks need all tensors."""
    models = _open_models(files)
    if needs is None:
        return models, []
    names = [name for model in models for name in model.columns.name]
    common = [name for name in names if needs(name) is None]
    own = [name for name in names if needs(name)]
    if len(common) == len(names):
        return models, []
    return _open_models(files, _exact(common)), _open_models(files, _exact(own))


def _exact(names: Iterable[str]) -> List[str]:
    """Returns patterns that match exactly these names, without repetitions."""
    return [re.sub(r"([][*?\\])", r"[\1]", name) for name in dict.fromkeys(names)]


def file_weights(files: Iterable[str], device: Any, ranks: Any, options: Mapping[str, Any],
                 prefix: str = "", *, needs: Optional[Callable[[str], Optional[bool]]] = None,
                 progress: bool = False) -> Steps:
    """Yields (prefix + name, tensor) of the safetensors files that an engine has chosen.

    `ranks` are the processes that make the same call at the same time; they read the files
    together if group_of opens a group. Files are sorted by name, so that all ranks read them
    in the same order. `needs` is the argument of _split_models; tensors that only some ranks
    need come last, and each rank reads them for itself. `progress` shows a bar of tqdm."""
    how = dict(options)
    common, own = _split_models(sorted(files), needs)
    group = group_of(ranks, device, how.pop("group", None), how.get("window", 0))
    sizes = [nbytes for model in common + own for nbytes in model.columns.nbytes]
    parts = [] if group is None else [_read_together(common, device, None, group, **how)]
    parts += [_read_alone(model, device, None, ranks=process_count(), **how)
              for model in (own if group is not None else common + own)]
    with Meter(progress, sum(sizes), "Loading safetensors with Penstock") as meter:
        for (name, tensor), nbytes in zip(itertools.chain.from_iterable(parts), sizes):
            meter.add(nbytes)
            yield prefix + name, tensor


__all__ = ["file_weights", "group_of", "options_of", "refuse_own_loader", "weights"]
