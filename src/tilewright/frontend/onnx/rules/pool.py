"""Rules for pooling."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.contraction import same_pads
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError, ShapeError


def _window(n: Call) -> dict[str, Any]:
    rank = n.rank(0) - 2
    kernel = n.ints("kernel_shape")
    if kernel is None or len(kernel) != rank:
        raise ModelError("attribute kernel_shape needs one entry for each spatial dimension", got=kernel)
    strides, dilations = n.ints("strides", [1] * rank) or [], n.ints("dilations", [1] * rank) or []
    if len(strides) != rank or len(dilations) != rank:
        raise ShapeError("strides and dilations need one entry for each spatial dimension", expected=rank)
    pads = same_pads(n, n.shape(0)[2:], kernel, strides, dilations)
    ceil = bool(n.integer("ceil_mode", 0))
    return {
        "kernel": tuple(kernel),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": tuple(pads),
        "ceil_mode": ceil,
    }


@rule("MaxPool")
def max_pool(n: Call) -> list[Value]:
    window = _window(n)
    x = n.value(0)
    storage = n.integer("storage_order", 0)
    results = [n.emit("max_pool", x, skips_nan=True, **window)]
    if n.outputs > 1:
        results.append(n.emit("max_pool_indices", x, storage_order=storage, skips_nan=True, **window))
    return results


@rule("AveragePool")
def average_pool(n: Call) -> Value:
    return n.emit("avg_pool", n.value(0), count_include_pad=bool(n.integer("count_include_pad", 0)), **_window(n))


@rule("LpPool")
def lp_pool(n: Call) -> Value:
    return n.emit("lp_pool", n.value(0), p=int(n.real("p", 2)), **_window(n))


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
