# SPDX-License-Identifier: Apache-2.0
"""The loader for vLLM's option `--load-format penstock`.

vLLM's plug-in entry point calls `register`. The loader is a subclass of vLLM's default loader,
which finds and checks the files, chooses the tensors and measures the time. The subclass reads the
safetensors files with Penstock. Importing this module imports nothing of vLLM."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
import tempfile
from typing import Any, Callable, Iterator, List, Optional

from ._api import save_file
from ._engine import (cuda_or_cpu, file_weights, options_of, refuse_elsewhere, refuse_own_loader,
                      weights)
from ._engine_object import headers, localize, url_of

# Functions of vLLM's module default_loader that read safetensors files. Their first argument is
# the list of files, the second whether to show a progress bar.
READERS = ("safetensors_weights_iterator", "multi_thread_safetensors_weights_iterator")


def _ranks() -> Any:
    """Returns this process's tensor parallel group, or None if vLLM has not created the group
    yet."""
    from vllm.distributed import get_tp_group
    try:
        return get_tp_group()
    except AssertionError:
        return None


def chosen_files(loader: Any, source: Any) -> Any:
    """Returns (folder, files, whether the files are safetensors) for a Source, the engine's object
    that describes where the weights are.

    The method _prepare_weights of the engine's default loader chooses the files. Its parameters
    differ between versions of the engine, so this function reads them from its signature."""
    has = {"model_name_or_path": source.model_or_path, "revision": source.revision}
    asked = [name for name in inspect.signature(loader._prepare_weights).parameters]
    has.update({name: getattr(source, name, None) for name in asked if name not in has})
    return loader._prepare_weights(**{name: has[name] for name in asked})[:3]


def _needs(local_expert_ids: Any) -> Optional[Callable[[str], Optional[bool]]]:
    """Returns the argument `needs` of file_weights for a rank that has only some experts.

    vLLM computes the ids of these experts if expert parallelism is on. Returns None if all ranks
    need all tensors."""
    if local_expert_ids is None:
        return None
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

    def needs(name: str) -> Optional[bool]:
        if not should_skip_weight(name, set()):
            return None  # The tensor belongs to no expert.
        return not should_skip_weight(name, local_expert_ids)

    return needs


def _shows_bar(wanted: bool) -> bool:
    """Returns whether this process shows vLLM's progress bar."""
    from vllm.model_executor.model_loader import weight_utils
    enable = getattr(weight_utils, "enable_tqdm", None)
    return bool(wanted if enable is None else enable(wanted))


@contextlib.contextmanager
def _readers_replaced(read: Callable[..., Any]) -> Iterator[None]:
    """Replaces the functions of vLLM's default loader that READERS names by `read`, until the
    `with` block ends."""
    from vllm.model_executor.model_loader import default_loader
    old = {name: getattr(default_loader, name) for name in READERS
           if hasattr(default_loader, name)}
    for name in old:
        setattr(default_loader, name, read)
    try:
        yield
    finally:
        for name, function in old.items():
            setattr(default_loader, name, function)


@contextlib.contextmanager
def _stand_in(source: Any, elsewhere: Any) -> Iterator[Any]:
    """Yields the Source in which vLLM searches for the safetensors files.

    `elsewhere` is the value of the option `weights`. If it is None, yields `source`. Otherwise the
    weights are not in `source`. vLLM then gets a temporary folder with an empty safetensors file,
    which nobody reads."""
    if elsewhere is None:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        save_file({}, os.path.join(folder, "model.safetensors"))
        changed = copy.copy(source)
        changed.model_or_path = folder
        for name in ("subfolder", "allow_patterns_overrides"):
            if hasattr(changed, name):
                setattr(changed, name, None)
        yield changed


def loader_class() -> Any:
    """Returns a subclass of vLLM's default loader that reads safetensors with Penstock.

    `--model-loader-extra-config` accepts the options effort, require, window (in bytes),
    keep_cached, group and weights, in addition to vLLM's own options. `weights` is where the
    model's safetensors files are, such as s3://bucket/model, or a list of the files; the rest of
    the model is where vLLM's option for the model says."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class PenstockModelLoader(DefaultModelLoader):
        """vLLM's default loader, with Penstock's iterator over the weights."""

        def __init__(self, load_config: Any) -> None:
            own = copy.copy(load_config)
            self.penstock, own.model_loader_extra_config = \
                options_of(load_config.model_loader_extra_config)
            own.load_format = "auto"
            own.model_loader_extra_config = given = dict(own.model_loader_extra_config)
            self.penstock_weights: Any = given.pop("weights", None)
            self.penstock_model: Optional[str] = None
            self.penstock_device = "cpu"
            super().__init__(own)

        def load_weights(self, model: Any, model_config: Any) -> Any:
            kind = next((p.device for p in model.parameters() if p.device.type != "meta"), None)
            self.penstock_device = cuda_or_cpu() if kind is None else kind
            self.penstock_model = getattr(model_config, "model", None)
            return super().load_weights(model, model_config)

        def _get_weights_iterator(self, source: Any) -> Any:
            strategy = getattr(self.load_config, "safetensors_load_strategy", None)
            if strategy == "torchao":
                refuse_elsewhere(self.penstock_weights, "the model is quantized by torchao")
                refuse_own_loader(self.penstock, "vLLM", "the model is quantized by torchao")
                return super()._get_weights_iterator(source)
            read: List[Any] = []
            elsewhere = self.penstock_weights if \
                self.penstock_model in (None, source.model_or_path) else None

            def reader(files: Any, use_tqdm_on_load: bool = False, *_: Any,
                       local_expert_ids: Any = None, **_how: Any) -> Any:
                read.append(files)
                if elsewhere is not None:
                    files = [elsewhere] if isinstance(elsewhere, str) else elsewhere
                return file_weights(files, self.penstock_device, _ranks(), self.penstock,
                                    needs=_needs(local_expert_ids),
                                    progress=_shows_bar(use_tqdm_on_load))

            # vLLM's method chooses the files and the experts, notes the time, and adds the prefix
            # of the tensors' names. It calls `reader`.
            with _readers_replaced(reader), _stand_in(source, elsewhere) as chosen:
                steps = super()._get_weights_iterator(chosen)
            if not read:
                refuse_own_loader(self.penstock, "vLLM", f"{source.model_or_path} has no "
                                  "safetensors files")
            return steps

    return PenstockModelLoader


# ---- models in an object store ---------------------------------------------------


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replaces the function `name` of a module or class by around(original, *arguments), unless an
    earlier call has replaced it. Does nothing if vLLM's version does not have the function."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "penstock"):
        return

    @functools.wraps(original)
    def replacement(*args: Any, **how: Any) -> Any:
        return around(original, *args, **how)

    replacement.penstock = True  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def _model_config(original: Any, args: Any) -> Any:
    """Wraps vLLM's create_model_config: a model s3://... of the load format "penstock" gets a local
    folder for its config and its tokenizer."""
    if args.load_format == "penstock":
        localize(args, "model", "tokenizer")
    return original(args)


def _headers_in_folder(original: Any, folder: Any) -> Any:
    """Wraps vLLM's function that reads the headers of the safetensors files in a folder. vLLM
    chooses a dtype by them, and finds out whether the model has an lm_head."""
    url = url_of(folder)
    return original(folder) if url is None else headers(url)


def register() -> None:
    """Registers the load format. vLLM calls this at least once in each of its processes."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.transformers_utils import config
    register_model_loader("penstock")(loader_class())
    _wrap(EngineArgs, "create_model_config", _model_config)
    _wrap(config, "_read_safetensors_metadata_in_dir", _headers_in_folder)


__all__ = ["loader_class", "register", "weights"]
