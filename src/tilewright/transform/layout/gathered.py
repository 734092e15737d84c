"""Weights whose window's lines and columns lie side by side in the depth of matrix registers
(`ops/lowered/tiles.py`)."""

from __future__ import annotations

from tilewright.ir.attributes import Ints
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Value
from tilewright.transform.layout.assigner import Assigner


def gathered(a: Assigner, weights: Value, x: Value, how: Ints) -> Value:
    """Weights `[K, C, kh, kw]` as `[K, lines * columns * C', groups of lines, 1]`, C' being the channels in the blocks
    of x; unchanged if `how` gathers nothing."""
    if not how:
        return weights
    (kh, kw, lines, columns), groups = how, -(-how[0] // how[2])
    filters, channels = (as_int(d) or 1 for d in weights.shape[:2])
    deep = (as_int(x.shape[1]) or 1) * (as_int(x.shape[4]) or 1)
    for axis, more in ((1, deep - channels), (2, groups * lines - kh), (3, columns - kw)):
        if more:
            weights = a.longer(weights, axis, more)
    separate = a.derive("reshape", weights, shape=tuple(map(const, (filters, deep, groups, lines, columns))))
    transposed = a.derive("transpose", separate, perm=(0, 3, 4, 1, 2))
    return a.derive("reshape", transposed, shape=tuple(map(const, (filters, lines * columns * deep, groups, 1))))
