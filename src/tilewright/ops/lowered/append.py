"""Rows appended to those that a caller keeps between calls.

    %all = lowered.append(%kept, %new) {length = past} : f32[past + 1, 2, 12, 64]

The memory of `kept` has space for more rows than the `length` that are valid. The new rows are written after these, in
place: nothing is copied, and the next call reads them there (`transform/graph/state.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dim, number, present, same_dtype, same_shape, show
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError


@dataclass(frozen=True, slots=True)
class AppendAttrs(Attrs):
    """Attributes of `lowered.append`: only the first `length` rows of the first input are valid; the new ones follow
    them."""

    length: Dim


def _infer(types: Types, attrs: AppendAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.append`: the valid rows followed by the new ones."""
    retained, new = present(types[0]), present(types[1])
    same_dtype([retained, new])
    if not retained.shape or retained.rank != new.rank or not same_shape(retained.shape[1:], new.shape[1:]):
        raise ShapeError(
            "rows can only be appended to rows of their shape", got=f"{show(retained.shape)} and {show(new.shape)}"
        )
    return (TensorType(retained.dtype, (dim(as_expr(attrs.length) + new.shape[0]), *retained.shape[1:])),)


def _reference(arrays: Sequence[Any], attrs: AppendAttrs) -> tuple[Any, ...]:
    retained, new = arrays
    return (np.concatenate([retained[: number(attrs.length)], new]),)


register(OpDef("lowered.append", "opaque", AppendAttrs, _infer, _reference, alias=True))
