# SPDX-License-Identifier: Apache-2.0
"""The loader for vLLM's option `--load-format penstock`.

vLLM's plug-in entry point calls `register`. The loader is vLLM's default loader, which finds
and checks the files, except that Penstock reads the safetensors files. Importing this module
imports nothing of vLLM."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ._engine import cuda_or_cpu, file_weights, options_of, weights


def _ranks() -> Any:
    """Returns this process's tensor parallel group, or None if vLLM has not created the group
    yet."""
    from vllm.distributed import get_tp_group
    try:
        return get_tp_group()
    except AssertionError:
        return None


def chosen_files(loader: Any, source: Any) -> Any:
    """Returns (folder, files, whether the files are safetensors) for an engine's Source.

    The method _prepare_weights of the engine's default loader chooses the files. Its parameters
    differ between versions of the engine, so this function reads them from its signature."""
    has = {"model_name_or_path": source.model_or_path, "revision": source.revision}
    asked = [name for name in inspect.signature(loader._prepare_weights).parameters]
    has.update({name: getattr(source, name, None) for name in asked if name not in has})
    return loader._prepare_weights(**{name: has[name] for name in asked})[:3]


def loader_class() -> Any:
    """Returns a subclass of vLLM's default loader that reads safetensors with Penstock.

    `--model-loader-extra-config` accepts the options effort, require, window (in bytes) and
    group, in addition to vLLM's own options."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class PenstockModelLoader(DefaultModelLoader):
        """vLLM's default loader, with Penstock's iterator over the weights."""

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
    """Registers the load format. vLLM calls this at least once in each of its processes."""
    from vllm.model_executor.model_loader import register_model_loader
    register_model_loader("penstock")(loader_class())


__all__ = ["loader_class", "register", "weights"]
