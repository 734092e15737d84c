"""Split loops where a condition inside is known to hold, so that the main part runs without it.

    for io in 0..(n + 7)//8 {                       for io in 0..n//8 {
      for ii in vectorized 0..8 {                     for ii in vectorized 0..8 { B[io*8 + ii] = 0.0 }
        if io*8 + ii < n { B[io*8 + ii] = 0.0 }  -> }
      }                                             for ii_1 in vectorized 0..8 {
    }                                                 if ii_1 < n % 8 { B[n//8*8 + ii_1] = 0.0 } }

A condition inside a loop over v is a slack `c*v + rest >= 0`; with the worst value of `rest` over the inner loops it
gives the range of v where it always holds. The loop becomes head, main and tail; in a head or tail of one iteration v
is substituted, so that with a literal n the tail's inner loop has the remaining extent and no condition. Two such loops
around each other give main/main, main/tail, tail/main, tail/tail. A parallel loop stays one loop and chooses inside, as
does a loop whose variable occurs through a quotient (`f // 4` after fusing).

Conditions of `If` are always considered, those of `select` (padding) only if they differ between the lanes or the
copies of an inner vectorized or unrolled loop. `limit` bounds how many versions of a statement there may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.arith import Analyzer
from tilewright.arith.compare import nonnegative_forms
from tilewright.arith.forms import Form, add, factors, to_expr
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Const, Expr, Load, Op, Var, all_of, const, maximum, minimum
from tilewright.ir.loops import For, If, Intrinsic, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import (
    exprs_of,
    map_expr,
    map_stmt,
    names_of,
    substitute,
    substitute_stmt,
    walk,
    walk_expr,
    with_children,
)
from tilewright.transform.loops.conditions import bound_loops_of
from tilewright.transform.loops.copies import conjuncts, copy_fresh
from tilewright.transform.loops.simplify import EMPTY, simplify_stmt

VERSIONS = 16


def partition_loops(func: PrimFunc, limit: int = VERSIONS) -> PrimFunc:
    """The function with loops split into main parts and tails; at most `limit` versions of any statement."""
    body = _Partition(names_of(func)).statement(func.body, {}, limit)
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A condition that holds for `key >= bound` (`is_low`) or `key < bound`, whatever the loops inside do."""

    condition: Expr
    key: Expr
    bound: Expr
    is_low: bool
    slack: Form


class _Partition:
    __slots__ = ("taken",)

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def statement(self, s: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        if isinstance(s, For):
            if s.kind in ("serial", "parallel") and budget > 1 and isinstance(s.body, Stmt):
                split = self.loop(s, outer, budget)
                if split is not None:
                    return split
            outer = {**outer, s.var: s.extent}
        if not s.children:
            return s
        return with_children(s, tuple([self.statement(c, outer, budget) for c in s.children]))

    def loop(self, s: For, outer: dict[Var, Expr], budget: int) -> Stmt | None:
        """The loop in pieces, each treated further; None if nothing is gained."""
        conditions = list(_conditions(s))
        if not conditions:
            return None
        extents = {**outer, s.var: s.extent} | {c.var: c.extent for c in walk(s.body) if isinstance(c, For)}
        an = Analyzer(extents)
        inner = frozenset(c.var for c in walk(s.body) if isinstance(c, For))
        found = [c for e in conditions if (c := _candidate(an, inner, s.var, e)) is not None]
        found = [c for c in found if c.key is (found[0].key)]
        if not found:
            return None
        key = found[0].key
        most = s.extent if key is s.var else _least_above(an, key)
        if most is None:
            return None
        # Numbers first: a condition that leaves no main part is not worth a split.
        start, stop = _main_range(an, found, most)
        if an.prove(stop <= start):
            return None
        pieces = 1 + (not _is_zero(start)) + (not an.prove(stop >= most))
        if pieces == 1 or pieces > budget:
            return None
        if s.kind == "parallel" or key is not s.var:
            return self.choice(s, an, found, (start, stop, most), outer, budget // pieces)
        return self.pieces(s, an, found, (start, stop), outer, budget // pieces)

    def pieces(
        self,
        s: For,
        an: Analyzer,
        found: list[_Candidate],
        ends: tuple[Expr, Expr],
        outer: dict[Var, Expr],
        budget: int,
    ) -> Stmt:
        """Head, main and tail one after another."""
        start, stop = ends
        true = {c.condition for c in found}
        main = self.piece(s, an, start, stop, _assume(s.body, true))
        parts: list[Stmt] = []
        if not _is_zero(start):
            parts.append(self.rest(s, an, const(0), start, outer, found=()))
        parts.append(main)
        if not an.prove(stop >= s.extent):
            parts.append(self.rest(s, an, stop, s.extent, outer, tuple(found)))
        return seq([self.statement(p, outer, budget) for p in parts])

    def rest(
        self, s: For, an: Analyzer, start: Expr, stop: Expr, outer: dict[Var, Expr], found: tuple[_Candidate, ...]
    ) -> Stmt:
        """A head or tail: a copy of its own, simplified for its range."""
        body = s.body
        if found and an.prove(stop - start <= 1) and _idle_at(an, s, stop, found):
            # Where the tail would not run at all it does nothing, so it need not be a loop.
            stop = an.simplify(start + 1)
        return self.tidy(copy_fresh(self.piece(s, an, start, stop, body), self.taken), outer)

    def tidy(self, s: Stmt, outer: dict[Var, Expr]) -> Stmt:
        an = Analyzer({**outer, **{c.var: c.extent for c in walk(s) if isinstance(c, For)}})
        return bound_loops_of(simplify_stmt(s, an), an)

    def piece(self, s: For, an: Analyzer, start: Expr, stop: Expr, body: Stmt) -> Stmt:
        """The loop from `start` to `stop`."""
        extent = an.simplify(stop - start)
        if isinstance(extent, Const) and extent.value == 1:
            return substitute_stmt(body, {s.var: start})
        if not _is_zero(start):
            body = substitute_stmt(body, {s.var: an.simplify(s.var + start)})
        return For(s.var, extent, body, s.kind, s.thread, s.annotations)

    def choice(
        self,
        s: For,
        an: Analyzer,
        found: list[_Candidate],
        ends: tuple[Expr, Expr, Expr],
        outer: dict[Var, Expr],
        budget: int,
    ) -> Stmt:
        """One loop that chooses the version inside."""
        start, stop, most = ends
        key = found[0].key
        inside = {**outer, s.var: s.extent}
        main = self.statement(_assume(s.body, {c.condition for c in found}), inside, budget)
        tests = [] if _is_zero(start) else [start <= key]
        has_tail = not an.prove(stop >= most)
        if has_tail:
            tests.append(key < stop)
        other = s.body
        if has_tail and _is_zero(start) and an.prove(most - stop <= 1):
            other = _put(other, key, stop)
        elif not has_tail and isinstance(start, Const) and start.value == 1:
            other = _put(other, key, const(0))
        other = self.statement(self.tidy(copy_fresh(other, self.taken), inside), inside, budget)
        body = If(an.simplify(all_of(tests)), main, None if other is EMPTY else other)
        return For(s.var, s.extent, body, s.kind, s.thread, s.annotations)


def _conditions(loop: For) -> Iterator[Expr]:
    """The conditions inside `loop` that mention its variable and are worth a split, each once."""
    seen: set[Expr] = set()

    def visit(s: Stmt, inner: frozenset[Var], lanes: frozenset[Var]) -> Iterator[Expr]:
        if isinstance(s, If) and inner:
            for part in conjuncts(s.condition):
                if part not in seen and _mentions(part, loop.var, inner):
                    seen.add(part)
                    yield part
        if lanes:
            for e in exprs_of(s):
                for node in walk_expr(e):
                    if type(node) is Op and node.name == "select":
                        for part in conjuncts(node.args[0]):
                            if part not in seen and _mentions(part, loop.var, lanes):
                                seen.add(part)
                                yield part
        if isinstance(s, For):
            inner = inner | {s.var}
            if s.kind in ("vectorized", "unrolled"):
                lanes = lanes | {s.var}
        for child in s.children:
            yield from visit(child, inner, lanes)

    return visit(loop.body, frozenset(), frozenset())


def _mentions(e: Expr, v: Var, inner: frozenset[Var]) -> bool:
    nodes = set(walk_expr(e))
    return v in nodes and not inner.isdisjoint(nodes) and not any(type(n) is Load for n in nodes)


def _candidate(an: Analyzer, inner: frozenset[Var], v: Var, condition: Expr) -> _Candidate | None:
    """Where `condition` holds whatever the inner loops do, in terms of v or of one atom over v."""
    slacks = nonnegative_forms(an, an.simplify(condition))
    if len(slacks) != 1:
        return None
    slack = slacks[0]
    over_v = [(atom, c) for atom, c in slack[0].items() if v in walk_expr(atom)]
    if len(over_v) != 1:
        return None
    key, c = over_v[0]
    if len(factors(key)) > 1 or not inner.isdisjoint(walk_expr(key)):
        return None
    rest = add(slack, ({key: 1}, 0), -c)
    ends = Eliminator(an, inner).of_form(rest)
    if ends is None or any(v in walk_expr(atom) for atom in ends[0][0]):
        return None
    least = to_expr(ends[0])
    bound = -(least // c) if c > 0 else least // -c + 1
    return _Candidate(condition, key, an.simplify(bound), c > 0, slack)


def _least_above(an: Analyzer, key: Expr) -> Expr | None:
    """A number above every value of an atom that is known not to be negative."""
    lo, hi = an.range(key)
    return None if lo is None or hi is None or lo < 0 else const(hi + 1)


def _main_range(an: Analyzer, found: list[_Candidate], extent: Expr) -> tuple[Expr, Expr]:
    start: Expr = const(0)
    stop = extent
    for c in found:
        if c.is_low:
            start = an.simplify(maximum(start, c.bound))
        else:
            stop = an.simplify(minimum(stop, c.bound))
    start = an.simplify(minimum(start, extent))
    return start, an.simplify(maximum(stop, start))


def _idle_at(an: Analyzer, s: For, at: Expr, found: tuple[_Candidate, ...]) -> bool:
    """True if with `v = at` every store of the body is behind a condition that then is false."""
    false = {c.condition for c in found if not c.is_low and an.prove(~substitute(c.condition, {s.var: at}))}
    return _all_behind(s.body, false)


def _all_behind(s: Stmt, false: set[Expr]) -> bool:
    if isinstance(s, Store | Intrinsic):
        return False
    if isinstance(s, If) and s.orelse is None and not false.isdisjoint(conjuncts(s.condition)):
        return True
    return all(_all_behind(c, false) for c in s.children)


def _assume(s: Stmt, true: set[Expr]) -> Stmt:
    """`s` with conditions replaced by true."""
    memo: dict[Expr, Expr] = {}
    holds = const(True)

    def statement(t: Stmt) -> Stmt | None:
        if isinstance(t, If) and isinstance(t.condition, Const):
            return t.then if t.condition.value else t.orelse
        return None

    return map_stmt(s, statement, lambda e: map_expr(e, lambda n: holds if n in true else None, memo))


def _put(s: Stmt, key: Expr, value: Expr) -> Stmt:
    """`s` with an atom's value put in its place."""
    if isinstance(key, Var):
        return substitute_stmt(s, {key: value})
    memo: dict[Expr, Expr] = {}
    return map_stmt(s, lambda _: None, lambda e: map_expr(e, lambda n: value if n is key else None, memo))


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
