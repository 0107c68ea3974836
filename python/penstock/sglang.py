# SPDX-License-Identifier: Apache-2.0
"""The loader for SGLang's option `--load-format penstock`.

SGLang's plug-in entry point calls `plugin`. The loader is SGLang's default loader, except
that Penstock reads the safetensors files. A program can also pass loader_class() to SGLang's
engine as `load_format`, or call `register` to replace the default loader. Importing this
module imports nothing of SGLang."""

from __future__ import annotations

import copy
import time
from typing import Any

from ._engine import cuda_or_cpu, file_weights, options_of, refuse_own_loader, shows_bar
from .vllm import chosen_files

FORMAT = "penstock"


def _ranks(load_config: Any) -> Any:
    """Returns SGLang's group of processes that load the model at the same time.

    Returns None if load_config.load_group is None, or if SGLang has not created a group yet."""
    group = getattr(load_config, "load_group", False)
    if group is None or hasattr(group, "world_size"):
        return group
    from sglang.srt.distributed import get_tp_group
    try:
        return get_tp_group()
    except (AssertionError, AttributeError, RuntimeError):  # Depends on SGLang's version.
        return None


def _with_mtp(files: Any, folder: str, source: Any) -> Any:
    """Returns `files`, with the file for multi-token prediction if the model has one. The index of
    a model may omit this file. SGLang's own function finds it."""
    from sglang.srt.model_loader import weight_utils
    add = getattr(weight_utils, "maybe_add_mtp_safetensors", None)
    if add is None or getattr(source, "model_config", None) is None:
        return files
    return add(files, folder, "model.safetensors.index.json", source.model_config.hf_config)


def loader_class() -> Any:
    """Returns a subclass of SGLang's default loader that reads safetensors with Penstock.

    SGLang's own loader does everything else, such as quantization and processing after the
    load."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    class PenstockModelLoader(DefaultModelLoader):
        """SGLang's default loader, with Penstock's iterator over the weights."""

        def __init__(self, load_config: Any) -> None:
            own = copy.copy(load_config)
            self.penstock, own.model_loader_extra_config = \
                options_of(load_config.model_loader_extra_config)
            if isinstance(own.load_format, type):
                from sglang.srt.configs.load_config import LoadFormat
                own.load_format = LoadFormat.AUTO
            super().__init__(own)

        def _get_weights_iterator(self, source: Any, *, resolved_source: Any = None,
                                  **how: Any) -> Any:
            if resolved_source is not None:
                files, safetensors = resolved_source.weight_files, resolved_source.use_safetensors
                how["resolved_source"] = resolved_source
            else:
                folder, files, safetensors = chosen_files(self, source)
                files = _with_mtp(files, folder, source) if safetensors else files
            if not safetensors:
                refuse_own_loader(self.penstock, "SGLang", f"{source.model_or_path} has no "
                                  "safetensors files")
                return super()._get_weights_iterator(source, **how)
            if getattr(self.load_config, "draft_model_idx", None) is not None:
                # SGLang picks one layer of a draft model, and keeps all tensors until it has
                # found that layer.
                refuse_own_loader(self.penstock, "SGLang", "the model is a draft model")
                return super()._get_weights_iterator(source, **how)
            if not getattr(self, "counter_before_loading_weights", 0.0):
                self.counter_before_loading_weights = time.perf_counter()
            return file_weights(files, cuda_or_cpu(), _ranks(self.load_config), self.penstock,
                                source.prefix, progress=shows_bar())

    return PenstockModelLoader


def register() -> None:
    """Replaces SGLang's default loader in this process by this package's loader."""
    from sglang.srt.model_loader import loader
    loader.DefaultModelLoader = loader_class()


# ---- --load-format penstock ------------------------------------------------------


def _verify(original: Any, config: Any) -> Any:
    """Wraps SGLang's check of a config: replaces the load format "penstock", which SGLang does
    not know, by "auto", and marks the config."""
    if isinstance(config.load_format, str) and config.load_format.lower() == FORMAT:
        config.load_format, config.penstock = "auto", True
    return original(config)


def _get_loader(original: Any, load_config: Any, *args: Any, **how: Any) -> Any:
    """Wraps SGLang's get_model_loader: returns this package's loader for marked configs."""
    if not getattr(load_config, "penstock", False):
        return original(load_config, *args, **how)
    plain = copy.copy(load_config)
    options, plain.model_loader_extra_config = options_of(load_config.model_loader_extra_config)
    chosen = original(plain, *args, **how)
    from sglang.srt.model_loader.loader import DefaultModelLoader
    if type(chosen) is DefaultModelLoader:
        return loader_class()(load_config)
    # For some kinds of quantization, such as ModelOpt, SGLang chooses another loader.
    refuse_own_loader(options, "SGLang", f"SGLang has chosen {type(chosen).__name__} for the "
                      "model")
    return chosen


def plugin() -> None:
    """Registers the load format. SGLang calls this in each process before parsing arguments."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import LOAD_FORMAT_CHOICES, add_load_format_choices
    if FORMAT not in LOAD_FORMAT_CHOICES:
        add_load_format_choices([FORMAT])
    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format",
                          _verify, HookType.AROUND)
    HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", _get_loader,
                          HookType.AROUND)


__all__ = ["loader_class", "plugin", "register"]
