"""The functions that comprehensions know, by name: their operators in `te` and their meaning in NumPy."""

from __future__ import annotations

import math

from tilewright.ir.dtype import ALL, DType, bf16
from tilewright.ir.functions import FUNCTIONS

UNARY: dict[str, str] = {
    name: name for name in (*(row.name for row in FUNCTIONS.values() if not row.inner), "abs", "isnan", "isinf")
}
"""Functions of one element, with the scalar operator that each is."""
BINARY: dict[str, str] = {"min": "min", "max": "max", "pow": "pow", "atan2": "atan2", "fmod": "fmod"}
"""Functions of two elements."""
COMPOSED: dict[str, tuple[int, int]] = {"relu": (1, 1), "isfinite": (1, 1)}
"""Functions made of other ones."""

ARITY: dict[str, tuple[int, int]] = (
    dict.fromkeys(UNARY, (1, 1)) | dict.fromkeys(BINARY, (2, 2)) | COMPOSED | {"min": (2, 32), "max": (2, 32)}
)
"""How many arguments each function takes, at least and at most."""

OUTSIDE = ("pad", "clamp", "wrap")
"""Functions of a read, which say what it gives outside of its tensor."""

CONSTANTS: dict[str, bool | float] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "True": True,
    "False": False,
}
"""Names of numbers."""


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
