"""Normalisations that every format has."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.common.contraction import channels
from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.expr import Expr, is_const, product
from tilewright.ir.graph import Value


def batch_norm(
    n: Emitter, x: Value, scale: Value | None, bias: Value | None, mean: Value, var: Value, epsilon: float
) -> Value:
    """x * a + b with a = scale / sqrt(var + epsilon), b = bias - mean * a: both depend on weights alone."""
    t = var.dtype
    deviation = stable_root(n, var, epsilon)
    a = n.emit("reciprocal", deviation) if scale is None else n.emit("div", n.cast(scale, t), deviation)
    shift = n.emit("mul", mean, a)
    b = n.emit("neg", shift) if bias is None else n.emit("sub", n.cast(bias, t), shift)
    rank = max(x.type.rank, 2)
    a, b = n.cast(channels(n, a, rank), x.dtype), n.cast(channels(n, b, rank), x.dtype)
    return n.emit("add", n.emit("mul", x, a), b)


def group_norm(
    n: Emitter, x: Value, groups: int, each: Expr, scale: Value | None, bias: Value | None, epsilon: float
) -> Value:
    """Layer norm, with `epsilon` added to variances, over the elements of each of `groups` groups of `each` channels,
    then the scale and bias of each channel, computed in the shape [images, groups, channels of a group, places], where
    fusion makes one kernel of it."""
    places = product(x.shape[2:])
    inside = (each,) if is_const(places, 1) else (each, places)
    y = n.emit("layer_norm", n.reshape(x, (x.shape[0], groups, *inside)), axis=2, epsilon=epsilon)
    column = (groups, each, 1)[: 1 + len(inside)]
    if scale is not None:
        y = n.emit("mul", y, n.reshape(n.cast(scale, x.dtype), column))
    if bias is not None:
        y = n.emit("add", y, n.reshape(n.cast(bias, x.dtype), column))
    return n.reshape(y, x.shape)


def variance(n: Emitter, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """The means of `x` along axes, its deviations from them, and their mean squares; the reduced axes have size 1."""
    mean = n.emit("reduce_mean", x, axes=tuple(axes), keepdims=True)
    deviation = n.emit("sub", x, mean)
    return mean, deviation, n.emit("reduce_mean", n.emit("mul", deviation, deviation), axes=tuple(axes), keepdims=True)


def stable_root(n: Emitter, square: Value, epsilon: float) -> Value:
    """The square root of a mean square and `epsilon`."""
    return n.emit("sqrt", n.emit("add", square, n.like(epsilon, square)))


def root_of_squares(n: Emitter, total: Value) -> Value:
    """The square root of a sum of squares. Its gradient at 0 is defined as 0, since the norm has no derivative
    there."""
    root = n.emit("sqrt", total)
    flat = n.emit("eq", total, n.like(0, total))
    beside = n.emit("sqrt", n.emit("select", flat, n.like(1, total), total))
    like = n.emit("select", flat, n.like(0, total), beside)
    return n.emit("surrogate", n.emit("stop_gradient", root), like)
