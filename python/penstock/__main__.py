# SPDX-License-Identifier: Apache-2.0
"""python -m penstock ...: runs the command `penstock` that was installed with this package.

This form also works if Python's folder of scripts is not on PATH. The command replaces this
process (exec) and receives all arguments unchanged."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def main() -> None:
    """Finds the command `penstock` near the package, in Python's script folders or on PATH, and
    runs it."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(here, "..", "bin"), sysconfig.get_path("scripts"),
                   sysconfig.get_path("scripts", f"{os.name}_user")):
        command = os.path.join(folder, "penstock")
        if os.access(command, os.X_OK):
            break
    else:
        command = shutil.which("penstock") or ""
    if not command:
        sys.exit("python -m penstock: found no command 'penstock' beside this package or on "
                 "PATH; install the package again")
    os.execv(command, ["penstock", *sys.argv[1:]])


if __name__ == "__main__":
    main()
