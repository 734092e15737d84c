"""The elements that the hints of a scheduled function prefetch, by evaluating their addresses for every iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.arith import simplify
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.polynomial import Poly, add
from tilewright.codegen.llvm.prefetch import first_read, lines_of, shift
from tilewright.codegen.llvm.state import State
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.loops import For, PrimFunc, Stmt
from tilewright.ir.notes import Note, Prefetch, find
from tilewright.ir.rewrite import substitute
from tilewright.targets.target import Target


@dataclass(frozen=True, slots=True)
class Hint:
    """One hint of one iteration: the loops around and their variables' values, the loop with the note, the element
    that the iteration reads first, the one whose successor (`nbytes` on) is prefetched, and how many lines."""

    loop: For
    note: Prefetch
    at: dict[Var, Expr]
    read: int
    prefetched: int
    lines: int


def hints(func: PrimFunc, target: Target, name: str, sizes: Mapping[Var, Expr] | None = None) -> Iterator[Hint]:
    """All hints for a buffer of a lowered function, where its symbols have these sizes."""
    sizes = sizes or {}
    for loops in nests(func):
        state = State(target, frozenset(), evaluate)
        state.enclosing = list(loops[:-1])
        load, note = first_read(loops[-1], name), find(loops[-1].notes, Prefetch)
        assert load is not None and note is not None
        place = state.converter.offset(load.buffer, load.indices)
        moved = shift(state, loops[-1], note, load)
        if moved is None:
            continue
        start = add(place, moved)
        lines = lines_of(state, loops[-1], note, start, load.buffer.dtype.itemsize)
        for at in points(loops, dict(sizes)):
            yield Hint(loops[-1], note, at, value(place, state, at), value(start, state, at), lines)


def points(loops: Sequence[For], at: dict[Var, Expr]) -> Iterator[dict[Var, Expr]]:
    """The values of all variables in each iteration of the innermost of the loops."""
    if not loops:
        yield at
        return
    for k in range(as_int(simplify(substitute(loops[0].extent, at))) or 0):
        yield from points(loops[1:], {**at, loops[0].var: const(k)})


def value(poly: Poly, state: State, at: dict[Var, Expr]) -> int:
    values = [as_int(simplify(substitute(e, at))) for e in state.atoms.exprs]
    return sum(c * prod(values[k] or 0 for k in monomial) for monomial, c in poly.items())


def nests(func: PrimFunc, kind: type[Note] = Prefetch) -> list[tuple[For, ...]]:
    """The loops around and with every note of a class."""
    results: list[tuple[For, ...]] = []

    def visit(stmt: Stmt, enclosing: tuple[For, ...]) -> None:
        if isinstance(stmt, For):
            enclosing = (*enclosing, stmt)
            if find(stmt.notes, kind):
                results.append(enclosing)
        for child in stmt.children:
            visit(child, enclosing)

    visit(func.body, ())
    return results
