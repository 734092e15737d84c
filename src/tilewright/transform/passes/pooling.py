"""Split maxima and means over large windows into one pooling per dimension: a box filter is separable.

    y = max_pool(x, kernel=5x5)      ->      t = max_pool(x, kernel=5x1)
                                             y = max_pool(t, kernel=1x5)

Each element of y reads 25 elements on the left, 5 and 5 on the right. The outermost dimension is pooled first, over
whole lines in vectors; the innermost, whose windows overlap or skip lanes, then has the fewest elements left. If
windows are more than two elements apart, vectors cannot run along a line, and most of the gain is in the dimensions
before.

A mean is the mean of means, even if padding does not count: the number of counted elements is a product over
dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod

from tilewright.ir.expr import Expr, Var
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.dims import accumulator
from tilewright.ops.pool import PoolAttrs
from tilewright.plans.framework.symbolic import instances_of, where
from tilewright.targets.target import Target
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

Numbers = Mapping[Var, Expr]

PASSED = 2.0
"""The cost of writing a vector of the first pooling's result and reading it in the next one, relative to that of
reading a vector of the input."""
LARGE = {"max_pool": 1.12, "avg_pool": 1.3}
"""The least ratio of the estimated time of one pooling over the whole window to that of one pooling for each dimension
at which it is divided so: a maximum is several operations for each element that is read, a sum is one."""
SYMBOLIC_LARGE = 1.05
"""`LARGE` for maps of symbolic size, where each tap of a window needs more tests (means of 3x3, stride 2, at 35 pixels:
7.4 us by dimension, 10 otherwise; of 2x2 at 33 pixels 4.7 and 3.3; Zen 4, 28 November 2026)."""
FOLLOWED = 2
"""The largest stride along a row with which vectors run along the row (`plans/rows/stages.py`)."""


def separate_pooling(graph: Graph, target: Target) -> Graph:
    """The graph with maxima and means over large windows as one pooling for each dimension. At this point blocks of
    channels are a last dimension without windows."""
    return rewrite(graph, [Rule(op(tuple(LARGE), "x"), partial(_separated, target))])


PASS = GraphPass("separate pooling", separate_pooling, ("after", "assign layouts"), lambda target: target.gpu is None)


def _separated(target: Target, m: Match) -> Value | None:
    """Emit one pooling per dimension and return the last result; None if that does not pay."""
    if not _pays(m.node, target):
        return None
    x = m["x"]
    for _, attrs in _parts(m.node.of(PoolAttrs)):
        x = m.emit(m.node.op, x, attrs=attrs)
    return x


def _pays(node: Node, target: Target) -> bool:
    """Whether the estimate for separate dimensions, their intermediate results included, is below that of the whole
    window."""
    if node.op == "avg_pool" and accumulator(node.output.dtype) is not node.output.dtype:
        return False  # what stands between would be rounded
    attrs = node.of(PoolAttrs)
    if len(_parts(attrs)) < 2:
        return False
    (x, *_), y = node.inputs, node.output
    assert x is not None
    sizes = instances_of((*x.shape, *y.shape))
    least = LARGE[node.op] if sizes == ({},) else SYMBOLIC_LARGE
    return prod(_gain(attrs, node, numbers, target) for numbers in sizes) > least ** len(sizes)


def _gain(attrs: PoolAttrs, node: Node, numbers: Numbers, target: Target) -> float:
    """The estimated time of the whole window relative to that of separate dimensions, for these values of the
    symbols."""
    parts = _parts(attrs)
    whole = _cycles(attrs, _extents(node, len(attrs.kernel), numbers), node, target)
    separate = sum(_cycles(part, _extents(node, k + 1, numbers), node, target) for k, part in parts)
    passed = sum(prod(_extents(node, k + 1, numbers)) * PASSED / target.lanes(_size(node)) for k, _ in parts[:-1])
    return whole / (separate + passed)


def _parts(attrs: PoolAttrs) -> list[tuple[int, PoolAttrs]]:
    """The dimensions with windows, strides or padding, each with the attributes of its pooling."""
    rank, result = len(attrs.kernel), []
    for k in range(rank):
        kernel, strides, dilations = (
            tuple(size if j == k else 1 for j, size in enumerate(sizes))
            for sizes in (attrs.kernel, attrs.strides, attrs.dilations)
        )
        pads = tuple(size if j % rank == k else 0 for j, size in enumerate(attrs.pads))
        if kernel[k] > 1 or strides[k] > 1 or any(pads):
            own = replace(attrs, kernel=kernel, strides=strides, dilations=dilations, pads=pads)
            result.append((k, own))
    return result


def _cycles(attrs: PoolAttrs, extents: Sequence[int], node: Node, target: Target) -> float:
    """The estimated time, in reads of a vector, of a pooling with results of these extents: in vectors along rows, or
    element by element if the stride is large."""
    lanes = target.lanes(_size(node))
    *outer, line = extents
    taps, step = prod(attrs.kernel), attrs.strides[-1]
    if step <= FOLLOWED and line > 1:
        return prod(outer) * ceil(line / lanes) * taps * step
    return prod(extents) * taps * target.costs.arithmetic.window_element


def _extents(node: Node, done: int, numbers: Numbers) -> list[int]:
    """The extents after the first `done` spatial dimensions have been pooled, including batch and channels."""
    (x, *_), y = node.inputs, node.output
    assert x is not None
    return [where(extent, numbers) for extent in (*y.shape[: 2 + done], *x.shape[2 + done :])]


def _size(node: Node) -> int:
    return max(4, node.output.dtype.itemsize)
