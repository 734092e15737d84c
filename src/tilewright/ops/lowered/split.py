"""Products of f32 by products of bf16: each factor is a sum of pieces (G. Henry, P. T. P. Tang, A. Heinecke, Leveraging
the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations, ARITH 2019; XLA's BF16_BF16_F32_X3 and
X6).

    a = a0 + a1 + a2 + ...      a0 = round(a), a1 = round(a - a0), ...                 to nearest, ties to even
    three terms (x3)            a b = a0 b0 + a0 b1 + a1 b0                             two pieces of each factor
    six terms (x6)              ... + a1 b1 + a0 b2 + a2 b0                             three pieces

    pieces          x[..., M, K]                                      ->  p[..., M, pieces, K]
                    w[K, N] (`first`)                                 ->  p[pieces, K, N]
    matmul_pieces   p[..., M, pieces, K], w[pieces, ..., P, D/16, 16, 2]   ->  y[..., M, N]
    too_large       m[...], b                                         ->  n
    matmul_x3, _x6  x, p, w or packed w, packed w[pieces], a[n]       ->  y[..., M, N]

The pieces of an infinity would be infinity minus infinity. `matmul_x3` multiplies pieces where n is 0, and f32 as it
is where it is 1: where the largest magnitude m of some row, or the bound b of what it is multiplied with (the largest
weight times the depth), is not finite, or sums of their products might be beyond the largest number (`too_large`).

Pieces and sums below 2^-126 count as zero, as TDPBF16PS has them: beside its relative error a product of depth K has an
absolute one of at most K 2^-123 (1 + max |x| + max |w|).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import bf16, f32, i64
from tilewright.ir.expr import Expr, as_expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import Node, TensorType
from tilewright.ops.dims import need, present, static
from tilewright.ops.lowered.packed import ColumnsAttrs, cropped
from tilewright.ops.lowered.tiles import chosen
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.registry import OpDef, Types, Version, get, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]

TERMS = {3: ((0, 1), (0, 0), (1, 0)), 6: ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))}
"""For each number of terms the pairs (piece of the first factor, piece of the second) that are multiplied, in an order
in which consecutive pairs share a piece."""

TOGETHER = {3: 3, 6: 5}
"""For each number of terms how many are summed together in one pass over the depth. The last of six, the largest, has a
pass of its own after them, so that the small terms do not each round the large sum. With three terms this would gain
nothing, as the omitted terms are larger."""


def passes(terms: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The pairs of pieces (of the first factor, of the second) whose products are summed to a product of `terms` terms,
    grouped by passes over the depth."""
    first = TOGETHER[terms]
    return tuple(part for part in (TERMS[terms][:first], TERMS[terms][first:]) if part)


def count_of(terms: int) -> int:
    """The number of pieces into which each factor of a product of `terms` terms is split."""
    return 1 + max(left for left, _ in TERMS[terms])


# pieces


@dataclass(frozen=True, slots=True)
class PiecesAttrs(Attrs):
    """Attributes of splitting f32 into bf16 pieces: their number, and whether their dimension is the first one or the
    last but one."""

    count: int
    first: bool


def _pieces_infer(types: Types, attrs: PiecesAttrs) -> Out:
    """The type rule of `lowered.pieces`: `x[..., K]` of f32 to bf16, with an added dimension of pieces."""
    x = present(types[0])
    if x.dtype is not f32 or not x.shape or attrs.count not in (2, 3):
        raise ShapeError("two or three pieces are of f32", expected="f32[..., K]", got=f"{attrs.count} of {x}")
    at = 0 if attrs.first else x.rank - 1
    return (TensorType(bf16, (*x.shape[:at], const(attrs.count), *x.shape[at:])),)


def _pieces_compute(inputs: Tensors, attrs: PiecesAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    place = 0 if attrs.first else len(x.shape) - 1

    def element(*at: Expr) -> Expr:
        return chosen(at[place], pieces_of(x[(*at[:place], *at[place + 1 :])], attrs.count))

    return (te.compute(out[0].shape, element, name="pieces"),)


def pieces_of(x: Expr, count: int) -> list[Expr]:
    """The first `count` pieces of an f32 element: bf16 numbers whose sum approximates it."""
    parts: list[Expr] = []
    for _ in range(count):
        parts.append(cast(x, bf16))
        x = x - cast(parts[-1], f32)
    return parts


def _pieces_reference(arrays: Sequence[Any], attrs: PiecesAttrs) -> tuple[Any, ...]:
    rest, parts = np.asarray(arrays[0]), []
    with np.errstate(all="ignore"):
        for _ in range(attrs.count):
            parts.append(rest.astype(bf16.numpy))
            rest = rest - parts[-1].astype(np.float32)
    return (np.ascontiguousarray(np.stack(parts, axis=0 if attrs.first else -2)),)


PIECES = register(OpDef("lowered.pieces", "injective", PiecesAttrs, _pieces_infer, _pieces_reference, _pieces_compute))


# products of pieces


@dataclass(frozen=True, slots=True)
class MatmulPiecesAttrs(Attrs):
    """Attributes of a product of pieces: the columns of the result, the rows of a matrix register, the terms of each
    product."""

    columns: int
    rows: int
    terms: int


def _product_infer(types: Types, attrs: MatmulPiecesAttrs) -> Out:
    """The type rule of `lowered.matmul_pieces`: pieces `p[..., M, pieces, K]` and panels of them, `[pieces, ..., P,
    D/group, width, group]` with D at least K, to `[..., M, columns]` of f32. Dimensions of panels between pieces and P
    are all those of p before M, or none."""
    p, w = present(types[0]), present(types[1])
    fits = attrs.terms in TERMS and w.rank >= 5 and p.rank >= 3 and p.dtype is w.dtype is bf16
    fits = fits and w.shape[1:-4] in ((), p.shape[:-3])
    if not fits or {as_int(p.shape[-2]), as_int(w.shape[0])} != {count_of(attrs.terms)}:
        raise ShapeError("the pieces do not fit the terms", expected=f"{attrs.terms} terms of {w}", got=p)
    if static(p.shape[-1], "the depth") > static(w.shape[-3] * w.shape[-1], "the depth"):
        raise ShapeError("the packed weights do not fit the rows", expected=w, got=p)
    return (TensorType(f32, (*p.shape[:-2], as_expr(attrs.columns))),)


def _product_compute(inputs: Tensors, attrs: MatmulPiecesAttrs, out: Out) -> tuple[Tensor, ...]:
    p, w = need(inputs[0]), need(inputs[1])
    pieces, *batch, panels, steps, width, group = w.shape
    axes = [te.reduce_axis(size, name) for size, name in ((const(attrs.terms), "t"), (steps, "k"), (group, "p"))]
    t, k, inner = (axis.var for axis in axes)
    *lead, count, _, own = p.shape
    rows, depth = ceildiv(count, attrs.rows) * attrs.rows, steps * group
    whole = as_int(count) is not None and as_int(count) == as_int(rows) and as_int(own) == as_int(depth)

    def padded(*at: Expr) -> Expr:
        *_, m, _, d = at
        return select((m < count) & (d < own), p[at], const(0, bf16))

    values = p if whole else te.compute((*lead, rows, pieces, depth), padded, name="pad")
    left, right = (chosen(t, [const(pair[side]) for pair in TERMS[attrs.terms]]) for side in (0, 1))

    def element(*at: Expr) -> Expr:
        *place, n = at
        value = values[(*place, left, k * group + inner)]
        weight = w[(right, *place[: len(batch)], n // width, k, n % width, inner)]
        return te.sum(cast(value, f32) * cast(weight, f32), axis=axes)  # type: ignore[no-any-return]

    product: Tensor = te.compute((*lead, rows, panels * width), element, name="matmul")
    return (cropped(product, out[0].shape),)


def _product_reference(arrays: Sequence[Any], attrs: MatmulPiecesAttrs) -> tuple[Any, ...]:
    p, w = (np.asarray(a).astype(np.float32) for a in arrays)
    *lead, panels, steps, width, group = w.shape
    full = np.moveaxis(np.moveaxis(w, -1, -2), -4, -2).reshape(*lead, steps * group, panels * width)
    full = full[..., : p.shape[-1], : attrs.columns]
    with np.errstate(all="ignore"):
        return (sum(np.matmul(p[..., left, :], full[right]) for left, right in TERMS[attrs.terms]),)


MATMUL_PIECES = register(
    OpDef(
        "lowered.matmul_pieces", "contraction", MatmulPiecesAttrs, _product_infer, _product_reference, _product_compute
    )
)


# products of pieces, or of numbers that have none


LIMIT = 2.0**126
"""If sums of f32 products stay below this bound, the sums of products of their pieces cannot overflow f32, whose
largest number is almost 2^128."""


def _large_infer(types: Types, attrs: Attrs) -> Out:
    """The type rule of `lowered.too_large`: largest magnitudes of rows, f32, and a bound `[]`, to the flag 0 or 1,
    i64[]."""
    if any(t is None or t.dtype is not f32 for t in types) or len(types) != 2 or present(types[1]).rank:
        raise ShapeError("magnitudes and a bound are of f32", expected="f32[...], f32[]", got=str(types))
    return (TensorType(i64, ()),)


def _large_compute(inputs: Tensors, attrs: Attrs, out: Out) -> tuple[Tensor, ...]:
    x, bound = need(inputs[0]), need(inputs[1])
    axes = [te.reduce_axis(size, f"r{k}") for k, size in enumerate(x.shape)]
    most = te.compute((), lambda: te.max(x[tuple(axis.var for axis in axes)], axis=axes), name="most") if axes else x

    def large() -> Expr:
        size, limit = most[()], const(LIMIT, f32)
        fine = (size < limit) & (bound[()] < limit) & (size * bound[()] < limit)  # none is of NaN
        return select(fine, const(0), const(1))

    return (te.compute((), large, name="large"),)


def _large_reference(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    x, bound = arrays
    with np.errstate(all="ignore"):
        most = np.max(x, initial=np.float32(-np.inf))
        fine = (most < LIMIT) & (bound < LIMIT) & (most * bound < LIMIT)
    return (np.asarray(not fine, np.int64),)


TOO_LARGE = register(OpDef("lowered.too_large", "reduction", Attrs, _large_infer, _large_reference, _large_compute))


@dataclass(frozen=True, slots=True)
class MatmulSplitAttrs(MatmulPiecesAttrs):
    """Attributes of a product that is computed by pieces from `least` rows on, and in f32 for fewer rows. `transpose`:
    whether an unpacked second factor comes as [N, K]."""

    least: int
    transpose: bool = False

    def ordinary(self, rows: int, weights: int) -> tuple[str, Attrs]:
        """(operator, attributes) of the product in f32, where the factors have the ranks `rows` and `weights`."""
        if weights == rows:
            return "matmul", MatmulAttrs(transpose_b=self.transpose)
        return "lowered.matmul_packed", ColumnsAttrs(as_expr(self.columns))


def _split_infer(types: Types, attrs: MatmulSplitAttrs) -> Out:
    """The type rule of `lowered.matmul_x3` and `lowered.matmul_x6`: x[..., M, K], its pieces, panels `[P, K, width]` or
    the second factor itself, panels of pieces, and the flag `[n]`, to `[..., M, columns]`."""
    x, pieces, away = present(types[0]), present(types[1]), present(types[4])
    if away.rank != 1 or x.dtype is not f32 or (*x.shape[:-1], x.shape[-1]) != (*pieces.shape[:-2], pieces.shape[-1]):
        raise ShapeError("the pieces are not of these rows", expected=x, got=f"{pieces}, {away}")
    return _product_infer((types[1], types[3]), attrs)


def versions(node: Node) -> tuple[Version, ...]:
    """(condition, node) of both versions of a product: by pieces if there are enough rows and no overflow is possible,
    else in f32."""
    x, pieces, packed, panels, away = node.inputs
    assert x is not None and away is not None and packed is not None
    attrs = node.of(MatmulSplitAttrs)
    op, how = attrs.ordinary(x.type.rank, packed.type.rank)
    split = Node(
        MATMUL_PIECES.name,
        (pieces, panels),
        node.outputs,
        MatmulPiecesAttrs(attrs.columns, attrs.rows, attrs.terms),
    )
    ordinary = Node(op, (x, packed), node.outputs, how)
    condition = away.shape[0] < 1
    if attrs.least > 1:
        condition = condition & (node.output.shape[-2] >= attrs.least)
    return Version(condition, split), Version(None, ordinary)


def _split_compute(inputs: Tensors, attrs: MatmulSplitAttrs, out: Out) -> tuple[Tensor, ...]:
    op, how = attrs.ordinary(len(need(inputs[0]).shape), len(need(inputs[2]).shape))
    compute = get(op).compute
    assert compute is not None
    return compute((inputs[0], inputs[2]), how, out)


def _split_reference(arrays: Sequence[Any], attrs: MatmulSplitAttrs) -> tuple[Any, ...]:
    x, pieces, packed, panels, away = arrays
    if len(away) < 1 and x.shape[-2] >= attrs.least:
        return _product_reference((pieces, panels), attrs)
    op, how = attrs.ordinary(x.ndim, packed.ndim)
    return get(op).reference((x, packed), how)


for _terms in TERMS:
    register(
        OpDef(
            f"lowered.matmul_x{_terms}",
            "contraction",
            MatmulSplitAttrs,
            _split_infer,
            _split_reference,
            _split_compute,
            versions=versions,
        )
    )

__all__ = [
    "MATMUL_PIECES",
    "PIECES",
    "TERMS",
    "TOGETHER",
    "MatmulPiecesAttrs",
    "MatmulSplitAttrs",
    "count_of",
    "passes",
]
