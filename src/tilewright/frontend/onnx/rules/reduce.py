"""Rules for reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.common.axes import ReducedAxes, reduced_axes, with_all_axes
from tilewright.frontend.common.norm import root_of_squares
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.scope import Item
from tilewright.ir.dtype import DType, boolean, f32, u8
from tilewright.ir.expr import Expr, is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import UnsupportedError

# The opset from which the axes are an input.
_AXES_AS_INPUT = {"ReduceSum": 13}
_DIRECT = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
}


Axes = tuple[int, ...] | ReducedAxes | None


def _axes(n: Call) -> Axes:
    """The axes of a reduction, all of them by default: numbers, or `ReducedAxes` if each call computes them; None if
    nothing is reduced. It may replace the node's first input by a checked one, so rules read that input afterwards."""
    rank = n.rank(0)
    if n.opset < _AXES_AS_INPUT.get(n.node.op_type, 18):
        chosen = n.ints("axes")
        n.attr("noop_with_empty_axes")
        return _once(chosen, rank) if chosen else tuple(range(rank))
    result = [] if n.has(1) and is_const(n.type(1).size, 0) else n.elements(1, "the axes of a reduction")
    if not result:
        return None if n.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    n.attr("noop_with_empty_axes")
    if any(isinstance(a, Expr) for a in result):
        raise UnsupportedError("the axes of a reduction must be numbers, not symbols", got=result)
    if not any(isinstance(a, Value) for a in result):
        return _once(result, rank)
    if len(result) > rank:
        raise UnsupportedError("more axes than there are, some of them named twice, are not supported", got=len(result))
    if len(result) == rank:
        x = with_all_axes(n, n.value(0), result)
        n.items[0] = Item(x.type, x)
        return tuple(range(rank))
    return reduced_axes(n, n.value(0), result, once=not n.integer("keepdims", 1))


def _once(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes without repetitions: one that is named twice is reduced once, as in ONNX Runtime."""
    return tuple(sorted({axis_of(int(a), rank) for a in axes}))


def _reduced(n: Call, x: Value, kind: str, axes: tuple[int, ...] | ReducedAxes, keepdims: bool) -> Value:
    """`x` reduced over `axes` by `kind`: "sum", "mean", "max", "min" or "prod". Reduced dimensions stay with extent 1
    if `keepdims`."""
    if not isinstance(axes, ReducedAxes):
        return n.emit(f"reduce_{kind}", x, axes=axes, keepdims=keepdims)
    how, start = SCATTERED[kind]
    work = x if kind not in ("sum", "mean", "prod") or x.dtype.itemsize >= 4 else n.cast(x, f32)
    if isinstance(start, str):
        logical = x.dtype is boolean
        work = n.cast(x, u8) if logical else x
        start = _limit(work.dtype, start)
    total = axes.reduce(work, how, start)
    if kind == "mean":
        total = n.emit("div", total, axes.elements(total.dtype))
    return axes.shaped(n.cast(total, x.dtype), keepdims)


SCATTERED: dict[str, tuple[str, Any]] = {
    "sum": ("add", 0),
    "mean": ("add", 0),
    "prod": ("mul", 1),
    "max": ("max", "least"),
    "min": ("min", "largest"),
}
"""By reduction, the reduction of `scatter_elements` that computes it, and the initial value."""


def _limit(t: DType, which: str) -> Any:
    if t.is_float:
        return -math.inf if which == "least" else math.inf
    info = np.iinfo(t.numpy)
    return info.min if which == "least" else info.max


@rule(*_DIRECT)
def direct(n: Call) -> Value:
    axes, keepdims = _axes(n), bool(n.integer("keepdims", 1))
    if not axes:
        return n.emit("identity", n.value(0))
    return _reduced(n, n.value(0), _DIRECT[n.node.op_type], axes, keepdims)


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
def transformed(n: Call) -> Value:
    """ReduceL1, ReduceL2, ReduceSumSquare and ReduceLogSum: a sum with a pointwise function before or after it."""
    axes, keepdims = _axes(n), bool(n.integer("keepdims", 1))
    x = n.value(0)
    kind = n.node.op_type
    if kind == "ReduceL1":
        x = n.emit("abs", x)
    elif kind != "ReduceLogSum":
        x = n.emit("mul", x, x)
    if axes:
        x = _reduced(n, x, "sum", axes, keepdims)
    if kind in ("ReduceL2", "ReduceLogSum"):
        work = x if x.dtype.is_float else n.cast(x, f32)
        x = n.cast(root_of_squares(n, work) if kind == "ReduceL2" else n.emit("log", work), x.dtype)
    return x


@rule("ReduceLogSumExp")
def log_sum_exp(n: Call) -> Value:
    """log(sum(exp(x - max))) + max, where a maximum that is infinite or NaN is not subtracted."""
    dtype = n.dtype(0)
    axes, keepdims = _axes(n), bool(n.integer("keepdims", 1))
    x = n.value(0) if dtype.is_float else n.cast(n.value(0), f32)
    if not axes:
        return n.emit("identity", n.value(0))
    if isinstance(axes, ReducedAxes):
        top = _finite(n, axes.reduce(x, "max", -math.inf))
        powers = n.emit("exp", n.emit("sub", x, axes.spread(top)))
        result = n.emit("add", n.emit("log", axes.reduce(powers, "add", 0)), top)
        return n.cast(axes.shaped(result, keepdims), dtype)
    top = _finite(n, n.emit("reduce_max", x, axes=axes, keepdims=True))
    total = n.emit("reduce_sum", n.emit("exp", n.emit("sub", x, top)), axes=axes, keepdims=True)
    result = n.emit("add", n.emit("log", total), top)
    if not keepdims:
        result = n.reshape(result, [d for k, d in enumerate(result.shape) if k not in axes])
    return n.cast(result, dtype)


def _finite(n: Call, top: Value) -> Value:
    """`top`, a maximum, with 0 in place of infinities."""
    return n.emit("select", n.emit("detect_inf", top), n.like(0.0, top), top)


@rule("ArgMax", "ArgMin")
def arg(n: Call) -> Value:
    axis = axis_of(n.integer("axis", 0), n.rank(0))
    return n.emit(
        "argmax" if n.node.op_type == "ArgMax" else "argmin",
        n.nonempty(n.value(0), [axis]),
        axis=axis,
        keepdims=bool(n.integer("keepdims", 1)),
        select_last_index=bool(n.integer("select_last_index", 0)),
    )
