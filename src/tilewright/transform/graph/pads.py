"""Sums of pieces of one value that do not meet, as a concatenation: gradients of its slices come so.

    a = pad(p) {before = (0), after = (8)}
    b = pad(q) {before = (4), after = (0)}        ->      y = concat(p, q)
    y = a + b

Zeros fill what no piece covers. The concatenation adds nothing, and is a view where it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Dim
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.dims import dims
from tilewright.ops.shape import ConcatAttrs, ConstantAttrs, PadAttrs
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where pieces stand along an axis, in order: begins and values; all else is zero."""

    axis: int
    places: tuple[tuple[int, Value], ...]

    def end(self, k: int) -> int:
        begin, value = self.places[k]
        return begin + (as_int(value.shape[self.axis]) or 0)

    def joined(self, other: Pieces) -> Pieces | None:
        """Those of both; None if some of them meet."""
        both = Pieces(self.axis, tuple(sorted((*self.places, *other.places), key=lambda place: place[0])))
        meet = any(both.end(k) > both.places[k + 1][0] for k in range(len(both.places) - 1))
        return None if meet or self.axis != other.axis else both


def join_pads(graph: Graph) -> Graph:
    """The graph with concatenations where pieces beside each other were padded and added."""
    builder = GraphBuilder(graph.name, taken={v.name for v in (*graph.inputs, *graph.params)})
    builder.taken |= {v.name for n in graph.nodes for v in n.outputs}
    known: dict[Value, Pieces] = {}
    zeros = {n.output for n in graph.nodes if n.op == "constant" and _is_zero(n)}
    for node in graph.nodes:
        result = _pieces(node, known, zeros)
        if result is not None:
            known[node.output] = result
        if result is not None and node.op == "add":
            attrs = ConcatAttrs(axis=result.axis)
            node = Node("concat", tuple(_filled(builder, result, node.output)), node.outputs, attrs)
        builder.nodes.append(node)
    nodes = tuple(builder.nodes)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _is_zero(node: Node) -> bool:
    return not np.any(node.of(ConstantAttrs).value.array)


def _pieces(node: Node, known: dict[Value, Pieces], zeros: set[Value]) -> Pieces | None:
    """What a node's result consists of, if that is zeros and pieces whose places are numbers."""
    if node.op == "add":
        parts = [known.get(v) for v in node.inputs if v is not None and v.type == node.output.type]
        first, second = (*parts, None, None)[:2]
        return first.joined(second) if first is not None and second is not None else None
    if node.op != "pad":
        return None
    attrs, (source, *filling) = node.of(PadAttrs), node.inputs
    blank = all(v in zeros for v in filling) if filling else attrs.value == 0
    padded = [k for k, ends in enumerate(zip(attrs.before, attrs.after, strict=True)) if any(map(_is_some, ends))]
    if attrs.mode != "constant" or not blank or len(padded) != 1 or source is None:
        return None
    begin, size = as_int(dims([attrs.before[padded[0]]])[0]), as_int(source.shape[padded[0]])
    return None if begin is None or size is None else Pieces(padded[0], ((begin, source),))


def _is_some(size: Dim) -> bool:
    return as_int(dims([size])[0]) != 0


def _filled(builder: GraphBuilder, pieces: Pieces, whole: Value) -> Sequence[Value]:
    """The pieces in order, zeros between them."""
    results: list[Value] = []
    at = 0
    extent = as_int(whole.shape[pieces.axis]) or 0
    for k, (begin, value) in enumerate((*pieces.places, (extent, None))):
        if begin > at:
            shape = dims([begin - at if d == pieces.axis else size for d, size in enumerate(whole.shape)])
            zero = ops.emit1(builder, "constant", value=np.zeros((), whole.dtype.numpy), name="zero")
            results.append(ops.emit1(builder, "broadcast", zero, shape=shape, name="zeros"))
        if value is not None:
            results.append(value)
            at = pieces.end(k)
    return results
