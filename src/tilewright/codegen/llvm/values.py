"""Values while emitting: LLVM types and literals of our element types, scalar and vector operands.

In registers bool is `i1` and bf16 is `i16` (its arithmetic is done in f32 by hand, see `ops`); in memory bool and
what has less than 8 bits take a byte. Small floats are integers of their bits in both.
"""

from __future__ import annotations

import math
import struct
from functools import cache, lru_cache

import numpy as np

from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, f64
from tilewright.ir.expr import Var
from tilewright.support.classes import dataclass

_FLOATS = {"f16": "half", "bf16": "i16", "f32": "float", "f64": "double"}


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vectorized loop being evaluated: its variable, and the widths of the vectors its range is cut into."""

    var: Var
    widths: tuple[int, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first lane of each vector."""
        return _starts(self.widths)

    @property
    def extent(self) -> int:
        return sum(self.widths)


@lru_cache(maxsize=1 << 10)
def _starts(widths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(widths[:k]) for k in range(len(widths)))


@dataclass(frozen=True, slots=True)
class Span:
    """The consecutive lanes `low <= lane < high`, as i64 operands between 0 and the number of lanes. The span is empty
    if `high` is not above `low`."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an expression as LLVM operands: one part if it is the same for all lanes, else (`vector`) one part
    for each of `Lanes.widths`. If the lanes that are on in a mask are consecutive, `span` says which they are."""

    dtype: DType
    parts: tuple[str, ...]
    vector: bool = False
    span: Span | None = None

    @property
    def scalar(self) -> str:
        assert not self.vector, "a scalar was expected"
        return self.parts[0]


@cache
def register_type(t: DType, width: int = 0) -> str:
    """The LLVM type of a value of `t`, or of a vector of `width` of them."""
    element = "i1" if t is boolean else _FLOATS.get(t.name) or f"i{t.bits}"
    return f"<{width} x {element}>" if width else element


@cache
def memory_type(t: DType, width: int = 0) -> str:
    """The LLVM type in memory of an element of `t`, or of `width` elements."""
    if t is boolean or t.bits < 8:
        return f"<{width} x i8>" if width else "i8"
    return register_type(t, width)


def literal(value: float | int | bool, t: DType) -> str:
    """A constant operand of a value of `t`."""
    if t is boolean:
        return "true" if value else "false"
    if t.is_int or t.is_minifloat:
        return str(int(value))
    if t is f64:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if t is f32:
        # LLVM writes floats as the double of the same value.
        if math.isnan(value):
            return "0x7FF8000000000000"
        try:
            (rounded,) = struct.unpack("<f", struct.pack("<f", value))
        except OverflowError:
            rounded = math.copysign(math.inf, value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    with np.errstate(over="ignore"):
        bits = int(np.asarray(value, np.float64).astype(t.numpy).view(np.uint16))
    if t is f16:
        return f"0xH{bits:04X}"
    assert t is bf16
    return str(bits)


def is_literal(operand: str) -> bool:
    return not operand.startswith("%")


def splat_literal(operand: str, element: str) -> str:
    """A vector constant with `operand`, a constant of LLVM's type `element`, in every lane."""
    if operand in ("0", "0x0000000000000000", "0xH0000", "false"):
        return "zeroinitializer"
    if operand in ("poison", "undef", "zeroinitializer"):
        return operand
    return f"splat ({element} {operand})"


@lru_cache(maxsize=1 << 12)
def vector_literal(values: tuple[int, ...], element: str) -> str:
    """The LLVM text of a vector constant of integers, whose type is `element`."""
    if len(set(values)) == 1:
        return splat_literal(str(values[0]), element)
    return "<" + ", ".join(f"{element} {v}" for v in values) + ">"


def widths(extent: int, native: int) -> tuple[int, ...]:
    """The widths of the vectors that cover `extent` lanes: full vectors of `native` lanes, then one of the remaining
    lanes, which LLVM computes in a whole register. Several narrower vectors would take a register each, and tiles fill
    all registers."""
    whole, rest = divmod(extent, native)
    return (native,) * whole + ((rest,) if rest else ())
