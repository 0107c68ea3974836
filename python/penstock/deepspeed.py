# SPDX-License-Identifier: Apache-2.0
"""Saves and loads DeepSpeed's checkpoints: a checkpoint engine for save_checkpoint.

    import deepspeed
    import penstock.deepspeed

    engine, *_ = deepspeed.initialize(model=model, config=config)
    penstock.deepspeed.use(engine)
    engine.save_checkpoint("/ckpt")
    engine.load_checkpoint("/ckpt")

The files have DeepSpeed's names, and plain torch.load reads them. So a training can also continue
without this package. Each file appears under its name when all its bytes are on the drive. The file
`latest` names the newest checkpoint. By default, DeepSpeed writes `latest` on rank 0 as soon as
this rank has saved its own files. With this engine, DeepSpeed writes it after all ranks have saved
their files."""

from __future__ import annotations

import errno
import os
from typing import Any

from deepspeed.runtime.checkpoint_engine import checkpoint_engine, torch_checkpoint_engine

from . import _torch_file
from ._coordination import Ranks
from ._folders import make_folder

NAME = "PenstockCheckpointEngine"


class CheckpointEngine(checkpoint_engine.CheckpointEngine):
    """DeepSpeed's CheckpointEngine, with penstock.torch.save and load.

    Args:
        config_params: DeepSpeed's configuration; not used.
        durable: whether a save returns only when its file survives a power cut.
        require, effort: as in penstock.torch.save.
        patience: after how many seconds without a sign of life a rank counts as dead.

    All ranks must call save_checkpoint, as DeepSpeed requires. If a rank cannot save, or dies, the
    call raises a RankError that names the rank, on all ranks, and the file `latest` is unchanged.
    With only one rank, the call raises the error of the save.
    """

    def __init__(self, config_params: Any = None, *, durable: bool = True, require: str = "any",
                 effort: str = "thrifty", patience: float = 20.0) -> None:
        super().__init__(config_params)
        self.name = NAME
        self.durable, self.require, self.effort = durable, require, effort
        self._ranks = Ranks(patience=patience)

    def create(self, info: Any) -> None:
        """Does nothing. DeepSpeed calls it at the start of a checkpoint."""

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Makes a folder and the folders above it."""
        if not exist_ok and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        make_folder(path, self.durable)

    def save(self, state_dict: Any, path: Any) -> None:
        """Saves one file of this rank."""
        try:
            _torch_file.save(state_dict, path, durable=self.durable, require=self.require,
                             effort=self.effort)
        except Exception as error:  # pylint: disable=broad-except
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Raises an error on this rank, and on all other ranks when they call commit."""

        def fail() -> None:
            raise error

        self._ranks.exchange(fail)

    def load(self, path: Any, map_location: Any = None) -> Any:
        """Loads a file. Like DeepSpeed's own engine, it lets the file run any code."""
        return _torch_file.load(path, map_location, weights_only=False, require=self.require,
                                effort=self.effort)

    def commit(self, info: Any) -> bool:
        """Waits until all ranks have saved their files. Raises RankError if a rank could not save
        its files."""
        self._ranks.exchange(lambda: None, lambda values: values)
        return True


def use(engine: Any, **options: Any) -> CheckpointEngine:
    """Makes a DeepSpeed engine save and load its checkpoints by a CheckpointEngine.

    All ranks must call it, with the arguments of CheckpointEngine. Raises ValueError if the
    engine's configuration chooses another way to save, such as `checkpoint.writer`.
    """
    used = engine.checkpoint_engine
    if not isinstance(used, torch_checkpoint_engine.TorchCheckpointEngine):
        raise ValueError(f"the configuration chooses {type(used).__name__}; remove `writer` from "
                         "its section `checkpoint`")
    ours = CheckpointEngine(getattr(engine, "_config", None), **options)
    engine.checkpoint_engine = ours
    return ours


__all__ = ["CheckpointEngine", "use"]
