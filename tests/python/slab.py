# SPDX-License-Identifier: Apache-2.0
"""The file of random bytes that the tests of penstock.File read, and the folder for their other
files."""

import os
import random
import tempfile

import numpy

SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
RANDOM = random.Random(SEED)
LENGTH = 6 << 20
BYTES = numpy.random.default_rng(3).integers(0, 256, LENGTH, numpy.uint8)
TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
BLOCK = 64 << 10


def path(name="slab"):
    return os.path.join(TMP, name)


def make():
    """Creates the file. A test calls this function as its setUpModule."""
    print(f"# seed {SEED}")
    with open(path(), "wb") as f:
        f.write(BYTES)
        os.fsync(f.fileno())


def contents(name):
    with open(path(name), "rb") as f:
        return numpy.frombuffer(f.read(), numpy.uint8)
