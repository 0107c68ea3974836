# SPDX-License-Identifier: Apache-2.0
"""Opens a pickled Model again in another process, which may have another working folder."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Mapping, Optional


def _working_folder() -> str:
    """Returns the working folder, or "" if it does not exist any more."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _absolute(folder: str, path: Any) -> str:
    """Returns the absolute path of an existing file or folder. Returns any other name unchanged,
    such as a URL, or "owner/name" of a model in the Hugging Face cache."""
    name = os.fsdecode(path)
    if os.path.isabs(name):
        return name
    place = os.path.join(folder, name)
    return place if os.path.exists(place) else name


def with_absolute_paths(arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the arguments of a Model with absolute paths. The Model that was opened with the
    arguments calls this at once: later, the working folder may be another, or a file may be
    gone."""
    cache: Optional[Any] = arguments["cache"]
    folder = _working_folder()
    return {**arguments,
            "path": [_absolute(folder, path) for path in arguments["path"]],
            "stripes": [_absolute(folder, path) for path in arguments["stripes"]],
            "cache": None if cache is None else _absolute(folder, cache)}


def open_again(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Returns a new Model of type `kind`."""
    return kind(**arguments)


__all__ = ["open_again", "with_absolute_paths"]
