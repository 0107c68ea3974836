# SPDX-License-Identifier: Apache-2.0
"""in_store.py SERVER SCRIPT: runs a script of this folder with this Python while an S3 server runs,
which tests/s3/with starts. The script cannot reach other hosts, so its packages are installed
before."""

import os
import sys

os.execv("tests/s3/with", ["tests/s3/with", sys.argv[1], sys.executable,
                           f"tests/python/{sys.argv[2]}"])
