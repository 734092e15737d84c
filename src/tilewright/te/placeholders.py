"""Input tensors of tensor expressions, and tensors whose elements lie by strides in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.arith import prove
from tilewright.ir.dtype import DType, f32, i64
from tilewright.ir.expr import Expr, Var, as_expr, as_int, const
from tilewright.ir.op_types import readable
from tilewright.ir.rewrite import variables
from tilewright.support.errors import ExpressionError
from tilewright.te.lanes import lanes_of
from tilewright.te.memory import are_separate, default_offset
from tilewright.te.tensors import Tensor, extents_of_shape, unwrapped


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
        dtype: of its elements; one of several lanes ("float32x4") is passed as an array with a last dimension of these.
        name: in programs and messages.
        strides: how many elements further the next index of each dimension lies: numbers, negative ones too, or symbols
            (`te.var("s", lo=0)`), which a call reads off the array. None: row by row.
        offset: where in its memory the first element lies; a symbol is how far it lies in the array that owns the
            memory. None: as near as strides allow.

    With strides, views of NumPy and of other libraries are passed without a copy. Raises ExpressionError for strides
    that are no such numbers.
    """
    kind, lanes = lanes_of(dtype)
    extents = extents_of_shape(shape, name)
    tensor = Tensor(name, kind, (*extents, const(lanes)) if lanes > 1 else extents, lanes=lanes)
    if strides is not None:
        return strided(tensor, strides, offset)
    if offset is not None:
        raise ExpressionError(f"placeholder {name!r}: an offset goes with strides", got=offset)
    return tensor


def strided(tensor: Tensor, strides: Sequence[Any], offset: Any = None) -> Tensor:
    """A tensor whose elements lie by strides in its memory, as an argument of a function.

        C = te.strided(te.compute((n, m), lambda i, j: A[i, j] * 2.0, name="C"), (te.var("s"), 1))
        tw.build(te.create_schedule(C), [A, C])(a, wide[:, :m])

    The result of a stage is scheduled as if it were dense, and written where its elements lie; what is between them
    stays as it is. `strides` and `offset` are as in `te.placeholder`; no two elements of a result may share a place.
    Raises ExpressionError for strides that are no such numbers.
    """
    name, extents = tensor.name, tensor.shape
    what = "placeholder" if tensor.op is None else "result"
    if not isinstance(strides, list | tuple) or len(strides) != len(extents):
        raise ExpressionError(f"{what} {name!r}: a stride for each dimension", expected=len(extents), got=strides)
    steps = tuple(_step(s, f"{what} {name!r}") for s in strides)
    least = default_offset(extents, steps)
    place = least if offset is None else as_expr(unwrapped(offset))
    if place.dtype is not i64 or not (prove(place >= least) or _is_own(place, steps, extents)):
        expected = f"an i64 of at least {readable(least)}"
        raise ExpressionError(f"{what} {name!r}: not an offset", expected=expected, got=readable(place))
    sizes, numbers = (tuple(map(as_int, part)) for part in (extents, steps))
    if tensor.op is not None and not are_separate(sizes, numbers):
        raise ExpressionError(f"{what} {name!r}: two elements would share a place", got=f"strides {list(numbers)}")
    return replace(tensor, strides=steps, offset=place)


def _step(value: Any, name: str) -> Expr:
    """The stride `value` as an expression. Raises ExpressionError, whose text begins with `name`, unless it is an
    integer, or an i64 expression of symbols that is provably not negative."""
    step = as_expr(unwrapped(value))
    if step.dtype is not i64 or any(v.axis for v in variables(step)) or (as_int(step) is None and not prove(step >= 0)):
        expected = "a number, or a symbol that is not negative"
        raise ExpressionError(f"{name}: not a stride", expected=expected, got=f"{readable(step)}")
    return step


def _is_own(place: Expr, steps: Sequence[Expr], extents: Sequence[Expr]) -> bool:
    """Whether the offset `place` is a symbol that no stride or extent uses, so that each call reads its value off the
    array."""
    used = {v for e in (*steps, *extents) for v in variables(e)}
    return isinstance(place, Var) and (place.lo or 0) >= 0 and place not in used
