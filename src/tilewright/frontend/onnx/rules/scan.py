"""Rules for cumulative operators, top k, and scatters."""

from __future__ import annotations

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import i64
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import ModelError


@rule("CumSum", "CumProd")
def cumulative(n: Call) -> Value:
    op = "cumsum" if n.node.op_type == "CumSum" else "cumprod"
    x, exclusive, reverse = n.value(0), bool(n.integer("exclusive", 0)), bool(n.integer("reverse", 0))

    def along(axis: int) -> Value:
        return n.emit(op, x, axis=axis, exclusive=exclusive, reverse=reverse)

    if n.is_data(1) and x.type.rank <= FEW_AXES:
        return _chosen(n, n.reshape(n.cast(n.value(1), i64), ()), [along(k) for k in range(x.type.rank)])
    axis = n.number(1, "the axis of a cumulative operator")
    if axis is None:
        raise ModelError("the axis is missing")
    return along(axis_of(int(axis), x.type.rank))


FEW_AXES = 3
"""Axes up to which all are computed where data says which is wanted."""


def _chosen(n: Call, axis: Value, results: list[Value]) -> Value:
    """The result along an axis that data decides, which may count from the end."""
    found = results[0]
    for k, result in enumerate(results[1:], start=1):
        here = n.emit("eq", axis, n.constant(k, i64))
        here = n.emit("or", here, n.emit("eq", axis, n.constant(k - len(results), i64)))
        found = n.emit("select", here, result, found)
    return found


@rule("TopK")
def topk(n: Call) -> list[Value]:
    k = n.integer("k", None) if n.opset < 10 else (n.elements(1, "k of TopK") or [None])[0]
    if k is None:
        raise ModelError("k is missing")
    n.integer("sorted", 1)
    x = n.value(0)
    axis, largest = axis_of(n.integer("axis", -1), n.rank(0)), bool(n.integer("largest", 1))
    if not isinstance(k, Value):
        return list(n.emit_all("topk", x, axis=axis, k=k, largest=largest))
    extent = x.shape[axis]
    found = n.emit_all("topk", x, axis=axis, k=extent, largest=largest)
    within = n.emit("min", k, n.symbols([extent], i64, ()))
    count = n.bounded(within, extent)
    return [n.slice(v, axis, 0, count) for v in found]


@rule("ScatterElements", "Scatter")
def scatter_elements(n: Call) -> Value:
    return n.emit(
        "scatter_elements",
        n.value(0),
        n.value(1),
        n.value(2),
        axis=axis_of(n.integer("axis", 0), n.rank(0)),
        reduction=n.text("reduction", "none"),
    )


@rule("ScatterND")
def scatter_nd(n: Call) -> Value:
    return n.emit("scatter_nd", n.value(0), n.value(1), n.value(2), reduction=n.text("reduction", "none"))
