"""A function of an 8-bit integer, evaluated by a table of all its 256 values.

%y = lowered.entry(%x, %table)          y[i] = table[x[i]]; negative x use entries 128 to 255
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import i8, i64, u8
from tilewright.ir.expr import Expr, cast, is_const
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import need, present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.errors import DTypeError, ShapeError
from tilewright.te import Tensor, compute

ENTRIES = 256
"""The number of entries of a table: one for each value of an 8-bit integer."""


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.entry`: x of u8 or i8 and table [256] to x's shape and the table's element type."""
    x, table = map(present, types)
    if x.dtype not in (u8, i8):
        raise DTypeError("a table is of numbers of 8 bits", expected="u8, i8", got=x.dtype)
    if table.rank != 1 or not is_const(table.shape[0], ENTRIES):
        raise ShapeError("a table has an entry for each number of 8 bits", expected=f"[{ENTRIES}]", got=table)
    return (TensorType(table.dtype, x.shape, x.layout),)


def _compute(inputs: Sequence[Tensor | None], attrs: Attrs, out: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    x, table = map(need, inputs)

    def element(*point: Expr) -> Expr:
        return table[(cast(cast(x[point], u8), i64),)]

    return (compute(out[0].shape, element, name="entry"),)


def _numpy(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    x, table = arrays
    return (np.asarray(table)[np.asarray(x).astype(np.uint8)],)


ENTRY = register(OpDef("lowered.entry", "pointwise", Attrs, _infer, _numpy, compute=_compute))

__all__ = ["ENTRIES", "ENTRY"]
