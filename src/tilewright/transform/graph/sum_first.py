"""Sum rows before the linear layers that are applied to them.

    y = mean(x + h w + b) over rows     ->     y = mean(x) + mean(h) w + b

A classifier that averages its tokens applies its last linear layer to each of them. Applied to their mean, the layer
gives the same result up to rounding. If this is done before a graph is differentiated, two products of the backward
pass get smaller too: all rows have the same gradient, and one row of it is multiplied.
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
"""The number of columns from which on a product is more work than summing its factor."""


def sum_rows_first(graph: Graph) -> Graph:
    """The graph in which sums and means over rows are taken before linear layers, if nothing else reads the rows."""
    return rewrite(graph, [Rule(op(SUMS, "x"), _summed)])


def _summed(m: Match) -> Value | None:
    rows, x = _Rows(m.node, m.rewriter), m["x"]
    if not rows.reaches_product(x, m.node):
        return None
    y = rows.summed(x, m.node)
    return y if m.node.of(ReduceAttrs).keepdims else m.emit("reshape", y, shape=dims(m.node.output.shape))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The nodes that compute the rows which the reduction `total` sums, and the rewriter that emits their sums."""

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
        """(node, positions of inputs): the node that computes `value`, if it is linear in the summed rows and nothing
        else reads it, and the inputs through which rows reach it. None otherwise."""
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
        """Emit the sum of a value's rows, kept as dimensions of 1, before the earliest product that allows it."""
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
        """Emit `value * count`: a value that is added to each of `count` rows counts so many times in their sum.
        Neither may be None."""
        assert value is not None and count is not None
        number = self.rewriter.emit("constant", value=np.asarray(count, value.dtype.numpy))
        return self.rewriter.emit("mul", value, number)


def _axes(total: Node, value: Value) -> tuple[int, ...]:
    """The axes along which `total` sums, as axes of `value`, which may have fewer leading dimensions."""
    (whole,) = (v.type.rank for v in total.inputs if v is not None)
    return tuple(sorted(axis % whole - whole + value.type.rank for axis in total.of(ReduceAttrs).axes))


def _count(value: Value, axes: tuple[int, ...]) -> int | None:
    """The number of rows that a sum over `axes` adds; None if it is not known."""
    sizes = [as_int(value.shape[axis]) for axis in axes]
    return None if None in sizes else prod(size or 0 for size in sizes)


def _varying(node: Node, axes: tuple[int, ...]) -> list[bool | None]:
    """For each operand whether it varies along the summed axes (counted from the last dimension), rather than being
    broadcast; None if it varies along some of them only."""
    links = [parallel(node)[axis] for axis in axes]
    kinds: list[bool | None] = []
    for k, operand in enumerate(node.inputs):
        shift = node.output.type.rank - (0 if operand is None else operand.type.rank)
        own = tuple(axis - shift for axis in axes)
        along = tuple(-1 if link is None else link[k] for link in links)
        kinds.append({own: True, (None,) * len(axes): False}.get(along))
    return kinds
