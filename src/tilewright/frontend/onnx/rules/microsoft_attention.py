"""Rules for com.microsoft's attention operators: products and a softmax, which a later pass fuses to attention."""

from __future__ import annotations

from tilewright.frontend.common.contraction import product
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.microsoft import DOMAIN, angles, rotated, shape_of_heads
from tilewright.frontend.onnx.rules.quant import centred
from tilewright.ir.dtype import boolean, f32, i64
from tilewright.ir.expr import Expr, as_int, is_const, maximum
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims, same_dim, static
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

MASKED = -10000.0
"""The number that is added to masked scores where the node states none."""


def attended(
    n: Call, q: Value, k: Value, v: Value, scale: float | None, masks: list[Value], softcap: float = 0
) -> Value:
    """Attention in ordinary operators: softmax(q k^T * scale + masks) v of [batch, heads, length, features]. A boolean
    mask is true for keys that are seen; others are added. With a softcap c, scores s become c tanh(s / c) first."""
    if scale is None or scale == 0:
        scale = static(q.shape[-1], "the features of a head") ** -0.5
    scores = n.emit("matmul", q, k, transpose_a=False, transpose_b=True)
    scores = n.emit("mul", scores, n.like(scale, scores))
    if softcap:
        scores = n.emit("tanh", n.emit("mul", scores, n.like(1 / softcap, scores)))
        scores = n.emit("mul", scores, n.like(softcap, scores))
    for mask in masks:
        if mask.dtype.is_float:
            scores = n.emit("add", scores, n.cast(mask, scores.dtype))
        else:
            scores = n.emit("select", mask, scores, n.like(float("-inf"), scores))
    return n.emit("matmul", n.emit("softmax", scores, axis=3), v)


def joined_heads(n: Call, y: Value) -> Value:
    """[batch, heads, length, features] transposed to [batch, length, heads * features]."""
    y = n.transpose(y, (0, 2, 1, 3))
    return n.reshape(y, (y.shape[0], y.shape[1], dim(y.shape[2] * y.shape[3])))


def steps(n: Call, count: Expr, shape: tuple[int, ...], begin: Expr | int = 0) -> Value:
    """The positions begin, ..., begin + count - 1, reshaped to `shape`: `count` where that has -1, 1 in its other
    dimensions."""
    line = n.emit("range", start=begin, step=1, size=count, dtype=i64)
    return n.reshape(line, [count if d == -1 else d for d in shape])


def causal(n: Call, rows: Expr, keys: Expr) -> Value:
    """A causal mask: query i, at one of the last `rows` positions, attends to keys up to its own position."""
    return n.emit("le", steps(n, keys, (1, -1)), steps(n, rows, (-1, 1), dim(keys - rows)))


def padding(n: Call, i: int, q: Value, keys: Expr, filler: float) -> Value:
    """An additive mask of `keys` keys, for the scores of the queries `q`, from input `i`: 0 for keys that are seen,
    `filler` for others. The input is [batch] lengths, or nonzero for keys that are seen in [batch, keys], [batch, rows,
    keys] or with a dimension of heads."""
    mask = n.value(i)
    rank = mask.type.rank
    if rank == 1:
        if not same_dim(mask.shape[0], q.shape[0]):
            raise UnsupportedError("a mask of the first and last keys is not supported", got=mask.type)
        seen = n.emit("lt", steps(n, keys, (1, -1)), n.reshape(n.cast(mask, i64), (mask.shape[0], 1)))
    elif 2 <= rank <= 4:
        seen = n.emit("ne", mask, n.like(0, mask)) if mask.dtype.is_int else n.cast(mask, boolean)
    else:
        raise ShapeError("a mask of attention has one to four dimensions", got=mask.type)
    shape = {2: (seen.shape[0], 1, 1, seen.shape[-1]), 3: (seen.shape[0], 1, *seen.shape[1:])}.get(seen.type.rank)
    seen = seen if shape is None else n.reshape(seen, shape)
    return n.emit("select", seen, n.like(0.0, q), n.like(filler, q))


def split_heads(n: Call, qkv: Value, sizes: list[int], heads: int) -> list[Value]:
    """The columns of a projection `qkv` split by `sizes` into q, k and v, each reshaped to [batch, heads, length,
    features]."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(shape_of_heads(n, n.slice(qkv, 2, begin, size), heads))
        begin += size
    return parts


@rule(f"{DOMAIN}Attention")
def attention(n: Call) -> list[Value]:
    """com.microsoft's Attention: the projection x w + bias, then self-attention. Inputs: x, weights, bias?, mask?,
    cached keys and values?, addend of the scores?."""
    x, w = n.value(0), n.value(1)
    heads = n.integer("num_heads", 0)
    width = static(w.shape[1], "the projection of Attention")
    sizes = n.ints("qkv_hidden_sizes") or [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width:
        raise ShapeError("qkv_hidden_sizes are not the weights'", expected=width, got=sizes)
    if n.integer("do_rotary", 0) or n.integer("past_present_share_buffer", 0):
        raise UnsupportedError("Attention with rotation or a shared cache is not supported")
    qkv = product(n, x, w)
    qkv = n.emit("add", qkv, n.value(2)) if n.has(2) else qkv
    q, k, v = split_heads(n, qkv, sizes, heads)
    return with_past(n, q, k, v, mask=3, past=4, bias=5)


@rule(f"{DOMAIN}QAttention")
def quantized_attention(n: Call) -> list[Value]:
    """QAttention: the projection is a product of integers. Inputs: x, weights, bias, scales of both, mask?, zero points
    of both?, cached keys and values?."""
    w = n.value(1)
    width = static(w.shape[1], "the projection of QAttention")
    if n.integer("do_rotary", 0) or n.integer("past_present_share_buffer", 0):
        raise UnsupportedError("QAttention with rotation or a shared cache is not supported")
    total = n.cast(product(n, centred(n, n.value(0), 6, -1), centred(n, w, 7, -1)), f32)
    qkv = n.emit("add", n.emit("mul", total, n.emit("mul", n.value(3), n.value(4))), n.value(2))
    q, k, v = split_heads(n, qkv, [width // 3] * 3, n.integer("num_heads", 0))
    return with_past(n, q, k, v, mask=5, past=8, bias=9)


def with_past(n: Call, q: Value, k: Value, v: Value, mask: int, past: int, bias: int) -> list[Value]:
    """Attention of the queries `q` over cached and new keys `k` and values `v`, [batch, heads, length, features], with
    the outputs of the node: the result, and the extended cache [2, batch, heads, past + length, features]. `mask`,
    `past` and `bias` are numbers of inputs."""
    filler = n.real("mask_filter_value", MASKED)
    if n.has(past):
        cache = n.value(past)
        old = [n.reshape(n.slice(cache, 0, i, 1), cache.shape[1:]) for i in (0, 1)]
        k, v = n.emit("concat", old[0], k, axis=2), n.emit("concat", old[1], v, axis=2)
    masks = [causal(n, q.shape[2], k.shape[2])] if n.integer("unidirectional", 0) else []
    if n.has(mask):
        masks.append(padding(n, mask, q, k.shape[2], filler))
    if n.has(bias):
        masks.append(n.value(bias))
    results = [joined_heads(n, attended(n, q, k, v, n.real("scale", None), masks))]
    if n.outputs > 1:
        rows = [n.reshape(t, (1, *t.shape)) for t in (k, v)]
        results.append(n.emit("concat", *rows, axis=0))
    return results


@rule(f"{DOMAIN}MultiHeadAttention")
def multi_head_attention(n: Call) -> list[Value]:
    """`MultiHeadAttention`: the result, and the keys and values with cached ones before them. Inputs: q, k?, v?, bias?,
    mask of keys?, an addend of the scores?, cached keys?, cached values?."""
    heads = n.integer("num_heads", 0)
    q, k, v = _factors(n, heads)
    if n.has(6) and n.has(7):
        k, v = n.emit("concat", n.value(6), k, axis=2), n.emit("concat", n.value(7), v, axis=2)
    filler = n.real("mask_filter_value", MASKED)
    masks = [causal(n, q.shape[2], k.shape[2])] if n.integer("unidirectional", 0) else []
    if n.has(4):
        masks.append(padding(n, 4, q, k.shape[2], filler))
    if n.has(5):
        masks.append(n.value(5))
    y = joined_heads(n, attended(n, q, k, v, n.real("scale", None), masks))
    return [y, k, v][: n.outputs]


def _factors(n: Call, heads: int) -> tuple[Value, Value, Value]:
    """q, k and v of MultiHeadAttention as [batch, heads, length, features], each with its part of the bias. They are
    three inputs, or keys and values, or all, are packed in one [batch, length, heads, 2 or 3, features]."""
    first = n.value(0)
    if first.type.rank == 5:
        b, s, h, count, d = first.shape
        parts = [n.reshape(n.slice(first, 3, i, 1), (b, s, dim(h * d))) for i in range(static(count, "packed factors"))]
    elif n.has(1) and n.rank(1) == 5:
        packed = n.value(1)
        b, s, h, _, d = packed.shape
        parts = [first, *(n.reshape(n.slice(packed, 3, i, 1), (b, s, dim(h * d))) for i in range(2))]
    else:
        parts = [first, n.value(1), n.value(2)]
    if n.has(3):
        bias, begin = n.value(3), 0
        for i, part in enumerate(parts):
            wide = static(part.shape[2], "the features of attention") if part.type.rank == 3 else 0
            if not wide:
                raise UnsupportedError("a bias of keys that are by heads already is not supported")
            parts[i] = n.emit("add", part, n.slice(bias, 0, begin, wide))
            begin += wide
    q, k, v = (p if p.type.rank == 4 else shape_of_heads(n, p, heads) for p in parts)
    return q, k, v


@rule(f"{DOMAIN}GroupQueryAttention")
def group_query_attention(n: Call) -> list[Value]:
    """`GroupQueryAttention`: the result, and the keys and values, where each sequence's new ones follow its cached
    ones. Inputs: q (or q, k and v packed), k?, v?, cached keys?, cached values?, the last position of each sequence,
    the greatest length, tables of cos and sin?."""
    heads, groups = n.integer("num_heads", 0), n.integer("kv_num_heads", 0)
    if heads < 1 or groups < 1 or heads % groups:
        raise ModelError("num_heads must be a multiple of kv_num_heads", got=f"{heads}, {groups}")
    if n.integer("smooth_softmax", 0) or any(n.has(i) for i in (11, 12, 13)):
        raise UnsupportedError("GroupQueryAttention with sinks, norms or a quantised cache is not supported")
    q, k, v = _grouped(n, heads, groups)
    batch, length = q.shape[0], q.shape[2]
    last = n.reshape(n.cast(n.value(5), i64), (batch,))  # the number of keys less one
    first = n.emit(
        "sub", n.emit("add", last, n.constant(1, i64)), n.emit("range", start=length, step=0, size=1, dtype=i64)
    )
    cached = n.has(3) and not is_const(n.shape(3)[2], 0)
    total = _total(n) if cached else dim(length)
    if same_dim(total, length):  # a prompt: shorter sequences are filled at their ends
        first = n.emit("mul", first, n.constant(0, i64))
    elif as_int(total) is None or as_int(length) is None:
        is_prompt = n.emit("eq", n.symbols([total], i64, ()), n.symbols([length], i64, ()))
        first = n.emit("select", is_prompt, n.constant(0, i64), first)
    places = n.emit("add", n.reshape(first, (batch, 1)), steps(n, length, (1, -1)))
    if n.integer("do_rotary", 0):
        places_in = n.value(9) if n.has(9) else places
        transposed = bool(n.integer("rotary_interleaved", 0))
        cos, sin = angles(n, n.value(7), places_in), angles(n, n.value(8), places_in)
        q, k = (rotated(n, x, cos, sin, transposed) for x in (q, k))
    if cached:
        k, v = (_inserted(n, n.value(3 + i), x, first, total) for i, x in enumerate((k, v)))
    keys = steps(n, k.shape[2], (1, 1, 1, -1))
    seen = n.emit("le", keys, n.reshape(places, (batch, 1, length, 1)))
    if as_int(length) != 1:  # what fills shorter sequences sees their keys
        seen = n.emit("and", seen, n.emit("le", keys, n.reshape(last, (batch, 1, 1, 1))))
    window = n.integer("local_window_size", -1)
    if window > 0:
        in_window = n.emit("gt", n.emit("add", keys, n.constant(window, i64)), n.reshape(places, (batch, 1, length, 1)))
        seen = n.emit("and", seen, in_window)
    masks = [seen, *([n.value(10)] if n.has(10) else [])]
    y = attended(n, q, _spread(n, k, heads), _spread(n, v, heads), n.real("scale", None), masks, n.real("softcap", 0.0))
    return [joined_heads(n, y), k, v][: n.outputs]


def _grouped(n: Call, heads: int, groups: int) -> tuple[Value, Value, Value]:
    if n.has(1):
        return (
            shape_of_heads(n, n.value(0), heads),
            shape_of_heads(n, n.value(1), groups),
            shape_of_heads(n, n.value(2), groups),
        )
    packed = n.value(0)
    features = static(packed.shape[2], "the features of attention") // (heads + 2 * groups)
    parts, begin = [], 0
    for count in (heads, groups, groups):
        parts.append(shape_of_heads(n, n.slice(packed, 2, begin, count * features), count))
        begin += count * features
    return parts[0], parts[1], parts[2]


def _total(n: Call) -> Expr:
    """The length of the longest sequence. Raises ValueNeededError where the data says it: so long are the results."""
    array = n.structure(6, "the length of the longest sequence of GroupQueryAttention")
    if array is None or array.size != 1:
        raise ModelError("the length of the longest sequence must be one number", got=array)
    (total,) = array.reshape(-1)
    return dim(total if isinstance(total, Expr) else int(total))


def _inserted(n: Call, cache: Value, new: Value, first: Value, total: Expr) -> Value:
    """The cache of keys or values, enlarged to the length `total` of the longest sequence, with the `new` rows of each
    sequence inserted at position `first`."""
    more = dim(maximum(cache.shape[2], total) - cache.shape[2])
    if (as_int(more) or 0) != 0 or as_int(more) is None:
        zeros = [0] * 4
        cache = n.emit("pad", cache, before=dims(zeros), after=dims([0, 0, more, 0]), mode="constant", value=0)
    return n.emit("insert", cache, new, first, axis=2, circular=False)


def _spread(n: Call, x: Value, heads: int) -> Value:
    """Keys or values [batch, groups, length, features] with each group repeated for its query heads, so that there are
    `heads`."""
    b, groups, s, d = x.shape
    per = heads // static(groups, "the groups of attention")
    if per == 1:
        return x
    wide = n.emit("broadcast", n.reshape(x, (b, groups, 1, s, d)), shape=dims((b, groups, per, s, d)))
    return n.reshape(wide, (b, heads, s, d))


__all__ = ["attended", "joined_heads", "with_past"]
