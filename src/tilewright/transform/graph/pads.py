"""Turn a sum of padded pieces that do not overlap into a concatenation. Gradients of slices are such sums.

    a = pad(p) {before = (0), after = (8)}
    b = pad(q) {before = (4), after = (0)}        ->      y = concat(p, q)
    y = a + b

Zeros fill the gaps between pieces. The concatenation needs no additions, and is a view where possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.attributes import Dim
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.dims import dims
from tilewright.ops.shape import ConcatAttrs, PadAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rewriter, Rule


@dataclass(frozen=True, slots=True)
class Pieces:
    """Values placed along an axis, in order, with the index at which each begins; zeros fill the rest."""

    axis: int
    places: tuple[tuple[int, Value], ...]

    def end(self, k: int) -> int:
        begin, value = self.places[k]
        return begin + (as_int(value.shape[self.axis]) or 0)

    def joined(self, other: Pieces) -> Pieces | None:
        """The pieces of both concatenations in one, in order; None if some of them overlap or they lie along different
        axes."""
        both = Pieces(self.axis, tuple(sorted((*self.places, *other.places), key=lambda place: place[0])))
        meet = any(both.end(k) > both.places[k + 1][0] for k in range(len(both.places) - 1))
        return None if meet or self.axis != other.axis else both


def _joined(m: Match) -> Value | None:
    """Emit a concatenation for a sum of pieces that do not overlap."""
    whole = m.node.output.type
    parts = [_pieces(m.rewriter, v) for v in m.node.inputs if v is not None and v.type == whole]
    first, second = (*parts, None, None)[:2]
    result = first.joined(second) if first is not None and second is not None else None
    return None if result is None else m.emit("concat", *_filled(m, result, m.node.output), axis=result.axis)


JOIN_PADS = Rule(op("add", op(("pad", "concat")), op(("pad", "concat"))), _joined)


def _pieces(graph: Rewriter, value: Value) -> Pieces | None:
    """The values that `value` consists of, if it is zero elsewhere and their places are known numbers; None
    otherwise."""
    node = graph.producer(value, "pad", "concat")
    if node is None:
        return None
    if node.op == "concat":
        return _parts(graph, node)
    attrs, (source, *filling) = node.of(PadAttrs), node.inputs
    blank = all(graph.number(v) == 0 for v in filling) if filling else attrs.value == 0
    padded = [k for k, ends in enumerate(zip(attrs.before, attrs.after, strict=True)) if any(map(_is_some, ends))]
    if attrs.mode != "constant" or not blank or len(padded) != 1 or source is None:
        return None
    begin, size = as_int(dims([attrs.before[padded[0]]])[0]), as_int(source.shape[padded[0]])
    return None if begin is None or size is None else Pieces(padded[0], ((begin, source),))


def _parts(graph: Rewriter, node: Node) -> Pieces | None:
    """The pieces of a concatenation that are not zeros, if all extents are known numbers; None otherwise."""
    axis, at, places = node.of(ConcatAttrs).axis % node.output.type.rank, 0, []
    for value in node.inputs:
        size = None if value is None else as_int(value.shape[axis])
        if value is None or size is None:
            return None
        if graph.number(value) != 0:
            places.append((at, value))
        at += size
    return Pieces(axis, tuple(places))


def _is_some(size: Dim) -> bool:
    return as_int(dims([size])[0]) != 0


def _filled(m: Match, pieces: Pieces, whole: Value) -> Sequence[Value]:
    """The parts of the concatenation `whole`: the pieces in order, with zeros between them."""
    results: list[Value] = []
    at = 0
    extent = as_int(whole.shape[pieces.axis]) or 0
    for k, (begin, value) in enumerate((*pieces.places, (extent, None))):
        if begin > at:
            shape = dims([begin - at if d == pieces.axis else size for d, size in enumerate(whole.shape)])
            zero = m.emit("constant", value=np.zeros((), whole.dtype.numpy), name="zero")
            results.append(m.emit("broadcast", zero, shape=shape, name="zeros"))
        if value is not None:
            results.append(value)
            at = pieces.end(k)
    return results
