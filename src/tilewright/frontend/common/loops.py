"""Bodies of loops that rules write themselves: nodes are emitted as ever, then inside out of the graph again."""

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
    """Takes the nodes that are emitted inside out of the graph again, into the list."""
    nodes = builder.nodes
    before, inside = len(nodes), list[Node]()
    try:
        yield inside
    finally:
        inside += nodes[before:]
        del nodes[before:]


def captured(nodes: Sequence[Node], results: Sequence[Value], own: Sequence[Value]) -> list[Value]:
    """The values that a body reads from outside of it."""
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
    """A loop whose body is `nodes`, with `results`, of `carried` values that begin as `start` and of the `elements` of
    the sequences `rows`, which are walked through `backward` or not; `number` counts its iterations in the body, and
    `first`, if given, says whether there is one, as the body's first result says whether there is another.

    Raises UnsupportedError where what is carried changes its type.
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
