"""Normalisations that are written out become one operator, with the same results; what only looks like one stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import ops
from tilewright.ir.dtype import DType, f16, f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.canonical import eliminate_common
from tilewright.transform.graph.norms import keep_reduced, recognise_norms
from tilewright.transform.graph.rewrite import eliminate_dead

SHAPE = (3, 5, 8)


class Writer:
    """Writes a graph of x, a scale and a shift."""

    def __init__(self, dtype: DType = f32) -> None:
        self.dtype = dtype
        self.builder = GraphBuilder("g")
        self.x = self.builder.input("x", self.type(*SHAPE))
        self.scale, self.shift = (self.builder.param(n, self.type(SHAPE[-1])) for n in ("scale", "shift"))

    def type(self, *shape: int) -> TensorType:
        return TensorType(self.dtype, tuple(map(as_expr, shape)))

    def __call__(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(self.builder, op, *inputs, **attrs)

    def number(self, value: float) -> Value:
        return self("constant", value=np.asarray(value, self.dtype.numpy))

    def mean(self, x: Value, axes: tuple[int, ...] = (2,)) -> Value:
        return self("reduce_mean", x, axes=axes, keepdims=True)

    def root(self, square: Value, epsilon: float = 1e-3) -> Value:
        return self("sqrt", self("add", square, self.number(epsilon)))

    def squared(self, x: Value) -> Value:
        return self("mul", x, x)

    def centred(self) -> Value:
        return self("sub", self.x, self.mean(self.x))


def by_a_quotient(w: Writer) -> Value:
    d = w.centred()
    y = w("div", d, w.root(w.mean(w("pow", d, w.number(2)))))
    return w("add", w("mul", y, w.scale), w.shift)


def with_the_scale_beside_the_root(w: Writer) -> Value:
    """A norm as Flax has it: the variance from the mean of squares, the scale first."""
    mean = w.mean(w.x)
    variance = w("max", w.number(0), w("sub", w.mean(w.squared(w.x)), w.squared(mean)))
    factor = w("mul", w("rsqrt", w("add", variance, w.number(1e-3))), w.scale)
    return w("add", w("mul", w("sub", w.x, mean), factor), w.shift)


def by_sums_without_dimensions(w: Writer) -> Value:
    """A norm by sums as `jnp.mean` is lowered."""

    def mean(x: Value) -> Value:
        total = w("reduce_sum", x, axes=(2,), keepdims=False)
        return w("div", w("reshape", total, shape=(3, 5, 1)), w.number(8))

    d = w("sub", w.x, mean(w.x))
    return w("mul", d, w("div", w.number(1), w.root(mean(w.squared(d)))))


def over_two_dimensions(w: Writer) -> Value:
    d = w("sub", w.x, w.mean(w.x, (1, 2)))
    return w("div", d, w.root(w.mean(w.squared(d), (1, 2))))


def root_of_mean_squares(w: Writer) -> Value:
    y = w("mul", w.x, w("rsqrt", w("add", w.number(1e-3), w.mean(w.squared(w.x)))))
    return w("mul", w.scale, y)


Write = Callable[[Writer], Value]

RECOGNISED: dict[str, tuple[Write, str, int]] = {
    "quotient": (by_a_quotient, "layer_norm", 3),
    "flax": (with_the_scale_beside_the_root, "layer_norm", 3),
    "sums": (by_sums_without_dimensions, "layer_norm", 1),
    "two dimensions": (over_two_dimensions, "layer_norm", 1),
    "rms": (root_of_mean_squares, "rms_norm", 2),
}


def graph_of(write: Write, dtype: DType = f32) -> Graph:
    w = Writer(dtype)
    return w.builder.finish((write(w),))


def recognised(graph: Graph) -> Graph:
    return eliminate_dead(recognise_norms(keep_reduced(eliminate_common(graph))))


def results(graph: Graph) -> Any:
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.standard_normal([int(str(d)) for d in v.shape]) + 0.5 for v in (*graph.inputs, *graph.params)}
    kind = graph.inputs[0].dtype.numpy
    inputs = {name: array.astype(kind) for name, array in arrays.items()}
    (result,) = run_graph(graph, inputs, inputs).values()
    return result


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_norm_is_located(name: str) -> None:
    write, op, operands = RECOGNISED[name]
    graph = graph_of(write)
    result = recognised(graph)
    assert [n.op for n in result.nodes] == [op]
    assert len(result.nodes[0].inputs) == operands
    np.testing.assert_allclose(results(result), results(graph), rtol=2e-5, atol=2e-6)


def by_another_mean(w: Writer) -> Value:
    """The mean square is that of the scale's product, not of what is divided."""
    d = w.centred()
    return w("div", d, w.root(w.mean(w.squared(w("mul", d, w.scale)))))


def by_a_sum(w: Writer) -> Value:
    d = w.centred()
    return w("div", d, w.root(w("reduce_sum", w.squared(d), axes=(2,), keepdims=True)))


def over_the_middle(w: Writer) -> Value:
    d = w("sub", w.x, w.mean(w.x, (1,)))
    return w("div", d, w.root(w.mean(w.squared(d), (1,))))


def by_the_square(w: Writer) -> Value:
    d = w.centred()
    return w("div", d, w("add", w.mean(w.squared(d)), w.number(1e-3)))


def along_other_axes(w: Writer) -> Value:
    """The mean over the rows, the squares over all."""
    d = w.centred()
    return w("div", d, w.root(w.mean(w.squared(d), (1, 2))))


@pytest.mark.parametrize("write", [by_another_mean, by_a_sum, over_the_middle, by_the_square])
def test_what_is_no_norm_stays(write: Write) -> None:
    graph = eliminate_common(graph_of(write))
    assert recognise_norms(graph) is graph


def test_squares_over_more_are_of_the_differences() -> None:
    """The differences from the rows' means are divided by the root of all of their squares."""
    graph = graph_of(along_other_axes)
    result = recognised(graph)
    assert [n.op for n in result.nodes] == ["reduce_mean", "sub", "rms_norm"]
    np.testing.assert_allclose(results(result), results(graph), rtol=2e-5, atol=2e-6)


def test_half_floats_round_between() -> None:
    graph = eliminate_common(graph_of(by_a_quotient, f16))
    assert recognise_norms(graph) is graph


def test_a_scale_of_rows_stays_a_product() -> None:
    w = Writer()
    rows = w.builder.input("rows", w.type(5, 1))
    y = w("mul", root_of_mean_squares(w), rows)
    result = recognised(w.builder.finish((y,)))
    assert [n.op for n in result.nodes] == ["rms_norm", "mul"]


def test_a_norm_that_is_read_twice_keeps_its_results() -> None:
    w = Writer()
    d = w.centred()
    y = w("div", d, w.root(w.mean(w.squared(d))))
    result = recognised(w.builder.finish((w("mul", y, w.scale), w("tanh", y))))
    assert [n.op for n in result.nodes] == ["layer_norm", "mul", "tanh"]
