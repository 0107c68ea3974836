# SPDX-License-Identifier: Apache-2.0
"""python3 bench/ckpt NAME [OPTIONS]: runs a benchmark of this folder: dcp, plain or mlperf."""

import importlib
import sys

NAMES = ("dcp", "plain", "mlperf")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"{__doc__}\n{sys.argv[1:2]} is none of {', '.join(NAMES)}")
    name = sys.argv.pop(1)
    sys.exit(importlib.import_module(name).main())
