"""Choose algorithms: note on each convolution, product and attention how it is computed.

    y = conv(x, w)        ->   y = conv(x, w) {algorithm = "winograd tile=4,rows=2,columns=7,width=32,panels=4"}
    y = matmul(x, w)      ->   y = matmul(x, w) {algorithm = "packed", precision = "bf16"}

Layout assignment (`transform/layout/`) obeys these notes and takes them away. A node without one is computed directly,
in the precision of its type. Both are decisions (`plans/framework/decisions.py`): the options of the user say what may
be taken, an estimate what is.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Graph, Node
from tilewright.targets.target import Target
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.select.convolution import convolution_algorithm
from tilewright.transform.select.product import attention_precision, product_algorithm, product_precision
from tilewright.transform.select.surroundings import Surroundings


def choose_algorithms(graph: Graph, target: Target, options: Options = DEFAULTS) -> Graph:
    """The graph with notes `algorithm` and `precision` on the nodes that have a choice."""
    around = Surroundings(graph, target, options)
    nodes = []
    for node in graph.nodes:
        around.visit(node)
        notes = notes_of(around, node)
        around.leave(node, notes.get("algorithm"))
        nodes.append(replace(node, attrs=tuple(sorted((*node.attrs, *notes.items())))))
    return replace(graph, nodes=tuple(nodes))


def notes_of(around: Surroundings, node: Node) -> dict[str, str]:
    """What is chosen for a node, by the notes' names."""
    notes: dict[str, str] = {}
    match node.op:
        case "conv":
            algorithm = convolution_algorithm(around, node)
            if algorithm is not None:
                notes["algorithm"] = algorithm.label
        case "matmul":
            notes["precision"] = product_precision(around, node)
            if notes["precision"] == "fp32":
                notes["algorithm"] = product_algorithm(around, node).label
        case "attention":
            notes["precision"] = attention_precision(around, node)
    return notes
