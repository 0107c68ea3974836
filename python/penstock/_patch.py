# SPDX-License-Identifier: Apache-2.0
"""For programs that cannot be edited: puts this package where they look for the
safetensors package. Undone by what it returns. What this package does not have, other
frameworks and devices, stays with the safetensors package."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Dict, List, Tuple

from . import _api
from ._lib import device_name
from ._model import FRAMEWORKS


def _ours(framework: Any, device: Any) -> bool:
    name = str(device) if device is not None else "cpu"
    return framework in FRAMEWORKS and (isinstance(device, int) or
                                        device_name(name).startswith(("host", "cuda:")))


class Patched:
    """Call it, or leave its block, to undo."""

    _all: List["Patched"] = []  # that are not undone

    def __init__(self, replaced: List[Tuple[Any, Any]]) -> None:
        self._replaced = replaced
        self._swap(replaced)
        self._all.append(self)

    @staticmethod
    def _swap(pairs: List[Tuple[Any, Any]]) -> None:
        """In every module that is loaded, under whatever name it has it."""
        for module in list(sys.modules.values()):
            if module is None or getattr(module, "__name__", "").partition(".")[0] == "penstock":
                continue
            space: Dict[str, Any] = getattr(module, "__dict__", None) or {}
            for old, new in pairs:
                for name in [n for n, value in list(space.items()) if value is old]:
                    setattr(module, name, new)

    def __call__(self) -> None:
        replaced, self._replaced = self._replaced, []
        if self in self._all:
            self._all.remove(self)
        self._swap([(new, old) for old, new in replaced])
        for later in self._all:  # what they put back is not what is gone now
            later._replaced = [(next((old for old, new in replaced if new is was), was), now)
                               for was, now in later._replaced]

    def __enter__(self) -> "Patched":
        return self

    def __exit__(self, *_: Any) -> None:
        self()


def patch_safetensors() -> Patched:
    """load_file, save_file and safe_open of the safetensors package, also where a module
    that is loaded has already taken them under their names; undone also in those that
    took them since."""
    import safetensors
    replaced: List[Tuple[Any, Any]] = [(safetensors.safe_open, _open_for(safetensors.safe_open))]
    for part, framework in (("torch", "pt"), ("numpy", "numpy"), ("flax", "flax")):
        try:
            module = __import__(f"safetensors.{part}", fromlist=["load_file"])
        except ImportError:
            continue
        replaced.append((module.load_file, _load_for(module.load_file, framework)))
        if framework != "flax":  # it saves by numpy's
            replaced.append((module.save_file, _save_for(module.save_file)))
    return Patched(replaced)


def _open_for(original: Any) -> Any:
    """A class for this patch alone, so that undoing it leaves penstock.safe_open where
    somebody means that."""

    class safe_open(_api.safe_open):  # pylint: disable=invalid-name
        """safetensors.safe_open, by Penstock."""

        def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", **how: Any) -> Any:
            if _ours(framework, device):
                return super().__new__(cls)
            return original(filename, framework, device, **how)

    return safe_open


def _load_for(original: Any, framework: str) -> Callable[..., Any]:
    @functools.wraps(original)  # by whose name it is pickled
    def load_file(filename: Any, device: Any = "cpu", **how: Any) -> Any:
        if not _ours(framework, device):
            return original(filename, device, **how)
        return _api.load_file(filename, device, framework=framework, **how)
    return load_file


def _save_for(original: Any) -> Callable[..., None]:
    names = inspect.signature(original)  # the first of them is not called the same everywhere

    @functools.wraps(original)
    def save_file(*args: Any, **how: Any) -> None:
        _api.save_file(*names.bind(*args, **how).args)
    return save_file
