# SPDX-License-Identifier: Apache-2.0
"""SGLang's loader: a class to give to its engine as `load_format`, in the shape of its
own loaders, and `register`, which puts it where its `get_model_loader` looks. Needs
nothing of SGLang until it is called."""

from __future__ import annotations

import sys
import time
from typing import Any

from .vllm import source_weights


def _device() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def loader_class() -> Any:
    """A subclass of SGLang's default loader that takes its weights from Penstock and
    leaves everything else, quantization and processing after loading, as it is."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    class PenstockModelLoader(DefaultModelLoader):
        """Only where the bytes come from is another."""

        def _get_weights_iterator(self, source: Any) -> Any:
            if getattr(self.load_config, "draft_model_idx", None) is not None:
                # It picks one layer out of all, and keeps them until it has.
                return super()._get_weights_iterator(source)
            if not getattr(self, "counter_before_loading_weights", 0.0):
                self.counter_before_loading_weights = time.perf_counter()
            return source_weights(source, _device(),
                                  cache=getattr(self.load_config, "download_dir", None))

    return PenstockModelLoader


def register() -> None:
    """From here on SGLang's default loader is this one."""
    from sglang.srt.model_loader import loader
    loader.DefaultModelLoader = loader_class()
