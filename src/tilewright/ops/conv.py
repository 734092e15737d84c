"""Convolution and its transpose, one to three spatial dimensions.

`conv` has no bias: a bias is an addition of a tensor shaped [1, C, 1, 1] after it, fused as an epilogue.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Expr, as_int, cast, const, equal, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import accumulator, dim, is_size, labelled, narrow, need, present, same_dim, scalar, show, wide
from tilewright.ops.matmul import Exactness, product_type
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]

SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
KERNEL = {1: ("kw",), 2: ("kh", "kw"), 3: ("kd", "kh", "kw")}


def window_extent(extent: Expr, kernel: Expr, before: int, after: int, stride: int, dilation: int) -> Expr:
    """The number of windows of `kernel` elements along one dimension with pads `before` and `after`: (extent + pads -
    dilation * (kernel - 1) - 1) // stride + 1. Raises ShapeError if there is none."""
    size = dim((extent + (before + after) - (kernel - 1) * dilation - 1) // stride + 1)
    number = as_int(size)
    if number is not None and number < 1:
        raise ShapeError(
            "the window is larger than the padded input",
            expected=f"at most {extent + before + after}",
            got=f"{kernel} with dilation {dilation}",
        )
    return size


@dataclass(frozen=True, slots=True)
class ConvAttrs(Attrs):
    """Attributes of `conv`. `strides` and `dilations`: a number for each spatial dimension. `pads`: the elements added
    before each spatial dimension, then those after each. `groups`: the number of groups of channels. `exactness`: the
    least accuracy of products of f32, as in `MatmulAttrs`."""

    strides: Ints
    dilations: Ints
    pads: Ints
    groups: int
    exactness: Exactness = field(default="", kw_only=True)


def _check(types: Types, attrs: ConvAttrs) -> tuple[TensorType, TensorType, int]:
    x, w = present(types[0]), present(types[1], "the weight")
    if any(t is not None for t in types[2:]):
        raise ShapeError("a convolution takes no input beside data and weight", got=f"{len(types)} inputs")
    rank = x.rank - 2
    if rank not in SPATIAL or w.rank != x.rank:
        raise ShapeError("a convolution has 1 to 3 spatial dimensions", got=f"{x} with weight {w}")
    for name, length in (("strides", rank), ("dilations", rank), ("pads", 2 * rank)):
        if (got := len(getattr(attrs, name))) != length:
            raise ShapeError(f"{name} has the wrong length", expected=length, got=got)
    if any(s < 1 for s in (*attrs.strides, *attrs.dilations)) or any(p < 0 for p in attrs.pads):
        raise ShapeError(
            "strides and dilations must be positive and pads not negative",
            got=f"{attrs.strides}, {attrs.dilations}, {attrs.pads}",
        )
    return x, w, rank


def _conv_infer(types: Types, attrs: ConvAttrs) -> Out:
    """The type rule of `conv`: x [N, C, ...], weight [F, C / groups, ...] to [N, F, ...]. Attributes `strides`,
    `dilations`, `pads` (all befores, then all afters), `groups`."""
    x, w, rank = _check(types, attrs)
    groups = attrs.groups
    if groups < 1 or not is_size(x.shape[1], dim(w.shape[1] * groups)):
        raise ShapeError(
            "the weight does not fit the input's channels",
            expected=f"{x.shape[1]} channels in {groups} groups",
            got=show(w.shape),
        )
    filters = as_int(w.shape[0])
    if filters is not None and filters % groups:
        raise ShapeError("the filters do not divide into groups", expected=f"a multiple of {groups}", got=filters)
    pads = attrs.pads
    spatial = tuple(
        window_extent(x.shape[2 + k], w.shape[2 + k], pads[k], pads[rank + k], attrs.strides[k], attrs.dilations[k])
        for k in range(rank)
    )
    return (TensorType(product_type(x.dtype, w.dtype), (x.shape[0], w.shape[0], *spatial)),)


def pad_stage(x: Tensor, pads: Sequence[int], fill: Expr, after: Sequence[Expr] | None = None) -> Tensor:
    """`x` padded with `fill` around its spatial dimensions, as a stage called "pad"; `x` itself if all pads are 0.
    `after` replaces the second half of `pads`, the numbers of elements after each dimension, where they are
    expressions."""
    rank = x.ndim - 2
    following = list(pads[rank:]) if after is None else list(after)
    if not any(pads[:rank]) and all(as_int(a) == 0 for a in following):
        return x
    shape = (*x.shape[:2], *(dim(d + pads[k] + following[k]) for k, d in enumerate(x.shape[2:])))

    def element(n: Expr, c: Expr, *space: Expr) -> Expr:
        inside: Expr = const(True)
        index: list[Expr] = []
        for k, (p, d) in enumerate(zip(space, x.shape[2:], strict=True)):
            index.append(p - pads[k])
            if pads[k]:
                inside = inside & (index[k] >= 0)
            if as_int(following[k]) != 0:
                inside = inside & (index[k] < d)
        return select(inside, x[(n, c, *index)], fill)

    result: Tensor = te.compute(shape, labelled(element, ("n", "c", *SPATIAL[rank])), name="pad")
    return result


def _conv_compute(inputs: Tensors, attrs: ConvAttrs, out: Out) -> tuple[Tensor, ...]:
    x, w, (type,) = need(inputs[0]), need(inputs[1]), out
    rank, groups = x.ndim - 2, attrs.groups
    acc = accumulator(type.dtype)
    padded = pad_stage(x, attrs.pads, scalar(0, x.dtype))
    c = te.reduce_axis(w.shape[1], "rc")
    taps = [te.reduce_axis(w.shape[2 + k], KERNEL[rank][k]) for k in range(rank)]

    def element(n: Expr, f: Expr, *space: Expr) -> Any:
        channel = c.var if groups == 1 else f // (w.shape[0] // groups) * w.shape[1] + c.var
        at = [p * s + t.var * d for p, s, t, d in zip(space, attrs.strides, taps, attrs.dilations, strict=True)]
        value = cast(padded[(n, channel, *at)], acc) * cast(w[(f, c.var, *(t.var for t in taps))], acc)
        return te.sum(value, axis=[c, *taps])

    stage = te.compute(type.shape, labelled(element, ("n", "f", *SPATIAL[rank])), name="conv")
    return (narrow(stage, type.dtype, "rounded"),)


def _conv_numpy(arrays: Sequence[Any], attrs: ConvAttrs) -> tuple[Any, ...]:
    x, w = (np.asarray(a) for a in arrays)
    result = product_type(dtype(x.dtype), dtype(w.dtype)).numpy
    x, w = wide(x), wide(w)
    if not np.issubdtype(x.dtype, np.floating):
        x, w = x.astype(result), w.astype(result)
    rank, groups, pads = x.ndim - 2, attrs.groups, attrs.pads
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    size = [
        (d - (k - 1) * g - 1) // s + 1
        for d, k, g, s in zip(x.shape[2:], w.shape[2:], attrs.dilations, attrs.strides, strict=True)
    ]
    per_in, per_out = w.shape[1], w.shape[0] // groups
    y = np.zeros((x.shape[0], groups, per_out, *size), np.result_type(x, w))
    grouped = w.reshape(groups, per_out, *w.shape[1:])
    for taps in itertools.product(*(range(k) for k in w.shape[2:])):
        window = tuple(
            slice(t * g, t * g + (o - 1) * s + 1, s)
            for t, g, o, s in zip(taps, attrs.dilations, size, attrs.strides, strict=True)
        )
        part = x[(slice(None), slice(None), *window)].reshape(x.shape[0], groups, per_in, *size)
        y += np.einsum("ngc...,gfc->ngf...", part, grouped[(..., *taps)], optimize=True)
    return (y.reshape(x.shape[0], w.shape[0], *size).astype(result),)


register(OpDef("conv", "contraction", ConvAttrs, _conv_infer, _conv_numpy, compute=_conv_compute))


# --- transpose of convolution ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConvTransposeAttrs(ConvAttrs):
    """Attributes of `conv`, and `output_padding`: for each spatial dimension, how many elements are appended to the
    result."""

    output_padding: Ints


def _conv_transpose_infer(types: Types, attrs: ConvTransposeAttrs) -> Out:
    """The type rule of `conv_transpose`: x [N, C, ...], weight [C, F / groups, ...] to [N, F, ...]. Attributes as of
    `conv`, and `output_padding` after each spatial dimension."""
    x, w, rank = _check(types, attrs)
    if not same_dim(w.shape[0], x.shape[1]):
        raise ShapeError("the weight does not fit the input's channels", expected=x.shape[1], got=show(w.shape))
    channels = as_int(x.shape[1])
    if attrs.groups < 1 or (channels is not None and channels % attrs.groups):
        raise ShapeError("the channels do not divide into groups", expected=attrs.groups, got=channels)
    pads, spatial = attrs.pads, []
    for k in range(rank):
        stride, dilation, extra = attrs.strides[k], attrs.dilations[k], attrs.output_padding[k]
        size = (x.shape[2 + k] - 1) * stride + (w.shape[2 + k] - 1) * dilation + 1 + extra - pads[k] - pads[rank + k]
        spatial.append(dim(size))
        if (number := as_int(spatial[-1])) is not None and number < 1:
            raise ShapeError("the result of a transposed convolution is empty", got=number)
    return (TensorType(product_type(x.dtype, w.dtype), (x.shape[0], dim(w.shape[1] * attrs.groups), *spatial)),)


def _conv_transpose_compute(inputs: Tensors, attrs: ConvTransposeAttrs, out: Out) -> tuple[Tensor, ...]:
    """The result of a transposed convolution. Each element of the output sums the inputs whose windows cover it, so
    that no element is written twice."""
    x, w, (type,) = need(inputs[0]), need(inputs[1]), out
    rank, groups = x.ndim - 2, attrs.groups
    acc = accumulator(type.dtype)
    per_in = dim(x.shape[1] // groups)
    c = te.reduce_axis(per_in, "rc")
    taps = [te.reduce_axis(w.shape[2 + k], KERNEL[rank][k]) for k in range(rank)]

    def element(n: Expr, f: Expr, *space: Expr) -> Any:
        group = f // w.shape[1]
        channel = c.var if groups == 1 else group * per_in + c.var
        filter = f if groups == 1 else f % w.shape[1]
        covered: Expr = const(True)
        index: list[Expr] = []
        for k in range(rank):
            stride = attrs.strides[k]
            at = space[k] + attrs.pads[k] - taps[k].var * attrs.dilations[k]
            index.append(at // stride)
            covered = covered & (at >= 0) & (index[k] < x.shape[2 + k])
            if stride != 1:
                covered = covered & equal(at % stride, 0)
        weight = cast(w[(channel, filter, *(t.var for t in taps))], acc)
        value = cast(x[(n, channel, *index)], acc) * weight
        return te.sum(select(covered, value, scalar(0, acc)), axis=[c, *taps])

    stage = te.compute(type.shape, labelled(element, ("n", "f", *SPATIAL[rank])), name="conv_transpose")
    return (narrow(stage, type.dtype, "rounded"),)


def _conv_transpose_numpy(arrays: Sequence[Any], attrs: ConvTransposeAttrs) -> tuple[Any, ...]:
    dtype = np.asarray(arrays[0]).dtype
    x, w = (wide(a) for a in arrays)
    rank, groups, pads = x.ndim - 2, attrs.groups, attrs.pads
    per_in, per_out = x.shape[1] // groups, w.shape[1]
    full = [
        (d - 1) * s + (k - 1) * g + 1 + e
        for d, s, k, g, e in zip(
            x.shape[2:], attrs.strides, w.shape[2:], attrs.dilations, attrs.output_padding, strict=True
        )
    ]
    y = np.zeros((x.shape[0], groups, per_out, *full), x.dtype)
    xs = x.reshape(x.shape[0], groups, per_in, *x.shape[2:])
    ws = w.reshape(groups, per_in, *w.shape[1:])
    for taps in itertools.product(*(range(k) for k in w.shape[2:])):
        window = tuple(
            slice(t * g, t * g + (d - 1) * s + 1, s)
            for t, g, d, s in zip(taps, attrs.dilations, x.shape[2:], attrs.strides, strict=True)
        )
        y[(slice(None),) * 3 + window] += np.einsum("ngc...,gcf->ngf...", xs, ws[(..., *taps)], optimize=True)
    y = y.reshape(x.shape[0], groups * per_out, *full)
    retained = tuple(slice(pads[k], full[k] - pads[rank + k]) for k in range(rank))
    return (y[(slice(None), slice(None), *retained)].astype(dtype),)


register(
    OpDef(
        "conv_transpose",
        "contraction",
        ConvTransposeAttrs,
        _conv_transpose_infer,
        _conv_transpose_numpy,
        compute=_conv_transpose_compute,
    )
)
