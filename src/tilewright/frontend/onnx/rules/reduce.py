"""Rules for reductions."""

from __future__ import annotations

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import f32
from tilewright.ir.graph import Value
from tilewright.ops.dims import axes_of, axis_of

# The opset from which the axes are an input.
_AXES_AS_INPUT = {"ReduceSum": 13}
_PLAIN = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
}


def _axes(n: Call) -> tuple[int, ...] | None:
    """The reduced axes, all of them by default; None when nothing is reduced."""
    if n.opset >= _AXES_AS_INPUT.get(n.node.op_type, 18):
        chosen = n.integers(1, "the axes of a reduction")
        if not chosen and n.integer("noop_with_empty_axes", 0):
            return None
    else:
        chosen = n.ints("axes")
    n.attr("noop_with_empty_axes")
    return axes_of(chosen, n.rank(0)) if chosen else tuple(range(n.rank(0)))


@rule(*_PLAIN)
def plain(n: Call) -> Value:
    axes, keepdims = _axes(n), bool(n.integer("keepdims", 1))
    if not axes:
        return n.emit("identity", n.value(0))
    return n.emit(_PLAIN[n.node.op_type], n.value(0), axes=axes, keepdims=keepdims)


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
def transformed(n: Call) -> Value:
    """A sum with something pointwise before or after it."""
    x = n.value(0)
    axes, keepdims = _axes(n), bool(n.integer("keepdims", 1))
    kind = n.node.op_type
    if kind == "ReduceL1":
        x = n.emit("abs", x)
    elif kind != "ReduceLogSum":
        x = n.emit("mul", x, x)
    if axes:
        x = n.emit("reduce_sum", x, axes=axes, keepdims=keepdims)
    if kind in ("ReduceL2", "ReduceLogSum"):
        work = x if x.dtype.is_float else n.cast(x, f32)
        x = n.cast(n.emit("sqrt" if kind == "ReduceL2" else "log", work), x.dtype)
    return x


@rule("ReduceLogSumExp")
def log_sum_exp(n: Call) -> Value:
    """log(sum(exp(x - max))) + max; a maximum that is not finite is not subtracted."""
    given = n.dtype(0)
    x = n.value(0) if given.is_float else n.cast(n.value(0), f32)
    axes, keepdims = _axes(n), bool(n.integer("keepdims", 1))
    if not axes:
        return n.emit("identity", n.value(0))
    top = n.emit("reduce_max", x, axes=axes, keepdims=True)
    infinite = n.emit("detect_inf", top)
    top = n.emit("select", infinite, n.like(0.0, top), top)
    total = n.emit("reduce_sum", n.emit("exp", n.emit("sub", x, top)), axes=axes, keepdims=True)
    result = n.emit("add", n.emit("log", total), top)
    if not keepdims:
        result = n.reshape(result, [d for k, d in enumerate(result.shape) if k not in axes])
    return n.cast(result, given)


@rule("ArgMax", "ArgMin")
def arg(n: Call) -> Value:
    axis = axis_of(n.integer("axis", 0), n.rank(0))
    return n.emit(
        "argmax" if n.node.op_type == "ArgMax" else "argmin",
        n.value(0),
        axis=axis,
        keepdims=bool(n.integer("keepdims", 1)),
        select_last_index=bool(n.integer("select_last_index", 0)),
    )
