"""Patterns of keys and values whose heads are each read by several heads of queries."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.shape import TransposeAttrs
from tilewright.transform.graph.matching import Op, Operand, op
from tilewright.transform.graph.rewrite import Rewriter

REPEATED = op("reshape", op("broadcast", op("reshape", "x", name="split"), name="spread"))


def transposed(perm: Sequence[int], operand: Operand) -> Op:
    """The pattern of an operand transposed by `perm`."""
    return op("transpose", operand, where=lambda node: node.of(TransposeAttrs).perm == perm)


def repeated_heads(facts: Rewriter, value: Value) -> tuple[Value, int] | None:
    """(x, n) if the value has the heads of x, each n times: `reshape(broadcast(reshape(x, [B, G, 1, S, D]), [B, G, n,
    S, D]), [B, G * n, S, D])`, as models with fewer heads of keys and values write it."""
    m = facts.first_match(REPEATED, value)
    if m is None or m["x"].type.rank != 4 or value.type.rank != 4 or m["spread"].type.rank != 5:
        return None
    x, split, spread = m["x"], m["split"].shape, m["spread"].shape
    batch, groups, length, depth = x.shape
    times = as_int(spread[2])
    wanted = ((batch, groups, const(1), length, depth), split)
    repeats = ((batch, groups, spread[2], length, depth), spread)
    whole = ((batch, groups * spread[2], length, depth), value.shape)
    same = all(equal(a, b) for pair in (wanted, repeats, whole) for a, b in zip(*pair, strict=True))
    return (x, times) if times is not None and same else None


def equal(a: Expr, b: Expr) -> bool:
    """Whether two sizes are provably equal."""
    return a is b or prove_equal(a, b)
