"""Split a conditional vectorized loop into single vectors: a full vector runs without the condition, and an empty one
is skipped.

    for v in 0..64 vectorized {                   if 16 <= n { for v in 0..16 vectorized { B[v] = A[2*v] } }
      if v < n { B[v] = A[2*v] }             ->   else if 0 < n { for v in 0..16 vectorized { if v < n { ... } } }
    }                                             if 32 <= n { for v in 0..16 vectorized { B[v + 16] = ... } } ...

Code for a condition that differs between lanes is masked, which takes many times as long for accesses that are not
contiguous. Loops of a single vector and of very many stay as they are, and so do loops of known size, few of whose
vectors are partial, and sums of vectors over a loop (`shorter.py`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.compare import coefficient, nonnegative_forms
from tilewright.arith.forms import to_expr
from tilewright.ir.expr import Expr, Var, all_of, as_int, const
from tilewright.ir.loops import For, If, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import (
    loads,
    names_of,
    substitute,
    substitute_stmt,
    variables,
    walk,
    walk_expr,
    with_children,
)
from tilewright.targets.target import Target
from tilewright.transform.loops.copies import conjuncts, copy_fresh
from tilewright.transform.loops.shorter import summed
from tilewright.transform.loops.simplify import analyzer_of, simplify_stmt

MAX_SPLIT_VECTORS = 256
"""The largest number of vectors in a loop that is split: each vector is two copies of the body."""


def narrow_tails(func: PrimFunc, target: Target) -> PrimFunc:
    """The function with conditional vectorized loops split into vectors of the target's width."""
    body = _Narrower(func, target).statement(func.body)
    return func if body is func.body else func.with_body(body)


class _Narrower:
    __slots__ = ("an", "facts", "sums", "used_names", "target")

    def __init__(self, func: PrimFunc, target: Target) -> None:
        self.an, self.used_names, self.target = analyzer_of(func.body), names_of(func), target
        self.sums = summed(func.body)
        self.facts: tuple[Expr, ...] = ()

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind == "vectorized":
            return self.vectors(s) or s
        if not s.children:
            return s
        if isinstance(s, If) and any(isinstance(x, For) and x.kind == "vectorized" for x in walk(s)):
            then = self.under(s.condition, s.then)
            return replace(s, then=then, orelse=None if s.orelse is None else self.under(~s.condition, s.orelse))
        return with_children(s, tuple([self.statement(c) for c in s.children]))

    def under(self, fact: Expr, s: Stmt) -> Stmt:
        """The statement rewritten under a known condition, unless the condition depends on memory."""
        if loads(fact):
            return self.statement(s)
        before = self.an, self.facts
        self.facts = (*self.facts, fact)
        self.an = Analyzer(self.an.extents, self.facts)
        s = self.statement(s)
        self.an, self.facts = before
        return s

    def vectors(self, loop: For) -> Stmt | None:
        """The loop vector by vector; None if it has no condition on its lanes."""
        size, body = as_int(loop.extent), loop.body
        if size is None or not isinstance(body, If) or body.orelse is not None:
            return None
        if isinstance(body.then, Store) and body.then.buffer in self.sums:
            return None
        parts = conjuncts(body.condition)
        varying = [c for c in parts if loop.var in walk_expr(c)]
        slacks = [self.slack(c, loop.var) for c in varying]
        symbolic = {v for c in varying for v in variables(c)} - self.an.extents.keys()
        if not symbolic or not all(slacks):
            return None
        width = self.target.lanes(max((s.buffer.dtype.itemsize for s in walk(body) if isinstance(s, Store)), default=4))
        if size <= width or size > width * MAX_SPLIT_VECTORS:
            return None
        rest = _guarded([c for c in parts if c not in varying], body.then)
        parts_of = [
            self.vector(loop, rest, [x for x in slacks if x], first, min(width, size - first))
            for first in range(0, size, width)
        ]
        return simplify_stmt(seq(parts_of), self.an)

    def slack(self, condition: Expr, lane: Var) -> tuple[Expr, int] | None:
        """(slack, coefficient of the lane in it): `condition` holds where the slack is at least 0. None for other
        conditions."""
        forms = nonnegative_forms(self.an, self.an.simplify(condition))
        if len(forms) != 1:
            return None
        result = coefficient(forms[0], lane)
        if result is None or result[0][0] or not result[0][1]:
            return None
        return to_expr(forms[0]), result[0][1]

    def vector(self, loop: For, body: Stmt, slacks: list[tuple[Expr, int]], first: int, width: int) -> Stmt:
        """One vector of a loop, its lanes `first` to `first + width`: `if whole { ... } else if some { masked }` by
        tests of the slacks, or the masked one alone if the vector cannot be whole."""
        ends = const(first), const(first + width - 1)
        whole = [substitute(slack, {loop.var: ends[factor < 0]}) >= 0 for slack, factor in slacks]
        some = [substitute(slack, {loop.var: ends[factor > 0]}) >= 0 for slack, factor in slacks]
        partial = If(self.an.simplify(all_of(some)), self.copied(loop, loop.body, first, width))
        if any(self.an.prove(~c) for c in whole):
            return partial
        if all(map(self.an.prove, whole)):
            return self.copied(loop, body, first, width)
        return If(self.an.simplify(all_of(whole)), self.copied(loop, body, first, width), partial)

    def copied(self, loop: For, body: Stmt, first: int, width: int) -> Stmt:
        moved = substitute_stmt(body, {loop.var: loop.var + first}) if first else body
        copy = copy_fresh(replace(loop, extent=const(width), body=moved), self.used_names)
        return simplify_stmt(copy, Analyzer({**self.an.extents, **analyzer_of(copy).extents}))


def _guarded(conditions: list[Expr], body: Stmt) -> Stmt:
    return If(all_of(conditions), body) if conditions else body
