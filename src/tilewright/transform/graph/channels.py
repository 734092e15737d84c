"""Scales of weights, one a channel, after operators that move the weights."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.shape import TransposeAttrs

Shape = tuple[int, ...]


def moved_shape(move: Node, scale: Shape) -> Shape | None:
    """The shape of the scales of what a node gives, from that of what it takes: 1 but for the channels' dimension,
    whose numbers keep their order. None where it moves elements otherwise, or channels are no longer a dimension."""
    source = move.inputs[0]
    if source is None or len(scale) != source.type.rank or sum(d != 1 for d in scale) > 1:
        return None
    match move.op:
        case "identity":
            return scale
        case "transpose":
            return tuple(scale[k] for k in move.of(TransposeAttrs).perm)
        case "reshape":  # without and with dimensions of 1, all others are the same
            old, new = ([as_int(d) for d in v.shape] for v in (source, move.output))
            if None in old or None in new or [d for d in old if d != 1] != [d for d in new if d != 1]:
                return None
            each = iter([s for s, d in zip(scale, old, strict=True) if d != 1])
            return tuple(1 if d == 1 else next(each) for d in new)
    return None
