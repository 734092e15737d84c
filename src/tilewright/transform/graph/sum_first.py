"""Rows are summed before the linear layers that they go through.

    y = mean(x + h w + b) over rows     ->     y = mean(x) + mean(h) w + b

A classifier that takes the mean over its tokens applies its last linear layer to each of them; applied to their mean,
the layer gives the same but for the order of sums. Before a graph is differentiated this spares the way back two
products as well: every row gets the same gradient, of which one row is multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.axes import parallel
from tilewright.ops.dims import dims
from tilewright.ops.reduce import ReduceAttrs
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.regions.captures import builder_for

SUMS = ("reduce_mean", "reduce_sum")
FEW_COLUMNS = 8
"""A product of fewer is about as much work as a sum of what it multiplies."""


def sum_rows_first(graph: Graph) -> Graph:
    """The graph with sums and means over rows of linear layers taken before these, where nothing else reads the
    rows."""
    walker = _Walker(graph)
    results = [n for n in graph.nodes if n.op in SUMS and walker.reaches_product(n, n.inputs[0], n)]
    if not results:
        return graph
    walker.builder = builder = builder_for(graph)
    for node in graph.nodes:
        if node not in results:
            builder.nodes.append(node)
            continue
        y = walker.summed(node, node.inputs[0], node)
        if not node.of(ReduceAttrs).keepdims:
            ops.emit1(builder, "reshape", y, shape=dims(node.output.shape))
        builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
    return eliminate_dead(replace(graph, nodes=tuple(builder.nodes)))


class _Walker:
    """Goes from a sum toward what its rows are made of, and makes the sums there."""

    def __init__(self, graph: Graph) -> None:
        self.made = {v: n for n in graph.nodes for v in n.outputs}
        self.users = graph.consumers()
        self.outputs = set(graph.outputs)
        self.builder = GraphBuilder(graph.name)

    def reaches_product(self, total: Node, value: Value | None, reader: Node) -> bool:
        """Whether the sum `total` of a value that `reader` reads may be made before a product with enough columns."""
        through = self.through(total, value, reader)
        if through is None:
            return False
        node, places = through
        if node.op == "matmul":
            columns = as_int(node.output.shape[-1])
            return columns is None or columns >= FEW_COLUMNS
        return any(self.reaches_product(total, node.inputs[k], node) for k in places)

    def through(self, total: Node, value: Value | None, reader: Node) -> tuple[Node, tuple[int, ...]] | None:
        """The node that makes a value, where it is linear in the rows that are summed and nothing else reads it, and
        through which of its inputs they come."""
        node = None if value is None else self.made.get(value)
        if value is None or node is None or not value.dtype.is_float or value.dtype.bits < 32:
            return None
        if value in self.outputs or self.users.get(value) != [reader] or reader.inputs.count(value) > 1:
            return None
        axes = _axes(total, value)
        if node.op not in ("matmul", "add", "sub", "mul", "div") or None in node.inputs:
            return None
        kinds = _varying(node, axes)
        places = tuple(k for k, varies in enumerate(kinds) if varies)
        if None in kinds or not places:
            return None
        if node.op in ("add", "sub"):
            known = total.op == "reduce_mean" or len(places) == 2 or _count(value, axes) is not None
            return (node, places) if known else None
        return (node, places) if places == (0,) or (node.op == "mul" and places == (1,)) else None

    def summed(self, total: Node, value: Value | None, reader: Node) -> Value:
        """The sum of a value's rows, with dimensions of one in their place, made as early as products want it."""
        assert value is not None
        axes = _axes(total, value)
        through = self.through(total, value, reader) if self.reaches_product(total, value, reader) else None
        if through is None:
            return ops.emit1(self.builder, total.op, value, axes=axes, keepdims=True)
        node, places = through
        inputs = [self.summed(total, v, node) if k in places else v for k, v in enumerate(node.inputs)]
        if total.op == "reduce_sum" and node.op in ("add", "sub"):
            inputs = [v if k in places else self.times(v, _count(value, axes)) for k, v in enumerate(inputs)]
        return ops.emit1(self.builder, node.op, *inputs, attrs=node.attrs)

    def times(self, value: Value | None, count: int | None) -> Value:
        """A value times a number of rows: its share of their sum."""
        assert value is not None and count is not None
        number = ops.emit1(self.builder, "constant", value=np.asarray(count, value.dtype.numpy))
        return ops.emit1(self.builder, "mul", value, number)


def _axes(total: Node, value: Value) -> tuple[int, ...]:
    """The axes of a sum in what it is made of, which may have fewer dimensions: they are counted from the last one."""
    (whole,) = (v.type.rank for v in total.inputs if v is not None)
    return tuple(sorted(axis % whole - whole + value.type.rank for axis in total.of(ReduceAttrs).axes))


def _count(value: Value, axes: tuple[int, ...]) -> int | None:
    """How many rows are summed, if that is known."""
    sizes = [as_int(value.shape[axis]) for axis in axes]
    return None if None in sizes else prod(size or 0 for size in sizes)


def _varying(node: Node, axes: tuple[int, ...]) -> list[bool | None]:
    """For each operand whether it has rows of its own along the axes, which are its own counted from the last one;
    None if along some of them only."""
    links = [parallel(node)[axis] for axis in axes]
    kinds: list[bool | None] = []
    for k, operand in enumerate(node.inputs):
        shift = node.output.type.rank - (0 if operand is None else operand.type.rank)
        own = tuple(axis - shift for axis in axes)
        along = tuple(-1 if link is None else link[k] for link in links)
        kinds.append({own: True, (None,) * len(axes): False}.get(along))
    return kinds
