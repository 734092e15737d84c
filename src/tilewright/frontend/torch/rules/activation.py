"""Rules for activations and bounds."""

from __future__ import annotations

from math import isnan
from typing import Any

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.frontend.torch.ties import SPLITS_TIES, clamped, within
from tilewright.ir.attributes import same
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Value


@rule("silu")
def silu(n: Call, x: Value) -> Value:
    return n.emit("swish", x, alpha=1.0)


@rule("gelu")
def gelu(n: Call, x: Value, approximate: str = "none") -> Value:
    return n.emit("gelu", x, approximate=approximate)


@rule("leaky_relu")
def leaky_relu(n: Call, x: Value, negative_slope: float = 0.01) -> Value:
    return n.emit("leaky_relu", x, alpha=float(negative_slope))


@rule("rrelu")
def rrelu(
    n: Call, x: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _: Any = None
) -> Value:
    """Leaky ReLU whose slope is the middle of `lower` and `upper`. Raises an error in training, which draws a slope for
    each element."""
    if training:
        raise n.unsupported("in training")
    return n.emit("leaky_relu", x, alpha=(lower + upper) / 2)


@rule("elu", single=True)
def elu(n: Call, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if input_scale != 1:
        raise n.unsupported("with an input_scale", got=input_scale)
    return _times(n, n.emit("elu", x, alpha=float(alpha)), scale)


def _times(n: Call, x: Value, factor: float) -> Value:
    return x if same(factor, 1) else n.emit("mul", x, n.like(factor, x))


@rule("selu")
def selu(n: Call, x: Value) -> Value:
    return n.emit("selu", x, alpha=1.6732632423543772, gamma=1.0507009873554805)


@rule("celu")
def celu(n: Call, x: Value, alpha: float = 1) -> Value:
    return n.emit("celu", x, alpha=float(alpha))


@rule("prelu", "_prelu_kernel")
def prelu(n: Call, x: Value, weight: Value) -> Value:
    """PReLU with one slope, or one for each channel."""
    if weight.type.rank == 1 and x.type.rank > 1:
        weight = n.reshape(weight, (1, weight.shape[0], *([1] * (x.type.rank - 2))))
    return n.emit("prelu", x, weight)


@rule("hardsigmoid")
def hardsigmoid(n: Call, x: Value) -> Value:
    return n.emit("hard_sigmoid", x, alpha=1 / 6, beta=0.5)


@rule("relu6")
def relu6(n: Call, x: Value) -> Value:
    return hardtanh(n, x, 0, 6)


@rule("hardtanh")
def hardtanh(n: Call, x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    """`x` limited to `min_val` and `max_val`, with a gradient of zero at the bounds themselves, and of one at NaN."""

    def inside() -> Value:
        outside = n.emit("or", n.emit("le", x, n.like(min_val, x)), n.emit("ge", x, n.like(max_val, x)))
        return n.emit("select", outside, n.like(0, x), x)

    return n.surrogate(_limited(n, n.cast(x, n.dtype), min_val, max_val), inside)


@rule("hardshrink")
def hardshrink(n: Call, x: Value, lambd: float = 0.5) -> Value:
    return n.emit("shrink", x, lambd=float(lambd), bias=0.0)


@rule("softshrink")
def softshrink(n: Call, x: Value, lambd: float = 0.5) -> Value:
    return n.emit("shrink", x, lambd=float(lambd), bias=float(lambd))


@rule("threshold")
def threshold(n: Call, x: Value, limit: float, value: float) -> Value:
    return n.emit("select", n.emit("gt", x, n.like(limit, x)), x, n.like(value, x))


@rule("glu", single=True)
def glu(n: Call, x: Value, dim: int = -1) -> Value:
    axis = n.axis(dim, x)
    half = x.shape[axis] // 2
    return n.emit("mul", n.slice(x, axis, 0, half), n.emit("sigmoid", n.slice(x, axis, half, half)))


@rule("clamp", "clip")
def clamp(n: Call, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """`x` limited to `low` and `high`, with the gradients of the installed PyTorch where it equals them."""
    x = n.cast(x, n.dtype)
    if low is None and high is None:
        return x
    bounded = _limited(n, x, low, high)
    if isinstance(low, Value) or isinstance(high, Value):
        return n.surrogate(bounded, lambda: clamped(n, x, *_operands(n, low, high)))
    return n.surrogate(bounded, lambda: within(n, x, *_operands(n, low, high))) if SPLITS_TIES else bounded


def _limited(n: Call, x: Value, low: Operand | None, high: Operand | None) -> Value:
    """`x` limited to `low` and `high`. Bounds that are numbers become attributes; a bound that is NaN makes all results
    NaN."""
    if any(isinstance(bound, float) and isnan(bound) for bound in (low, high)):
        return n.filled(float("nan"), n.dtype, x.shape)
    if not isinstance(low, Value | Expr) and not isinstance(high, Value | Expr):
        return n.emit("clip", x, **_bounds(n.dtype, low, high))
    least, most = _operands(n, low, high)
    bounded = x if least is None else n.emit("max", x, least)
    return bounded if most is None else n.emit("min", bounded, most)


def _operands(n: Call, *bounds: Operand | None) -> list[Value | None]:
    return [None if b is None else n.operand(b, n.dtype) for b in bounds]


def _bounds(t: DType, low: Any, high: Any) -> dict[str, Any]:
    convert = float if t.is_float else int
    return {"min": None if low is None else convert(low), "max": None if high is None else convert(high)}


@rule("clamp_min")
def clamp_min(n: Call, x: Value, low: Operand) -> Value:
    return clamp(n, x, low, None)


@rule("clamp_max")
def clamp_max(n: Call, x: Value, high: Operand) -> Value:
    return clamp(n, x, None, high)
