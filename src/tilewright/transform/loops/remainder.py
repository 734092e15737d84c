"""Give each value of a symbolic remainder its own version, where copies of an unrolled loop depend on it.

    for k in 0..64 {                                 if n % 4 == 1 {
      for i in unrolled 0..4 {                         for k in 0..64 { C[0] = C[0] + A[k, 0] }
        if i < n % 4 { C[i] = C[i] + A[k, i] }   ->  } else { if n % 4 == 2 { ... } else { if n % 4 == 3 { ... } } }
      } }

In each version the loop has a literal extent and no condition, so accumulators stay in registers. A batch of one that
meets a tile of four rows thus runs a kernel of one row.

All versions together are several times the code of a whole tile. Loops that LLVM is to unroll, to hide the loop
overhead of a short body, are unrolled less in versions whose rows alone make the body long.

Remainders come from splitting loops over tiles (`partition.py`, `even.py`). If the symbol's range has at most one tile,
there is no such loop; then the body of a thread, or of its outermost loop, gets the versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir.expr import Const, Expr, Op, Var, as_int, const, equal
from tilewright.ir.loops import For, If, Intrinsic, Let, PrimFunc, Stmt, Store
from tilewright.ir.notes import Prefetch, Unroll, find, with_note, without
from tilewright.ir.rewrite import map_expr, map_stmt, names_of, substitute_stmt, variables, walk, with_children
from tilewright.transform.loops.conditions import bound_loops_of
from tilewright.transform.loops.copies import conjuncts, copy_fresh
from tilewright.transform.loops.simplify import simplify_stmt

MAX_REMAINDER = 13
"""The largest remainder, in rows, for which a loop gets a version with a fixed number of rows."""
BODY = 1024
"""The least number of bytes that an iteration of a version's loop stores (16 vectors of 16 floats) if it is unrolled
less than in a whole tile. Per row, one step of eight rows takes as long as two (the ranker of
benchmarks/bench_dynamic.py, Zen 5, 2026-11-28), except as a loop of one step inside a loop over prefetched lines, which
took 6 % longer."""


def rows_by_number(func: PrimFunc) -> PrimFunc:
    """The function with a version for each number of rows, for loops that sum over a single tile of rows."""
    used_names = names_of(func)
    alone = not any(isinstance(s, For) and s.kind == "parallel" for s in walk(func.body))

    def on(s: Stmt, outer: dict[Var, Expr]) -> Stmt:
        if isinstance(s, For):
            inside = {**outer, s.var: s.extent}
            body = _numbered(s.body, inside, used_names) if s.kind == "parallel" or (alone and not outer) else None
            return replace(s, body=body or on(s.body, inside))
        return with_children(s, tuple([on(c, outer) for c in s.children])) if s.children else s

    body = on(func.body, {})
    return func if body is func.body else func.with_body(body)


def _numbered(s: Stmt, outer: dict[Var, Expr], used_names: set[str]) -> Stmt | None:
    """The statement `s` of one thread, inside of loops with the extents `outer`, with a version for each number of
    rows, if a serial loop in it tests whether rows exist; else None. New names are added to `used_names`."""
    if any(isinstance(x, Intrinsic) for x in walk(s)):
        return None  # the callee reads rows of the buffer's own width
    if not any(isinstance(x, For) and x.kind == "serial" and _tested(x) for x in walk(s)):
        return None

    def tidy(version: Stmt, rows: int) -> Stmt:
        copy = copy_fresh(all_rows(version, rows), used_names)
        an = Analyzer({**outer, **{c.var: c.extent for c in walk(copy) if isinstance(c, For)}})
        return bound_loops_of(simplify_stmt(copy, an), an)

    return by_remainder(s, Analyzer(outer), MAX_REMAINDER, tidy)


def _tested(loop: For) -> bool:
    """Whether an unrolled loop in the body guards each of its rows by the test that the row exists, and by nothing
    else."""
    rows = [s for s in walk(loop.body) if isinstance(s, For) and s.kind == "unrolled"]
    return any(isinstance(s.body, If) and len(list(conjuncts(s.body.condition))) == 1 for s in rows) and bool(
        remainders(loop.body)
    )


def by_remainder(
    stmt: Stmt,
    analyzer: Analyzer,
    limit: int,
    tidy: Callable[[Stmt, int], Stmt],
    *,
    least: int = 1,
    never: int | None = None,
) -> Stmt | None:
    """`stmt` with a version for each value of the one remainder in it; None if there is none, or more than `limit`
    values.

    If all stores are guarded by tests of the remainder, 0 needs no version. The remainder is at least `least`, and is
    not `never`. `tidy` simplifies the copy for a value and gives it fresh names.
    """
    match = remainders(stmt)
    if len(match) != 1:
        return None
    ((remainder, tests),) = match.items()
    lo, hi = analyzer.bounds(remainder)
    if lo is None or hi is None or lo < 0 or not 1 < hi <= min(limit, MAX_REMAINDER):
        return None
    # With remainder 0 nothing happens if every store is after a test.
    first = max(lo, least) if all_after(stmt, tests) else lo
    result: Stmt | None = None
    for value in (n for n in range(hi, first - 1, -1) if n != never):
        version = _with_fewer_copies(tidy(put(stmt, remainder, const(value)), value))
        result = If(equal(remainder, value), version, result)
    return result


def all_rows(s: Stmt, rows: int) -> Stmt:
    """The statement for a function of exactly `rows` rows. If they are too few to share the prefetch of a panel, each
    row prefetches by itself, into another level of cache."""

    def folded(s: Stmt) -> Stmt | None:
        note = find(s.notes, Prefetch) if isinstance(s, For) else None
        if not isinstance(s, For) or note is None or note.fewer_than is None or rows >= note.fewer_than:
            return None
        if note.distance is None or note.prefetch_level is None:
            return None
        own = Prefetch(note.buffers, note.distance, level=note.prefetch_level, lines=note.lines)
        return replace(s, notes=with_note(without(s.notes, Prefetch), own))

    return map_stmt(s, folded)


def _with_fewer_copies(s: Stmt, least: int = 1) -> Stmt:
    """The statement with smaller unroll factors: the smallest, from `least` on, with which an iteration stores `BODY`
    bytes. There are several versions of a loop, and smaller factors keep their code small."""
    if isinstance(s, For) and (note := find(s.notes, Unroll)) is not None:
        copies = _copies(s, note.times, least)
        rest = without(s.notes, Unroll)
        notes = rest if copies == 1 else with_note(rest, Unroll(copies))
        return replace(s, body=_with_fewer_copies(s.body), notes=notes)
    if isinstance(s, For) and isinstance(s.body, For) and (shared := find(s.notes, Prefetch)) is not None:
        return _one_step(s, s.body, shared) or replace(s, body=_with_fewer_copies(s.body, 2))
    return with_children(s, tuple([_with_fewer_copies(c) for c in s.children])) if s.children else s


def _copies(loop: For, times: int, least: int) -> int:
    """The factor by which a version unrolls a loop that has the note `Unroll(times)`: the smallest divisor of `times`,
    from `least` on, with which an iteration stores `BODY` bytes; `times` if none does."""
    stored = _stored(loop.body)
    return next((d for d in range(least, times) if times % d == 0 and d * stored >= BODY), times)


def _one_step(steps: For, inner: For, shared: Prefetch) -> For | None:
    """`steps` and `inner` as one loop, if the inner loop, whose steps share a prefetch, is best not unrolled; else
    None. A separate loop of two steps would be slower."""
    note, extent, lines = find(inner.notes, Unroll), as_int(steps.extent), shared.lines
    if note is None or as_int(inner.extent) != note.times or _copies(inner, note.times, 1) != 1:
        return None
    if extent is None or lines is None or lines % note.times:
        return None
    step, count = Var(steps.var.name), extent * note.times
    body = substitute_stmt(inner.body, {steps.var: step // note.times, inner.var: step % note.times})
    notes = with_note(without(steps.notes, Prefetch), replace(shared, lines=lines // note.times))
    return replace(
        steps, var=step, extent=const(count), body=simplify_stmt(body, Analyzer({step: const(count)})), notes=notes
    )


def _stored(s: Stmt) -> int:
    """The bytes that a statement stores, over all iterations of its unrolled and vectorized loops."""
    own = s.buffer.dtype.itemsize if isinstance(s, Store) else 0
    times = (as_int(s.extent) or 1) if isinstance(s, For) and s.kind in ("unrolled", "vectorized") else 1
    return times * (own + sum(map(_stored, s.children)))


def remainders(stmt: Stmt) -> dict[Expr, set[Expr]]:
    """The symbolic limits of unrolled loops, each with its conditions `i < limit`."""
    bound = {s.var for s in walk(stmt) if isinstance(s, For | Let)}
    result: dict[Expr, set[Expr]] = {}
    for s in walk(stmt):
        if isinstance(s, For) and s.kind == "unrolled" and isinstance(s.body, If) and s.body.orelse is None:
            for part in conjuncts(s.body.condition):
                if type(part) is Op and part.name == "lt" and part.args[0] is s.var:
                    limit = part.args[1]
                    if type(limit) is not Const and bound.isdisjoint(variables(limit)):
                        result.setdefault(limit, set()).add(part)
    return result


def all_after(s: Stmt, conditions: set[Expr]) -> bool:
    """Whether every store in `s` is under one of the conditions."""
    if isinstance(s, Store | Intrinsic):
        return False
    if isinstance(s, If) and s.orelse is None and not conditions.isdisjoint(conjuncts(s.condition)):
        return True
    return all(all_after(c, conditions) for c in s.children)


def put(s: Stmt, old: Expr, new: Expr) -> Stmt:
    """`s` with the expression `new` in place of every `old`."""
    memo: dict[Expr, Expr] = {}
    return map_stmt(s, lambda _: None, lambda e: map_expr(e, lambda n: new if n is old else None, memo))
