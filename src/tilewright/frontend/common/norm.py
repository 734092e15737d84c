"""Normalisations that every format has."""

from __future__ import annotations

from tilewright.frontend.common.contraction import channels
from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.graph import Value


def batch_norm(
    n: Emitter, x: Value, scale: Value | None, bias: Value | None, mean: Value, var: Value, epsilon: float
) -> Value:
    """x * a + b with a = scale / sqrt(var + epsilon), b = bias - mean * a: both depend on weights alone."""
    t = var.dtype
    deviation = n.emit("sqrt", n.emit("add", var, n.like(epsilon, var)))
    a = n.emit("reciprocal", deviation) if scale is None else n.emit("div", n.cast(scale, t), deviation)
    shift = n.emit("mul", mean, a)
    b = n.emit("neg", shift) if bias is None else n.emit("sub", n.cast(bias, t), shift)
    rank = max(x.type.rank, 2)
    a, b = n.cast(channels(n, a, rank), x.dtype), n.cast(channels(n, b, rank), x.dtype)
    return n.emit("add", n.emit("mul", x, a), b)
