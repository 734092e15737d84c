"""Masks over lanes: comparisons of indices as one narrow vector comparison, and whether any lane is on.

`i * 16 + v < n` over 16 lanes would compare i64 vectors. Since the lane enters with coefficient one, it is
`v < clamp(n - i * 16, 0, 16)`: scalar arithmetic and one comparison of small integers.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import classify, offset
from tilewright.codegen.llvm.polynomial import Poly, add
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Value, splat_literal, vector_literal
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Expr

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def is_comparison(name: str) -> bool:
    return name in _COMPARISONS


def compare_lanes(s: State, name: str, a: Expr, b: Expr) -> Value | None:
    """`a <name> b` for indices whose difference is a scalar plus or minus the lane; None for any other."""
    assert s.lanes is not None
    if name in ("gt", "le"):  # a > b is b - a < 0, a <= b is not (b - a < 0)
        a, b = b, a
    difference = add(s.converter.poly(a), s.converter.poly(b), -1)
    access = classify(s, difference)
    steps = access.steps
    if steps is None:
        return None
    extent = s.lanes.extent
    if steps == tuple(range(extent)):
        # lane + base < 0  <=>  lane < -base
        bound = _clamp(s, add({}, access.base, -1), extent, low=0 if name not in ("eq", "ne") else -1)
        predicate = {"lt": "slt", "gt": "slt", "ge": "sge", "le": "sge", "eq": "eq", "ne": "ne"}[name]
    elif steps == tuple(-k for k in range(extent)):
        # base - lane < 0  <=>  lane > base
        bound = _clamp(s, access.base, extent, low=-1)
        predicate = {"lt": "sgt", "gt": "sgt", "ge": "sle", "le": "sle", "eq": "eq", "ne": "ne"}[name]
    else:
        return None
    parts = []
    for start, width in zip(s.lanes.offsets, s.lanes.widths, strict=True):
        bits = _lane_bits(s, width, extent)
        lane = vector_literal(tuple(range(start, start + width)), f"i{bits}")
        limit = s.out.inst(f"trunc i64 {bound} to i{bits}") if bound.startswith("%") else bound
        ty = f"<{width} x i{bits}>"
        parts.append(s.out.inst(f"icmp {predicate} {ty} {lane}, {_splat(s, limit, bits, width)}"))
    return Value(boolean, tuple(parts), True)


def _lane_bits(s: State, width: int, extent: int) -> int:
    """Width of the integers compared: what fills a vector register and holds the lane numbers."""
    bits = 32
    while bits > 8 and bits * width > s.target.vector_bits:
        bits //= 2
    return bits if extent < 1 << (bits - 1) else 32


def _splat(s: State, operand: str, bits: int, width: int) -> str:
    if not operand.startswith("%"):
        return splat_literal(operand, f"i{bits}")
    ty = f"<{width} x i{bits}>"
    first = s.out.inst(f"insertelement {ty} poison, i{bits} {operand}, i64 0")
    return s.out.inst(f"shufflevector {ty} {first}, {ty} poison, <{width} x i32> zeroinitializer")


def _clamp(s: State, p: Poly, extent: int, low: int) -> str:
    """The value of `p` cut to low..extent, so that it fits the narrow type."""
    known = p.get((), 0) if not any(p) else None
    if known is not None:
        return str(min(max(known, low), extent))
    value = offset(s, p)
    above = s.out.intrinsic("llvm.smax.i64", "i64", [("i64", value), ("i64", str(low))])
    return s.out.intrinsic("llvm.smin.i64", "i64", [("i64", above), ("i64", str(extent))])


def any_lane(s: State, mask: Value) -> str:
    """An i1: whether some lane of a mask is on."""
    assert s.lanes is not None
    found = ""
    for part, width in zip(s.parts(mask), s.lanes.widths, strict=True):
        one = s.out.intrinsic(f"llvm.vector.reduce.or.v{width}i1", "i1", [(f"<{width} x i1>", part)])
        found = s.out.inst(f"or i1 {found}, {one}") if found else one
    return found
