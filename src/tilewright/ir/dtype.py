"""Element types: one interned object per type, with its NumPy twin."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError

Kind = Literal["float", "int", "uint", "bool", "minifloat"]
"""The kind of a type's values. Minifloats are for storage only: their values are bit patterns, and no operator computes
with them."""

_EXTENSION_TYPES = {
    "bf16": "bfloat16",
    "i2": "int2",
    "u2": "uint2",
    "i4": "int4",
    "u4": "uint4",
    "f4e2m1": "float4_e2m1fn",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0": "float8_e8m0fnu",
}
"""The names of types in `ml_dtypes`, which is imported on first use: an actor attaches in a tenth less time."""


@dataclass(frozen=True, eq=False)
class DType:
    """A scalar type. `bits` is its width; `itemsize` the bytes an element takes in memory: one where
    it has less than 8 bits.

    There is one object a type, so types are compared and hashed as objects.
    """

    name: str
    kind: Kind
    bits: int

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same values (from `ml_dtypes` for bf16 and what has less bits than NumPy's)."""
        if self.name in _EXTENSION_TYPES:
            import ml_dtypes

            extension: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _EXTENSION_TYPES[self.name]))
            return extension
        if self.kind == "bool":
            return np.dtype(np.bool_)
        name: str = {"float": "f", "int": "i", "uint": "u"}[self.kind] + str(self.bits // 8)
        return np.dtype(name)

    @cached_property
    def itemsize(self) -> int:
        return max(1, self.bits // 8)

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @cached_property
    def is_minifloat(self) -> bool:
        """True for floats of 4 and 8 bits, which are storage only."""
        return self.kind == "minifloat"

    @cached_property
    def is_int(self) -> bool:
        """True for signed and unsigned integers (not bool)."""
        return self.kind in ("int", "uint")

    @cached_property
    def min(self) -> int | float:
        """The least value (minus infinity for floats); for minifloats the least bit pattern."""
        if self.kind == "float":
            return float("-inf")
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @cached_property
    def max(self) -> int | float:
        """The greatest value (infinity for floats); for minifloats the greatest bit pattern."""
        if self.kind == "float":
            return float("inf")
        if self.kind == "bool":
            return 1
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
f32 = DType("f32", "float", 32)
f64 = DType("f64", "float", 64)
i2 = DType("i2", "int", 2)
i4 = DType("i4", "int", 4)
i8 = DType("i8", "int", 8)
i16 = DType("i16", "int", 16)
i32 = DType("i32", "int", 32)
i64 = DType("i64", "int", 64)
u2 = DType("u2", "uint", 2)
u4 = DType("u4", "uint", 4)
u8 = DType("u8", "uint", 8)
u16 = DType("u16", "uint", 16)
u32 = DType("u32", "uint", 32)
u64 = DType("u64", "uint", 64)
boolean = DType("bool", "bool", 8)
f4e2m1 = DType("f4e2m1", "minifloat", 4)
f8e4m3fn = DType("f8e4m3fn", "minifloat", 8)
f8e4m3fnuz = DType("f8e4m3fnuz", "minifloat", 8)
f8e5m2 = DType("f8e5m2", "minifloat", 8)
f8e5m2fnuz = DType("f8e5m2fnuz", "minifloat", 8)
f8e8m0 = DType("f8e8m0", "minifloat", 8)

MINIFLOATS: tuple[DType, ...] = (f4e2m1, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0)
FLOATS_OF_16_BITS: tuple[DType, ...] = (f16, bf16)
ALL: tuple[DType, ...] = (f16, bf16, f32, f64, i2, i4, i8, i16, i32, i64, u2, u4, u8, u16, u32, u64, boolean)
"""The types on which arithmetic operators are defined."""
BY_NAME: dict[str, DType] = {t.name: t for t in (*ALL, *MINIFLOATS)}
_ALIASES: dict[str, DType] = {_EXTENSION_TYPES.get(t.name) or t.numpy.name: t for t in BY_NAME.values()}
_ALIASES |= {"bool_": boolean, "float": f32, "int": i64}


@cache
def _by_numpy() -> dict[np.dtype[Any], DType]:
    return {t.numpy: t for t in BY_NAME.values()}


def dtype(x: object) -> DType:
    """The DType for a DType, a name ("f32", "float32", "bfloat16", ...), or anything `np.dtype` takes.

    Raises ExpressionError when there is none.
    """
    if isinstance(x, DType):
        return x
    if isinstance(x, str) and (is_there := BY_NAME.get(x) or _ALIASES.get(x)):
        return is_there
    try:
        return _by_numpy()[np.dtype(x).newbyteorder("=")]  # type: ignore[call-overload]
    except (KeyError, TypeError):
        raise ExpressionError(f"no such element type: {x!r}; known: {', '.join(BY_NAME)}") from None
