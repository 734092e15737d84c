"""The gradient of a convolution by its weight: a contraction of the input's windows with the gradient of the result.

    x [N, C, ...], g [N, F, ...]   ->   d [F, C, ...],   d[f, c, k] = sum of g[n, f, o] * x[n, c, o * s + k * d - pad]

It is the convolution of x by g with batch and channels exchanged, and strides and dilations too. A separate operator
avoids these transpositions, and tells plans that the sum over images and pixels is the long one, not a window.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, cast
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import KERNEL, SPATIAL, Out, Tensors, pad_stage, window_extent
from tilewright.ops.dims import accumulator, dim, labelled, narrow, need, present, same_dim, scalar, show, wide
from tilewright.ops.matmul import product_type
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError


@dataclass(frozen=True, slots=True)
class ConvWeightGradientAttrs(Attrs):
    """Attributes of `conv_weight_gradient`: `strides`, `dilations` and `pads` (first those before all dimensions, then
    those after) of the convolution, which has one group; `window`: the spatial sizes of its weights."""

    strides: Ints
    dilations: Ints
    pads: Ints
    window: Ints


def _infer(types: Types, attrs: ConvWeightGradientAttrs) -> Out:
    """The type rule of `conv_weight_gradient`: x [N, C, ...] and the gradient of the result [N, F, ...] to [F, C,
    *window]. Attributes `strides`, `dilations`, `pads` (all befores, then all afters), `window`."""
    x, g = present(types[0]), present(types[1], "the gradient")
    rank = x.rank - 2
    if rank not in SPATIAL or g.rank != x.rank:
        raise ShapeError("a convolution has 1 to 3 spatial dimensions", got=f"{x} with gradient {g}")
    for name, length in (("strides", rank), ("dilations", rank), ("pads", 2 * rank), ("window", rank)):
        if (got := len(getattr(attrs, name))) != length:
            raise ShapeError(f"{name} has the wrong length", expected=length, got=got)
    if any(n < 1 for n in (*attrs.strides, *attrs.dilations, *attrs.window)) or any(p < 0 for p in attrs.pads):
        raise ShapeError(
            "strides, dilations and windows must be positive and pads not negative",
            got=f"{attrs.strides}, {attrs.dilations}, {attrs.window}, {attrs.pads}",
        )
    covered = tuple(
        window_extent(
            x.shape[2 + k],
            dim(attrs.window[k]),
            attrs.pads[k],
            attrs.pads[rank + k],
            attrs.strides[k],
            attrs.dilations[k],
        )
        for k in range(rank)
    )
    expected = (x.shape[0], g.shape[1], *covered)
    if not all(same_dim(a, b) for a, b in zip(expected, g.shape, strict=True)):
        raise ShapeError("the gradient has another shape than the result", expected=show(expected), got=show(g.shape))
    return (TensorType(product_type(x.dtype, g.dtype), (g.shape[1], x.shape[1], *map(dim, attrs.window))),)


def _compute(inputs: Tensors, attrs: ConvWeightGradientAttrs, out: Out) -> tuple[te.Tensor, ...]:
    x, g, (type,) = need(inputs[0]), need(inputs[1]), out
    rank, acc = x.ndim - 2, accumulator(type.dtype)
    padded = pad_stage(x, attrs.pads, scalar(0, x.dtype))
    n = te.reduce_axis(x.shape[0], "rn")
    pixels = [te.reduce_axis(g.shape[2 + k], f"r{name}") for k, name in enumerate(SPATIAL[rank])]

    def element(f: Expr, c: Expr, *taps: Expr) -> Any:
        at = [p.var * s + t * d for p, s, t, d in zip(pixels, attrs.strides, taps, attrs.dilations, strict=True)]
        value = cast(padded[(n.var, c, *at)], acc) * cast(g[(n.var, f, *(p.var for p in pixels))], acc)
        return te.sum(value, axis=[n, *pixels])

    stage = te.compute(type.shape, labelled(element, ("f", "c", *KERNEL[rank])), name="by_weight")
    return (narrow(stage, type.dtype, "rounded"),)


def _numpy(arrays: Sequence[Any], attrs: ConvWeightGradientAttrs) -> tuple[Any, ...]:
    x, g = (np.asarray(a) for a in arrays)
    result = np.result_type(x, g)
    x, g = wide(x), wide(g)
    rank, pads = x.ndim - 2, attrs.pads
    padded: Any = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    y: Any = np.zeros((g.shape[1], padded.shape[1], *attrs.window), np.result_type(x, g))
    for taps in itertools.product(*(range(k) for k in attrs.window)):
        window = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(taps, attrs.dilations, g.shape[2:], attrs.strides, strict=True)
        )
        if 0 not in g.shape[2:]:
            y[(..., *taps)] = np.einsum("nc...,nf...->fc", padded[(..., *window)], g, optimize=True)
    return (y.astype(result),)


register(OpDef("conv_weight_gradient", "contraction", ConvWeightGradientAttrs, _infer, _numpy, compute=_compute))
