"""Rules for pooling."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.padding import padded, same
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr, const, product
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError, ShapeError


def _window(n: Call, x: Value, fill: Any = 0) -> tuple[Value, dict[str, Any]]:
    """`x`, padded with `fill` where pads depend on a symbolic size, and the attributes of a pooling."""
    rank = x.type.rank - 2
    kernel = n.ints("kernel_shape")
    if kernel is None or len(kernel) != rank:
        raise ModelError("attribute kernel_shape needs one entry for each spatial dimension", got=kernel)
    strides, dilations = n.ints("strides", [1] * rank) or [], n.ints("dilations", [1] * rank) or []
    if len(strides) != rank or len(dilations) != rank:
        raise ShapeError("strides and dilations need one entry for each spatial dimension", expected=rank)
    x, pads = padded(n, x, kernel, strides, dilations, fill)
    ceil = bool(n.integer("ceil_mode", 0))
    return x, {
        "kernel": tuple(kernel),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": pads,
        "ceil_mode": ceil,
    }


@rule("MaxPool")
def max_pool(n: Call) -> list[Value]:
    x = n.value(0)
    wide, window = _window(n, x, x.dtype.min)
    storage = n.integer("storage_order", 0)
    results = [n.emit("max_pool", wide, skips_nan=True, **window)]
    if n.outputs > 1:
        if wide is x:
            results.append(n.emit("max_pool_indices", x, storage_order=storage, skips_nan=True, **window))
        else:
            results.append(_places(n, x, wide, window, storage))
    return results


def _places(n: Call, x: Value, wide: Value, window: dict[str, Any], storage: int) -> Value:
    """MaxPool's second output: the flat index in `x`, counted by rows or (`storage` 1) by columns, of each window's
    maximum, where `wide` is `x` with the padding of auto_pad SAME. A window that contains nothing above the padding
    gets the index of its first element in `x`."""
    shape = [window[key] for key in ("kernel", "strides", "dilations")]
    before, _ = same(x.shape[2:], *shape, upper=n.text("auto_pad", "") == "SAME_UPPER")
    stated = window["pads"][: len(before)]  # of these dimensions the operator knows the pads itself
    before = [const(0) if pad else b for b, pad in zip(before, stated, strict=True)]
    rest = n.emit("max_pool_indices", wide, storage_order=0, skips_nan=True, **window)
    total: Value | None = None
    axes = range(x.type.rank - 2)
    for k in reversed(axes):
        extent, spacing = _number(n, wide.shape[2 + k]), n.constant(window["dilations"][k], i64)
        at = n.emit("sub", n.emit("mod", rest, extent), _number(n, before[k]))
        rest = n.emit("truncdiv", rest, extent)
        outside = n.emit("max", n.emit("neg", at), n.constant(0, i64))
        taps = n.emit("truncdiv", n.emit("add", outside, n.constant(window["dilations"][k] - 1, i64)), spacing)
        at = n.emit("add", at, n.emit("mul", taps, spacing))
        inner = x.shape[2 : 2 + k] if storage else x.shape[3 + k :]
        at = n.emit("mul", at, _number(n, product(inner)))
        total = at if total is None else n.emit("add", total, at)
    planes = n.emit("mul", rest, _number(n, product(x.shape[2:])))
    return planes if total is None else n.emit("add", planes, total)


def _number(n: Call, size: Expr) -> Value:
    return n.symbols([size], i64, ())


@rule("AveragePool")
def average_pool(n: Call) -> Value:
    return averaged(n, n.value(0))


def averaged(n: Call, x: Value) -> Value:
    """The means of windows, over the elements alone or over padding as well (`count_include_pad`)."""
    wide, window = _window(n, x)
    everything = bool(n.integer("count_include_pad", 0))
    if wide is x or everything:
        return n.emit("avg_pool", wide, count_include_pad=everything, **window)
    t = x.dtype if x.dtype in (f32, f64) else f32
    ones = n.emit("broadcast", n.constant(1.0, t), shape=(const(1), const(1), *x.shape[2:]))
    ones, _ = _window(n, ones)
    total, share = (n.emit("avg_pool", v, count_include_pad=True, **window) for v in (n.cast(wide, t), ones))
    least = 0.5 / math.prod(window["kernel"])
    return n.cast(n.emit("div", total, n.emit("max", share, n.constant(least, t))), x.dtype)


@rule("LpPool")
def lp_pool(n: Call) -> Value:
    x, window = _window(n, n.value(0))
    return n.emit("lp_pool", x, p=int(n.real("p", 2)), **window)


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: Call) -> Value:
    op = "reduce_mean" if n.node.op_type == "GlobalAveragePool" else "reduce_max"
    return n.emit(op, n.value(0), axes=_spatial(n), keepdims=True)


def _spatial(n: Call) -> tuple[int, ...]:
    if n.rank(0) < 3:
        raise ShapeError("pooling needs spatial dimensions", got=n.type(0))
    return tuple(range(2, n.rank(0)))


@rule("GlobalLpPool")
def global_lp_pool(n: Call) -> Value:
    x = n.emit("abs", n.value(0))
    p = n.real("p", 2)
    powered = n.emit("pow", x, n.like(p, x))
    total = n.emit("reduce_sum", powered, axes=_spatial(n), keepdims=True)
    return n.emit("pow", total, n.like(1 / p, total))
