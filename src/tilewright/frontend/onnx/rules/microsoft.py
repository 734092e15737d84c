"""Rules for operators of ONNX Runtime's domain com.microsoft that exporters and its optimiser write: activations,
normalisations of sums, products. They become the operators that a model without them has, so that nothing after the
import knows of them. (ONNX Runtime, docs/ContribOperators.md.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.common.contraction import add_bias, convolved, product
from tilewright.frontend.common.norm import group_norm as common_group_norm
from tilewright.frontend.common.norm import stable_root
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.contraction import convolve, scaled, window
from tilewright.ir.dtype import f32, i32, i64, u8
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dim, dims, known_same, same_dim, static
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

DOMAIN = "com.microsoft."


@rule(f"{DOMAIN}Gelu")
def gelu(n: Call) -> Value:
    return n.emit("gelu", n.value(0), approximate="none")


@rule(f"{DOMAIN}FastGelu")
def fast_gelu(n: Call) -> Value:
    x = n.value(0)
    return n.emit("gelu", n.emit("add", x, n.value(1)) if n.has(1) else x, approximate="tanh")


@rule(f"{DOMAIN}BiasGelu")
def bias_gelu(n: Call) -> Value:
    return n.emit("gelu", n.emit("add", n.value(0), n.value(1)), approximate="none")


@rule(f"{DOMAIN}QuickGelu")
def quick_gelu(n: Call) -> Value:
    return n.emit("swish", n.value(0), alpha=n.real("alpha", 1.702))


@rule(f"{DOMAIN}BiasAdd")
def bias_add(n: Call) -> Value:
    return n.emit("add", n.emit("add", n.value(0), n.value(1)), n.value(2))


@rule(f"{DOMAIN}BiasSplitGelu")
def bias_split_gelu(n: Call) -> Value:
    """BiasSplitGelu: the bias is added; the first half of the channels is multiplied by the GELU of the second."""
    x = n.emit("add", n.value(0), n.value(1))
    half = dim(x.shape[-1] // 2)
    axis = x.type.rank - 1
    left, right = n.slice(x, axis, 0, half), n.slice(x, axis, half, half)
    return n.emit("mul", left, n.emit("gelu", right, approximate="none"))


@rule(f"{DOMAIN}BiasSoftmax")
def bias_softmax(n: Call) -> Value:
    x = n.value(0)
    if axis_of(n.integer("axis", 1), x.type.rank) != x.type.rank - 1:
        raise UnsupportedError("BiasSoftmax over several dimensions is not supported")
    n.integer("is_inner_broadcast", 0)
    return n.emit("softmax", n.emit("add", x, n.value(1)), axis=x.type.rank - 1)


# --- normalisations -------------------------------------------------------------------------------------------------


def _summed(n: Call, bias: int) -> Value:
    """The sum of a normalisation's operands: input, skip and, if input number `bias` is there, bias."""
    total = n.emit("add", n.value(0), n.value(1))
    return n.emit("add", total, n.value(bias)) if n.has(bias) else total


def _with_sum(n: Call, y: Value, total: Value) -> list[Value | None]:
    """The outputs of a fused normalisation: `y`, no statistics (only training reads them), and the sum `total` that was
    normalised."""
    return [y, None, None, total][: n.outputs]


@rule(f"{DOMAIN}SkipLayerNormalization")
def skip_layer_norm(n: Call) -> list[Value | None]:
    total = _summed(n, 4)
    axis, epsilon = total.type.rank - 1, n.real("epsilon", 1e-12)
    return _with_sum(n, n.emit("layer_norm", total, n.value(2), n.optional(3), axis=axis, epsilon=epsilon), total)


@rule(f"{DOMAIN}SkipSimplifiedLayerNormalization")
def skip_rms_norm(n: Call) -> list[Value | None]:
    total = _summed(n, 3)
    axis, epsilon = total.type.rank - 1, n.real("epsilon", 1e-6)
    return _with_sum(n, n.emit("rms_norm", total, n.value(2), axis=axis, epsilon=epsilon), total)


@rule("SimplifiedLayerNormalization", f"{DOMAIN}SimplifiedLayerNormalization")
def rms_norm(n: Call) -> list[Value]:
    """RMSNormalization under its older name; a second output is the inverse root of the mean square."""
    x, scale = n.value(0), n.value(1)
    n.integer("stash_type", 1)
    axis, epsilon = axis_of(n.integer("axis", -1), x.type.rank), n.real("epsilon", 1e-5)
    wide = n.cast(x, scale.dtype)
    results = [n.emit("rms_norm", wide, scale, axis=axis, epsilon=epsilon)]
    if n.outputs > 1:
        wide, axes = n.cast(x, f32), tuple(range(axis, x.type.rank))
        square = n.emit("reduce_mean", n.emit("mul", wide, wide), axes=axes, keepdims=True)
        results.append(n.emit("reciprocal", stable_root(n, square, epsilon)))
    return results


@rule(f"{DOMAIN}EmbedLayerNormalization")
def embed_layer_norm(n: Call) -> list[Value | None]:
    """EmbedLayerNormalization: word, position and segment embeddings are added and normalised. Inputs: words,
    segments?, three tables (that of segments may be absent), scale, shift, mask?, positions?."""
    ids, words, positions = n.value(0), n.value(2), n.value(3)
    batch, length = ids.shape
    total = n.emit("gather", words, ids, axis=0)
    if n.has(8):
        place = n.emit("gather", positions, n.value(8), axis=0)
    else:
        place = n.slice(positions, 0, 0, length)
    total = n.emit("add", total, place)
    if n.has(1) and n.has(4):
        total = n.emit("add", total, n.emit("gather", n.value(4), n.value(1), axis=0))
    y = n.emit("layer_norm", total, n.value(5), n.value(6), axis=2, epsilon=n.real("epsilon", 1e-12))
    n.integer("mask_index_type", 0)
    if n.has(7):
        index = n.emit("reduce_sum", n.cast(n.value(7), i32), axes=(1,), keepdims=False)
    else:
        index = n.emit("broadcast", n.constant(0, i32), shape=(batch,))
    results: list[Value | None] = [y, index, total]
    return results[: n.outputs]


@rule(f"{DOMAIN}GroupNorm")
def group_norm(n: Call) -> Value:
    """Group normalisation of images with channels last or first, followed by SiLU where the node's `activation` says
    so."""
    x, groups = n.value(0), n.integer("groups", 1)
    last = bool(n.integer("channels_last", 1))
    if x.type.rank != 4:
        raise ShapeError("GroupNorm needs images", got=x.type)
    y = n.transpose(x, (0, 3, 1, 2)) if last else x
    channels = static(y.shape[1], "the channels of GroupNorm")
    if groups < 1 or channels % groups:
        raise ShapeError("the channels do not divide into groups", expected=groups, got=x.type)
    each, epsilon = const(channels // groups), n.real("epsilon", 1e-5)
    y = common_group_norm(n, y, groups, each, n.value(1), n.value(2), epsilon)
    if n.integer("activation", 0):
        y = n.emit("swish", y, alpha=1.0)
    return n.transpose(y, (0, 2, 3, 1)) if last else y


# --- products -------------------------------------------------------------------------------------------------------


def _swapped(n: Call, x: Value, wanted: bool, batch: bool) -> Value:
    """An operand of FusedMatMul: if `batch`, its first dimension, the rows, moves to before the last; if `wanted`, its
    last two dimensions are then exchanged."""
    order = list(range(x.type.rank))
    if batch:  # [rows, batch..., columns] to [batch..., rows, columns]
        order = [*order[1:-1], order[0], order[-1]]
    if wanted and len(order) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    return n.transpose(x, order)


@rule(f"{DOMAIN}FusedMatMul", f"{DOMAIN}TransposeMatMul")
def fused_matmul(n: Call) -> Value:
    a = _swapped(n, n.value(0), bool(n.integer("transA", 0)), bool(n.integer("transBatchA", 0)))
    b = _swapped(n, n.value(1), bool(n.integer("transB", 0)), bool(n.integer("transBatchB", 0)))
    return scaled(n, product(n, a, b), n.real("alpha", 1.0))


def activated(n: Call, x: Value, name: str, values: list[float]) -> Value:
    """The activation `name` of a fused operator applied to `x`; `values` are its parameters in the order in which the
    node lists them."""

    def number(k: int, default: float) -> float:
        return float(values[k]) if k < len(values) else default

    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid":
            return n.emit(name.lower(), x)
        case "LeakyRelu":
            return n.emit("leaky_relu", x, alpha=number(0, 0.01))
        case "HardSigmoid":
            return n.emit("hard_sigmoid", x, alpha=number(0, 0.2), beta=number(1, 0.5))
        case "Clip":
            return n.emit("clip", x, min=number(0, -np.inf), max=number(1, np.inf))
        case "HardSwish":
            return n.emit("hard_swish", x)
        case "Elu":
            return n.emit("elu", x, alpha=number(0, 1.0))
        case "Softsign" | "Softplus":
            return n.emit(name.lower(), x)
    raise UnsupportedError(f"the activation {name} is not supported")


@rule(f"{DOMAIN}FusedGemm")
def fused_gemm(n: Call) -> Value:
    if n.rank(0) != 2 or n.rank(1) != 2:
        raise ShapeError("FusedGemm needs matrices", got=f"{n.type(0)} and {n.type(1)}")
    swap_a, swap_b = bool(n.integer("transA", 0)), bool(n.integer("transB", 0))
    y = n.emit("matmul", n.value(0), n.value(1), transpose_a=swap_a, transpose_b=swap_b)
    y = scaled(n, y, n.real("alpha", 1.0))
    beta = n.real("beta", 1.0)
    if n.has(2) and beta:
        y = n.emit("add", y, scaled(n, n.value(2), beta))
    values = [n.real(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    return activated(n, y, n.text("activation", ""), [v for v in values if v is not None])


@rule(f"{DOMAIN}FusedConv")
def fused_conv(n: Call) -> Value:
    w = n.value(1)
    x, attrs = window(n, n.value(0), w)
    y = convolved(n, x, w, n.optional(2), attrs)
    if n.has(3):
        y = n.emit("add", y, n.value(3))
    return activated(n, y, n.text("activation", ""), list(n.attr("activation_params") or []))


@rule(f"{DOMAIN}NhwcConv", f"{DOMAIN}NhwcFusedConv")
def nhwc_conv(n: Call) -> Value:
    """A convolution of images with channels last; NhwcConv's filters have them last, too."""
    x, w = n.value(0), n.value(1)
    if x.type.rank != 4 or w.type.rank != 4:
        raise ShapeError("NhwcConv needs images", got=f"{x.type} and {w.type}")
    x = n.transpose(x, (0, 3, 1, 2))
    if n.node.op_type == "NhwcConv":
        w = n.transpose(w, (0, 3, 1, 2))
    y = add_bias(n, convolve(n, x, w), n.optional(2))
    if n.has(3):
        y = n.emit("add", y, n.transpose(n.value(3), (0, 3, 1, 2)))
    y = activated(n, y, n.text("activation", ""), list(n.attr("activation_params") or []))
    return n.transpose(y, (0, 2, 3, 1))


@rule(f"{DOMAIN}CDist")
def distances(n: Call) -> Value:
    """CDist: the Euclidean distance of each row of x to each row of y, or its square."""
    x, y = n.value(0), n.value(1)
    metric = n.text("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean") or x.type.rank != 2 or y.type.rank != 2:
        raise UnsupportedError("CDist of this metric or rank is not supported", got=f"{metric}, {x.type}")
    rows, columns = n.reshape(x, (x.shape[0], 1, x.shape[1])), n.reshape(y, (1, *y.shape))
    separate = n.emit("sub", rows, columns)
    total = n.emit("reduce_sum", n.emit("mul", separate, separate), axes=(2,), keepdims=False)
    return total if metric == "sqeuclidean" else n.emit("sqrt", total)


# --- weights of few bits --------------------------------------------------------------------------------------------


def unpacked(n: Call, x: Value, bits: int) -> Value:
    """Bytes that each hold several numbers of `bits` bits, the first in the lowest bits, expanded along the last
    dimension."""
    if bits == 8:
        return x
    parts = [n.emit("shr", x, n.constant(shift, u8)) if shift else x for shift in range(0, 8, bits)]
    mask = n.constant((1 << bits) - 1, u8)
    columns = [n.reshape(n.emit("bitand", p, mask), (*x.shape, 1)) for p in parts]
    joined = n.emit("concat", *columns, axis=x.type.rank)
    return n.reshape(joined, (*x.shape[:-1], dim(x.shape[-1] * len(parts))))


@rule(f"{DOMAIN}MatMulNBits")
def matmul_nbits(n: Call) -> Value:
    """x times the transpose of weights of `bits` bits, in blocks of columns with a scale and a zero point each.

    Weights that are constants are dequantised when they are loaded, in `prepare`.
    """
    x, packed, scales = n.value(0), n.value(1), n.value(2)
    columns, rows = n.integer("K", 0), n.integer("N", 0)
    bits, block = n.integer("bits", 4), n.integer("block_size", 32)
    n.integer("accuracy_level", 0)
    n.integer("weight_prepacked", 0)
    if bits not in (2, 4, 8) or columns < 1 or rows < 1 or block < 1 or packed.dtype is not u8:
        raise UnsupportedError("weights of these bits are not supported", expected="2, 4 or 8", got=bits)
    if n.has(4):
        raise UnsupportedError("MatMulNBits with an order of groups (g_idx) is not supported")
    blocks = -(-columns // block)
    if as_int(packed.type.size) != rows * blocks * (block * bits // 8):
        raise UnsupportedError("the packed weights do not fit N, K and block_size", got=packed.type)
    levels = unpacked(n, n.reshape(packed, (rows, blocks, block * bits // 8)), bits)
    w = n.emit("sub", n.cast(levels, f32), _zero_points(n, 3, rows, blocks, bits))
    w = n.emit("mul", w, n.cast(n.reshape(scales, (rows, blocks, 1)), f32))
    w = n.slice(n.reshape(w, (rows, blocks * block)), 1, 0, columns)
    y = n.emit("matmul", x, n.cast(w, x.dtype), transpose_b=True)
    return n.emit("add", y, n.value(5)) if n.has(5) else y


def _zero_points(n: Call, i: int, rows: int, blocks: int, bits: int) -> Value:
    """The zero points of blocks, f32[rows, blocks, 1], from input `i`: floats, or packed integers of `bits` bits; the
    middle of the range if the input is absent."""
    if not n.has(i):
        return n.constant(1 << (bits - 1), f32)
    zero_points = n.value(i)
    if zero_points.dtype.is_float:
        return n.cast(n.reshape(zero_points, (rows, blocks, 1)), f32)
    wide = -(-blocks * bits // 8)
    if as_int(zero_points.type.size) != rows * wide:
        raise UnsupportedError("the zero points do not fit N, K and block_size", got=zero_points.type)
    levels = unpacked(n, n.reshape(zero_points, (rows, wide)), bits)
    return n.cast(n.reshape(n.slice(levels, 1, 0, blocks), (rows, blocks, 1)), f32)


@rule(f"{DOMAIN}GatherBlockQuantized")
def gather_block_quantized(n: Call) -> Value:
    """`GatherBlockQuantized`: rows of a table of few bits, gathered, then dequantised. Inputs: the table, indices,
    scales, zero points?; blocks lie along the last dimension."""
    data, indices, scales = n.value(0), n.value(1), n.value(2)
    rank, bits, block = data.type.rank, n.integer("bits", 4), n.integer("block_size", 128)
    if axis_of(n.integer("gather_axis", 0), rank) != 0 or axis_of(n.integer("quantize_axis", 1), rank) != rank - 1:
        raise UnsupportedError("GatherBlockQuantized gathers along the first dimension, with blocks along the last")
    packed = data.dtype is u8
    rows = n.emit("gather", data, indices, axis=0)
    levels = unpacked(n, rows, bits) if packed else rows
    width = levels.shape[-1]
    w = n.cast(levels, f32)
    if n.has(3):
        zero = n.emit("gather", n.value(3), indices, axis=0)
        w = n.emit("sub", w, _over_blocks(n, n.cast(unpacked(n, zero, bits) if packed else zero, f32), block, width))
    elif packed:
        w = n.emit("sub", w, n.constant(1 << (bits - 1), f32))
    spread = _over_blocks(n, n.cast(n.emit("gather", scales, indices, axis=0), f32), block, width)
    return n.cast(n.emit("mul", w, spread), scales.dtype)


def _over_blocks(n: Call, x: Value, block: int, width: Expr) -> Value:
    """`x` with each entry of its last dimension, one per block, repeated `block` times, cut to `width` entries."""
    count = x.shape[-1]
    wide = n.emit("broadcast", n.reshape(x, (*x.shape, 1)), shape=dims((*x.shape, block)))
    flat = n.reshape(wide, (*x.shape[:-1], dim(count * block)))
    return n.slice(flat, flat.type.rank - 1, 0, width)


# --- positions ------------------------------------------------------------------------------------------------------


def rotated(n: Call, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """Rotary embedding: pairs of features rotated by angles; a pair is two neighbours if `interleaved`, else one
    feature of either half. x is [batch, heads, length, features]; cos and sin broadcast to half of the features. Where
    the tables are narrower, only the first features are rotated."""
    half, rank = cos.shape[-1], x.type.rank
    transposed, rest = dim(half * 2), dim(x.shape[-1] - half * 2)
    whole = known_same(rest, const(0))
    part = x if whole else n.slice(x, rank - 1, 0, transposed)
    if interleaved:
        pairs = n.reshape(part, (*part.shape[:-1], half, 2))
        left, right = (n.reshape(n.slice(pairs, rank, k, 1), (*part.shape[:-1], half)) for k in (0, 1))
    else:
        left, right = n.slice(part, rank - 1, 0, half), n.slice(part, rank - 1, half, half)
    first = n.emit("sub", n.emit("mul", left, cos), n.emit("mul", right, sin))
    second = n.emit("add", n.emit("mul", right, cos), n.emit("mul", left, sin))
    if interleaved:
        ends = [n.reshape(v, (*v.shape, 1)) for v in (first, second)]
        y = n.reshape(n.emit("concat", *ends, axis=rank), part.shape)
    else:
        y = n.emit("concat", first, second, axis=rank - 1)
    return y if whole else n.emit("concat", y, n.slice(x, rank - 1, transposed, rest), axis=rank - 1)


def angles(n: Call, table: Value, positions: Value) -> Value:
    """The cosines or sines for rotary embedding: rows `positions` of `table` [positions, half], as [batch, 1, length,
    half]."""
    rows = n.emit("gather", table, positions, axis=0)
    return n.reshape(rows, (rows.shape[0], 1, *rows.shape[1:]))


@rule(f"{DOMAIN}RotaryEmbedding")
def rotary_embedding(n: Call) -> Value:
    """`RotaryEmbedding` of x [batch, length, hidden] or [batch, heads, length, features]; further inputs are the
    positions and tables of cos and sin."""
    x, positions, cos, sin = (n.value(i) for i in range(4))
    interleaved = bool(n.integer("interleaved", 0))
    heads, features = n.integer("num_heads", 0), n.integer("rotary_embedding_dim", 0)
    if n.real("scale", 1.0) != 1 or n.integer("is_packed_batching", 0):
        raise UnsupportedError("RotaryEmbedding with a scale or packed batches is not supported")
    if x.type.rank == 4:
        length, y = x.shape[2], x
    elif x.type.rank == 3:
        if features and not heads:
            raise ModelError("RotaryEmbedding of a part of the features needs num_heads")
        size = dim(x.shape[2] // heads) if heads else dim(cos.shape[1] * 2)
        length = x.shape[1]
        y = n.transpose(n.reshape(x, (x.shape[0], length, dim(x.shape[2] // size), size)), (0, 2, 1, 3))
    else:
        raise ShapeError("RotaryEmbedding needs three or four dimensions", got=x.type)
    if positions.type.rank == 1:  # of the first row alone
        steps = n.emit("range", start=0, step=1, size=length, dtype=i64)
        positions = n.reshape(n.emit("add", n.cast(positions, i64), steps), (1, length))
    y = rotated(n, y, angles(n, cos, positions), angles(n, sin, positions), interleaved)
    return y if x.type.rank == 4 else n.reshape(n.transpose(y, (0, 2, 1, 3)), x.shape)


def shape_of_heads(n: Call, x: Value, heads: int) -> Value:
    """[batch, length, heads * features] transposed to [batch, heads, length, features]."""
    if heads < 1 or x.type.rank != 3:
        raise ShapeError("attention needs heads and three dimensions", got=f"{heads} heads, {x.type}")
    features = dim(x.shape[2] // heads)
    if not same_dim(dim(features * heads), x.shape[2]):
        raise ShapeError("the features do not divide into heads", expected=f"a multiple of {heads}", got=x.type)
    return n.transpose(n.reshape(x, (x.shape[0], x.shape[1], heads, features)), (0, 2, 1, 3))


__all__: list[Any] = ["DOMAIN", "angles", "rotated", "shape_of_heads"]
