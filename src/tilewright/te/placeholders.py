"""Input tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arith import prove
from tilewright.ir.dtype import DType, f32, i64
from tilewright.ir.dtype import dtype as _dtype
from tilewright.ir.expr import Expr, Var, as_expr, as_int
from tilewright.ir.op_types import readable
from tilewright.ir.rewrite import variables
from tilewright.support.errors import ExpressionError
from tilewright.te.memory import default_offset
from tilewright.te.tensors import Tensor, extents_of_shape, plain


def placeholder(
    shape: Sequence[Any],
    dtype: DType | str = f32,
    name: str = "placeholder",
    *,
    strides: Sequence[Any] | None = None,
    offset: Any = None,
) -> Tensor:
    """An input tensor.

    Args:
        shape: numbers and symbols.
        dtype: of its elements.
        name: in programs and messages.
        strides: how many elements further the next index of each dimension lies: numbers, negative ones too, or symbols
            (`te.var("s", lo=0)`), which a call reads off the array. None: row by row.
        offset: where in its memory the first element lies; a symbol is how far it lies in the array that owns the
            memory. None: as near as strides allow.

    With strides, views of NumPy and of other libraries are passed without a copy. Raises ExpressionError for strides
    that are no such numbers.
    """
    extents = extents_of_shape(shape, name)
    if strides is None:
        if offset is not None:
            raise ExpressionError(f"placeholder {name!r}: an offset goes with strides", got=offset)
        return Tensor(name, _dtype(dtype), extents)
    if not isinstance(strides, list | tuple) or len(strides) != len(extents):
        raise ExpressionError(f"placeholder {name!r}: a stride for each dimension", expected=len(extents), got=strides)
    steps = tuple(_step(s, name) for s in strides)
    least = default_offset(extents, steps)
    place = least if offset is None else as_expr(plain(offset))
    if place.dtype is not i64 or not (prove(place >= least) or _is_own(place, steps, extents)):
        expected = f"an i64 of at least {readable(least)}"
        raise ExpressionError(f"placeholder {name!r}: not an offset", expected=expected, got=readable(place))
    return Tensor(name, _dtype(dtype), extents, strides=steps, offset=place)


def _step(value: Any, name: str) -> Expr:
    """A stride: a number, or what is known not to be negative."""
    step = as_expr(plain(value))
    if step.dtype is not i64 or any(v.axis for v in variables(step)) or (as_int(step) is None and not prove(step >= 0)):
        expected = "a number, or a symbol that is not negative"
        raise ExpressionError(f"placeholder {name!r}: not a stride", expected=expected, got=f"{readable(step)}")
    return step


def _is_own(place: Expr, steps: Sequence[Expr], extents: Sequence[Expr]) -> bool:
    """Whether an offset is a symbol of its own, which calls compare with the strides."""
    used = {v for e in (*steps, *extents) for v in variables(e)}
    return isinstance(place, Var) and (place.lo or 0) >= 0 and place not in used
