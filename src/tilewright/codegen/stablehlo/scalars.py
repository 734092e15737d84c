"""Scalar expressions as StableHLO, element by element: with it every pointwise operator has a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.codegen.defined import defined
from tilewright.codegen.stablehlo.writer import Ref, Shape, Writer
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Const, Expr, Op, Var
from tilewright.ir.functions import names_in
from tilewright.support.errors import UnsupportedError

DIRECT = names_in("stablehlo") | {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "truncdiv": "divide",
    "truncmod": "remainder",
    "fmod": "remainder",
    "pow": "power",
    "atan2": "atan2",
    "min": "minimum",
    "max": "maximum",
    "neg": "negate",
    "abs": "abs",
    "and": "and",
    "or": "or",
    "not": "not",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
    "bitnot": "not",
    "shl": "shift_left",
    "arctanh": "chlo.atanh",
}
"""Operators that StableHLO or CHLO has."""

COMPARED = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}


def elementwise(w: Writer, e: Expr, arguments: Mapping[Var, Ref], shape: Shape) -> Ref:
    """Write the expression `e` element by element; `arguments` maps its variables to tensors of shape `shape`."""
    done: dict[Expr, Ref] = {}

    def value(e: Expr) -> Ref:
        entry = done.get(e)
        if entry is None:
            entry = done[e] = compute(e)
        return entry

    def compute(e: Expr) -> Ref:
        match e:
            case Var():
                return arguments[e]
            case Const(number):
                return w.full(number, e.dtype, shape)
            case Op(name, args):
                total = defined(e)
                return value(total) if total is not e else _operator(w, e, name, [value(a) for a in args])
        raise UnsupportedError("this expression cannot be said in StableHLO", got=e)

    return value(e)


def _operator(w: Writer, e: Op, name: str, x: Sequence[Ref]) -> Ref:
    shape, t = x[0].shape, e.dtype
    if name in DIRECT:
        return w.op(DIRECT[name], x, t, shape)
    if name in COMPARED:
        return w.compare(COMPARED[name], x[0], x[1])

    def number(v: float) -> Ref:
        return w.full(v, x[0].dtype, shape)

    match name:
        case "select":
            return w.op("select", x, t, shape)
        case "cast":
            return _cast(w, x[0], e)
        case "bitcast":
            return w.op("bitcast_convert", x, t, shape)
        case "isnan":
            return w.compare("NE", x[0], x[0])
        case "isinf":
            return w.compare("EQ", w.op("abs", x, x[0].dtype, shape), number(math.inf))
        case "larger":
            return w.op("select", [w.compare("GT", x[1], x[0]), x[1], x[0]], t, shape)
        case "shr":
            return w.op("shift_right_arithmetic" if t.kind == "int" else "shift_right_logical", x, t, shape)
        case "exp2":
            return w.op("power", [number(2.0), x[0]], t, shape)
        case "log2":
            return w.binary("divide", w.op("log", x, t, shape), number(math.log(2.0)))
        case "trunc":
            return w.op(
                "select",
                [w.compare("LT", x[0], number(0)), w.op("ceil", x, t, shape), w.op("floor", x, t, shape)],
                t,
                shape,
            )
        case "fma":
            return w.binary("add", w.binary("multiply", x[0], x[1]), x[2])
        case "gelu" | "gelu_tanh":
            return _gelu(w, x[0], name == "gelu_tanh")
        case "floordiv" | "mod":
            return _floored(w, x[0], x[1], name == "mod")
    raise UnsupportedError(f"the operator {name} cannot be said in StableHLO")


def _cast(w: Writer, x: Ref, e: Op) -> Ref:
    if e.dtype is boolean and x.dtype is not boolean:
        return w.compare("NE", x, w.full(0, x.dtype, x.shape))
    return w.cast(x, e.dtype)


def _gelu(w: Writer, x: Ref, tanh: bool) -> Ref:
    def number(v: float) -> Ref:
        return w.full(v, x.dtype, x.shape)

    if tanh:
        cube = w.binary("multiply", w.binary("multiply", x, x), x)
        inner = w.binary("add", x, w.binary("multiply", number(0.044715), cube))
        f = w.op("tanh", [w.binary("multiply", number(math.sqrt(2 / math.pi)), inner)], x.dtype, x.shape)
    else:
        f = w.op("chlo.erf", [w.binary("multiply", x, number(math.sqrt(0.5)))], x.dtype, x.shape)
    return w.binary("multiply", w.binary("multiply", number(0.5), x), w.binary("add", number(1.0), f))


def _floored(w: Writer, a: Ref, b: Ref, rest: bool) -> Ref:
    """Write an integer division that rounds down, or, with `rest`, its remainder, which has the divisor's sign."""
    zero = w.full(0, a.dtype, a.shape)
    remainder = w.binary("remainder", a, b)
    if a.dtype.kind == "uint":
        return remainder if rest else w.binary("divide", a, b)
    signs = w.op("xor", [w.compare("LT", remainder, zero), w.compare("LT", b, zero)], boolean, a.shape)
    wrong = w.op("and", [signs, w.compare("NE", remainder, zero)], boolean, a.shape)
    if rest:
        return w.op("select", [wrong, w.binary("add", remainder, b), remainder], a.dtype, a.shape)
    quotient = w.binary("divide", a, b)
    less = w.binary("subtract", quotient, w.full(1, a.dtype, a.shape))
    return w.op("select", [wrong, less, quotient], a.dtype, a.shape)
