"""The layers of a graph whose products can multiply integers, and the values that they read."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.canonical import canonicalise
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.graph.norms import keep_reduced
from tilewright.transform.graph.scales import fold_scales

MOVING = frozenset(("max_pool", "reshape", "transpose", "identity", "slice"))
"""Operators that act on codes as on the values that they stand for: they move elements, or keep the greatest."""


@dataclass(frozen=True, slots=True)
class Site:
    """A product or convolution with weights.

    node     of the canonical graph
    source   the value whose codes it reads: its first input, or what that one is moved from
    axis     of the weights that counts output channels
    """

    node: Node
    source: Value
    axis: int

    @property
    def name(self) -> str:
        return self.node.output.name

    @property
    def weights(self) -> Value:
        w = self.node.inputs[1]
        assert w is not None
        return w

    @property
    def channel(self) -> int:
        """The axis of the output that counts channels."""
        return 1 if self.node.op == "conv" else self.node.output.type.rank - 1


def canonical(graph: Graph) -> Graph:
    """The graph with batch normalisation and other factors in the weights: what is quantised is what is multiplied."""
    return canonicalise(fold_scales(keep_reduced(canonicalise(graph))))


def sites_of(graph: Graph) -> tuple[Site, ...]:
    """The layers that can be quantised, in order. Products of two computed values, and layers in the bodies of loops
    and branches, are none."""
    fixed, made = fixed_values(graph), graph.producers()
    sites: list[Site] = []
    for node in graph.nodes:
        axis = _axis(node)
        if axis is None or len(node.inputs) != 2:
            continue
        x, w = node.inputs
        if x is None or w is None or x in fixed or w not in fixed or x.dtype is not f32 or w.dtype is not f32:
            continue
        if all(as_int(d) is not None for d in w.shape) and node.output.dtype is f32:
            sites.append(Site(node, _source(x, made), axis))
    return tuple(sites)


def _axis(node: Node) -> int | None:
    """The axis of the weights that counts output channels; None for other operators."""
    match node.op:
        case "conv":
            return 0 if node.of(ConvAttrs) else None
        case "matmul":
            attrs, w = node.of(MatmulAttrs), node.inputs[1]
            is_matrix = w is not None and w.type.rank == 2 and not attrs.transpose_a
            return (0 if attrs.transpose_b else 1) if is_matrix else None
    return None


def _source(value: Value, made: Mapping[Value, Node]) -> Value:
    """The value before all that only moves elements."""
    while (node := made.get(value)) is not None and node.op in MOVING and node.inputs[0] is not None:
        value = node.inputs[0]
    return value
