# SPDX-License-Identifier: Apache-2.0
"""python -m penstock ...: the command that came with this package, for environments
whose folder of scripts is on no path. Takes its place; adds nothing."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(here, "..", "bin"), sysconfig.get_path("scripts"),
                   sysconfig.get_path("scripts", f"{os.name}_user")):
        command = os.path.join(folder, "penstock")
        if os.access(command, os.X_OK):
            break
    else:
        command = shutil.which("penstock") or ""
    if not command:
        sys.exit("python -m penstock: the command is not installed beside this package")
    os.execv(command, ["penstock", *sys.argv[1:]])


if __name__ == "__main__":
    main()
