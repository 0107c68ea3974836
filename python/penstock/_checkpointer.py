# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: saves the checkpoints of a training into one folder, and resumes from the newest.

StorageWriter writes the files. The ranks exchange objects through the class Ranks instead of
torch's collectives. So they notice within seconds that a rank has died, and a save may run while
the training itself uses collectives."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fnmatch
import functools
import logging
import operator
import os
import shutil
import tempfile
import time
import uuid
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from . import _part, _s3
from ._coordination import RankError, Ranks, describe
from ._dcp_read import StorageReader
from ._dcp_write import SaveReport, StorageWriter
from ._lib import without_file_scheme
from ._planner import SavePlanner
from ._staging import Stager, tensor_bytes
from ._torch_object import is_object

_log = logging.getLogger("penstock")
# Number of bytes that _probe writes to measure the speed of a drive, before the first save with a
# deadline.
PROBE_BYTES = 256 << 20
# Fraction of the time until a deadline that is reserved for planning, for the last sync, and for
# the marker (the file that makes a checkpoint complete).
DEADLINE_SPARE = 0.2


class DeadlineError(RuntimeError):
    """Raised if a save cannot end before its deadline. The earlier checkpoint is unchanged."""


@dataclasses.dataclass
class Saved:
    """The result of a save.

    Attributes:
        path: the checkpoint's folder.
        error: None, or the error because of which no checkpoint was made.
        seconds: how long the save took.
        dropped: the parts of the state that were left out so that the save met its deadline.
        predicted_seconds: the duration that was predicted for the state that was saved; None
            without a deadline.
        report: a SaveReport of this rank's part, or None.
    """
    path: str
    error: Optional[Exception] = None
    seconds: float = 0.0
    dropped: Sequence[str] = ()
    predicted_seconds: Optional[float] = None
    report: Optional[SaveReport] = None

    @property
    def ok(self) -> bool:
        """Whether the checkpoint is complete."""
        return self.error is None


class _Deadline:
    """An event that is set from the time `at` on. It is the argument `stop` of write_part."""

    def __init__(self, at: float) -> None:
        self.at = at

    def is_set(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() > self.at


class Checkpointer:
    """Saves checkpoints below one folder, and loads them.

        checkpoints = penstock.torch.Checkpointer("/ckpt/run1", keep=3)
        state = {"model": model, "optim": optimizer, "step": step}
        checkpoints.load(state)                # the newest complete one, if there is any
        checkpoints.save_async(state, step)    # training goes on
        checkpoints.save(state, step)          # waits

    All ranks make the same calls. Checkpoint N is the folder step-N. Each is a checkpoint of
    torch.distributed.checkpoint, which torch reads without this package.

    Args:
        folder: the folder of the checkpoints. It is created. s3://bucket/prefix means the objects
            below a prefix.
        group: a process group of torch.distributed; None means all ranks.
        keep: number of complete checkpoints to keep, the newest ones; None keeps all.
        raise_errors: whether a failed save raises its error. Otherwise the error is logged and
            is in the result, and training goes on.
        patience: after how many seconds without a sign of life a rank counts as dead.
        stripe, parts, checksums, durable, overwrite, require, effort, path_name, pool_bytes,
            progress: as in StorageWriter.

    The states may contain objects with the methods state_dict and load_state_dict.
    """

    def __init__(self, folder: Any, *, group: Any = None, keep: Optional[int] = None,
                 raise_errors: bool = False, patience: float = 20.0, stripe: Sequence[Any] = (),
                 parts: Optional[int] = None, checksums: bool = True, durable: bool = True,
                 overwrite: bool = True, require: str = "any", effort: str = "thrifty",
                 path_name: Optional[str] = None, pool_bytes: Optional[int] = None,
                 progress: Any = None) -> None:
        self.folder, self.keep = os.fspath(without_file_scheme(folder)), keep
        if not is_object(self.folder):
            self.folder = os.path.abspath(self.folder)
        self.raise_errors, self._pool_bytes = raise_errors, pool_bytes
        self._new_writer = functools.partial(
            StorageWriter, stripe=stripe, parts=parts, checksums=checksums, durable=durable,
            overwrite=overwrite, require=require, effort=effort, path_name=path_name,
            pool_bytes=pool_bytes, progress=progress)
        self._new_writer(self.path_of(0), keep=keep)  # Raises the error of a wrong argument.
        self._ranks = Ranks(group, patience)
        self._stager: Optional[Stager] = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "penstock-save")
        self._last: Optional["concurrent.futures.Future[Saved]"] = None
        self._rate = 0.0  # bytes a second of this rank's last save

    def path_of(self, step: int) -> str:
        """Returns the folder of the checkpoint of a step."""
        return self._inside(f"step-{operator.index(step)}")

    def _inside(self, name: str) -> str:
        """Returns the path or URL of `name` in the folder."""
        if not is_object(self.folder):
            return os.path.join(self.folder, name)
        place, question, options = self.folder.partition("?")
        return f"{place.rstrip('/')}/{name}{question}{options}"

    # ---- saving ----

    def save(self, state: Mapping[str, Any], step: int, *, deadline: Optional[float] = None,
             priority: Sequence[str] = ()) -> Saved:
        """Saves a state, and returns when the checkpoint is complete.

        Args:
            state: a dict of tensors, objects with state_dict, and objects that torch.save takes.
            step: the number of the checkpoint.
            deadline: number of seconds after which the save must have ended. Before the save
                writes, it predicts its duration from measured rates. If the time is too short,
                it leaves out the keys of `state` that come last in `priority`. If not even the
                first key fits, or if the deadline passes during the save, the save fails with
                DeadlineError, and the earlier checkpoints are unchanged.
            priority: names of keys of `state`, or patterns of names, the most important first.
                Keys that no pattern matches come last.
        """
        self.wait()
        return self._finished(self._save(_state_dict(state), step, deadline, priority, None))

    def save_async(self, state: Mapping[str, Any], step: int
                   ) -> "concurrent.futures.Future[Saved]":
        """Copies a state to host memory, and saves the copy on another thread. Returns when the
        program may change the state. First waits until an earlier save has ended."""
        self.path_of(step)  # Raises TypeError if `step` is not a whole number.
        self.wait()
        if self._stager is None:
            self._stager = Stager(self._pool_bytes, may_leave=True)
        staged = self._stager.stage(_state_dict(state))
        self._last = self._thread.submit(self._save_staged, staged, step)
        del staged
        self._stager.await_written()
        return self._last

    def wait(self) -> Optional[Saved]:
        """Waits for the save that save_async has begun. Returns its result, or None if no save is
        in progress."""
        last, self._last = self._last, None
        return last.result() if last is not None else None

    def _save_staged(self, staged: Any, step: int) -> Saved:
        saved = self._save(staged, step, None, (), self._stager)
        _drop_tracebacks(saved.error)
        return self._finished(saved)

    def _finished(self, saved: Saved) -> Saved:
        if saved.error is not None:
            if self.raise_errors:
                raise saved.error
            _log.error("the save to %s failed: %s; training goes on with the earlier checkpoint",
                       saved.path, describe(saved.error))
        return saved

    def _save(self, state: Dict[str, Any], step: int, deadline: Optional[float],
              priority: Sequence[str], stager: Optional[Stager]) -> Saved:
        started, saved = time.monotonic(), Saved(self.path_of(step))
        writer = self._new_writer(saved.path, keep=self.keep)
        writer.stager = stager
        try:
            if deadline is not None:
                writer.stop = _Deadline(started + deadline)
                kept, saved.predicted_seconds = self._choose(state, deadline, priority)
                saved.dropped = [name for name in state if name not in kept]
                state = {name: state[name] for name in kept}
                if saved.dropped:
                    _log.warning("the save to %s leaves out %s: they would not be written within "
                                 "%.1f s", saved.path, ", ".join(saved.dropped), deadline)
            self._write(state, writer)
        except Exception as error:  # pylint: disable=broad-except
            saved.error = error
            if deadline is not None and time.monotonic() > started + deadline:
                saved.error = DeadlineError(f"the save took longer than {deadline:.1f} s: {error}")
        finally:
            writer.abandon()
            if stager is not None:
                stager.release(saved.error)
        saved.seconds, saved.report = time.monotonic() - started, writer.report
        if saved.ok and writer.report is not None and saved.seconds > 0:
            self._rate = writer.report.bytes / saved.seconds
        return saved

    def _write(self, state: Dict[str, Any], writer: StorageWriter) -> None:
        """Runs the steps of torch.distributed.checkpoint.save, but exchanges the plans and results
        through self._ranks instead of torch's collectives."""
        ranks, planner = self._ranks, SavePlanner()
        metadata: List[Any] = []

        def plan_local() -> Any:
            planner.set_up_planner(state_dict=state, storage_meta=writer.storage_meta(),
                                   is_coordinator=not ranks.rank)
            writer.set_up_storage_writer(not ranks.rank, rank=ranks.rank, use_collectives=True)
            return writer.prepare_local_plan(planner.create_local_plan())

        def plan_global(plans: List[Any]) -> List[Any]:
            plans, described = planner.create_global_plan(plans)
            metadata.append(described)
            return writer.prepare_global_plan(plans)

        def finish(results: List[Any]) -> List[None]:
            writer.finish(metadata[0], results)
            return [None] * ranks.count

        plan = ranks.exchange(plan_local, plan_global)
        ranks.exchange(lambda: writer.write_data(planner.finish_plan(plan), planner).wait(),
                       finish)

    # ---- deadlines ----

    def _choose(self, state: Mapping[str, Any], deadline: float, priority: Sequence[str]
                ) -> Tuple[List[str], float]:
        """Returns the keys of the state that can be saved before the deadline, and the predicted
        duration. The result is the same on all ranks."""
        order = _by_priority(state, priority)

        def measure() -> Tuple[float, Dict[str, int]]:
            return self._rate or self._probe(), {key: tensor_bytes(state[key]) for key in order}

        def choose(measured: List[Any]) -> List[Any]:
            kept: List[str] = []
            seconds = 0.0
            for key in order:
                trial = max(sum(sizes.get(k, 0) for k in kept + [key]) / rate
                            for rate, sizes in measured)
                if trial > deadline * (1 - DEADLINE_SPARE):
                    break
                kept, seconds = kept + [key], trial
            return [(kept, seconds)] * len(measured)

        kept, seconds = self._ranks.exchange(measure, choose)
        if not kept and order:
            raise DeadlineError(f"{order[0]} alone would take longer than {deadline:.1f} s")
        return kept, seconds

    def _probe(self) -> float:
        """Measures the drive by writing a file. Returns the number of bytes a second."""
        data = memoryview(bytearray(PROBE_BYTES))
        item = _part.Item("probe", 0, len(data))
        item.add_bytes(0, data)
        if is_object(self.folder):
            return self._probe_store(item)
        os.makedirs(self.folder, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".penstock-probe-", dir=self.folder)
        try:
            start = time.monotonic()
            _part.write_part(os.path.join(scratch, "probe"), [item], checksums=False)
            return PROBE_BYTES / (time.monotonic() - start)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _probe_store(self, item: _part.Item) -> float:
        """Measures the store by writing an object. Returns the number of bytes a second."""
        url = self._inside(f".penstock-probe-{uuid.uuid4().hex}")
        start = time.monotonic()
        _part.write_part(url, [item], checksums=False)
        seconds = time.monotonic() - start
        _s3.ask(url, "DELETE")
        return PROBE_BYTES / seconds

    # ---- loading ----

    def list(self) -> List[_part.Checkpoint]:
        """Returns the checkpoints in the folder, the oldest first."""
        if is_object(self.folder):
            options = "".join(self.folder.partition("?")[1:])
            return [found._replace(path=found.path + options)
                    for found in _part.list_checkpoints(self.folder)]
        return _part.list_checkpoints(self.folder) if os.path.isdir(self.folder) else []

    def load(self, state: Dict[str, Any], step: Optional[int] = None, *,
             checksums: bool = True) -> Optional[str]:
        """Loads the checkpoint of a step into a state; without `step`, the newest complete one.

        If the newest checkpoint is damaged, loads the one before it, and so on. The number of
        ranks may differ from that at the save. An optimizer of torch.optim in the state need not
        have made a step: its moments are loaded, too. If an object in the state lacks values that
        the checkpoint has for it, logs a warning.

        Returns the checkpoint's folder, or None if `step` is None and there is no complete
        checkpoint. Raises the error of the load if no complete checkpoint can be loaded.
        """
        self.wait()
        paths: List[str] = self._ranks.exchange(lambda: self._candidates(step))
        last: Optional[Exception] = None
        for path in paths:
            try:
                self._ranks.exchange(functools.partial(_read, path, state, checksums,
                                                       not self._ranks.rank),
                                     lambda values: values)
                return path
            except RankError as error:
                last = error
            except (OSError, ValueError, RuntimeError) as error:
                last = error
            _log.warning("the checkpoint %s cannot be loaded: %s", path, last)
        if last is not None:
            raise last
        return None

    def _candidates(self, step: Optional[int]) -> List[str]:
        if self._ranks.rank:
            return []
        if step is not None:
            return [self.path_of(step)]
        return [found.path for found in reversed(self.list()) if found.state == "complete"]

    def close(self) -> None:
        """Waits for a save in progress, and frees the memory for snapshots."""
        self.wait()
        self._thread.shutdown()
        self._ranks.close()
        if self._stager is not None:
            self._stager.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _drop_tracebacks(error: Optional[BaseException]) -> None:
    """Removes the tracebacks of an error. They hold references to local variables, and so to the
    snapshot of the state. The next save needs the snapshot's memory."""
    if error is not None:
        _log.debug("the save failed here:", exc_info=error)
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _by_priority(state: Mapping[str, Any], priority: Sequence[str]) -> List[str]:
    def rank(name: str) -> int:
        return next((i for i, pattern in enumerate(priority) if fnmatch.fnmatchcase(name, pattern)),
                    len(priority))
    return sorted(state, key=rank)


def _state_dict(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: value.state_dict() if isinstance(value, Stateful) else value
            for key, value in state.items()}


def _start_optimizers(state: Mapping[str, Any], names: Collection[str]) -> List[Optimizer]:
    """Lets each optimizer that has not made a step create its tensors, such as Adam's moments, if
    the checkpoint has tensors for it. Returns these optimizers.

    A load fills only tensors that exist. An optimizer creates them in its first step. So this
    function makes a step with gradients and learning rates of zero, which does not change the
    parameters. Then it restores gradients and learning rates."""
    started: List[Optimizer] = []
    for key, value in state.items():
        if not isinstance(value, Optimizer) or value.state or \
                not any(name.startswith(f"{key}.state.") for name in names):
            continue
        params = [p for group in value.param_groups for p in group["params"] if p.requires_grad]
        grads, rates = [p.grad for p in params], [g.get("lr") for g in value.param_groups]
        started.append(value)
        try:
            for param in params:
                param.grad = torch.zeros_like(param)
            for group, rate in zip(value.param_groups, rates):
                if rate is not None:
                    group["lr"] = torch.zeros_like(rate) if torch.is_tensor(rate) else 0.0
            value.step()
        except (RuntimeError, TypeError) as error:
            # For example, the step of LBFGS needs a function as argument.
            _log.debug("%s made no step: %s", key, error)
        finally:
            for param, grad in zip(params, grads):
                param.grad = grad
            for group, rate in zip(value.param_groups, rates):
                if rate is not None:
                    group["lr"] = rate
    return started


def _warn_of_rest(path: str, state: Mapping[str, Any], asked: Collection[str],
                  names: Collection[str]) -> None:
    """Logs a warning if the checkpoint has values of a state's objects that the load did not
    read, because the objects do not have these values."""
    keys = tuple(f"{key}." for key, value in state.items() if isinstance(value, Stateful))
    rest = [name for name in names if name.startswith(keys) and name not in asked]
    if rest:
        _log.warning("the checkpoint %s has %d values that the state lacks, such as %s: they were "
                     "not loaded", path, len(rest), rest[0])


def _read(path: str, state: Dict[str, Any], checksums: bool, warn: bool) -> None:
    """Loads a checkpoint into a state, as torch.distributed.checkpoint.load does on one rank."""
    reader, planner = StorageReader(path, checksums=checksums), DefaultLoadPlanner()
    metadata = reader.read_metadata()
    names = metadata.state_dict_metadata
    started = _start_optimizers(state, names)
    try:
        values = _state_dict(state)
        planner.set_up_planner(values, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
        reader.read_data(plan, planner).wait()
        for key, value in state.items():
            if isinstance(value, Stateful):
                value.load_state_dict(values[key])
            else:
                state[key] = values[key]
    except BaseException:
        for optimizer in started:
            optimizer.state.clear()
        raise
    if warn:
        _warn_of_rest(path, state, planner.state_dict, names)


__all__ = ["Checkpointer", "DeadlineError", "Saved"]
