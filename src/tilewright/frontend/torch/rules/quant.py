"""Rules for quantised operators: `quantized_decomposed::*`, which torchao's pt2e writes, and products of integers.

Source of each rule: torch/ao/quantization/fx/_decomposed.py. Quantised levels are `clamp(round(x * (1 / scale)) +
zero)`: PyTorch multiplies by the reciprocal, where ONNX divides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.common.contraction import product
from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import f32, f64, i32, i64
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of

DECOMPOSED = "quantized_decomposed::"
EPSILON = float(np.finfo(np.float32).eps)
"""The lower bound of scales for operators that state none."""


@rule("_int_mm")
def int_mm(n: Call, a: Value, b: Value) -> Value:
    """Exact sums of products of i8, as i32."""
    return product(n, n.cast(a, i32), n.cast(b, i32))


@rule(f"{DECOMPOSED}quantize_per_tensor")
def quantize_per_tensor(n: Call, x: Value, scale: Operand, zero: Operand, low: Any, high: Any, _: Any) -> Value:
    return _levels(n, x, _inverse(n, scale), zero, low, high)


@rule(f"{DECOMPOSED}dequantize_per_tensor")
def dequantize_per_tensor(
    n: Call, x: Value, scale: Operand, zero: Operand, _: Any, __: Any, ___: Any, **____: Any
) -> Value:
    factor = n.reshape(scale, ()) if isinstance(scale, Value) else n.constant(scale, f32)
    return _numbers(n, x, factor, zero)


@rule(f"{DECOMPOSED}quantize_per_channel", f"{DECOMPOSED}quantize_per_token")
def quantize_per_channel(n: Call, x: Value, scales: Value, zeros: Value, *rest: Any) -> Value:
    """`x` quantised by channel or by token. `rest`: the axis (by channel only), the lowest and the highest level, the
    type. By token, scales and zero points have a last dimension of 1."""
    *axis, low, high, _ = rest
    scale, zero = (_along(n, v, x, axis) for v in (scales, zeros))
    return _levels(n, x, _inverse(n, scale), zero, low, high)


@rule(f"{DECOMPOSED}dequantize_per_channel")
def dequantize_per_channel(
    n: Call, x: Value, scales: Value, zeros: Value | None, axis: Any, *_: Any, **__: Any
) -> Value:
    zero = None if zeros is None else _along(n, zeros, x, [axis])
    return _numbers(n, x, _along(n, scales, x, [axis]), zero)


@rule(f"{DECOMPOSED}dequantize_per_token")
def dequantize_per_token(n: Call, x: Value, scales: Value, zeros: Value, *_: Any, **__: Any) -> Value:
    return _numbers(n, x, scales, zeros)


@rule(f"{DECOMPOSED}choose_qparams")
def choose_qparams(n: Call, x: Value, low: Any, high: Any, eps: Any, _: Any) -> list[Value]:
    """[scale (f64[1]), zero point (i64[1])] by which integers from `low` to `high` represent the range of all elements
    of `x`, widened to contain 0; the scale is at least `eps`."""
    axes = tuple(range(x.type.rank))
    least, most = (n.emit(op, x, axes=axes, keepdims=False) for op in ("reduce_min", "reduce_max"))
    least, most = n.emit("min", least, n.like(0.0, x)), n.emit("max", most, n.like(0.0, x))
    scale = n.emit("div", n.emit("sub", most, least), n.like(float(high - low), x))
    scale = n.emit("max", scale, n.like(max(eps, EPSILON), x))
    zero = n.emit("sub", n.like(float(low), x), n.emit("round", n.emit("div", least, scale)))
    zero = n.emit("clip", zero, min=float(low), max=float(high))
    return [n.reshape(n.cast(scale, f64), (1,)), n.reshape(n.cast(zero, i64), (1,))]


def _inverse(n: Call, scale: Operand) -> Value:
    """1 / scale, as f32, rounded as PyTorch does: a number's in f64, a tensor's in its type."""
    if not isinstance(scale, Value):
        return n.constant(1.0 / float(scale), f32)
    inverse = n.emit("div", n.like(1.0, scale), scale)
    return n.cast(n.reshape(inverse, ()) if _is_one(scale) else inverse, f32)


def _levels(n: Call, x: Value, inverse: Value, zero: Operand, low: Any, high: Any) -> Value:
    y = n.emit("round", n.emit("mul", n.cast(x, f32), inverse))
    if isinstance(zero, Value):
        y = n.emit("add", y, n.cast(n.reshape(zero, ()) if _is_one(zero) else zero, f32))
    elif zero:
        y = n.emit("add", y, n.constant(zero, f32))
    return n.cast(n.emit("clip", y, min=float(low), max=float(high)), n.dtype)


def _numbers(n: Call, x: Value, scale: Value, zero: Operand | None) -> Value:
    """(x - zero) * scale, the numbers that the codes `x` stand for. A later pass makes integer products of products
    with such weights."""
    y = n.cast(x, i32)
    if isinstance(zero, Value):
        y = n.emit("sub", y, n.cast(n.reshape(zero, ()) if _is_one(zero) else zero, i32))
    elif zero:
        y = n.emit("sub", y, n.constant(zero, i32))
    return n.cast(n.emit("mul", n.cast(y, f32), n.cast(scale, f32)), n.dtype)


def _along(n: Call, v: Value, x: Value, axis: Sequence[Any]) -> Value:
    """`v`, scales or zero points, reshaped to broadcast with `x` along the axis in `axis`; unchanged if that is
    empty."""
    if not axis:
        return v
    at = axis_of(int(axis[0]), x.type.rank)
    return n.reshape(v, [v.shape[0] if k == at else 1 for k in range(x.type.rank)])


def _is_one(v: Value) -> bool:
    return v.type.rank == 1
