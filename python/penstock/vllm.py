# SPDX-License-Identifier: Apache-2.0
"""vLLM's loader `--load-format penstock`, by vLLM's own registration: its plug-in
entry point calls `register`. It is vLLM's default loader, which finds and checks what is
to be loaded, with the bytes of safetensors files by Penstock. Needs nothing of vLLM
until it is called."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ._engine import cuda_or_cpu, file_weights, options_of, weights


def _ranks() -> Any:
    """vLLM's group of this process's tensor parallelism; None before there is one."""
    from vllm.distributed import get_tp_group
    try:
        return get_tp_group()
    except AssertionError:
        return None


def chosen_files(loader: Any, source: Any) -> Any:
    """The folder, the files and whether they are safetensors, as the engine's default
    loader chooses them for a Source; what it asks for differs from version to version."""
    has = {"model_name_or_path": source.model_or_path, "revision": source.revision}
    asked = [name for name in inspect.signature(loader._prepare_weights).parameters]
    has.update({name: getattr(source, name, None) for name in asked if name not in has})
    return loader._prepare_weights(**{name: has[name] for name in asked})[:3]


def loader_class() -> Any:
    """A subclass of vLLM's default loader. `--model-loader-extra-config` takes effort,
    require, window (bytes) and group beside what vLLM takes itself."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class PenstockModelLoader(DefaultModelLoader):
        """Only where the bytes come from is another."""

        def __init__(self, load_config: Any) -> None:
            own = copy.copy(load_config)
            self.penstock, own.model_loader_extra_config = \
                options_of(load_config.model_loader_extra_config)
            own.load_format = "auto"
            self.penstock_device = "cpu"
            super().__init__(own)

        def load_weights(self, model: Any, model_config: Any) -> Any:
            kind = next((p.device for p in model.parameters() if p.device.type != "meta"), None)
            self.penstock_device = cuda_or_cpu() if kind is None else kind
            return super().load_weights(model, model_config)

        def _get_weights_iterator(self, source: Any) -> Any:
            _, files, safetensors = chosen_files(self, source)
            if not safetensors or \
                    getattr(self.load_config, "safetensors_load_strategy", None) == "torchao":
                return super()._get_weights_iterator(source)
            return file_weights(files, self.penstock_device, _ranks(), self.penstock,
                                source.prefix)

    return PenstockModelLoader


def register() -> None:
    """Called by vLLM in each of its processes, once or more."""
    from vllm.model_executor.model_loader import register_model_loader
    register_model_loader("penstock")(loader_class())


__all__ = ["loader_class", "register", "weights"]
