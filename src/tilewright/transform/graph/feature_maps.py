"""Pointwise operators after a 1-D convolution work on the 4-D map that the convolution produces.

    m = conv(x', w'): [n, c, 1, l]                  m = conv(x', w')
    y = relu(reshape(m)): [n, c, l]           ->    t = relu(m)
    z = conv(reshape(y): [n, c, 1, l], v')          z = conv(t, v')

Importers express 1-D convolutions and poolings by maps of height 1. A reshape ends a kernel and a layout, so that
activations and norms between two such convolutions would be separate kernels, with a change of layout before and after
each. Reshapes that cancel each other vanish, and other readers read views.
"""

from __future__ import annotations

from collections.abc import Container

from tilewright import ops
from tilewright.ir.expr import Expr, const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.transform.graph.canonical import canonicalise
from tilewright.transform.graph.matching import any_op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

WINDOWS = ("conv", "conv_transpose", "max_pool", "avg_pool")
"""The operators whose results are feature maps."""
MAP = 4
"""The number of dimensions of a feature map: [N, C, H, W]."""


def keep_maps(graph: Graph) -> Graph:
    """The graph in which pointwise operators after 1-D convolutions work on the convolutions' 4-D maps [N, C, 1, L],
    instead of on the lines [N, C, L] that a reshape makes of them."""
    maps: set[Value] = set()

    def on_maps(m: Match) -> Value | None:
        node, facts = m.node, m.rewriter
        sides = [_side(facts.producer(v, "reshape"), maps) for v in node.inputs]
        if (after := next((s for s in sides if s is not None), None)) is None:
            if node.op in WINDOWS or not maps.isdisjoint(node.inputs):
                maps.update(v for v in node.outputs if v.type.rank == MAP)
            return None
        operands = [
            v
            if v is None or v.type.rank <= after
            else facts.producers[v].inputs[0]
            if side == after
            else m.emit("reshape", v, shape=_with_side(v, after))
            for v, side in zip(node.inputs, sides, strict=True)
        ]
        whole = m.emit(node.op, *operands, attrs=node.attrs)
        maps.add(whole)
        return m.emit("reshape", whole, shape=node.output.shape)

    pattern = any_op(where=lambda node: node.op in WINDOWS or ops.is_pointwise(node))
    result = rewrite(graph, [Rule(pattern, on_maps)])
    return graph if result is graph else canonicalise(result)


def _side(node: Node | None, maps: Container[Value]) -> int | None:
    """The number of dimensions after the removed one, if the node is a reshape that removes a spatial dimension of
    extent 1 from a map in `maps`; None for other nodes."""
    whole = None if node is None else node.inputs[0]
    if node is None or whole is None or whole not in maps:
        return None
    sides = (at for at in range(MAP - 2, MAP) if is_const(whole.shape[at], 1))
    shapes = ((at, (*whole.shape[:at], *whole.shape[at + 1 :])) for at in sides)
    return next((MAP - 1 - at for at, shape in shapes if shape == node.output.shape), None)


def _with_side(value: Value, after: int) -> tuple[Expr, ...]:
    """The shape of a value with a dimension of extent 1 inserted before its last `after` dimensions."""
    at = value.type.rank - after
    return (*value.shape[:at], const(1), *value.shape[at:])


__all__ = ["keep_maps"]
