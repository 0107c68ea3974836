# SPDX-License-Identifier: Apache-2.0
"""What _dcp_write and _dcp_read share: the names in a checkpoint's folder, and the progress of
several parts."""

from __future__ import annotations

import threading
from typing import Any, Dict

MARKER = ".metadata"
# The end of the name of a marker that is written, but does not count yet.
DRAFT = ".tmp"
MANIFEST = "penstock.manifest"
SUFFIX = ".distcp"
LOCK = ".penstock-saving"
# Attribute of the Metadata in a marker that names the manifest. torch ignores it.
MANIFEST_OF = "penstock_manifest"


def name_of(index: Any) -> str:
    """Returns the name of an item in messages and manifests: the tensor's name and, for a shard,
    the offset of the shard in the tensor."""
    if not index.offset or not any(index.offset):
        return str(index.fqn)
    return f"{index.fqn}@{','.join(map(str, index.offset))}"


def refuse_object(path: Any, instead: str) -> None:
    """Raises ValueError if `path` is the URL of an object: torch would make a folder s3:. `instead`
    says what can be done."""
    if str(path).startswith("s3:/"):
        raise ValueError(f"{path} is no folder; {instead}")


class Total:
    """Adds up the progress of several parts, and tells it to a function. The function is called by
    one thread at a time."""

    def __init__(self, call: Any, total: int) -> None:
        self._call, self._total = call, total
        self._done: Dict[int, int] = {}
        self._told = -1
        self._lock = threading.Lock()

    def function(self, part: int) -> Any:
        """Returns the function that is told how many bytes of a part have been moved."""
        if self._call is None:
            return None

        def tell(nbytes: int) -> None:
            with self._lock:
                self._done[part] = nbytes
                self._tell(min(sum(self._done.values()), self._total))
        return tell

    def finish(self) -> None:
        """Tells the caller's function that all bytes have been moved, if it was not told so."""
        if self._call is not None:
            with self._lock:
                if self._told < self._total:
                    self._tell(self._total)

    def _tell(self, done: int) -> None:
        self._told = done
        self._call(done, self._total)


__all__ = ["LOCK", "MANIFEST", "MANIFEST_OF", "MARKER", "SUFFIX", "Total", "name_of",
           "refuse_object"]
