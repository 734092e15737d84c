"""The functions that comprehensions know, by name: their operators in `te` and their meaning in NumPy."""

from __future__ import annotations

import math

from tilewright.ir.dtype import ALL, DType, bf16
from tilewright.ir.functions import FUNCTIONS

UNARY: dict[str, str] = {
    name: name for name in (*(row.name for row in FUNCTIONS.values() if not row.inner), "abs", "isnan", "isinf")
}
"""For each function of one element its scalar operator."""
BINARY: dict[str, str] = {"min": "min", "max": "max", "pow": "pow", "atan2": "atan2", "fmod": "fmod"}
"""For each function of two elements its scalar operator."""
COMPOSED: dict[str, tuple[int, int]] = {"relu": (1, 1), "isfinite": (1, 1)}
"""For each function that is composed of others the least and the largest number of its arguments."""

ARITY: dict[str, tuple[int, int]] = (
    dict.fromkeys(UNARY, (1, 1)) | dict.fromkeys(BINARY, (2, 2)) | COMPOSED | {"min": (2, 32), "max": (2, 32)}
)
"""The least and the largest number of arguments of each function."""

OUTSIDE = ("pad", "clamp", "wrap")
"""Functions of a read, which define its result outside of the tensor."""

CONSTANTS: dict[str, bool | float] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "True": True,
    "False": False,
}
"""Names of constants."""


_TYPES: dict[str, DType] = {t.name: t for t in ALL if t.bits >= 8}
_LONG = {"f": "float", "i": "int", "u": "uint"}
_TYPES |= {_LONG[t.name[0]] + t.name[1:]: t for t in _TYPES.values() if t.name[0] in _LONG}
_TYPES |= {"bfloat16": bf16}


def is_conversion(name: str) -> bool:
    """Whether a function is a type: `f32(x)`, `int64(k)`."""
    return name in _TYPES


def conversion(name: str) -> DType | None:
    """The type of this name, "f32" or "float32"; None if there is none."""
    return _TYPES.get(name)
