"""Places of maxima and the gradient of max pooling as programs compute them, against NumPy: windows that overlap, skip,
overhang and tie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import reference, type_of
from tilewright import ops
from tilewright.ir.dtype import f32, i8
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.pool import PoolAttrs, infer_shape
from tilewright.ops.pool_gradient import NONE
from tilewright.support.errors import ShapeError

RNG = np.random.default_rng(0)
PLACES, SPREAD = "max_pool_places", "max_pool_spread"


def window(*kernel: int, strides: Any = 1, dilations: Any = 1, pads: Any = 0, ceil: bool = False) -> dict[str, Any]:
    rank = len(kernel)

    def each(value: Any, count: int) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else (value,) * count

    sizes = {"strides": each(strides, rank), "dilations": each(dilations, rank), "pads": each(pads, 2 * rank)}
    return {"kernel": kernel, **sizes, "ceil_mode": ceil}


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "a line": ((2, 3, 37), window(3, strides=2, pads=1)),
    "whole vectors to the end of the padding": ((1, 2, 5, 32), window(3, 3, pads=1)),
    "wide windows": ((1, 2, 9, 41), window(5, 7, pads=(2, 3, 2, 3))),
    "strides": ((2, 3, 17, 66), window(3, 3, strides=2, pads=1)),
    "gaps between windows": ((1, 2, 11, 50), window(2, 2, strides=3)),
    "dilations": ((1, 2, 12, 40), window(2, 3, dilations=(3, 2), pads=(1, 1, 2, 1))),
    "a last window that overhangs": ((1, 2, 10, 39), window(3, 3, strides=2, ceil=True)),
    "blocks of channels": ((2, 3, 9, 8, 16), window(3, 3, 1, strides=(2, 2, 1), pads=(1, 1, 0, 1, 1, 0))),
    "blocks of eight": ((2, 3, 5, 6, 8), window(2, 2, 1, strides=(2, 2, 1))),
    "volumes": ((1, 2, 5, 6, 19), window(2, 3, 3, pads=1)),
}


def gradient(builder: GraphBuilder, x: Value, g: Value, attrs: dict[str, Any]) -> tuple[Value, ...]:
    """The maxima of `x`, where they are, and what flows back from `g`."""
    result = ops.emit(builder, PLACES, x, **attrs)
    return *result, ops.emit1(builder, SPREAD, result[1], g, **attrs, extents=x.shape[2:])


def native(x: np.ndarray, g: np.ndarray, attrs: dict[str, Any]) -> list[np.ndarray]:
    builder = GraphBuilder("one")
    values = [builder.input(name, type_of(a)) for name, a in (("x", x), ("g", g))]
    return list(map(np.asarray, tw.compile((builder.finish(gradient(builder, *values, attrs)), {}))(x, g)))


def expected(x: np.ndarray, g: np.ndarray, attrs: dict[str, Any]) -> list[np.ndarray]:
    maxima, places = reference(PLACES, [x], attrs)
    np.testing.assert_array_equal(maxima, reference("max_pool", [x], attrs)[0])
    return [maxima, places, *reference(SPREAD, [places, g], {**attrs, "extents": x.shape[2:]})]


def check(x: np.ndarray, g: np.ndarray, attrs: dict[str, Any]) -> None:
    for candidate, wanted in zip(native(x, g, attrs), expected(x, g, attrs), strict=True):
        np.testing.assert_array_equal(candidate, wanted)


def operands(shape: tuple[int, ...], attrs: dict[str, Any], dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """With many equal elements; what flows back are small whole numbers, so that sums are the same in any order."""
    x = RNG.integers(-3, 3, shape).astype(dtype)
    created = infer_shape([type_of(x)], PoolAttrs(**attrs)).shape
    return x, RNG.integers(-8, 8, [int(str(d)) for d in created]).astype(dtype)


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_native(case: tuple[tuple[int, ...], dict[str, Any]], dtype: Any) -> None:
    shape, attrs = case
    x, g = operands(shape, attrs, dtype)
    check(x, g, attrs)


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_extremes(value: float) -> None:
    """The last NaN is greatest; windows of minus infinity alone have their first element."""
    attrs = window(3, 3, strides=2, pads=1)
    x, g = operands((1, 2, 9, 36), attrs)
    x[RNG.random(x.shape) < 0.5] = value
    x[0, 1] = value
    check(x, g, attrs)


def test_open_sizes() -> None:
    n, w = Var("n", lo=1), Var("w", lo=3)
    attrs = window(3, 3, strides=(1, 1), pads=1)
    builder = GraphBuilder("one")
    types = [TensorType(f32, (n, as_expr(3), as_expr(7), w))] * 2
    values = [builder.input(name, t) for name, t in zip("xg", types, strict=True)]
    model = tw.compile((builder.finish(gradient(builder, *values, attrs)[2:]), {}))
    for shape in ((1, 3, 7, 3), (3, 3, 7, 45)):
        x, g = operands(shape, attrs)
        np.testing.assert_array_equal(model(x, g), expected(x, g, attrs)[2])


def test_it_keeps_blocks_of_channels() -> None:
    """Between convolutions it is computed in blocks, as pooling is."""
    builder = GraphBuilder("net")
    x = builder.input("x", TensorType(f32, tuple(map(as_expr, (1, 32, 12, 12)))))
    w = [builder.param(f"w{k}", TensorType(f32, tuple(map(as_expr, (32, 32, 3, 3))))) for k in range(2)]
    conv = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    pool = window(3, 3, strides=2, pads=1)
    y = ops.emit1(builder, "conv", x, w[0], **conv)
    flow = ops.emit1(builder, "conv", ops.emit1(builder, "max_pool", y, **pool), w[1], **conv)
    graph = builder.finish(gradient(builder, y, flow, pool)[2:])
    weights = {v.name: RNG.standard_normal((32, 32, 3, 3)).astype(np.float32) for v in w}
    text = tw.compile((graph, weights), fast="exact").show("graph")
    for op in (PLACES, SPREAD):
        (line,) = [line for line in text.splitlines() if f"= {op}(" in line]
        assert "kernel = [3, 3, 1]" in line, line


def test_places_are_numbers_of_taps() -> None:
    """Places are the numbers of the first maxima, in a byte; -1 where a window has padding alone."""
    x = np.array([[[1, 3, 3, np.nan, 0]]], np.float32)
    places = reference(PLACES, [x], window(2, pads=2))[1]
    assert places.dtype == np.int8
    np.testing.assert_array_equal(places[0, 0], [NONE, 1, 1, 0, 1, 0, 0, NONE])
    both = np.array([[[np.nan, 3, np.nan, np.nan]]], np.float32)
    np.testing.assert_array_equal(reference(PLACES, [both], window(4))[1], [[[3]]])


def test_several_taps_have_wide_numbers() -> None:
    """More taps than a byte can number."""
    x, g = operands((1, 1, 19, 40), attrs := window(12, 13, pads=1))
    x[0, 0, 11:, 12:] = 9
    assert expected(x, g, attrs)[1].dtype == np.int32
    check(x, g, attrs)


def test_places_of_another_pooling() -> None:
    builder = GraphBuilder("one")
    places = builder.input("p", TensorType(i8, tuple(map(as_expr, (1, 1, 4)))))
    g = builder.input("g", TensorType(f32, tuple(map(as_expr, (1, 1, 5)))))
    with pytest.raises(ShapeError, match="places are of another pooling"):
        ops.emit1(builder, SPREAD, places, g, **window(2), extents=(6,))


def test_the_way_back_does_not_read_the_map() -> None:
    """The forward pass says where maxima are; who follows it back twice has them once."""
    builder = GraphBuilder("net")
    x = builder.input("x", TensorType(f32, tuple(map(as_expr, (1, 2, 6, 6)))))
    y = ops.emit1(builder, "max_pool", ops.emit1(builder, "exp", x), **window(2, 2, strides=2))
    seeds = [ops.emit1(builder, op, y) for op in ("sin", "cos")]
    nodes = list(builder.nodes)
    for seed in seeds:
        backward(builder, nodes, {y: seed}, [x])
    read = {v.name: [n.op for n in builder.nodes if v in n.inputs] for n in builder.nodes for v in n.outputs}
    assert read[y.name + ".places"] == ["max_pool_spread"] * 2
    assert read["exp"] == [PLACES]
    assert [n.op for n in builder.nodes[:2]] == ["exp", PLACES]
