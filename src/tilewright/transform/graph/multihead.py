"""Operands of attention as PyTorch's `nn.MultiheadAttention` makes them: sequences first, batch and heads as one.

    z = P[:, :, i]                                    P [S, B, 3 E], a projection to queries, keys and values
    value = reshape(transpose(reshape(z, [S, B * H, D]), [1, 0, 2]), [B, H, S, D])

PyTorch writes z as a part of the three stacked, `transpose(reshape(P, [S, B, 3, E]), [2, 0, 1, 3])[i]`, with some
dimensions of extent 1. Attention can read it directly from P, from head `i * H` on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr, as_int, is_const
from tilewright.ir.graph import Value
from tilewright.ops.shape import SliceAttrs, TransposeAttrs
from tilewright.transform.graph.heads import transposed
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Rewriter

SPLIT = op("reshape", transposed((1, 0, 2), op("reshape", "source", name="split")))


def sequence_first(value: Value, facts: Rewriter) -> Value | None:
    """The value z [S, B, E] of which `value` [B, H, S, D] is made by `reshape(transpose(reshape(z, [S, B * H, D])))`;
    None for other values."""
    m = facts.first_match(SPLIT, value)
    if m is None or value.type.rank != 4:
        return None
    batch, heads, rows, depth = value.shape
    whole = _same(m["split"].shape, (rows, batch * heads, depth))
    return m["source"] if whole and _same(m["source"].shape, (rows, batch, heads * depth)) else None


def stacked(value: Value, facts: Rewriter) -> tuple[Value, int] | None:
    """(P, i) if z is part i, E elements wide, of a projection P [S, B, n E]; None for other values."""
    producer = facts.producer
    dropped = producer(value, "reshape")
    cut = producer(value if dropped is None else dropped.inputs[0], "slice")
    if cut is None or (dropped is not None and not _same(_long(cut.output.shape), _long(value.shape))):
        return None
    attrs, whole = cut.of(SliceAttrs), cut.inputs[0]
    assert whole is not None
    index = as_int(attrs.begin[0])
    one = is_const(cut.output.shape[0], 1) and _same(cut.output.shape[1:], whole.shape[1:])
    if index is None or not one or any(as_int(b) != 0 for b in attrs.begin[1:]):
        return None
    without_units = producer(whole, "reshape")
    transposed = producer(whole if without_units is None else without_units.inputs[0], "transpose")
    if transposed is None or not _same(_long(transposed.output.shape), _long(whole.shape)):
        return None
    source = transposed.inputs[0]
    assert source is not None
    order = [k for k in transposed.of(TransposeAttrs).perm if not is_const(source.shape[k], 1)]
    ranks = sorted(order)
    if [ranks.index(k) for k in order] != [2, 0, 1, 3]:
        return None
    while (inner := producer(source, "reshape")) is not None and inner.inputs[0] is not None:
        source = inner.inputs[0]
    count, rows, batch, width = whole.shape
    return (source, index) if _same(source.shape, (rows, batch, count * width)) else None


def _long(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The dimensions of a shape that are not 1."""
    return tuple(d for d in shape if not is_const(d, 1))


def _same(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(x is y or prove_equal(x, y) for x, y in zip(a, b, strict=True))
