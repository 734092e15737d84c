"""The nodes of a graph, or of a body in it, as ONNX nodes."""

from __future__ import annotations

from tilewright.codegen.onnx.layers import SEVERAL
from tilewright.codegen.onnx.pointwise import RULES
from tilewright.codegen.onnx.quantised import linear_nodes, unread, write_linear
from tilewright.codegen.onnx.writer import Writer
from tilewright.ir.graph import Graph, Node
from tilewright.ops.cells import without_cells
from tilewright.support.errors import Error, Problems, UnsupportedError


def write_nodes(w: Writer, graph: Graph) -> None:
    """Write all nodes of `graph`, or of a body in it, as ONNX nodes. Raises UnsupportedError, which lists those that
    ONNX cannot express."""
    graph = without_cells(graph)
    problems = Problems()
    linear = linear_nodes(graph)
    inner = unread(graph, linear)
    for node in graph.nodes:
        try:
            match = linear.get(node.output) if len(node.outputs) == 1 else None
            if node.outputs[0] in inner:
                continue
            if match is not None:
                if match.value in w.names and match.scale in w.names:
                    w.names[node.output] = w.renamed(write_linear(w, match), node.output)
            elif all(v is None or v in w.names for v in node.inputs):
                result = _node(w, node)
                w.names.update((v, w.renamed(name, v)) for v, name in zip(node.outputs, result, strict=True))
        except Error as error:
            error.where = error.where or f"operator {node.op}"
            problems.add(error)
    problems.raise_if_any("the graph cannot be written as ONNX", kind=UnsupportedError)


def _node(w: Writer, node: Node) -> list[str]:
    inputs = [None if v is None else w.names[v] for v in node.inputs]
    if node.op in SEVERAL:
        return list(SEVERAL[node.op](w, node, inputs))
    if node.op not in RULES:
        raise UnsupportedError(f"the operator {node.op} cannot be said in ONNX")
    return [RULES[node.op](w, node, [name for name in inputs if name is not None])]
