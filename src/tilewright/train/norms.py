"""Shares normalised rows between the forward and the backward pass of a learning step.

    y = layer_norm(x, scale, bias)                    n = (x - mean) * inverse; y = n * scale + bias
    n = (x - mean) * inverse; dx = f(dy, n, inverse)   ->   dx = f(dy, n, inverse)

The gradient's rule (`ops/gradients/norm.py`) recomputes the rows from `x`, so that without this pass the mean and
deviation of each row would be computed twice.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.gradients.norm import normalised
from tilewright.ops.gradients.registry import Backward
from tilewright.ops.norm import NormAttrs
from tilewright.transform.graph.canonical import eliminate_common
from tilewright.transform.graph.norms import NORMS
from tilewright.transform.regions.captures import builder_for


def with_shared_rows(graph: Graph) -> Graph:
    """A step's graph in which the forward and backward pass of a norm share its normalised rows. Norms in 16-bit types
    are left unchanged, since the operator computes their rows in single precision."""
    users = graph.consumers()
    separate = {n.output: n for n in graph.nodes if n.op in NORMS and _goes_back(n, users)}
    if not separate:
        return graph
    builder = builder_for(graph)
    for node in graph.nodes:
        if node.outputs[0] in separate:
            _in_parts(builder, node)
        else:
            builder.nodes.append(node)
    return eliminate_common(replace(graph, nodes=tuple(builder.nodes)))


def _goes_back(node: Node, users: dict[Value, list[Node]]) -> bool:
    """Whether the graph also computes the gradient of the norm `node`, recognised by another user of its input."""
    x = node.inputs[0]
    assert x is not None
    result = "reduce_sum" if node.op == "layer_norm" else "mul"
    return x.dtype.bits >= 32 and any(u.op == result for u in users[x])


def _in_parts(builder: GraphBuilder, node: Node) -> None:
    """Emit the norm `node` as several operators: normalised rows, then scale and shift, whose result is the norm's."""
    b = Backward(builder, node, (None,))
    y, _ = normalised(b, b.x(), b.of(NormAttrs), node.op == "layer_norm")
    for k, op in ((1, "mul"), (2, "add")):
        if b.has(k):
            y = b.emit(op, y, b.x(k))
    builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
