"""Slices and concatenations become one kernel where only a concatenation reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler import graph_passes
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import DEFAULTS

F = np.float32


def cut(b: GraphBuilder, x: Value, axis: int, begin: Any, size: Any) -> Value:
    begins, sizes = [as_expr(0)] * x.type.rank, list(x.shape)
    begins[axis], sizes[axis] = as_expr(begin), as_expr(size)
    return ops.emit1(b, "slice", x, begin=tuple(begins), size=tuple(sizes), step=(1,) * x.type.rank)


def rolled(shape: tuple[Any, ...], shifts: dict[int, int], kind: str = "f32") -> Graph:
    b = GraphBuilder("roll")
    y = b.input("x", TensorType(dtype(kind), tuple(as_expr(d) for d in shape)))
    for axis, shift in shifts.items():
        first = cut(b, y, axis, y.shape[axis] - shift, shift)
        y = ops.emit1(b, "concat", first, cut(b, y, axis, 0, y.shape[axis] - shift), axis=axis)
    return b.finish((y,))


def kernels(graph: Graph) -> list[str]:
    for _, run in graph_passes(Target.parse("znver4"), DEFAULTS):
        graph = run(graph)
    return [g.label for g in fuse(graph)]


@pytest.mark.parametrize("kind", ["f32", "i64", "u8"])
@pytest.mark.parametrize(
    ("shape", "shifts"),
    [((5, 67), {1: 1}), ((3, 7, 9, 20), {1: 3, 2: 4}), ((4, 6, 5), {0: 1, 1: 2, 2: 3}), ((130,), {0: 129})],
)
def test_rolls_equal_numpy(shape: tuple[int, ...], shifts: dict[int, int], kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype(kind).numpy)
    want = np.roll(x, tuple(shifts.values()), tuple(shifts))
    np.testing.assert_array_equal(tw.compile((rolled(shape, shifts, kind), {}))(x), want)


def test_a_roll_of_unknown_rows() -> None:
    graph = rolled((Var("n", lo=1), 8, 9), {1: 3, 2: 2})
    for n in (1, 4):
        x = np.random.default_rng(n).standard_normal((n, 8, 9)).astype(F)
        np.testing.assert_array_equal(tw.compile((graph, {}))(x), np.roll(x, (3, 2), (1, 2)))


def test_a_roll_is_one_kernel() -> None:
    assert kernels(rolled((5, 67), {1: 1})) == ["slice + slice + concat"]
    labels = kernels(rolled((2, 7, 9, 20), {1: 3, 2: 4}))
    assert labels == ["slice + slice + concat + slice + slice + concat"]


def test_what_others_read_has_a_kernel_of_its_own() -> None:
    b = GraphBuilder("shared")
    x = b.input("x", TensorType(dtype("f32"), (as_expr(6), as_expr(40))))
    left, right = cut(b, x, 1, 7, 20), cut(b, x, 1, 1, 9)
    graph = b.finish((ops.emit1(b, "concat", left, right, axis=1), left))
    assert sorted(kernels(graph)) == ["slice", "slice + concat"]
    values = np.arange(240, dtype=F).reshape(6, 40)
    both, first = tw.compile((graph, {}))(values)
    np.testing.assert_array_equal(both, np.concatenate([values[:, 7:27], values[:, 1:10]], 1))
    np.testing.assert_array_equal(first, values[:, 7:27])


def test_chains_of_concatenations_are_one_kernel_up_to_a_bound() -> None:
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(dtype("f32"), (as_expr(6), as_expr(5))))
    y = x
    for _ in range(12):
        y = ops.emit1(b, "concat", y, x, axis=1)
    graph = b.finish((y,))
    assert len(kernels(graph)) == 2
    values = np.arange(30, dtype=F).reshape(6, 5)
    np.testing.assert_array_equal(tw.compile((graph, {}))(values), np.tile(values, (1, 13)))
