"""The translation of each source operator to StableHLO. Pointwise operators need no rule of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.codegen.stablehlo.writer import Ref, Writer, ints
from tilewright.ir.dtype import DType, boolean, i32, i64
from tilewright.ir.expr import Expr, as_expr, as_int, product
from tilewright.ir.graph import Node
from tilewright.ops.conv import ConvAttrs, ConvTransposeAttrs
from tilewright.ops.dims import accumulator, dim
from tilewright.ops.index import AxisAttrs, GatherNdAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import LrnAttrs, NormAttrs, SoftmaxAttrs
from tilewright.ops.pointwise import CastAttrs
from tilewright.ops.pool import AveragePoolAttrs, MaxPoolAttrs, PoolAttrs
from tilewright.ops.reduce import ArgAttrs, ReduceAttrs
from tilewright.ops.resize import ResizeAttrs
from tilewright.ops.shape import (
    ConcatAttrs,
    ConstantAttrs,
    PadAttrs,
    RangeAttrs,
    SliceAttrs,
    TransposeAttrs,
    TriluAttrs,
)
from tilewright.support.errors import UnsupportedError

Rule = Callable[[Writer, Node, Sequence[Ref]], Ref]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, f))
        return f

    return register


@rule("constant")
def constant(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    return w.constant(node.of(ConstantAttrs).value.array, node.output.dtype)


@rule("reshape")
def reshape(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    return w.reshape(x[0], node.output.shape)


@rule("broadcast")
def broadcast(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    return w.spread(x[0], node.output.shape)


@rule("transpose")
def transpose(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    return w.transpose(x[0], node.of(TransposeAttrs).perm)


@rule("concat")
def concat(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    axis = node.of(ConcatAttrs).axis % len(x[0].shape)
    return w.op("concatenate", x, x[0].dtype, node.output.shape, f"{{dimension = {axis} : i64}}")


@rule("slice")
def slices(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs = node.of(SliceAttrs)
    source = x[0]
    begin, sizes, steps = list(attrs.begin), list(attrs.size), list(attrs.step)
    transposed = [k for k, s in enumerate(steps) if s < 0]
    if transposed:
        source = w.op("reverse", [source], source.dtype, source.shape, f"{{dimensions = {ints(transposed)}}}")
        for k in transposed:
            begin[k], steps[k] = dim(source.shape[k] - 1 - begin[k]), -steps[k]
    ends = [dim(as_expr(b) + (as_expr(n) - 1) * s + 1) for b, n, s in zip(begin, sizes, steps, strict=True)]
    return between(w, source, [as_expr(v) for v in begin], [as_expr(v) for v in ends], steps, node.output.shape)


def between(
    w: Writer, x: Ref, begin: Sequence[Expr], ends: Sequence[Expr], steps: Sequence[int], shape: Sequence[Expr]
) -> Ref:
    """Write the slice `x[begin:ends:steps]` of the resulting shape `shape`; all of these may be symbolic except the
    steps."""
    known = [[as_int(v) for v in side] for side in (begin, ends)]
    if None not in (*known[0], *known[1]):
        lists = [[v or 0 for v in side] for side in known]
        text = f"start_indices = {ints(lists[0])}, limit_indices = {ints(lists[1])}, strides = {ints(steps)}"
        return w.op("slice", [x], x.dtype, shape, f"{{{text}}}")
    bounds = [w.sizes([as_expr(v) for v in side]) for side in (begin, ends, steps)]
    return w.op("real_dynamic_slice", [x, *bounds], x.dtype, shape)


@rule("pad")
def pad(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs = node.of(PadAttrs)
    if attrs.mode != "constant":
        raise UnsupportedError(f"padding of mode {attrs.mode} cannot be said in StableHLO")
    fill = w.constant(attrs.value, x[0].dtype)
    low, high = ([as_int(as_expr(v)) for v in side] for side in (attrs.before, attrs.after))
    if None in (*low, *high):
        zeros = w.sizes([as_expr(0)] * len(low))
        sides = [w.sizes([as_expr(v) for v in side]) for side in (attrs.before, attrs.after)]
        return w.op("dynamic_pad", [x[0], fill, *sides, zeros], x[0].dtype, node.output.shape)
    return padded(w, x[0], fill, [v or 0 for v in low], [v or 0 for v in high], node.output.shape)


def padded(w: Writer, x: Ref, fill: Ref, low: Sequence[int], high: Sequence[int], shape: Sequence[Any]) -> Ref:
    text = (
        f"edge_padding_low = {ints(low)}, edge_padding_high = {ints(high)}, interior_padding = {ints([0] * len(low))}"
    )
    return w.op("pad", [x, fill], x.dtype, shape, f"{{{text}}}")


@rule("range")
def counted(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs, t = node.of(RangeAttrs), node.output.dtype
    shape = node.output.shape
    y = w.iota(t, shape, 0)
    for name, value, neutral in (("multiply", attrs.step, 1), ("add", attrs.start, 0)):
        number = value if isinstance(value, float) else as_int(as_expr(value))
        if number == neutral:
            continue
        if number is None:
            y = w.binary(name, y, w.spread(w.cast(w.size(as_expr(value)), t), shape))
        else:
            y = w.binary(name, y, w.full(number, t, shape))
    return y


@rule("trilu")
def triangle(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs, shape = node.of(TriluAttrs), node.output.shape
    rows, columns = (w.iota(i64, shape, len(shape) - k) for k in (2, 1))
    distance = w.binary("subtract", columns, rows)
    retained = w.compare("GE" if attrs.upper else "LE", distance, w.full(attrs.k, i64, shape))
    return w.op("select", [retained, x[0], w.full(0, x[0].dtype, shape)], x[0].dtype, shape)


@rule("identity", "stop_gradient", "surrogate", "require")
def identity(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    """The rule of operators that become their operand. StableHLO has no operation that ends a call with an error, so
    `require` checks nothing there."""
    return x[0]


@rule("cast")
def cast(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    t = node.output.dtype
    if node.of(CastAttrs).bits:
        return w.op("bitcast_convert", x, t, x[0].shape)
    if t is boolean and x[0].dtype is not boolean:
        return w.compare("NE", x[0], w.full(0, x[0].dtype, x[0].shape))
    return w.cast(x[0], t)


@rule("select")
def select(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    shape = node.output.shape
    return w.op("select", [w.spread(v, shape) for v in x], node.output.dtype, shape)


# --- products -------------------------------------------------------------------------------------------------------


@rule("matmul")
def matmul(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs, shape = node.of(MatmulAttrs), node.output.shape
    a, b = x
    batch = shape[:-2]
    if len(a.shape) > 2 and len(b.shape) == 2:  # rows of any rank
        left = len(a.shape) - (2 if attrs.transpose_a else 1)
        if not attrs.transpose_a:
            return dot(w, a, b, (), (), left, 1 if attrs.transpose_b else 0, node.output.dtype, shape)
    a, b = (w.spread(v, (*batch, *v.shape[-2:])) for v in (a, b))
    lead = tuple(range(len(batch)))
    left = len(lead) if attrs.transpose_a else len(lead) + 1
    right = len(lead) + 1 if attrs.transpose_b else len(lead)
    return dot(w, a, b, lead, lead, left, right, node.output.dtype, shape)


def dot(
    w: Writer,
    a: Ref,
    b: Ref,
    batch_a: Sequence[int],
    batch_b: Sequence[int],
    left: int,
    right: int,
    t: DType,
    shape: Sequence[Any],
) -> Ref:
    def listed(values: Sequence[int]) -> str:
        return f"[{', '.join(map(str, values))}]"

    numbers = (
        f"lhs_batching_dimensions = {listed(batch_a)}, rhs_batching_dimensions = {listed(batch_b)}, "
        f"lhs_contracting_dimensions = [{left}], rhs_contracting_dimensions = [{right}]"
    )
    return w.op("dot_general", [a, b], t, shape, f"{{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}")


@rule("conv")
def conv(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs = node.of(ConvAttrs)
    ones = [1] * len(attrs.strides)
    return _convolution(w, node, x[:2], "o, i", attrs.strides, ones, attrs.pads)


@rule("conv_transpose")
def conv_transpose(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    """The rule of `conv_transpose`: a convolution over the input with zeros between its elements, with the filters
    mirrored."""
    attrs, (source, filters, *_) = node.of(ConvTransposeAttrs), x
    rank = len(attrs.strides)
    reach = [(dim(d) - 1) * g for d, g in zip(filters.shape[2:], attrs.dilations, strict=True)]
    pads = [as_int(dim(r - p)) for r, p in zip(2 * reach, attrs.pads, strict=True)]
    pads = [None if p is None else p + e for p, e in zip(pads, (*[0] * rank, *attrs.output_padding), strict=True)]
    if None in pads:
        raise UnsupportedError("a transposed convolution whose window has a symbolic size cannot be said in StableHLO")
    if attrs.groups > 1:  # the filters of a group stand beside those of the next one
        channels, each, *taps = filters.shape
        parts = (as_expr(attrs.groups), dim(channels // attrs.groups), each, *taps)
        transposed = w.transpose(w.reshape(filters, parts), [0, 2, 1, *range(3, 3 + rank)])
        filters = w.reshape(transposed, (dim(each * attrs.groups), parts[1], *taps))
    kernel = "o, i" if attrs.groups > 1 else "i, o"
    return _convolution(w, node, [source, filters], kernel, [1] * rank, attrs.strides, [p or 0 for p in pads])


def _convolution(
    w: Writer,
    node: Node,
    operands: Sequence[Ref],
    kernel: str,
    strides: Sequence[int],
    spread: Sequence[int],
    pads: Sequence[int],
) -> Ref:
    """Write a convolution of `operands` (input, filters) with `strides` and `pads` (those before, then those after each
    dimension), and return its result. `kernel` names the first two dimensions of the filters, `spread` is the dilation
    of the input; filters of a transposed convolution are mirrored."""
    attrs = node.of(ConvAttrs)
    rank = len(strides)
    space = ", ".join(map(str, range(rank)))
    padding = ", ".join(f"[{pads[k]}, {pads[rank + k]}]" for k in range(rank))
    mirrored = ", ".join(["true"] * rank)
    text = (
        f"window_strides = {ints(strides)}, padding = dense<[{padding}]> : tensor<{rank}x2xi64>, "
        f"lhs_dilation = {ints(spread)}, rhs_dilation = {ints(attrs.dilations)}, "
        f"dimension_numbers = #stablehlo.conv<[b, f, {space}]x[{kernel}, {space}]->[b, f, {space}]>, "
        f"feature_group_count = {attrs.groups} : i64, batch_group_count = 1 : i64"
    )
    text += f", window_reversal = array<i1: {mirrored}>" if node.op == "conv_transpose" else ""
    return w.op("convolution", operands, node.output.dtype, node.output.shape, f"{{{text}}}")


# --- reductions -----------------------------------------------------------------------------------------------------

_KINDS: dict[str, tuple[str, Callable[[DType], Any]]] = {
    "reduce_sum": ("add", lambda t: 0),
    "reduce_mean": ("add", lambda t: 0),
    "reduce_prod": ("multiply", lambda t: 1),
    "reduce_max": ("maximum", lambda t: t.min),
    "reduce_min": ("minimum", lambda t: t.max),
}


def reduced(w: Writer, x: Ref, op: str, axes: Sequence[int]) -> Ref:
    """Write the reduction of `x` by the graph operator `op`, such as "reduce_mean", over the dimensions `axes`, and
    return its result, in which these dimensions have extent one."""
    kind, start = _KINDS[op]
    if x.dtype is boolean:
        kind = {"maximum": "or", "minimum": "and"}.get(kind, kind)
    retained = [d for k, d in enumerate(x.shape) if k not in axes]
    y = w.reduced(x, kind, start(x.dtype), retained, f"{{dimensions = {ints(sorted(axes))}}}")
    y = w.reshape(y, [as_expr(1) if k in axes else d for k, d in enumerate(x.shape)])
    return w.binary("divide", y, count(w, x, axes, y)) if op == "reduce_mean" else y


def count(w: Writer, x: Ref, axes: Sequence[int], like: Ref) -> Ref:
    """Write the number of elements of `x` along `axes`, repeated to the type and shape of `like`."""
    size = dim(product([x.shape[a] for a in axes]))
    number = as_int(size)
    if number is not None:
        return w.full(number, like.dtype, like.shape)
    return w.spread(w.cast(w.size(size), like.dtype), like.shape)


@rule(*_KINDS)
def reduction(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs = node.of(ReduceAttrs)
    acc = accumulator(x[0].dtype)
    y = reduced(w, w.cast(x[0], acc), node.op, attrs.axes)
    return w.reshape(w.cast(y, x[0].dtype), node.output.shape)


@rule("argmax", "argmin")
def arg(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    """The rule of `arg`: the least index of the extremum, or of a NaN."""
    attrs, source = node.of(ArgAttrs), x[0]
    axis, shape = attrs.axis % len(source.shape), source.shape
    best = w.spread(reduced(w, source, "reduce_max" if node.op == "argmax" else "reduce_min", [axis]), shape)
    result = w.compare("EQ", source, best)
    if source.dtype.is_float:
        result = w.op("or", [result, w.compare("NE", source, source)], boolean, shape)
    last = attrs.select_last_index
    none = w.full(-1 if last else i64.max, i64, shape)
    at = w.op("select", [result, w.iota(i64, shape, axis), none], i64, shape)
    y = reduced(w, at, "reduce_max" if last else "reduce_min", [axis])
    return w.reshape(y, node.output.shape)


@rule("softmax", "log_softmax")
def softmax(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    t = x[0].dtype
    source = w.cast(x[0], accumulator(t))
    axes, shape = [node.of(SoftmaxAttrs).axis % len(source.shape)], source.shape
    shifted = w.binary("subtract", source, w.spread(reduced(w, source, "reduce_max", axes), shape))
    powers = w.op("exponential", [shifted], source.dtype, shape)
    total = reduced(w, powers, "reduce_sum", axes)
    if node.op == "softmax":
        return w.cast(w.binary("divide", powers, w.spread(total, shape)), t)
    return w.cast(w.binary("subtract", shifted, w.spread(w.op("log", [total], total.dtype, total.shape), shape)), t)


@rule("layer_norm", "rms_norm")
def norm(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs, t = node.of(NormAttrs), x[0].dtype
    y = w.cast(x[0], accumulator(t))
    shape = y.shape
    axes = list(range(attrs.axis % len(shape), len(shape)))
    if node.op == "layer_norm":
        y = w.binary("subtract", y, w.spread(reduced(w, y, "reduce_mean", axes), shape))
    square = reduced(w, w.binary("multiply", y, y), "reduce_mean", axes)
    inner = w.binary("add", square, w.full(attrs.epsilon, square.dtype, square.shape))
    y = w.binary("divide", y, w.spread(w.op("sqrt", [inner], inner.dtype, inner.shape), shape))
    for name, k in (("multiply", 1), ("add", 2)):
        if k < len(node.inputs) and node.inputs[k] is not None:
            y = w.binary(name, y, w.spread(w.cast(x[k], y.dtype), shape))
    return w.cast(y, t)


@rule("lrn")
def lrn(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    """The rule of `lrn`: a sum over `size` channels, where channels past either end count as zero."""
    attrs, t = node.of(LrnAttrs), x[0].dtype
    y = w.cast(x[0], accumulator(t))
    rank, before = len(y.shape), (attrs.size - 1) // 2
    window = [attrs.size if k == 1 else 1 for k in range(rank)]
    pads = ", ".join(f"[{before}, {attrs.size - 1 - before}]" if k == 1 else "[0, 0]" for k in range(rank))
    text = (
        f"{{window_dimensions = {ints(window)}, window_strides = {ints([1] * rank)}, "
        f"base_dilations = {ints([1] * rank)}, window_dilations = {ints([1] * rank)}, "
        f"padding = dense<[{pads}]> : tensor<{rank}x2xi64>}}"
    )
    squares = w.reduced(w.binary("multiply", y, y), "add", 0, y.shape, text, "reduce_window")
    scaled = w.binary("multiply", squares, w.full(attrs.alpha / attrs.size, y.dtype, y.shape))
    base = w.binary("add", scaled, w.full(attrs.bias, y.dtype, y.shape))
    return w.cast(w.binary("divide", y, w.binary("power", base, w.full(attrs.beta, y.dtype, y.shape))), t)


@rule("max_pool", "avg_pool")
def pool(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    attrs = node.of(PoolAttrs)
    if attrs.ceil_mode:
        raise UnsupportedError("pooling with ceil_mode cannot be said in StableHLO")
    rank = len(attrs.kernel)
    pads = [(0, 0), (0, 0), *((attrs.pads[k], attrs.pads[rank + k]) for k in range(rank))]
    text = (
        f"{{window_dimensions = {ints((1, 1, *attrs.kernel))}, window_strides = {ints((1, 1, *attrs.strides))}, "
        f"base_dilations = {ints([1] * (rank + 2))}, window_dilations = {ints((1, 1, *attrs.dilations))}, "
        f"padding = dense<[{', '.join(f'[{a}, {b}]' for a, b in pads)}]> : tensor<{rank + 2}x2xi64>}}"
    )
    shape = node.output.shape
    if node.op == "max_pool":
        if node.of(MaxPoolAttrs).skips_nan and x[0].dtype.is_float:
            least = w.full(-math.inf, x[0].dtype, x[0].shape)
            x = [w.op("select", [w.compare("EQ", x[0], x[0]), x[0], least], x[0].dtype, x[0].shape)]
        return w.reduced(x[0], "maximum", -math.inf, shape, text, "reduce_window")
    total = w.reduced(x[0], "add", 0, shape, text, "reduce_window")
    if node.of(AveragePoolAttrs).count_include_pad or not any(attrs.pads):
        return w.binary("divide", total, w.full(math.prod(attrs.kernel), total.dtype, shape))
    ones = w.full(1, total.dtype, x[0].shape)
    return w.binary("divide", total, w.reduced(ones, "add", 0, shape, text, "reduce_window"))


# --- gathers --------------------------------------------------------------------------------------------------------


@rule("gather")
def gather(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    source, index = x
    axis = node.of(AxisAttrs).axis % len(source.shape)
    return gathered(w, source, _from_start(w, index, [source.shape[axis]], ()), axis, node.output.shape)


@rule("gather_nd")
def gather_nd(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    source, index = x
    shared, last = node.of(GatherNdAttrs).batch_dims, len(index.shape) - 1
    looked = range(shared, shared + (as_int(index.shape[last]) or 0))
    index = _from_start(w, index, [source.shape[k] for k in looked], [last])
    sizes = [as_expr(1) if k < looked.stop else d for k, d in enumerate(source.shape)]
    offsets = range(last, len(node.output.shape))
    return _gathered(w, source, index, node.output.shape, sizes, offsets, looked, range(shared), last)


def _from_start(w: Writer, index: Ref, extents: Sequence[Expr], places: Sequence[int]) -> Ref:
    """Write indices whose negative elements are counted from the end as indices from the start. `extents`: the extent
    that all elements refer to, or one for each element along dimension `places` of `index`."""
    if index.dtype.kind == "uint":
        return index
    index = w.cast(index, i32) if index.dtype.bits < 32 else index  # a type that holds the extent
    negative = w.compare("LT", index, w.full(0, index.dtype, index.shape))
    size = w.cast(w.sizes(extents) if places else w.size(extents[0]), index.dtype)
    extent = w.broadcast(size, index.shape, places)
    return w.op("select", [negative, w.binary("add", index, extent), index], index.dtype, index.shape)


def gathered(w: Writer, source: Ref, index: Ref, axis: int, shape: Sequence[Expr]) -> Ref:
    """Write the gather of `source` along `axis` at the elements of `index`, which are not negative, and return the
    result, of shape `shape`."""
    rank = len(index.shape)
    offsets = [k if k < axis else k + rank - 1 for k in range(len(source.shape)) if k != axis]
    sizes = [as_expr(1) if k == axis else d for k, d in enumerate(source.shape)]
    return _gathered(w, source, index, shape, sizes, offsets, [axis], (), rank)


def _gathered(
    w: Writer,
    source: Ref,
    index: Ref,
    shape: Sequence[Expr],
    sizes: Sequence[Expr],
    offsets: Sequence[int],
    looked: Sequence[int],
    shared: Sequence[int],
    vector: int,
) -> Ref:
    """Write StableHLO's `gather` of slices of `sizes` from `source`, and return the result, of shape `shape`. Each
    vector along dimension `vector` of `index` has the indices, in dimensions `looked` of `source`, at which a slice
    begins; these dimensions are dropped, and the others become dimensions `offsets` of the result. Dimensions `shared`
    are batch dimensions of `source` and `index`."""
    batches = f"operand_batching_dims = {[*shared]}, start_indices_batching_dims = {[*shared]}, " if shared else ""
    text = (
        f"dimension_numbers = #stablehlo.gather<offset_dims = {[*offsets]}, collapsed_slice_dims = {[*looked]}, "
        f"{batches}start_index_map = {[*looked]}, index_vector_dim = {vector}>"
    )
    known = [as_int(d) for d in sizes]
    if None in known:
        return w.op("dynamic_gather", [source, index, w.sizes(sizes)], source.dtype, shape, f"{{{text}}}")
    attrs = f"{{{text}, slice_sizes = {ints([d or 0 for d in known])}}}"
    return w.op("gather", [source, index], source.dtype, shape, attrs)


@rule("resize")
def resize(w: Writer, node: Node, x: Sequence[Ref]) -> Ref:
    """The rule of `resize`: for each tap, elements are gathered along the axis for all samples and multiplied by its
    weights, and these are summed. The weights are the operator's NumPy reference applied to an identity matrix."""
    attrs, (source,) = node.of(ResizeAttrs), x
    axis = attrs.axis % len(source.shape)
    extent, size = as_int(source.shape[axis]), as_int(node.output.shape[axis])
    if extent is None or size is None or attrs.roi is not None:
        raise UnsupportedError("Resize of a symbolic dimension, or by a region, cannot be said in StableHLO")
    (weights,) = ops.get("resize").reference([np.eye(extent)], replace(attrs, axis=1))
    taps = [np.flatnonzero(column) for column in weights.T]
    total: Ref | None = None
    for k in range(max((len(t) for t in taps), default=0)):
        places = np.array([t[min(k, len(t) - 1)] if len(t) else 0 for t in taps], np.int64)
        part = gathered(w, source, w.constant(places, i64), axis, node.output.shape)
        if attrs.mode != "nearest":
            each = np.array([weights[t[k], o] if k < len(t) else 0.0 for o, t in enumerate(taps)])
            part = w.cast(part, accumulator(source.dtype))
            part = w.binary("multiply", part, w.broadcast(w.constant(each, part.dtype), part.shape, [axis]))
        total = part if total is None else w.binary("add", total, part)
    return w.full(0, source.dtype, node.output.shape) if total is None else w.cast(total, source.dtype)
