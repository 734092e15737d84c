"""Adaptive pooling: averages and maxima over a stated number of windows that together cover the input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, as_int, cast, const, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import KERNEL, SPATIAL
from tilewright.ops.dims import accumulator, check_kind, dim, labelled, need, present, scalar, wide
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class AdaptivePoolAttrs(Attrs):
    """Attributes of adaptive pooling: `size` is the number of windows along each spatial dimension."""

    size: Ints


def _infer(types: Types, attrs: AdaptivePoolAttrs) -> Out:
    """The type rule of `adaptive_max_pool`: x [N, C, ...] to [N, C, *size]. Window `o` of `size` over an extent `d` is
    from `o * d // size` up to `ceil((o + 1) * d / size)`; windows may share elements."""
    x = present(types[0])
    if x.rank - 2 not in SPATIAL or len(attrs.size) != x.rank - 2:
        raise ShapeError("one size is needed for each of 1 to 3 spatial dimensions", expected=x, got=attrs.size)
    if any(s < 1 for s in attrs.size) or any(as_int(d) == 0 for d in x.shape[2:]):
        raise ShapeError("windows and what they cover must not be empty", expected=x, got=attrs.size)
    return (TensorType(x.dtype, (*x.shape[:2], *map(dim, attrs.size))),)


def _average_infer(types: Types, attrs: AdaptivePoolAttrs) -> Out:
    """The type rule of `adaptive_avg_pool`: that of `adaptive_max_pool`, for floats only."""
    check_kind(present(types[0]).dtype, ("float",))
    return _infer(types, attrs)


def _window(p: Any, extent: Any, size: int) -> tuple[Any, Any]:
    """(begin, end) of the elements in window number `p`, where `size` windows cover `extent` elements."""
    return p * extent // size, ((p + 1) * extent + (size - 1)) // size


def _longest(extent: Expr, size: int) -> Expr:
    """An upper bound of the number of elements in any of the `size` windows that cover `extent` elements."""
    number = as_int(extent)
    if number is None:
        return dim((extent + (size - 1)) // size + 1)
    return const(max(end - start for start, end in (_window(p, number, size) for p in range(size))))


def _reduced(x: Tensor, out: TensorType, attrs: AdaptivePoolAttrs, fill: Expr, reducer: Any, name: str) -> Tensor:
    """The stage `name` of the reductions of each window's elements by `reducer`; places past a window's end count as
    `fill`, which has the result's type."""
    rank = x.ndim - 2
    taps = [te.reduce_axis(_longest(x.shape[2 + k], attrs.size[k]), KERNEL[rank][k]) for k in range(rank)]

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        inside: Expr = const(True)
        at: list[Expr] = []
        for k, p in enumerate(space):
            extent = x.shape[2 + k]
            start, end = _window(p, extent, attrs.size[k])
            inside = inside & (start + taps[k].var < end)
            at.append(minimum(start + taps[k].var, extent - 1))
        return reducer(select(inside, cast(x[(n, c, *at)], fill.dtype), fill), axis=taps)

    result: Tensor = te.compute(out.shape, labelled(element, ("n", "c", *SPATIAL[rank])), name=name)
    return result


def _max_compute(inputs: Tensors, attrs: AdaptivePoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    return (_reduced(x, out[0], attrs, const(x.dtype.min, x.dtype), te.max, "adaptive_max_pool"),)


def _average_compute(inputs: Tensors, attrs: AdaptivePoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    acc = accumulator(x.dtype)
    total = _reduced(x, type, attrs, scalar(0, acc), te.sum, "total")

    def element(*point: Expr) -> Expr:
        count: Expr = const(1)
        for k, p in enumerate(point[2:]):
            start, end = _window(p, x.shape[2 + k], attrs.size[k])
            count = count * (end - start)
        return cast(total[point] / cast(count, acc), type.dtype)

    return (te.compute(type.shape, element, name="adaptive_avg_pool"),)


def _by_windows(reduce: Callable[..., Any]) -> Callable[[Sequence[Any], AdaptivePoolAttrs], tuple[Any, ...]]:
    def run(arrays: Sequence[Any], attrs: AdaptivePoolAttrs) -> tuple[Any, ...]:
        x = wide(arrays[0])
        y: Any = np.empty((*x.shape[:2], *attrs.size), x.dtype)
        axes = tuple(range(2, x.ndim))
        for point in itertools.product(*map(range, attrs.size)):
            windows = [_window(p, d, s) for p, d, s in zip(point, x.shape[2:], attrs.size, strict=True)]
            y[(..., *point)] = reduce(x[(..., *(slice(*w) for w in windows))], axis=axes)
        return (y.astype(np.asarray(arrays[0]).dtype),)

    return run


register(OpDef("adaptive_max_pool", "reduction", AdaptivePoolAttrs, _infer, _by_windows(np.max), compute=_max_compute))
register(
    OpDef(
        "adaptive_avg_pool",
        "reduction",
        AdaptivePoolAttrs,
        _average_infer,
        _by_windows(np.mean),
        compute=_average_compute,
    )
)
