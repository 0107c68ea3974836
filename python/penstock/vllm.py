# SPDX-License-Identifier: Apache-2.0
"""vLLM's loader `--load-format penstock`, by vLLM's own registration: its plug-in
entry point calls `register`. Weights come through a window of device memory, in file
order; what to do with them is the model's own load_weights. Needs nothing of vLLM
until it is called."""

from __future__ import annotations

import errno
import glob
import os
import sys
from typing import Any, Iterator, Optional, Sequence, Tuple

from ._model import Model, PenstockError


def weights(model: Any, revision: Any = None, device: Any = None, *, cache: Any = None,
            framework: Optional[str] = None, **options: Any) -> Iterator[Tuple[str, Any]]:
    """(name, tensor) of a model's folder, file, list of files or owner/name in the local
    cache. Who keeps more of them than the window holds gets the rest in memory of their
    own."""
    opened, count = Model(model, revision=revision, cache=cache), 0
    try:
        for step in opened.iterate(device, framework, **options):
            count += 1
            yield step
        return
    except PenstockError as error:
        if error.errno != errno.ENOBUFS:
            raise
    options.pop("window", None)
    for info in opened.infos[count:]:
        yield from opened.load(device, framework, first=info.index, count=1,
                               **options)[0].items()


def _ranks() -> int:
    """The engine's processes, which load at the same time."""
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        return 1
    return int(group.get_world_size())


def source_weights(source: Any, device: Any, **options: Any) -> Iterator[Tuple[str, Any]]:
    """Those of a Source as both engines describe it: path or name, revision, prefix,
    and where they are there a folder in it and patterns of its files."""
    where: Any = source.model_or_path
    patterns: Sequence[str] = getattr(source, "allow_patterns_overrides", None) or ()
    if getattr(source, "subfolder", None):
        where = os.path.join(where, source.subfolder)
    if patterns and os.path.isdir(where):
        where = sorted({file for pattern in patterns for file in
                        glob.glob(os.path.join(where, pattern))})
    prefix = getattr(source, "prefix", "")
    options.setdefault("ranks", _ranks())
    for name, tensor in weights(where, source.revision, device, **options):
        yield prefix + name, tensor


class _Primary:  # pylint: disable=too-few-public-methods
    """The model itself as a Source."""

    def __init__(self, model_config: Any, model: Any) -> None:
        self.model_or_path = getattr(model_config, "model_weights", None) or model_config.model
        self.revision = getattr(model_config, "revision", None)
        self.allow_patterns_overrides = getattr(model, "allow_patterns_overrides", None)


def register() -> None:
    """Called by vLLM in each of its processes, once or more."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader("penstock")
    class PenstockModelLoader(BaseModelLoader):  # pylint: disable=unused-variable
        """`--model-loader-extra-config` takes effort, require, window (bytes)."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            extra = dict(getattr(load_config, "model_loader_extra_config", None) or {})
            unknown = set(extra) - {"effort", "require", "window"}
            if unknown:
                raise ValueError(f"load format penstock has no option {sorted(unknown)}: "
                                 "effort, require, window")
            self.options = extra
            self.options["cache"] = getattr(load_config, "download_dir", None)

        def download_model(self, model_config: Any) -> None:
            """Nothing is downloaded: the model is in a folder or in the local cache."""

        def _all(self, model: Any, model_config: Any) -> Iterator[Tuple[str, Any]]:
            device = next(iter(model.parameters())).device
            for source in (_Primary(model_config, model),
                           *getattr(model, "secondary_weights", ())):
                yield from source_weights(source, device, **self.options)

        def load_weights(self, model: Any, model_config: Any) -> None:
            model.load_weights(self._all(model, model_config))


__all__ = ["register", "source_weights", "weights"]
