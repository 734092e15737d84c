"""Pointwise operators after a convolution of lines work on the map that it makes of them.

    m = conv(x', w'): [n, c, 1, l]                  m = conv(x', w')
    y = relu(reshape(m)): [n, c, l]           ->    t = relu(m)
    z = conv(reshape(y): [n, c, 1, l], v')          z = conv(t, v')

Importers state windows over lines by maps of one line (`conv1d`, and pooling). A reshape ends a kernel and a layout, so
that activations and norms between two such convolutions were kernels of their own, with a change of layout before and
after each. A reshape that gives a map back leaves nothing, and other readers have views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright import ops
from tilewright.ir.expr import Expr, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.support.classes import dataclass
from tilewright.transform.graph.canonical import canonicalise
from tilewright.transform.regions.captures import builder_for

WINDOWS = ("conv", "conv_transpose", "max_pool", "avg_pool")
"""Operators that make maps."""
MAP = 4
"""Dimensions of a map."""


@dataclass(frozen=True, slots=True)
class _Map:
    """The value with a dimension of one element in front of its last `following` ones."""

    value: Value
    following: int


def keep_maps(graph: Graph) -> Graph:
    """The graph with pointwise operators on maps instead of on lines."""
    builder = builder_for(graph)
    produced: set[Value] = set()
    maps: dict[Value, _Map] = {}
    moved = False
    for node in graph.nodes:
        whole = _of_maps(node, maps, builder)
        if whole is not None:
            maps[node.output], moved = whole, True
            ops.emit1(builder, "reshape", whole.value, shape=node.output.shape)
            builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs))
            continue
        builder.nodes.append(node)
        if node.op in WINDOWS or (ops.is_pointwise(node) and not produced.isdisjoint(node.inputs)):
            produced |= {v for v in node.outputs if v.type.rank == MAP}
        elif node.op == "reshape" and node.inputs[0] in produced and (result := _lines(node.inputs[0], node.output)):
            maps[node.output] = result
    return canonicalise(replace(graph, nodes=tuple(builder.nodes))) if moved else graph


def _lines(whole: Value | None, lines: Value) -> _Map | None:
    """A map of which another value leaves out a side of one element."""
    if whole is None:
        return None
    for at in range(MAP - 2, MAP):
        if is_const(whole.shape[at], 1) and (*whole.shape[:at], *whole.shape[at + 1 :]) == lines.shape:
            return _Map(whole, MAP - 1 - at)
    return None


def _of_maps(node: Node, maps: Mapping[Value, _Map], builder: GraphBuilder) -> _Map | None:
    """A pointwise operator of maps, emitted; None if no operand is one's lines."""
    results = [maps[v].following for v in node.inputs if v is not None and v in maps]
    if not results or not ops.is_pointwise(node):
        return None
    after, operands = results[0], []
    for v in node.inputs:
        known = None if v is None else maps.get(v)
        if v is None or v.type.rank <= after:
            operands.append(v)
        elif known is not None and known.following == after:
            operands.append(known.value)
        else:
            operands.append(ops.emit1(builder, "reshape", v, shape=_with_side(v, after)))
    return _Map(ops.emit1(builder, node.op, *operands, attrs=node.attrs), after)


def _with_side(value: Value, after: int) -> tuple[Expr, ...]:
    """A shape with a dimension of one element in front of its last `after` ones."""
    at = value.type.rank - after
    return (*value.shape[:at], const(1), *value.shape[at:])


__all__ = ["keep_maps"]
