"""Rules for com.microsoft's quantised operators: they dequantise, compute and quantise again, or multiply integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.frontend.common.contraction import product
from tilewright.frontend.common.recurrent import Cell, Weights
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import RULES, rule
from tilewright.frontend.onnx.rules.contraction import scaled
from tilewright.frontend.onnx.rules.microsoft import DOMAIN
from tilewright.frontend.onnx.rules.pool import averaged
from tilewright.frontend.onnx.rules.quant import along, centred, dequantize_linear, quantize_linear, quantized
from tilewright.frontend.onnx.rules.rnn import layer, part
from tilewright.ir.dtype import DType, f32, i32, u8
from tilewright.ir.expr import product as product_of
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dim, static
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

RULES[f"{DOMAIN}QuantizeLinear"] = quantize_linear
RULES[f"{DOMAIN}DequantizeLinear"] = dequantize_linear


def real(n: Call, i: int, scale: int, zero: int) -> Value:
    """Input `i` dequantised: (codes - zero point) * scale, where `scale` and `zero` are numbers of inputs."""
    return n.emit("mul", n.cast(centred(n, n.value(i), zero, -1), f32), n.value(scale))


def back(n: Call, y: Value, scale: int, zero: int, to: DType) -> Value:
    """`y` quantised with the scale and zero point in inputs `scale` and `zero`; the type is that of the zero point, or
    `to` without one."""
    return quantized(n, n.emit("div", y, n.value(scale)), n.optional(zero), n.dtype(zero) if n.has(zero) else to)


@rule(f"{DOMAIN}QLinearAdd", f"{DOMAIN}QLinearMul")
def qlinear_binary(n: Call) -> Value:
    """A sum or product of two quantised tensors: the inputs are a with its scale and zero point, b with its own, then
    the scale and zero point of the result."""
    op = "add" if n.node.op_type == "QLinearAdd" else "mul"
    return back(n, n.emit(op, real(n, 0, 1, 2), real(n, 3, 4, 5)), 6, 7, n.dtype(0))


def _unary(f: Callable[[Call, Value], Value]) -> Callable[[Call], Value]:
    """A quantised operator of one operand: its inputs are x, the scale and zero point of x, and those of the result."""
    return lambda n: back(n, f(n, real(n, 0, 1, 2)), 3, 4, n.dtype(0))


def _softmax(n: Call, x: Value) -> Value:
    opset, rank = n.integer("opset", 13), x.type.rank
    axis = axis_of(n.integer("axis", -1), rank)
    if opset < 13 and axis != rank - 1:
        rows = n.reshape(x, (*x.shape[:axis], dim(product_of(x.shape[axis:]))))
        return n.reshape(n.emit("softmax", rows, axis=axis), x.shape)
    return n.emit("softmax", x, axis=axis)


def _channels_first(n: Call, x: Value, f: Callable[[Value], Value]) -> Value:
    """`f`, a pooling of images with channels first, applied to `x`, whose channels are last if the node says so; so are
    those of the result."""
    if not n.integer("channels_last", 0):
        return f(x)
    rank = x.type.rank
    first = n.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    return n.transpose(f(first), (0, *range(2, rank), 1))


def _global_pool(n: Call, x: Value) -> Value:
    if x.type.rank < 3:
        raise ShapeError("pooling needs spatial dimensions", got=x.type)
    axes = tuple(range(2, x.type.rank))
    return _channels_first(n, x, lambda v: n.emit("reduce_mean", v, axes=axes, keepdims=True))


_UNARY: dict[str, Callable[[Call, Value], Value]] = {
    "QLinearSigmoid": lambda n, x: n.emit("sigmoid", x),
    "QLinearLeakyRelu": lambda n, x: n.emit("leaky_relu", x, alpha=n.real("alpha", 0.01)),
    "QLinearSoftmax": _softmax,
    "QLinearGlobalAveragePool": _global_pool,
}
for _name, _f in _UNARY.items():
    RULES[f"{DOMAIN}{_name}"] = _unary(_f)


@rule(f"{DOMAIN}QLinearAveragePool")
def qlinear_average_pool(n: Call) -> Value:
    """Averages of quantised windows. ONNX Runtime adds the zero point before it rounds here, and only here."""
    if n.integer("channels_last", 0):
        raise UnsupportedError("QLinearAveragePool with channels last is not supported")
    y = n.emit("div", averaged(n, real(n, 0, 1, 2)), n.value(3))
    if n.has(4):
        y = n.emit("add", y, n.cast(n.value(4), f32))
    return quantized(n, y, None, n.dtype(4) if n.has(4) else n.dtype(0))


@rule(f"{DOMAIN}QLinearConcat")
def qlinear_concat(n: Call) -> Value:
    """A concatenation of quantised tensors: the inputs are the result's scale and zero point, then each part with its
    own."""
    if len(n.items) < 5 or len(n.items) % 3 != 2:
        raise ModelError("QLinearConcat needs a scale and a zero point with each part", got=len(n.items))
    parts = [real(n, i, i + 1, i + 2) for i in range(2, len(n.items), 3)]
    axis = axis_of(n.integer("axis", 0), parts[0].type.rank)
    return back(n, n.emit("concat", *parts, axis=axis) if len(parts) > 1 else parts[0], 0, 1, n.dtype(2))


@rule(f"{DOMAIN}QLinearWhere")
def qlinear_where(n: Call) -> Value:
    """A selection between quantised tensors: the inputs are the condition, x and y with their scales and zero points,
    and the result's."""
    return back(n, n.emit("select", n.value(0), real(n, 1, 2, 3), real(n, 4, 5, 6)), 7, 8, n.dtype(1))


@rule(f"{DOMAIN}QGemm")
def qgemm(n: Call) -> Value:
    """A product of quantised matrices: the inputs are a and b with their scales and zero points, an i32 addend, and the
    result's scale and zero point, without which the result is f32."""
    swap_a, swap_b = bool(n.integer("transA", 0)), bool(n.integer("transB", 0))
    a = centred(n, n.value(0), 2, -1)
    b = centred(n, n.value(3), 5, 0 if swap_b else 1)
    y = n.emit("matmul", a, b, transpose_a=swap_a, transpose_b=swap_b)
    if n.has(6):
        y = n.emit("add", y, n.value(6))
    scale = n.emit("mul", n.value(1), n.value(4))
    result = scaled(n, n.emit("mul", n.cast(y, f32), scale), n.real("alpha", 1.0))
    return back(n, result, 7, 8, n.dtype(0)) if n.has(7) else result


@rule(f"{DOMAIN}MatMulIntegerToFloat")
def matmul_integer_to_float(n: Call) -> Value:
    """A product of quantised matrices as f32: the inputs are a, b, their scales, their zero points, and a bias."""
    y = product(n, centred(n, n.value(0), 4, -2), centred(n, n.value(1), 5, -1))
    y = n.emit("mul", n.emit("mul", n.cast(y, f32), n.value(2)), _of_columns(n, 3, y))
    return n.emit("add", y, n.value(6)) if n.has(6) else y


@rule(f"{DOMAIN}DynamicQuantizeMatMul")
def dynamic_quantize_matmul(n: Call) -> Value:
    """x, quantised to 8 bits by its own range, times weights of 8 bits with their scale and zero point."""
    x, w = n.value(0), n.value(1)
    levels, scale, zero = dynamic(n, x)
    y = product(n, n.emit("sub", levels, zero), centred_in(n, w, 3))
    y = n.emit("mul", n.emit("mul", n.cast(y, f32), scale), _of_columns(n, 2, y))
    return n.emit("add", y, n.value(4)) if n.has(4) else y


@rule(f"{DOMAIN}DynamicQuantizeLSTM")
def dynamic_quantize_lstm(n: Call) -> list[Value]:
    """An LSTM whose input, and the state of each step, are quantised to 8 bits by their own range; weights [directions,
    features, 4 * H] and [directions, H, 4 * H] of 8 bits, after LSTM's inputs their scales and zero points, one a
    direction or one a column."""
    hidden = static(n.shape(2)[1], "the hidden size")

    def product(k: int, scale: int, d: int) -> Callable[[Value], Value]:
        w, factor = part(n, n.value(k), d), part(n, n.value(scale), d)
        zero = part(n, n.value(scale + 1), d) if n.has(scale + 1) else None

        def multiplied(x: Value) -> Value:
            # In the body of a loop too the weights are seen to be narrow there, which instructions for dots ask for.
            centred = n.cast(w, i32) if zero is None else n.emit("sub", n.cast(w, i32), n.cast(zero, i32))
            levels, own, point = dynamic(n, x)
            y = n.cast(n.emit("matmul", n.emit("sub", levels, point), centred), f32)
            return n.emit("mul", y, n.emit("mul", own, factor))

        return multiplied

    def weights(d: int, cell: Cell) -> Weights:
        inputs, recurrence = part(n, n.value(1), d), part(n, n.value(2), d)
        bias, width = (part(n, n.value(3), d) if n.has(3) else None), 4 * hidden
        first, second = (None if bias is None else n.slice(bias, 0, k * width, width) for k in range(2))
        peephole = part(n, n.value(7), d) if n.has(7) else None
        return Weights(inputs, recurrence, first, second, peephole, (product(1, 8, d), product(2, 10, d)))

    if n.integer("input_forget", 0):
        raise UnsupportedError("DynamicQuantizeLSTM with coupled input and forget gates is not supported")
    return layer(n, "LSTM", hidden, weights)


def _of_columns(n: Call, i: int, y: Value) -> Value:
    return along(n, n.value(i), y, -1)


def centred_in(n: Call, w: Value, zero: int) -> Value:
    return n.cast(centred(n, w, zero, -1), i32)


def dynamic(n: Call, x: Value) -> tuple[Value, Value, Value]:
    """`x` quantised by its own range as DynamicQuantizeLinear does: levels (i32), scale, and zero point (i32)."""
    axes, zero = tuple(range(x.type.rank)), n.like(0.0, x)
    low = n.emit("min", n.emit("reduce_min", x, axes=axes, keepdims=False), zero)
    high = n.emit("max", n.emit("reduce_max", x, axes=axes, keepdims=False), zero)
    scale = n.emit("div", n.emit("sub", high, low), n.like(255.0, x))
    scale = n.emit("select", n.emit("eq", scale, zero), n.like(1.0, x), scale)
    point = n.emit("clip", n.emit("round", n.emit("div", n.emit("neg", low), scale)), min=0, max=255)
    levels = n.emit("add", n.emit("round", n.emit("div", x, scale)), point)
    levels = n.cast(n.cast(n.emit("clip", levels, min=0, max=255), u8), i32)
    return levels, scale, n.cast(point, i32)


__all__: list[Any] = ["back", "dynamic", "real"]
