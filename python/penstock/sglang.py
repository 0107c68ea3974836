# SPDX-License-Identifier: Apache-2.0
"""The loader for SGLang's option `--load-format penstock`.

SGLang's plug-in entry point calls `plugin`. The loader is SGLang's default loader, except
that Penstock reads the safetensors files. A program can also pass loader_class() to SGLang's
engine as `load_format`, or call `register` to replace the default loader. Importing this
module imports nothing of SGLang."""

from __future__ import annotations

import copy
import functools
import time
from typing import Any, Optional

from ._engine import (cuda_or_cpu, file_weights, options_of, refuse_elsewhere, refuse_own_loader,
                      shows_bar)
from ._engine_object import localize
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

    The key `weights` of the loader options is where the model's safetensors files are, such as
    s3://bucket/model, or a list of the files; the rest of the model is where SGLang's option for
    the model says.

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
            own.model_loader_extra_config = given = dict(own.model_loader_extra_config)
            places = given.pop("weights", None)
            self.penstock_weights: Any = [places] if isinstance(places, str) else places
            self.penstock_model: Optional[str] = None
            super().__init__(own)

        # chosen_files reads the parameters from the signature.
        @functools.wraps(DefaultModelLoader._prepare_weights)
        def _prepare_weights(self, model_name_or_path: Any, *args: Any, **how: Any) -> Any:
            if self.penstock_weights is not None and \
                    self.penstock_model in (None, model_name_or_path):
                return model_name_or_path, self.penstock_weights, True
            return super()._prepare_weights(model_name_or_path, *args, **how)

        def load_model(self, *, model_config: Any, **how: Any) -> Any:
            self.penstock_model = getattr(model_config, "model_path", None)
            return super().load_model(model_config=model_config, **how)

        def _get_weights_iterator(self, source: Any, *, resolved_source: Any = None,
                                  **how: Any) -> Any:
            if resolved_source is not None:
                files, safetensors = resolved_source.weight_files, resolved_source.use_safetensors
                how["resolved_source"] = resolved_source
            else:
                folder, files, safetensors = chosen_files(self, source)
                if safetensors and files is not self.penstock_weights:
                    files = _with_mtp(files, folder, source)
            if not safetensors:
                refuse_own_loader(self.penstock, "SGLang", f"{source.model_or_path} has no "
                                  "safetensors files")
                return super()._get_weights_iterator(source, **how)
            if getattr(self.load_config, "draft_model_idx", None) is not None:
                # SGLang picks one layer of a draft model, and keeps all tensors until it has
                # found that layer.
                refuse_elsewhere(self.penstock_weights, "the model is a draft model")
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
    options, rest = options_of(load_config.model_loader_extra_config)
    elsewhere = rest.pop("weights", None)
    plain.model_loader_extra_config = rest
    chosen = original(plain, *args, **how)
    from sglang.srt.model_loader.loader import DefaultModelLoader
    if type(chosen) is DefaultModelLoader:
        return loader_class()(load_config)
    refuse_elsewhere(elsewhere, f"SGLang has chosen {type(chosen).__name__} for the model")
    # For some kinds of quantization, such as ModelOpt, SGLang chooses another loader.
    refuse_own_loader(options, "SGLang", f"SGLang has chosen {type(chosen).__name__} for the "
                      "model")
    return chosen


def _resolve(original: Any, args: Any) -> Any:
    """Wraps the method of SGLang's ServerArgs that checks the arguments: a model s3://... of the
    load format "penstock" gets a local folder for its config and its tokenizer."""
    if str(args.load_format).lower() == FORMAT and not getattr(args, "_resolution_finished", False):
        localize(args, "model_path", "tokenizer_path")
    return original(args)


def plugin() -> None:
    """Registers the load format. SGLang calls this in each process before parsing arguments."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import LOAD_FORMAT_CHOICES, ServerArgs, add_load_format_choices
    if FORMAT not in LOAD_FORMAT_CHOICES:
        add_load_format_choices([FORMAT])
    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format",
                          _verify, HookType.AROUND)
    HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", _get_loader,
                          HookType.AROUND)
    # Older versions of SGLang check the arguments when the object is made.
    check = "resolve_once" if hasattr(ServerArgs, "resolve_once") else "__post_init__"
    HookRegistry.register(f"sglang.srt.server_args.ServerArgs.{check}", _resolve, HookType.AROUND)


__all__ = ["loader_class", "plugin", "register"]
