# SPDX-License-Identifier: Apache-2.0
"""The common part of the loaders for serving engines (vllm.py and sglang.py).

This module yields a model's tensors one after the other. Either one process reads them, or all
ranks of a host read them together, in a group that this module opens. The module is independent
of the engine: the caller passes the engine's options and ranks."""

from __future__ import annotations

import concurrent.futures
import errno
import importlib.util
import itertools
import logging
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ._group import Group, open_on_host
from ._lib import device_name
from ._model import Model, PenstockError, framework_of
from ._prefetch import Part, batches_of, load_batch
from ._progress import Meter, Progress

log = logging.getLogger("penstock")

# Names of this package's options. Users set them together with the serving engine's own loader
# options.
OPTIONS = {"effort", "require", "window", "group", "keep_cached"}
# Default size of the window (the memory through which a loader yields tensors), in bytes.
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


def _batches(model: Model, capacity: int, chosen: Optional[Callable[[str], bool]] = None
             ) -> List[List[Part]]:
    """Divides a model's tensors, or those whose names are chosen, into batches.

    A batch has at most `capacity` bytes, or consists of a single longer tensor."""
    parts: List[Part] = [(info, None) for info in model.infos
                         if chosen is None or chosen(info.name)]
    return batches_of(parts, capacity)


def _read_together(models: Sequence[Model], device: Any, framework: Optional[str],
                   group: Optional[Group], window: int = 0,
                   chosen: Optional[Callable[[str], bool]] = None, **options: Any) -> Steps:
    """Yields (name, tensor) of models that all ranks of a group read together.

    `chosen` selects the tensors by their names. The ranks load the next batch while the caller
    uses the current one, so a batch is half as large as the window. A rank that stops early
    leaves the group, and the other ranks get an error. If `group` is None, this rank reads all
    tensors alone."""
    framework = framework_of(framework)
    todo = iter([(batch, model) for model in models
                 for batch in _batches(model, (window or WINDOW) // 2, chosen)])

    def load(batch: List[Part], model: Model) -> Dict[str, Any]:
        return load_batch(batch, model, device, framework, group, stop=stop, **options)

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
        if group is not None:
            group.close()


# ---- the ranks of a host ---------------------------------------------------------


def _group_window(window: int) -> int:
    """Returns the size of a group's exchange windows, for a loader window of `window` bytes.

    A batch is half of the loader window. The result is 1/32 of a batch, in multiples of 64 KiB. So
    each rank has several parts of a batch to read, and can read one while it copies another."""
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


def shows_bar() -> bool:
    """Returns whether this process shows a progress bar. Only the engine's process of rank 0 shows
    one, and only if tqdm is installed."""
    if importlib.util.find_spec("tqdm") is None:
        return False
    return process_count() == 1 or int(sys.modules["torch"].distributed.get_rank()) == 0


def cuda_or_cpu() -> str:
    """Returns the device that this process of an engine uses: torch's current GPU or "cpu"."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def refuse_own_loader(options: Mapping[str, Any], engine: str, why: str) -> None:
    """Logs a warning that the engine's own loader reads the weights, without Penstock.

    `why` is the reason, a sentence without its period. If the user has set `require`, raises
    ValueError instead, because the engine's loader meets no requirement."""
    text = f"{why}, so {engine}'s own loader reads the weights, without Penstock"
    if options.get("require", "any") != "any":
        raise ValueError(f"{text}. The option require={options['require']!r} forbids this")
    log.warning("%s", text)


def refuse_elsewhere(weights_place: Any, why: str) -> None:
    """Raises ValueError if the option `weights` is set for a model that the engine's own loader
    must read. `why` is the reason, a sentence without its period."""
    if weights_place is not None:
        raise ValueError(f"{why}, so Penstock cannot read its weights from {weights_place}. Copy "
                         "the model to a local folder, and give this folder to the engine")


def _open_models(files: Sequence[str]) -> List[Model]:
    """Opens all files as one model, or each file as a separate model.

    Two files may contain a tensor of the same name. One Model cannot have both tensors, but
    engines accept such files."""
    try:
        return [Model(files)]
    except PenstockError:
        return [Model(file) for file in files]


def file_weights(files: Iterable[str], device: Any, ranks: Any, options: Mapping[str, Any],
                 prefix: str = "", *, needs: Optional[Callable[[str], Optional[bool]]] = None,
                 progress: bool = False) -> Steps:
    """Yields (prefix + name, tensor) of the safetensors files that an engine has chosen.

    `ranks` are the processes that make the same call at the same time; they read the files
    together if group_of opens a group. Files are sorted by name, so that all ranks read them
    in the same order. needs(name) returns whether this rank needs a tensor, or None if all ranks
    need it. Tensors that only some ranks need come last, and each rank reads them alone.
    `progress` shows a bar of tqdm."""
    how = dict(options)
    models = _open_models(sorted(files))
    group = group_of(ranks, device, how.pop("group", None), how.get("window", 0))
    chosen: List[Callable[[str], bool]] = [lambda _: True]
    if needs is not None:
        known = {name: needs(name) for model in models for name in model.columns.name}
        chosen = [lambda name: known[name] is None, lambda name: bool(known[name])]
        parts = [_read_together(models, device, None, group, chosen=chosen[0], **how),
                 _read_together(models, device, None, None, chosen=chosen[1],
                                ranks=process_count(), **how)]
    else:
        parts = [_read_alone(model, device, None, ranks=process_count(), **how)
                 for model in models] if group is None else \
            [_read_together(models, device, None, group, **how)]
    sizes = [nbytes for choose in chosen for model in models
             for name, nbytes in zip(model.columns.name, model.columns.nbytes) if choose(name)]
    with Meter(progress, sum(sizes), "Loading safetensors with Penstock") as meter:
        for (name, tensor), nbytes in zip(itertools.chain.from_iterable(parts), sizes):
            meter.add(nbytes)
            yield prefix + name, tensor


__all__ = ["file_weights", "group_of", "options_of", "refuse_elsewhere", "refuse_own_loader",
           "shows_bar", "weights"]
