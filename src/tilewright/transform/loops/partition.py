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
does a loop whose variable occurs through a quotient (`f // 4` after fusing), and one where only a part of the body, say
the final write of a tile, has conditions. A parallel loop chooses in such a part alone, too, where its other conditions
only bound loops.

Conditions of `If` are considered, unless all that they do is to bound long loops; those of `select` (padding) only if
they differ between the lanes or the copies of an inner vectorized or unrolled loop. `limit` bounds how many versions of
a statement there may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.compare import nonnegative_forms
from tilewright.arith.forms import Form, add, factors, to_expr
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Const, Expr, Load, Op, Var, all_of, as_int, const, is_const, maximum, minimum
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import (
    exprs_of,
    loads,
    map_expr,
    map_stmt,
    names_of,
    replace_stmt,
    substitute,
    substitute_stmt,
    variables,
    walk,
    walk_expr,
    with_children,
)
from tilewright.support.classes import dataclass
from tilewright.transform.loops.conditions import bound_loops_of
from tilewright.transform.loops.copies import conjuncts, copy_fresh
from tilewright.transform.loops.remainder import all_after, by_remainder, put
from tilewright.transform.loops.simplify import EMPTY, simplify_stmt

VERSIONS = 28
"""The largest number of versions of a statement that splitting may make: a tile of 14 rows of two vectors, the largest
that fits 32 registers, has one for each number of rows that may remain."""

LONG = 8
"""The number of stores per iteration from which on a loop may have a computed extent instead of two versions: a tile of
28 rows in blocks of 6 has one body for 6 and for 4 of them, and half of the code (docs/decisions/compile-time.md)."""


def partition_loops(func: PrimFunc, limit: int = VERSIONS, *, literal: bool = False) -> PrimFunc:
    """The function with loops split into main parts and tails; at most `limit` versions of any statement.

    `literal`: loops keep literal extents, as GPU threads, narrow counters and tensor intrinsics need them; a condition
    that bounds a loop by a number then makes a main part and a tail.
    """
    literal = literal or any(isinstance(s, Intrinsic) for s in walk(func.body))
    body = _Partition(names_of(func), literal).statement(func.body, {}, limit)
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """`condition` holds for `key >= bound` (`is_low`) or for `key < bound`, whatever the inner loops' variables are.
    The key is the loop's variable, or a quotient or remainder of it."""

    condition: Expr
    key: Expr
    bound: Expr
    is_low: bool
    slack: Form


@dataclass(frozen=True, slots=True)
class _Split:
    """How to split `loop`: the conditions `candidates` hold for `start <= key < stop`; key is always below `most`."""

    loop: For
    candidates: tuple[_Candidate, ...]
    key: Expr
    start: Expr
    stop: Expr
    most: Expr
    has_tail: bool
    an: Analyzer

    @property
    def has_head(self) -> bool:
        return not _is_zero(self.start)

    @property
    def single_tail(self) -> bool:
        """Whether the tail has at most one value of the key."""
        return self.an.prove(self.most - self.stop <= 1)

    @property
    def conditions(self) -> set[Expr]:
        return {c.condition for c in self.candidates}

    @property
    def is_last(self) -> bool:
        """Whether all conditions have one bound, so that neither head nor tail contains a part where more of them
        hold."""
        return len({c.bound for c in self.candidates}) == 1


class _Partition:
    """One walk over a function. `outer` gives the extents of the loops around a statement, `budget` how often it may be
    copied; loops over the variables `whole` are heads and tails that are not split again."""

    __slots__ = ("literal", "used_names", "whole")

    def __init__(self, used_names: set[str], literal: bool) -> None:
        self.used_names = used_names
        self.literal = literal
        self.whole: set[Var] = set()

    def statement(self, s: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        if isinstance(s, For):
            if s.kind in ("serial", "parallel") and budget > 1 and s.var not in self.whole:
                split = _find_split(s, outer, self.literal)
                count = 0 if split is None else 1 + split.has_head + split.has_tail
                if split is not None and 1 < count <= budget:
                    return self.split(split, outer, budget)
            outer = {**outer, s.var: s.extent}
        if not s.children:
            return s
        return with_children(s, tuple([self.statement(c, outer, budget) for c in s.children]))

    def split(self, how: _Split, outer: dict[Var, Expr], budget: int) -> Stmt:
        count = 1 + how.has_head + how.has_tail
        one_loop = how.loop.kind == "parallel" or how.key is not how.loop.var
        part = _part(how.loop.body, how.conditions)
        if part is None and one_loop:
            worth = [c for c, decides in _conditions(how.loop, outer, self.literal).items() if decides]
            less = _split_by(worth, how.loop, outer)
            part = None if less is None else _part(how.loop.body, less.conditions)
            how = how if less is None or part is None else less
        if part is not None and (one_loop or (not how.has_head and how.single_tail)):
            return self.choice(how, part, outer, budget)
        if one_loop:
            return self.choice(how, how.loop.body, outer, budget // count)
        return seq([self.statement(p, outer, budget // count) for p in self.pieces(how, outer, budget // count)])

    # -- one loop after another

    def pieces(self, how: _Split, outer: dict[Var, Expr], budget: int) -> Iterator[Stmt]:
        """Yield the head, main part and tail of the loop that `how` splits, each a loop or its only iteration. `outer`:
        the extents of the loops around it; `budget`: how often a statement may be copied."""
        loop, an = how.loop, how.an
        if how.has_head:
            yield self.end(how, _range(loop, an, const(0), how.start), outer, budget)
        yield _range(loop, an, how.start, how.stop, _assume(loop.body, how.conditions))
        if how.has_tail:
            end = loop.extent
            if how.single_tail and _idle_at(how):
                # Where the tail would not run at all it does nothing, so it need not be a loop.
                end = an.simplify(how.stop + 1)
            yield self.end(how, _range(loop, an, how.stop, end), outer, budget)

    def end(self, how: _Split, s: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        """A version of `s`, the head or tail of the loop that `how` splits. It is marked as finished if all conditions
        had one bound: its extent may be hard to compare, and the same conditions would seem to allow another split
        forever. `outer`: the extents of the loops around it; `budget`: how often a statement may be copied."""
        version = self.version(s, outer, budget)
        if how.is_last and isinstance(s, For) and s.var is how.loop.var and isinstance(version, For):
            self.whole.add(version.var)
        return version

    # -- one loop that chooses inside

    def choice(self, how: _Split, focus: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        """The loop that `how` splits, with `if start <= key and key < stop { main } else { rest }` in place of the
        statement `focus` in its body. `outer`: the extents of the loops around it; `budget`: how often a statement may
        be copied."""
        loop = how.loop
        inside = {**outer, loop.var: loop.extent}
        body = replace_stmt(loop.body, focus, self.chosen(how, focus, outer, budget))
        assert body is not None
        body = self.statement(body, inside, budget)
        return replace(loop, body=body)

    def chosen(self, how: _Split, focus: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        """`if start <= key and key < stop { main } else { rest }` for the statement `focus` of the body of the loop
        that `how` splits. `outer`: the extents of the loops around it; `budget`: how often a statement may be
        copied."""
        loop, an = how.loop, how.an
        enclosing = {**outer, loop.var: loop.extent, **_enclosing_loops(loop.body, focus)}
        tests: list[Expr] = []
        rest: Stmt | None = None
        if how.has_tail:
            tests.append(how.key < how.stop)
            tail = put(focus, how.key, how.stop) if how.single_tail else focus
            at = {loop.var: how.stop} if how.single_tail and how.key is loop.var else {}
            rest = self.version(tail, {**enclosing, **_shorter(loop.body, focus, at, an)}, budget)
            if as_int(loop.extent) is not None and _asked_in_steps(rest, loop.var):
                rest = self.main(how, rest, {**outer, **enclosing}, budget)
        if how.has_head:
            tests.append(how.start <= how.key)
            head = put(focus, how.key, const(0)) if is_const(how.start, 1) else focus
            first = self.version(head, enclosing, budget)
            rest = first if rest is None else If(an.simplify(how.key < how.start), first, rest)
        main = self.main(how, _assume(focus, how.conditions), {**outer, **enclosing}, budget)
        return If(an.simplify(all_of(reversed(tests))), main, None if rest is EMPTY else rest)

    def main(self, how: _Split, main: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        """The main version of a split loop, split again by another quotient or remainder of the loop's variable that
        conditions in it use, which includes a tail of known length: it would otherwise test in each step of an inner
        loop. `outer`: the extents of the loops around it; `budget`: how often a statement may be copied."""
        another = (
            _find_split(replace(how.loop, body=main), outer, self.literal) if how.key is not how.loop.var else None
        )
        if another is None or another.key in (how.key, how.loop.var):
            return main
        count = 1 + another.has_head + another.has_tail
        if not 1 < count <= budget:
            return main
        part = _part(main, another.conditions)
        if part is None:
            return self.chosen(another, main, outer, budget // count)
        result = replace_stmt(main, part, self.chosen(another, part, outer, budget // count))
        assert result is not None
        return result

    def version(self, s: Stmt, outer: dict[Var, Expr], budget: int) -> Stmt:
        """`s`, inside of loops with the extents `outer`, as a simplified version for outside of the main part. If
        unrolled copies depend on a remainder, there is one version for each value of the remainder, at most
        `budget`."""
        version = self.tidy(s, outer)
        cases = by_remainder(version, Analyzer(outer), budget, lambda v, _: self.tidy(v, outer))
        return version if cases is None else cases

    def tidy(self, s: Stmt, outer: dict[Var, Expr]) -> Stmt:
        copy = copy_fresh(s, self.used_names)
        an = Analyzer({**outer, **{c.var: c.extent for c in walk(copy) if isinstance(c, For)}})
        return bound_loops_of(simplify_stmt(copy, an), an)


def _find_split(loop: For, outer: dict[Var, Expr], literal: bool) -> _Split | None:
    """The way to split `loop` at bounds of its conditions, so that these hold in the main part; if there is none, at
    bounds of selects between two arrays, so that the main part reads only the second; None if there is none either.
    `outer`: the extents of the loops around it; `literal`: bounds without symbols count."""
    conditions = _conditions(loop, outer, literal)
    worth = list(conditions) if any(conditions.values()) else []
    return _split_by(worth, loop, outer) or _split_by(list(_alternatives(loop)), loop, outer)


def _split_by(conditions: list[Expr], loop: For, outer: dict[Var, Expr]) -> _Split | None:
    if not conditions:
        return None
    loops = {c.var: c.extent for c in walk(loop.body) if isinstance(c, For)}
    an = Analyzer({**outer, loop.var: loop.extent, **loops})
    named = {s.var for s in walk(loop.body) if isinstance(s, Let)}
    free = [e for e in conditions if named.isdisjoint(variables(e))]
    candidates = [c for e in free if (c := _candidate(an, frozenset(loops), loop.var, e)) is not None]
    results = [
        c for c in candidates if named.isdisjoint(variables(c.bound))
    ]  # an inner loop's extent may be such a name
    if not results:
        return None
    key = results[0].key
    results = [c for c in results if c.key is key]
    most = loop.extent if key is loop.var else _least_above(an, key)
    if most is None:
        return None
    results = [c for c in results if not an.prove(c.bound >= most if c.is_low else c.bound <= 0)]
    start, stop = _main_range(an, results, most)
    if not results or an.prove(stop <= start):
        return None
    return _Split(loop, tuple(results), key, start, stop, most, not an.prove(stop >= most), an)


def _range(loop: For, an: Analyzer, start: Expr, stop: Expr, body: Stmt | None = None) -> Stmt:
    """A loop over the iterations of `loop` from `start` to `stop`."""
    body = body or loop.body
    extent = an.simplify(stop - start)
    if isinstance(extent, Const) and extent.value == 1:
        return substitute_stmt(body, {loop.var: start})
    if not _is_zero(start):
        body = substitute_stmt(body, {loop.var: an.simplify(loop.var + start)})
    return replace(loop, extent=extent, body=body)


def _part(s: Stmt, conditions: set[Expr]) -> Stmt | None:
    """The only statement of a sequence in a loop's body that contains the conditions; None if there is none."""
    match s:
        case Allocate(body=Seq((For(kind="unrolled"), For(kind="unrolled")))):
            # A tile that one loop fills and one stores is transposed as a whole (`codegen/llvm/transposed.py`).
            return None if _part(s.body, conditions) is None else s
        case Allocate() | Let() | For(kind="serial"):
            return _part(s.body, conditions)
        case If(condition, then, None) if conditions.isdisjoint(conjuncts(condition)):
            return _part(then, conditions)
        case Seq(stmts):
            holding = [c for c in stmts if _holds(c, conditions)]
            if len(holding) == 1:
                return _part(holding[0], conditions) or holding[0]
    return None


def _asked_in_steps(s: Stmt, var: Var) -> bool:
    """Whether unrolled copies inside a serial loop are under conditions on `var`. They are a register tile's
    accumulators, which under separate conditions would be in memory."""
    steps = [c for c in walk(s) if isinstance(c, For) and c.kind == "serial"]
    copies = [c for step in steps for c in walk(step.body) if isinstance(c, For) and c.kind == "unrolled"]
    return any(isinstance(c, If) and var in variables(c.condition) for copy in copies for c in walk(copy.body))


def _enclosing_loops(s: Stmt, inner: Stmt) -> dict[Var, Expr]:
    """The loops between `s` and the statement `inner` in it, with their extents."""
    enclosing: dict[Var, Expr] = {}
    while s is not inner:
        if isinstance(s, For):
            enclosing[s.var] = s.extent
        s = next(c for c in s.children if any(t is inner for t in walk(c)))
    return enclosing


def _shorter(s: Stmt, inner: Stmt, at: Mapping[Var, Expr], an: Analyzer) -> dict[Var, Expr]:
    """The extents, where variables have the values `at`, of the loops between `s` and the statement `inner` in it that
    conditions around it then limit to a number of iterations."""
    extents: dict[Var, Expr] = {}
    loops = _enclosing_loops(s, inner) if at else {}
    while loops and s is not inner:
        parts = conjuncts(s.condition) if isinstance(s, If) and s.orelse is None else []
        for part in (an.simplify(substitute(part, at)) for part in parts):
            for v in loops.keys() & set(variables(part)):
                limit = _candidate(an, frozenset(), v, part)
                if limit is not None and limit.key is v and not limit.is_low and (as_int(limit.bound) or 0) > 0:
                    extents[v] = an.simplify(minimum(extents.get(v, loops[v]), limit.bound))
        s = next(c for c in s.children if any(t is inner for t in walk(c)))
    return extents


def _holds(s: Stmt, conditions: set[Expr]) -> bool:
    return any(n in conditions for t in walk(s) for e in exprs_of(t) for n in walk_expr(e))


def _conditions(loop: For, outer: Mapping[Var, Expr], literal: bool) -> dict[Expr, bool]:
    """The conditions inside `loop` that mention its variable, and whether each is worth a split.

    A condition that only bounds a long loop is not: it becomes that loop's extent (`conditions.py`) at no cost for a
    body of loops, while a split would double all versions of the tiles inside. `literal`: bounds without symbols are.
    """
    result: dict[Expr, bool] = {}
    stack: list[tuple[Stmt, frozenset[Var], frozenset[Var], Var | None]] = [(loop.body, frozenset(), frozenset(), None)]
    while stack:
        s, inner, lanes, enclosing = stack.pop()
        if isinstance(s, If) and inner:
            for part in conjuncts(s.condition):
                if _mentions(part, loop.var, inner):
                    literals = literal and not set(variables(part)) - {loop.var, *inner, *outer}
                    worth = enclosing is None or literals or _mentions(part, loop.var, inner - {enclosing})
                    result[part] = result.get(part, False) or worth
        if lanes:
            for e in exprs_of(s):
                for node in walk_expr(e):
                    if type(node) is Op and node.name == "select":
                        parts = conjuncts(node.args[0])
                        result.update((part, True) for part in parts if _mentions(part, loop.var, lanes))
        bounded = None
        if isinstance(s, For):
            inner = inner | {s.var}
            if s.kind in ("vectorized", "unrolled"):
                lanes = lanes | {s.var}
            elif _is_long(s):
                bounded = s.var
        stack += [(child, inner, lanes, bounded) for child in reversed(s.children)]
    return result


def _is_long(loop: For) -> bool:
    """Whether the body of a serial loop contains loops or many statements."""
    return any(isinstance(c, For) and c.kind == "serial" for c in walk(loop.body)) or _stores(loop.body) >= LONG


def _stores(s: Stmt) -> int:
    """The number of stores in one run of a statement, each vector counted as one."""
    if isinstance(s, Store):
        return 1
    inside = sum(map(_stores, s.children))
    return inside * (as_int(s.extent) or 1) if isinstance(s, For) and s.kind == "unrolled" else inside


def _alternatives(loop: For) -> Iterator[Expr]:
    """The negations of conditions in `select(c, a[...], b[...])` that differ between lanes, as in a concatenation."""
    seen: set[Expr] = set()
    stack: list[tuple[Stmt, frozenset[Var]]] = [(loop.body, frozenset())]
    while stack:
        s, lanes = stack.pop()
        if lanes:
            for node in (n for e in exprs_of(s) for n in walk_expr(e)):
                if type(node) is Op and node.name == "select" and all(loads(x) for x in node.args[1:]):
                    condition = node.args[0]
                    if condition not in seen and len(list(conjuncts(condition))) == 1:
                        seen.add(condition)
                        if _mentions(condition, loop.var, lanes):
                            yield ~condition
        if isinstance(s, For) and s.kind in ("vectorized", "unrolled"):
            lanes = lanes | {s.var}
        stack += [(child, lanes) for child in reversed(s.children)]


def _mentions(e: Expr, v: Var, inner: frozenset[Var]) -> bool:
    nodes = set(walk_expr(e))
    return v in nodes and not inner.isdisjoint(nodes) and not any(type(n) is Load for n in nodes)


def _candidate(an: Analyzer, inner: frozenset[Var], v: Var, condition: Expr) -> _Candidate | None:
    """The range, in terms of v or of one quotient or remainder of v, where `condition` holds in all inner
    iterations."""
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
    """An exclusive upper bound of the expression `key`; None if it has none or may be negative."""
    lo, hi = an.range(key)
    return None if lo is None or hi is None or lo < 0 else const(hi + 1)


def _main_range(an: Analyzer, result: list[_Candidate], extent: Expr) -> tuple[Expr, Expr]:
    start: Expr = const(0)
    stop = extent
    for c in result:
        if c.is_low:
            start = an.simplify(maximum(start, c.bound))
        else:
            stop = an.simplify(minimum(stop, c.bound))
    start = an.simplify(minimum(start, extent))
    return start, an.simplify(maximum(stop, start))


def _idle_at(how: _Split) -> bool:
    """Whether the loop's last iteration, where the key equals `how.most`, stores nothing: every store in its body is
    under a candidate condition that is false there."""
    end = {how.loop.var: how.most}
    false = {c.condition for c in how.candidates if not c.is_low and how.an.prove(~substitute(c.condition, end))}
    return all_after(how.loop.body, false)


def _assume(s: Stmt, true: set[Expr]) -> Stmt:
    """The statement `s` with the conditions in `true` replaced by true, and their negations by false."""
    memo: dict[Expr, Expr] = {}
    holds = const(True)

    def statement(t: Stmt) -> Stmt | None:
        if isinstance(t, If) and isinstance(t.condition, Const):
            return t.then if t.condition.value else t.orelse
        return None

    false = {~c for c in true}

    def expr(n: Expr) -> Expr | None:
        return holds if n in true else const(False) if n in false else None

    return map_stmt(s, statement, lambda e: map_expr(e, expr, memo))


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
