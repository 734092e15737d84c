"""Prefetching that rows share: together they prefetch all that follows, each its part."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.codegen.llvm.prefetches import hints, nests, value
from tilewright import te
from tilewright.arith import simplify
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.prefetch import first_read, most_iterations, share_of, tile_of
from tilewright.codegen.llvm.state import State
from tilewright.ir.dtype import u8
from tilewright.ir.expr import Buffer, Expr, as_int, const
from tilewright.ir.loops import For, PrimFunc
from tilewright.ir.notes import BufferName, Prefetch, PrefetchShare, PrefetchTile, Workspaces, with_note
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import substitute, walk
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops
from tilewright.transform.loops.prefetch_share import WeightPrefetch, prefetch_upcoming

TARGET = Target.parse("haswell")
LINE = TARGET.caches.line
DEPTH, WIDTH = 24, 16


def product(
    count: Expr | int,
    rows: int,
    strip: int = 0,
    tiles: int = 0,
    short_count: int | None = None,
    prefetch: int | None = None,
) -> PrimFunc:
    """`count` rows that read the same panel, `rows` at a time, so that the last run may have fewer; all of them, the
    rows of each strip, or whole `tiles` prefetch what follows."""
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
    weights, nbytes = (BufferName("w"),), 4 * DEPTH * WIDTH
    cached = 1 if prefetch else None
    rest = strip or None
    shared = Prefetch(
        weights,
        nbytes,
        rows=strip or as_int(count),
        strip=rest,
        fewer_than=short_count,
        distance=prefetch,
        prefetch_level=cached,
    )
    s.annotate(channel, Prefetch(weights, nbytes, tiles=tiles) if tiles else shared)
    init = s.decompose_reduction(block, channel)
    for stage in (block, init, out):
        row, lane = s.loops(stage)[-2:]
        s.unroll(row)
        s.vectorize(lane)
    return lower_loops(s.func, TARGET)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 4), (9, 5), (14, 5), (16, 6), (25, 5), (64, 6)])
def test_all_rows_together_prefetch_all_that_follows(count: int, rows: int) -> None:
    lines = {line for _, line in prefetched_lines(product(count, rows))}
    assert lines >= set(range(DEPTH))
    assert max(lines) <= DEPTH + 2 * rows, "what comes later is prefetched later"


@pytest.mark.parametrize(("count", "rows", "strip"), [(24, 4, 12), (36, 6, 18), (40, 5, 10)])
def test_the_rows_of_each_strip_prefetch_all_that_follows(count: int, rows: int, strip: int) -> None:
    prefetched = prefetched_lines(product(count, rows, strip))
    for first in range(0, count, strip):
        lines = {line for row, line in prefetched if first <= row < first + strip}
        assert lines >= set(range(DEPTH))
        assert max(lines) <= DEPTH + 2 * rows


@pytest.mark.parametrize("count", [7, 9, 10, 11, 12, 13])
def test_a_tile_of_all_rows_prefetches_each_line_once(count: int) -> None:
    result = list(hints(product(count, count), TARGET, "w"))
    assert [hint.prefetched for hint in result] == [hint.read for hint in result] == [WIDTH * k for k in range(DEPTH)]


@pytest.mark.parametrize("count", range(6, 13))
def test_fewer_rows_than_share_prefetch_all_that_follows(count: int) -> None:
    n = te.var("n")
    result = hints(product(n, 13, strip=16), TARGET, "w", {n: const(count)})
    mine = [hint for hint in result if unrolled_rows(hint.loop) == count]
    assert [hint.prefetched for hint in mine] == [WIDTH * k for k in range(DEPTH)]


@pytest.mark.daily(4)
@pytest.mark.parametrize("prefetch", [None, 4 * WIDTH * 2])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 9])
def test_a_small_number_of_rows_prefetch_what_they_read_themselves(count: int, prefetch: int | None) -> None:
    n, short = te.var("n"), 5
    result = hints(product(n, 13, strip=16, short_count=short, prefetch=prefetch), TARGET, "w", {n: const(count)})
    mine = [hint for hint in result if unrolled_rows(hint.loop) == count]
    on = DEPTH * WIDTH if count >= short else (prefetch or 0) // 4
    assert [hint.prefetched + hint.note.nbytes // 4 for hint in mine] == [WIDTH * k + on for k in range(DEPTH)]
    assert {hint.note.level for hint in mine} == {1 if prefetch and count < short else 2}


def test_a_small_number_of_rows_share_where_they_may_be_the_last_of_more() -> None:
    """With 6 rows at a time, 3 and 4 are all rows or half of those that a tile more would have."""
    n = te.var("n")
    text = str(product(n, 6, strip=16, short_count=5, prefetch=128))
    for count in range(2, 6):
        _, _, version = text.partition(f"_rows == {count} {{")
        versions = version.split("_rows == ")[0].split("} else {") if count in (3, 4) else [version]
        alone, *others = versions[:2]
        assert (f"if n == {count} {{" in alone) == (count in (3, 4))
        assert ("nbytes=128, level=1" in alone.split("@prefetch")[1].split(")")[0]) == (count < 5)
        assert all("rows=16" in other.split("@prefetch")[1].split(")")[0] for other in others)


def unrolled_rows(loop: For) -> int | None:
    """How many rows a run of the loop works on."""
    return next((as_int(s.extent) for s in walk(loop.body) if isinstance(s, For) and s.kind == "unrolled"), None)


@pytest.mark.parametrize(("count", "rows"), [(8, 4), (9, 4), (26, 5), (48, 6), (50, 6)])
def test_whole_tiles_prefetch_all_that_follows_and_the_rest_nothing(count: int, rows: int) -> None:
    prefetched = prefetched_lines(product(count, rows, tiles=count // rows))
    assert {row for row, _ in prefetched} == set(range(0, count // rows * rows, rows))
    lines = {line for _, line in prefetched}
    assert lines >= set(range(DEPTH))
    assert max(lines) <= DEPTH + 2 * count // rows


@pytest.mark.parametrize(("rows", "width"), [(4, 16), (3, 40)])
def test_a_tile_prefetches_all_lines_that_it_writes_and_those_of_a_residual(rows: int, width: int) -> None:
    x, skip = te.placeholder((24, width), name="x"), te.placeholder((24, width), name="skip")
    y = te.compute((24, width), lambda t, j: x[t, j] + skip[t, j], name="y")
    s = Schedule(te.create_prim_func([x, skip, y]))
    row, lane = s.loops(s.block("y"))
    tile, row = s.split(row, factor=rows)
    s.unroll(row)
    s.vectorize(lane)
    s.annotate(tile, PrefetchTile((BufferName("y"), BufferName("skip"))))
    func = lower_loops(s.func, TARGET)
    loop = next(stmt for stmt in walk(func.body) if isinstance(stmt, For) and stmt.notes)
    line = LINE // 4
    for name in ("y", "skip"):
        for k in (0, 24 // rows - 1):
            places = [[substitute(i, {loop.var: const(k)}) for i in load.indices] for load in tile_of(loop, name, LINE)]
            result = {(as_int(simplify(t)), as_int(simplify(j))) for t, j in places}
            assert result == {(k * rows + t, j) for t in range(rows) for j in range(0, width, line)}
    assert emit_llvm(func, TARGET).count("call void @llvm.prefetch") == 2 * rows * -(-width // line)


@pytest.mark.parametrize("workspace", [False, True])
@pytest.mark.parametrize(("count", "nbytes"), [(64, 64 << 10), (64, 1000), (26, 4 << 20), (36, 12345), (8, 512)])
def test_all_iterations_together_prefetch_all_that_comes_later(count: int, nbytes: int, workspace: bool) -> None:
    func = product(count, 4)
    func = replace(func, params=(*func.params, Buffer("scratch", u8, (const(64),)))) if workspace else func
    func = replace(func, notes=with_note(func.notes, Workspaces(1))) if workspace else func
    prefetching = prefetch_upcoming(func, WeightPrefetch(2 * nbytes, nbytes), LINE)
    assert [b.name for b in prefetching.params] == ["x", "w", "y", "upcoming", *(["scratch"] if workspace else [])]
    assert as_int(prefetching.params[3].size) == 2 * nbytes
    text, before = emit_llvm(prefetching, TARGET), emit_llvm(func, TARGET)
    (nest,) = nests(prefetching, PrefetchShare)
    state = State(TARGET, frozenset(), evaluate)
    state.enclosing = list(nest[:-1])
    result = share_of(state, nest[-1])
    assert result is not None
    _, start, each = result
    points = itertools.product(*(range(as_int(loop.extent) or 0) for loop in nest))
    first = [value(start, state, {v.var: const(k) for v, k in zip(nest, at, strict=True)}) for at in points]
    prefetched = {(at + k) // (2 * LINE) for at in first for k in range(0, each, 2 * LINE)}
    assert prefetched >= set(range(nbytes // (2 * LINE))), "each pair of lines is prefetched"
    assert max(first) + each < nbytes + len(first), "and nothing behind them"
    assert text.count("call void @llvm.prefetch") - before.count("call void @llvm.prefetch") == -(-each // (2 * LINE))


def test_a_nest_whose_last_block_is_shorter_prefetches_as_the_others_do() -> None:
    """The last of five blocks has 4 rows of 6: all iterations have parts of their own, and what those that are missing
    would have prefetched is left."""
    copies = "for k in 0..8 unrolled { for v in 0..8 vectorized { B[p * 6 + l, k, v] = A[p * 6 + l, k, v] } }"
    func = parse_func(
        "func @rows(A: f32[28, 8, 8], B: f32[28, 8, 8]) { for p in 0..5 { for l in 0..min(28 - p * 6, 6) { "
        f"{copies} }} }} }}"
    )
    (nest,) = nests(prefetch_upcoming(func, WeightPrefetch(60 * LINE, 60 * LINE), LINE), PrefetchShare)
    assert [count for _, count in most_iterations(nest)] == [5, 6]
    state = State(TARGET, frozenset(), evaluate)
    state.enclosing = list(nest[:-1])
    result = share_of(state, nest[-1])
    assert result is not None
    _, start, each = result
    points = [(p, row) for p in range(5) for row in range(min(28 - p * 6, 6))]
    first = [value(start, state, {v.var: const(k) for v, k in zip(nest, at, strict=True)}) for at in points]
    assert each == 2 * LINE and first == [each * (p * 6 + row) for p, row in points]


def test_a_function_without_a_loop_for_it_prefetches_nothing() -> None:
    x = te.placeholder((8,), name="x")
    y = te.compute((8,), lambda i: x[i] + x[i], name="y")
    s = Schedule(te.create_prim_func([x, y]))
    s.vectorize(s.loops(s.block("y"))[0])
    prefetching = prefetch_upcoming(lower_loops(s.func, TARGET), WeightPrefetch(1 << 20, 1 << 20), LINE)
    assert len(prefetching.params) == 3 and "prefetch" not in emit_llvm(prefetching, TARGET)


def prefetched_lines(func: PrimFunc) -> list[tuple[int, int]]:
    """(first row of the tile, line prefetched) of every hint."""
    assert "llvm.prefetch" in emit_llvm(func, TARGET)
    prefetched: list[tuple[int, int]] = []
    for hint in hints(func, TARGET, "w"):
        rows = first_read(hint.loop, "x")
        assert rows is not None
        prefetched.append((as_int(simplify(substitute(rows.indices[0], hint.at))) or 0, hint.prefetched // WIDTH))
    return prefetched


def test_a_tile_is_what_is_unrolled_or_in_lanes() -> None:
    """A serial loop inside, of however many steps, stands at its start; lines of lanes count once."""
    lanes = "for v in 0..32 vectorized { y[k, r, v] = x[k, r, v] }"
    for kind, rows in (("", (0,)), ("unrolled", range(5))):
        body = f"for i in 0..1 {{ for k in 0..5 {kind} {{ for r in 0..2 unrolled {{ {lanes} }} }} }}"
        func = parse_func(f"func @f(x: f32[5, 2, 32], y: f32[5, 2, 32]) {{ {body} }}")
        outer = func.body
        assert isinstance(outer, For)
        places = [tuple(as_int(simplify(i)) for i in load.indices) for load in tile_of(outer, "x", 64)]
        assert places == [(k, r, v) for k in rows for r in (0, 1) for v in (0, 16)]
