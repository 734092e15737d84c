"""Arithmetic of shapes, with symbols: reshapes, slices, pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, as_int, const, is_const, maximum, minimum, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, known, known_same, same_dim, show, whole_quotient
from tilewright.support.errors import ShapeError, UnsupportedError


def solve(shape: Sequence[Any], extents: Sequence[Expr]) -> list[Any]:
    """`shape` with its -1, if there is one, replaced by the size that makes the number of elements that of `extents`:
    [-1, 4] for extents [n, 8] becomes [2*n, 4]. Raises ShapeError if that is impossible."""
    places = [k for k, d in enumerate(shape) if isinstance(d, int) and d == -1]
    if not places:
        return list(shape)
    if len(places) > 1 or any(isinstance(d, int) and d < -1 for d in shape):
        raise ShapeError("a shape may have one -1", got=list(shape))
    rest = [as_expr(d) for k, d in enumerate(shape) if k not in places]
    quotient = divide(list(extents), rest)
    if quotient is None:
        raise ShapeError(
            "the elements do not divide into the shape", expected=f"a divisor of {show(extents)}", got=list(shape)
        )
    return [quotient if k in places else d for k, d in enumerate(shape)]


def divide(numerator: Sequence[Expr], denominator: Sequence[Expr]) -> Expr | None:
    """The quotient of the product of `numerator` by that of `denominator`; None if it is not known to be exact. Equal
    factors cancel before the quotient is simplified."""
    top, number = _factors(numerator)
    bottom, divisor = _factors(denominator)
    for factor in list(bottom):
        match = next((t for t in top if known_same(t, factor)), None)
        if match is not None:
            top.remove(match)
            bottom.remove(factor)
    first = next((d for d in numerator if d in top), None)
    if isinstance(first, Var) and len(bottom) == 1 and isinstance(bottom[0], Var):
        if same_dim(first, bottom[0]):  # one size under two names, as the batch of each input may have one
            top.remove(first)
            bottom = []
    if divisor == 0:
        return const(0) if number == 0 else None
    if not bottom:
        if number % divisor == 0:
            return dim(product(top) * (number // divisor))
        whole = dim(product(top) * number)
        quotient = dim(whole // divisor)
        return quotient if same_dim(dim(quotient * divisor), whole) else None
    whole, part = dim(product(top) * number), dim(product(bottom) * divisor)
    exact = whole_quotient(whole, part)
    if exact is not None:
        return exact
    quotient = dim(whole // part)
    return quotient if same_dim(dim(quotient * part), whole) else None


def _factors(dims: Sequence[Expr]) -> tuple[list[Expr], int]:
    """(symbolic factors, product of the constant factors) of a product of sizes."""
    symbols: list[Expr] = []
    number = 1
    stack = list(dims)
    while stack:
        d = stack.pop()
        if isinstance(d, Const):
            number *= int(d.value)
        elif isinstance(d, Op) and d.name == "mul":
            stack.extend(d.args)
        else:
            symbols.append(d)
    return symbols, number


def slice_range(start: Any, end: Any, step: int, extent: Expr) -> tuple[Expr, Expr]:
    """(first index, number of elements) of `start:end:step` in a dimension of `extent` elements, as in Python; but with
    a negative step, a start before the first element is clamped to it, as in ONNX."""
    if step == 0:
        raise ShapeError("the step of a slice is 0")
    low, high = (const(0), extent) if step > 0 else (const(-1), dim(extent - 1))
    number = as_int(as_expr(start))
    before = step < 0 and (number is None or number < -1)
    first = _clamped(start, extent, dim(minimum(const(0), extent - 1)) if before else low, high)
    last = _clamped(end, extent, low, high)
    span = dim(last - first) if step > 0 else dim(first - last)
    size = dim((span + (abs(step) - 1)) // abs(step))
    number = as_int(size)
    if number is not None:
        size = const(max(number, 0))
    elif not known(size >= 0):
        size = dim(maximum(size, 0))
    return (const(0) if is_const(size, 0) else first), size


def _clamped(position: Any, extent: Expr, low: Expr, high: Expr) -> Expr:
    p = as_expr(position)
    number = as_int(p)
    if number is not None:
        if number >= 1 << 31:
            return high
        if number <= -(1 << 31):
            return low
        if number < 0:
            p = dim(extent + number)
    elif known(p < 0):
        p = dim(p + extent)
    elif not known(p >= 0):
        raise UnsupportedError("a slice bound whose sign is not known is not supported", got=p)
    if not known(p <= high):
        p = dim(minimum(p, high))
    return p if known(p >= low) else dim(maximum(p, low))


def cropped(n: Emitter, x: Value, before: list[Any], after: list[Any]) -> tuple[Value, list[Any], list[Any]]:
    """(`x` with elements cut off where pads are negative, the remaining pads before, those after)."""
    for k in range(x.type.rank):
        low, high = as_int(before[k]), as_int(after[k])
        cut_low = -low if low is not None and low < 0 else 0
        cut_high = -high if high is not None and high < 0 else 0
        if cut_low or cut_high:
            x = n.slice(x, k, cut_low, x.shape[k] - (cut_low + cut_high))
            before[k], after[k] = (0 if cut_low else before[k]), (0 if cut_high else after[k])
    return x, before, after
