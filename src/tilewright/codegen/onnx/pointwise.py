"""Pointwise operators as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from tilewright.codegen.onnx.writer import Writer, code
from tilewright.ir.dtype import boolean, i32, i64, u8
from tilewright.ir.functions import names_in
from tilewright.ir.graph import Node
from tilewright.ops.pointwise import ACTIVATIONS, AlphaBetaAttrs, CastAttrs, ClipAttrs
from tilewright.support.errors import UnsupportedError

Rule = Callable[[Writer, Node, Sequence[str]], str]

RULES: dict[str, Rule] = {}
"""The rule of each operator with one output: a function from the names of its operands to the name of its result."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(f: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = f
        return f

    return register


DIRECT = (
    names_in("onnx")
    | {ours: known.onnx for ours, known in ACTIVATIONS.items() if known.onnx}
    | {
        "abs": "Abs",
        "add": "Add",
        "and": "And",
        "bitand": "BitwiseAnd",
        "bitnot": "BitwiseNot",
        "bitor": "BitwiseOr",
        "bitxor": "BitwiseXor",
        "div": "Div",
        "eq": "Equal",
        "ge": "GreaterOrEqual",
        "gelu": "Gelu",
        "gt": "Greater",
        "identity": "Identity",
        "stop_gradient": "Identity",
        "isinf": "IsInf",
        "isnan": "IsNaN",
        "le": "LessOrEqual",
        "lt": "Less",
        "max": "Max",
        "min": "Min",
        "mul": "Mul",
        "neg": "Neg",
        "not": "Not",
        "or": "Or",
        "pow": "Pow",
        "prelu": "PRelu",
        "shrink": "Shrink",
        "sub": "Sub",
        "truncdiv": "Div",
        "xor": "Xor",
    }
)
"""Operators that ONNX has, with attributes of the same names."""


OF_BOOLEANS = {"BitwiseXor": "Xor", "Max": "Or", "Min": "And"}
"""ONNX's names for operators on booleans, where they differ from those on numbers."""
ORDERS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
"""Comparisons by order, which ONNX defines for numbers only, not for booleans."""


def _direct(kind: str) -> Rule:
    def run(w: Writer, node: Node, x: Sequence[str]) -> str:
        attributes = {f.name: getattr(node.attrs, f.name) for f in fields(node.attrs)}
        if any(v is not None and v.dtype is not boolean for v in node.inputs):
            return w.op(kind, x, **attributes)
        if kind in ORDERS:
            return w.op(kind, [w.cast(v, boolean, i32) for v in x])
        return w.op(OF_BOOLEANS.get(kind, kind), x, **attributes)

    return run


for _ours, _kind in DIRECT.items():
    RULES[_ours] = _direct(_kind)


@rule("surrogate")
def surrogate(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Identity", x[:1])


@rule("select")
def select(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `select`: `Where`. Integers of types for which ONNX Runtime lacks `Where` are converted to i64 and
    back."""
    t = node.output.dtype
    if not t.is_int or t in (u8, i32, i64):
        return w.op("Where", x)
    return w.cast(w.op("Where", [x[0], *(w.cast(v, t, i64) for v in x[1:])]), i64, t)


@rule("ne")
def differs(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Not", [w.op("Equal", x)])


@rule("cast")
def cast(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(CastAttrs)
    if attrs.bits:
        raise UnsupportedError("a cast of bits cannot be said in ONNX")
    if attrs.dtype.is_minifloat:
        return w.op("Cast", x, to=code(attrs.dtype), saturate=int(attrs.saturate))
    return w.op("Cast", x, to=code(attrs.dtype))


@rule("clip")
def clip(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs, t = node.of(ClipAttrs), node.output.dtype
    return w.op("Clip", [x[0], *(None if v is None else w.scalar(v, t) for v in (attrs.min, attrs.max))])


@rule("swish")
def swish(w: Writer, node: Node, x: Sequence[str]) -> str:
    alpha = float(getattr(node.attrs, "alpha", 1.0))
    inner = x[0] if alpha == 1.0 else w.op("Mul", [x[0], w.scalar(alpha, node.output.dtype)])
    return w.op("Mul", [x[0], w.op("Sigmoid", [inner])])


@rule("affine", "scaled_tanh")
def of_two_numbers(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs, t = node.of(AlphaBetaAttrs), node.output.dtype
    alpha, beta = w.scalar(attrs.alpha, t), w.scalar(attrs.beta, t)
    if node.op == "affine":
        return w.op("Add", [w.op("Mul", [x[0], alpha]), beta])
    return w.op("Mul", [w.op("Tanh", [w.op("Mul", [x[0], beta])]), alpha])


@rule("rsqrt")
def rsqrt(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Reciprocal", [w.op("Sqrt", x)])


@rule("exp2")
def exp2(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Pow", [w.scalar(2.0, node.output.dtype), x[0]])


@rule("log2")
def log2(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Mul", [w.op("Log", x), w.scalar(1 / math.log(2), node.output.dtype)])


@rule("log1p")
def log1p(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `log1p`: log(u) * x / (u - 1) with u = 1 + x, which compensates the rounding of u (HP-15C, Kahan). It
    is x where u is 1, and log(u) where that is infinite."""
    t = node.output.dtype
    one = w.scalar(1.0, t)
    u = w.op("Add", [x[0], one])
    logarithm = w.op("Log", [u])
    mended = w.op("Mul", [logarithm, w.op("Div", [x[0], w.op("Sub", [u, one])])])
    outer = w.op("Where", [w.op("IsInf", [u]), logarithm, mended])
    return w.op("Where", [w.op("Equal", [u, one]), x[0], outer])


@rule("expm1")
def expm1(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `expm1`: (u - 1) * x / log(u) with u = e^x, which compensates the rounding of u (Kahan). It is x
    where u is 1, and u - 1 where that is -1 or infinite."""
    one = w.scalar(1.0, node.output.dtype)
    u = w.op("Exp", x)
    below = w.op("Sub", [u, one])
    mended = w.op("Mul", [below, w.op("Div", [x[0], w.op("Log", [u])])])
    ordinary = w.op("Or", [w.op("IsInf", [u]), w.op("Equal", [below, w.scalar(-1.0, node.output.dtype)])])
    return w.op("Where", [w.op("Equal", [u, one]), x[0], w.op("Where", [ordinary, below, mended])])


@rule("trunc")
def trunc(w: Writer, node: Node, x: Sequence[str]) -> str:
    below = w.op("Less", [x[0], w.scalar(0.0, node.output.dtype)])
    return w.op("Where", [below, w.op("Ceil", x), w.op("Floor", x)])


@rule("mod")
def mod(w: Writer, node: Node, x: Sequence[str]) -> str:
    _integers(node)
    return w.op("Mod", x)


@rule("truncmod", "fmod")
def fmod(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Mod", x, fmod=1)


@rule("floordiv")
def floordiv(w: Writer, node: Node, x: Sequence[str]) -> str:
    if node.output.dtype.is_float:
        return w.op("Floor", [w.op("Div", x)])
    return w.op("Div", [w.op("Sub", [x[0], w.op("Mod", x)]), x[1]])


@rule("shl", "shr")
def shift(w: Writer, node: Node, x: Sequence[str]) -> str:
    if node.output.dtype.kind != "uint":
        raise UnsupportedError("shifts of signed integers cannot be said in ONNX", got=node.output.dtype)
    return w.op("BitShift", x, direction="LEFT" if node.op == "shl" else "RIGHT")


@rule("detect_inf")
def detect_inf(w: Writer, node: Node, x: Sequence[str]) -> str:
    sides: Any = node.attrs
    return w.op("IsInf", x, detect_positive=int(sides.positive), detect_negative=int(sides.negative))


def _integers(node: Node) -> None:
    if node.output.dtype.is_float:
        raise UnsupportedError(f"{node.op} of floating-point numbers cannot be said in ONNX")
