"""Checks that sizes of memory fit 64 bits: when a program is compiled, and in each call.

Every product of extents that becomes a buffer (a value, a workspace, an arena's part, a cache) passes `check_bytes`,
which computes it in whole numbers of any length for the smallest sizes that there can be. For larger ones `tw_shapes`
computes it in i64, `guarded` by a bound in floating point that cannot wrap, and the runtime refuses what it says is too
large (`runtime/places.py`). So index arithmetic may take its numbers as exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.ir import folding
from tilewright.ir.dtype import boolean, f64, i64
from tilewright.ir.expr import Const, Expr, Op, Var, all_of, call, cast, const, select
from tilewright.ir.rewrite import variables, walk_expr
from tilewright.runtime.specs import MAX_BYTES
from tilewright.support.errors import ShapeError

TOO_LARGE = float(1 << 61)
"""The least floating-point estimate of a number that may not fit an i64."""


def check_bytes(size: Expr, where: str) -> Expr:
    """Return the size in bytes. Raises ShapeError if it cannot be addressed even for the smallest values of symbols, or
    is negative."""
    least = at_smallest(size)
    if least is not None and (least > MAX_BYTES or (least < 0 and not variables(size))):
        raise ShapeError("more memory than there can be", where=where, expected=f"0 to {MAX_BYTES} bytes", got=least)
    return size


def at_smallest(e: Expr) -> int | None:
    """The exact value of `e` where each symbol has its smallest permitted value from 1 on; None if it is not known
    (`exact`)."""
    return exact(e, {v: max(-(-max(v.lo or 0, 1) // v.multiple) * v.multiple, 1) for v in variables(e)})


def exact(e: Expr, values: Mapping[Var, int]) -> int | None:
    """The value of an expression for these values of variables, in integers of any length; None if it contains other
    terms, or divides by 0."""
    if type(e) is Const:
        return bool(e.value) if e.dtype is boolean else int(e.value)
    if type(e) is Var:
        return values.get(e)
    if type(e) is not Op:
        return None
    operands = [exact(a, values) for a in e.args]
    if e.name == "select" and operands[0] is not None:
        return operands[1] if operands[0] else operands[2]
    match e.name, operands:
        case _, [None, *_] | [_, None]:
            return None
        case (("neg" | "abs"), [int(a)]):
            return -a if e.name == "neg" else abs(a)
        case "not", [bool(a)]:
            return not a
        case _, [a, b]:
            result: int | None = folding.exact(e.name, a, b)
            return result
    return None


def guarded(e: Expr) -> Expr:
    """The size `e`, or an expression that is `e` where it fits into i64 and -1 where it may exceed it: symbols of
    tensors without elements can have any value."""
    size = _magnitude(e)
    if isinstance(size, Const):
        return e
    return select(size > const(TOO_LARGE, f64), const(-1), e)


def held(e: Expr) -> Expr:
    """The condition `e` and, for each integer that it compares, the condition that this does not exceed i64: the result
    is false where a number would wrap."""
    compared = [a for part in walk_expr(e) if part.dtype is boolean for a in part.children if a.dtype is i64]
    sizes = [size for size in map(_magnitude, compared) if not isinstance(size, Const)]
    return all_of([*(size <= const(TOO_LARGE, f64) for size in sizes), e])


def _magnitude(e: Expr) -> Expr:
    """An upper bound, in f64, of the absolute value of a size and of all intermediate results. Raises ShapeError for
    expressions that are no sizes of symbols."""
    match e:
        case Const():
            return const(abs(float(e.value)), f64)
        case Var():
            return cast(e, f64)
        case Op("neg" | "abs", (a,)):
            return _magnitude(a)
        case Op("add" | "sub" | "mul" | "min" | "max" | "floordiv" | "mod", (a, b)) | Op("select", (_, a, b)):
            x, y = _magnitude(a), _magnitude(b)
            if isinstance(x, Const) and isinstance(y, Const):
                return const(_BOUNDS.get(e.name, max)(x.value, y.value), f64)
            return call({"add": "add", "sub": "add", "mul": "mul"}.get(e.name, "max"), x, y)
    raise ShapeError("a size is computed by what no bound is known of", got=e)


_BOUNDS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
}
