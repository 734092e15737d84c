"""The functions that comprehensions know, by name: their operators in `te` and their meaning in NumPy."""

from __future__ import annotations

import math

from tilewright.ir.dtype import ALL, DType, bf16
from tilewright.ir.functions import FUNCTIONS

UNARY: dict[str, str] = {
    name: name for name in (*(row.name for row in FUNCTIONS.values() if not row.inner), "abs", "isnan", "isinf")
}
"""The scalar operator of each function of one element."""
BINARY: dict[str, str] = {"min": "min", "max": "max", "pow": "pow", "atan2": "atan2", "fmod": "fmod"}
"""The scalar operator of each function of two elements."""
COMPOSED: dict[str, tuple[int, int]] = {"relu": (1, 1), "isfinite": (1, 1)}
"""The least and the largest number of arguments of each function that is composed of operators."""

ARITY: dict[str, tuple[int, int]] = (
    dict.fromkeys(UNARY, (1, 1)) | dict.fromkeys(BINARY, (2, 2)) | COMPOSED | {"min": (2, 32), "max": (2, 32)}
)
"""The least and the largest number of arguments of each function."""

OUTSIDE = ("pad", "clamp", "wrap")
"""Functions that take a read of a tensor and define its value for indices out of bounds."""

CONSTANTS: dict[str, bool | float] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "True": True,
    "False": False,
}
"""The values of the names of constants."""


_TYPES: dict[str, DType] = {t.name: t for t in ALL if t.bits >= 8}
_LONG = {"f": "float", "i": "int", "u": "uint"}
_TYPES |= {_LONG[t.name[0]] + t.name[1:]: t for t in _TYPES.values() if t.name[0] in _LONG}
_TYPES |= {"bfloat16": bf16}


def is_conversion(name: str) -> bool:
    """Whether the function `name` is a type, which converts: `f32(x)`, `int64(k)`."""
    return name in _TYPES


def conversion(name: str) -> DType | None:
    """The type that the function `name` converts to, such as "f32" or "float32"; None if it is no type."""
    return _TYPES.get(name)
