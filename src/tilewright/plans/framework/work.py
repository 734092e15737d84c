"""The law of work: a scheduled function does no more operations than its plan stated. They are counted without running
it.

A block of a schedule runs at every point of its enclosing loops where its predicate holds; needed are the points of its
domain. A block runs more often if tiles overlap, if they overhang without being clipped, or if a region was inferred
too large. A plan states work of the first two kinds (`Added`); an excess above `MAX_EXCESS` is an error of the
schedule, and its candidate is rejected (`plans/__init__.py`).

Points are counted exactly if few loops share a condition; else all count. Symbols count as `SAMPLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright.arith import bounds
from tilewright.ir.evaluate import values_of
from tilewright.ir.expr import Const, Expr, Load, Op, Var, const
from tilewright.ir.loops import Block, For, If, Intrinsic, PrimFunc, Stmt, Store
from tilewright.ir.rewrite import substitute, variables, walk, walk_expr
from tilewright.schedule.state import conjuncts
from tilewright.support.classes import dataclass

MAX_EXCESS = 1.1
"""The operations that a schedule may perform, relative to those that are needed or stated. Overhanging tiles of a few
rows stay below it if the plan could have chosen others."""

FREE = frozenset({"cast", "bitcast", "select", "neg", "abs"})
"""Operators that do not count."""

SAMPLE = 251
"""The number that a symbol counts as, rounded up to the symbol's multiple and clipped to its range: no size of a tile
divides it."""

LARGEST = 1 << 20
"""The largest number of points of loops with common conditions that are tested one by one; of more, all count."""


@dataclass(frozen=True, slots=True)
class Added:
    """Redundant work that a plan states: `stage` runs at up to `points` points, some of them computed more than once or
    outside the stage's domain, for the reason `why`."""

    stage: str
    why: Literal["halo", "whole tiles", "each panel"]
    points: int


@dataclass(frozen=True, slots=True)
class Effort:
    """The operations that a block of a scheduled function performs: `operations` at each of `performed` points, of
    which its domain, without repetition, has `ordered`."""

    block: str
    operations: int
    ordered: int
    performed: int


@dataclass(frozen=True, slots=True)
class Work:
    """All blocks of a scheduled function, and the work that its plan adds on purpose."""

    efforts: tuple[Effort, ...]
    added: tuple[Added, ...] = ()

    @property
    def excess(self) -> float:
        """The operations that are performed, relative to those that are needed or stated; 1 if there are none."""
        stated = {a.stage: a.points for a in self.added}
        allowed = sum(e.operations * max(e.ordered, stated.get(e.block, 0)) for e in self.efforts)
        return sum(e.operations * e.performed for e in self.efforts) / allowed if allowed else 1.0

    @property
    def worst(self) -> Effort:
        """The block with the largest excess."""
        return max(self.efforts, key=lambda e: e.operations * (e.performed - e.ordered))


def work_of(func: PrimFunc, added: tuple[Added, ...] = ()) -> Work:
    """The work of a scheduled function. If a function only copies, each element written to a parameter counts as an
    operation; tiles copied to registers do not count, as they may overhang."""
    values: dict[Var, Expr] = {s: const(_sample(s)) for s in func.symbols}
    places = list(_blocks(func.body))
    each = [sum(map(_operations, walk(block.body))) for block, _, _ in places]
    if not any(each):
        each = [sum(isinstance(s, Store) and s.buffer in func.params for s in walk(b.body)) for b, _, _ in places]
    results = (
        Effort(
            block.name, count, prod(_size(it.extent, values) for it in block.iters), points(loops, conditions, values)
        )
        for count, (block, loops, conditions) in zip(each, places, strict=True)
    )
    return Work(tuple(results), added)


def operations_of(e: Expr, *, floats: bool = False) -> int:
    """The number of distinct operators in a value, without operators in indices; with `floats` only the ones on
    floats."""
    indices = {part for node in walk_expr(e) if isinstance(node, Load) for i in node.indices for part in walk_expr(i)}
    return sum(
        isinstance(node, Op)
        and node.name not in FREE
        and (node.args[0].dtype.is_float or not floats)
        and node not in indices
        for node in walk_expr(e)
    )


def _operations(s: Stmt) -> int:
    match s:
        case Store():
            return operations_of(s.value)
        case Intrinsic():
            sizes = [prod(_size(extent, {}) for _, extent in r.ranges) for r in s.inputs]
            return max(sizes, default=1)
    return 0


def _sample(symbol: Var) -> int:
    value = -(-SAMPLE // symbol.multiple) * symbol.multiple
    return max(value if symbol.hi is None else min(value, symbol.hi), symbol.lo or 0)


def _size(extent: Expr, values: Mapping[Var, Expr]) -> int:
    if isinstance(extent, Const):
        return int(extent.value)
    most = bounds(substitute(extent, values)).hi
    return 1 if most is None else max(0, most)


Place = tuple[Block, tuple[For, ...], tuple[Expr, ...]]
"""A block, the loops around it, and the conditions under which it runs."""


def _blocks(stmt: Stmt, loops: tuple[For, ...] = (), conditions: tuple[Expr, ...] = ()) -> Iterator[Place]:
    match stmt:
        case For():
            yield from _blocks(stmt.body, (*loops, stmt), conditions)
        case Block():
            yield stmt, loops, (*conditions, *conjuncts(stmt.predicate))
        case If():
            yield from _blocks(stmt.then, loops, (*conditions, *conjuncts(stmt.condition)))
            if stmt.orelse is not None:
                yield from _blocks(stmt.orelse, loops, (*conditions, ~stmt.condition))
        case _:
            for child in stmt.children:
                yield from _blocks(child, loops, conditions)


def points(loops: Sequence[For], conditions: Sequence[Expr], values: Mapping[Var, Expr]) -> int:
    """The number of iterations of nested `loops` in which all `conditions` hold, with symbols replaced by `values`.
    Loops that share no condition are counted separately, and the counts multiplied."""
    extents: dict[Var, int] = {}
    for loop in loops:
        enclosing = {v: const(n) for v, n in extents.items()}
        known = loop.extent if isinstance(loop.extent, Const) else bounds(substitute(loop.extent, values), enclosing).hi
        extents[loop.var] = max(0, int(known.value if isinstance(known, Const) else known or 0))
    free, total = set(extents), 1
    for group, joined in _groups(extents, [substitute(c, values) for c in conditions]):
        free -= group
        total *= _holding(tuple((v, n) for v, n in extents.items() if v in group), joined)
    return total * prod(extents[v] for v in free)


def _groups(extents: Mapping[Var, int], conditions: Sequence[Expr]) -> list[tuple[set[Var], tuple[Expr, ...]]]:
    """Conditions grouped so that conditions which share a loop variable (a key of `extents`) are together: (loop
    variables, conditions) of each group."""
    groups: list[tuple[set[Var], tuple[Expr, ...]]] = []
    for c in dict.fromkeys(conditions):
        own = {v for v in variables(c) if v in extents}
        shared = [other for other in groups if other[0] & own]
        joined = (own.union(*(group for group, _ in shared)), (c, *(x for _, more in shared for x in more)))
        groups = [*(other for other in groups if other not in shared), joined]
    return groups


@lru_cache(maxsize=1 << 12)
def _holding(extents: tuple[tuple[Var, int], ...], conditions: tuple[Expr, ...]) -> int:
    """The number of points, within the `extents` of loop variables, at which all conditions hold; the number of all
    points if they are too many to test, or if a condition depends on more than loop variables."""
    shape = tuple(n for _, n in extents)
    inside: set[Expr] = {v for v, _ in extents}
    known = all(
        n in inside if isinstance(n, Var) else not isinstance(n, Load) for c in conditions for n in walk_expr(c)
    )
    if not known or prod(shape) > LARGEST:
        return prod(shape)
    grid: dict[Expr, Any] = dict(zip((v for v, _ in extents), np.indices(shape, sparse=True), strict=True))
    holds: Any = np.True_
    for c in conditions:
        holds = holds & values_of(c, grid.__getitem__)
    return int(np.broadcast_to(holds, shape).sum())


__all__ = ["MAX_EXCESS", "Added", "Effort", "Work", "operations_of", "points", "work_of"]
