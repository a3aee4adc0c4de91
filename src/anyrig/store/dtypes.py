"""The safetensors spelling of data types, and numpy's.

Types that safetensors lacks (complex128, text, dates) or packs in another way than numpy (4 and 6 bits) are not here:
they cannot be stored. ml_dtypes is imported only when one of its types occurs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
    "C64": "complex64",
}  # fmt: skip
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_SPELLING = {name: spelling for spelling, name in (_NUMPY | _ML_DTYPES).items()}
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8,
    "F64": 8, "C64": 8, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
}  # fmt: skip


def spelling_of(dtype: np.dtype[Any]) -> str | None:
    """Return the safetensors spelling of a numpy type, in either byte order; None when safetensors has none."""
    return _SPELLING.get(dtype.name)


def numpy_name(spelling: str) -> str:
    """Return numpy's (or ml_dtypes') name of a safetensors type."""
    return _NUMPY.get(spelling) or _ML_DTYPES[spelling]


def numpy_dtype(spelling: str) -> np.dtype[Any]:
    """Return the little-endian numpy type of a safetensors spelling."""
    import numpy as np

    if spelling in _ML_DTYPES:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[spelling]))
        return extended
    little_endian: np.dtype[Any] = np.dtype(_NUMPY[spelling]).newbyteorder("<")
    return little_endian
