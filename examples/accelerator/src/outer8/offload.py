"""The graph pass that gives products to the accelerator: matrices of floats whose sizes are multiples of 8."""

from __future__ import annotations

from outer8.machine import FLOATS, NAME, TILE
from tilewright.ir.attributes import NO_ATTRS
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.targets.target import Target
from tilewright.transform.graph.extra import GraphPass


def fits(node: Node) -> bool:
    """Whether a node is such a product."""
    if node.op != "matmul" or len(node.inputs) != 2 or node.output.dtype is not f32:
        return False
    attrs = node.of(MatmulAttrs)
    shapes = [v.shape for v in node.inputs if v is not None]
    if attrs.transpose_a or attrs.transpose_b or any(len(shape) != 2 for shape in shapes):
        return False
    return all((as_int(n) or 1) % TILE == 0 for shape in shapes for n in shape)


def offload(graph: Graph, target: Target) -> Graph:
    if target.accelerator != NAME or not any(map(fits, graph.nodes)):
        return graph
    nodes = []
    for node in graph.nodes:
        if fits(node):
            scratch = Value(f"{node.output.name}.scratch", TensorType(f32, (const(FLOATS),)))
            node = Node("outer8.matmul", node.inputs, (node.output, scratch), NO_ATTRS)
        nodes.append(node)
    return Graph(graph.name, graph.inputs, graph.params, tuple(nodes), graph.outputs, graph.assumptions)


OFFLOAD = GraphPass("offload outer8", offload, ("before", "canonicalise"))
