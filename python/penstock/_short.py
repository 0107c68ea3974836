# SPDX-License-Identifier: Apache-2.0
"""Reads short tensors of an open model into host memory, one at a time. safe_open uses it.

A load of a few KiB takes less time than the preparations for it. So this module prepares the
options once for each model. The destination is an ordinary tensor of torch or numpy."""

from __future__ import annotations

import threading
from typing import Any, Dict, Mapping, Optional

from ._dtypes import BITS, CODES, numpy_dtype, torch_dtype
from ._lib import check, ffi, handle_name, lib, open_device, raise_caught
from ._model import _PIECE, Info, Model

# Maximum length of a short tensor in bytes. Up to this length, the preparations of Model.load take
# longer than the read of cached bytes.
SHORT_BYTES = 256 << 10


class ShortReads:
    """Reads short tensors of one model.

    `how` has the keyword arguments of Model.options for every read."""

    def __init__(self, model: Model, device: Any, framework: str, how: Mapping[str, Any]) -> None:
        self._model, self._framework, self._how = model, framework, how
        handle = open_device(device)
        self._device = int(ffi.cast("uintptr_t", handle))
        # Other settings need memory that the library allocates, or a callback for each read.
        self._usable = framework in ("torch", "numpy") and handle_name(handle) == "host" and \
            how["require"] == "any" and how["path"] is None and how["stop"] is None and \
            not how["keep_cached"]
        # The options of reads on the main thread (True) and on other threads (False). Only those of
        # the main thread have a callback, in which Python runs signal handlers.
        self._options: Dict[bool, Any] = {}

    def read(self, info: Info) -> Optional[Any]:
        """Reads a tensor and returns it. Returns None if Model.load must read it."""
        if not self._usable or not 0 < info.nbytes <= SHORT_BYTES or BITS[info.dtype] < 8:
            return None
        if self._framework == "torch":
            import torch
            value = torch.empty(info.shape, dtype=torch_dtype(torch, info.dtype), device="cpu")
            # A program can make torch.empty return other tensors, for example of device meta.
            if type(value) is not torch.Tensor or not value.is_cpu:
                return None
            address = value.data_ptr()
        else:
            import numpy
            value = numpy.empty(info.shape, numpy_dtype(info.dtype))
            address = value.ctypes.data
        main = threading.current_thread() is threading.main_thread()
        options = self._options.get(main)
        if options is None:
            options = self._options[main] = self._model.options(**self._how)
        piece = _PIECE.pack(_PIECE.size, info.index, 0, 0, 0, 0, 0, self._device, address,
                            info.nbytes, 0, CODES[info.dtype])
        code = lib.penstock_weights_load_into(
            self._model.handle, ffi.from_buffer("struct penstock_piece[]", piece), 1, options[0],
            ffi.NULL)
        raise_caught(options[2])
        check(code, self._model.path)
        return value


__all__ = ["ShortReads"]
