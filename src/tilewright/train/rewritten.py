"""Rewrites a graph before it is differentiated, so that its backward pass becomes cheaper.

The gradients of attention's parts read the softmax of all rows, which would have to be stored; the gradient of the
fused operator (`ops/gradients/attention.py`) only reads queries, keys and values. Summing rows before a linear layer
(`transform/graph/sum_first.py`) saves its backward pass two products.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.graph import Graph, Value
from tilewright.ops.gradients.reverse import leading_from
from tilewright.ops.rooms import rooms
from tilewright.support.errors import UnsupportedError
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.batch_first import batch_first
from tilewright.transform.graph.canonical import eliminate_common
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.graph.softmax import recognise_softmax
from tilewright.transform.graph.sum_first import sum_rows_first


def rewritten(graph: Graph, sources: Iterable[Value]) -> Graph:
    """The graph with attention as one operator, where a gradient by the `sources` has a rule for it, and with rows
    summed before linear layers.

    Raises UnsupportedError for sizes that data decides without a bound, since a step plans its memory once.
    """
    joined = recognise_softmax(sum_rows_first(eliminate_dead(eliminate_common(graph))))
    if unbounded := rooms(joined):
        raise UnsupportedError(
            "a step has sizes that data decides and nothing bounds",
            got=", ".join(node.output.name for node in joined.nodes if node.defines in unbounded),
            hint="state them: torch.repeat_interleave(..., output_size=n), a mask in place of a selection",
        )
    result = recognise_attention(joined, leading_from(joined.nodes, set(sources)))
    # Operands that are heads of one projection become one value.
    return joined if result is joined else batch_first(eliminate_common(eliminate_dead(result)))
