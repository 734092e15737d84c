"""Variants of a function: separate versions for some values of its symbols, selected when the function is called.

    func f(x: f32[n, 64], ...) {            func f(x: f32[n, 64], ...) {
      for i in 0..n { ... }          ->       if n == 1 { ...; a schedule for one row }
    }                                         else { for i in 0..n { ... } }
                                            }

Each version is planned as a separate function, so that one row may have another tile than many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.arith import simplify
from tilewright.ir.attributes import AttrValue
from tilewright.ir.expr import Buffer, Expr, Var, all_of, as_int, const, equal
from tilewright.ir.loops import Block, BlockIter, For, If, Let, PrimFunc, Stmt
from tilewright.ir.notes import Count, FuncNote, Origin, find, register, with_note, without
from tilewright.ir.rewrite import (
    buffers_in,
    fresh_name,
    map_expr,
    map_stmt,
    names_of,
    replace_buffers,
    substitute,
    substitute_stmt,
    variables,
    walk,
)
from tilewright.plans.framework.symbolic import estimated_at
from tilewright.support.classes import dataclass

Values = Mapping[Var, int]

MIN_SIZES = 2
"""The least number of sizes at which a version is estimated."""


@register
@dataclass(frozen=True, slots=True)
class Versions(FuncNote):
    """The unscheduled function is written several times, for sizes of which `if` tells: each is planned by itself.

    Args:
        count: how many times.

    Written by `transform/lower.py`, read by `plans/framework/variants.py`.
    """

    count: Count


def specialize(func: PrimFunc, values: Values) -> PrimFunc:
    """The unscheduled function `func` for constant `values` of symbols."""
    return with_symbols(func, {symbol: const(value) for symbol, value in values.items()})


def condition_of(values: Values) -> Expr:
    """The condition that each symbol in `values` has the value that stands there."""
    return all_of(equal(symbol, value) for symbol, value in values.items())


def with_symbols(func: PrimFunc, numbers: Mapping[Var, Expr]) -> PrimFunc:
    """The function with the symbols in `numbers` replaced by expressions: in shapes, extents and attributes."""
    if not numbers:
        return func
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


def dispatch(condition: Expr, special: PrimFunc, general: PrimFunc) -> PrimFunc:
    """`if condition { special } else { general }` as one function with the parameters of `general`."""
    used_names = names_of(general)
    mine: dict[Buffer, Buffer] = dict(zip(special.params, general.params, strict=True))
    mine.update((b, replace(b, name=fresh_name(b.name, used_names))) for b in special.buffers)
    body = replace_buffers(_fresh(special.body, used_names), mine)
    buffers = (*general.buffers, *(mine[b] for b in special.buffers))
    return replace(general, body=If(condition, body, general.body), buffers=buffers)


def by_size(versions: Sequence[tuple[Expr | None, PrimFunc]]) -> PrimFunc:
    """One unscheduled function made of several over the same parameters, each with its condition; the last one has
    none."""
    (_, func), *before = reversed(versions)
    for condition, special in before:
        assert condition is not None, "one version has no condition, which is the last one"
        func = dispatch(condition, special, func)
    return replace(func, notes=with_note(func.notes, Versions(len(versions))))


def versions_of(func: PrimFunc) -> tuple[tuple[Expr | None, PrimFunc], ...]:
    """(condition, version) pairs of an unscheduled function, each a separate function that is estimated at sizes where
    it is selected; the last one, which may be the function itself, has no condition."""
    note = find(func.notes, Versions)
    if note is None:
        return ((None, func),)
    func = replace(func, notes=without(func.notes, Versions))
    results: list[tuple[Expr | None, PrimFunc]] = []
    before: list[Expr] = []
    rest: Stmt = func.body
    while len(results) < note.count - 1:
        assert isinstance(rest, If) and rest.orelse is not None
        results.append(
            (rest.condition, evaluated_where(_part(func, rest.then), [*(~c for c in before), rest.condition]))
        )
        before.append(rest.condition)
        rest = rest.orelse
    return (*results, (None, evaluated_where(_part(func, rest), [~c for c in before])))


def _part(func: PrimFunc, body: Stmt) -> PrimFunc:
    """The function with `body` instead of its own, and without the buffers that `body` does not use."""
    used = set(buffers_in(body))
    return replace(func, body=body, buffers=tuple(b for b in func.buffers if b in used))


def evaluated_where(func: PrimFunc, conditions: Sequence[Expr]) -> PrimFunc:
    """The function, marked to be estimated at those values of its symbols at which all conditions hold; unchanged if
    their values are not known, or if less than two remain, since the best choice for a single size need not fit
    others."""
    known = {s: values for s in func.symbols if (values := estimated_at(s))}
    symbols = list(known)
    if not {v for c in conditions for v in variables(c)} <= known.keys():
        return func

    def at(place: int) -> dict[Var, int]:
        return {s: known[s][place % len(known[s])] for s in symbols}

    def holds(place: int) -> bool:
        numbers: dict[Var, Expr] = {s: const(n) for s, n in at(place).items()}
        return all(as_int(simplify(substitute(c, numbers))) for c in conditions)

    places = [k for k in range(max(map(len, known.values()))) if holds(k)]
    likely = {s: tuple(at(k)[s] for k in places) for s in symbols}
    if len(set(zip(*likely.values(), strict=True))) < MIN_SIZES:
        return func
    return with_symbols(func, {s: s.with_likely(likely[s]) for s in symbols})


def _fresh(body: Stmt, used_names: set[str]) -> Stmt:
    """`body` with fresh names for loops, blocks and iterators, so that it may stand beside the original."""
    renamed: dict[Var, Var] = {}
    for s in walk(body):
        bound = [s.var] if isinstance(s, For | Let) else [it.var for it in s.iters] if isinstance(s, Block) else []
        for v in bound:
            renamed[v] = v.renamed(fresh_name(v.name, used_names))
    memo: dict[Expr, Expr] = {}

    def statement(s: Stmt) -> Stmt | None:
        match s:
            case For() | Let():
                return replace(s, var=renamed[s.var])
            case Block():
                iters = tuple(BlockIter(renamed[it.var], it.extent, it.kind, it.binding) for it in s.iters)
                return replace(s, name=fresh_name(s.name, used_names), iters=iters)
        return None

    return map_stmt(body, statement, lambda e: map_expr(e, lambda n: renamed.get(n) if type(n) is Var else None, memo))
