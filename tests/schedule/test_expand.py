"""expand: straight-line code for constant matrices; how many operations it takes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tests.schedule.checks import refused, scheduled
from tests.schedule.native import run_native
from tilewright import te
from tilewright.algorithms.winograd.operators.toomcook import winograd_matrices
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.expr import Op, as_int
from tilewright.ir.loops import For, PrimFunc, Stmt
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import exprs_of, walk_expr
from tilewright.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops

SMALL = [[1, 1, 0], [0, 1, -1], [0, 1, 2]]


def transform(matrix: Any, dtype: str = "f32", n: int = 5) -> PrimFunc:
    """y[t, i] = sum over r of matrix[i, r] x[t, r]."""
    table = te.const_matrix(matrix, dtype)
    rows, columns = table.shape
    x, r = te.placeholder((n, columns), dtype, "x"), te.reduce_axis(columns, "r")
    y = te.compute((n, rows), lambda t, i: te.sum(table[i, r] * x[t, r], axis=r), name="y")
    return te.create_prim_func([x, y], "transform")


def separable(matrix: Any, lanes: int = 8, tiles: int = 2) -> PrimFunc:
    """V = M d M^T for tiles of lanes."""
    table = te.const_matrix(matrix)
    m, n = table.shape
    d, i, j = te.placeholder((tiles, n, n, lanes), name="d"), te.reduce_axis(n, "i"), te.reduce_axis(n, "j")
    half = te.compute((tiles, m, n, lanes), lambda t, y, x, c: te.sum(table[y, i] * d[t, i, x, c], axis=i), name="half")
    v = te.compute((tiles, m, m, lanes), lambda t, y, x, c: te.sum(table[x, j] * half[t, y, j, c], axis=j), name="v")
    return te.create_prim_func([d, v], "separable")


def expanded(func: PrimFunc) -> Schedule:
    """One tile at a time, both passes written out, lanes vectorized."""
    s = Schedule(func)
    s.compute_at("half", s.loops("v")[0])
    s.set_scope("half", "local")
    for block in ("half", "v"):
        s.expand(block)
        s.vectorize(s.loops(block)[-1])
    return s


def count(stmt: Stmt, times: int = 1) -> int:
    """Operations on floats that a flat program does; a product in a sum is a multiply-add."""
    if isinstance(stmt, For) and stmt.kind != "vectorized":
        times *= as_int(stmt.extent) or 0
    total = 0
    for e in exprs_of(stmt):
        for node in walk_expr(e):
            if isinstance(node, Op) and node.name in ("add", "sub", "mul", "fma") and node.dtype.is_float:
                fused = sum(isinstance(a, Op) and a.name == "mul" for a in node.args[: 2 * (node.name != "mul")])
                total += 1 - min(fused, 1)
    return total * times + sum(count(child, times) for child in stmt.children)


def test_expand(golden):
    golden(scheduled(transform(SMALL), lambda s: s.expand("y")))


def test_expand_of_a_moved_block(golden):
    def apply(s: Schedule) -> None:
        s.compute_at("half", s.loops("v")[0])
        s.set_scope("half", "local")
        for block in ("half", "v"):
            s.expand(block)
            s.vectorize(s.loops(block)[-1])

    golden(scheduled(separable(winograd_matrices(2, 3)[2]), apply))


POINTS = {2: [None], 4: [None, (0, 1, -1, 2, -2)], 6: [None]}


@pytest.mark.parametrize(
    ("m", "points", "transforms", "tiles"),
    [
        (2, None, (4, 4), (32, 24)),
        (4, None, (12, 12), (144, 120)),
        (4, (0, 1, -1, 2, -2), (12, 10), (144, 100)),
        (6, None, (24, 20), (384, 280)),
    ],
)
def test_operations_of_fast_convolutions(
    m: int, points: Sequence[int] | None, transforms: tuple[int, int], tiles: tuple[int, int]
) -> None:
    """Operations of one transform and of a tile, inputs and outputs, counted in the lowered program."""
    at, _, bt = winograd_matrices(m, 3, points)
    for matrix, one, whole in zip((bt, at), transforms, tiles, strict=True):
        s = Schedule(transform(matrix, n=1))
        s.expand("y")
        assert count(lower_loops(s.func, Target.host()).body) == one
        assert count(lower_loops(expanded(separable(matrix, tiles=1)).func, Target.host()).body) == whole


@pytest.mark.parametrize("m", [2, 4, 6])
def test_native_transforms(m: int) -> None:
    at, _, bt = winograd_matrices(m, 3)
    for matrix in (at, bt):
        d = np.random.default_rng(m).standard_normal((2, len(matrix[0]), len(matrix[0]), 8)).astype(np.float32)
        v = np.zeros((2, len(matrix), len(matrix), 8), np.float32)
        run_native(expanded(separable(matrix)).func, {"d": d, "v": v})
        exact = np.array(matrix, np.float64)
        want = np.einsum("yi,tijc,xj->tyxc", exact, d, exact)
        size = np.einsum("yi,tijc,xj->tyxc", abs(exact), abs(d), abs(exact))
        assert np.all(abs(v - want) <= 4e-7 * size)


@pytest.mark.parametrize(("target", "lanes"), [("x86-64-v3", 8), ("znver4", 16)])
def test_registers_suffice(target: str, lanes: int) -> None:
    """F(4)'s transforms touch the stack for the pass in between alone, and multiply and add in one instruction."""
    at, _, bt = winograd_matrices(4, 3)
    machine = Target.parse(target)
    for matrix in (bt, at):
        func = lower_loops(expanded(separable(matrix, lanes, tiles=64)).func, machine)
        text = assembly(emit_llvm(func, machine), machine)
        stack = [line for line in text.splitlines() if "rsp" in line and "mm" in line]
        assert len(stack) <= len(matrix) + len(matrix[0])
        assert "vfmadd" in text and "callq\tfma" not in text


def test_a_machine_without_multiply_add() -> None:
    """Nothing is called for a product and a sum."""
    machine = Target.parse("x86-64-v2")
    func = lower_loops(expanded(separable(winograd_matrices(4, 3)[2], 4)).func, machine)
    text = emit_llvm(func, machine)
    assert "llvm.fma" not in text and "fma" not in assembly(text, machine)
    arrays = [np.ones((2, 6, 6, 4), np.float32), np.zeros((2, 6, 6, 4), np.float32)]
    run(func, *arrays, target=machine)
    exact = np.array(winograd_matrices(4, 3)[2], np.float64).sum(1)
    np.testing.assert_allclose(arrays[1][0, :, :, 0], np.outer(exact, exact), atol=1e-5)


def test_any_matrix() -> None:
    """Random matrices of small integers and of fractions that are not exact, in several types."""
    rng = np.random.default_rng(0)
    for k, dtype in enumerate(("f32", "f64", "i32", "f32", "f64")):
        matrix = rng.integers(-2, 3, (3 + k, 4)).astype(object)
        if k > 2:
            matrix = np.vectorize(lambda x: Fraction(int(x), 3), otypes=[object])(matrix)
        scheduled(transform(matrix, dtype), lambda s: s.expand("y"))
    scheduled(transform([[0, 0], [1, 0]]), lambda s: s.expand("y"))


def test_expand_through_a_condition(golden):
    """Elements past the ends are zero."""
    table, x, r = te.const_matrix(SMALL), te.placeholder((7,), name="x"), te.reduce_axis(3, "r")
    y = te.compute(
        (4, 3),
        lambda t, i: te.sum(
            table[i, r] * te.if_then_else(te.all_of([t * 2 + r > 0, t * 2 + r < 8]), x[t * 2 + r - 1], 0.0), axis=r
        ),
        name="y",
    )
    golden(scheduled(te.create_prim_func([x, y], "padded"), lambda s: s.expand("y")))


def test_expand_where_no_loop_goes():
    """Iterators of one step, whose loops were simplified away."""
    func = parse_func(
        """func @transform(x: f32[5, 1], y: f32[5, 1]) {
  for t in 0..5 {
    block y (vt = spatial(5): t, vi = spatial(1): 0, vr = reduce(1): 0) {
      init { y[vt, vi] = 0.0 }
      y[vt, vi] = y[vt, vi] + lookup(vi + vr, 2.0) * x[vt, vr]
    }
  }
}"""
    )
    s = Schedule(func)
    s.expand("y")
    assert "y[vt, 0] = x0 * 2.0" in str(s.func)


def test_expand_refuses():
    def split(s: Schedule) -> None:
        s.split("i", factor=2)
        s.expand("y")

    def decomposed(s: Schedule) -> None:
        s.decompose_reduction("y", "r")
        s.expand("y")

    assert "no whole serial loop of its own drives 'vi'" in refused(transform(SMALL), split)
    assert "it does not start from 0 itself" in refused(transform(SMALL), decomposed)
    x, r = te.placeholder((5, 3), name="x"), te.reduce_axis(3, "r")
    table = te.const_matrix(SMALL)
    ordinary = te.compute((5,), lambda t: te.sum(x[t, r], axis=r), name="y")
    assert "it has no constant matrix" in refused(te.create_prim_func([x, ordinary]), lambda s: s.expand("y"))
    most = te.compute((5, 3), lambda t, i: te.max(table[i, r] * x[t, r], axis=r), name="y")
    assert "it is not a sum" in refused(te.create_prim_func([x, most]), lambda s: s.expand("y"))
    assert "its terms are not constants times" in refused(transform([[float("inf"), 1]]), lambda s: s.expand("y"))
    shared = parse_func(str(transform(SMALL, n=3)).replace("spatial(3): t", "spatial(3): i"))
    assert "more than 'vi' depends on loop 'i'" in refused(shared, lambda s: s.expand("y"))
    assert "6400 terms are too many" in refused(transform(np.ones((80, 80))), lambda s: s.expand("y"))
