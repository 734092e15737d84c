"""Rows are summed before the linear layers that they go through.

    y = mean(x + h w + b) over rows     ->     y = mean(x) + mean(h) w + b

A classifier that takes the mean over its tokens applies its last linear layer to each of them; applied to their mean,
the layer gives the same but for the order of sums. Before a graph is differentiated this spares the backward pass two
products as well: every row gets the same gradient, of which one row is multiplied.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.axes import parallel
from tilewright.ops.dims import dims
from tilewright.ops.reduce import ReduceAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rewriter, Rule, rewrite

SUMS = ("reduce_mean", "reduce_sum")
SHORT_COLUMNS = 8
"""A product of fewer is about as much work as a sum of what it multiplies."""


def sum_rows_first(graph: Graph) -> Graph:
    """The graph with sums and means over rows of linear layers taken before these, where nothing else reads the
    rows."""
    return rewrite(graph, [Rule(op(SUMS, "x"), _summed)])


def _summed(m: Match) -> Value | None:
    rows, x = _Rows(m.node, m.rewriter), m["x"]
    if not rows.reaches_product(x, m.node):
        return None
    y = rows.summed(x, m.node)
    return y if m.node.of(ReduceAttrs).keepdims else m.emit("reshape", y, shape=dims(m.node.output.shape))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that the node `total` sums: the nodes that compute them, and their sums there."""

    total: Node
    rewriter: Rewriter

    def reaches_product(self, value: Value | None, reader: Node) -> bool:
        """Whether the sum of a value that `reader` reads may be taken before a product with enough columns."""
        through = self.through(value, reader)
        if through is None:
            return False
        node, places = through
        if node.op == "matmul":
            columns = as_int(node.output.shape[-1])
            return columns is None or columns >= SHORT_COLUMNS
        return any(self.reaches_product(node.inputs[k], node) for k in places)

    def through(self, value: Value | None, reader: Node) -> tuple[Node, tuple[int, ...]] | None:
        """The node that makes a value, where it is linear in the rows that are summed and nothing else reads it, and
        through which of its inputs they come."""
        node = self.rewriter.producer(value, "matmul", "add", "sub", "mul", "div")
        if value is None or node is None or None in node.inputs or not value.dtype.is_float or value.dtype.bits < 32:
            return None
        if self.rewriter.only_reader(value) != reader or reader.inputs.count(value) > 1:
            return None
        axes = _axes(self.total, value)
        kinds = _varying(node, axes)
        places = tuple(k for k, varies in enumerate(kinds) if varies)
        if None in kinds or not places:
            return None
        if node.op in ("add", "sub"):
            known = self.total.op == "reduce_mean" or len(places) == 2 or _count(value, axes) is not None
            return (node, places) if known else None
        return (node, places) if places == (0,) or (node.op == "mul" and places == (1,)) else None

    def summed(self, value: Value | None, reader: Node) -> Value:
        """The sum of a value's rows, with dimensions of one in their place, made as early as products want it."""
        assert value is not None
        axes = _axes(self.total, value)
        through = self.through(value, reader) if self.reaches_product(value, reader) else None
        if through is None:
            return self.rewriter.emit(self.total.op, value, axes=axes, keepdims=True)
        node, places = through
        inputs = [self.summed(v, node) if k in places else v for k, v in enumerate(node.inputs)]
        if self.total.op == "reduce_sum" and node.op in ("add", "sub"):
            inputs = [v if k in places else self.times(v, _count(value, axes)) for k, v in enumerate(inputs)]
        return self.rewriter.emit(node.op, *inputs, attrs=node.attrs)

    def times(self, value: Value | None, count: int | None) -> Value:
        """A value times a number of rows: its share of their sum."""
        assert value is not None and count is not None
        number = self.rewriter.emit("constant", value=np.asarray(count, value.dtype.numpy))
        return self.rewriter.emit("mul", value, number)


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
