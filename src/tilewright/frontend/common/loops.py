"""Loops whose bodies a rule builds itself: it emits the body's nodes as usual, then moves them out of the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.control import NUMBER, LoopAttrs
from tilewright.ops.registry import emit
from tilewright.support.errors import UnsupportedError


@contextmanager
def cut(builder: GraphBuilder) -> Iterator[list[Node]]:
    """Within the context, collect the nodes that are emitted; at its end they leave the graph and are in the list."""
    nodes = builder.nodes
    before, inside = len(nodes), list[Node]()
    try:
        yield inside
    finally:
        inside += nodes[before:]
        del nodes[before:]


def captured(nodes: Sequence[Node], results: Sequence[Value], own: Sequence[Value]) -> list[Value]:
    """The values that `nodes` or `results` of a loop's body read and that are neither computed there nor in `own`, the
    body's parameters."""
    inside = {v for n in nodes for v in n.outputs} | set(own)
    read = [v for n in nodes for v in n.inputs if v is not None]
    return list(dict.fromkeys(v for v in (*read, *results) if v not in inside))


def loop(
    builder: GraphBuilder,
    name: str,
    first: Value | None,
    start: Sequence[Value],
    carried: Sequence[Value],
    rows: Sequence[Value],
    elements: Sequence[Value],
    nodes: Sequence[Node],
    results: Sequence[Value],
    *,
    number: Value | None = None,
    backward: bool = False,
) -> list[Any]:
    """Emit a loop, and return its results.

    Args:
        first: whether the first iteration runs; the first of `results` then says whether another follows.
        start: the initial values of the variables that iterations carry.
        carried: the values that stand for them in the body.
        rows: sequences, of which each iteration reads one row.
        elements: the values that stand for those rows in the body.
        nodes: the body, as `cut` takes it out of the graph.
        results: the values that the body computes: the condition if there is `first`, what is carried on, then what is
            collected.
        number: the value that stands for the number of the iteration in the body.
        backward: whether iterations go from the last row to the first.

    Raises UnsupportedError where a carried value changes its type.
    """
    own = (number or Value(builder.fresh(f"{name}.number"), NUMBER), *carried, *elements)
    outside = captured(nodes, results, own)
    offset = first is not None
    for before, after in zip(start, results[offset:], strict=False):
        if before.type != after.type:
            raise UnsupportedError("what is carried changes its type", expected=before.type, got=after.type)
    body = Graph("body", (*own, *outside), (), tuple(nodes), tuple(results))
    attrs = LoopAttrs(body=body, carried=len(start), scanned=len(rows), conditional=offset, backward=backward)
    names = [name] * len(results)
    return list(emit(builder, "loop", None, first, *start, *rows, *outside, attrs=attrs, names=names))
