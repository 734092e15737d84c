"""Attention in one piece before a graph is differentiated.

What comes back through its parts reads the softmax, which would then be kept, and with it the scores of all rows; what
comes back through the whole (`ops/gradients/attention.py`) reads queries, keys and values alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.graph import Graph, Value
from tilewright.ops.gradients.reverse import leading_from
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.batch_first import batch_first
from tilewright.transform.graph.simplify import eliminate_common, eliminate_dead
from tilewright.transform.graph.softmax import recognise_softmax


def with_attention(graph: Graph, sources: Iterable[Value]) -> Graph:
    """The graph with attention as one operator, where a gradient by the `sources` has a rule for it."""
    joined = recognise_softmax(eliminate_dead(eliminate_common(graph)))
    found = recognise_attention(joined, leading_from(joined.nodes, set(sources)))
    # Operands that are heads of one projection become one value.
    return graph if found is joined else batch_first(eliminate_common(eliminate_dead(found)))
