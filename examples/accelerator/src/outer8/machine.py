"""The machine: its instructions, its scratchpad as a scope, its tiles as intrinsics, and its name as a target.

Four instructions, eight numbers of 32 bits each; places and distances count floats:

    LOAD   array, first, distance of rows, place, distance of rows there     8 x 8 floats into the scratchpad
    CLEAR  place                                                             8 x 8 zeros
    OUTER  place of sums, of a, distance of a's elements, of b               sums[i][j] += a[i] * b[j]
    STORE  array, first, distance of rows, place, distance of rows there     8 x 8 floats out of it
"""

from __future__ import annotations

from tilewright import te
from tilewright.targets.registry import Family

NAME = "outer-8x8"
FAMILY = Family("outer8", "", {}, accelerators=(NAME,))

TILE = 8
FLOATS = 4096
"""The size of the scratchpad."""
LOAD, CLEAR, OUTER, STORE = range(4)
FIELDS = 8
"""Numbers of an instruction, its opcode first."""

SCRATCH = te.scope("outer8_scratch", 4 * FLOATS)


def _tile(name: str) -> te.Tensor:
    return te.placeholder((TILE, TILE), "float32", name=name)


def _register() -> None:
    """The intrinsics that a schedule may put in the place of loops over tiles."""
    shape, zero = (TILE, TILE), te.const(0.0, "float32")
    data, a, b = _tile("data"), _tile("a"), _tile("b")
    k = te.reduce_axis((0, TILE), name="k")
    te.intrinsic("outer8_load", te.compute(shape, lambda i, j: data[i, j], name="loaded"), [data])
    te.intrinsic("outer8_clear", te.compute(shape, lambda i, j: zero, name="cleared"), [])
    te.intrinsic("outer8_sum", te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="summed"), [a, b])
    te.intrinsic("outer8_store", te.compute(shape, lambda i, j: data[i, j], name="stored"), [data])


_register()
