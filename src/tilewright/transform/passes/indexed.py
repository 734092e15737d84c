"""Turn scatters and gathers of elements whose index is repeated along the last axes into those of rows.

    i = broadcast(r) [E, F] of r [E, 1]
    y = scatter_elements(x, i, u) {axis = 0}     ->     y = scatter_nd(x, r, u)
    z = gather_elements(x, i) {axis = 0}         ->     z = gather(x, r)

A row is moved or added in vectors, and its index is read once. Graph networks consist of such operators: `index_add`,
`scatter_add` with an expanded index, their gradients. For axes before the indexed one, positions are put in front of
the index.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.expr import Expr, as_int, is_const, product
from tilewright.ir.graph import Graph, Value
from tilewright.ops.dims import axis_of, dims, same_shape
from tilewright.ops.index import AxisAttrs, GatherNdAttrs
from tilewright.ops.scatter import ScatterAttrs, ScatterElementsAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite


def index_rows(graph: Graph) -> Graph:
    """The graph with scatters and gathers of rows wherever an index is the same for all elements of a row."""
    return rewrite(graph, [Rule(op(("scatter_elements", "gather_elements"), "x", "index"), _of_rows)])


PASS = GraphPass("index rows", lambda graph, _: index_rows(graph), ("before", "move quantised"))


def _of_rows(m: Match) -> Value | None:
    """Emit a scatter or gather of rows in place of one of elements; None if indices differ within rows."""
    node, x, index, gathers = m.node, m["x"], m["index"], m.node.op == "gather_elements"
    axis = axis_of(node.of(AxisAttrs).axis if gathers else node.of(ScatterElementsAttrs).axis, x.type.rank)
    after, before = index.shape[axis + 1 :], index.shape[:axis]
    if is_const(product(after), 1) or not same_shape(after, x.shape[axis + 1 :]):
        return None
    if not same_shape(before, x.shape[:axis]) if gathers else any(as_int(d) is None for d in before):
        return None
    rows = _rows(m, index, axis + 1)
    if rows is None:
        return None
    if not gathers:
        attrs = ScatterAttrs(node.of(ScatterElementsAttrs).reduction)
        return m.emit("scatter_nd", x, _placed(m, rows, index.shape[: axis + 1]), node.inputs[2], attrs=attrs)
    if axis == 0 or rows.type.rank <= 1 or is_const(product(rows.shape[:-1]), 1):
        places = _spread(m, _reshaped(m, rows, [rows.type.size]), [index.shape[axis]])
        return m.emit("gather", x, places, attrs=AxisAttrs(axis))
    places = _reshaped(m, _spread(m, rows, index.shape[: axis + 1]), [*index.shape[: axis + 1], 1])
    return m.emit("gather_nd", x, places, attrs=GatherNdAttrs(axis))


def _rows(m: Match, index: Value, retained: int) -> Value | None:
    """The index without its dimensions after the first `retained`, along which it must be the same; leading dimensions
    may be absent too. None if it differs within rows."""
    node = m.rewriter.producer(index)
    if node is None:
        return None
    source = node.inputs[0] if node.inputs else None
    if node.op == "constant":
        array = np.asarray(node.of(ConstantAttrs).value.array)
        if not array.size:
            return None
        each = array.reshape(*array.shape[:retained], -1)
        first = each[..., :1]
        if not (each == first).all():
            return None
        return m.emit("constant", value=first.reshape(array.shape[:retained]), name=index.name)
    if node.op == "cast" and source is not None:
        rows = _rows(m, source, retained)
        return None if rows is None else m.emit("cast", rows, attrs=node.attrs, name=index.name)
    if node.op != "broadcast" or source is None:
        return None
    more = index.type.rank - retained
    if source.type.rank < more or any(as_int(d) != 1 for d in source.shape[source.type.rank - more :]):
        return None
    return _reshaped(m, source, source.shape[: source.type.rank - more])


def _placed(m: Match, rows: Value, shape: Sequence[Expr]) -> Value:
    """Emit the indices of rows, [*shape, len(shape)]: on each axis but the last the position itself, on the last axis
    the number in `rows`."""
    parts = [_reshaped(m, _spread(m, rows, shape), [*shape, 1])]
    for k in reversed(range(len(shape) - 1)):
        extent = as_int(shape[k]) or 0
        numbers = np.arange(extent, dtype=rows.dtype.numpy).reshape([-1 if j == k else 1 for j in range(len(shape))])
        position = m.emit("constant", value=numbers, name="position")
        parts.insert(0, _reshaped(m, _spread(m, position, shape), [*shape, 1]))
    return parts[0] if len(parts) == 1 else m.emit("concat", *parts, axis=len(shape), name="places")


def _spread(m: Match, x: Value, shape: Sequence[Expr]) -> Value:
    if same_shape(x.shape, tuple(shape)):
        return x
    return m.emit("broadcast", x, shape=dims(shape), name="spread")


def _reshaped(m: Match, x: Value, shape: Sequence[Expr | int]) -> Value:
    return m.emit("reshape", x, shape=dims(shape), name="rows")
