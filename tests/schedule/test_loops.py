"""split, tile, fuse, reorder and the kinds of loops: what they make and what they refuse."""

from __future__ import annotations

import pytest

from tests.schedule.checks import chain, check_schedule, copy, matmul, refused, row_sum, scheduled
from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.ir.notes import BufferName, Prefetch
from tilewright.ir.parser import parse_func
from tilewright.schedule import Schedule
from tilewright.schedule.loops import MAX_FACTOR
from tilewright.support.errors import ScheduleError


def test_split_factor(golden):
    golden(scheduled(copy(), lambda s: s.split("i", factor=8)))


def test_split_nparts(golden):
    golden(scheduled(copy(), lambda s: s.split("i", nparts=4)))


def test_split_factors(golden):
    golden(scheduled(copy(), lambda s: s.split("i", factors=[2, None, 4])))


def test_split_not_divisible(golden):
    golden(scheduled(copy(30), lambda s: s.split("i", factor=8)))


def test_split_symbolic(golden):
    golden(scheduled(copy(te.var("n", hi=40)), lambda s: s.split("i", factor=8)))


def test_split_symbolic_parts(golden):
    golden(scheduled(copy(te.var("n", hi=40)), lambda s: s.split("i", nparts=4)))


def test_split_symbolic_multiple_needs_no_condition():
    s = Schedule(copy(te.var("n", lo=8, hi=40, multiple=8)))
    s.split("i", factor=8)
    assert "if" not in str(s.func)
    check_schedule(copy(te.var("n", lo=8, hi=40, multiple=8)), s)


def test_a_loop_that_has_one_iteration_at_most_runs_in_parallel():
    """A loop over n in 0..40 elements in blocks of 48: the loop's variable is 0 for the simplifier, so no index has
    it."""
    func = copy(te.var("n", lo=0, hi=40))
    s = Schedule(func)
    outer, inner = s.split("i", factor=48)
    s.vectorize(inner)
    s.parallel(outer)
    check_schedule(func, s)


def test_tile(golden):
    golden(scheduled(matmul(), lambda s: s.tile("i", "j", 4, 3)))


def test_fuse(golden):
    golden(scheduled(matmul(), lambda s: s.fuse("i", "j", "k")))


def test_fuse_undoes_split():
    s = Schedule(copy())
    s.fuse(*s.split("i", factor=8))
    assert "//" not in str(s.func) and "%" not in str(s.func)
    check_schedule(copy(), s)


def test_fuse_of_one_loop_is_that_loop():
    func = copy(16)
    s = Schedule(func)
    outer, inner = s.split(s.fuse("i"), factor=8)
    s.vectorize(s.fuse(inner))
    check_schedule(func, s)
    assert [x.name for x in s.loops("B")] == ["i_0", "i_1"] and s.fuse(outer).name == "i_0"
    with pytest.raises(ScheduleError, match="fuse needs a loop"):
        s.fuse()


def test_fuse_symbolic(golden):
    golden(scheduled(matmul(te.var("m", hi=9)), lambda s: s.fuse("i", "j")))


def test_reorder(golden):
    golden(scheduled(matmul(), lambda s: s.reorder("k", "i")))


def test_kinds(golden):
    def apply(s: Schedule) -> None:
        i, j, k = s.loops("C")
        s.parallel(i)
        s.unroll(k)
        jo, ji = s.split(j, factor=4)
        s.reorder(jo, k, ji)
        s.vectorize(ji)
        s.annotate(jo, Prefetch((BufferName("A"),), 64))
        x, y = s.loops("D")
        s.bind(x, "blockIdx.x")
        s.bind(y, "threadIdx.x")

    golden(scheduled(matmul(), apply))


def test_vectorize_of_a_ordinary_reduction():
    s = Schedule(row_sum())
    s.vectorize("k")
    check_schedule(row_sum(), s)


def test_parallel_over_fused_and_split_loops():
    func = matmul()
    s = Schedule(func)
    i, j, _ = s.loops("C")
    outer, inner = s.split(s.fuse(i, j), factor=5)
    s.parallel(outer)
    s.vectorize(s.split(inner, factor=5)[1])
    check_schedule(func, s)


def test_parallel_over_overlapping_tiles_of_a_private_buffer():
    func = chain(20, halo=3)
    s = Schedule(func)
    outer, _ = s.split("i_1", factor=6)
    s.compute_at("B", outer)
    s.parallel(outer)
    check_schedule(func, s)


REFUSALS = {
    "unknown-loop": lambda s: s.split("x", factor=4),
    "unknown-block": lambda s: s.loops("X"),
    "two-of-factor-and-nparts": lambda s: s.split("i", factor=4, nparts=2),
    "two-unknown-factors": lambda s: s.split("i", factors=[None, None, 2]),
    "factor-zero": lambda s: s.split("i", factor=0),
    "factors-too-small": lambda s: s.split("i", factors=[2, 3]),
    "split-vectorized": lambda s: [s.vectorize("j"), s.split("j", factor=4)],
    "fuse-apart": lambda s: s.fuse("i", "k"),
    "fuse-parallel": lambda s: [s.parallel("i"), s.fuse("i", "j")],
    "reorder-other-nest": lambda s: s.reorder("j", "j_1"),
    "reorder-twice": lambda s: s.reorder("i", "j", "i"),
    "reorder-past-branch": lambda s: [s.reverse_compute_at("D", "j"), s.reorder("k", "i")],
    "parallel-reduction": lambda s: s.parallel("k"),
    "parallel-nested": lambda s: [s.parallel("i"), s.parallel("j")],
    "vectorize-nested": lambda s: [s.vectorize("j"), s.vectorize("i")],
    "bind-unknown": lambda s: s.bind("i", "thread.q"),
    "bind-twice": lambda s: [s.bind("i", "threadIdx.x"), s.bind("j", "threadIdx.x")],
    "bind-around": lambda s: [s.bind("j", "threadIdx.x"), s.bind("i", "threadIdx.x")],
    "same-kind-twice": lambda s: [s.unroll("i"), s.unroll("i")],
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(case, golden):
    golden(refused(matmul(), REFUSALS[case]))


def test_refuses_to_unroll_or_vectorize_symbolic_loops(golden):
    func = copy(te.var("n", hi=40))
    golden(refused(func, lambda s: s.unroll("i")) + "\n\n" + refused(func, lambda s: s.vectorize("i")))


def test_refuses_parallel_over_fused_reduction(golden):
    golden(refused(matmul(9), lambda s: s.parallel(s.split(s.fuse("j", "k"), factor=5)[0])))


def test_refuses_an_order_that_inits_deferred(golden):
    """Fused with a spatial loop and split across it, the reduction's first step would not come first."""

    def apply(s: Schedule) -> None:
        outer, inner = s.split(s.fuse("j", "k"), factor=4)
        s.reorder(inner, outer)

    golden(refused(matmul(4), apply))


def repeated(statement: str) -> PrimFunc:
    """Four times the same, one element after another."""
    return parse_func(
        f"""func @repeated(A: f32[8], B: f32[8]) {{
  for i in 0..4 {{
    for j in 0..8 {{
      {statement}
    }}
  }}
}}"""
    )


BLOCK = "block B (vj = spatial(8): j) { B[vj] = A[vj] }"
WITHOUT_BLOCKS = """if A[j] < 1.0 { B[j] = A[j] }"""
REFUSED_REPEATED = {
    "parallel-same-elements": (BLOCK, lambda s: s.parallel("i")),
    "vectorize-same-elements": (BLOCK, lambda s: [s.reorder("j", "i"), s.vectorize("i")]),
    "parallel-without-blocks": (WITHOUT_BLOCKS, lambda s: s.parallel("j")),
}


@pytest.mark.parametrize("case", REFUSED_REPEATED)
def test_refused_of_repeated(case, golden):
    statement, apply = REFUSED_REPEATED[case]
    golden(refused(repeated(statement), apply))


def test_the_largest_factor():
    """A factor that no index can hold is refused, however large."""
    s = Schedule(copy(64))
    _, inner = s.split("i", factor=MAX_FACTOR)
    assert f"for {inner.name} in 0..{MAX_FACTOR}" in str(s.func)
    for factor in (MAX_FACTOR + 1, 10**30):
        with pytest.raises(ScheduleError, match="every factor must be between 1 and 2147483648"):
            Schedule(copy(64)).split("i", factor=factor)
