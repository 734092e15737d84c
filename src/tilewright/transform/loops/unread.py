"""Leave out iterations that make what nobody reads.

    for b in 0..(n + 47)//48 {                          for b in 0..(n + 47)//48 {
      alloc t: f32[48] {                                  alloc t: f32[48] {
        for j in 0..4 { ... t[j*12 + i] = ... }    ->       for j in 0..min((n - b*48 + 11)//12, 4) { ... }
        for k in 0..48 {                                    for k in 0..48 {
          if b*48 + k < n { A[b*48 + k] = t[k] } } } }        if b*48 + k < n { A[b*48 + k] = t[k] } } } }

A block past the end of what there is, as the last of a Winograd convolution's blocks of tiles, so costs what its tiles
cost. Where each place is read only below a limit, a serial loop that has an outer part of the place in its hands, and
stores nothing else, stops at the limit. Loops with no serial one in them, or with a condition around all that they do,
stay as they are. So do, where sizes are known, iterations that prefetch weights from memory together: fewer of them
would prefetch less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.compare import coefficient
from tilewright.arith.forms import to_expr
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Buffer, Expr, Load, Var, minimum
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Stmt, Store
from tilewright.ir.notes import ColdWeights, Prefetch, find
from tilewright.ir.rewrite import exprs_of, loads, walk, walk_expr, with_children
from tilewright.transform.loops.copies import conjuncts

Loops = dict[Var, Expr]


def leave_out_unread(func: PrimFunc) -> PrimFunc:
    """The function without the iterations at the end of loops whose results are not read."""
    if not any(isinstance(s, If) for s in walk(func.body)):
        return func
    body = _statement(func.body, {}, find(func.notes, ColdWeights) is not None and not func.symbols)
    return func if body is func.body else func.with_body(body)


def _statement(s: Stmt, outer: Loops, cold: bool) -> Stmt:
    """Bottom-up: a buffer inside another is made later, and reads it. `cold`: weights come from memory."""
    if not s.children:
        return s
    inside = {**outer, s.var: s.extent} if isinstance(s, For) else outer
    s = with_children(s, tuple([_statement(c, inside, cold) for c in s.children]))
    if isinstance(s, Allocate):
        for place in range(len(s.buffer.shape)):
            limit = _limit(s.buffer, place, s.body, outer)
            if limit is not None:
                s = replace(s, body=_Stopper(s.buffer, place, limit, cold).statement(s.body, outer))
    return s


def _limit(buffer: Buffer, place: int, body: Stmt, outer: Loops) -> Expr | None:
    """What the indices of all reads in one dimension are below, in terms of the loops around; None if that is no less
    than the dimension."""
    found: set[Expr] = set()
    for load, loops, facts in _reads(body, buffer, {}, ()):
        an = Analyzer({**outer, **loops}, facts)
        inner = Eliminator(an, frozenset(loops))
        index = load.indices[place]
        ends = inner.limits(index)
        if not ends:
            bounds = inner.bounds(index)
            if bounds is None:
                return None
            ends = (bounds[1],)
        found.add(Analyzer(outer).simplify(ends[0] + 1))
    if len(found) != 1:
        return None
    (limit,) = found
    whole = Analyzer(outer).prove(limit >= buffer.shape[place])
    return None if whole or not any(isinstance(n, Var) for n in walk_expr(limit)) else limit


def _reads(
    s: Stmt, buffer: Buffer, loops: Loops, facts: tuple[Expr, ...]
) -> Iterator[tuple[Load, Loops, tuple[Expr, ...]]]:
    """Each read of the buffer, but for those of an element that is updated, with the loops and conditions around."""
    for e in exprs_of(s):
        for load in loads(e):
            updated = isinstance(s, Store) and s.buffer == buffer and s.indices == load.indices
            if load.buffer == buffer and not updated:
                yield load, loops, facts
    if isinstance(s, For):
        loops = {**loops, s.var: s.extent}
    for child in s.children:
        under = isinstance(s, If) and child is s.then
        known = [c for c in conjuncts(s.condition) if not loads(c)] if isinstance(s, If) and under else []
        yield from _reads(child, buffer, loops, (*facts, *known))


class _Stopper:
    """Ends loops that fill a buffer where its `place`th index reaches the limit."""

    __slots__ = ("buffer", "cold", "limit", "place")

    def __init__(self, buffer: Buffer, place: int, limit: Expr, cold: bool) -> None:
        self.buffer, self.place, self.limit, self.cold = buffer, place, limit, cold

    def statement(self, s: Stmt, outer: Loops) -> Stmt:
        if not s.children:
            return s
        if isinstance(s, For):
            end = self.end(s, outer)
            if end is not None:
                return replace(s, extent=Analyzer(outer).simplify(minimum(s.extent, end)))
            outer = {**outer, s.var: s.extent}
        return with_children(s, tuple([self.statement(c, outer) for c in s.children]))

    def end(self, loop: For, outer: Loops) -> Expr | None:
        """Where a loop may end that stores to the buffer alone; None if it may not."""
        inside = list(walk(loop.body))
        stores = [s for s in inside if isinstance(s, Store) and s.buffer == self.buffer]
        own = {s.buffer for s in inside if isinstance(s, Allocate)} | {self.buffer}
        others = any(isinstance(s, Intrinsic) or (isinstance(s, Store) and s.buffer not in own) for s in inside)
        small = not any(isinstance(s, For) and s.kind == "serial" for s in inside)
        if loop.kind != "serial" or isinstance(loop.body, If) or small or (self.cold and _sharing(inside)):
            return None
        if not stores or others:
            return None
        ends = {self.end_of(s, loop, inside, outer) for s in stores}
        return ends.pop() if len(ends) == 1 else None

    def end_of(self, store: Store, loop: For, inside: list[Stmt], outer: Loops) -> Expr | None:
        """The iteration from which on all that a statement stores is at the limit or behind it."""
        inner = {s.var: s.extent for s in inside if isinstance(s, For)}
        an = Analyzer({**outer, loop.var: loop.extent, **inner})
        parts = coefficient(an.form(store.indices[self.place]), loop.var)
        if parts is None:
            return None
        (terms, step), rest = parts
        ends = Eliminator(an, frozenset(inner)).of_form(rest)
        if terms or step <= 0 or ends is None:
            return None
        return an.simplify((self.limit - to_expr(ends[0]) + (step - 1)) // step)


def _sharing(inside: list[Stmt]) -> bool:
    """Whether rows prefetch something together, each a part of it."""
    notes = (find(s.notes, Prefetch) for s in inside if isinstance(s, For))
    return any(note is not None and note.rows is not None for note in notes)
