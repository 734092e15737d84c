"""Rules for cumulative operators, top k, and scatters."""

from __future__ import annotations

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import ModelError


@rule("CumSum", "CumProd")
def cumulative(n: Call) -> Value:
    op = "cumsum" if n.node.op_type == "CumSum" else "cumprod"
    x, exclusive, reverse = n.value(0), bool(n.integer("exclusive", 0)), bool(n.integer("reverse", 0))

    def along(axis: int) -> Value:
        return n.emit(op, x, axis=axis, exclusive=exclusive, reverse=reverse)

    if n.is_data(1) and x.type.rank <= SHORT_AXES:
        return _chosen(n, n.value(1), [along(k) for k in range(x.type.rank)])
    axis = n.number(1, "the axis of a cumulative operator")
    if axis is None:
        raise ModelError("the axis is missing")
    return along(axis_of(int(axis), x.type.rank))


SHORT_AXES = 3
"""Up to this many axes, all results are computed and one is chosen, where data says along which axis."""


def _chosen(n: Call, axis: Value, results: list[Value]) -> Value:
    """The entry of `results`, which has one for each axis, that the scalar `axis` selects in each call; negative axes
    count from the end."""
    rank, what = len(results), "the axis is outside the tensor"
    if rank == 1:
        return n.within(axis, -1, 0, what, of=results[0])
    axis = n.within(axis, -rank, rank - 1, what)
    match = results[0]
    for k, result in enumerate(results[1:], start=1):
        here = n.emit("eq", axis, n.constant(k, i64))
        here = n.emit("or", here, n.emit("eq", axis, n.constant(k - len(results), i64)))
        match = n.emit("select", here, result, match)
    return match


@rule("TopK")
def topk(n: Call) -> list[Value]:
    specified = [n.integer("k", None)] if n.opset < 10 else n.elements(1, "k of TopK") or [None]
    if len(specified) != 1 or specified[0] is None:
        raise ModelError("k must be one number", got=specified)
    (k,) = specified
    n.integer("sorted", 1)
    x = n.value(0)
    axis, largest = axis_of(n.integer("axis", -1), n.rank(0)), bool(n.integer("largest", 1))
    if not isinstance(k, Value):
        return list(n.emit_all("topk", x, axis=axis, k=k, largest=largest))
    extent = x.shape[axis]
    result = n.emit_all("topk", x, axis=axis, k=extent, largest=largest)
    count = n.bounded(n.within(k, 0, extent, "k is outside the dimension"), extent)
    return [n.slice(v, axis, 0, count) for v in result]


def check_places(n: Call, batch: int = 0) -> None:
    """Check the known index vectors of GatherND or ScatterND against the dimensions that they index, after `batch`
    batch dimensions."""
    depth = as_int(n.shape(1)[-1]) if n.rank(1) else None
    for k, extent in enumerate(n.shape(0)[batch:][: depth or 0]):
        n.check_indices(1, extent, k)


@rule("ScatterElements", "Scatter")
def scatter_elements(n: Call) -> Value:
    axis = axis_of(n.integer("axis", 0), n.rank(0))
    n.check_indices(1, n.shape(0)[axis])
    operands = n.value(0), n.value(1), n.value(2)
    return n.emit("scatter_elements", *operands, axis=axis, reduction=n.text("reduction", "none"))


@rule("ScatterND")
def scatter_nd(n: Call) -> Value:
    check_places(n)
    return n.emit("scatter_nd", n.value(0), n.value(1), n.value(2), reduction=n.text("reduction", "none"))
