"""Scatters and gathers of elements whose index is repeated along the last axes, as ones of rows.

    i = broadcast(r) [E, F] of r [E, 1]
    y = scatter_elements(x, i, u) {axis = 0}     ->     y = scatter_nd(x, r, u)
    z = gather_elements(x, i) {axis = 0}         ->     z = gather(x, r)

A row is moved or added in vectors, its index read once. Graph networks are made of these: `index_add`, `scatter_add`
with an expanded index, their gradients. Axes before the indexed one are named by numbers in front of the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Expr, as_int, is_const, product
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.dims import axis_of, dims, same_shape
from tilewright.ops.index import AxisAttrs, GatherNdAttrs
from tilewright.ops.scatter import ScatterAttrs, ScatterElementsAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.transform.regions.captures import names_of


def index_rows(graph: Graph) -> Graph:
    """The graph with scatters and gathers of rows wherever an index is the same for all elements of one."""
    if all(node.op not in ("scatter_elements", "gather_elements") for node in graph.nodes):
        return graph
    return _Rewriter(graph).run()


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made = {v: n for n in graph.nodes for v in n.outputs}
        self.builder = GraphBuilder(graph.name, taken=names_of(graph))

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.builder.nodes.append(self.rewritten(node) or node)
        nodes = tuple(self.builder.nodes)
        return self.graph if nodes == self.graph.nodes else replace(self.graph, nodes=nodes)

    def rewritten(self, node: Node) -> Node | None:
        """A scatter or gather of rows in the place of one of elements; None where it is none."""
        if node.op not in ("scatter_elements", "gather_elements"):
            return None
        x, index = node.inputs[:2]
        assert x is not None and index is not None
        gathers = node.op == "gather_elements"
        axis = axis_of(node.of(AxisAttrs).axis if gathers else node.of(ScatterElementsAttrs).axis, x.type.rank)
        after = index.shape[axis + 1 :]
        if is_const(product(after), 1) or not same_shape(after, x.shape[axis + 1 :]):
            return None
        if gathers:
            return self.gathered(node, x, index, axis)
        if any(as_int(d) is None for d in index.shape[:axis]):
            return None
        rows = self.rows(index, axis + 1)
        if rows is None:
            return None
        places = self.placed(rows, index.shape[: axis + 1])
        attrs = ScatterAttrs(node.of(ScatterElementsAttrs).reduction)
        return self.node("scatter_nd", (x, places, node.inputs[2]), attrs, node)

    def gathered(self, node: Node, x: Value, index: Value, axis: int) -> Node | None:
        if not same_shape(index.shape[:axis], x.shape[:axis]):
            return None
        rows = self.rows(index, axis + 1)
        if rows is None:
            return None
        if axis == 0 or rows.type.rank <= 1 or is_const(product(rows.shape[:-1]), 1):
            places = self.spread(self.reshaped(rows, [rows.type.size]), [index.shape[axis]])
            return self.node("gather", (x, places), AxisAttrs(axis), node)
        places = self.reshaped(self.spread(rows, index.shape[: axis + 1]), [*index.shape[: axis + 1], 1])
        return self.node("gather_nd", (x, places), GatherNdAttrs(axis), node)

    def node(self, op: str, inputs: Sequence[Value | None], attrs: Attrs, instead: Node) -> Node:
        made = ops.emit1(self.builder, op, *inputs, name=instead.output.name, attrs=attrs)
        result = self.builder.nodes.pop()
        assert result.output is made and made.type == instead.output.type
        return replace(result, outputs=instead.outputs)

    def rows(self, index: Value, kept: int) -> Value | None:
        """The first `kept` dimensions of an index, or some last ones of these, if it is the same along the others."""
        node = self.made.get(index)
        if node is None:
            return None
        source = node.inputs[0] if node.inputs else None
        if node.op == "constant":
            array = np.asarray(node.of(ConstantAttrs).value.array)
            if not array.size:
                return None
            each = array.reshape(*array.shape[:kept], -1)
            first = each[..., :1]
            if not (each == first).all():
                return None
            return ops.emit1(self.builder, "constant", value=first.reshape(array.shape[:kept]), name=index.name)
        if node.op == "cast" and source is not None:
            rows = self.rows(source, kept)
            return None if rows is None else ops.emit1(self.builder, "cast", rows, attrs=node.attrs, name=index.name)
        if node.op != "broadcast" or source is None:
            return None
        more = index.type.rank - kept
        if source.type.rank < more or any(as_int(d) != 1 for d in source.shape[source.type.rank - more :]):
            return None
        return self.reshaped(source, source.shape[: source.type.rank - more])

    def placed(self, rows: Value, shape: Sequence[Expr]) -> Value:
        """An index [*shape, len(shape)] of places: positions on all axes but the last, where it is `rows`."""
        parts = [self.reshaped(self.spread(rows, shape), [*shape, 1])]
        for k in reversed(range(len(shape) - 1)):
            extent = as_int(shape[k]) or 0
            numbers = np.arange(extent, dtype=rows.dtype.numpy).reshape(
                [-1 if j == k else 1 for j in range(len(shape))]
            )
            position = ops.emit1(self.builder, "constant", value=numbers, name="position")
            parts.insert(0, self.reshaped(self.spread(position, shape), [*shape, 1]))
        return (
            parts[0] if len(parts) == 1 else ops.emit1(self.builder, "concat", *parts, axis=len(shape), name="places")
        )

    def spread(self, x: Value, shape: Sequence[Expr]) -> Value:
        if same_shape(x.shape, tuple(shape)):
            return x
        return ops.emit1(self.builder, "broadcast", x, shape=dims(shape), name="spread")

    def reshaped(self, x: Value, shape: Sequence[Expr | int]) -> Value:
        return ops.emit1(self.builder, "reshape", x, shape=dims(shape), name="rows")


__all__ = ["index_rows"]
