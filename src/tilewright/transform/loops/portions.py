"""Let all blocks of a symbolic number of rows be of about equal size.

    for r in 0..(n + 23)//24 @even_blocks(size=24, unit=8) {   let b = ceil(ceil(n / 8) / ceil(n / 24)) * 8
      alloc t: f32[24] {                                       for r in 0..(n + b - 1)//b {
        for i in 0..24 { t[i] = x[r*24 + i] }             ->     alloc t: f32[24] {
        for i in 0..24 {                                           for i in 0..24 { t[i] = x[r*b + i] }
          if r*24 + i < n { y[r*24 + i] = t[i] } } } }             for i in 0..min(b, n - r*b) { y[r*b + i] = t[i] } } }

Data that all rows of a block share, such as a convolution's filters, is read once per block: of 25 rows the last one
alone would wait for these reads, while blocks of 16 and 9 hide them. There are as many blocks as before, none of more
than `size` rows, and all but the last are whole units, as register tiles are. Rows past `b` belong to the next block;
`unread.py` removes their computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.compare import nonnegative_forms
from tilewright.arith.forms import to_expr
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Expr, Op, Var, all_of, ceildiv, is_const, maximum, minimum
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, PrimFunc, Stmt, Store
from tilewright.ir.notes import Count, LoopNote, find, register, without
from tilewright.ir.rewrite import fresh_name, map_exprs_of, map_stmt, names_of, rebuild, variables, walk, with_children
from tilewright.support.classes import dataclass
from tilewright.transform.loops.copies import conjuncts


@register
@dataclass(frozen=True, slots=True)
class EvenBlocks(LoopNote):
    """The blocks that a loop makes of a symbolic number of rows are to be of equal size, without a small last one.

    Args:
        size: the most rows of a block.
        unit: every block but the last has a multiple of this number of rows.

    Written by `algorithms/winograd/plan/convolution.py`, read and removed by `transform/loops/portions.py`.
    """

    size: Count
    unit: Count = 1


def even_blocks(func: PrimFunc) -> PrimFunc:
    """The function with blocks of equal size in loops that have the note `EvenBlocks`, where the number of rows is
    symbolic; the note is removed. Loops whose block number occurs outside of row numbers stay as they are."""
    used_names = names_of(func)

    def on(s: Stmt) -> Stmt | None:
        note = find(s.notes, EvenBlocks) if isinstance(s, For) else None
        if not isinstance(s, For) or note is None:
            return None
        return _divided(replace(s, notes=without(s.notes, EvenBlocks)), note, used_names)

    body = map_stmt(func.body, on)
    return func if body is func.body else func.with_body(body)


def _divided(loop: For, note: EvenBlocks, used_names: set[str]) -> Stmt:
    """The loop over blocks of equal size, as `note` says, or the loop unchanged. New names are added to
    `used_names`."""
    rows, tests = _tests(loop, note.size)
    own = {s.buffer for s in walk(loop.body) if isinstance(s, Allocate)}
    if rows is None or not variables(rows) or not _guarded(loop.body, tests, own):
        return loop
    units, blocks = ceildiv(rows, note.unit), maximum(ceildiv(rows, note.size), 1)
    size = Analyzer().simplify(maximum(ceildiv(units, blocks), 1) * note.unit)
    each = Var(fresh_name(f"{loop.var.name}_rows", used_names), i64, note.unit, note.size, note.unit)
    mover, count = _Mover(loop.var, note.size, loop.var * each), minimum(each, rows - loop.var * each)

    def statement(s: Stmt) -> Stmt:
        moved = map_exprs_of(with_children(s, tuple(map(statement, s.children))), mover.expr)
        if isinstance(s, If) and isinstance(moved, If):
            mine = [c for c in conjuncts(s.condition) if c in tests]
            rest = [mover.expr(c) for c in conjuncts(s.condition) if c not in tests]
            return replace(moved, condition=all_of((*[tests[c] < count for c in mine], *rest)))
        return _bounded(moved, note.size, count)

    try:
        return Let(each, size, replace(loop, extent=ceildiv(rows, each), body=statement(loop.body)))
    except _ElsewhereError:
        return loop


def _bounded(s: Stmt, size: int, count: Expr) -> Stmt:
    """A loop over the `size` rows of a block with the extent `count`, if the test `row < count` guards its body; other
    statements are returned unchanged."""
    if not isinstance(s, For) or s.kind != "serial" or not is_const(s.extent, size):
        return s
    if not isinstance(s.body, If) or s.body.orelse is not None:
        return s
    return replace(s, extent=count, body=s.body.then) if s.body.condition is (s.var < count) else s


def _tests(loop: For, size: int) -> tuple[Expr | None, dict[Expr, Expr]]:
    """(number of rows, conditions that a row exists, `loop * size + i < rows`, each with the row's number i in its
    block); (None, ..) if the number of rows is not known or not unique."""
    an, inner = Analyzer(), {s.var for s in walk(loop.body) if isinstance(s, For | Let)}
    tests: dict[Expr, Expr] = {}
    counts: set[Expr] = set()
    for condition in (c for s in walk(loop.body) if isinstance(s, If) for c in conjuncts(s.condition)):
        for terms, constant in nonnegative_forms(an, an.simplify(condition)):
            if terms.get(loop.var) != -size:
                continue
            row = {atom: -c for atom, c in terms.items() if not inner.isdisjoint(variables(atom))}
            rest = {atom: c for atom, c in terms.items() if atom not in row and atom is not loop.var}
            tests[condition] = to_expr((row, 0))
            counts.add(to_expr((rest, constant + 1)))
    return (counts.pop() if len(counts) == 1 else None), tests


def _guarded(s: Stmt, tests: Mapping[Expr, Expr], own: set[Buffer]) -> bool:
    """Whether every store to a buffer from outside the block, not in `own`, is guarded by a condition that its row
    exists, one of `tests`."""
    if isinstance(s, Intrinsic) or (isinstance(s, Store) and s.buffer not in own):
        return False
    if isinstance(s, If) and s.orelse is None and any(c in tests for c in conjuncts(s.condition)):
        return True
    return all(_guarded(c, tests, own) for c in s.children)


class _ElsewhereError(Exception):
    """Raised if the variable of the loop over blocks of rows occurs elsewhere than in `block * size`."""


class _Mover:
    """Replaces `block * size` by `first` in a block's body."""

    __slots__ = ("an", "block", "first", "memo", "size")

    def __init__(self, block: Var, size: int, first: Expr) -> None:
        self.an, self.block, self.size, self.first = Analyzer(), block, size, first
        self.memo: dict[Expr, Expr] = {}

    def expr(self, e: Expr) -> Expr:
        if self.block not in variables(e):
            return e
        if e not in self.memo:
            self.memo[e] = self.linear(e) if e.dtype is i64 and type(e) is Op else self.parts(e)
        return self.memo[e]

    def parts(self, e: Expr) -> Expr:
        if not e.children:
            raise _ElsewhereError
        return rebuild(e, [self.expr(c) for c in e.children])

    def linear(self, e: Expr) -> Expr:
        """A sum `e` in which `first` replaces the term `block * size`; other terms are rewritten recursively."""
        terms, constant = self.an.form(e)
        times, rest = divmod(terms.get(self.block, 0), self.size)
        if rest:
            raise _ElsewhereError
        others = [
            (self.parts(atom) if self.block in variables(atom) else atom) * c
            for atom, c in terms.items()
            if atom is not self.block
        ]
        return sum(others, self.first * times + constant)
