# SPDX-License-Identifier: Apache-2.0
"""Runs tests/lab/ckpt-torch, a test in a virtual machine. The machine's programs use this Python
and its torch."""

import os
import sys

os.execve("tests/lab/ckpt-torch", ["tests/lab/ckpt-torch"],
          dict(os.environ, PENSTOCK_PYTHON=sys.executable))
