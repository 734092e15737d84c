"""Maxima and means over large windows dimension by dimension: a box is separable.

    y = max_pool(x, kernel=5x5)      ->      t = max_pool(x, kernel=5x1)
                                             y = max_pool(t, kernel=1x5)

25 elements are read for each one of y, or 5 and, at distances of the stride, 5 of t. The outermost dimension goes
first, over whole lines in vectors; the innermost, whose windows overlap or skip lanes, has the fewest elements left
then. Where windows begin more than two elements apart no vector follows a line, and most of the gain is in the
dimensions before.

A mean is the mean of means, also where padding does not count: how many elements do is a product over the dimensions.
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
"""The cost of a vector that one kernel writes and the next one reads, in vectors read."""
LARGE = {"max_pool": 1.12, "avg_pool": 1.3}
"""How many times as long reading the whole window must take, not to be cheaper in fact: a maximum is several operations
for each element that is read, a sum is one."""
SYMBOLIC_LARGE = 1.05
"""`LARGE` for maps of any size, of whose windows each tap is tested for more (means of 3x3, stride 2, at 35 pixels: 7.4
us by dimension, 10 otherwise; of 2x2 at 33 pixels 4.7 and 3.3; Zen 4, 28 November 2026)."""
FOLLOWED = 2
"""Elements between the windows of a line up to which vectors go along the line (`plans/rows/stages.py`)."""


def separate_pooling(graph: Graph, target: Target) -> Graph:
    """The graph with maxima and means over large windows as one pooling for each dimension. Blocks of channels are a
    last dimension without windows by now."""
    return rewrite(graph, [Rule(op(tuple(LARGE), "x"), partial(_separated, target))])


PASS = GraphPass("separate pooling", separate_pooling, ("after", "assign layouts"), lambda target: target.gpu is None)


def _separated(target: Target, m: Match) -> Value | None:
    """One pooling for each dimension; the last one gives the result."""
    if not _pays(m.node, target):
        return None
    x = m["x"]
    for _, attrs in _parts(m.node.of(PoolAttrs)):
        x = m.emit(m.node.op, x, attrs=attrs)
    return x


def _pays(node: Node, target: Target) -> bool:
    """Whether separate dimensions read and pass on in less time than the whole window takes."""
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
    """How many times as long the whole window takes as separate dimensions, where symbols have these values."""
    parts = _parts(attrs)
    whole = _cycles(attrs, _extents(node, len(attrs.kernel), numbers), node, target)
    separate = sum(_cycles(part, _extents(node, k + 1, numbers), node, target) for k, part in parts)
    passed = sum(prod(_extents(node, k + 1, numbers)) * PASSED / target.lanes(_size(node)) for k, _ in parts[:-1])
    return whole / (separate + passed)


def _parts(attrs: PoolAttrs) -> list[tuple[int, PoolAttrs]]:
    """The dimensions with a window, or with strides or padding, and the pooling of each."""
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
    """About how long a pooling takes to results of these extents, in reads of a vector: line by line in vectors, or
    element by element where windows are distant."""
    lanes = target.lanes(_size(node))
    *outer, line = extents
    taps, step = prod(attrs.kernel), attrs.strides[-1]
    if step <= FOLLOWED and line > 1:
        return prod(outer) * ceil(line / lanes) * taps * step
    return prod(extents) * taps * target.costs.arithmetic.window_element


def _extents(node: Node, done: int, numbers: Numbers) -> list[int]:
    """Extents where the first `done` spatial dimensions have been pooled and the others have not; all others count."""
    (x, *_), y = node.inputs, node.output
    assert x is not None
    return [where(extent, numbers) for extent in (*y.shape[: 2 + done], *x.shape[2 + done :])]


def _size(node: Node) -> int:
    return max(4, node.output.dtype.itemsize)
