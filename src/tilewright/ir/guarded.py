"""Loads with the conditions under which they happen: `select`, `and` and `or` touch only what they need."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.expr import Expr, Load, Op
from tilewright.ir.rewrite import loads

Conditions = tuple[Expr, ...]


def guarded_loads(e: Expr, wanted: set[Load], conditions: Conditions = ()) -> Iterator[tuple[Load, Conditions]]:
    """Yield the loads of `e` that are in `wanted`, each with the conditions under which it is evaluated; loads that an
    index or a condition needs come first."""
    yield from _guarded(e, wanted, conditions, set())


def _guarded(
    e: Expr, wanted: set[Load], conditions: Conditions, seen: set[tuple[Expr, Conditions]]
) -> Iterator[tuple[Load, Conditions]]:
    if wanted.isdisjoint(loads(e)) or (e, conditions) in seen:
        return
    seen.add((e, conditions))
    inner: list[tuple[Expr, Conditions]] = [(c, conditions) for c in e.operands]
    if isinstance(e, Op) and e.name in ("select", "and", "or"):
        first, *rest = e.args
        holds = [first, ~first] if e.name != "or" else [~first]
        inner = [(first, conditions), *((c, (*conditions, h)) for c, h in zip(rest, holds, strict=False))]
    for child, known in inner:
        yield from _guarded(child, wanted, known, seen)
    if isinstance(e, Load) and e in wanted:
        yield e, conditions
