# SPDX-License-Identifier: Apache-2.0
"""vLLM's loader `--load-format penstock`, by vLLM's own registration: its plug-in
entry point calls `register`. Weights come through a window of device memory, in file
order; what to do with them is the model's own load_weights. Needs nothing of vLLM
until it is called."""

from __future__ import annotations

from typing import Any, Iterator, Tuple

from ._model import Model


def weights(model: str, revision: Any = None, device: Any = None,
            **options: Any) -> Iterator[Tuple[str, Any]]:
    """(name, tensor) of a model's folder, file or owner/name in the local cache."""
    opened = Model(model, revision=revision)
    return opened.iterate(device, "torch", **options)


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

        def download_model(self, model_config: Any) -> None:
            """Nothing is downloaded: the model is in a folder or in the local cache."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            device = next(iter(model.parameters())).device
            path = getattr(model_config, "model_weights", None) or model_config.model
            model.load_weights(weights(path, getattr(model_config, "revision", None), device,
                                       **self.options))


__all__ = ["register", "weights"]
