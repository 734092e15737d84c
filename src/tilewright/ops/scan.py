"""Cumulative sums and products along an axis: one element depends on those before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, cast, const
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator, axis_of, check_kind, present, scalar, wide
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass

Out = tuple[TensorType, ...]


def _at(point: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """`point` with its coordinate along `axis` replaced by `index`."""
    return (*point[:axis], index, *point[axis:])


# --- cumulative -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CumulativeAttrs(Attrs):
    """Attributes of cumulative sums and products along the dimension `axis`: `exclusive` leaves out the element itself,
    `reverse` starts at the end, and `dtype` is the type of the results (None: that of the elements)."""

    axis: int
    exclusive: bool = False
    reverse: bool = False
    dtype: DType | None = None


def _cumulative_infer(types: Types, attrs: CumulativeAttrs) -> Out:
    """The type rule of `cumsum` and `cumprod`: x to x's shape. Attributes `axis`, `exclusive` (without the element
    itself), `reverse` (from the end), `dtype` (None: x's)."""
    t = present(types[0])
    check_kind(t.dtype, ("float", "int", "uint"))
    axis_of(attrs.axis, t.rank)
    if attrs.dtype is None:
        return (t,)
    check_kind(attrs.dtype, ("float", "int", "uint"))
    return (TensorType(attrs.dtype, t.shape),)


STRIP = 64
"""The number of columns that are summed side by side if the axis is not the last."""


def _cumulative(name: str, combine: Callable[[Expr, Expr], Expr], start: int, numpy: Callable[..., Any]) -> None:
    def loops(types: Types, attrs: CumulativeAttrs, out: Out) -> PrimFunc:
        (x,), (y,) = buffers(types, out)
        assert x is not None
        axis = attrs.axis % len(x.shape)
        rest = [d for k, d in enumerate(x.shape) if k != axis]
        extent, acc = x.shape[axis], accumulator(y.dtype)
        nest = Nest(name, [x, y])
        columns = axis < len(x.shape) - 1
        strip = STRIP if columns else 1
        outer = [*rest[:-1], (rest[-1] + (strip - 1)) // strip] if columns else rest
        with nest.loops("i", outer, parallel=True) as point, nest.allocate("total", acc, (strip,)) as total:
            with nest.loop("j", strip, kind="vectorized") as j:
                nest.store(total, (j,), scalar(start, acc))
            with nest.loop("k", extent) as k, nest.loop("j", strip, kind="vectorized") as j:
                inner = (*point[:-1], point[-1] * strip + j) if columns else point
                at = _at(inner, axis, extent - 1 - k if attrs.reverse else k)
                with nest.when(inner[-1] < rest[-1] if columns else const(True)):
                    if attrs.exclusive:
                        nest.store(y, at, cast(total[j], y.dtype))
                    nest.store(total, (j,), combine(total[j], cast(x[at], acc)))
                    if not attrs.exclusive:
                        nest.store(y, at, cast(total[j], y.dtype))
        return nest.finish()

    def reference(arrays: Sequence[Any], attrs: CumulativeAttrs) -> tuple[Any, ...]:
        array = np.asarray(arrays[0])
        result = array.dtype if attrs.dtype is None else attrs.dtype.numpy
        x, axis = wide(array if attrs.dtype is None else array.astype(result)), attrs.axis
        if attrs.reverse:
            x = np.flip(x, axis)
        y = numpy(x, axis=axis, dtype=x.dtype)
        if attrs.exclusive and x.shape[axis]:
            first = np.full_like(np.take(y, [0], axis=axis), start)
            y = np.concatenate([first, np.take(y, range(x.shape[axis] - 1), axis=axis)], axis=axis)
        return ((np.flip(y, axis) if attrs.reverse else y).astype(result),)

    register(OpDef(name, "opaque", CumulativeAttrs, _cumulative_infer, reference, loops=loops))


_cumulative("cumsum", lambda a, b: a + b, 0, np.cumsum)
_cumulative("cumprod", lambda a, b: a * b, 1, np.cumprod)
