"""The maximum over a large window dimension by dimension: a box is separable.

    y = max_pool(x, kernel=5x5)      ->      t = max_pool(x, kernel=5x1)
                                             y = max_pool(t, kernel=1x5)

25 elements are compared for each one of y, or 5 and, strides apart, 5 of t. The outermost dimension goes first, over
whole lines in vectors; the innermost, whose windows overlap or skip lanes, has the fewest elements left then.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright import ops
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.pool import PoolAttrs
from tilewright.transform.regions.captures import names_of

PASSED = 2.0
"""What an element that one kernel writes and the next one reads costs, in elements compared."""
STRIDED = 4.0
"""What comparing every second element of a line costs where lanes go along the line, as over volumes. Images mostly
stand between convolutions, with channels in the lanes."""
VOLUME = 3
"""Spatial dimensions of a volume."""
LARGE = 1.3
"""How many times as many elements the whole window must compare, not to be dearer in fact."""


def separate_pooling(graph: Graph) -> Graph:
    """The graph with maxima over large windows as one pooling for each dimension."""
    if not any(_pays(node) for node in graph.nodes):
        return graph
    builder = GraphBuilder(graph.name, taken=names_of(graph))
    for node in graph.nodes:
        if _pays(node):
            _emit(node, builder)
            builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs))
        else:
            builder.nodes.append(node)
    return replace(graph, nodes=tuple(builder.nodes))


def _pays(node: Node) -> bool:
    """Whether the dimensions apart compare and pass on less than the whole window compares."""
    if node.op != "max_pool":
        return False
    attrs = node.of(PoolAttrs)
    *others, last = _dimensions(attrs) or [0]
    rank = len(attrs.kernel)
    each = STRIDED if rank == VOLUME and last == rank - 1 and attrs.strides[last] > 1 else 1.0
    apart = each * attrs.kernel[last]
    for k in others:
        elements = prod(attrs.strides[j] for j in range(k + 1, rank))
        apart += elements * (attrs.kernel[k] + PASSED)
    return bool(others) and each * prod(attrs.kernel) > LARGE * apart


def _dimensions(attrs: PoolAttrs) -> list[int]:
    return [k for k, size in enumerate(attrs.kernel) if size > 1]


def _emit(node: Node, builder: GraphBuilder) -> Value:
    """One pooling for each dimension with a window, or with strides or padding; the last one made gives the result."""
    attrs, (x,) = node.of(PoolAttrs), node.inputs
    assert x is not None
    rank = len(attrs.kernel)
    for k in range(rank):
        kernel, strides, dilations = (
            tuple(size if j == k else 1 for j, size in enumerate(sizes))
            for sizes in (attrs.kernel, attrs.strides, attrs.dilations)
        )
        pads = tuple(size if j % rank == k else 0 for j, size in enumerate(attrs.pads))
        if kernel[k] > 1 or strides[k] > 1 or any(pads):
            own = replace(attrs, kernel=kernel, strides=strides, dilations=dilations, pads=pads)
            x = ops.emit1(builder, "max_pool", x, attrs=own)
    return x


__all__ = ["separate_pooling"]
