# SPDX-License-Identifier: Apache-2.0
"""Ranks: lets the ranks of a save or load exchange objects, and notices ranks that have died.

The collectives of torch wait for a dead rank until their timeout, which is 10 or 30 minutes, and
do not name the rank. Here all objects pass through the store of torch.distributed (TCPStore), and
each rank increments a counter in the store every second. A rank whose counter does not change for
`patience` seconds is dead: all others raise an error that names it.

If torch.distributed is not initialised, there is one rank."""

from __future__ import annotations

import os
import pickle
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch.distributed as dist

# Time between two increments of a rank's counter (its beats), in seconds.
BEAT_S = 1.0
# Shortest and longest pause between two queries of the store, in seconds.
LOOK_MIN_S, LOOK_MAX_S = 0.001, 0.2


class RankError(RuntimeError):
    """Raised on all ranks if a rank has failed or died.

    Attributes:
        ranks: a dict from the number of each failed or dead rank to a sentence about its failure.
    """

    def __init__(self, ranks: Dict[int, str]) -> None:
        super().__init__(ranks)
        self.ranks = ranks

    def __str__(self) -> str:
        return "; ".join(f"rank {rank}: {text}" for rank, text in sorted(self.ranks.items()))


class _Failed:
    """An object that a failed rank sends in place of a value. `text` describes its error."""

    def __init__(self, text: str) -> None:
        self.text = text


def describe(error: BaseException) -> str:
    """Returns the type name and the message of an error as one line."""
    return f"{type(error).__name__}: {error}"


class Ranks:
    """The ranks of a process group, or this process alone.

    Args:
        group: a process group of torch.distributed; None means all ranks.
        patience: after how many seconds a rank is dead if it has not incremented its counter in
            the store (its beat).

    Attributes: rank, count.

    All ranks must make the same calls in the same order. After a RankError, the object can be used
    again if no rank has died."""

    def __init__(self, group: Any = None, patience: float = 20.0) -> None:
        self.patience, self.rank, self.count = patience, 0, 1
        self._store: Any = None
        self._round = 0
        self._stop = threading.Event()
        if dist.is_available() and dist.is_initialized():
            self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.count > 1:
            store = dist.distributed_c10d._get_default_store()
            members = dist.get_process_group_ranks(group) if group is not None else ["all"]
            name = f"penstock/{'-'.join(map(str, members))[:64]}/{_number_of(tuple(members))}"
            self._store = dist.PrefixStore(name, store)
            self._started = time.monotonic()
            self._seen: Dict[int, Any] = {}
            beat = threading.Thread(target=_beat, args=(self._store, self.rank, self._stop),
                                    name="penstock-beat", daemon=True)
            beat.start()
            weakref.finalize(self, self._stop.set)

    def close(self) -> None:
        """Stops incrementing this rank's counter. The other ranks then regard this rank as dead."""
        self._stop.set()

    def exchange(self, make: Callable[[], Any],
                 join: Optional[Callable[[List[Any]], Sequence[Any]]] = None) -> Any:
        """Calls `make` on each rank, passes all results to `join` on rank 0, and returns on each
        rank its element of the sequence that `join` returns. Without `join`, each rank gets the
        result of rank 0.

        Raises RankError on all ranks if a rank has failed or died."""
        cause: Optional[Exception] = None
        try:
            mine: Any = make()
        except Exception as error:  # pylint: disable=broad-except
            mine, cause = _Failed(describe(error)), error
        if self.count == 1:
            if cause is not None:
                raise cause
            return (join or (lambda values: values))([mine])[0]
        try:
            return self._exchange(mine, join)
        except RankError as error:
            raise error from cause

    def _exchange(self, mine: Any, join: Any) -> Any:
        self._round += 1
        store = dist.PrefixStore(str(self._round), self._store)
        if self.rank:
            store.set(f"up/{self.rank}", pickle.dumps(mine))
            answer = pickle.loads(self._get(store, f"down/{self.rank}", 0))
            store.set(f"got/{self.rank}", b"1")
        else:
            answer = self._answer(store, mine, join)
        if isinstance(answer, RankError):
            raise answer
        return answer

    def _answer(self, store: Any, mine: Any, join: Any) -> Any:
        """Collects the values of all ranks, and sends each rank its answer. Returns the answer for
        rank 0, which calls this method."""
        answers: Any
        try:
            values = [mine] + [pickle.loads(self._get(store, f"up/{rank}", rank))
                               for rank in range(1, self.count)]
            failed = {rank: value.text for rank, value in enumerate(values)
                      if isinstance(value, _Failed)}
            if failed:
                raise RankError(failed)
            answers = join(values) if join else [mine] * self.count
        except RankError as error:
            answers = [error] * self.count
        except Exception as error:  # pylint: disable=broad-except
            answers = [RankError({0: describe(error)})] * self.count
        sent: Dict[int, bytes] = {}
        for rank in range(1, self.count):
            key = id(answers[rank])
            data = sent.setdefault(key, b"") or pickle.dumps(answers[rank])
            sent[key] = data
            store.set(f"down/{rank}", data)
            self._drop(store, f"up/{rank}")
        return answers[0]

    @staticmethod
    def _drop(store: Any, key: str) -> None:
        try:
            store.delete_key(key)
        except (RuntimeError, NotImplementedError):
            pass  # The store cannot delete (FileStore, for example), so the value stays in it.

    def _get(self, store: Any, key: str, of: int) -> bytes:
        """Waits for a value of rank `of`. Raises RankError if that rank dies meanwhile."""
        pause, looked = LOOK_MIN_S, time.monotonic()
        try:
            while not store.check([key]):
                now = time.monotonic()
                if now - looked > BEAT_S:
                    looked = now
                    self._check_alive(of)
                time.sleep(pause)
                pause = min(2 * pause, LOOK_MAX_S)
            return bytes(store.get(key))
        except RankError:
            raise
        except RuntimeError as error:
            raise RankError({0: "the store of torch.distributed cannot be reached, so the process "
                                f"that holds it has died: {error}"}) from error

    def _check_alive(self, rank: int) -> None:
        """Raises RankError if a rank has not increased its counter for `patience` seconds."""
        key, now = f"beat/{rank}", time.monotonic()
        value = bytes(self._store.get(key)) if self._store.check([key]) else None
        seen = self._seen.get(rank)
        if seen is None or seen[0] != value:
            self._seen[rank] = (value, now)
        elif now - seen[1] > self.patience:
            raise RankError({rank: f"it has died, or stands still: no sign of life for "
                                   f"{self.patience:.0f} s"})


_counts: Dict[Any, int] = {}


def _number_of(members: Any) -> int:
    """Returns how many objects of class Ranks this process has made before for the same ranks.
    The number is a part of the keys in the store, so that two objects do not use the same keys."""
    key = (os.getpid(), members)
    _counts[key] = _counts.get(key, -1) + 1
    return _counts[key]


def _beat(store: Any, rank: int, stop: threading.Event) -> None:
    count = 0
    while True:
        count += 1
        try:
            store.set(f"beat/{rank}", str(count))
        except RuntimeError:
            return  # The store cannot be reached. Every other method then raises an error.
        if stop.wait(BEAT_S):
            return


__all__ = ["RankError", "Ranks", "describe"]
