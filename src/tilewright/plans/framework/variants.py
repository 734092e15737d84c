"""Variants of a function: a version of its own for some values of its symbols, chosen when it is called.

    func f(x: f32[n, 64], ...) {            func f(x: f32[n, 64], ...) {
      for i in 0..n { ... }          ->       if n == 1 { ...; a schedule for one row }
    }                                         else { for i in 0..n { ... } }
                                            }

Each version is planned as if it were a function of its own, so that one row may have another tile than many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.attributes import AttrValue
from tilewright.ir.expr import Buffer, Expr, Var, all_of, const, equal
from tilewright.ir.loops import Block, BlockIter, For, If, Let, PrimFunc, Stmt
from tilewright.ir.notes import Origin, find, with_note
from tilewright.ir.rewrite import (
    fresh_name,
    map_expr,
    map_stmt,
    names_of,
    replace_buffers,
    substitute,
    substitute_stmt,
    walk,
)

Values = Mapping[Var, int]


def specialize(func: PrimFunc, values: Values) -> PrimFunc:
    """The unscheduled function for these values of its symbols: their numbers stand in shapes and extents."""
    numbers: dict[Var, Expr] = {symbol: const(value) for symbol, value in values.items()}
    smaller = {
        b: replace(b, shape=tuple(substitute(d, numbers) for d in b.shape)) for b in (*func.params, *func.buffers)
    }

    def number(value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(map(number, value))
        return substitute(value, numbers) if isinstance(value, Expr) else value

    def on(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block) or (origin := find(s.notes, Origin)) is None or not origin.attrs.exprs:
            return None
        return replace(s, notes=with_note(s.notes, replace(origin, attrs=origin.attrs.mapped(number))))

    body = replace_buffers(map_stmt(substitute_stmt(func.body, numbers), on), smaller)
    params, buffers = (tuple(smaller[b] for b in group) for group in (func.params, func.buffers))
    return replace(func, params=params, body=body, buffers=buffers)


def dispatch(values: Values, special: PrimFunc, general: PrimFunc) -> PrimFunc:
    """`if symbol == value { special } else { general }` as one function with the parameters of `general`."""
    taken = names_of(general)
    mine: dict[Buffer, Buffer] = dict(zip(special.params, general.params, strict=True))
    mine.update((b, replace(b, name=fresh_name(b.name, taken))) for b in special.buffers)
    body = replace_buffers(_fresh(special.body, taken), mine)
    condition = all_of(equal(symbol, value) for symbol, value in values.items())
    buffers = (*general.buffers, *(mine[b] for b in special.buffers))
    return replace(general, body=If(condition, body, general.body), buffers=buffers)


def _fresh(body: Stmt, taken: set[str]) -> Stmt:
    """`body` with fresh names for loops, blocks and their iterators: it may stand beside what it was copied from."""
    renamed: dict[Var, Var] = {}
    for s in walk(body):
        bound = [s.var] if isinstance(s, For | Let) else [it.var for it in s.iters] if isinstance(s, Block) else []
        for v in bound:
            renamed[v] = v.renamed(fresh_name(v.name, taken))
    memo: dict[Expr, Expr] = {}

    def statement(s: Stmt) -> Stmt | None:
        match s:
            case For() | Let():
                return replace(s, var=renamed[s.var])
            case Block():
                iters = tuple(BlockIter(renamed[it.var], it.extent, it.kind, it.binding) for it in s.iters)
                return replace(s, name=fresh_name(s.name, taken), iters=iters)
        return None

    return map_stmt(body, statement, lambda e: map_expr(e, lambda n: renamed.get(n) if type(n) is Var else None, memo))
