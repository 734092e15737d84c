"""Choose algorithms: note on each convolution, product and attention how it is computed (`ir/selection.py`).

    y = conv(x, w)     ->   y = conv(x, w) by winograd {panels = 4, tile = 4, width = 32} in fp32
    y = matmul(x, w)   ->   y = matmul(x, w) in bf16

Layout assignment (`transform/layout/`) obeys these notes and removes them. A node without one is computed by its
definition, in the precision of its type. Both choices are decisions (`plans/framework/decisions.py`): the user's
options determine which algorithms are allowed, and estimates which one is chosen.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Graph, Node
from tilewright.ir.selection import Matrices, Selection
from tilewright.targets.target import Target
from tilewright.transform.algorithm import cheapest_algorithm, offered
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.select.convolution import convolution_algorithm, rounds_to_f16
from tilewright.transform.select.product import (
    attention_algorithm,
    attention_precision,
    product_algorithm,
    product_precision,
)
from tilewright.transform.select.surroundings import InBlocks, Surroundings
from tilewright.transform.select.transposed import transposed_algorithm


def choose_algorithms(graph: Graph, target: Target, in_blocks: InBlocks, options: Options = DEFAULTS) -> Graph:
    """The graph with a selection on each node for which there is a choice."""
    enclosing = Surroundings(graph, target, options, in_blocks)
    nodes = []
    for node in graph.nodes:
        enclosing.visit(node)
        node = replace(node, selected=selection(enclosing, node))
        enclosing.leave(node)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def selection(enclosing: Surroundings, node: Node) -> Selection | None:
    """The selection for a node; None if there is no choice."""
    match node.op:
        case "conv":
            algorithm = convolution_algorithm(enclosing, node)
            rounded = isinstance(algorithm, Matrices) and rounds_to_f16(enclosing, node)
            if algorithm is None:
                return None
            return Selection(algorithm, "int8" if node.output.dtype.is_int else "fp16" if rounded else "fp32")
        case "conv_transpose":
            algorithm = transposed_algorithm(enclosing, node)
            return None if algorithm is None else Selection(algorithm)
        case "matmul":
            precision = product_precision(enclosing, node)
            return Selection(product_algorithm(enclosing, node) if precision == "fp32" else None, precision)
        case "lowered.attention":
            algorithm = attention_algorithm(enclosing, node)
            if algorithm is None:
                return Selection(None, attention_precision(enclosing, node))
            return Selection(algorithm, "fp16" if enclosing.options.precision == "fp16" else "fp32")
    options = offered(enclosing, node, [])
    return Selection(cheapest_algorithm(enclosing, node, options)) if options else None
