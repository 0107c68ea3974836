# SPDX-License-Identifier: Apache-2.0
"""patch_safetensors: makes programs that use the safetensors package load with Penstock.

The patch is meant for programs that cannot be edited. Calls with a framework or device that
this package does not support still go to the safetensors package."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Dict, List, Tuple

from . import _api
from ._lib import device_name
from ._model import FRAMEWORKS


def _supported(framework: Any, device: Any) -> bool:
    """Returns whether this package can serve a call with this framework and device."""
    name = str(device) if device is not None else "cpu"
    return framework in FRAMEWORKS and (isinstance(device, int) or
                                        device_name(name).startswith(("host", "cuda:")))


class Patched:
    """An active patch. Call the object, or leave its `with` block, to undo the patch."""

    _active: List["Patched"] = []

    def __init__(self, replaced: List[Tuple[Any, Any]]) -> None:
        self._replaced = replaced
        self._swap(replaced)
        self._active.append(self)

    @staticmethod
    def _swap(pairs: List[Tuple[Any, Any]]) -> None:
        """Replaces objects in the namespaces of all loaded modules, under whatever names the
        modules refer to them.

        `pairs` are (object to replace, its replacement)."""
        for module in list(sys.modules.values()):
            if module is None or getattr(module, "__name__", "").partition(".")[0] == "penstock":
                continue
            space: Dict[str, Any] = getattr(module, "__dict__", None) or {}
            for old, new in pairs:
                for name in [n for n, value in list(space.items()) if value is old]:
                    setattr(module, name, new)

    def __call__(self) -> None:
        """Undoes the patch. A second call does nothing. Patches may be undone in any order."""
        replaced, self._replaced = self._replaced, []
        if self in self._active:
            self._active.remove(self)
        self._swap([(new, old) for old, new in replaced])
        # A later patch may have replaced this patch's objects. When that later patch is
        # undone, it must restore the original objects.
        for later in self._active:
            later._replaced = [(next((old for old, new in replaced if new is was), was), now)
                               for was, now in later._replaced]

    def __enter__(self) -> "Patched":
        return self

    def __exit__(self, *_: Any) -> None:
        self()


def patch_safetensors() -> Patched:
    """Replaces load_file, save_file and safe_open of the safetensors package by Penstock's.

    Modules that have already imported these functions get the replacements, too. Returns an
    object that undoes the patch when it is called or when its `with` block ends. Undoing covers
    all modules, including modules imported after the patch. Raises ImportError if the
    safetensors package is not installed."""
    import safetensors
    replaced: List[Tuple[Any, Any]] = [(safetensors.safe_open, _open_for(safetensors.safe_open))]
    for part, framework in (("torch", "pt"), ("numpy", "numpy"), ("flax", "flax")):
        try:
            module = __import__(f"safetensors.{part}", fromlist=["load_file"])
        except ImportError:
            continue
        replaced.append((module.load_file, _load_for(module.load_file, framework)))
        if framework != "flax":  # safetensors.flax.save_file calls safetensors.numpy.save_file.
            replaced.append((module.save_file, _save_for(module.save_file)))
    return Patched(replaced)


def _open_for(original: Any) -> Any:
    """Returns a subclass of penstock.safe_open for one patch.

    The class belongs to one patch, so undoing the patch replaces this class only. A module that
    uses penstock.safe_open itself is not affected."""

    class safe_open(_api.safe_open):  # pylint: disable=invalid-name
        """penstock.safe_open, which takes the place of safetensors.safe_open."""

        def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", **how: Any) -> Any:
            if _supported(framework, device):
                return super().__new__(cls)
            return original(filename, framework, device, **how)

    return safe_open


def _load_for(original: Any, framework: str) -> Callable[..., Any]:
    """Returns a replacement for the load_file of one of safetensors' modules."""
    @functools.wraps(original)  # With the original's name the replacement can be pickled.
    def load_file(filename: Any, device: Any = "cpu", **how: Any) -> Any:
        if not _supported(framework, device):
            return original(filename, device, **how)
        return _api.load_file(filename, device, framework=framework, **how)
    return load_file


def _save_for(original: Any) -> Callable[..., None]:
    """Returns a replacement for the save_file of one of safetensors' modules."""
    names = inspect.signature(original)  # The modules name their first parameter differently.

    @functools.wraps(original)
    def save_file(*args: Any, **how: Any) -> None:
        _api.save_file(*names.bind(*args, **how).args)
    return save_file
