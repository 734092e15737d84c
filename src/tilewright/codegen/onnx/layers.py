"""Convolutions, pooling, norms, resizing and sampling as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.codegen.onnx.pointwise import rule
from tilewright.codegen.onnx.shapes import operand, row_count, rows_of
from tilewright.codegen.onnx.writer import Writer
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import Node
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import accumulator, dim, same_dim
from tilewright.ops.extent import SuppressAttrs
from tilewright.ops.norm import LrnAttrs, NormAttrs, SoftmaxAttrs
from tilewright.ops.pool import AveragePoolAttrs, PoolAttrs
from tilewright.ops.resize import ResizeAttrs
from tilewright.ops.sample import GridSampleAttrs, RoiAlignAttrs, RoiMaxAttrs
from tilewright.ops.signal import Col2ImAttrs, DftAttrs
from tilewright.ops.topk import TopkAttrs
from tilewright.support.errors import UnsupportedError

Several = Callable[[Writer, Node, Sequence[str | None]], Sequence[str]]

SEVERAL: dict[str, Several] = {}
"""The rules of operators with several outputs, or with operands that may be absent."""


def several(*names: str) -> Callable[[Several], Several]:
    def register(f: Several) -> Several:
        SEVERAL.update(dict.fromkeys(names, f))
        return f

    return register


@rule("conv", "conv_transpose")
def conv(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs: Any = node.attrs
    if not node.output.dtype.is_float:
        raise UnsupportedError("convolutions of integers cannot be said in ONNX", got=node.output.type)
    more = {"output_padding": list(attrs.output_padding)} if node.op == "conv_transpose" else {}
    kind = {"conv": "Conv", "conv_transpose": "ConvTranspose"}[node.op]
    return w.op(kind, x, **_windows(attrs), group=attrs.groups, **more)


def _windows(attrs: ConvAttrs | PoolAttrs) -> dict[str, list[int]]:
    return {"strides": list(attrs.strides), "dilations": list(attrs.dilations), "pads": list(attrs.pads)}


@rule("avg_pool", "max_pool", "lp_pool")
def pool(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.attrs
    assert isinstance(attrs, PoolAttrs)
    more: dict[str, Any] = {}
    if isinstance(attrs, AveragePoolAttrs):
        more = {"count_include_pad": int(attrs.count_include_pad)}
    elif node.op == "lp_pool":
        more = {"p": int(getattr(attrs, "p", 2))}
    kind = {"avg_pool": "AveragePool", "max_pool": "MaxPool", "lp_pool": "LpPool"}[node.op]
    ceil = _rounds_up(node, attrs)
    return w.op(kind, x, kernel_shape=list(attrs.kernel), **_windows(attrs), ceil_mode=ceil, **more)


def _rounds_up(node: Node, attrs: PoolAttrs) -> int:
    """The attribute `ceil_mode` for a pooling, 0 if it makes no difference. It is avoided because ONNX's shape
    inference counts windows that begin after the input, too."""
    if not attrs.ceil_mode:
        return 0
    value = node.inputs[0]
    assert value is not None
    extents, rank = value.shape[2:], len(attrs.kernel)
    spans = [d * (k - 1) + 1 for k, d in zip(attrs.kernel, attrs.dilations, strict=True)]
    padded = [d + (attrs.pads[k] + attrs.pads[rank + k] - spans[k]) for k, d in enumerate(extents)]
    whole = [dim(d // s + 1) for d, s in zip(padded, attrs.strides, strict=True)]
    return int(any(not same_dim(a, b) for a, b in zip(whole, node.output.shape[2:], strict=True)))


@rule("max_pool_indices")
def max_pool_indices(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs: Any = node.attrs
    names = [w.shared.fresh(name) for name in ("maxima", node.output.name)]
    shape = {"kernel_shape": list(attrs.kernel), "ceil_mode": _rounds_up(node, attrs)}
    return w.several("MaxPool", x, names, **shape, **_windows(attrs), storage_order=int(attrs.storage_order))[1]


@several("topk")
def topk(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    attrs = node.of(TopkAttrs)
    names = [w.shared.fresh(v.name) for v in node.outputs]
    return w.several("TopK", [x[0], w.size(attrs.k)], names, axis=attrs.axis, largest=int(attrs.largest))


# --- rows -----------------------------------------------------------------------------------------------------------


@rule("softmax", "log_softmax")
def softmax(w: Writer, node: Node, x: Sequence[str]) -> str:
    kind = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[node.op]
    return w.op(kind, x, axis=node.of(SoftmaxAttrs).axis)


@several("layer_norm")
def layer_norm(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    """The rule of `layer_norm`. ONNX requires a scale with the shape of the row; others are multiplied and added
    after."""
    attrs, t = node.of(NormAttrs), node.output.dtype
    row = node.output.shape[attrs.axis % len(node.output.shape) :]
    extents = [as_int(d) for d in row]
    if None in extents:
        raise UnsupportedError("a norm over rows of open length cannot be said in ONNX", got=node.output.type)
    scale, bias = (*x[1:], None, None)[:2]
    inside = all(v.shape == row for v in node.inputs[1:] if v is not None) and (scale is not None or bias is None)
    ones = w.constant(np.ones([d or 0 for d in extents]), t, "ones") if scale is None or not inside else scale
    operands = [x[0], ones, bias if inside else None]
    y = w.op("LayerNormalization", operands, axis=attrs.axis, epsilon=attrs.epsilon)
    return [y if inside else _scaled(w, y, scale, bias)]


@several("rms_norm")
def rms_norm(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    """The rule of `rms_norm`, which ONNX has only since operator set 23: several nodes. 16-bit numbers are summed in
    f32."""
    attrs, t = node.of(NormAttrs), node.output.dtype
    acc = accumulator(t)
    rank = len(node.output.shape)
    y = w.cast(str(x[0]), t, acc)
    mean = w.op("ReduceMean", [w.op("Mul", [y, y]), w.ints(range(attrs.axis % rank, rank))], keepdims=1)
    root = w.op("Sqrt", [w.op("Add", [mean, w.scalar(attrs.epsilon, acc)])])
    scale, bias = (*x[1:], None, None)[:2]
    return [_scaled(w, w.cast(w.op("Div", [y, root]), acc, t), scale, bias)]


def _scaled(w: Writer, y: str, scale: str | None, bias: str | None) -> str:
    for kind, more in (("Mul", scale), ("Add", bias)):
        y = y if more is None else w.op(kind, [y, more])
    return y


@rule("lrn")
def lrn(w: Writer, node: Node, x: Sequence[str]) -> str:
    a = node.of(LrnAttrs)
    return w.op("LRN", x, size=a.size, alpha=a.alpha, beta=a.beta, bias=a.bias)


# --- resizing, sampling, transforms ---------------------------------------------------------------------------------


@rule("resize")
def resize(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `resize`: by the size if the scale is the ratio of both sizes, else by the scale."""
    a, shape = node.of(ResizeAttrs), operand(node, 0).shape
    axis = a.axis % len(shape)
    extent, size = as_int(shape[axis]), as_int(as_expr(a.size))
    by_size = extent is not None and size is not None and math.isclose(a.scale, size / extent, rel_tol=1e-6)
    roi = None if a.roi is None else w.constant(np.asarray(a.roi, np.float32), f32)
    scales = None if by_size else w.constant(np.asarray([a.scale], np.float32), f32)
    return w.op(
        "Resize",
        [x[0], roi, scales, w.size(a.size) if by_size else None],
        axes=[axis],
        mode=a.mode,
        coordinate_transformation_mode=a.coordinates,
        nearest_mode=a.rounding if a.mode == "nearest" else None,
        cubic_coeff_a=a.cubic_a,
        exclude_outside=int(a.exclude_outside),
        antialias=int(a.antialias),
        extrapolation_value=a.extrapolation,
    )


@rule("grid_sample")
def grid_sample(w: Writer, node: Node, x: Sequence[str]) -> str:
    a = node.of(GridSampleAttrs)
    if a.reflects_first:
        raise UnsupportedError("ONNX rounds places before it reflects them")
    return w.op("GridSample", x, mode=a.mode, padding_mode=a.padding, align_corners=int(a.align_corners))


@rule("roi_align")
def roi_align(w: Writer, node: Node, x: Sequence[str]) -> str:
    a = node.of(RoiAlignAttrs)
    entries = w.cast(x[2], operand(node, 2).dtype, i64)
    return w.op(
        "RoiAlign",
        [x[0], x[1], entries],
        mode=a.mode,
        output_height=a.height,
        output_width=a.width,
        sampling_ratio=0 if len(node.inputs) > 3 else as_int(as_expr(a.samples)),
        spatial_scale=a.scale,
        coordinate_transformation_mode="half_pixel" if a.half_pixel else "output_half_pixel",
    )


@rule("roi_max_pool")
def roi_max_pool(w: Writer, node: Node, x: Sequence[str]) -> str:
    a = node.of(RoiMaxAttrs)
    return w.op("MaxRoiPool", x, pooled_shape=[a.height, a.width], spatial_scale=a.scale)


@rule("col2im")
def col2im(w: Writer, node: Node, x: Sequence[str]) -> str:
    a = node.of(Col2ImAttrs)
    lists = {"strides": list(a.strides), "dilations": list(a.dilations), "pads": list(a.pads)}
    return w.op("Col2Im", [x[0], w.ints(a.image), w.ints(a.block)], **lists)


@rule("dft")
def dft(w: Writer, node: Node, x: Sequence[str]) -> str:
    a = node.of(DftAttrs)
    axis = w.scalar(a.axis, i64)
    return w.op("DFT", [x[0], None, axis], inverse=int(a.inverse), onesided=int(a.onesided))


# --- sizes that data decides ----------------------------------------------------------------------------------------


@several("nonzero")
def nonzero(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    return rows_of(w, w.op("NonZero", x))


@several("suppress")
def suppress(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    """The rule of `suppress`: the largest overlap or score is excluded by a comparison; thresholds are lists of one."""
    a = node.of(SuppressAttrs)
    limits = [None if v is None else w.op("Reshape", [v, w.ints([1])]) for v in x[2:4]]
    most = w.ints([a.most])
    if len(x) > 4 and x[4] is not None:
        most = w.op("Min", [most, w.op("Reshape", [x[4], w.ints([1])])])
    rows = w.op("NonMaxSuppression", [*x[:2], most, *limits], center_point_box=int(a.center))
    return rows, row_count(w, rows)
