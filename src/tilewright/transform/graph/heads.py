"""Heads of keys and values that several heads of queries read."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Node, Value

Producer = Callable[[Value | None], Node | None]


def repeated_heads(producer: Producer, value: Value) -> tuple[Value, int] | None:
    """(x, n) where heads of x, n times each, are those of the value: `reshape(broadcast(reshape(x, [B, G, 1, S, D]),
    [B, G, n, S, D]), [B, G * n, S, D])`, as models with fewer heads of keys and values have it."""
    merged = _by(producer, value, "reshape")
    spread = None if merged is None else _by(producer, merged.inputs[0], "broadcast")
    split = None if spread is None else _by(producer, spread.inputs[0], "reshape")
    x = None if split is None else split.inputs[0]
    if spread is None or split is None or x is None:
        return None
    if x.type.rank != 4 or value.type.rank != 4 or spread.output.type.rank != 5:
        return None
    batch, groups, length, depth = x.shape
    times = as_int(spread.output.shape[2])
    wanted = ((batch, groups, const(1), length, depth), split.output.shape)
    repeats = ((batch, groups, spread.output.shape[2], length, depth), spread.output.shape)
    whole = ((batch, groups * spread.output.shape[2], length, depth), value.shape)
    same = all(equal(a, b) for pair in (wanted, repeats, whole) for a, b in zip(*pair, strict=True))
    return (x, times) if times is not None and same else None


def equal(a: Expr, b: Expr) -> bool:
    """Whether two sizes are provably one."""
    return a is b or prove_equal(a, b)


def _by(producer: Producer, value: Value | None, op: str) -> Node | None:
    node = producer(value)
    return node if node is not None and node.op == op else None
