"""Rules that choose between elements, and tests for what is not finite."""

from __future__ import annotations

import torch

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.dtypes import TORCH
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import boolean
from tilewright.ir.graph import Value


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(n: Call, condition: Value, a: Operand, b: Operand) -> Value:
    return n.emit("select", n.cast(condition, boolean), n.operand(a, n.dtype), n.operand(b, n.dtype))


@rule("masked_fill")
def masked_fill(n: Call, x: Value, mask: Value, value: Operand) -> Value:
    filled = n.emit("select", n.cast(mask, boolean), n.operand(value, x.dtype), x)
    return n.broadcast(filled, n.shape)


@rule("isnan")
def isnan(n: Call, x: Value) -> Value:
    return n.emit("isnan", x) if x.dtype.is_float else n.filled(False, boolean, x.shape)


@rule("isinf")
def isinf(n: Call, x: Value) -> Value:
    return n.emit("detect_inf", x) if x.dtype.is_float else n.filled(False, boolean, x.shape)


@rule("isfinite")
def isfinite(n: Call, x: Value) -> Value:
    if not x.dtype.is_float:
        return n.filled(True, boolean, x.shape)
    return n.emit("not", n.emit("or", n.emit("isnan", x), n.emit("detect_inf", x)))


@rule("nan_to_num")
def nan_to_num(
    n: Call, x: Value, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not x.dtype.is_float:
        return x
    limits = torch.finfo(TORCH[x.dtype])
    high = n.like(limits.max if posinf is None else posinf, x)
    low = n.like(limits.min if neginf is None else neginf, x)
    known = n.emit("select", n.emit("isnan", x), n.like(nan or 0.0, x), x)
    known = n.emit("select", n.emit("detect_inf", x, positive=True, negative=False), high, known)
    return n.emit("select", n.emit("detect_inf", x, positive=False, negative=True), low, known)
