"""Loops that are recurrent cells become `recurrence`, with the same results; others stay loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.recurrences import recognise_recurrences

HIDDEN, FEATURES, TIME = 20, 6, 5
LENGTH = Var("n", lo=1)

SHAPES = {
    "w1": (FEATURES, HIDDEN),
    "w3": (FEATURES, 3 * HIDDEN),
    "w4": (FEATURES, 4 * HIDDEN),
    "u1": (HIDDEN, HIDDEN),
    "u1b": (HIDDEN, HIDDEN),
    "u3": (3 * HIDDEN, HIDDEN),
    "u4": (HIDDEN, 4 * HIDDEN),
    "b1": (HIDDEN,),
    "b3": (1, 3 * HIDDEN),
    "factor": (),
}
"""Weights that bodies may capture."""


class Body:
    """The body of a loop under construction: the element, the states, captured weights by name, operators as calls."""

    def __init__(self, batch: int, states: int) -> None:
        self.builder = GraphBuilder("step")
        self.builder.input("i", TensorType(i64, ()))
        self.states = [self.builder.input(f"s{k}", _type(batch, HIDDEN)) for k in range(states)]
        self.x = self.builder.input("x", _type(batch, FEATURES))
        self.weights: dict[str, Value] = {}

    def weight(self, name: str) -> Value:
        if name not in self.weights:
            self.weights[name] = self.builder.param(name, _type(*SHAPES[name]))
        return self.weights[name]

    def __call__(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(self.builder, op, *inputs, **attrs)

    def number(self, value: float) -> Value:
        return self("constant", value=np.float32(value))

    def part(self, x: Value, k: int, count: int = 1) -> Value:
        size = (x.shape[0], count * HIDDEN)
        return self("slice", x, begin=(0, k * HIDDEN), size=size, step=(1, 1))

    def product(self, x: Value, name: str, **attrs: Any) -> Value:
        return self("matmul", x, self.weight(name), **attrs)


def _type(*shape: int | Expr) -> TensorType:
    return TensorType(f32, tuple(map(as_expr, shape)))


Cell = Callable[[Body], tuple[Sequence[Value], Sequence[Value]]]


def gru(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    """The candidate's gate scales the product; sigmoids of two gates at once; weights that are transposed."""
    (h,) = b.states
    x = b("add", b.product(b.x, "w3"), b.weight("b3"))
    c = b.product(h, "u3", transpose_b=True)
    gates = b("sigmoid", b("add", b.part(x, 0, 2), b.part(c, 0, 2)))
    z, r = b.part(gates, 0), b.part(gates, 1)
    n = b("tanh", b("add", b.part(x, 2), b("mul", r, b.part(c, 2))))
    h = b("add", b("mul", b("sub", b.number(1), z), n), b("mul", z, h))
    return [h], [h]


def lstm(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    """Two states, of which the one that is multiplied is the second."""
    c, h = b.states
    gates = b("add", b.product(b.x, "w4"), b.product(h, "u4"))
    i, o, f = (b("sigmoid", b.part(gates, k)) for k in (0, 1, 2))
    c = b("add", b("mul", f, c), b("mul", i, b("tanh", b.part(gates, 3))))
    h = b("mul", o, b("tanh", c))
    return [c, h], [h, h]


def separate(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    """A product for each gate, joined again; a number that is captured; a clip."""
    (h,) = b.states
    joined = b("concat", b.product(h, "u1"), b.product(h, "u1b"), axis=1)
    joined = b("mul", joined, b.weight("factor"))
    y = b("add", b.part(joined, 1), b("add", b.product(b.x, "w1"), b.weight("b1")))
    y = b("clip", y, min=-0.5, max=0.25)
    return [b("sub", b("mul", y, b.part(joined, 0)), h)], []


def swapped(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    """The second state takes the first one's old value."""
    h, c = b.states
    return [b("tanh", b("add", b("add", b.product(h, "u1"), c), b.product(b.x, "w1"))), h], []


CELLS: dict[str, tuple[Cell, int]] = {
    "gru": (gru, 1),
    "lstm": (lstm, 2),
    "separate": (separate, 1),
    "swapped": (swapped, 2),
}


def looped(cell: Cell, states: int, batch: int, time: int | Expr = TIME) -> Graph:
    body = Body(batch, states)
    carried, collected = cell(body)
    inner = body.builder.finish((*carried, *collected))
    b = GraphBuilder("model")
    xs = b.input("xs", _type(time, batch, FEATURES))
    begin = [b.input(f"begin{k}", _type(batch, HIDDEN)) for k in range(states)]
    weights = [b.param(v.name, v.type) for v in inner.params]
    attrs = {"body": inner, "carried": states, "scanned": 1}
    return b.finish(ops.emit(b, "loop", None, None, *begin, xs, *weights, **attrs))


def arrays(graph: Graph, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and weights."""
    rng = np.random.default_rng(seed)

    def random(v: Value) -> Any:
        shape = [TIME if isinstance(d, Var) else int(str(d)) for d in v.shape]
        return (rng.standard_normal(shape) / 3).astype(np.float32)

    return {v.name: random(v) for v in graph.inputs}, {v.name: random(v) for v in graph.params}


@pytest.mark.parametrize("batch", [1, 3, 9])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_a_recurrence(name: str, batch: int) -> None:
    graph = looped(*CELLS[name], batch)
    result = recognise_recurrences(graph)
    assert [n.op for n in result.nodes].count("recurrence") == 1
    assert not any(n.op == "loop" for n in result.nodes)
    inputs, weights = arrays(graph)
    want = run_graph(graph, inputs, weights)
    for name, array in run_graph(result, inputs, weights).items():
        np.testing.assert_allclose(array, want[name], atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", CELLS)
def test_compiled_for_any_length(name: str) -> None:
    graph = looped(*CELLS[name], 3, LENGTH)
    inputs, weights = arrays(graph)
    model = tw.compile((graph, weights))
    assert "lowered.recurrence" in model.show("graph")
    want = run_graph(graph, inputs, weights)
    for name, array in model.run(inputs).items():
        np.testing.assert_allclose(array, want[name], atol=5e-6, err_msg=name)


def of_both(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    h, c = b.states
    return [b("add", b.product(h, "u1"), b.product(b.x, "w1")), b("tanh", b.product(c, "u1b"))], []


def of_a_function(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    (h,) = b.states
    return [b("add", b.product(b("tanh", h), "u1"), b.product(b.x, "w1"))], []


def of_rows(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    (h,) = b.states
    y = b("softmax", b.product(h, "u1"), axis=1)
    return [b("add", y, b.product(b.x, "w1"))], []


def collecting_another(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    (h,) = b.states
    y = b("add", b.product(h, "u1"), b.product(b.x, "w1"))
    return [b("tanh", y)], [y]


def without_state(b: Body) -> tuple[Sequence[Value], Sequence[Value]]:
    return [b("tanh", b.product(b.x, "w1"))], []


@pytest.mark.parametrize(
    ("cell", "states"), [(of_both, 2), (of_a_function, 1), (of_rows, 1), (collecting_another, 1), (without_state, 1)]
)
def test_other_loops_stay(cell: Cell, states: int) -> None:
    graph = looped(cell, states, 3)
    assert recognise_recurrences(graph) is graph
