"""Sorting and the first k, all ways: against NumPy's stable order, with ties, NaN, both zeros, infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import dtype, i64
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import GraphBuilder, TensorType

Array = np.ndarray[Any, Any]


def numbers(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random elements of a type with many equal ones, its ends, and for floats what is not a number."""
    rng, t = np.random.default_rng(seed), dtype(kind)
    if t.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if t.is_int:
        ends = np.iinfo(t.numpy)
        wide = rng.integers(ends.min, ends.max, shape, dtype=t.numpy, endpoint=True)
        return np.where(rng.random(shape) < 0.5, wide, rng.integers(0, 5, shape).astype(t.numpy))
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    x = np.where(rng.random(shape) < 0.3, np.round(x), x)
    special = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40], shape)
    return np.where(rng.random(shape) < 0.2, special, x).astype(t.numpy)


def sorted_by(x: Array, axis: int, k: int, largest: bool) -> tuple[Array, Array]:
    """An independent oracle: Python's stable sort by (is it NaN, value)."""
    moved = np.moveaxis(x, axis, -1)
    flat = moved.reshape(int(np.prod(moved.shape[:-1])), moved.shape[-1])
    order = np.zeros((len(flat), k), np.int64)
    for r, row in enumerate(flat):
        keys = [(v != v, 0 if v != v else v) for v in row.tolist()]
        # Stable in both directions: `reverse` keeps equal ones in order.
        order[r] = sorted(range(len(keys)), key=keys.__getitem__, reverse=largest)[:k]
    index = np.moveaxis(order.reshape(*moved.shape[:-1], k), -1, axis)
    return np.take_along_axis(x, index, axis), index


def check(x: Array, axis: int, k: int, largest: bool, *, symbolic: bool = False) -> None:
    b = GraphBuilder("topk")
    shape = tuple(as_expr(n) for n in x.shape)
    if symbolic:
        shape = (*shape[:axis], Var("n", i64, lo=1), *shape[axis + 1 :])
    supplied = b.input("x", TensorType(dtype(x.dtype), shape))
    graph = b.finish(ops.emit(b, "topk", supplied, axis=axis, k=shape[axis] if symbolic else k, largest=largest))
    values, indices = tw.compile((graph, {}))(x)
    want, index = sorted_by(x, axis, k, largest)
    np.testing.assert_array_equal(indices, index)
    # Bits, for a zero's sign and a NaN's payload are the element's own.
    np.testing.assert_array_equal(np.asarray(values).view(np.uint8), np.ascontiguousarray(want).view(np.uint8))


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "i8", "u8", "i16", "i32", "i64", "u64", "bool"])
@pytest.mark.parametrize("largest", [False, True])
def test_all_types_by_ranks_by_digits_and_by_a_bound(kind: str, largest: bool) -> None:
    for n, k in ((37, 37), (300, 300), (300, 40), (1200, 300)):
        check(numbers(kind, (3, n), n), 1, k, largest)


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [
        ((5,), 0, 5),
        ((2, 1, 3), 1, 1),
        ((4, 0), 1, 0),
        ((0, 4), 1, 2),
        ((2, 160), 1, 160),
        ((2, 161), 1, 161),
        ((129, 3), 0, 128),
        ((2, 700), 1, 0),
        ((2, 700), 1, 7),
        ((2, 700), 1, 8),
        ((2, 700), 1, 64),
        ((700, 3), 0, 40),
        ((2, 700), 1, 256),
        ((2, 700), 1, 257),
        ((1, 12288), 1, 32),
        ((700, 3), 0, 699),
        ((1, 5000), 1, 300),
    ],
)
def test_shapes_at_the_borders_between_the_ways(shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    check(numbers("f32", shape, k), axis, k, largest)


def test_rows_of_equal_ones_and_of_sorted_ones() -> None:
    """Beside them rows of which no middle of two values parts the elements: a greatest one, infinity, tiny ones."""
    outer, tiny = np.r_[np.arange(399.0), 1e38], np.arange(400.0) * 1e-44
    ends = np.r_[np.full(200, np.inf), np.full(100, -np.inf), np.full(100, 2.0)]
    rows = (np.zeros(400), np.full(400, np.nan), np.arange(400.0), -np.arange(400.0), np.arange(400.0) % 2)
    for row in (*rows, outer, -outer, tiny, ends, -ends):
        for k in (400, 200, 40):
            check(row.astype(np.float32)[None], 1, k, largest=k != 400)


def test_an_axis_of_unknown_length() -> None:
    for n in (1, 2, 257, 1000):
        check(numbers("f32", (3, n), n), 1, n, largest=False, symbolic=True)
