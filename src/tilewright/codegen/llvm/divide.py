"""Division of an index by a constant when the lanes differ by known steps: one scalar division for all lanes.

`(i * 16 + v) // 7` over 16 lanes would divide i64 vectors, which no CPU can. With b = i * 16, the quotient is
`b // 7 + (b % 7 + v) // 7`, and the second dividend is so small that a multiplication and a shift divide it.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import classify, offset
from tilewright.codegen.llvm.ops import number
from tilewright.codegen.llvm.polynomial import add, constant
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Value, vector_literal
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr

_SHIFT = 40
"""The number of fractional bits of a reciprocal in fixed point."""
_LIMIT = 1 << 20
"""The divisor, and the dividend per lane, must be below this limit: their product is then below 2^40, so rounding the
reciprocal up does no harm."""


def divide_lanes(s: State, name: str, a: Expr, divisor: int) -> Value | None:
    """`a // divisor` (`name` "floordiv") or `a % divisor` ("mod") in vectors; None where the lanes of `a` do not differ
    by known steps."""
    assert s.lanes is not None
    access = classify(s, s.converter.poly(a))
    if access.steps is None or not 0 < divisor < _LIMIT:
        return None
    low = min(access.steps)
    if divisor + max(access.steps) - low >= _LIMIT:
        return None
    base = offset(s, add(access.base, constant(low)))
    quotient = s.ops.divide("floordiv", i64, base, str(divisor), 0)
    rest = s.ops.divide("mod", i64, base, str(divisor), 0)
    parts = []
    for start, width in zip(s.lanes.offsets, s.lanes.widths, strict=True):
        ty = f"<{width} x i64>"
        lanes = vector_literal(tuple(x - low for x in access.steps[start : start + width]), "i64")
        small = s.out.inst(f"add nuw nsw {ty} {s.splat(rest, i64, width)}, {lanes}")
        scaled = s.out.inst(f"mul nuw nsw {ty} {small}, {number(-(-(1 << _SHIFT) // divisor), i64, width)}")
        part = s.out.inst(f"lshr {ty} {scaled}, {number(_SHIFT, i64, width)}")
        if name == "floordiv":
            parts.append(s.out.inst(f"add {ty} {part}, {s.splat(quotient, i64, width)}"))
        else:
            whole = s.out.inst(f"mul nuw nsw {ty} {part}, {number(divisor, i64, width)}")
            parts.append(s.out.inst(f"sub nuw nsw {ty} {small}, {whole}"))
    return Value(i64, tuple(parts), True)
