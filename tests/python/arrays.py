# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the package: a file of numpy arrays, and random indices into them."""

import os
import tempfile

import safetensors.numpy
from hypothesis import strategies as st

from reference import fill

TMP = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
ARRAYS = {"box": fill("int32", (6, 5, 4)), "row": fill("int16", (300,)),
          "wide": fill("int64", (64, 1000)), "dot": fill("uint8", ()),
          "none": fill("float32", (0, 4))}
FILE = os.path.join(TMP, "arrays.safetensors")
safetensors.numpy.save_file(ARRAYS, FILE, {"format": "np"})


def one(size):
    """Generates an index into one dimension of length `size`: a number or a range."""
    ends = st.one_of(st.none(), st.integers(-size - 2, size + 2))
    return st.one_of(st.integers(-size, size - 1), st.builds(slice, ends, ends),
                     st.builds(slice, ends, ends, st.integers(1, 3)))


def indices(shape):
    """Generates an index into the first one or more dimensions of an array."""
    return st.integers(1, len(shape)).flatmap(
        lambda n: st.tuples(*[one(size) for size in shape[:n]]))
