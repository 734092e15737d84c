"""Several lanes as an element type: `"float32x4"` is four numbers that lie side by side.

    A = te.placeholder((n,), "float32x4", name="A")
    C = te.compute((n,), lambda i: A[i] * 2.0, name="C")          # f32x4[n]: an array of n rows of four

In memory such a tensor has its lanes as a last dimension, which is what is passed. Elements are computed lane by lane,
numbers of one lane are the same in all; a stage that reads lanes has them as its last axis, in one vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from tilewright.ir import expr as ir
from tilewright.ir.dtype import DType
from tilewright.ir.dtype import dtype as _dtype
from tilewright.ir.expr import Expr, Var
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import substitute, variables
from tilewright.support.errors import ExpressionError

MAX_LANES = 1024


def lanes_of(kind: DType | str) -> tuple[DType, int]:
    """An element type and its lanes: `"float32x4"` is f32 and 4. Raises DTypeError or ExpressionError."""
    match = re.fullmatch(r"(\w+?)x(\d{1,9})", kind) if isinstance(kind, str) else None
    if match is None:
        return _dtype(kind), 1
    lanes = int(match[2])
    if not 1 <= lanes <= MAX_LANES:
        raise ExpressionError("no number of lanes", expected=f"1 to {MAX_LANES}", got=lanes)
    return _dtype(match[1]), lanes


@cache
def lane(count: int) -> Var:
    """The variable that stands in a body for the number of a lane, of `count` lanes."""
    return Var(f"{count} lanes", axis=True)  # as no axis is called


def lanes_in(bodies: Sequence[Expr]) -> int:
    """The number of lanes of a stage's elements, whose expressions are `bodies`. Raises ExpressionError if they have
    different numbers."""
    parts = [p for b in bodies for p in ((*b.children, *b.reducer.result) if isinstance(b, Reduce) else (b,))]
    result = {v.name for p in parts for v in variables(p) if v.axis and v.name.endswith(" lanes")}
    counts = {int(name.partition(" ")[0]) for name in result}
    if len(counts) > 1:
        raise ExpressionError("elements of different numbers of lanes", got=" and ".join(map(str, sorted(counts))))
    return counts.pop() if counts else 1


def with_axis(body: Expr, count: int, axis: Var) -> Expr:
    """`body` with the stage's axis `axis` in place of the number of a lane, one of `count`."""
    put = {lane(count): axis}
    if not isinstance(body, Reduce):
        return substitute(body, put)
    values = tuple(substitute(v, put) for v in body.values)
    axes = tuple((v, substitute(n, put)) for v, n in body.axes)
    return Reduce(body.reducer, values, axes, substitute(body.condition, put), body.index)


def cast(value: Any, to: DType | str) -> Expr:
    """`value` converted to another element type: floats to ints truncate (saturating, NaN to 0), ints wrap, to bool is
    `!= 0`. To a type of several lanes, each lane is converted; a number of one lane is equal in all."""
    return ir.cast(value, lanes_of(to)[0])
