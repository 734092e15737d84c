"""Where the iterations of a loop nest go: indices as arrays over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.evaluate import values_of
from tilewright.ir.expr import Buffer, Expr, Var, as_int
from tilewright.support.errors import CompileError

Array = np.ndarray[Any, Any]


def value(e: Expr, values: Mapping[Var, Any]) -> Any:
    """The value of the index expression `e`, where variables have the values (numbers or arrays) `values`. Raises
    CompileError if it reads memory."""

    def leaf(e: Expr) -> Any:
        if not isinstance(e, Var):
            raise CompileError("an index depends on data", where=str(e))
        if e not in values:
            raise CompileError("the size of a loop is not known", where=f"variable {e.name!r}")
        return values[e]

    return values_of(e, leaf)


def sizes(buffer: Buffer) -> tuple[int, ...]:
    """A buffer's extents. Raises CompileError where one is not constant."""
    results = [as_int(d) for d in buffer.shape]
    if any(d is None for d in results):
        raise CompileError("a size is not constant", where=f"buffer {buffer.name!r}")
    return tuple(d for d in results if d is not None)


def offset(buffer: Buffer, indices: Sequence[Expr], values: Mapping[Var, Any]) -> Any:
    """The row-major position of the element `indices` of a buffer, where variables have the values (numbers or arrays)
    `values`."""
    total: Any = 0
    for index, extent in zip(indices, sizes(buffer), strict=True):
        total = total * extent + value(index, values)
    return total


def grid(loops: Sequence[tuple[Var, int]]) -> dict[Var, Array]:
    """The value of each loop variable over all iterations of `loops`, as arrays with one dimension for each loop that
    broadcast together."""
    count = len(loops)
    return {v: np.arange(n).reshape([-1 if k == d else 1 for d in range(count)]) for k, (v, n) in enumerate(loops)}


def spread(array: Any, loops: Sequence[tuple[Var, int]]) -> Array:
    """`array` broadcast to all iterations of `loops`."""
    return np.broadcast_to(np.asarray(array, np.int64), [n for _, n in loops])
