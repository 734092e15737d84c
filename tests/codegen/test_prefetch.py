"""Prefetching that rows share: together they ask for all that follows, each for its part."""

from __future__ import annotations

import itertools
from math import prod

import pytest

from tilewright import te
from tilewright.arith import simplify
from tilewright.codegen.llvm import emit_llvm
from tilewright.codegen.llvm_expr import evaluate
from tilewright.codegen.llvm_prefetch import first_read, shift
from tilewright.codegen.llvm_state import State
from tilewright.codegen.polynomial import add
from tilewright.ir.expr import as_int, const
from tilewright.ir.loops import For, PrimFunc, Stmt
from tilewright.ir.rewrite import substitute
from tilewright.ir.target import Target
from tilewright.schedule.schedule import Schedule
from tilewright.transform.loops import lower_loops

TARGET = Target.parse("haswell")
DEPTH, WIDTH = 24, 16


def product(count: int, rows: int, strip: int = 0) -> PrimFunc:
    """`count` rows that read the same panel, `rows` at a time, so that the last run may have fewer; all of them, or the
    rows of each strip, ask for what follows."""
    x, w = te.placeholder((count, DEPTH), name="x"), te.placeholder((DEPTH, WIDTH), name="w")
    k = te.reduce_axis(DEPTH, "k")
    y = te.compute((count, WIDTH), lambda t, j: te.sum(x[t, k.var] * w[k.var, j], axis=k), name="y")
    s = Schedule(te.create_prim_func([x, w, y]))
    out = s.cache_write(s.block("y"), "local")
    block = s.block("y")
    outer, _ = s.split(s.loops(out)[0], factor=rows)
    s.compute_at(block, outer)
    t, j, channel = s.loops(block)[-3:]
    s.reorder(channel, t, j)
    notes: list[tuple[str, str | int]] = [("", "w"), ("_bytes", 4 * DEPTH * WIDTH), ("_rows", strip or count)]
    for note, value in (*notes, *([("_strip", strip)] if strip else [])):
        s.annotate(channel, f"prefetch{note}", value)
    init = s.decompose_reduction(block, channel)
    for stage in (block, init, out):
        row, lane = s.loops(stage)[-2:]
        s.unroll(row)
        s.vectorize(lane)
    return lower_loops(s.func, TARGET)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 4), (9, 5), (14, 5), (16, 6), (25, 5), (64, 6)])
def test_all_rows_together_ask_for_all_that_follows(count: int, rows: int) -> None:
    lines = {line for _, line in asked_lines(product(count, rows))}
    assert lines >= set(range(DEPTH))
    assert max(lines) <= DEPTH + 2 * rows, "what comes later is asked for later"


@pytest.mark.parametrize(("count", "rows", "strip"), [(24, 4, 12), (36, 6, 18), (40, 5, 10)])
def test_the_rows_of_each_strip_ask_for_all_that_follows(count: int, rows: int, strip: int) -> None:
    asked = asked_lines(product(count, rows, strip))
    for first in range(0, count, strip):
        lines = {line for row, line in asked if first <= row < first + strip}
        assert lines >= set(range(DEPTH))
        assert max(lines) <= DEPTH + 2 * rows


def asked_lines(func: PrimFunc) -> list[tuple[int, int]]:
    """(first row of the tile, line asked for) of every hint."""
    assert "llvm.prefetch" in emit_llvm(func, TARGET)
    asked: list[tuple[int, int]] = []
    for loops in nests(func):
        note = loops[-1]
        state = State(TARGET, frozenset(), evaluate)
        load, rows = first_read(note, "w"), first_read(note, "x")
        assert load is not None and rows is not None
        place = add(state.converter.offset(load.buffer, load.indices), shift(state, note, load))
        for point in itertools.product(*(range(as_int(loop.extent) or 0) for loop in loops)):
            at = {loop.var: const(k) for loop, k in zip(loops, point, strict=True)}
            values = [as_int(simplify(substitute(e, at))) for e in state.atoms.exprs]
            offset = sum(c * prod(values[k] or 0 for k in m) for m, c in place.items())
            asked.append((as_int(simplify(substitute(rows.indices[0], at))) or 0, offset // WIDTH))
    return asked


def nests(func: PrimFunc) -> list[tuple[For, ...]]:
    """The loops around and with every note."""
    found: list[tuple[For, ...]] = []

    def visit(stmt: Stmt, around: tuple[For, ...]) -> None:
        if isinstance(stmt, For):
            around = (*around, stmt)
            if dict(stmt.annotations).get("prefetch"):
                found.append(around)
        for child in stmt.children:
            visit(child, around)

    visit(func.body, ())
    return found
