"""Merge a loop that reduces vectors with the loop that has just made them, so that they need not be loaded again.

    for i in 0..n { for v in vectorized 0..32 { e[i*32 + v] = exp(x[i*32 + v]) } }
    for v in vectorized 0..32 { part[v] = 0.0 }
    for k in 0..n { for w in vectorized 0..32 { part[w] = part[w] + e[k*32 + w] } }

becomes

    for v in vectorized 0..32 { part[v] = 0.0 }
    for i in 0..n { for v in vectorized 0..32 { e[i*32 + v] = exp(x[i*32 + v]) }
                    for w in vectorized 0..32 { part[w] = part[w] + e[i*32 + w] } }

Statements between the two loops move before or after them, if dependences allow that. Each iteration must complete its
own elements: a maximum that the first loop still accumulates is not ready for a reader. If several rows are processed
together, neighbouring loops over them are joined first, if the statements of a row access that row alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.arith import bounds, linear
from tilewright.ir.expr import Buffer, Expr, Load, as_int
from tilewright.ir.loops import For, Intrinsic, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import (
    exprs_of,
    loads,
    own_loads,
    substitute,
    substitute_stmt,
    variables,
    walk,
    with_children,
)


def merge_loops(func: PrimFunc) -> PrimFunc:
    """The function with each loop that reduces vectors merged into the loop before it that computes them."""
    body = _statement(func.body)
    return func if body is func.body else func.with_body(body)


def _statement(s: Stmt) -> Stmt:
    if not s.children:
        return s
    s = with_children(s, tuple(_statement(c) for c in s.children))
    if not isinstance(s, Seq):
        return s
    stmts = list(s.stmts)
    for k, (first, second) in enumerate(pairwise(stmts)):
        rows = _rows_merged(first, second)
        if rows is not None:
            return _statement(seq([*stmts[:k], rows, *stmts[k + 2 :]]))
    for k, first in enumerate(stmts):
        if _vector_store(first) is None:
            continue
        for m in range(k + 1, len(stmts)):
            merged = _merged(stmts[k : m + 1])
            if merged is not None:
                return _statement(seq([*stmts[:k], *merged, *stmts[m + 1 :]]))
    return s


def _rows_merged(a: Stmt, b: Stmt) -> For | None:
    """Two loops over the same rows joined into one, if the loops inside can then be merged; None otherwise."""
    if not (isinstance(a, For) and isinstance(b, For) and a.kind == b.kind == "serial" and a.extent is b.extent):
        return None
    if as_int(a.extent) is None or not any(isinstance(x, For) and x.kind == "vectorized" for x in walk(b.body)):
        return None
    other = substitute_stmt(b.body, {b.var: a.var})
    for buffer in written(a) & touched(b) | touched(a) & written(b):
        points = [p for s in (a.body, other) for p in _points(s, buffer)]
        if None in points or not any(all(p and p[d] is a.var for p in points) for d in range(len(buffer.shape))):
            return None
    inside = parts(a.body) + parts(other)
    merged = _statement(seq(inside))
    return replace(a, body=merged) if len(parts(merged)) < len(inside) else None


def parts(s: Stmt) -> list[Stmt]:
    return list(s.stmts) if isinstance(s, Seq) else [s]


def _points(s: Stmt, buffer: Buffer) -> Iterator[tuple[Expr, ...] | None]:
    """The indices at which a statement accesses a buffer; None for an access whose indices are not known."""
    for inner in walk(s):
        if isinstance(inner, Store) and inner.buffer == buffer:
            yield inner.indices
        if isinstance(inner, Intrinsic) and any(r.buffer == buffer for r in (*inner.inputs, *inner.outputs)):
            yield None
        yield from (x.indices for x in own_loads(inner) if x.buffer == buffer)


def _vector_store(s: Stmt) -> tuple[For, For, Store] | None:
    """(a serial loop, a vectorized loop inside it, the one store inside that) if `s` is such a nest; None otherwise."""
    if isinstance(s, For) and s.kind == "serial" and isinstance(s.body, For) and s.body.kind == "vectorized":
        if isinstance(s.body.body, Store):
            return s, s.body, s.body.body
    return None


def _merged(stmts: Sequence[Stmt]) -> list[Stmt] | None:
    """The first and the last of these statements merged into one loop, with the statements between before or after it;
    None if that is not possible."""
    created, used = _vector_store(stmts[0]), _vector_store(stmts[-1])
    if created is None or used is None:
        return None
    (outer, lanes, store), (other, other_lanes, update) = created, used
    if outer.extent is not other.extent or lanes.extent is not other_lanes.extent:
        return None
    renamed = substitute_stmt(other_lanes, {other.var: outer.var})
    assert isinstance(renamed, For) and isinstance(renamed.body, Store)
    own = Load(update.buffer, update.indices)
    read = [x for e in exprs_of(renamed.body) for x in loads(e)]
    of_created = [x for x in read if x.buffer == store.buffer]
    if not of_created:
        return None
    point = tuple(substitute(i, {renamed.var: lanes.var}) for i in of_created[0].indices)
    if point != store.indices or any(x.indices != of_created[0].indices for x in of_created):
        return None
    if own not in own_loads(update) or update.buffer in touched(stmts[0]):
        return None
    if not _own_elements(store, outer, lanes):
        return None
    before: list[Stmt] = []
    following: list[Stmt] = []
    for s in stmts[1:-1]:
        if update.buffer in touched(s):
            if any(depend(s, other) for other in (stmts[0], *following)):
                return None
            before.append(s)
        else:
            if written(s) & (touched(stmts[-1]) - {store.buffer}) or not _disjoint(s, store, outer, lanes):
                return None
            following.append(s)
    return [*before, replace(outer, body=seq((lanes, renamed))), *following]


def _own_elements(store: Store, outer: For, lanes: For) -> bool:
    """Whether no two iterations of `outer` store to the same element, as one index moves by more per iteration than all
    `lanes` span."""
    width = as_int(lanes.extent)
    for index in store.indices:
        form = linear(index)
        rest = [atom for atom, _ in form.terms if atom is not outer.var and atom is not lanes.var]
        if width is None or any(v in variables(atom) for atom in rest for v in (outer.var, lanes.var)):
            continue
        if abs(form.coefficient(outer.var)) > abs(form.coefficient(lanes.var)) * (width - 1):
            return True
    return False


def depend(a: Stmt, b: Stmt) -> bool:
    """Whether two statements depend on each other, so that their order matters."""
    return bool(written(a) & touched(b) or written(b) & touched(a))


def touched(s: Stmt) -> set[Buffer]:
    result = written(s)
    for inner in walk(s):
        result.update([x.buffer for x in own_loads(inner)])
        if isinstance(inner, Intrinsic):
            result.update([r.buffer for r in inner.inputs])
    return result


def written(s: Stmt) -> set[Buffer]:
    members: set[Buffer] = set()
    for inner in walk(s):
        if isinstance(inner, Store):
            members.add(inner.buffer)
        elif isinstance(inner, Intrinsic):
            members.update([r.buffer for r in inner.outputs])
    return members


def _disjoint(s: Stmt, store: Store, outer: For, lanes: For) -> bool:
    """Whether `s` writes no element that `store` writes, as the tail after a main part does not."""
    extents = {x.var: x.extent for x in (outer, lanes)}
    others = {x.var: x.extent for x in walk(s) if isinstance(x, For)}
    for inner in walk(s):
        if isinstance(inner, Intrinsic) and store.buffer in written(inner):
            return False
        if isinstance(inner, Store) and inner.buffer == store.buffer:
            high, low = bounds(store.indices[-1], extents).hi, bounds(inner.indices[-1], others).lo
            if high is None or low is None or low <= high:
                return False
    return True
