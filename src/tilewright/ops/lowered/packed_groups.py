"""Convolutions in groups over blocked channels: depthwise, and small groups that lie within a block.

    weights  w[K, C/g, kh, kw]  ->  [ceil(K/b), C/g, kh, kw, b]        one vector of filters for each tap

An output block of `b` filters reads one block of the input: filter k belongs to group k // (K/g), whose channels stand
in the same lanes (depthwise), in lanes of the same block (small groups), or are shared by neighbours (a multiplier).
Lanes past K have zero weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, all_of, as_int, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import dims, need, present
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.lowered.packed import UNBLOCK_CHANNELS, BlockAttrs, UnblockAttrs, blocked_conv, layout_name
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Arrays = Sequence[Any]


def _pack_infer(types: Types, attrs: BlockAttrs) -> tuple[TensorType, ...]:
    w, b = present(types[0]), attrs.block
    return (TensorType(w.dtype, (ceildiv(w.shape[0], b), *w.shape[1:], const(b))),)


def _pack_compute(
    inputs: Sequence[Tensor | None], attrs: BlockAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    w, b = need(inputs[0]), attrs.block
    filters = as_int(w.shape[0])
    assert filters is not None

    def element(*at: Expr) -> Expr:
        outer, *tap, lane = at
        k = outer * b + lane
        value = w[(k, *tap)]
        return value if filters % b == 0 else select(k < filters, value, const(0, w.dtype))

    return (te.compute(types[0].shape, element, name="pack"),)


register_map("lowered.pack_depthwise", BlockAttrs, _pack_infer, _pack_compute)


class Windows(Protocol):
    """Attributes that define a convolution's windows."""

    @property
    def strides(self) -> Ints: ...

    @property
    def dilations(self) -> Ints: ...

    @property
    def pads(self) -> Ints: ...


def window_sizes(spatial: Sequence[Any], window: Sequence[Any], attrs: Windows) -> list[Any]:
    """The spatial sizes of the output of a convolution of an input of sizes `spatial` by a `window`, as numbers or
    expressions."""
    pads, rank = attrs.pads, len(spatial)
    return [
        (size + pads[i] + pads[i + rank] - (extent - 1) * attrs.dilations[i] - 1) // attrs.strides[i] + 1
        for i, (size, extent) in enumerate(zip(spatial, window, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class DepthwiseAttrs(Attrs):
    """Attributes of `lowered.conv_depthwise`: strides, dilations and pads of `conv`, and the numbers of channels
    (`per_in`) and of filters (`per_out`) of each group."""

    strides: Ints
    dilations: Ints
    pads: Ints
    per_in: int
    per_out: int


def _infer(types: Types, attrs: DepthwiseAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_depthwise`: x [N, ceil(C/b), H, W, b] and packed weights to a blocked output of
    `groups * per_out` channels."""
    x, w = present(types[0]), present(types[1])
    out = dims(window_sizes(x.shape[2:4], w.shape[2:4], attrs))
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *out, w.shape[4]), layout_name(as_int(w.shape[4]) or 0)),)


def within(at: Sequence[Expr], shape: Sequence[Expr], pads: Sequence[int]) -> Expr:
    """A condition: whether the indices `at` into an image without its padding lie inside of `shape`. It is true if
    there is no padding."""
    tests = [index >= 0 for index, before in zip(at, pads, strict=False) if before]
    tests += [index < size for index, size, after in zip(at, shape, pads[len(at) :], strict=True) if after]
    return all_of(tests)


def _compute(
    inputs: Sequence[Tensor | None], attrs: DepthwiseAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    (sh, sw), (dh, dw), pads = attrs.strides, attrs.dilations, attrs.pads
    per_in, per_out = attrs.per_in, attrs.per_out
    b = as_int(w.shape[4])
    assert b is not None
    rc = te.reduce_axis(w.shape[1], "rc")
    kh, kw = te.reduce_axis(w.shape[2], "kh"), te.reduce_axis(w.shape[3], "kw")

    def element(n: Expr, k: Expr, h: Expr, v: Expr, lane: Expr) -> Expr:
        if per_in == per_out:
            block, inner = k, lane if per_in == 1 else lane // per_in * per_in + rc.var
        else:
            channel = (k * b + lane) // per_out
            block, inner = channel // b, channel % b
        at = (h * sh + kh.var * dh - pads[0], v * sw + kw.var * dw - pads[1])
        value = x[(n, block, *at, inner)] * w[k, rc.var, kh.var, kw.var, lane]
        return te.sum(value, axis=[kh, rc, kw], where=within(at, x.shape[2:4], pads))  # type: ignore[no-any-return]

    return (te.compute(types[0].shape, element, name="depthwise"),)


def _reference(arrays: Arrays, attrs: DepthwiseAttrs) -> tuple[Any, ...]:
    x, w = arrays
    blocks, per_in, kh, kw, b = w.shape
    full = np.moveaxis(w, -1, 1).reshape(blocks * b, per_in, kh, kw)
    x = UNBLOCK_CHANNELS.reference([x], UnblockAttrs(x.shape[1] * x.shape[-1]))[0]
    lanes = np.arange(blocks * b)
    read = lanes[:, None] // attrs.per_out * per_in + np.arange(per_in)
    ordinary = ConvAttrs(attrs.strides, attrs.dilations, attrs.pads, len(lanes))
    return blocked_conv(x[:, read.ravel()], full, ordinary, len(lanes), b)


register(OpDef("lowered.conv_depthwise", "contraction", DepthwiseAttrs, _infer, _reference, _compute))


# -- windows of one pixel over NCHW maps ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackPointwiseAttrs(Attrs):
    """Attributes of packing the filters of a 1x1 convolution in groups: the groups of channels, and the filters of a
    panel."""

    groups: int
    width: int


def _pack_pointwise_infer(types: Types, attrs: PackPointwiseAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.pack_pointwise`: `w[K, C/g, 1, 1]` to `[g, ceil(K/g/width), C/g, width]`."""
    w, groups, width = present(types[0]), attrs.groups, attrs.width
    each = (as_int(w.shape[0]) or 0) // groups
    return (TensorType(w.dtype, (const(groups), const(-(-each // width)), w.shape[1], const(width))),)


def _pack_pointwise_compute(
    inputs: Sequence[Tensor | None], attrs: PackPointwiseAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    w, width = need(inputs[0]), attrs.width
    each = (as_int(w.shape[0]) or 0) // attrs.groups

    def element(g: Expr, panel: Expr, c: Expr, lane: Expr) -> Expr:
        f = panel * width + lane
        value = w[g * each + f, c, const(0), const(0)]
        return value if each % width == 0 else select(f < each, value, const(0, w.dtype))

    return (te.compute(types[0].shape, element, name="pack"),)


register_map("lowered.pack_pointwise", PackPointwiseAttrs, _pack_pointwise_infer, _pack_pointwise_compute)


@dataclass(frozen=True, slots=True)
class PointwiseGroupsAttrs(Attrs):
    """Attributes of a 1x1 convolution in groups: the channels of the result."""

    channels: int


def _pointwise_infer(types: Types, attrs: PointwiseGroupsAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_pointwise_groups`: x [N, C, H, W] and packed weights to [N, channels, H, W]."""
    x = present(types[0])
    return (TensorType(x.dtype, (x.shape[0], const(attrs.channels), *x.shape[2:])),)


def _pointwise_compute(
    inputs: Sequence[Tensor | None], attrs: PointwiseGroupsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    """The convolution as a product over the flattened pixels of an image: one stage flattens the pixels, another
    restores them."""
    x, w = need(inputs[0]), need(inputs[1])
    groups, panels, depth, width = w.shape
    n, _, height, columns = types[0].shape
    each = attrs.channels // (as_int(groups) or 1)
    c = te.reduce_axis(depth, "c")

    def pixel(n: Expr, k: Expr, p: Expr) -> Expr:
        return x[n, k, p // columns, p % columns]

    maps = te.compute((n, groups * depth, height * columns), pixel, name="maps")

    def element(n: Expr, g: Expr, f: Expr, p: Expr) -> Expr:
        value = maps[n, g * depth + c.var, p] * w[g, f // width, c.var, f % width]
        return te.sum(value, axis=c)  # type: ignore[no-any-return]

    product = te.compute((n, groups, panels * width, height * columns), element, name="pointwise")
    return (
        te.compute(types[0].shape, lambda n, k, h, v: product[n, k // each, k % each, h * columns + v], name="lines"),
    )


def _pointwise_reference(arrays: Arrays, attrs: PointwiseGroupsAttrs) -> tuple[Any, ...]:
    x, w = arrays
    groups, panels, depth, width = w.shape
    full = np.swapaxes(w, 2, 3).reshape(groups, panels * width, depth)[:, : attrs.channels // groups]
    split = x.reshape(x.shape[0], groups, depth, *x.shape[2:])
    return (np.einsum("ngchw,gkc->ngkhw", split, full).reshape(x.shape[0], -1, *x.shape[2:]),)


CONV_POINTWISE_GROUPS = register(
    OpDef(
        "lowered.conv_pointwise_groups",
        "contraction",
        PointwiseGroupsAttrs,
        _pointwise_infer,
        _pointwise_reference,
        _pointwise_compute,
    )
)
