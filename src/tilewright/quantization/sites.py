"""The layers of a graph that can be computed with quantised products, and the values that they read."""

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
"""Operators that commute with quantisation: they move elements, or select the greatest."""


@dataclass(frozen=True, slots=True)
class Site:
    """A layer that can be quantised: a product or convolution, or a recurrent layer's products with its state.

    node      of the canonical graph
    sources   for each of the first two inputs, the value whose codes it reads: the input, or the value from which it
              was moved; None for weights, and for inputs that stay f32
    axis      of the weights that counts output channels; None where both factors are computed
    """

    node: Node
    sources: tuple[Value | None, Value | None]
    axis: int | None

    @property
    def output(self) -> Value:
        return self.node.outputs[0]

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def activations(self) -> tuple[Value, ...]:
        """The values whose codes the layer reads."""
        return tuple(v for v in self.sources if v is not None)

    @property
    def weights(self) -> Value:
        w = self.node.inputs[1]
        assert w is not None and self.axis is not None
        return w

    @property
    def channel(self) -> int:
        """The axis of the output that corresponds to channels."""
        return 1 if self.node.op == "conv" else self.output.type.rank - 1


def canonical(graph: Graph) -> Graph:
    """The graph with batch normalisation and other factors folded into the weights, so that the weights as multiplied
    are quantised."""
    return canonicalise(fold_scales(keep_reduced(canonicalise(graph))))


def sites_of(graph: Graph) -> tuple[Site, ...]:
    """The layers that multiply by weights, in order, without products of two computed values and layers in bodies of
    loops and branches."""
    return tuple(site for site in all_sites(graph, products=False) if site.activations)


def all_sites(graph: Graph, *, products: bool) -> tuple[Site, ...]:
    """Layers that multiply by weights; recurrent layers, of which only weights are quantised; and with `products`,
    products of two computed values, as in attention."""
    fixed, producers = fixed_values(graph), graph.producers()
    sites: list[Site] = []
    for node in graph.nodes:
        if node.op not in ("conv", "matmul", "recurrence") or (node.op != "recurrence" and len(node.inputs) != 2):
            continue
        x, w = node.inputs[:2]
        if x is None or w is None or x in fixed or any(v.dtype is not f32 for v in (x, w, node.outputs[0])):
            continue
        axis = _axis(node)
        if w in fixed and axis is not None and all(as_int(d) is not None for d in w.shape):
            source = None if node.op == "recurrence" else _source(x, producers)
            sites.append(Site(node, (source, None), axis))
        elif products and w not in fixed and node.op == "matmul" and not node.of(MatmulAttrs).transpose_a:
            if x.type.rank == w.type.rank > 2:
                sites.append(Site(node, (_source(x, producers), _source(w, producers)), None))
    return tuple(sites)


def _axis(node: Node) -> int | None:
    """The axis of a node's weights that counts output channels; None for operators whose weights are not quantised."""
    match node.op:
        case "conv":
            return 0 if node.of(ConvAttrs) else None
        case "matmul":
            attrs, w = node.of(MatmulAttrs), node.inputs[1]
            is_matrix = w is not None and w.type.rank == 2 and not attrs.transpose_a
            return (0 if attrs.transpose_b else 1) if is_matrix else None
        case "recurrence":
            return 1
    return None


def _source(value: Value, producers: Mapping[Value, Node]) -> Value:
    """The value from which `value` comes by a chain of operators that only move elements; itself if there are none."""
    while (node := producers.get(value)) is not None and node.op in MOVING and node.inputs[0] is not None:
        value = node.inputs[0]
    return value
