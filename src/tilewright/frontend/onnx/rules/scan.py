"""Rules for cumulative operators, top k, and scatters."""

from __future__ import annotations

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import ModelError


@rule("CumSum", "CumProd")
def cumulative(n: Call) -> Value:
    axis = n.number(1, "the axis of a cumulative operator")
    if axis is None:
        raise ModelError("the axis is missing")
    op = "cumsum" if n.node.op_type == "CumSum" else "cumprod"
    return n.emit(
        op,
        n.value(0),
        axis=axis_of(int(axis), n.rank(0)),
        exclusive=bool(n.integer("exclusive", 0)),
        reverse=bool(n.integer("reverse", 0)),
    )


@rule("TopK")
def topk(n: Call) -> list[Value]:
    k = n.integer("k", None) if n.opset < 10 else (n.dimensions(1, "k of TopK") or [None])[0]
    if k is None:
        raise ModelError("k is missing")
    n.integer("sorted", 1)
    axis = axis_of(n.integer("axis", -1), n.rank(0))
    return list(n.emit_all("topk", n.value(0), axis=axis, k=k, largest=bool(n.integer("largest", 1))))


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
