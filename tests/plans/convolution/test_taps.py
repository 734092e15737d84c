"""Convolutions of few filters by their taps: the same results in every way, and the right way of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import BATCH
from tilewright import ops
from tilewright.ir.dtype import DType, f32, f64
from tilewright.ir.expr import Var, as_expr, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.rewrite import substitute
from tilewright.ops.interpret import run_graph
from tilewright.plans.framework.decisions import deciding

ONES = (1, 1)
SIDE = Var("side", lo=1, hi=40)

CASES: dict[str, tuple[Any, ...]] = {
    "dilated": (2, 16, (19, 19), (7, 7), (9, 9, 9, 9), ONES, (3, 3), 1),
    "uneven pads": (3, 5, (6, 11), (3, 5), (2, 0, 1, 4), ONES, ONES, 2),
    "strides": (1, 16, (9, 12), (5, 3), (2, 1, 2, 1), (2, 3), ONES, 1),
    "strides, dilated": (4, 32, (13, 10), (3, 3), (2, 3, 2, 3), (2, 1), (2, 3), 1),
    "map smaller than the window": (2, 8, (2, 3), (5, 5), (4, 4, 4, 4), ONES, ONES, 1),
    "one line": (3, 16, (1, 40), (1, 9), (0, 4, 0, 4), ONES, ONES, 1),
    "long lines": (1, 3, (4, 300), (3, 3), (1, 1, 1, 1), ONES, ONES, 1),
    "any batch": (2, 16, (8, 8), (3, 3), (1, 1, 1, 1), ONES, ONES, BATCH),
    "any size": (2, 16, (SIDE, 11), (5, 5), (2, 2, 2, 2), ONES, ONES, 1),
}


def graph_of(name: str, dtype: DType = f32, supplied: bool = False) -> Graph:
    """A convolution with bias and activation; `supplied`: its filters come with each call."""
    filters, channels, size, window, pads, strides, dilations, batch = CASES[name]

    def tensor(*shape: Any) -> TensorType:
        return TensorType(dtype, tuple(as_expr(d) for d in shape))

    b = GraphBuilder("case")
    x = b.input("x", tensor(batch, channels, *size))
    w = (b.input if supplied else b.param)("w", tensor(filters, channels, *window))
    y = ops.emit1(b, "conv", x, w, pads=pads, strides=strides, dilations=dilations, groups=1)
    y = ops.emit1(b, "add", y, b.param("bias", tensor(filters, 1, 1)))
    return b.finish((ops.emit1(b, "relu", y),))


def numbers(graph: Graph, symbol: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random inputs and weights."""
    rng = np.random.default_rng(0)

    def make(value: Value) -> Any:
        known = {BATCH: const(symbol), SIDE: const(symbol)}
        return rng.standard_normal([as_int(substitute(d, known)) or 0 for d in value.shape]).astype(np.float32)

    return {v.name: make(v) for v in graph.inputs}, {v.name: make(v) for v in graph.params}


@pytest.mark.daily(3)
@pytest.mark.costly(3)
@pytest.mark.parametrize("name", CASES)
def test_all_ways_give_the_same(name: str) -> None:
    graph = graph_of(name)
    with deciding() as record:
        tw.compile((graph, numbers(graph, 1)[1]))
    (decision,) = [d for d in record.decisions if d.key.name.startswith("algorithm")]
    ways = [s.label for s in decision.space if s.kind == "taps"]
    assert len(ways) == (2 if name == "one line" else 3)
    for batch in (1, 5) if {BATCH, SIDE} & set(graph.symbols) else (1,):
        inputs, params = numbers(graph, batch)
        wide = [{k: a.astype(np.float64) for k, a in arrays.items()} for arrays in (inputs, params)]
        (expected,) = run_graph(graph_of(name, f64), *wide).values()
        for way in ways:
            with deciding({decision.key.name: way}):
                (got,) = tw.compile((graph, params)).run(inputs).values()
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["dilated", "map smaller than the window"])
def test_filters_may_come_with_each_call(name: str) -> None:
    """Over so few pixels that nothing is packed for them as well."""
    graph = graph_of(name, supplied=True)
    inputs, params = numbers(graph, 1)
    wide = [{k: a.astype(np.float64) for k, a in arrays.items()} for arrays in (inputs, params)]
    (expected,) = run_graph(graph_of(name, f64, supplied=True), *wide).values()
    with deciding() as record:
        tw.compile((graph, params))
    (decision,) = [d for d in record.decisions if d.key.name.startswith("algorithm")]
    for way in [s.label for s in decision.space if s.kind == "taps"]:
        with deciding({decision.key.name: way}):
            (got,) = tw.compile((graph, params)).run(inputs).values()
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
