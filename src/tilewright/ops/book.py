"""Decode 4-bit codes by a codebook of sixteen numbers, which is a constant of the program: y = book[code]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, ConstantArray
from tilewright.ir.dtype import f32, i32, i64
from tilewright.ir.expr import Expr, call, cast, const, lookup
from tilewright.ir.graph import TensorType
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError, ShapeError
from tilewright.te import Tensor

ENTRIES = 16


@dataclass(frozen=True, slots=True)
class BookAttrs(Attrs):
    """Attributes of `book_levels`: `book`, f32[16], holds the levels of the codes 0 to 15."""

    book: ConstantArray


def entry(book: ConstantArray, code: Expr) -> Expr:
    """The level of a 4-bit code in `book`; only the low four bits of `code` count."""
    index = cast(call("bitand", cast(code, i32), const(ENTRIES - 1, i32)), i64)
    return lookup(index, [const(float(level), f32) for level in book.array])


def _infer(types: Types, attrs: BookAttrs) -> tuple[TensorType, ...]:
    (codes,) = types
    assert codes is not None
    if not codes.dtype.is_int:
        raise DTypeError("codes are integers", got=codes)
    if attrs.book.array.shape != (ENTRIES,) or attrs.book.array.dtype != np.float32:
        raise ShapeError("a book has sixteen levels", expected="f32[16]", got=str(attrs.book))
    return (TensorType(f32, codes.shape),)


def _compute(inputs: Sequence[Tensor | None], attrs: BookAttrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    (codes,) = inputs
    assert codes is not None
    return (te.compute(types[0].shape, lambda *at: entry(attrs.book, codes[at]), name="levels"),)


def _reference(arrays: Sequence[Any], attrs: BookAttrs) -> tuple[Any, ...]:
    (codes,) = arrays
    return (attrs.book.array[np.asarray(codes).astype(np.int64) & (ENTRIES - 1)],)


LEVELS = register(OpDef("book_levels", "pointwise", BookAttrs, _infer, _reference, _compute))
