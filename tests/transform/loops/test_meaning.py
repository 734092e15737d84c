"""Lowered loops do what the scheduled program does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.schedule.programs import assert_same, random_program
from tests.schedule.random_steps import random_schedule
from tests.transform.loops.test_passes import HOST, add, matmul, padded_conv, tiled
from tilewright import te
from tilewright.ir.loops import Block, For, If, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.ir.verify import verify_func
from tilewright.schedule import Schedule
from tilewright.transform.loops import lower_loops


def check(func: PrimFunc, seed: int = 0) -> PrimFunc:
    lowered = lower_loops(func, HOST)
    verify_func(lowered)
    assert not any(isinstance(s, Block) for s in walk(lowered.body))
    assert not lowered.buffers
    assert lower_loops(func, HOST) == lowered, "lowering is not deterministic"
    assert_same(func, lowered, random.Random(seed))
    return lowered


@pytest.mark.parametrize("n", [1, 5, 6, 12, 19])
@pytest.mark.parametrize("m", [7, 16, 37])
def test_tiled_matmul(n: int, m: int) -> None:
    check(tiled(n, m, 9).func)


@pytest.mark.parametrize("seed", range(6))
def test_tiled_matmul_symbolic(seed: int) -> None:
    check(tiled(te.var("n", hi=20), 37, te.var("k", hi=5)).func, seed)


@pytest.mark.parametrize("n", [1, 5, 13, 24, 25, 29, 31, 36, 50])
def test_the_last_strip_has_no_tiles_without_rows(n: int) -> None:
    s = Schedule(matmul(n, 8, 3))
    block = s.block("C")
    copy = s.cache_write(block, "local")
    i, j = s.loops(copy)
    strip, tile, row = s.split(i, factors=[None, 4, 6])
    s.compute_at(block, tile)
    own, lane, depth = s.loops(block)[-3:]
    s.reorder(depth, own, lane)
    zero = s.decompose_reduction(block, depth)
    for loop in (row, own, s.loops(zero)[-2]):
        s.unroll(loop)
    for loop in (j, lane, s.loops(zero)[-1]):
        s.vectorize(loop)
    s.parallel(strip)
    conditions = [x for x in walk(check(s.func).body) if isinstance(x, If)]
    assert len(conditions) <= 1, "which strip it is, and never which row"


@pytest.mark.parametrize("kind", ["serial", "vectorized", "unrolled", "parallel"])
@pytest.mark.parametrize("n", [1, 8, 13, "n"])
def test_split_add(kind: str, n: Any) -> None:
    s = Schedule(add(te.var("n", hi=30) if n == "n" else n))
    (i,) = s.loops("C")
    io, ii = s.split(i, factor=8)
    if kind == "parallel":
        s.parallel(io)
    elif kind != "serial":
        getattr(s, {"vectorized": "vectorize", "unrolled": "unroll"}[kind])(ii)
    check(s.func)


def test_padded_conv() -> None:
    check(padded_conv().func)


def test_nested_splits_leave_several_conditions() -> None:
    s = Schedule(matmul(11, 13, 7))
    i, j, k = s.loops("C")
    i0, i1, i2 = s.split(i, factors=[None, 2, 3])
    j0, j1 = s.split(j, nparts=4)
    k0, k1 = s.split(k, factor=3)
    s.reorder(i0, j0, k0, i1, k1, i2, j1)
    s.unroll(i2)
    s.vectorize(j1)
    check(s.func)


@pytest.mark.daily(5)
@pytest.mark.costly(3)
@pytest.mark.parametrize("seed", range(200))
def test_random_schedules(seed: int) -> None:
    rng = random.Random(seed)
    func = random_program(rng)
    schedule = random_schedule(func, rng, rng.randint(2, 10))
    check(schedule.func, seed)


def test_time_of_a_tiled_matmul() -> None:
    """A smoke test: far from the usual few milliseconds means that something became exponential."""
    import time

    func = tiled(te.var("n"), 37, 20).func
    lower_loops(func, HOST)
    start = time.process_time()
    lower_loops(func, HOST)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("n", [70, 90, 61, 64, 3])
def test_a_tail_is_not_split_once_more(n: int) -> None:
    """How many columns of a block are there depends on a remainder, with which bounds are hard to compare."""
    x = te.placeholder((13, n), name="X")
    s = Schedule(te.create_prim_func([x, te.compute((13, n), lambda i, j: x[i, j] * 2.0, name="Y")], "twice"))
    i, j = s.loops("Y")
    io, ii = s.split(i, factor=4)
    jo, ji = s.split(j, factor=32)
    jm, jl = s.split(ji, factor=8)
    s.reorder(io, jo, ii, jm, jl)
    s.vectorize(jl)
    s.unroll(ii)
    s.parallel(s.fuse(io, jo))
    lowered = check(s.func)
    vectors = [c for c in walk(lowered.body) if isinstance(c, For) and c.kind == "vectorized"]
    # Of all rows: whole blocks, the last block's vectors, what is left; of some rows: vectors, what is left.
    assert len(vectors) <= 5, str(lowered)
