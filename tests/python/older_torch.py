# SPDX-License-Identifier: Apache-2.0
"""Lets the tests of checkpoints run with older versions of torch, down to 2.4. Defines the names
that these versions have in other modules, and adds the argument no_dist, which torch has since 2.7,
to save and load of torch.distributed.checkpoint. Tests of features that a version lacks are
skipped."""

import functools
import inspect
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp

# pylint: disable=unused-import
try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # before 2.5
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard


# The arguments that the functions of torch.distributed.checkpoint have in this version.
_ARGUMENTS = {name for function in (dcp.save, dcp.load, dcp.async_save)
              for name in inspect.signature(function).parameters}


VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])
# Torch 2.4 cannot save unsigned types, so the tests then use int16 instead.
UINT16 = torch.uint16 if VERSION >= (2, 5) else torch.int16
NO_CPU_FSDP = unittest.skipIf(VERSION < (2, 6), f"torch {torch.__version__} lacks FSDP2 on CPUs")


def needs(*names):
    """Skips a test unless torch has all these arguments."""
    missing = [name for name in names if name not in _ARGUMENTS]
    return unittest.skipIf(missing, f"torch {torch.__version__} lacks {', '.join(missing)} in "
                           "torch.distributed.checkpoint")


def _with_no_dist(function, deprecated):
    """Returns a wrapper of save or load that has the argument no_dist. If no_dist is true, the
    wrapper calls `deprecated` instead, which is torch's older function with the argument
    no_dist."""

    @functools.wraps(function)
    def call(*args, no_dist=False, **how):
        if not no_dist:
            return function(*args, **how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return deprecated(*args, no_dist=True, **how)

    return call


def _without_async_stager(function):
    """Returns async_save with the argument async_stager, which must be None. Otherwise the test is
    skipped."""

    @functools.wraps(function)
    def call(*args, async_stager=None, **how):
        if async_stager is not None:
            raise unittest.SkipTest(f"torch {torch.__version__} lacks async_stager in async_save")
        return function(*args, **how)

    return call


if "no_dist" not in _ARGUMENTS:
    dcp.save = _with_no_dist(dcp.save, dcp.save_state_dict)
    dcp.load = _with_no_dist(dcp.load, dcp.load_state_dict)
if "async_stager" not in _ARGUMENTS:
    dcp.async_save = _without_async_stager(dcp.async_save)
