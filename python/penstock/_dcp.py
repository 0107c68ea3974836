# SPDX-License-Identifier: Apache-2.0
"""Definitions that _dcp_write and _dcp_read share: the names of the files in a checkpoint's folder,
checks of arguments, and a class that adds up the progress of several files (parts)."""

from __future__ import annotations

import threading
from typing import Any, Dict, Optional

from ._model import CLASSES, EFFORTS

MARKER = ".metadata"
# Suffix of the marker file while a save writes it. The save then renames the file to MARKER, which
# makes the checkpoint complete.
DRAFT = ".tmp"
MANIFEST = "penstock.manifest"
SUFFIX = ".distcp"
LOCK = ".penstock-saving"
# Attribute of torch's Metadata object in the marker. It has the name of the manifest file. torch
# ignores this attribute.
MANIFEST_OF = "penstock_manifest"


def name_of(index: Any) -> str:
    """Returns the name of an item in messages and manifests: the tensor's name and, for a shard,
    the offset of the shard in the tensor."""
    if not index.offset or not any(index.offset):
        return str(index.fqn)
    return f"{index.fqn}@{','.join(map(str, index.offset))}"


def refuse_object(path: Any, instead: str) -> None:
    """Raises ValueError if `path` is the URL of an object, because torch would create a folder
    named "s3:". `instead` is a text for the message: what the caller can do instead."""
    if str(path).startswith("s3:/"):
        raise ValueError(f"{path} is no folder; {instead}")


def check_choices(require: str, effort: Optional[str]) -> None:
    """Raises ValueError if `require` or `effort` is no such name."""
    if require not in CLASSES or effort not in (None, *EFFORTS):
        raise ValueError(f"require must be one of {list(CLASSES)}, effort one of {list(EFFORTS)}")


class Total:
    """Adds up the moved bytes of several parts (files of a checkpoint), and calls `call` with the
    sum and the total. Only one thread at a time calls `call`."""

    def __init__(self, call: Any, total: int) -> None:
        self._call, self._total = call, total
        self._done: Dict[int, int] = {}
        self._told = -1
        self._lock = threading.Lock()

    def function(self, part: int) -> Any:
        """Returns a function for the thread that moves part number `part`. The thread calls it with
        the number of bytes of this part that have been moved. Returns None without `call`."""
        if self._call is None:
            return None

        def tell(nbytes: int) -> None:
            with self._lock:
                self._done[part] = nbytes
                self._tell(min(sum(self._done.values()), self._total))
        return tell

    def finish(self) -> None:
        """Reports to `call` that all bytes have been moved, unless this was reported already."""
        if self._call is not None:
            with self._lock:
                if self._told < self._total:
                    self._tell(self._total)

    def _tell(self, done: int) -> None:
        self._told = done
        self._call(done, self._total)


__all__ = ["LOCK", "MANIFEST", "MANIFEST_OF", "MARKER", "SUFFIX", "Total", "check_choices",
           "name_of", "refuse_object"]
