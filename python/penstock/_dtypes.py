# SPDX-License-Identifier: Apache-2.0
"""Element types (dtypes): tables that map the safetensors names, such as "BF16", to the
names or codes that numpy, torch, DLPack and the array interfaces use."""

from __future__ import annotations

import functools
from typing import Any, Dict, Optional, Sequence, Tuple

from ._lib import also_safetensor_error, ffi, lib

CODES: Dict[str, int] = {}
BITS: Dict[str, int] = {}
for _code in range(1, lib.PENSTOCK_DTYPES):
    _name = ffi.string(lib.penstock_dtype_name(_code)).decode()
    CODES[_name] = _code
    BITS[_name] = lib.penstock_dtype_bits(_code)
NAMES = {code: name for name, code in CODES.items()}

# Type strings of __array_interface__ and __cuda_array_interface__. These interfaces have no type
# string for the dtypes that are missing in this table.
TYPESTR = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
    "C64": "<c8",
}
FROM_TYPESTR = {text: name for name, text in TYPESTR.items()}

# DLPack's type codes. A DLPack type also has a number of bits, which is in the table BITS.
DLPACK = {
    "BOOL": 6, "U8": 1, "U16": 1, "U32": 1, "U64": 1, "I8": 0, "I16": 0, "I32": 0, "I64": 0,
    "F16": 2, "F32": 2, "F64": 2, "BF16": 4, "C64": 5, "F8_E4M3": 10, "F8_E4M3FNUZ": 11,
    "F8_E5M2": 12, "F8_E5M2FNUZ": 13, "F8_E8M0": 14, "F6_E2M3": 15, "F6_E3M2": 16, "F4": 17,
}
FROM_DLPACK: Dict[Tuple[int, int], str] = {
    (code, BITS[name]): name for name, code in DLPACK.items()
}

_TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "F16": "float16", "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32",
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}
_FROM_TORCH = {torch: name for name, torch in _TORCH.items()}

# Dtypes that numpy supports only with the package ml_dtypes.
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_FROM_ML_DTYPES = {ml: name for name, ml in _ML_DTYPES.items()}
_cache: Dict[Tuple[str, str], Any] = {}


def numpy_dtype(name: str) -> Any:
    """Returns numpy's dtype for `name`; raises TypeError if numpy has none."""
    found = _cache.get(("numpy", name))
    if found is None:
        import numpy
        if name in TYPESTR:
            found = numpy.dtype(TYPESTR[name])
        else:
            try:
                import ml_dtypes
                found = numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
            except (ImportError, KeyError, AttributeError) as error:
                raise TypeError(f"numpy has no dtype for {name}: install the package ml_dtypes "
                                "(BF16 and the 8-bit floats), or use framework='dlpack'"
                                ) from error
        _cache[("numpy", name)] = found
    return found


@functools.lru_cache(maxsize=256)
def from_numpy_dtype(dtype: Any) -> str:
    """Returns the safetensors name of a numpy dtype; raises TypeError if it has none."""
    name = FROM_TYPESTR.get(dtype.newbyteorder("<").str if dtype.kind != "V" else "")
    name = name or _FROM_ML_DTYPES.get(dtype.name)
    if name is None or (dtype.byteorder == ">" and dtype.itemsize > 1):
        raise TypeError(f"a safetensors file cannot hold elements of {dtype!r}")
    return name


def torch_dtype(torch: Any, name: str) -> Any:
    """Returns torch's dtype for `name`; raises TypeError if this torch has none."""
    found = _cache.get(("torch", name))
    if found is None:
        found = getattr(torch, _TORCH.get(name, ""), None)
        if found is None:
            raise TypeError(f"this version of torch has no dtype for {name}; use "
                            "framework='dlpack'")
        _cache[("torch", name)] = found
    return found


def torch_shape(dtype: str, shape: Sequence[int]) -> Tuple[int, ...]:
    """Returns the shape of a torch tensor for a tensor of this dtype and shape.

    torch packs two elements of dtype F4 into a byte. The last dimension of the torch shape
    counts bytes. Raises ValueError for an odd last dimension, because a row would end inside a
    byte."""
    if dtype != "F4" or not shape:
        return tuple(shape)
    if shape[-1] % 2:
        raise also_safetensor_error(ValueError)(
            f"torch packs two elements of dtype F4 into a byte, so it has no tensor with the odd "
            f"last dimension of shape {tuple(shape)}; use framework='dlpack'")
    return (*shape[:-1], shape[-1] // 2)


@functools.lru_cache(maxsize=256)
def from_torch_dtype(dtype: Any) -> str:
    """Returns the safetensors name of a torch dtype; raises TypeError if it has none."""
    name: Optional[str] = _FROM_TORCH.get(str(dtype).rpartition(".")[2])
    if name is None:
        raise TypeError(f"a safetensors file cannot hold elements of {dtype}")
    return name
