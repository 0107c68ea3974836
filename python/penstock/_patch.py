# SPDX-License-Identifier: Apache-2.0
"""For programs that cannot be edited: puts this package where they look for the
safetensors package. Undone by what it returns."""

from __future__ import annotations

import sys
from typing import Any, Callable, List, Tuple

from . import _api


class Patched:
    """Call it, or leave its block, to undo."""

    def __init__(self, done: List[Tuple[Any, str, Any]]) -> None:
        self._done = done

    def __call__(self) -> None:
        while self._done:
            module, name, old = self._done.pop()
            setattr(module, name, old)

    def __enter__(self) -> "Patched":
        return self

    def __exit__(self, *_: Any) -> None:
        self()


def patch_safetensors() -> Patched:
    """load_file, save_file and safe_open of the safetensors package, also where a module
    that is loaded has already taken them under their names."""
    import safetensors
    replaced: List[Tuple[Any, Any]] = [(safetensors.safe_open, _api.safe_open)]
    modules = {"torch": "pt", "numpy": "numpy"}
    for part, framework in modules.items():
        try:
            module = __import__(f"safetensors.{part}", fromlist=["load_file"])
        except ImportError:
            continue
        replaced.append((module.load_file, _bound_load(framework)))
        replaced.append((module.save_file, _save))
    done: List[Tuple[Any, str, Any]] = []
    for module in list(sys.modules.values()):
        if module is None or getattr(module, "__name__", "").partition(".")[0] == "penstock":
            continue
        space = getattr(module, "__dict__", None) or {}
        for old, new in replaced:
            for name in [n for n, value in list(space.items()) if value is old]:
                done.append((module, name, old))
                setattr(module, name, new)
    return Patched(done)


def _bound_load(framework: str) -> Callable[..., Any]:
    def load_file(filename: Any, device: Any = "cpu", **how: Any) -> Any:
        return _api.load_file(filename, device, framework=framework, **how)
    return load_file


def _save(tensor_dict: Any, filename: Any, metadata: Any = None) -> None:
    _api.save_file(tensor_dict, filename, metadata)
