"""Move conditions outwards and into loop bounds.

    for i in 0..16 {                              if n > 0 {
      for j in 0..16 {                              for i in 0..4 {
        if n > 0 and i < 4 { A[i, j] = 0.0 }   ->     for j in 0..16 { A[i, j] = 0.0 }
      } }                                           } }

Temporaries that are used only under a condition are computed under it. A condition that does not depend on a loop moves
out of it (but never out of a parallel one: outside, only one thread runs). A condition directly inside its loop that
only bounds the loop from above becomes its extent; in a vectorized or unrolled loop only if that is a literal. A
condition that bounds a serial loop from below moves its start:

    for k in 0..5 { if 2 <= k { C = C + A[k] } }   ->   for k in 0..3 { C = C + A[k + 2] }

If all stores of a serial loop are under conditions, none of which holds from some iteration on, the loop ends there:

    for t in 0..5 { for i in 0..6 { if t*6 + i < 8 { C[i] = 0.0 } } ... }   ->   for t in 0..2 { ... }
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.compare import coefficient, nonnegative_forms
from tilewright.arith.forms import Form, to_expr
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Buffer, Const, Expr, Load, all_of, as_int, const, is_const, maximum, minimum
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import buffers_in, substitute_stmt, variables, walk, walk_expr, with_children
from tilewright.ir.scopes import sharing
from tilewright.transform.loops.copies import conjuncts
from tilewright.transform.loops.simplify import analyzer_of


def move_conditions(func: PrimFunc) -> PrimFunc:
    """The function with its conditions moved as far out as possible."""
    body = _Mover(None).statement(func.body)
    return func if body is func.body else func.with_body(body)


def bound_loops(func: PrimFunc) -> PrimFunc:
    """The function with its conditions moved out; those that only bound a loop become its extent."""
    body = bound_loops_of(func.body)
    return func if body is func.body else func.with_body(body)


def bound_loops_of(stmt: Stmt, analyzer: Analyzer | None = None) -> Stmt:
    """`stmt` with its conditions moved outwards; a condition that only bounds a loop becomes the loop's extent.
    `analyzer` knows the extents of the loops in and around `stmt`; None: only of the loops in it."""
    if not any(isinstance(s, If) for s in walk(stmt)):
        return stmt
    return _Mover(analyzer or analyzer_of(stmt)).statement(stmt)


class _Mover:
    """Rewrites statements bottom-up so that conditions move outwards. With an analyzer, conditions also become the
    extents of loops; without one, they only move."""

    __slots__ = ("an",)

    def __init__(self, analyzer: Analyzer | None) -> None:
        self.an = analyzer

    def statement(self, s: Stmt) -> Stmt:
        if not s.children:
            return s
        s = with_children(s, tuple([self.statement(c) for c in s.children]))
        match s:
            case For():
                return self.loop(s)
            case Seq(stmts):
                return _sequence(stmts)
            case If(condition, If(inner, then, None), None):
                return If(_conjunction([*conjuncts(condition), *conjuncts(inner)]), then)
            case Allocate():
                return _wanted(s)
            case Let(var, value, If(condition, then, None)) if not _loads(condition):
                inside = [c for c in conjuncts(condition) if var in variables(c)]
                outside = [c for c in conjuncts(condition) if var not in variables(c)]
                return _guard(outside, Let(var, value, _guard(inside, then)))
        return s

    def loop(self, s: For) -> Stmt:
        if not isinstance(s.body, If) or s.body.orelse is not None:
            return self.busy_part(s)
        parts = conjuncts(s.body.condition)
        outside = []
        if s.kind not in ("parallel", "thread"):
            outside = [c for c in parts if not _loads(c) and s.var not in variables(c)]
        inside = []
        start: Expr = const(0)
        extent = s.extent
        for part in parts:
            if part in outside:
                continue
            bound = self.limit(part, s)
            first = self.first(part, s) if bound is None else None
            if bound is not None:
                extent = minimum(extent, bound)
            elif first is not None:
                start = maximum(start, first)
            else:
                inside.append(part)
        body = _guard(inside, s.body.then)
        if not is_const(start, 0) and self.an is not None:
            start = self.an.simplify(start)
            body = substitute_stmt(body, {s.var: s.var + start})
            extent = extent - start
        if extent is not s.extent and self.an is not None:
            extent = self.an.simplify(maximum(extent, const(0)) if s.kind == "parallel" else extent)
        return _guard(outside, replace(s, extent=extent, body=body))

    def busy_part(self, s: For) -> Stmt:
        """A serial loop without its last iterations if these store nothing and their number is known."""
        extent = as_int(s.extent)
        if self.an is None or s.kind != "serial" or extent is None:
            return s
        inner = frozenset(c.var for c in walk(s.body) if isinstance(c, For))
        end = self.end(s.body, s, Eliminator(self.an, inner))
        if end is None or not 0 < end < extent:
            return s
        if end == 1:
            return self.statement(substitute_stmt(s.body, {s.var: const(0)}))
        return replace(s, extent=const(end))

    def end(self, body: Stmt, loop: For, inner: Eliminator) -> int | None:
        """The iteration of `loop` from which on `body` stores nothing, whatever its own loops do; None if unknown."""
        if isinstance(body, Store | Intrinsic):
            return None
        guards: list[Expr] = []
        if isinstance(body, If) and body.orelse is None:
            guards = conjuncts(body.condition)
        elif isinstance(body, For):
            guards = [const(0) < body.extent]
        ends = [e for part in guards if (e := self.false_from(part, loop, inner)) is not None]
        if ends:
            return max(0, min(ends))
        latest = 0
        for child in body.children:
            result = self.end(child, loop, inner)
            if result is None:
                return None
            latest = max(latest, result)
        return latest

    def false_from(self, condition: Expr, loop: For, inner: Eliminator) -> int | None:
        """An iteration of `loop` from which on `condition` is false for all values within the inner variables' bounds;
        None if unknown."""
        parts = self.slack(condition, loop)
        if parts is None or parts[0] >= 0:
            return None
        ends = inner.of_form(parts[1])
        if ends is None or ends[1][0]:
            return None
        # c*v + most >= 0 for c < 0 is v <= most // -c.
        return ends[1][1] // -parts[0] + 1

    def first(self, condition: Expr, loop: For) -> Expr | None:
        """The first iteration for which `condition` holds, if it is only a lower bound on the serial loop; None
        otherwise."""
        if loop.kind != "serial":
            return None
        parts = self.slack(condition, loop)
        if parts is None or parts[0] <= 0:
            return None
        # c*v + rest >= 0 for c > 0 is v >= -(rest // c).
        return -(to_expr(parts[1]) // parts[0])

    def limit(self, condition: Expr, loop: For) -> Expr | None:
        """The extent to which `condition` limits the loop, if it is only an upper bound; None otherwise."""
        parts = self.slack(condition, loop)
        if self.an is None or parts is None or parts[0] >= 0:
            return None
        # c*v + rest >= 0 for c < 0 is v < rest // -c + 1.
        bound = self.an.simplify(to_expr(parts[1]) // -parts[0] + 1)
        if loop.kind in ("vectorized", "unrolled") and not isinstance(bound, Const):
            return None
        return bound

    def slack(self, condition: Expr, loop: For) -> tuple[int, Form] | None:
        """`(c, rest)` such that the condition is equivalent to `c*v + rest >= 0` for the loop's variable v; None
        otherwise."""
        if self.an is None or loop.kind == "thread" or loop.var not in variables(condition):
            return None
        slack = nonnegative_forms(self.an, condition)
        if len(slack) != 1:
            return None
        parts = coefficient(slack[0], loop.var)
        if parts is None:
            return None
        (terms, c), rest = parts
        if terms or any(loop.var in variables(atom) for atom in rest[0]) or any(map(_loads, rest[0])):
            return None
        return c, rest


def _wanted(s: Allocate) -> Stmt:
    """Move an allocation whose buffer is used only under a condition to the inside of that condition."""
    own, body = {s.buffer}, s.body
    while isinstance(body, Allocate):
        own.add(body.buffer)
        body = body.body
    *before, last = body.stmts if isinstance(body, Seq) else (body,)
    if not isinstance(last, If) or last.orelse is not None or _loads(last.condition):
        return s
    if any(b not in own for stmt in before for b in _written(stmt)):
        return s
    if any(map(_shares, before)):
        return s  # other threads may read what this one makes
    return If(last.condition, _within(s, seq([*before, last.then])))


def _within(s: Stmt, body: Stmt) -> Stmt:
    """The chain of allocations `s` around another body."""
    return Allocate(s.buffer, _within(s.body, body)) if isinstance(s, Allocate) else body


def _written(stmt: Stmt) -> Iterator[Buffer]:
    """The buffers that a statement writes, except those that it allocates."""
    allocated = {s.buffer for s in walk(stmt) if isinstance(s, Allocate)}
    for s in walk(stmt):
        if isinstance(s, Store) and s.buffer not in allocated:
            yield s.buffer
        if isinstance(s, Intrinsic):
            yield from (r.buffer for r in s.outputs if r.buffer not in allocated)


def _sequence(stmts: tuple[Stmt, ...]) -> Stmt:
    """Join neighbouring statements that have conditions in common under these conditions."""
    result: list[Stmt] = []
    for s in stmts:
        last = result[-1] if result else None
        match last, s:
            case If(a, first, None), If(b, second, None):
                left, right = conjuncts(a), conjuncts(b)
                common = [c for c in left if c in right and not _loads(c)]
                if common and not _shares(s):
                    inner = [
                        _guard([c for c in left if c not in common], first),
                        _guard([c for c in right if c not in common], second),
                    ]
                    result[-1] = _guard(common, seq(inner))
                    continue
        result.append(s)
    return seq(result)


def _shares(s: Stmt) -> bool:
    """Whether a statement accesses memory that GPU threads share: threads may have to wait before it."""
    return any(sharing(b.scope) for b in buffers_in(s))


def _guard(conditions: list[Expr], body: Stmt) -> Stmt:
    return If(_conjunction(conditions), body) if conditions else body


def _conjunction(conditions: list[Expr]) -> Expr:
    return all_of(dict.fromkeys(conditions))


def _loads(e: Expr) -> bool:
    """Whether `e` reads memory: such a condition may not move, since an enclosing condition may guard its indices."""
    return any(type(node) is Load for node in walk_expr(e))
