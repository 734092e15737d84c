"""Windows dimension by dimension: maxima bit for bit those over the whole window, means to a rounding."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import DType, f16, f32, i8
from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.passes.pooling import separate_pooling

TARGET = Target.parse("znver4")

CASES = {
    "image": ((2, 3, 17, 23), {"kernel": (5, 5), "strides": (1, 1), "pads": (2, 2, 2, 2)}),
    "strides and uneven padding": ((1, 2, 20, 31), {"kernel": (7, 9), "strides": (2, 3), "pads": (3, 0, 1, 4)}),
    "dilation": ((1, 1, 30, 30), {"kernel": (6, 5), "strides": (1, 2), "dilations": (2, 3), "pads": (1, 2, 3, 0)}),
    "partial windows": ((1, 2, 19, 22), {"kernel": (6, 5), "strides": (3, 2), "ceil_mode": True}),
    "volume": ((2, 2, 9, 10, 11), {"kernel": (3, 3, 3), "strides": (2, 2, 2), "pads": (1,) * 6}),
    "volume, one dimension strided": ((1, 3, 8, 9, 16), {"kernel": (1, 4, 5), "strides": (2, 1, 4)}),
    "window of the whole": ((1, 4, 13, 13), {"kernel": (13, 13), "strides": (1, 1)}),
}


def graph_of(shape: tuple[int | Expr, ...], supplied: dict[str, object], dtype: DType, op: str = "max_pool") -> Graph:
    rank = len(shape) - 2
    attrs = {"dilations": (1,) * rank, "pads": (0,) * 2 * rank, "ceil_mode": False} | supplied
    b = GraphBuilder("g")
    x = b.input("x", TensorType(dtype, tuple(as_expr(n) for n in shape)))
    return b.finish((ops.emit1(b, op, x, **attrs),))  # type: ignore[arg-type]


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", [f32, f16, i8], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_same_maxima(case: str, dtype: DType) -> None:
    shape, inputs = CASES[case]
    graph = graph_of(shape, inputs, dtype)
    separate = separate_pooling(graph, TARGET)
    assert len(separate.nodes) > 1 and separate.outputs[0].type == graph.outputs[0].type
    x = (np.random.default_rng(1).standard_normal(shape) * 40).astype(dtype.numpy)
    if dtype.is_float:
        x.flat[5], x.flat[-3], x.flat[40], x.flat[41] = np.nan, np.inf, -np.inf, -0.0
    (want,) = run_graph(graph, {"x": x}, {}).values()
    (got,) = run_graph(separate, {"x": x}, {}).values()
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(tw.compile((graph, {}))(x), want)


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((1, 64, 56, 56), {"kernel": (2, 2), "strides": (2, 2)}),
        ((1, 4, 56, 56, 16), {"kernel": (3, 3, 1), "strides": (2, 2, 1), "pads": (1, 1, 0, 1, 1, 0)}),
        ((1, 8, 12, 12), {"kernel": (1, 9), "strides": (1, 1)}),
        ((1, 8, 12, 12, 12), {"kernel": (2, 2, 2), "strides": (2, 2, 2)}),
        ((1, 8, 100), {"kernel": (30,), "strides": (2,)}),
    ],
)
def test_small_windows_stay(shape: tuple[int, ...], arguments: dict[str, object]) -> None:
    graph = graph_of(shape, arguments, f32)
    assert separate_pooling(graph, TARGET) is graph


@pytest.mark.costly(2)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_same_means(case: str, include: bool) -> None:
    """Each dimension divides by its own count of elements, whether padding counts or not."""
    shape, inputs = CASES[case]
    graph = graph_of(shape, inputs | {"count_include_pad": include}, f32, "avg_pool")
    separate = separate_pooling(graph, TARGET)
    assert len(separate.nodes) > 1 and separate.outputs[0].type == graph.outputs[0].type
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    (want,) = run_graph(graph, {"x": x}, {}).values()
    (got,) = run_graph(separate, {"x": x}, {}).values()
    np.testing.assert_allclose(got, want, atol=2e-6, rtol=0)
    np.testing.assert_allclose(tw.compile((graph, {}))(x), want, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("op", "count"), [("max_pool", 2), ("avg_pool", 1)])
def test_nine_maxima_cost_more_than_nine_sums(op: str, count: int) -> None:
    attrs = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    graph = graph_of((1, 64, 56, 56), attrs | ({"count_include_pad": False} if op == "avg_pool" else {}), f32, op)
    assert len(separate_pooling(graph, Target.parse("x86-64-v3")).nodes) == count


@pytest.mark.parametrize(("low", "high"), [(32, 33), (1, 96), (1, None)])
def test_maps_of_any_size_go_as_those_of_known_sizes(low: int, high: int | None) -> None:
    """Lines of the map and those of the result are of one size only where it is not known."""
    sides = Var("a", lo=low, hi=high), Var("b", lo=low, hi=high)
    settings = {"kernel": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    mean = graph_of((1, 32, *sides), settings | {"count_include_pad": False}, f32, "avg_pool")
    assert separate_pooling(mean, TARGET) is mean
    wide = graph_of((1, 32, *sides), {"kernel": (9, 9), "strides": (1, 1), "pads": (4,) * 4}, f32)
    assert len(separate_pooling(wide, TARGET).nodes) == 2


def test_means_of_short_floats_stay() -> None:
    """The values between the dimensions would be rounded."""
    graph = graph_of((1, 3, 40, 40), {"kernel": (7, 7), "strides": (7, 7)}, f16, "avg_pool")
    assert separate_pooling(graph, TARGET) is graph


def test_windows_distant_separate_go_by_dimension_in_ordinary_maps_alone() -> None:
    """No vector follows windows three elements apart; blocks of channels are a line that vectors follow."""
    ordinary = graph_of((1, 32, 57, 57), {"kernel": (3, 3), "strides": (3, 3)}, f32)
    assert len(separate_pooling(ordinary, TARGET).nodes) == 2
    blocked = graph_of((1, 2, 57, 57, 16), {"kernel": (3, 3, 1), "strides": (3, 3, 1)}, f32)
    assert separate_pooling(blocked, TARGET) is blocked
