"""Inlining, moving blocks, caches, scopes, reductions and layouts: what they make and what they refuse."""

from __future__ import annotations

import random
import time

import pytest

from tests.schedule.checks import chain, check_schedule, conv, copy, matmul, refused, row_sum, scheduled
from tests.schedule.programs import softmax
from tilewright import te
from tilewright.ir import scopes
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import cast, const, select
from tilewright.ir.loops import Block, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.schedule import Schedule


def test_compute_inline(golden):
    golden(scheduled(chain(halo=3), lambda s: s.compute_inline("B")))


def test_inlining_drops_what_a_decided_condition_leaves_unread():
    a = te.placeholder((6,), name="A")
    zero = te.compute((6,), lambda i: const(0), name="zero")
    less = te.compute((6,), lambda i: zero[i] < 0, name="less")
    more = te.compute((6,), lambda i: a[i] * 2.0, name="more")
    c = te.compute((6,), lambda i: select(less[i], more[i], a[i] + cast(zero[i], f32)), name="C")
    func = te.create_prim_func([a, c], "settled")
    s = Schedule(func)
    for name in ("zero", "less", "more"):
        s.compute_inline(name)
    assert [b.name for b in walk(s.func.body) if isinstance(b, Block)] == ["C"] and not s.func.buffers
    check_schedule(func, s)


def test_inlining_drops_a_reduction_that_no_one_reads():
    a = te.placeholder((6, 4), dtype=i64, name="A")
    r = te.reduce_axis(4, "k")
    total = te.compute((6,), lambda i: te.sum(a[i, r], r), name="total")
    none = te.compute((6,), lambda i: const(0, i64), name="none")
    c = te.compute((6,), lambda i: total[i] * none[i] + const(1, i64), name="C")
    func = te.create_prim_func([a, c], "nothing")
    s = Schedule(func)
    s.compute_inline("none")
    s.compute_inline("total")
    assert [b.name for b in walk(s.func.body) if isinstance(b, Block)] == ["C"] and not s.func.buffers
    check_schedule(func, s)


def test_compute_inline_of_padding(golden):
    golden(scheduled(conv(5, 2), lambda s: s.compute_inline("P")))


def test_reverse_compute_inline(golden):
    golden(scheduled(chain(), lambda s: s.reverse_compute_inline("C")))


def test_reverse_compute_inline_through_a_transpose(golden):
    a = te.placeholder((4, 6), name="A")
    b = te.compute((6, 4), lambda i, j: a[j, i] + 1.0, name="B")
    c = te.compute((4, 6), lambda i, j: b[j, i] * 2.0, name="C")
    golden(scheduled(te.create_prim_func([a, c], "transposed"), lambda s: s.reverse_compute_inline("C")))


def test_compute_at(golden):
    def apply(s: Schedule) -> None:
        outer, _ = s.split("i_1", factor=8)
        s.compute_at("B", outer)

    golden(scheduled(chain(), apply))


def test_compute_at_with_halo(golden):
    def apply(s: Schedule) -> None:
        outer, _ = s.split("i_1", factor=5)
        s.compute_at("B", outer)
        s.set_scope("B", "local")

    golden(scheduled(chain(halo=4), apply))


def test_compute_at_symbolic(golden):
    def apply(s: Schedule) -> None:
        outer, _ = s.split("i_1", factor=8)
        s.compute_at("B", outer)

    golden(scheduled(chain(te.var("n", hi=30)), apply))


def test_compute_at_of_panels_that_tiles_overhang(golden):
    """Tiles of 4 in panels of 6: the second one ends with its panel, and so does what it reads."""

    def apply(s: Schedule) -> None:
        panel, _ = s.split("j", factor=6)
        part, _ = s.split("j_1", factor=4)
        s.compute_at("joined", part)
        s.compute_at("panels", panel)

    a = te.placeholder((3, 6), name="A")
    panels = te.compute((3, 6), lambda p, l: a[p, l] + 1.0, name="panels")
    joined = te.compute((18,), lambda i: panels[i // 6, i % 6] * 2.0, name="joined")
    out = te.compute((2, 18), lambda h, j: joined[(h * 18 + j) % 18] + cast(h, f32), name="out")
    golden(scheduled(te.create_prim_func([a, out], "panels"), apply))


def test_compute_at_of_a_reduction(golden):
    def apply(s: Schedule) -> None:
        i_0, j_0, _, _ = s.tile("i_1", "j_1", 4, 4)
        s.compute_at("C", j_0)
        *outer, i, j, k = s.loops("C")
        assert [x.name for x in outer] == [i_0.name, j_0.name]
        assert [s.get(x).var.name for x in (i, j, k)] == ["i", "j", "k"]

    golden(scheduled(matmul(), apply))


def test_compute_at_of_all_consumers(golden):
    """Both readers stand in the loop: the region is what either needs."""

    def apply(s: Schedule) -> None:
        s.reverse_compute_at("D", s.split("i_1", factor=4)[0])
        s.compute_at("B", "i_1_0")

    a = te.placeholder((20,), name="A")
    b = te.compute((20,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((16,), lambda i: b[i] * 2.0, name="C")
    d = te.compute((16,), lambda i: c[i] - b[i + 3], name="D")
    golden(scheduled(te.create_prim_func([a, d], "shared"), apply))


def test_compute_at_of_an_output(golden):
    """An output of which another is made element by element moves: all of it is computed."""
    golden(scheduled(outputs(), lambda s: s.compute_at("B", s.split("i_1", factor=3)[0])))


def test_reverse_compute_at(golden):
    golden(scheduled(chain(), lambda s: s.reverse_compute_at("C", s.split("i", factor=6)[0])))


def test_reverse_compute_at_of_a_reduction(golden):
    a = te.placeholder((6, 8), name="A")
    b = te.compute((6, 8), lambda i, j: a[i, j] + 1.0, name="B")
    r = te.reduce_axis(8, "r")
    c = te.compute((6,), lambda i: te.sum(b[i, r], r), name="C")
    golden(scheduled(te.create_prim_func([a, c], "sums"), lambda s: s.reverse_compute_at("C", "j")))


def test_softmax_in_one_loop(golden):
    def apply(s: Schedule) -> None:
        row = s.loops("O")[0]
        for name in ("S", "E", "M"):
            s.compute_at(name, row)
            s.set_scope(name, "local")
        s.parallel(row)

    golden(scheduled(softmax(random.Random(1)), apply))


def test_decompose_reduction(golden):
    def apply(s: Schedule) -> None:
        _, j, k = s.loops("C")
        j_0, j_1 = s.split(j, factor=5)
        s.reorder(k, j_0, j_1)
        s.vectorize(j_1)
        s.decompose_reduction("C", k)

    golden(scheduled(matmul(4, 12, 3, epilogue=False), apply))


def test_set_scope_and_caches(golden):
    def apply(s: Schedule) -> None:
        s.cache_read("C", "A", "local")
        copy_out = s.cache_write("D", "local")
        s.compute_at("A_local", s.loops("C")[0])
        s.set_scope("C", "local")
        s.reverse_compute_at(copy_out, s.loops("D")[0])

    golden(scheduled(matmul(4, 4, 4), apply))


def test_rfactor(golden):
    def apply(s: Schedule) -> None:
        _, inner = s.split("k", factor=8)
        first = s.rfactor("S", inner)
        i, outer, lane = s.loops(first)
        s.reorder(i, outer, lane)
        s.vectorize(lane)

    golden(scheduled(row_sum(), apply))


def test_rfactor_of_a_reducer_of_the_users(golden):
    golden(scheduled(reducer(), lambda s: s.rfactor("N", s.split("r", factor=4)[1])))


def test_rfactor_of_uneven_parts(golden):
    golden(scheduled(row_sum(3, 13), lambda s: s.rfactor("S", s.split("k", factor=8)[1], -1)))


def test_rfactor_of_the_outer_part(golden):
    golden(scheduled(row_sum(3, 13), lambda s: s.parallel(s.loops(s.rfactor("S", s.split("k", nparts=3)[0]))[1])))


def test_rfactor_leaves_the_other_reduction_as_it_is(golden):
    """Two loops drive `r`, one drives `k`: only the iterator of `k` is decomposed."""
    a = te.placeholder((3, 4, 6), name="A")
    k, r = te.reduce_axis(4, "k"), te.reduce_axis(6, "r")
    b = te.compute((3,), lambda i: te.sum(a[i, k, r], [k, r]), name="S")

    def apply(s: Schedule) -> None:
        s.split("r", factor=3)
        s.rfactor("S", "k")

    golden(scheduled(te.create_prim_func([a, b], "sums"), apply))


def test_transform_layout(golden):
    golden(scheduled(chain(20), lambda s: s.transform_layout("B", lambda i: (i // 8, i % 8))))


def test_transform_layout_then_tile(golden):
    def apply(s: Schedule) -> None:
        s.transform_layout("C", lambda i, j: (i, j // 4, j % 4))
        _, j_1 = s.split("j", factor=4)
        s.vectorize(j_1)
        s.compute_at("C", s.loops("D")[0])

    golden(scheduled(matmul(), apply))


def test_transform_layout_of_a_parameter(golden):
    func = matmul(8, 8, 4, epilogue=False)
    golden(scheduled(func, lambda s: s.transform_layout("C", lambda k, j: (j // 4, k, j % 4), buffer="B"), same=False))


def test_pad(golden):
    golden(scheduled(matmul(6, 5, 3), lambda s: s.pad("C", [4, 4, 2])))


def test_pad_of_an_output(golden):
    golden(scheduled(matmul(6, 5, 3, epilogue=False), lambda s: s.pad("C", [1, 4, 1])))


def test_pad_of_a_maximum(golden):
    a = te.placeholder((3, 5), name="A")
    r = te.reduce_axis(5, "r")
    b = te.compute((3,), lambda i: te.max(a[i, r], r), name="B")
    golden(scheduled(te.create_prim_func([a, b], "high"), lambda s: s.pad("B", [1, 4])))


def test_the_plan_of_a_convolution(golden):
    """The schedule of the direct convolution: register tile, reduction outside, separate init, epilogue in the tile."""

    def apply(s: Schedule) -> None:
        s.compute_inline("P")
        s.compute_inline("U")
        o, h, w = s.loops("R")
        o_0, o_1 = s.split(o, factor=16)
        w_0, w_1 = s.split(w, factor=6)
        s.reorder(o_0, h, w_0, w_1, o_1)
        s.compute_at("T", w_0)
        s.set_scope("T", "local")
        o, h, w, rc, rh, rw = s.loops("T")[3:]
        s.reorder(rc, rh, rw, h, w, o)
        s.vectorize(o)
        s.unroll(w)
        s.vectorize(o_1)
        s.decompose_reduction("T", rc)
        s.parallel(o_0)

    golden(scheduled(conv(), apply))


def test_primitives_are_fast():
    """A plan has some 25 primitives and a model some 40 kernels: about a millisecond each is the budget."""
    func = conv()
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        s = Schedule(func)
        s.compute_inline("P")
        s.compute_inline("U")
        o, _, w = s.loops("R")
        s.split(o, factor=16)
        w_0, _ = s.split(w, factor=6)
        s.compute_at("T", w_0)
        s.set_scope("T", "local")
        best = min(best, time.process_time() - start)
    assert best / 6 < 5e-3


def outputs(step: int = 1) -> PrimFunc:
    """Two outputs, one read by the other, all of it or each `step`-th element."""
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((8 // step,), lambda i: b[i * step] * 2.0, name="C")
    return te.create_prim_func([a, b, c], "outputs")


def reducer() -> PrimFunc:
    """A reduction with a reducer of the user's."""
    a = te.placeholder((4, 6), name="A")
    r = te.reduce_axis(6, "r")
    norm = te.comm_reducer(lambda x, y: te.sqrt(x * x + y * y), lambda t: te.const(0.0, t), "norm")
    return te.create_prim_func([a, te.compute((4,), lambda i: norm(a[i, r], r), name="N")], "norms")


DECAYED = """\
func @decayed(A: f32[4, 6], N: f32[4]) {
  for i in 0..4 {
    for r in 0..6 {
      block N (vi = spatial(4): i, vr = reduce(6): r) {
        init { N[vi] = 0.0 }
        N[vi] = N[vi] * 0.5 + A[vi, vr]
      }
    }
  }
}
"""
"""The sum so far counts half: no reducer, the order matters."""


def _pair() -> PrimFunc:
    """One block that writes two buffers, and one that reads both."""
    a = te.placeholder((6,), name="A")
    p, q = te.compute((6,), lambda i: (a[i] + 1.0, a[i] * 2.0), name="P")
    return te.create_prim_func([a, te.compute((6,), lambda i: p[i] + q[i], name="C")], "pair")


def _mixed(deferred: bool) -> PrimFunc:
    """D = B * C and E = C; C is computed before or after B."""
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((8,), lambda i: a[i] * 2.0, name="C")
    d = te.compute((8,), lambda i: b[i] * c[i] if deferred else c[i] * b[i], name="D")
    return te.create_prim_func([a, d, te.compute((8,), lambda i: c[i] - 1.0, name="E")], "mixed")


def test_reverse_compute_inline_beside_an_earlier_input(golden):
    golden(scheduled(_mixed(deferred=False), lambda s: s.reverse_compute_inline("D")))


def test_scopes_of_one_of_two_outputs():
    func = _pair()
    written = [b.name for b in func.buffers]
    for name in written:
        s = Schedule(func)
        s.set_scope("P", "local", name)
        assert [b.name for b in s.func.buffers if b.scope == "local"] == [name]
        check_schedule(func, s)


_UNREAD = """func @unread(A: f32[2], C: f32[2]) {
  buffer B: f32[2]
  for i in 0..2 {
    block B (vi = spatial(2): i) {
      B[vi] = A[vi]
    }
  }
  for j in 0..2 {
    block C (vj = spatial(2): j) {
      C[vj] = A[vj]
    }
  }
}"""

_BACKWARDS = """func @backwards(A: f32[2], C: f32[2]) {
  buffer B: f32[2]
  for i in 0..2 {
    block B (vi = spatial(2): i) {
      B[1 - vi] = A[vi]
    }
  }
  for j in 0..2 {
    block C (vj = spatial(2): j) {
      C[vj] = B[0]
    }
  }
}"""

REFUSALS = {
    "inline-reduction": (matmul, lambda s: s.compute_inline("C")),
    "inline-output": (outputs, lambda s: s.compute_inline("B")),
    "inline-last": (copy, lambda s: s.compute_inline("B")),
    "reverse-inline-into-reduction": (matmul, lambda s: s.reverse_compute_inline("D")),
    "reverse-inline-halo": (lambda: chain(halo=2), lambda s: s.reverse_compute_inline("C")),
    "reverse-inline-nothing": (copy, lambda s: s.reverse_compute_inline("B")),
    "compute-at-output": (lambda: outputs(step=2), lambda s: s.compute_at("B", "i_1")),
    "compute-at-elsewhere": (lambda: conv(4, 2), lambda s: s.compute_at("P", "o_1")),
    "compute-at-unread": (lambda: parse_func(_UNREAD), lambda s: s.compute_at("B", "j")),
    "reverse-inline-late-input": (lambda: _mixed(deferred=True), lambda s: s.reverse_compute_inline("D")),
    "set-scope-of-two": (_pair, lambda s: s.set_scope("P", "local")),
    "set-scope-of-another": (_pair, lambda s: s.set_scope("P", "local", "A")),
    "compute-at-own-loop": (chain, lambda s: s.compute_at("B", "i")),
    "compute-at-decomposed": (matmul, lambda s: [s.decompose_reduction("C", "k"), s.compute_at("C", "i_1")]),
    "reverse-compute-at-unfinished": (matmul, lambda s: s.reverse_compute_at("D", "k")),
    "reverse-compute-at-halo": (lambda: chain(halo=2), lambda s: s.reverse_compute_at("C", "i")),
    "reverse-compute-at-made-backwards": (lambda: parse_func(_BACKWARDS), lambda s: s.reverse_compute_at("C", "i")),
    "reverse-compute-at-parallel-reduction": (
        lambda: _columns(),
        lambda s: [s.parallel("i"), s.reverse_compute_at("C", "i")],
    ),
    "reverse-compute-at-itself": (chain, lambda s: s.reverse_compute_at("C", "i_1")),
    "reverse-compute-at-late-input": (lambda: softmax(random.Random(1)), lambda s: s.reverse_compute_at("O", "i_1")),
    "decompose-spatial": (chain, lambda s: s.decompose_reduction("B", "i")),
    "decompose-twice": (matmul, lambda s: [s.decompose_reduction("C", "k"), s.decompose_reduction("C", "k")]),
    "decompose-inside": (
        matmul,
        lambda s: [s.reorder("k", "i", "j"), s.decompose_reduction("C", "j")],
    ),
    "decompose-other-nest": (matmul, lambda s: s.decompose_reduction("C", "i_1")),
    "set-scope-parameter": (matmul, lambda s: s.set_scope("D", "local")),
    "set-scope-unknown": (matmul, lambda s: s.set_scope("C", "registers")),
    "cache-read-unread": (matmul, lambda s: s.cache_read("C", "D", "local")),
    "cache-read-late": (chain, lambda s: [s.reverse_compute_at("C", "i"), s.cache_read("C", "B", "local")]),
    "cache-write-decomposed": (matmul, lambda s: [s.decompose_reduction("C", "k"), s.cache_write("C", "local")]),
    "rfactor-spatial": (matmul, lambda s: s.rfactor("C", "j")),
    "rfactor-no-reducer": (lambda: parse_func(DECAYED), lambda s: s.rfactor("N", "r")),
    "rfactor-axis": (row_sum, lambda s: s.rfactor("S", "k", 5)),
    "layout-not-invertible": (chain, lambda s: s.transform_layout("B", lambda i: (i // 4,))),
    "layout-wrong-rank": (chain, lambda s: s.transform_layout("B", lambda i, j: (i, j))),
    "layout-gaps-in-parameter": (chain, lambda s: s.transform_layout("C", lambda i: (i // 8, i % 8))),
    "layout-foreign-variable": (chain, lambda s: s.transform_layout("B", lambda i: (i + te.var("q"),))),
    "layout-negative": (chain, lambda s: s.transform_layout("B", lambda i: (i - 1,))),
    "pad-wrong-count": (matmul, lambda s: s.pad("C", [4])),
    "pad-after-split": (matmul, lambda s: [s.split("i", factor=3), s.pad("C", [3, 1, 1])]),
    "pad-window": (lambda: conv(4, 2), lambda s: s.pad("T", [1, 3, 1, 1, 1, 1])),
    "pad-exp": (
        lambda: _sum_of_exp(),
        lambda s: s.pad("S", [1, 4]),
    ),
}


def _columns() -> PrimFunc:
    """B, then the sum of its columns."""
    a = te.placeholder((4, 6), name="A")
    b = te.compute((4, 6), lambda i, j: a[i, j] + 1.0, name="B")
    r = te.reduce_axis(4, "r")
    return te.create_prim_func([a, te.compute((6,), lambda j: te.sum(b[r, j], r), name="C")], "columns")


def _sum_of_exp() -> PrimFunc:
    a = te.placeholder((3, 5), name="A")
    r = te.reduce_axis(5, "r")
    return te.create_prim_func([a, te.compute((3,), lambda i: te.sum(te.exp(a[i, r]), r), name="S")], "sum_of_exp")


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(case, golden, monkeypatch):
    monkeypatch.setattr(scopes, "_DESCRIBED", {})  # memories that other tests of this process described are named too
    make, apply = REFUSALS[case]
    golden(refused(make(), apply))


def test_multi_output_stage_moves_and_inlines():
    a = te.placeholder((6,), name="A")
    p, q = te.compute((6,), lambda i: (a[i] + 1.0, a[i] * 2.0), name="P")
    c = te.compute((6,), lambda i: p[i] + q[i], name="C")
    func = te.create_prim_func([a, c], "pair")
    for apply in (lambda s: s.compute_inline("P"), lambda s: s.compute_at("P", s.split("i_1", factor=4)[0])):
        s = Schedule(func)
        apply(s)
        check_schedule(func, s)
