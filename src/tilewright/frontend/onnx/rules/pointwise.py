"""Rules for arithmetic, comparison, logic, activations and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from tilewright.frontend.common.arithmetic import floored_remainder, small_power
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import RULES, rule
from tilewright.frontend.onnx.rules.legacy import second_operand, slopes
from tilewright.frontend.onnx.scope import Item
from tilewright.frontend.onnx.tensors import element_type
from tilewright.ir.dtype import boolean, f32, f64, i32, u8
from tilewright.ir.expr import product
from tilewright.ir.functions import by_name_in
from tilewright.ir.graph import Value
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

_UNARY = by_name_in("onnx") | {
    "Abs": "abs",
    "Neg": "neg",
    "Not": "not",
    "Tanh": "tanh",
}

_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "BitwiseAnd": "bitand",
    "BitwiseOr": "bitor",
    "BitwiseXor": "bitxor",
}


def _unary(op: str) -> Callable[[Call], Value]:
    return lambda n: n.emit(op, n.value(0))


def _binary(op: str) -> Callable[[Call], Value]:
    return lambda n: n.emit(op, n.value(0), second_operand(n))


def _with_attributes(op: str, defaults: Mapping[str, float]) -> Callable[[Call], Value]:
    return lambda n: n.emit(op, n.value(0), **{name: n.real(name, value) for name, value in defaults.items()})


for _onnx, _ours in _UNARY.items():
    RULES[_onnx] = _unary(_ours)
for _onnx, _ours in _BINARY.items():
    RULES[_onnx] = _binary(_ours)
for _ours, _known in ACTIVATIONS.items():
    if _known.onnx:
        RULES[_known.onnx] = _with_attributes(_ours, _known.defaults)
RULES["Swish"] = _with_attributes("swish", {"alpha": 1.0})


@rule("BitwiseNot")
def bitwise_not(n: Call) -> Value:
    return n.emit("bitnot", n.value(0))


@rule("Div")
def div(n: Call) -> Value:
    """Division; integers truncate towards zero."""
    return n.emit("div" if n.dtype(0).is_float else "truncdiv", n.value(0), second_operand(n))


@rule("Mod")
def mod(n: Call) -> Value:
    """The remainder of a division: with the sign of the divisor, or if the attribute `fmod` is 1 with that of the
    dividend, as in C."""
    fmod = n.integer("fmod", 0)
    if n.dtype(0).is_float:
        a, b = n.value(0), n.value(1)
        return n.emit("fmod", a, b) if fmod else floored_remainder(n, a, b)
    return n.emit("truncmod" if fmod else "mod", n.value(0), n.value(1))


@rule("Pow")
def power(n: Call) -> Value:
    """`a ** b` in the base's type, whatever the exponent's. Small known exponents become products and roots."""
    x = n.value(0)
    exponent = n.known(1) if n.opset >= 7 else None
    if exponent is not None and exponent.dtype != object and exponent.size == 1 and len(exponent.shape) <= x.type.rank:
        simple = small_power(n, x, float(exponent.reshape(-1)[0]))
        if simple is not None:
            n.folded_number(1)
            return n.emit("identity", x) if simple is x else simple
    y = second_operand(n)
    work = x.dtype if x.dtype.is_float and (not y.dtype.is_float or y.dtype.bits <= x.dtype.bits) else f64
    return n.cast(n.emit("pow", n.cast(x, work), n.cast(y, work)), x.dtype)


@rule("Sum", "Max", "Min")
def variadic(n: Call) -> Value:
    op = {"Sum": "add", "Max": "max", "Min": "min"}[n.node.op_type]
    result, *rest = n.values()
    for v in rest:
        result = n.emit(op, result, v)
    return result if rest else n.emit("identity", result)


@rule("Mean")
def mean(n: Call) -> Value:
    total = variadic_sum(n)
    return n.emit("mul", total, n.like(1 / len(n.items), total))


def variadic_sum(n: Call) -> Value:
    result, *rest = n.values()
    for v in rest:
        result = n.emit("add", result, v)
    return result


@rule("BitShift")
def bit_shift(n: Call) -> Value:
    direction = n.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError("attribute direction must be LEFT or RIGHT", got=direction)
    return n.emit("shl" if direction == "LEFT" else "shr", n.value(0), n.value(1))


@rule("Where")
def where(n: Call) -> Value:
    return n.emit("select", n.value(0), n.value(1), n.value(2))


@rule("PRelu")
def prelu(n: Call) -> Value:
    return n.emit("prelu", n.value(0), slopes(n))


@rule("Clip")
def clip(n: Call) -> Value:
    """The input limited to two bounds, attributes (before operator set 11) or inputs, which become attributes when they
    are known. An absent bound is the least or largest finite number of the type; a bound that is NaN has no effect."""
    x = n.value(0)
    bounds: dict[str, Any] = {}
    if x.dtype.is_float:
        limit = float(ml_dtypes.finfo(x.dtype.numpy).max)
        bounds = {"min": -limit, "max": limit}
    if n.opset < 11:
        return n.emit("clip", x, **bounds | {k: n.real(k, v) for k, v in bounds.items()})
    for i, (name, op) in enumerate((("min", "gt"), ("max", "lt")), 1):
        known = n.known(i)
        if not n.has(i):
            continue
        if known is not None and known.dtype != object and known.size == 1:
            value = n.folded_number(i).reshape(-1)[0]
            bounds[name] = int(value) if x.dtype.is_int else float(value)
        else:
            bounds[name], bound = None, n.value(i)
            x = n.emit("select", n.emit(op, bound, x), bound, x)
    fixed = {k: v for k, v in bounds.items() if v is not None}
    if not fixed:
        return n.emit("identity", x)
    return n.emit("clip", x, min=fixed.get("min"), max=fixed.get("max"))


@rule("Gelu")
def gelu(n: Call) -> Value:
    approximate = n.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise ModelError("attribute approximate must be none or tanh", got=approximate)
    return n.emit("gelu", n.value(0), approximate=approximate)


@rule("Shrink")
def shrink(n: Call) -> Value:
    x = n.value(0)
    work = x if x.dtype.is_float else n.cast(x, f32)
    return n.cast(n.emit("shrink", work, lambd=n.real("lambd", 0.5), bias=n.real("bias", 0.0)), x.dtype)


def _wide(n: Call) -> Value:
    """The first input, where floats of less than 16 bits are cast to f32."""
    x = n.value(0)
    return n.cast(x, f32) if x.dtype.is_minifloat else x


@rule("IsNaN")
def is_nan(n: Call) -> Value:
    return n.emit("isnan", _wide(n))


@rule("IsInf")
def is_inf(n: Call) -> Value:
    positive, negative = bool(n.integer("detect_positive", 1)), bool(n.integer("detect_negative", 1))
    return n.emit("detect_inf", _wide(n), positive=positive, negative=negative)


@rule("Cast")
def cast(n: Call) -> Value:
    return _cast(n, n.value(0), element_type(_code(n)))


def _code(n: Call) -> int:
    """The code of the type to cast to; before operator set 6 the attribute is the type's name."""
    if n.opset >= 6:
        return int(n.integer("to", 0))
    name = n.text("to", "")
    code = dict(TensorProto.DataType.items()).get(name)
    if code is None:
        raise ModelError("attribute to names no element type", got=name)
    return int(code)


@rule("CastLike")
def cast_like(n: Call) -> Value:
    return _cast(n, n.value(0), n.dtype(1))


def _cast(n: Call, x: Value, to: Any) -> Value:
    saturate, rounding = bool(n.integer("saturate", 1)), n.text("round_mode", "up")
    if rounding not in ("up", "down", "nearest"):
        raise ModelError("attribute round_mode must be up, down or nearest", got=rounding)
    if x.dtype is to:
        return n.emit("identity", x)
    if to.is_minifloat:
        return n.emit("cast", x, dtype=to, saturate=saturate, rounding=rounding)
    if x.dtype.is_float and to.is_int:
        return n.truncated(x, to)
    if to.bits < 8 and not x.dtype.is_int:  # ONNX retains the low bits here
        x = n.emit("cast", x, dtype=i32)
    return n.emit("cast", x, dtype=to)


@rule("BitCast")
def bit_cast(n: Call) -> Value:
    to = element_type(n.integer("to", 0))
    x = n.value(0)
    if x.dtype is boolean and to is not boolean:  # a byte of 0 or 1
        x = n.cast(x, u8)
    if to.bits != x.dtype.bits or (to is boolean) != (x.dtype is boolean):
        raise UnsupportedError("BitCast between types of different widths, or to bool, is not supported")
    return n.emit("identity", x) if to is x.dtype else n.emit("cast", x, dtype=to, bits=True)


@rule("Identity", "Dropout")
def identity(n: Call) -> Any:
    """Identity, and Dropout in inference: the input itself, without a node; Dropout's mask, if it is an output, is all
    true."""
    item: Item | Value = n.item(0)
    if n.node.op_type == "Identity":
        return [item]
    if n.opset < 12:
        n.attr("ratio")
    n.attr("seed")
    n.attr("is_test")
    if n.has(2) and n.structure(2, "the training mode of Dropout").any():
        ratio = n.structure(1, "the ratio of Dropout") if n.has(1) else np.float32(0.5)
        if float(np.asarray(ratio).reshape(-1)[0]) != 0:
            raise UnsupportedError("Dropout in training mode is not supported")
    if n.opset >= 12 and n.has(1):
        item = _checked_ratio(n)
    if n.outputs < 2:
        return [item]
    mask = n.constant(True) if n.opset >= 10 else n.like(1, n.value(0))
    return [item, n.emit("broadcast", mask, shape=n.shape(0))]


def _checked_ratio(n: Call) -> Item | Value:
    """The first input of Dropout, with a check that `ratio` is at least 0 and below 1."""
    what, known = "the ratio is not from 0 to below 1", n.known(1)
    if known is None:
        ratio = n.reshape(n.cast(n.value(1), f64), ())
        one = n.constant(1.0, f64)
        fits = n.emit("and", n.emit("ge", ratio, n.constant(0.0, f64)), n.emit("lt", ratio, one))
        return n.require(n.value(0), fits, ratio, what)
    if not all(0 <= float(v) < 1 for v in np.asarray(known).reshape(-1)):
        raise ShapeError(what, got=known.tolist())
    return n.item(0)


@rule("Hardmax")
def hardmax(n: Call) -> Value:
    """1 at the first maximum along the node's axis, 0 elsewhere."""
    x = n.value(0)
    axis = n.integer("axis", -1 if n.opset >= 13 else 1) % max(x.type.rank, 1)
    if n.opset < 13 and axis != x.type.rank - 1:  # the dimensions from `axis` on are one
        flat = n.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
        return n.reshape(_hardmax(n, flat, 1), x.shape)
    return _hardmax(n, x, axis)


def _hardmax(n: Call, x: Value, axis: int) -> Value:
    index = n.emit("argmax", x, axis=axis, keepdims=False, select_last_index=False)
    values = n.constant([0, 1], x.dtype)
    return n.emit("one_hot", index, values, axis=axis, depth=x.shape[axis])
