"""`attention`: softmax(Q K^T * scale + mask) V in one operator, straight from and to the projections' layouts.

    y[b, i, h, :] = sum_j p[i, j] v[b, j, g, :]      p[i, :] = softmax_j(scale * q[b, i, h, :] . k[b, j, g, :] + mask)

Recognised in graphs by `transform/graph/attention.py`, scheduled by `plans/attention/`, which never holds more than
some rows of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tilewright import te
from tilewright.arith import prove
from tilewright.ir.attributes import Attrs, Dim, Ints
from tilewright.ir.dtype import DType, boolean, f32
from tilewright.ir.expr import Expr, as_expr, as_int, call, cast, const, equal, is_const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import (
    accumulator,
    broadcast_shapes,
    check_kind,
    dim,
    need,
    present,
    same_dim,
    same_dtype,
    same_shape,
    wide,
)
from tilewright.ops.lowered.split import LIMIT, TERMS, count_of, pieces_of
from tilewright.ops.ragged import check_starts, sequence_of, sequences_numpy
from tilewright.ops.registry import OpDef, Types, register
from tilewright.schedule.dot_intrinsics import named_dot
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError, ShapeError
from tilewright.te import Tensor

ORDERS = {"s": (0, 1, 2, 3), "h": (0, 2, 1, 3), "t": (1, 0, 2, 3)}
"""The positions of batch, sequence, head and depth among an operand's dimensions, by the letter of its order; each
permutation is its own inverse."""

SHORT_ROWS = 2
"""The largest number of query rows with which factors are not rounded to bf16, even if `dot` is set: memory bounds
calls with so few rows."""


@dataclass(frozen=True, slots=True)
class ScoresAttrs(Attrs):
    """The attributes that define scores, shared by attention and its gradient; the type rule of `lowered.attention`
    explains each of them."""

    order: str
    heads: int
    groups: int
    first: Ints
    scale: float
    causal: bool
    fill: float
    guard: bool
    keeps_nan: bool = False

    @property
    def scores(self) -> dict[str, Any]:
        """The attributes that define the scores, by name."""
        return {f.name: getattr(self, f.name) for f in fields(ScoresAttrs)}


@dataclass(frozen=True, slots=True)
class AttentionAttrs(ScoresAttrs):
    """Attributes of attention (see its type rule): `dot` names the instruction that multiplies, and `terms` are the
    numbers of bf16 terms for scores and for values."""

    past_first: Dim = 0
    dot: str | None = None
    terms: Ints = ()

    @property
    def algorithm(self) -> str:
        """The precision of the two products in words: the numbers of bf16 terms for scores and values, or the type that
        factors are rounded to; "" for the type of the operands."""
        if self.dot is None:
            return ""
        return f"{'/'.join(f'x{n}' for n in self.terms)} tiles" if self.terms else named_dot(self.dot).a.name


def _logical(t: TensorType, order: str) -> tuple[Any, ...]:
    """The shape of the operand `t`, whose dimensions are in `order`, as (batch, sequence, heads, depth)."""
    if t.rank != 4:
        raise ShapeError("an operand of attention has four dimensions", got=t)
    return tuple(t.shape[k] for k in ORDERS[order])


def _infer(types: Types, attrs: AttentionAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.attention`: inputs q, k, v, mask?, scale?, substitute?, past_k?, past_v?, starts?;
    output y.

    `order` has one letter for each of q, k, v, y: "s" for [batch, sequence, heads, depth], "h" for [batch, heads,
    sequence, depth], "t" for [sequence, batch, heads, depth]. `heads` query heads share `groups` heads of keys and
    values; operand o uses its heads from `first[o]` on, so that q, k and v may be parts of one array. The mask
    broadcasts to [batch, heads, S_q, S_k]: a boolean one puts `fill` where it is false, any other is added. `scale` (a
    number) multiplies the scores, as does the input of that name (one element). `causal`: query i sees the keys up to i
    + S_k - S_q. `guard`: probabilities that are NaN (a row without any key) count as zero, or as `substitute` (one
    element) if that is given; with `keeps_nan` those of rows without any key alone, and other NaN stays. `dot` names an
    instruction that multiplies the factors of both products rounded to bf16 if there are many rows; the depth of q and
    k is a multiple of its group. With `terms`, for scores and for values, it multiplies pieces of f32 instead
    (`split.py`), in each head whose products stay below `LIMIT`; other heads multiply f32.

    `starts`, i64[sequences]: q, k and v are the rows of several sequences, one after the other, which begin there: a
    row sees its own sequence. The batch is 1 then, and there is neither a mask nor a past.

    `past_k` and `past_v`, [batches, groups, earlier keys, depth], precede k and v; the keys of batch entry b are in
    their entry b + `past_first`, so that they may be one layer's part of a cache for all layers.
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
    if attrs.dot is not None and (as_int(dq) or 1) % (group := named_dot(attrs.dot).group):
        raise ShapeError("the dot instruction does not fit attention", expected=f"a depth of whole {group}", got=dq)
    by_pieces = len(attrs.terms) == 2 and all(n in TERMS for n in attrs.terms) and q.dtype is f32 and not types[8:]
    if attrs.terms and (attrs.dot is None or not by_pieces):
        raise ShapeError("attention of pieces is of f32", expected=f"two of {tuple(TERMS)} terms", got=attrs.terms)
    past = [t for t in (*types[6:], None, None)[:2] if t is not None]
    if past:
        sk = dim(sk + _earlier(past, groups, dk, dv))
        same_dtype([q, *past])
    required = zip((hq, hk, hv), attrs.first, (heads, groups, groups), strict=True)
    if heads % groups or any(int(h.value) < first + n for h, first, n in required):
        raise ShapeError("attention has too few heads", expected=f"{heads} and {groups}", got=f"{q}, {k} and {v}")
    starts = (*types[8:], None)[0]
    if starts is not None:
        check_starts(starts)
        if mask is not None or past or not same_dim(bq, dim(1)) or not same_dim(sq, sk):
            raise ShapeError("packed sequences fit neither a batch nor a mask nor a past", got=f"{q}, {k} and {mask}")
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
    """The number of keys in the cache `past` (keys, values). Raises ShapeError unless both have `groups` heads, of
    `depth` and `out_depth` elements."""
    if len(past) != 2 or any(t.rank != 4 for t in past) or not same_dim(past[0].shape[2], past[1].shape[2]):
        raise ShapeError("earlier keys and values do not fit each other", got=past)
    for t, d in zip(past, (depth, out_depth), strict=True):
        if not same_dim(t.shape[1], dim(groups)) or not same_dim(t.shape[3], d):
            raise ShapeError("earlier keys or values do not fit the new ones", expected=f"{groups} heads of {d}", got=t)
    return past[0].shape[2]


def _compute(inputs: Sequence[Tensor | None], attrs: AttentionAttrs, out: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    """Two products with a softmax between them, stage by stage; each operand is copied to a stage whose name tells
    plans its role."""
    arguments = [*inputs, *[None] * 9]
    q, k, v = (need(t) for t in arguments[:3])
    rows = as_int(q.shape[ORDERS[attrs.order[0]][1]])
    is_rounded = attrs.dot is not None and not attrs.terms and (rows is None or rows > SHORT_ROWS)
    rounded = named_dot(attrs.dot).a if attrs.dot is not None and is_rounded else None
    stages = Stages(attrs, accumulator(q.dtype), rounded)
    queries, keys, values = (
        stages.operand(o, t, heads, name)
        for o, (t, heads, name) in enumerate(
            ((q, attrs.heads, "queries"), (k, attrs.groups, "keys"), (v, attrs.groups, "values"))
        )
    )
    keys, values = (stages.appended(past, t) for past, t in ((arguments[6], keys), (arguments[7], values)))
    mask, scale, substitute = (named(t, name) for t, name in zip(arguments[3:6], SINGLES, strict=True))
    added = mask if mask is not None and mask.dtype is not boolean else None
    large = stages.large(queries, keys, values) if attrs.terms else None
    scaled = stages.scaled(stages.scores(queries, keys, large=large), added, scale)
    starts = named(arguments[8], "starts")
    sequence = None if starts is None else sequence_of(starts, scaled.shape[2])
    selects = attrs.causal or mask is not added or sequence is not None
    seen = stages.seen(scaled, None if mask is added else mask, sequence) if selects else scaled
    weights, total = stages.softmax(seen)
    result = stages.weighted(weights, total, values, substitute, large)
    return (stages.quotient(result, total, keys.shape[2], out[0], substitute is not None),)


SINGLES = ("mask", "scale", "substitute")
"""The names of the stages of the operands after q, k and v."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one attention, whose sums have the type `acc`. The factors of products are rounded to the
    type `rounded`, if there is one."""

    attrs: AttentionAttrs
    acc: DType
    rounded: DType | None

    @property
    def each(self) -> int:
        """The number of query heads that share a head of keys and values."""
        return self.attrs.heads // self.attrs.groups

    def number(self, value: float) -> Expr:
        return const(value, self.acc)

    def factor(self, e: Expr) -> Expr:
        return cast(cast(e, self.rounded), self.acc) if self.rounded is not None else cast(e, self.acc)

    def operand(self, o: int, t: Tensor, heads: int, name: str) -> Tensor:
        """The heads, `heads` of them, of operand number `o` (q, k or v) that are used, as a stage `name` [batch, heads,
        sequence, depth]."""
        where = ORDERS[self.attrs.order[o]]
        batch, length, _, depth = (t.shape[a] for a in where)

        def element(b: Expr, h: Expr, s: Expr, d: Expr) -> Expr:
            point = (b, s, h + self.attrs.first[o], d)
            return self.factor(t[tuple(point[a] for a in where)])

        return stage((batch, dim(heads), length, depth), element, name)

    def appended(self, past: Tensor | None, new: Tensor) -> Tensor:
        """The cached keys or values followed by the new ones; just the new ones without a cache."""
        if past is None:
            return new
        batch, heads, length, depth = new.shape
        there, first = past.shape[2], self.attrs.past_first
        shape = (batch, heads, there, depth)
        old = stage(shape, lambda b, g, j, d: self.factor(past[b + first, g, j, d]), f"past_{new.name}")

        def element(b: Expr, g: Expr, j: Expr, d: Expr) -> Expr:
            return select(j < there, old[b, g, j, d], new[b, g, j - there, d])

        return stage((batch, heads, dim(there + length), depth), element, f"all_{new.name}")

    def result(self, y: Tensor, name: str) -> Tensor:
        """`y` [batch, heads, sequence, depth] transposed to the order of the result, as a stage `name`."""
        where = ORDERS[self.attrs.order[3]]
        batch, length, heads, depth = (y.shape[a] for a in where)

        def element(b: Expr, h: Expr, s: Expr, d: Expr) -> Expr:
            point = (b, s, h, d)
            return cast(y[tuple(point[a] for a in where)], self.acc)

        return stage((batch, heads, length, depth), element, name)

    def large(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """For each head, whether its sums of bf16 pieces might overflow f32, so that it is computed in f32 instead."""

        def most(t: Tensor) -> Tensor:
            def element(b: Expr, h: Expr) -> Any:
                s, d = (te.reduce_axis(size, name) for size, name in zip(t.shape[2:], "sd", strict=True))
                return te.or_identity(te.largest(call("abs", t[b, h, s.var, d.var]), axis=[s, d]))

            return stage(t.shape[:2], element, f"{t.name}_most")

        greatest = [most(t) for t in (queries, keys, values)]

        def element(b: Expr, h: Expr) -> Expr:
            q, k, v = (t[b, h if n == 0 else h // self.each] for n, t in enumerate(greatest))
            return call("not", has_pieces(q, k, v, queries.shape[3], keys.shape[2]))

        return stage(queries.shape[:2], element, "large")

    def product(self, x: Expr, y: Expr, which: int, large: Expr | None) -> Expr:
        """The product of two elements `x` and `y` of factors, of the scores (`which` 0) or of the values (1): with
        `terms` a sum of products of pieces, unless `large` is true."""
        if large is None:
            return x * y
        terms = TERMS[self.attrs.terms[which]]
        left, right = (pieces_of(e, count_of(len(terms))) for e in (x, y))
        parts = [cast(left[a], self.acc) * cast(right[b], self.acc) for a, b in terms]
        return select(large, x * y, sum(parts[1:], parts[0]))

    def scores(self, queries: Tensor, keys: Tensor, name: str = "scores", large: Tensor | None = None) -> Tensor:
        """The stage `name` of products of query rows with keys, [batch, heads, rows, keys]; the gradient also
        multiplies other rows so. `large` is true for the heads [batch, heads] whose numbers are too large for products
        of pieces."""
        batch, heads, rows, depth = queries.shape

        def product(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
            d = te.reduce_axis(depth, "d")
            value = keys[b, h // self.each, j, d.var]
            return summed(self.product(queries[b, h, i, d.var], value, 0, None if large is None else large[b, h]), d)

        return stage((batch, heads, rows, keys.shape[2]), product, name)

    def scaled(self, scores: Tensor, mask: Tensor | None, scale: Tensor | None) -> Tensor:
        """The scores times the scale, plus the mask if there is one."""
        factor = self.number(self.attrs.scale)

        def element(*at: Expr) -> Expr:
            value = scores[at] * (factor if scale is None else factor * cast(_single(scale), self.acc))
            return value if mask is None else value + cast(mask[broadcast_index(mask, at)], self.acc)

        return stage(scores.shape, element, "scaled")

    def seen(self, scaled: Tensor, mask: Tensor | None, sequence: Tensor | None) -> Tensor:
        """The scores, with those of keys that a row must not see replaced: by `fill` where a mask hides them, by `LOW`
        where causality or packed sequences do."""
        rows, keys = scaled.shape[2:]

        def element(*at: Expr) -> Expr:
            value = scaled[at]
            if mask is not None:
                value = select(mask[broadcast_index(mask, at)], value, self.number(self.attrs.fill))
            if sequence is not None:
                value = select(equal(sequence[at[2]], sequence[at[3]]), value, self.number(LOW))
            visible = at[3] <= at[2] + (keys - rows)
            return select(visible, value, self.number(LOW)) if self.attrs.causal else value

        return stage(scaled.shape, element, "seen")

    def softmax(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The exponentials e^(score - greatest score of the row), and their sum over each row."""
        *lines, keys = seen.shape

        def over_keys(t: Tensor, reduction: Any) -> Callable[..., Any]:
            def reduced(b: Expr, h: Expr, i: Expr) -> Any:
                j = te.reduce_axis(keys, "j")
                return te.or_identity(reduction(t[b, h, i, j.var], axis=j))

            return reduced

        top = stage(lines, over_keys(seen, te.largest), "top")

        def weight(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
            base = select(equal(top[b, h, i], self.number(LOW)), self.number(0.0), top[b, h, i])
            return call("exp_nonpositive", seen[b, h, i, j] - base)

        weights = stage(seen.shape, weight, "weights")
        return weights, stage(lines, over_keys(weights, te.sum), "total")

    def weighted(
        self, weights: Tensor, total: Tensor, values: Tensor, substitute: Tensor | None, large: Tensor | None = None
    ) -> Tensor:
        """The sums of values weighted by the exponentials, divided by their total."""
        *lines, keys = weights.shape

        def weight(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
            value = weights[b, h, i, j]
            if substitute is not None:
                value = guarded(self.attrs, total[b, h, i], value, cast(_single(substitute), self.acc))
            return self.factor(value)

        def element(b: Expr, h: Expr, i: Expr, d: Expr) -> Expr:
            j = te.reduce_axis(keys, "j")
            value = values[b, h // self.each, j.var, d]
            return summed(self.product(weight(b, h, i, j.var), value, 1, None if large is None else large[b, h]), j)

        return stage((*lines, values.shape[3]), element, "result")

    def quotient(self, result: Tensor, total: Tensor, keys: Expr, y: TensorType, substituted: bool) -> Tensor:
        """The weighted sums `result` divided by the sums of weights `total`, in the output's order; zero if there are
        no keys. With `substituted`, a total of zero counts as one."""
        one, zero = self.number(1.0), self.number(0.0)

        def element(*at: Expr) -> Expr:
            b, i, h, d = (at[a] for a in ORDERS[self.attrs.order[3]])
            sums = total[b, h, i]
            if substituted:
                sums = select(sums > zero, sums, one)
            value = result[b, h, i, d] * (one / sums)
            value = guarded(self.attrs, sums, value, zero) if self.attrs.guard and not substituted else value
            return cast(value if prove(keys > 0) else select(keys > 0, value, zero), y.dtype)

        return stage(y.shape, element, "y")


LOW = float("-inf")


def has_pieces(q: Expr, k: Expr, v: Expr, depth: Expr, keys: Expr) -> Expr:
    """Whether sums of products stay below `LIMIT`: q and k, v are the largest magnitudes of queries, keys and values;
    sums run over `depth` for scores, over `keys` for values. False for NaN."""
    limit = const(LIMIT, f32)
    below = (q < limit) & (k < limit) & (v < limit)
    return below & (q * k * cast(depth, f32) < limit) & (v * cast(keys, f32) < limit)


def guarded(attrs: ScoresAttrs, total: Expr, value: Expr, otherwise: Expr) -> Expr:
    """The result of a row whose exponentials sum to `total`: `value`, but `otherwise` where the row saw no key, so that
    the sum is 0. Without `keeps_nan`, a row whose sum is NaN gives `otherwise`, too."""
    zero = const(0.0, total.dtype)
    return select(equal(total, zero), otherwise, value) if attrs.keeps_nan else select(total > zero, value, otherwise)


def broadcast_index(mask: Tensor, at: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index of the mask's element that broadcasts to the score at `at`."""
    point = zip(mask.shape, at[4 - mask.ndim :], strict=True)
    return tuple(const(0) if is_const(n, 1) else p for n, p in point)


def stage(shape: Sequence[Expr], element: Callable[..., Any], name: str) -> Tensor:
    """A stage of the computation: the tensor of this shape whose elements `element` computes."""
    tensor = te.compute(shape, element, name=name)
    assert isinstance(tensor, Tensor)
    return tensor


def summed(e: Expr, *axes: te.IterVar) -> Expr:
    """The sum of an expression over some axes; the expression itself where there are none."""
    return as_expr(te.or_identity(te.sum(e, axis=[*axes])))


def named(t: Tensor | None, name: str) -> Tensor | None:
    """A copy of an operand as a stage called `name`, by which plans recognise the operand."""
    return None if t is None else te.compute(t.shape, lambda *i: t[i], name=name)


def _single(t: Tensor) -> Expr:
    """The only element of an array."""
    return t[tuple(const(0) for _ in t.shape)]


def _reference(arrays: Sequence[Any], attrs: AttentionAttrs) -> tuple[Any, ...]:
    q, k, v = (wide(a).transpose(ORDERS[o]) for a, o in zip(arrays[:3], attrs.order, strict=False))
    mask, scale, substitute = (*arrays[3:], None, None, None)[:3]
    first, heads, groups = attrs.first, attrs.heads, attrs.groups
    q = q[:, :, first[0] : first[0] + heads]
    k, v = (x[:, :, f : f + groups] for x, f in ((k, first[1]), (v, first[2])))
    past = [wide(a).transpose(0, 2, 1, 3) for a in arrays[6:8] if a is not None]
    if past:
        where = slice(attrs.past_first, attrs.past_first + len(q))
        k, v = (np.concatenate([old[where], new], 1) for old, new in zip(past, (k, v), strict=True))
    k, v = (np.repeat(x, heads // groups, 2) for x in (k, v))
    factor = q.dtype.type(attrs.scale) * (1 if scale is None else wide(scale).reshape(()))
    starts = (*arrays[8:], None)[0]
    guard = 0 if substitute is None else wide(substitute).reshape(())
    p = shares_numpy(q, k, attrs, mask, factor, starts, guard)
    with np.errstate(all="ignore"):
        y = np.einsum("bhij,bjhd->bihd", p, v)
    return (np.ascontiguousarray(y.transpose(ORDERS[attrs.order[3]])).astype(np.asarray(arrays[0]).dtype),)


def shares_numpy(
    q: Any, k: Any, attrs: AttentionAttrs, mask: Any, factor: Any, starts: Any = None, guard: Any = 0
) -> Any:
    """The softmax of the scores, [batch, heads, rows, keys], of queries `q` and keys `k`, [batch, sequence, heads,
    depth], multiplied by `factor`. A boolean mask selects scores, any other is added; `starts` are where packed
    sequences begin; `guard` replaces rows without keys if the attributes ask for that."""
    with np.errstate(all="ignore"):
        scores = np.einsum("bihd,bjhd->bhij", q, k) * factor
        if mask is not None and mask.dtype == bool:
            scores = np.where(mask, scores, q.dtype.type(attrs.fill))
        elif mask is not None:
            scores = scores + wide(mask)
        rows, keys = scores.shape[-2:]
        if starts is not None:
            sequence = sequences_numpy(starts, rows)
            scores = np.where(sequence[:, None] == sequence, scores, -np.inf)
        if attrs.causal:
            scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(scores - top)
        p = p / p.sum(-1, keepdims=True)
        empty = top == -np.inf if attrs.keeps_nan else np.isnan(p)
        return np.where(empty, guard, p) if attrs.guard else p


ATTENTION = register(OpDef("lowered.attention", "opaque", AttentionAttrs, _infer, _reference, compute=_compute))
