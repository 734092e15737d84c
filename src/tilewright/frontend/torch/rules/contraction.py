"""Rules for matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arith import prove_equal
from tilewright.frontend.common import contraction as common
from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.frontend.torch.rules.random import dropout as dropped
from tilewright.ir.attributes import same
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs, ConvTransposeAttrs
from tilewright.ops.dims import static
from tilewright.ops.gradients import registry as gradients
from tilewright.support.errors import ShapeError, UnsupportedError


@rule("linear")
def linear(n: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x W^T + b over the last dimension of `x`, for `weight` W [out, in], or a vector [in], and `bias` b."""
    vector = weight.type.rank == 1
    if vector:
        weight = n.reshape(weight, (1, weight.shape[0]))
    rows = n.reshape(x, (1, *x.shape)) if x.type.rank == 1 else x
    y = n.emit("matmul", rows, weight, transpose_b=True, dtype=None if bias is None else _sums(x))
    y = y if bias is None else n.cast(n.emit("add", y, n.cast(bias, y.dtype)), n.dtype)
    return n.reshape(y, n.shape) if vector or x.type.rank == 1 else y


def _sums(x: Value) -> DType | None:
    """The element type in which products of `x` are summed before a bias is added: f32 for 16-bit floats; None, the
    type of `x`, for others."""
    return f32 if x.dtype.is_float and x.dtype.bits == 16 else None


@rule("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul")
def matmul(n: Call, a: Value, b: Value) -> Value:
    """The product of two tensors in their element type: sums of 8-bit integers wrap around at 8 bits."""
    return n.cast(common.product(n, a, b), n.dtype)


@rule("outer", "ger")
def outer(n: Call, a: Value, b: Value) -> Value:
    return n.emit("mul", n.reshape(a, (a.shape[0], 1)), n.reshape(b, (1, b.shape[0])))


@rule("addmm", "baddbmm", "addmv")
def addmm(n: Call, x: Value, a: Value, b: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    result = _scaled(n, common.product(n, a, b, _sums(a)), alpha)
    if not same(beta, 0):
        result = n.emit("add", result, _scaled(n, n.cast(x, result.dtype), beta))
    return n.cast(result, n.dtype)


def _scaled(n: Call, x: Value, factor: Any) -> Value:
    return x if same(factor, 1) else n.emit("mul", x, n.like(factor, x))


@rule("einsum")
def einsum(n: Call, equation: str, tensors: Sequence[Value], path: Any = None) -> Value:
    if "." in equation:
        raise n.unsupported("with an ellipsis", got=equation)
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        letters = left.replace(",", "")
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return n.emit("einsum", *tensors, equation=f"{left}->{right}")


# --- convolution ----------------------------------------------------------------------------------------------------


@rule("conv1d", "conv2d", "conv3d", single=True)
def conv(
    n: Call, x: Value, w: Value, bias: Value | None, strides: Any, padding: Any, dilations: Any, groups: int
) -> Value:
    rank = w.type.rank - 2
    strides, dilations = _each(strides, rank), _each(dilations, rank)
    if isinstance(padding, str):
        pads = _named_padding(n, w, padding, strides, dilations)
    else:
        pads = _each(padding, rank) * 2
    attrs = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads), "groups": groups}
    return _batched(n, x, rank, lambda v: common.convolved(n, v, w, bias, attrs))


def _named_padding(n: Call, w: Value, padding: str, strides: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The pads before, then after, each dimension that the string `padding` names for filters `w`: none for "valid";
    for "same", with these `dilations`, so many that the output is as large as the input, with an odd one at the end."""
    if padding == "valid":
        return [0] * 2 * len(strides)
    totals = [d * (static(k, "the kernel") - 1) for d, k in zip(dilations, w.shape[2:], strict=True)]
    return [t // 2 for t in totals] + [t - t // 2 for t in totals]


def _each(value: Any, rank: int) -> list[int]:
    """`value` as one number for each of `rank` spatial dimensions; a single number holds for all."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    return listed * rank if len(listed) == 1 else listed


def _batched(n: Call, x: Value, rank: int, f: Any) -> Value:
    """`f`, which needs a batch dimension, applied to `x`, which may lack it."""
    if x.type.rank != rank + 1:
        return f(x)  # type: ignore[no-any-return]
    y = f(n.reshape(x, (1, *x.shape)))
    return n.reshape(y, y.shape[1:])


@rule("convolution", single=True)
def convolution(
    n: Call,
    x: Value,
    w: Value,
    bias: Value | None,
    strides: Any,
    padding: Any,
    dilations: Any,
    transposed: bool,
    extra: Any,
    groups: int,
) -> Value:
    if transposed:
        return conv_transpose(n, x, w, bias, strides, padding, extra, groups, dilations)
    return conv(n, x, w, bias, strides, padding, dilations, groups)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", single=True)
def conv_transpose(
    n: Call, x: Value, w: Value, bias: Value | None, strides: Any, padding: Any, extra: Any, groups: int, dilations: Any
) -> Value:
    rank = w.type.rank - 2
    s, p, e, d = (_each(v, rank) for v in (strides, padding, extra, dilations))

    def run(v: Value) -> Value:
        return common.conv_transpose(n, v, w, bias, s, d, p * 2, e, groups)

    return _batched(n, x, rank, run)


@rule("convolution_backward")
def convolution_backward(
    n: Call,
    g: Value,
    x: Value,
    w: Value,
    bias_sizes: Any,
    strides: Any,
    padding: Any,
    dilations: Any,
    transposed: bool,
    extra: Any,
    groups: int,
    wanted: Sequence[bool],
) -> list[Value | None]:
    """The gradients of a convolution (or, with `transposed`, of its transpose, with output padding `extra`) by input
    `x`, weight `w` and bias, from its result's gradient `g`; None for each that `wanted` does not ask for. The other
    arguments are the convolution's."""
    rank = w.type.rank - 2
    s, p, d, e = (tuple(_each(v, rank)) for v in (strides, padding, dilations, extra))
    attrs = ConvTransposeAttrs(s, d, p * 2, groups, e) if transposed else ConvAttrs(s, d, p * 2, groups)
    op = "conv_transpose" if transposed else "conv"
    rule = gradients.find(op)
    assert rule is not None
    new_node = Node(op, (x, w), (Value(n.hint, g.type),), attrs)
    by_x, by_w = rule(gradients.Backward(n.builder, new_node, (g,)))
    axes = (0, *range(2, g.type.rank))
    by_bias = n.emit("reduce_sum", g, axes=axes, keepdims=False) if wanted[2] else None
    return [by_x if wanted[0] else None, by_w if wanted[1] else None, by_bias]


# --- attention ------------------------------------------------------------------------------------------------------


@rule("scaled_dot_product_attention")
def grouped_attention(
    n: Call, q: Value, k: Value, v: Value, *rest: Any, scale: Operand | None = None, enable_gqa: bool = False
) -> Value:
    """Attention of queries `q` to keys `k` and values `v`, [..., heads, sequence, depth], in which, with `enable_gqa`,
    one head of keys and values serves several query heads: it is repeated, while still in 16 bits. `rest`: the mask,
    the dropout rate, and whether it is causal."""
    if enable_gqa:
        k, v = (_repeated_heads(n, t, q) for t in (k, v))
    return n.single(attention, q, k, v, *rest, scale=scale)  # type: ignore[no-any-return]


def attention(
    n: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: Operand | None = None,
) -> Value:
    """softmax(q k^T * scale + mask) v, as separate operators that the compiler joins again. `scale` is 1/sqrt(depth) if
    None, `dropout` the share of weights that are dropped in training; with `causal`, queries do not see later keys."""
    if scale is None:
        depth = static(q.shape[-1], "the depth of attention")
        scale = 1 / depth**0.5 if depth else 1.0
    scores = n.emit("matmul", q, k, transpose_a=False, transpose_b=True)
    scores = n.emit("mul", scores, n.operand(scale, scores.dtype))
    if causal:
        mask = _causal(n, q, k)
    if mask is not None and mask.dtype.kind == "bool":
        scores = n.emit("select", mask, scores, n.like(float("-inf"), scores))
    elif mask is not None:
        scores = n.emit("add", scores, n.cast(mask, scores.dtype))
    weights = n.emit("softmax", scores, axis=scores.type.rank - 1)
    if mask is not None and not causal:  # a row that may see nothing gives zeros; causal ones see their first key
        hidden = n.emit("and", n.emit("isnan", weights), n.emit("eq", scores, n.like(float("-inf"), scores)))
        weights = n.emit("select", hidden, n.like(0.0, weights), weights)
    return n.emit("matmul", dropped(n, weights, dropout, True), v)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    n: Call,
    q: Value,
    k: Value,
    v: Value,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: Operand | None = None,
) -> list[Value]:
    """PyTorch's attention for CPUs, of q, k and v [batch, heads, sequence, depth], with the arguments of `attention`.
    Returns [result], without the second result, which only PyTorch's backward pass reads."""
    return [n.single(attention, q, k, v, attn_mask, dropout, causal, scale)]


@rule("tilewright::attention_backward")
def attention_backward(
    n: Call,
    g: Value,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    causal: bool,
    scale: Operand | None,
) -> list[Value]:
    """The gradients [by q, by k, by v] of attention, from its result's gradient `g`, for the operator in
    `dynamo/attention.py`. `mask`, `causal` and `scale` (1/sqrt(depth) if None) are the arguments of the forward
    pass."""
    if scale is None:
        scale = 1 / static(q.shape[-1], "the depth of attention") ** 0.5
    if not isinstance(scale, int | float):
        raise UnsupportedError("a scale that is no number", got=scale)
    heads = static(q.shape[1], "the heads of attention")
    square = prove_equal(q.shape[2], k.shape[2])
    if causal and not square:
        mask = _causal(n, q, k)
    return [
        *n.emit_all(
            "attention_gradient",
            *(q, k, v, g),
            *(() if mask is None else (mask if mask.dtype.kind == "bool" else n.cast(mask, q.dtype),)),
            order="hhhh",
            heads=heads,
            groups=heads,
            first=(0, 0, 0),
            scale=float(scale),
            causal=causal and square,
            fill=float("-inf"),
            guard=mask is not None,
            keeps_nan=mask is not None,
        )
    ]


def _causal(n: Call, q: Value, k: Value) -> Value:
    """The causal mask [queries, keys] of `q` and `k`: query i attends to keys 0 to i."""
    from tilewright.ir.dtype import i64

    rows = n.emit("range", start=0, step=1, size=q.shape[-2], dtype=i64)
    columns = n.emit("range", start=0, step=1, size=k.shape[-2], dtype=i64)
    return n.emit("le", n.reshape(columns, (1, k.shape[-2])), n.reshape(rows, (q.shape[-2], 1)))


def _repeated_heads(n: Call, x: Value, q: Value) -> Value:
    heads, groups = as_int(q.shape[-3]), as_int(x.shape[-3])
    if heads is None or groups is None or heads % groups:
        raise ShapeError("the heads of attention do not divide", got=f"{q.type} and {x.type}")
    if heads == groups:
        return x
    *lead, _, keys, depth = x.shape
    wide = n.broadcast(n.reshape(x, (*lead, groups, 1, keys, depth)), (*lead, groups, heads // groups, keys, depth))
    return n.reshape(wide, (*lead, heads, keys, depth))
