"""Functions of elements for the bodies of stages: reducers, conditions, mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import expr as ir
from tilewright.ir.c_functions import LIBRARY, PREFIX
from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, binary, call, cast, maximum, minimum, select
from tilewright.ir.op_types import readable
from tilewright.ir.reduce import Reduce, Reducer
from tilewright.support.errors import ExpressionError
from tilewright.te.lanes import lanes_of
from tilewright.te.tensors import IterVar, unwrapped


def const(value: ir.Number, dtype: DType | str | None = None) -> Const:
    """A number; without a type ints are i64, floats f32, bools bool. Integers wrap into the type's range. In a type of
    several lanes it is the same in all."""
    return ir.const(value, None if dtype is None else lanes_of(dtype)[0])


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Any]:
    """A user-defined reducer, called `name`: `fcombine(a, b)` on values or tuples of values, `fidentity(dtype, ...)`.
    Returns a function `(expr or tuple, axis, where=None)` usable as a stage's body."""

    def reducer(expr: Any, axis: Any, where: Any = None) -> Any:
        several = isinstance(expr, tuple)
        values = tuple(as_expr(unwrapped(e)) for e in (expr if several else (expr,)))
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
        condition = const(True) if where is None else as_expr(unwrapped(where))
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
    """The expression `result` of a user's reducer, as an element of the type of `value`. Raises ExpressionError if it
    has another type."""
    e = as_expr(unwrapped(result), value.dtype)
    if e.dtype is not value.dtype:
        raise ExpressionError(f"reducer {name!r} gives another type", expected=value.dtype, got=e.dtype)
    return e


sum = comm_reducer(lambda a, b: a + b, lambda t: const(0, t), "sum")
prod = comm_reducer(lambda a, b: a * b, lambda t: const(1, t), "prod")
max = comm_reducer(maximum, lambda t: const(t.min, t), "max")
largest = comm_reducer(lambda a, b: call("larger", a, b), lambda t: const(t.min, t), "largest")
"""The maximum of elements, by one instruction a step. If one of them is a NaN, the result is any of them."""
min = comm_reducer(minimum, lambda t: const(t.max, t), "min")


def if_then_else(condition: Any, then: Any, orelse: Any) -> Expr:
    """`then` where `condition` holds, else `orelse`; what the other branch would load is never touched."""
    chosen = as_expr(unwrapped(condition))
    if chosen.dtype is not boolean:
        raise ExpressionError(
            f"if_then_else: {readable(chosen)} is no condition", expected="a comparison", got=chosen.dtype
        )
    return select(chosen, unwrapped(then), unwrapped(orelse))


def unary(name: str) -> Callable[[Any], Expr]:
    """The scalar function `name` as a Python function of an element."""

    def apply(x: Any) -> Expr:
        return call(name, as_expr(unwrapped(x)))

    apply.__name__ = name
    apply.__doc__ = f"`{name}` of an element."
    return apply


exp, exp2, expm1, log, log2, log1p = map(unary, ("exp", "exp2", "expm1", "log", "log2", "log1p"))
sqrt, rsqrt, erf, sigmoid, tanh = map(unary, ("sqrt", "rsqrt", "erf", "sigmoid", "tanh"))
sin, cos, tan, floor, ceil, trunc, round = map(unary, ("sin", "cos", "tan", "floor", "ceil", "trunc", "round"))
sinh, cosh, arcsin, arccos, arctan = map(unary, ("sinh", "cosh", "arcsin", "arccos", "arctan"))
arcsinh, arccosh, arctanh = map(unary, ("arcsinh", "arccosh", "arctanh"))
abs, exp_nonpositive, isnan, isinf = map(unary, ("abs", "exp_nonpositive", "isnan", "isinf"))


def isfinite(x: Any) -> Expr:
    """Whether an element is neither infinite nor a NaN."""
    return ~(isnan(x) | isinf(x))


def _two(name: str, doc: str) -> Callable[[Any, Any], Expr]:
    def apply(a: Any, b: Any) -> Expr:
        return binary(name, unwrapped(a), unwrapped(b))

    apply.__name__ = name
    apply.__doc__ = doc
    return apply


truncdiv = _two("truncdiv", "The quotient of integers, rounded to zero; 0 where b is 0. `//` rounds to minus infinity.")
truncmod = _two("truncmod", "What `truncdiv` leaves: it has the sign of a. `%` has that of b.")
power = _two("pow", "a to the power b.")
fmod = _two("fmod", "What is left of a float's quotient rounded to zero: it has the sign of a.")
atan2 = _two("atan2", "The angle of the point (b, a).")


def _bits_of(x: Any, name: str) -> tuple[Expr, DType]:
    """An integer element as an unsigned one of equal width, and its own type."""
    e = as_expr(unwrapped(x))
    if not e.dtype.is_int or e.dtype.bits < 8:
        raise ExpressionError(f"{name}: not an integer of 8 bits or more", got=f"{readable(e)} ({e.dtype})")
    return cast(e, f"u{e.dtype.bits}"), e.dtype


def call_extern(dtype: DType | str, name: str, *args: Any) -> Expr:
    """A function of C on elements: `te.call_extern("float32", "cbrtf", x[i])`.

    Args:
        dtype: of the result. In a type of several lanes, each lane is computed.
        name: of the function: one of math.h (`cbrt` takes float64, `cbrtf` float32), or one that
            `tw.build(..., extern={name: ...})` defines.
        args: elements of the types that it takes, integers of 8 bits or more, float32 or float64; numbers become what
            the function of math.h takes, else integers int64 and others float32.

    The function is pure: how often it is called, and in which order, is not said. Raises ExpressionError for types that
    C has no name for, or that are not those of math.h.
    """
    known = LIBRARY.get(name) if isinstance(name, str) else None
    kinds = known.arguments if known is not None and len(known.arguments) == len(args) else (None,) * len(args)
    values = tuple(as_expr(unwrapped(a), kind) for a, kind in zip(args, kinds, strict=True))
    return Op(f"{PREFIX}{name}", values, lanes_of(dtype)[0])


def popcount(x: Any) -> Expr:
    """The number of bits that are set in an integer, in the integer's type."""
    bits, kind = _bits_of(x, "popcount")

    def mask(byte: int) -> Const:
        return const(int.from_bytes(bytes([byte]) * (kind.bits // 8), "little"), bits.dtype)

    pairs = bits - ((bits >> 1) & mask(0x55))
    fours = (pairs & mask(0x33)) + ((pairs >> 2) & mask(0x33))
    eights = (fours + (fours >> 4)) & mask(0x0F)
    return cast((eights * mask(0x01)) >> (kind.bits - 8), kind)


def clz(x: Any) -> Expr:
    """The number of zeros before the highest set bit of an integer, in the integer's type; the number of all its bits
    if it is 0."""
    bits, kind = _bits_of(x, "clz")
    step = 1
    while step < kind.bits:  # every bit below the highest becomes set
        bits = bits | (bits >> step)
        step *= 2
    return const(kind.bits, kind) - popcount(cast(bits, kind))


def ctz(x: Any) -> Expr:
    """The number of zeros after the lowest set bit of an integer, in the integer's type; the number of all its bits if
    it is 0."""
    bits, kind = _bits_of(x, "ctz")
    return popcount(cast(~bits & (bits - 1), kind))
