"""Compute whole vectors of temporaries; only loads that might be out of bounds stay under the condition on lanes.

    for v in 0..16 vectorized { if v < n { t[v] = 0.0 } }           for v in 0..16 vectorized { t[v] = 0.0 }
    for k in 0..3 {                                                 for k in 0..3 {
      for v in 0..16 vectorized {                             ->      for v in 0..16 vectorized {
        if v < n { t[v] += A[v, k] } } }                                t[v] += select(v < n, A[v, k], 0.0) } }

Lanes past the end of a line then have values that nothing reads. Only the final store needs a mask and a branch. All
stores to the temporary must be under the same condition: otherwise other stores' values might be overwritten.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, all_of, as_int, const, select
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Stmt, Store
from tilewright.ir.rewrite import loads, rebuild, replace_buffers, substitute, walk, walk_expr, with_children
from tilewright.transform.loops.copies import conjuncts
from tilewright.transform.loops.simplify import analyzer_of

LANE = Var("lane of a temporary")

MAX_EXTRA = 64
"""The largest size in bytes to which a line with less than a vector is enlarged."""


def whole_vectors(func: PrimFunc) -> PrimFunc:
    """The function without conditions on the lanes of temporaries, where whole vectors can be computed."""
    if not any(isinstance(s, Allocate) for s in walk(func.body)):
        return func
    body = _whole(func.body, analyzer_of(func.body), frozenset())
    return func if body is func.body else func.with_body(body)


def _whole(s: Stmt, an: Analyzer, free: frozenset[Buffer]) -> Stmt:
    """`s` without the conditions on lanes of stores to the buffers in `free`."""
    if isinstance(s, Allocate):
        grown = _grown(s, an)
        if _one_condition(grown, an):
            s, free = grown, free | {grown.buffer}
    lane = _lane_store(s)
    if lane is not None and lane[1].buffer in free:
        loop, store, retained, varying = lane
        guarded = replace(store, value=_guarded(store.value, all_of(varying), (), an))
        return replace(loop, body=If(all_of(retained), guarded) if retained else guarded)
    if not s.children:
        return s
    return with_children(s, tuple([_whole(c, an, free) for c in s.children]))


def is_under_one_condition(allocation: Allocate, an: Analyzer) -> bool:
    """Whether vectors of the allocated buffer can be stored without the condition on their lanes."""
    return _one_condition(_grown(allocation, an), an)


def _lane_store(s: Stmt) -> tuple[For, Store, list[Expr], list[Expr]] | None:
    """(loop, store, conditions that are equal for all lanes, other conditions) of a vectorized loop over a store under
    a condition; None for other statements."""
    match s:
        case For(body=If(condition, Store() as store, None)) if s.kind == "vectorized":
            parts = conjuncts(condition)
            varying = [c for c in parts if s.var in walk_expr(c)]
            return s, store, [c for c in parts if c not in varying], varying
    return None


def _grown(allocation: Allocate, an: Analyzer) -> Allocate:
    """The allocation, with its last dimension enlarged so that every lane of the vectors stored to it is in bounds;
    unchanged if it is large enough, or would need more than `MAX_EXTRA` elements."""
    old, body = allocation.buffer, allocation.body
    stores = [s for s in walk(body) if isinstance(s, Store) and s.buffer == old and s.indices]
    ends = [an.bounds(s.indices[-1]).hi for s in stores]
    size = as_int(old.shape[-1]) if old.shape else None
    most = max((end + 1 for end in ends if end is not None), default=0)
    if None in ends or size is None or not size < most <= MAX_EXTRA:
        return allocation
    new = replace(old, shape=(*old.shape[:-1], const(most)))
    return Allocate(new, replace_buffers(body, {old: new}))


def _one_condition(allocation: Allocate, an: Analyzer) -> bool:
    """Whether all stores to a buffer are under the same condition on their lane, and the buffer has a place for each
    lane."""
    buffer, conditions = allocation.buffer, set[tuple[Expr, ...]]()
    stores = 0
    for s in walk(allocation.body):
        if isinstance(s, Intrinsic) and any(r.buffer == buffer for r in (*s.outputs, *s.inputs)):
            return False
        if isinstance(s, Store) and s.buffer == buffer:
            stores += 1
        result = _lane_store(s)
        if result is None or result[1].buffer != buffer:
            continue
        loop, store, _, varying = result
        if not varying or not _inside(an, store, ()):
            return False
        stores -= 1
        conditions.add(tuple(substitute(c, {loop.var: LANE}) for c in varying))
    return stores == 0 and len(conditions) == 1


def _guarded(e: Expr, condition: Expr, facts: tuple[Expr, ...], an: Analyzer) -> Expr:
    """The value `e` for all lanes, where `facts` hold: loads that might leave their buffer in lanes where the condition
    is false, and loads with such a load in their indices, become selects on the condition."""
    if isinstance(e, Load):
        inside = all(_inside(an, load, facts) for load in loads(e))
        return e if inside else select(condition, e, const(0, e.dtype))
    if isinstance(e, Op) and e.name == "select":
        chosen, then, orelse = e.args
        then = _guarded(then, condition, (*facts, *conjuncts(chosen)), an)
        return select(_guarded(chosen, condition, facts, an), then, _guarded(orelse, condition, facts, an))
    return rebuild(e, tuple([_guarded(c, condition, facts, an) for c in e.children])) if e.children else e


def _inside(an: Analyzer, access: Store | Load, facts: tuple[Expr, ...]) -> bool:
    known = an
    if facts:
        # What a fact says of a part of itself, that some maximum is its first side, lets it be said more simply.
        first = Analyzer(an.extents, facts)
        known = Analyzer(an.extents, (*facts, *map(first.simplify, facts)))
    pairs = zip(access.indices, access.buffer.shape, strict=True)
    return all(known.prove(i >= 0) and known.prove(i < d) for i, d in pairs)


__all__ = ["is_under_one_condition", "whole_vectors"]
