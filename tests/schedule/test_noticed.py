"""Mistakes that sampled mutants showed no test would notice: matching, moves, padding and parallel loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.schedule.checks import check_schedule, matmul
from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.schedule import Schedule
from tilewright.schedule.state import block_path, own_loops
from tilewright.support.errors import ScheduleError


def product(swapped: bool = False, added: bool = False) -> PrimFunc:
    """8 x 8 x 8, the factors in either order, or added instead of multiplied."""
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis(8, "k")

    def element(i, j):
        left, right = a[i, k.var], b[k.var, j]
        left, right = (right, left) if swapped else (left, right)
        return te.sum(left + right if added else left * right, k)

    return te.create_prim_func([a, b, te.compute((8, 8), element, name="C")], "product")


def tiled(func: PrimFunc) -> tuple[Schedule, str]:
    """The function in tiles of four, and the loop that an instruction could take the place of."""
    s = Schedule(func)
    (i_0, i_1), (j_0, j_1), (k_0, k_1) = (s.split(x, factor=4) for x in s.loops("C"))
    s.reorder(i_0, j_0, k_0, i_1, j_1, k_1)
    s.decompose_reduction("C", k_0)
    return s, i_1


def test_factors_may_stand_in_either_order() -> None:
    for swapped in (False, True):
        func = product(swapped)
        s, loop = tiled(func)
        s.tensorize(loop, "dot_4x4x4_f32")
        check_schedule(func, s)


def test_another_operation_is_no_product() -> None:
    s, loop = tiled(product(added=True))
    with pytest.raises(ScheduleError):
        s.tensorize(loop, "dot_4x4x4_f32")


def test_intrinsics_stay_where_they_are() -> None:
    """Neither what they read can be copied nor they be moved."""
    s = Schedule(matmul(8, 8, 8))
    s.tile("i", "j", 4, 4)
    s.split("k", factor=4)
    s.reorder("i_0", "j_0", "k_0", "j_1_1", "k_1", "i_1_1")
    s.decompose_reduction("C", "k_0")
    s.tensorize(s.block("C"), "dot_4x4x4_f32")
    with pytest.raises(ScheduleError, match="an intrinsic reads it"):
        s.cache_read("C", "A", "local")


def test_constants_in_what_is_padded() -> None:
    """A factor is no obstacle: what is added to the sum is zero with it too."""
    a, k = te.placeholder((30, 5), name="A"), te.reduce_axis(5, "k")
    c = te.compute((30,), lambda i: te.sum(a[i, k.var] * 2.0, k), name="C")
    func = te.create_prim_func([a, c], "sums")
    s = Schedule(func)
    s.pad("C", (16, 4))
    check_schedule(func, s)
    plus = te.compute((30,), lambda i: te.sum(a[i, k.var] + 2.0, k), name="C")
    with pytest.raises(ScheduleError, match="padding would change"):
        Schedule(te.create_prim_func([a, plus], "sums")).pad("C", (16, 4))


SHIFTED = """
func @shifted(x: f32[9]) {
  for i in 0..8 {
    block step(vi = spatial(8): i) {
      x[vi + 1] = x[vi] + 1.0
    }
  }
}
"""


def test_what_reads_its_neighbour_runs_in_order() -> None:
    for apply in (Schedule.parallel, Schedule.vectorize):
        with pytest.raises(ScheduleError, match="reads other elements"):
            apply(Schedule(parse_func(SHIFTED)), "i")


BESIDE = """
func @beside(x: f32[4, 4], y: f32[4, 4]) {
  for i in 0..4 {
    for j in 0..4 {
      block one(vi = spatial(4): i, vj = spatial(4): j) {
        y[vi, vj] = x[vi, vj]
      }
    }
    for k in 0..4 {
      for l in 0..1 {
        block two(vi_1 = spatial(4): i, vk = spatial(4): k, vl = spatial(1): l) {
          y[vi_1, vk] = y[vi_1, vk] * 2.0
        }
      }
    }
  }
}
"""


def test_own_loops_end_where_another_block_stands_beside() -> None:
    func = parse_func(BESIDE)
    result = {name: [x.var.name for x in own_loops(block_path(func, name))] for name in ("one", "two")}
    assert result == {"one": ["j"], "two": ["k", "l"]}


def test_a_step_on_a_schedule_without_axes() -> None:
    """A primitive made of primitives takes a schedule without axes as well, and puts it back when it is refused."""

    @te.primitive
    def half_parts(s: Schedule, loop: str) -> None:
        s.split(loop, factor=4)
        s.split("nowhere", factor=2)

    s = Schedule(product())
    before = str(s.func)
    with pytest.raises(ScheduleError, match="half_parts"):
        half_parts(s, "i")
    assert str(s.func) == before


@pytest.mark.parametrize("size, index", [(10, lambda i: i), (8, lambda i: i + 3), (10, lambda i: i * 2)])
def test_what_no_one_reads_is_not_stored(size: int, index: Callable[[te.IterVar], Any]) -> None:
    """A consumer that reads some elements of its producer, computed where that makes all of them."""
    a = te.placeholder((20,), name="A")
    b = te.compute((20,), lambda i: a[i] + 1.0, name="B")
    func = te.create_prim_func([a, te.compute((size,), lambda i: b[index(i)] * 2.0, name="C")], "part")
    s = Schedule(func)
    s.reverse_compute_inline("C")
    assert [x.name for x in s.blocks()] == ["B"] and "if " in str(s.func)
    check_schedule(func, s)


def test_what_is_tried_and_lost() -> None:
    """The schedule stays as it was, and tells why; so does its copy, which goes on by itself."""
    func = matmul()
    s = Schedule(func)
    with s.trying("threads over k"):
        s.parallel("k")
    with s.trying("threads over rows"):
        s.parallel("i")
    (said,) = s.refused
    assert said.startswith("threads over k: ") and "'k'" in said and "\n" not in said
    assert str(s) == str(s.func) and str(s.trace).count("parallel") == 1
    other = s.copy()
    with other.trying("again"):
        other.parallel("i")
    assert other.refused[0] == said and len(other.refused) == 2 and s.refused == (said,)
    with pytest.raises(ValueError, match="not ours"), s.trying("anything"):
        raise ValueError("not ours")
