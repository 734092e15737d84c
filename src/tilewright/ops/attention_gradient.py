"""`attention_gradient`: the gradients of attention by its queries, keys and values.

    p[i, :] = softmax_j(scale * q[i] . k[j] + mask)      y[i] = sum_j p[i, j] v[j]

    f[i, j] = g[i] . v[j]                                 s[i, j] = scale * p[i, j] * (f[i, j] - sum_j p[i, j] f[i, j])
    dq[i] = sum_j s[i, j] k[j]      dk[j] = sum_i s[i, j] q[i]      dv[j] = sum_i p[i, j] g[i]

The forward pass stores nothing for it: scores and their softmax are recomputed, so that neither pass holds more than
some rows of them (T. Dao et al., "FlashAttention", 2022, section 3.1; here rows are whole, so that no stored sums are
needed). Scheduled by `plans/attention/gradient.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isinf
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Ints
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Expr, as_int, cast, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import accumulator, dim, need, present, same_dim, same_shape, wide
from tilewright.ops.lowered.attention import (
    ATTENTION,
    ORDERS,
    AttentionAttrs,
    ScoresAttrs,
    Stages,
    broadcast_index,
    guarded,
    named,
    shares_numpy,
    stage,
    summed,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class AttentionGradientAttrs(ScoresAttrs):
    """Attributes of the gradient of attention: those that define its scores. `order` has a letter for each of q, k, v
    and the gradient of the result, in this sequence, which says how its dimensions are ordered: "s" batch, sequence,
    head, depth; "h" batch, head, sequence, depth; "t" sequence, batch, head, depth. `joined`: the gradients of q, k and
    v lie side by side in one array, in three outputs otherwise. `columns`, only with `joined`: (r, c) if that array is
    stored in blocks of r rows and c columns; () if by rows."""

    joined: bool = False
    columns: Ints = ()

    @property
    def forward(self) -> AttentionAttrs:
        """The attributes of the attention whose gradient this is."""
        return AttentionAttrs(**self.scores)


def _infer(types: Types, attrs: AttentionGradientAttrs) -> tuple[TensorType, ...]:
    """The type rule of `attention_gradient`: inputs q, k, v, g, mask?; outputs dq, dk, dv, or with `joined` one array
    of all three.

    `order` has a letter for each of q, k, v and g, the gradient of the result; see the type rule of attention, whose
    other attributes these are. dq, dk and dv have the order of dimensions of q, k and v, with only those heads that
    attention reads.
    """
    q, k, v, g = (present(t) for t in types[:4])
    mask = (*types[4:], None)[0]
    (y,) = ATTENTION.infer((q, k, v, mask), attrs.forward)
    if y.dtype is not g.dtype or not same_shape(y.shape, g.shape):
        raise ShapeError("the gradient has another type than the result", expected=y, got=g)
    heads = (attrs.heads, attrs.groups, attrs.groups)
    used = tuple(_used(t, o, n) for t, o, n in zip((q, k, v), attrs.order, heads, strict=False))
    return (_joined(used, attrs),) if attrs.joined else used


def _joined(used: Sequence[TensorType], attrs: AttentionGradientAttrs) -> TensorType:
    """The type of the single output in which dq, dk and dv, of the types `used`, lie side by side: [batch, rows,
    columns], or in blocks as `attrs.columns` says. Raises ShapeError if their numbers of rows or depths differ, or if
    they do not fill the blocks."""
    (batch, rows, _, depth), *others = (
        tuple(t.shape[k] for k in ORDERS[o]) for t, o in zip(used, attrs.order, strict=False)
    )
    if not all(same_dim(depth, d) and same_dim(rows, length) for _, length, _, d in others):
        raise ShapeError("the gradients cannot stand side by side", expected=f"{rows} rows of {depth}", got=used)
    count = (attrs.heads + 2 * attrs.groups) * depth
    if not attrs.columns:
        return TensorType(used[0].dtype, (batch, rows, dim(count)))
    part, block = attrs.columns
    sizes = [as_int(n) for n in (batch * rows, depth)]
    if any(n is None or n % size for n, size in zip(sizes, (part, block), strict=True)):
        raise ShapeError("the gradients do not fill blocks", expected=f"{part} rows, {block} columns", got=used)
    shape = (batch * rows // part, count // block, part, 1, block)
    return TensorType(used[0].dtype, tuple(dim(n) for n in shape))


def _used(t: TensorType, order: str, heads: int) -> TensorType:
    """The type of the gradient of an operand of type `t`, whose dimensions have the order `order`, a key of `ORDERS`:
    the operand's, with `heads` heads, those that attention reads."""
    batch, length, _, depth = (t.shape[k] for k in ORDERS[order])
    used = (batch, length, dim(heads), depth)
    return TensorType(t.dtype, tuple(used[k] for k in ORDERS[order]))


def _compute(
    inputs: Sequence[Tensor | None], attrs: AttentionGradientAttrs, out: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    """The gradients stage by stage; each operand is copied to a stage whose name tells plans its role."""
    q, k, v, g = (need(t) for t in inputs[:4])
    stages = Stages(attrs.forward, accumulator(q.dtype), None)
    heads = (attrs.heads, attrs.groups, attrs.groups)
    queries, keys, values = (
        stages.operand(o, t, n, name)
        for o, (t, n, name) in enumerate(zip((q, k, v), heads, ("queries", "keys", "values"), strict=True))
    )
    flows = stages.result(g, "flows")
    mask = named((*inputs[4:], None)[0], "mask")
    added = mask if mask is not None and mask.dtype is not boolean else None
    chosen = None if mask is added else mask
    scaled = stages.scaled(stages.scores(queries, keys), added, None)
    seen = stages.seen(scaled, chosen, None) if attrs.causal or chosen is not None else scaled
    weights, total = stages.softmax(seen)
    zero = stages.number(0.0)

    def share(*at: Expr) -> Expr:
        sums = total[at[:3]]
        value = weights[at] * (stages.number(1.0) / sums)
        return guarded(attrs, sums, value, zero) if attrs.guard else value

    shares = stage(weights.shape, share, "shares")
    sent = stages.scores(flows, values, "sent")

    def mean(b: Expr, h: Expr, i: Expr) -> Any:
        j = te.reduce_axis(keys.shape[2], "j")
        return summed(shares[b, h, i, j.var] * sent[b, h, i, j.var], j)

    means = stage(weights.shape[:3], mean, "means")

    def slope(*at: Expr) -> Expr:
        value = shares[at] * (sent[at] - means[at[:3]]) * stages.number(attrs.scale)
        # What a number stands in the place of does not move it.
        return (
            value if chosen is None or isinf(attrs.fill) else select(chosen[broadcast_index(chosen, at)], value, zero)
        )

    slopes = stage(weights.shape, slope, "slopes")
    each = attrs.heads // attrs.groups

    def by_query(b: Expr, h: Expr, i: Expr, d: Expr) -> Any:
        j = te.reduce_axis(keys.shape[2], "j")
        return summed(slopes[b, h, i, j.var] * keys[b, h // each, j.var, d], j)

    def by_key(factors: Tensor, rows: Tensor) -> Callable[..., Any]:
        def element(b: Expr, h: Expr, j: Expr, d: Expr) -> Any:
            e, i = te.reduce_axis(each, "e"), te.reduce_axis(queries.shape[2], "i")
            head = h * each + e.var
            return summed(factors[b, head, i.var, j] * rows[b, head, i.var, d], e, i)

        return element

    elements = (by_query, by_key(slopes, queries), by_key(shares, flows))
    if attrs.joined:
        batch, _, rows, depth = queries.shape
        parts = tuple(
            stage((batch, dim(n), rows, depth), element, f"by_{name}")
            for n, element, name in zip(heads, elements, RESULTS, strict=True)
        )
        return (_side_by_side(parts, out[0], attrs),)
    return tuple(_ordered(t, o, f, name) for t, o, f, name in zip(out, attrs.order, elements, RESULTS, strict=False))


RESULTS = ("dq", "dk", "dv")
"""The names of the outputs' stages."""


def _side_by_side(parts: Sequence[Tensor], t: TensorType, attrs: AttentionGradientAttrs) -> Tensor:
    """The single output, of type `t`: `parts` are dq, dk and dv, indexed by batch, head, sequence and depth; their
    heads become its columns, one after the other, in blocks if `attrs.columns` says so."""
    _, _, rows, depth = parts[0].shape

    def at(*place: Expr) -> Expr:
        if attrs.columns:
            part, block = attrs.columns
            row, column = place[0] * part + place[2], place[1] * block + place[4]
            b, s = row // rows, row % rows
        else:
            b, s, column = place
        h, d = column // depth, column % depth
        after = attrs.heads + attrs.groups
        third = select(h < after, parts[1][b, h - attrs.heads, s, d], parts[2][b, h - after, s, d])
        return cast(select(h < attrs.heads, parts[0][b, h, s, d], third), t.dtype)

    return stage(t.shape, at, JOINED)


JOINED = "joined"
"""The name of the stage of the single output, where the gradients lie side by side."""


def _ordered(t: TensorType, order: str, element: Callable[..., Any], name: str) -> Tensor:
    """The stage `name` of a gradient of type `t`: `element(batch, head, sequence, depth)` is its element; `order`, a
    key of `ORDERS`, says in which order these dimensions lie in memory."""
    batch, length, heads, depth = (t.shape[k] for k in ORDERS[order])
    result = stage((batch, heads, length, depth), element, f"by_{name}")

    def at(*place: Expr) -> Expr:
        b, s, h, d = (place[k] for k in ORDERS[order])
        return cast(result[b, h, s, d], t.dtype)

    return stage(t.shape, at, name)


def _numpy(arrays: Sequence[Any], attrs: AttentionGradientAttrs) -> tuple[Any, ...]:
    q, k, v, g = (wide(a).transpose(ORDERS[o]) for a, o in zip(arrays[:4], attrs.order, strict=True))
    mask = (*arrays[4:], None)[0]
    first, heads, groups = attrs.first, attrs.heads, attrs.groups
    q = q[:, :, first[0] : first[0] + heads]
    k, v = (np.repeat(x[:, :, f : f + groups], heads // groups, 2) for x, f in ((k, first[1]), (v, first[2])))
    with np.errstate(all="ignore"):
        p = shares_numpy(q, k, attrs.forward, mask, q.dtype.type(attrs.scale))
        sent = np.einsum("bihd,bjhd->bhij", g, v)
        s = p * (sent - (p * sent).sum(-1, keepdims=True)) * q.dtype.type(attrs.scale)
        if mask is not None and mask.dtype == bool and not isinf(attrs.fill):
            s = np.where(mask, s, 0)
    batch, keys = k.shape[:2]

    def shared(x: Any) -> Any:
        return x.reshape(batch, keys, groups, heads // groups, x.shape[-1]).sum(3)

    results = (
        np.einsum("bhij,bjhd->bihd", s, k),
        shared(np.einsum("bhij,bihd->bjhd", s, q)),
        shared(np.einsum("bhij,bihd->bjhd", p, g)),
    )
    kind = np.asarray(arrays[0]).dtype
    if attrs.joined:
        rows = np.concatenate(results, 2).reshape(batch, keys, -1)
        if attrs.columns:
            part, block = attrs.columns
            rows = rows.reshape(-1, part, rows.shape[-1] // block, block).transpose(0, 2, 1, 3)[:, :, :, None]
        return (np.ascontiguousarray(rows).astype(kind),)
    return tuple(
        np.ascontiguousarray(x.transpose(ORDERS[o])).astype(kind) for x, o in zip(results, attrs.order, strict=False)
    )


ATTENTION_GRADIENT = register(
    OpDef("attention_gradient", "opaque", AttentionGradientAttrs, _infer, _numpy, compute=_compute)
)
