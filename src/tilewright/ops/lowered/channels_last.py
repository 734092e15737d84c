"""Convolution of images whose channels are innermost ("NHWC"), the layout for GPUs: neighbours in memory are channels
of one pixel, which are also neighbours in the depth of the product.

    x  [N, 1, H, W, C]      all channels are one block (`lowered.block_channels`)
    w  [F, 1, kh, kw, C]    of C / groups channels
    y  [N, 1, H', W', F]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.expr import Expr, as_int, cast, is_const
from tilewright.ir.graph import TensorType
from tilewright.ops import registry
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import accumulator, narrow, need, present
from tilewright.ops.lowered.packed import convolved, layout_name, pad_spatial
from tilewright.ops.registry import OpDef, Types, register
from tilewright.te import Tensor


def _infer(types: Types, attrs: ConvAttrs) -> tuple[TensorType, ...]:
    x, w = present(types[0]), present(types[1])
    out = convolved(x.shape[2:4], w.shape[2:4], attrs.strides, attrs.dilations, attrs.pads)
    filters = w.shape[0]
    return (TensorType(x.dtype, (*x.shape[:2], *out, filters), layout_name(as_int(filters) or 0)),)


def _compute(inputs: Sequence[Tensor | None], attrs: ConvAttrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    w, (type,) = need(inputs[1]), types
    x = pad_spatial(need(inputs[0]), attrs.pads, 0)
    acc, each = accumulator(type.dtype), w.shape[0] // attrs.groups
    (sh, sw), (dh, dw) = attrs.strides, attrs.dilations
    c = te.reduce_axis(w.shape[4], "ci")
    pixel = all(is_const(d, 1) for d in w.shape[2:4])  # whose rows are the map's, which may be joined
    taps = [] if pixel else [te.reduce_axis(w.shape[k], name) for k, name in ((2, "kh"), (3, "kw"))]

    def element(n: Expr, k: Expr, h: Expr, v: Expr, f: Expr) -> Any:
        i, j = (t.var for t in taps) if taps else (0, 0)
        channel = c.var if attrs.groups == 1 else f // each * w.shape[4] + c.var
        value = cast(x[(n, k, h * sh + i * dh, v * sw + j * dw, channel)], acc) * cast(w[(f, 0, i, j, c.var)], acc)
        return te.sum(value, axis=[*taps, c])

    return (narrow(te.compute(type.shape, element, name="conv"), type.dtype, "rounded"),)


def _reference(arrays: Sequence[Any], attrs: ConvAttrs) -> tuple[Any, ...]:
    (y,) = registry.get("conv").reference([np.moveaxis(v[:, 0], -1, 1) for v in arrays], attrs)
    return (np.ascontiguousarray(np.moveaxis(y, 1, -1)[:, None]),)


register(OpDef("lowered.conv_last", "contraction", ConvAttrs, _infer, _reference, _compute))
