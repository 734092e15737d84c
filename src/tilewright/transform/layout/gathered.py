"""Weights whose lines and columns lie side by side in the depth of registers of matrices (`ops/lowered/tiles.py`)."""

from __future__ import annotations

from tilewright.ir.attributes import Ints
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Value
from tilewright.transform.layout.assigner import Assigner


def gathered(a: Assigner, weights: Value, x: Value, how: Ints) -> Value:
    """Weights `[K, C, kh, kw]` as `[K, lines * columns * C', groups of lines, 1]`, C' being channels in x's blocks; as
    they are if nothing is gathered."""
    if not how:
        return weights
    (kh, kw, lines, columns), groups = how, -(-how[0] // how[2])
    filters, channels = (as_int(d) or 1 for d in weights.shape[:2])
    deep = (as_int(x.shape[1]) or 1) * (as_int(x.shape[4]) or 1)
    for axis, more in ((1, deep - channels), (2, groups * lines - kh), (3, columns - kw)):
        if more:
            weights = longer(a, weights, axis, more)
    separate = followed(a, "reshape", weights, shape=tuple(map(const, (filters, deep, groups, lines, columns))))
    transposed = followed(a, "transpose", separate, perm=(0, 3, 4, 1, 2))
    return followed(a, "reshape", transposed, shape=tuple(map(const, (filters, lines * columns * deep, groups, 1))))


def longer(a: Assigner, x: Value, axis: int, more: int) -> Value:
    """Zeros after an axis."""
    rank = x.type.rank
    after = tuple(more if k == axis else 0 for k in range(rank))
    return followed(a, "pad", x, before=(0,) * rank, after=after, mode="constant", value=0)


def followed(a: Assigner, op: str, x: Value, **attrs: object) -> Value:
    """A new value of another, that depends on weights alone if that one does."""
    (value,) = a.emit(op, (x,), attrs, op)
    a.follow(x, value)
    return value
