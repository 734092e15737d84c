"""Functions of elements for the bodies of stages: reducers, conditions, mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Expr, Reduce, Reducer, Var, as_expr, call, const, maximum, minimum, readable, select
from tilewright.support.errors import ExpressionError
from tilewright.te.tensors import IterVar, plain


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Any]:
    """A user-defined reducer: `fcombine(a, b)` on values or tuples of values, `fidentity(dtype, ...)`.

    Returns a function `(expr or tuple, axis, where=None)` usable as a stage's body.
    """

    def reducer(expr: Any, axis: Any, where: Any = None) -> Any:
        several = isinstance(expr, tuple)
        values = tuple(as_expr(plain(e)) for e in (expr if several else (expr,)))
        axes = _reduction_axes(axis, name)
        lhs = tuple(Var(f"lhs{k}", v.dtype) for k, v in enumerate(values))
        rhs = tuple(Var(f"rhs{k}", v.dtype) for k, v in enumerate(values))
        if several:
            result = tuple(fcombine(lhs, rhs))
            identity = tuple(fidentity(*(v.dtype for v in values)))
        else:
            result, identity = (fcombine(lhs[0], rhs[0]),), (fidentity(values[0].dtype),)
        if len(result) != len(values) or len(identity) != len(values):
            raise ExpressionError(f"reducer {name!r} gives another number of values", expected=len(values))
        typed = tuple(_of_type(r, v, name) for r, v in zip(result, values, strict=True))
        start = tuple(_of_type(r, v, name) for r, v in zip(identity, values, strict=True))
        combination = Reducer(name, lhs, rhs, typed, start)
        bound = tuple((a.var, a.extent) for a in axes)
        condition = const(True) if where is None else as_expr(plain(where))
        if condition.dtype is not boolean:
            raise ExpressionError(f"{name}: where= is no condition", expected="a comparison", got=condition.dtype)
        parts = tuple(Reduce(combination, values, bound, condition, k) for k in range(len(values)))
        return parts if several else parts[0]

    return reducer


def _reduction_axes(axis: Any, name: str) -> tuple[IterVar, ...]:
    axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
    for a in axes:
        if not isinstance(a, IterVar) or a.kind != "reduce":
            got = readable(a) if isinstance(a, Expr) else type(a).__name__
            raise ExpressionError(f"{name}: not a reduction axis", expected="what te.reduce_axis gave", got=got)
    if len({a.var for a in axes}) < len(axes) or not axes:
        raise ExpressionError(f"{name}: needs different reduction axes, one or more", got=[a.name for a in axes])
    return axes


def _of_type(result: Any, value: Expr, name: str) -> Expr:
    """What a reducer gives for a value, in the value's type."""
    e = as_expr(plain(result), value.dtype)
    if e.dtype is not value.dtype:
        raise ExpressionError(f"reducer {name!r} gives another type", expected=value.dtype, got=e.dtype)
    return e


sum = comm_reducer(lambda a, b: a + b, lambda t: const(0, t), "sum")
prod = comm_reducer(lambda a, b: a * b, lambda t: const(1, t), "prod")
max = comm_reducer(maximum, lambda t: const(t.min, t), "max")
largest = comm_reducer(lambda a, b: call("larger", a, b), lambda t: const(t.min, t), "largest")
"""The maximum of numbers, in one instruction a step. Where a NaN is among them the result is any of them."""
min = comm_reducer(minimum, lambda t: const(t.max, t), "min")


def if_then_else(condition: Any, then: Any, orelse: Any) -> Expr:
    """`then` where `condition` holds, else `orelse`; what the other branch would load is never touched."""
    chosen = as_expr(plain(condition))
    if chosen.dtype is not boolean:
        raise ExpressionError(
            f"if_then_else: {readable(chosen)} is no condition", expected="a comparison", got=chosen.dtype
        )
    return select(chosen, plain(then), plain(orelse))


def _unary(name: str) -> Callable[[Any], Expr]:
    def apply(x: Any) -> Expr:
        return call(name, as_expr(plain(x)))

    apply.__name__ = name
    apply.__doc__ = f"`{name}` of an element."
    return apply


exp, exp2, expm1, log, log2, log1p = map(_unary, ("exp", "exp2", "expm1", "log", "log2", "log1p"))
sqrt, rsqrt, erf, sigmoid, tanh = map(_unary, ("sqrt", "rsqrt", "erf", "sigmoid", "tanh"))
sin, cos, tan, floor, ceil, trunc, round = map(_unary, ("sin", "cos", "tan", "floor", "ceil", "trunc", "round"))
abs, exp_nonpositive = _unary("abs"), _unary("exp_nonpositive")


def power(a: Any, b: Any) -> Expr:
    return call("pow", plain(a), plain(b))
