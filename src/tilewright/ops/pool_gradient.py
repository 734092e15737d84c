"""Gradients of pooling by its input, as gathers: each input element sums what its windows send to it.

    d[h] = sum over taps t with h = o * stride + t * dilation - pad of what window o sends to h

No element is written by two windows, so that every loop over the input may be shared by threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Dims
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, call, cast, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import KERNEL, SPATIAL
from tilewright.ops.dims import (
    accumulator,
    check_kind,
    dims,
    labelled,
    narrow,
    need,
    number,
    present,
    same_shape,
    scalar,
    wide,
)
from tilewright.ops.pool import (
    AveragePoolAttrs,
    MaxPoolIndicesAttrs,
    PoolAttrs,
    covered,
    flat_index,
    indices_compute,
    indices_numpy,
    infer_shape,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]
Sent = Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]
"""What a window sends to an element: from the places of both."""


def _check(x: TensorType, g: TensorType, attrs: PoolAttrs) -> Out:
    check_kind(x.dtype, ("float",))
    wanted = infer_shape([x], attrs)
    if g.dtype is not x.dtype or not same_shape(wanted.shape, g.shape):
        raise ShapeError("the gradient has another type than the result", expected=wanted, got=g)
    return (x,)


def _gathered(type: TensorType, windows: Sequence[Expr], attrs: PoolAttrs, sent: Sent, name: str) -> Tensor:
    """The sum over taps of what the windows that have an element at that tap send to it."""
    rank, acc = len(windows), accumulator(type.dtype)
    taps = [te.reduce_axis(attrs.kernel[k], KERNEL[rank][k]) for k in range(rank)]

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        inside: Expr = const(True)
        at: list[Expr] = []
        for k, p in enumerate(space):
            offset = p + attrs.pads[k] - taps[k].var * attrs.dilations[k]
            at.append(offset // attrs.strides[k])
            on = call("eq", offset % attrs.strides[k], const(0)) if attrs.strides[k] > 1 else const(True)
            inside = inside & on & (at[k] >= 0) & (at[k] < windows[k])
        return te.sum(select(inside, sent((n, c, *at), (n, c, *space)), scalar(0, acc)), axis=taps)

    stage = te.compute(type.shape, labelled(element, ("n", "c", *SPATIAL[rank])), name=name)
    return narrow(stage, type.dtype, "rounded")


# --- maximum --------------------------------------------------------------------------------------------------------


def _max_infer(types: Types, attrs: PoolAttrs) -> Out:
    """x and the gradient of its `max_pool`: each window sends its own to its first maximum, NaN being the greatest."""
    return _check(present(types[0]), present(types[1], "the gradient"), attrs)


def _indices(attrs: PoolAttrs) -> MaxPoolIndicesAttrs:
    return MaxPoolIndicesAttrs(
        kernel=attrs.kernel,
        strides=attrs.strides,
        dilations=attrs.dilations,
        pads=attrs.pads,
        ceil_mode=attrs.ceil_mode,
    )


def _max_compute(inputs: Tensors, attrs: PoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, g, (type,) = need(inputs[0]), need(inputs[1]), out
    acc = accumulator(x.dtype)
    (found,) = indices_compute([x], _indices(attrs), (TensorType(i64, g.shape),))

    def sent(window: tuple[Expr, ...], place: tuple[Expr, ...]) -> Expr:
        mine = call("eq", found[window], flat_index(x.shape, place, 0))
        return select(mine, cast(g[window], acc), scalar(0, acc))

    return (_gathered(type, g.shape[2:], attrs, sent, "max_pool_grad"),)


def _max_numpy(arrays: Sequence[Any], attrs: PoolAttrs) -> tuple[Any, ...]:
    x, g = np.asarray(arrays[0]), wide(arrays[1])
    (at,) = indices_numpy([x], _indices(attrs))
    flat = np.zeros(x.size, g.dtype)
    real = at < x.size  # a window of padding alone has no maximum
    np.add.at(flat, at[real], g[real])
    return (flat.reshape(x.shape).astype(x.dtype),)


register(OpDef("max_pool_grad", "reduction", PoolAttrs, _max_infer, _max_numpy, compute=_max_compute))


# --- average --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePoolGradAttrs(AveragePoolAttrs):
    """`extents` are the input's spatial ones, which the result does not tell."""

    extents: Dims


def _average_infer(types: Types, attrs: AveragePoolGradAttrs) -> Out:
    """The gradient of an `avg_pool`: each window sends equal shares of it to its elements."""
    g = present(types[0], "the gradient")
    return _check(TensorType(g.dtype, (*g.shape[:2], *dims(attrs.extents))), g, attrs)


def _average_compute(inputs: Tensors, attrs: AveragePoolGradAttrs, out: Out) -> tuple[Tensor, ...]:
    g, (type,) = need(inputs[0]), out
    acc = accumulator(g.dtype)

    def share(*point: Expr) -> Expr:
        count: Expr = scalar(1, acc)
        for k, p in enumerate(point[2:]):
            counted = covered(type.shape, attrs, k, p, acc)
            count = count * (scalar(attrs.kernel[k], acc) if counted is None else counted)
        return cast(g[point], acc) / count

    shares = te.compute(g.shape, share, name="share")
    return (_gathered(type, g.shape[2:], attrs, lambda window, _: shares[window], "avg_pool_grad"),)


def _average_numpy(arrays: Sequence[Any], attrs: AveragePoolGradAttrs) -> tuple[Any, ...]:
    """Each tap's view of the padded input gets its windows' shares."""
    g = wide(arrays[0])
    rank, pads = g.ndim - 2, attrs.pads
    extents = [number(d) for d in attrs.extents]
    padded = [before + d + after for before, d, after in zip(pads[:rank], extents, pads[rank:], strict=True)]
    steps = list(zip(g.shape[2:], attrs.strides, attrs.dilations, attrs.kernel, strict=True))
    reach = [max((o - 1) * s + d * (t - 1) + 1, p) for (o, s, d, t), p in zip(steps, padded, strict=True)]
    within = tuple(slice(before, before + d) for before, d in zip(pads[:rank], extents, strict=True))
    counts: Any = np.zeros(reach, g.dtype)
    counts[tuple(slice(p) for p in padded) if attrs.count_include_pad else within] = 1
    views = [
        tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, (o, s, d, _) in zip(taps, steps, strict=True))
        for taps in itertools.product(*map(range, attrs.kernel))
    ]
    share = g / np.maximum(sum(counts[view] for view in views), 1)
    total: Any = np.zeros((*g.shape[:2], *reach), g.dtype)
    for view in views:
        total[(..., *view)] += share
    return (np.ascontiguousarray(total[(..., *within)]).astype(np.asarray(arrays[0]).dtype),)


register(
    OpDef("avg_pool_grad", "reduction", AveragePoolGradAttrs, _average_infer, _average_numpy, compute=_average_compute)
)
