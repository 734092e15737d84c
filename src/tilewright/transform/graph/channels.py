"""Shapes of per-channel scales of weights after operators that move the weights' elements."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.shape import SliceAttrs, TransposeAttrs

Shape = tuple[int, ...]


def moved_shape(move: Node, scale: Shape) -> Shape | None:
    """The shape of per-channel scales after `move` (1 but for the channels' dimension, where scales keep their order),
    from their shape before it. None if the node moves elements otherwise, or channels are no longer one dimension."""
    moved = moved_scale(move, scale) if sum(d != 1 for d in scale) <= 1 else None
    return moved[1] if moved is not None and moved[0] == scale else None


def moved_scale(move: Node, scale: Shape) -> tuple[Shape, Shape] | None:
    """For a node that moves scaled elements: (the shape to broadcast the scales to, their shape after the same move).
    Both are 1 in dimensions along which scales are equal. None if they are not known.

    A reshape joins and splits dimensions. Scales that vary along one of those have all of them: weights [4, 8, 2, 2]
    with scales [1, 8, 1, 1], transposed to [2, 2, 8, 4] and joined to [32, 4], have scales [2, 2, 8, 1] -> [32, 1].
    """
    source = move.inputs[0]
    if source is None or len(scale) != source.type.rank:
        return None
    match move.op:
        case "identity":
            return scale, scale
        case "transpose":
            return scale, tuple(scale[k] for k in move.of(TransposeAttrs).perm)
        case "slice":
            attrs = move.of(SliceAttrs)
            whole = (
                step == 1 and as_int(begin) == 0 and as_int(size) == as_int(full) is not None
                for begin, size, step, full in zip(attrs.begin, attrs.size, attrs.step, source.shape, strict=True)
            )
            return (scale, scale) if all(d == 1 or w for d, w in zip(scale, whole, strict=True)) else None
        case "reshape":
            old, new = ([as_int(d) for d in v.shape] for v in (source, move.output))
            if None in old or None in new:
                return None
            return _reshaped(scale, [d or 0 for d in old], [d or 0 for d in new])
    return None


def _reshaped(scale: Shape, old: list[int], new: list[int]) -> tuple[Shape, Shape] | None:
    """(the shape to broadcast scales of the shape `scale` to, their shape after the reshape) for a reshape from sizes
    `old` to sizes `new`, as of `moved_scale`; None if they are not known."""
    if 0 in old or 0 in new:
        return None
    before, after = list(scale), [1] * len(new)
    i = j = 0
    while i < len(old) or j < len(new):
        first, begin = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (have := prod(old[first:i])) != (want := prod(new[begin:j])):
            i, j = (i + 1, j) if have < want else (i, j + 1)
        if all(d == 1 for d in scale[first:i]):
            continue
        alone = [d for d in old[first:i] if d != 1] == [d for d in new[begin:j] if d != 1]
        if alone:
            each = iter([s for s, d in zip(scale[first:i], old[first:i], strict=True) if d != 1])
            after[begin:j] = [1 if d == 1 else next(each) for d in new[begin:j]]
        else:
            before[first:i], after[begin:j] = old[first:i], new[begin:j]
    return tuple(before), tuple(after)
