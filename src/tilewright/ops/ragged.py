"""Operators on the rows of several sequences packed one after another (`transform/graph/ragged.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Expr, cast, equal
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dims, need, number, present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class RowsAttrs(Attrs):
    """Attributes of `same_sequence`: `rows` is the number of rows of all sequences together."""

    rows: Dim


def check_starts(starts: TensorType) -> None:
    """Raise ShapeError unless `starts` is i64[sequences]: the first row of each sequence."""
    if starts.dtype is not i64 or starts.rank != 1:
        raise ShapeError("sequences begin at a vector of numbers", expected="i64[sequences]", got=starts)


def _infer(types: Types, attrs: RowsAttrs) -> tuple[TensorType, ...]:
    """The type rule of `same_sequence`: from starts i64[sequences], ascending, to bool[rows, rows], whether two rows
    belong to one sequence."""
    check_starts(present(types[0]))
    return (TensorType(boolean, dims((attrs.rows, attrs.rows))),)


def sequence_of(starts: Tensor, rows: Expr) -> Tensor:
    """For each of `rows` rows the number of its sequence, counted from 1: how many sequences, which begin at `starts`,
    begin at or before it."""

    def begun(i: Expr) -> Any:
        s = te.reduce_axis(starts.shape[0], "s")
        return te.sum(cast(starts[s.var] <= i, i64), axis=s)

    tensor = te.compute((rows,), begun, name="sequence")
    assert isinstance(tensor, Tensor)
    return tensor


def _compute(inputs: Sequence[Tensor | None], attrs: RowsAttrs, out: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    shape = out[0].shape
    sequence = sequence_of(need(inputs[0]), shape[0])
    tensor = te.compute(shape, lambda i, j: equal(sequence[i], sequence[j]), name="same")
    assert isinstance(tensor, Tensor)
    return (tensor,)


def sequences_numpy(starts: Any, rows: int) -> Any:
    """`sequence_of` in NumPy: for each of `rows` rows, how many sequences, which begin at `starts`, have begun up to
    it."""
    return np.searchsorted(starts, np.arange(rows), side="right")


def _reference(arrays: Sequence[Any], attrs: RowsAttrs) -> tuple[Any, ...]:
    sequence = sequences_numpy(arrays[0], number(attrs.rows))
    return (sequence[:, None] == sequence,)


register(OpDef("same_sequence", "opaque", RowsAttrs, _infer, _reference, compute=_compute))
