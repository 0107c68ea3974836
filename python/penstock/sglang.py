# SPDX-License-Identifier: Apache-2.0
"""SGLang's loader: a class to give to its engine as `load_format`, in the shape of its
own loaders, and `register`, which puts it where its `get_model_loader` looks. Needs
nothing of SGLang until it is called."""

from __future__ import annotations

from typing import Any

from .vllm import weights


def loader_class() -> Any:
    """A subclass of SGLang's default loader that takes its weights from Penstock and
    leaves everything else, quantization and processing after loading, as it is."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    class PenstockModelLoader(DefaultModelLoader):  # type: ignore[misc]
        """Only where the bytes come from is another."""

        def _get_weights_iterator(self, source: Any) -> Any:
            import torch
            device = torch.device("cuda", torch.cuda.current_device()) \
                if torch.cuda.is_available() else torch.device("cpu")
            found = weights(source.model_or_path, source.revision, device)
            return ((source.prefix + name, tensor) for name, tensor in found)

    return PenstockModelLoader


def register() -> None:
    """From here on SGLang's default loader is this one."""
    from sglang.srt.model_loader import loader
    loader.DefaultModelLoader = loader_class()
