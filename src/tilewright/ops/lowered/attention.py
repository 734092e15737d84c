"""`attention`: softmax(Q K^T * scale + mask) V in one operator, straight from and to the projections' layouts.

    y[b, i, h, :] = sum_j p[i, j] v[b, j, g, :]      p[i, :] = softmax_j(scale * q[b, i, h, :] . k[b, j, g, :] + mask)

Its loops (`attention_loops.py`) never hold more than some rows of scores. Recognised in graphs by
`transform/graph/attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import boolean
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import broadcast_shapes, check_kind, dim, present, same_dim, same_dtype, same_shape, wide
from tilewright.ops.lowered.attention_loops import AttentionLoops
from tilewright.ops.lowered.attention_pairs import PairedAttention
from tilewright.ops.lowered.attention_rows import ORDERS, AttentionAttrs, Tile
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.errors import DTypeError, ShapeError


def _logical(t: TensorType, order: str) -> tuple[Any, ...]:
    """The shape as (batch, sequence, heads, depth)."""
    if t.rank != 4:
        raise ShapeError("an operand of attention has four dimensions", got=t)
    return tuple(t.shape[k] for k in ORDERS[order])


def _infer(types: Types, attrs: AttentionAttrs) -> tuple[TensorType, ...]:
    """Inputs q, k, v, mask?, scale?, substitute?, past_k?, past_v?; output y.

    `order` has one letter for each of q, k, v, y: "s" for [batch, sequence, heads, depth], "h" for [batch, heads,
    sequence, depth], "t" for [sequence, batch, heads, depth]. `heads` query heads share `groups` heads of keys and
    values; operand o uses its heads from `first[o]` on, so that q, k and v may be parts of one array. The mask
    broadcasts to [batch, heads, S_q, S_k]: a boolean one puts `fill` where it is false, any other is added. `scale` (a
    number) multiplies the scores, as does the input of that name (one element). `causal`: query i sees the keys up to
    i + S_k - S_q. `guard`: probabilities that are NaN (a row without any key) count as zero, or as `substitute` (one
    element) if that is given. `rows`, `width`, `keys`, `tiles` (see `attention_rows.Tile`) change the speed only. `dot`
    names an instruction that takes the factors of both products rounded to bf16 where there are many rows.

    `past_k` and `past_v`, [batches, groups, earlier keys, depth], stand before k and v; a batch entry b is their entry
    b + `past_first`, so that they may be one layer's part of a cache for all layers.
    """
    q, k, v = (present(t) for t in types[:3])
    check_kind(q.dtype, ("float",))
    same_dtype([q, k, v])
    mask, scale, substitute = (*types[3:], None, None, None)[:3]
    order, heads, groups = attrs.order, attrs.heads, attrs.groups
    (bq, sq, hq, dq), (bk, sk, hk, dk), (bv, sv, hv, dv) = (
        _logical(t, o) for t, o in zip((q, k, v), order[:3], strict=True)
    )
    if not (same_dim(bq, bk) and same_dim(bq, bv) and same_dim(sk, sv) and same_dim(dq, dk)):
        raise ShapeError("the operands of attention do not fit each other", got=f"{q}, {k} and {v}")
    past = [t for t in (*types[6:], None, None)[:2] if t is not None]
    if past:
        sk = dim(sk + _earlier(past, groups, dk, dv))
        same_dtype([q, *past])
    need = zip((hq, hk, hv), attrs.first, (heads, groups, groups), strict=True)
    if heads % groups or any(int(h.value) < first + n for h, first, n in need):
        raise ShapeError("attention has too few heads", expected=f"{heads} and {groups}", got=f"{q}, {k} and {v}")
    if mask is not None:
        full = (bq, dim(heads), sq, sk)
        if not same_shape(broadcast_shapes(mask.shape, full), full):
            raise ShapeError("the mask does not fit the scores", expected=full, got=mask)
        if not (mask.dtype is boolean or mask.dtype.is_float):
            raise DTypeError("a mask is boolean or floating-point", got=mask)
    for single in (scale, substitute):
        if single is not None and (single.dtype is not q.dtype or any(not same_dim(d, dim(1)) for d in single.shape)):
            raise ShapeError("scale and substitute are one number of the operands' type", got=single)
    shape = (bq, sq, dim(heads), dv)
    return (TensorType(q.dtype, tuple(shape[k] for k in ORDERS[order[3]])),)


def _earlier(past: Sequence[TensorType], groups: int, depth: Any, out_depth: Any) -> Any:
    """The number of earlier keys."""
    if len(past) != 2 or any(t.rank != 4 for t in past) or not same_dim(past[0].shape[2], past[1].shape[2]):
        raise ShapeError("earlier keys and values do not fit each other", got=past)
    for t, d in zip(past, (depth, out_depth), strict=True):
        if not same_dim(t.shape[1], dim(groups)) or not same_dim(t.shape[3], d):
            raise ShapeError("earlier keys or values do not fit the new ones", expected=f"{groups} heads of {d}", got=t)
    return past[0].shape[2]


def _loops(types: Types, attrs: AttentionAttrs, out: tuple[TensorType, ...]) -> Any:
    loops = PairedAttention if attrs.dot else AttentionLoops
    return loops(types, attrs, out, Tile.of(attrs)).build()


def _reference(arrays: Sequence[Any], attrs: AttentionAttrs) -> tuple[Any, ...]:
    q, k, v = (wide(a).transpose(ORDERS[o]) for a, o in zip(arrays[:3], attrs.order, strict=False))
    mask, scale, substitute = (*arrays[3:], None, None, None)[:3]
    first, heads, groups = attrs.first, attrs.heads, attrs.groups
    q = q[:, :, first[0] : first[0] + heads]
    k, v = (x[:, :, f : f + groups] for x, f in ((k, first[1]), (v, first[2])))
    past = [wide(a).transpose(0, 2, 1, 3) for a in arrays[6:] if a is not None]
    if past:
        where = slice(attrs.past_first, attrs.past_first + len(q))
        k, v = (np.concatenate([old[where], new], 1) for old, new in zip(past, (k, v), strict=True))
    k, v = (np.repeat(x, heads // groups, 2) for x in (k, v))
    with np.errstate(all="ignore"):
        factor = q.dtype.type(attrs.scale) * (1 if scale is None else wide(scale).reshape(()))
        scores = np.einsum("bihd,bjhd->bhij", q, k) * factor
        if mask is not None and mask.dtype == bool:
            scores = np.where(mask, scores, q.dtype.type(attrs.fill))
        elif mask is not None:
            scores = scores + wide(mask)
        rows, keys = scores.shape[-2:]
        if attrs.causal:
            scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(scores - top)
        p = p / p.sum(-1, keepdims=True)
        if attrs.guard:
            p = np.where(np.isnan(p), 0 if substitute is None else wide(substitute).reshape(()), p)
        y = np.einsum("bhij,bjhd->bihd", p, v)
    return (np.ascontiguousarray(y.transpose(ORDERS[attrs.order[3]])).astype(np.asarray(arrays[0]).dtype),)


register(OpDef("lowered.attention", "opaque", AttentionAttrs, _infer, _reference, loops=_loops))
