"""Masks over lanes: comparisons of indices as one narrow vector comparison, and whether any lane is on.

`i * 16 + v < n` over 16 lanes would compare i64 vectors. Since the lane enters with a coefficient that is known, it is
`v < clamp(n - i * 16, 0, 16)`: scalar arithmetic and one comparison of small integers. Lanes that such comparisons
leave on follow each other, and so do those of several together: that is a `Span`, of which two numbers tell all.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import classify, offset
from tilewright.codegen.llvm.polynomial import Poly, add, constant
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Span, Value, splat_literal, vector_literal
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Expr

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def is_comparison(name: str) -> bool:
    return name in _COMPARISONS


def compare_lanes(s: State, name: str, a: Expr, b: Expr) -> Value | None:
    """`a <name> b` for indices whose difference is a scalar and a multiple of the lane; None for any other."""
    assert s.lanes is not None
    if name in ("gt", "le"):  # a > b is b - a < 0, a <= b is not (b - a < 0)
        a, b = b, a
    access = classify(s, add(s.converter.poly(a), s.converter.poly(b), -1))
    extent = s.lanes.extent
    if access.steps is None or extent < 2:
        return None
    step = access.steps[1] - access.steps[0]
    if not step or access.steps != tuple(range(0, step * extent, step)):
        return None
    if name in ("eq", "ne"):
        return _equal(s, name, access.base, step) if abs(step) == 1 else None
    # With step * lane + base < 0 the lanes below -base / step are on, or those above base / -step.
    below = (step > 0) == (name in ("lt", "gt"))
    first = add({}, access.base, -1) if step > 0 else access.base
    bound = _divided(s, add(first, constant(step - 1 if step > 0 else -step)), abs(step))
    return from_span(s, Span("0", bound) if below else Span(bound, str(extent)))


def _divided(s: State, p: Poly, step: int) -> str:
    """Emit the i64 `p // step`, clamped to between 0 and the number of lanes; returns its name."""
    assert s.lanes is not None
    bound = _clamp(s, p, step * s.lanes.extent, low=0)
    if step == 1:
        return bound
    return s.out.inst(f"udiv i64 {bound}, {step}") if bound.startswith("%") else str(int(bound) // step)


def _equal(s: State, name: str, base: Poly, step: int) -> Value:
    """Emit a mask of the lane for which `step * lane + base` is zero, or, if `name` is "ne", of all others."""
    assert s.lanes is not None
    extent = s.lanes.extent
    bound = _clamp(s, base if step < 0 else add({}, base, -1), extent, low=-1)
    bits = _bits(s)
    ends = zip(s.lanes.offsets, s.lanes.widths, strict=True)
    return Value(boolean, tuple(_compared(s, name, range(k, k + w), bound, bits[w]) for k, w in ends), True)


def from_span(s: State, span: Span) -> Value:
    """Emit the mask in which exactly the lanes of `span` are on."""
    assert s.lanes is not None
    bits = _bits(s)
    ends = zip(s.lanes.offsets, s.lanes.widths, strict=True)
    parts = tuple(places_within(s, range(k, k + w), span, bits[w], s.lanes.extent) for k, w in ends)
    return Value(boolean, parts, True, span)


def places_within(s: State, places: range, span: Span, bits: int, most: int | None = None) -> str:
    """A mask over a vector whose lanes have the numbers `places`: on where the number is in the span. The numbers fit
    into `bits` bits; `most`: they are known to be between 0 and this."""
    tests = [] if span.low == "0" and most is not None else [("sge", span.low)]
    if not tests or span.high != str(most):
        tests.append(("slt", span.high))
    result, *other = (_compared(s, predicate, places, bound, bits) for predicate, bound in tests)
    return s.out.inst(f"and <{len(places)} x i1> {result}, {other[0]}") if other else result


def step_of(s: State, lane: str, stride: int, first: int) -> str:
    """Emit `stride * lane + first`, where `lane` is an i64 operand; returns its name."""
    if not lane.startswith("%"):
        return str(stride * int(lane) + first)
    scaled = s.out.inst(f"mul nsw i64 {lane}, {stride}")
    return s.out.inst(f"add nsw i64 {scaled}, {first}") if first else scaled


def _compared(s: State, predicate: str, places: range, bound: str, bits: int) -> str:
    """A mask over a vector whose lanes have the numbers `places`, which fit into `bits` bits: on where a number
    compares with `bound` as `predicate` says."""
    limit = s.out.inst(f"trunc i64 {bound} to i{bits}") if bound.startswith("%") else bound
    numbers = vector_literal(tuple(places), f"i{bits}")
    width = len(places)
    return s.out.inst(f"icmp {predicate} <{width} x i{bits}> {numbers}, {_splat(s, limit, bits, width)}")


def both(s: State, a: Value | None, b: Value) -> Value:
    """The conjunction of two masks (None: all lanes), of which one may be the same for all lanes."""
    if a is None:
        return b
    if a.vector and b.vector and a.span and b.span:
        least = _chosen(s, "smax", a.span.low, b.span.low)
        return from_span(s, Span(least, _chosen(s, "smin", a.span.high, b.span.high)))
    one, other = (a, b) if a.span else (b, a)
    if one.span and not other.vector:
        high = s.out.inst(f"select i1 {other.scalar}, i64 {one.span.high}, i64 0")
        return from_span(s, Span(one.span.low, high))
    return s.elementwise("and", [a, b], boolean)


def _chosen(s: State, name: str, a: str, b: str) -> str:
    """Emit the larger ("smax") or the smaller ("smin") of the bounds `a` and `b`; returns its name."""
    if not (a.startswith("%") or b.startswith("%")):
        return str((max if name == "smax" else min)(int(a), int(b)))
    assert s.lanes is not None
    neutral = "0" if name == "smax" else str(s.lanes.extent)
    if neutral in (a, b):
        return b if a == neutral else a
    return s.out.intrinsic(f"llvm.{name}.i64", "i64", [("i64", a), ("i64", b)])


def _bits(s: State) -> dict[int, int]:
    """For each vector width of the loop, the bits of the integers that represent lane numbers in comparisons."""
    assert s.lanes is not None
    return {width: place_bits(s, width, s.lanes.extent) for width in s.lanes.widths}


def place_bits(s: State, width: int, most: int) -> int:
    """The number of bits of integers of which `width` fill a vector register, and which hold numbers up to `most`."""
    bits = 32
    while bits > 8 and bits * width > s.target.vector_bits:
        bits //= 2
    return bits if most < 1 << (bits - 1) else 32


def _splat(s: State, operand: str, bits: int, width: int) -> str:
    if not operand.startswith("%"):
        return splat_literal(operand, f"i{bits}")
    ty = f"<{width} x i{bits}>"
    first = s.out.inst(f"insertelement {ty} poison, i{bits} {operand}, i64 0")
    return s.out.inst(f"shufflevector {ty} {first}, {ty} poison, <{width} x i32> zeroinitializer")


def _clamp(s: State, p: Poly, extent: int, low: int) -> str:
    """Emit the value of `p` clamped to low..extent, so that it fits the narrow type; returns its name."""
    known = p.get((), 0) if not any(p) else None
    if known is not None:
        return str(min(max(known, low), extent))
    value = offset(s, p)
    above = s.out.intrinsic("llvm.smax.i64", "i64", [("i64", value), ("i64", str(low))])
    return s.out.intrinsic("llvm.smin.i64", "i64", [("i64", above), ("i64", str(extent))])


def any_lane(s: State, mask: Value) -> str:
    """Emit an i1 that tells whether some lane of a mask is on; returns its name."""
    assert s.lanes is not None
    if mask.span is not None:
        return s.out.inst(f"icmp slt i64 {mask.span.low}, {mask.span.high}")
    result = ""
    for part, width in zip(s.parts(mask), s.lanes.widths, strict=True):
        one = s.out.intrinsic(f"llvm.vector.reduce.or.v{width}i1", "i1", [(f"<{width} x i1>", part)])
        result = s.out.inst(f"or i1 {result}, {one}") if result else one
    return result
