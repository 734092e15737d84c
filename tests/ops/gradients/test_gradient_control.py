"""Gradients of loops and branches: central differences in f64 on the references, compiled against interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.gradients.test_gradient import TOLERANCE, Array, differences, interpret
from tilewright.ir.dtype import boolean, f64, i64
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.registry import emit, emit1
from tilewright.train.gradient import gradient

RNG = np.random.default_rng(2)


def of(*shape: int, dtype: Any = f64) -> TensorType:
    return TensorType(dtype, tuple(as_expr(d) for d in shape))


def summed(builder: GraphBuilder, values: list[Value]) -> Graph:
    """The sum of all elements, each with a weight of its own."""
    total: Value | None = None
    for k, v in enumerate(values):
        shape = tuple(int(str(d)) for d in v.shape)
        weight = emit1(builder, "constant", value=np.random.default_rng(k).uniform(0.5, 1.5, shape))
        part = emit1(builder, "mul", v, weight)
        part = emit1(builder, "reduce_sum", part, axes=tuple(range(len(shape))), keepdims=False) if shape else part
        total = part if total is None else emit1(builder, "add", total, part)
    assert total is not None
    return builder.finish((total,))


def check(graph: Graph, arguments: dict[str, Array], native: bool = True) -> Graph:
    names = [n for n, a in arguments.items() if a.dtype.kind == "f"]
    whole = gradient(graph, graph.outputs[0].name, names)
    _, *match = interpret(whole, arguments)
    for name, result in zip(names, match, strict=True):
        want = differences(graph, arguments, name)
        np.testing.assert_allclose(result, want, rtol=0, atol=TOLERANCE * max(np.abs(want).max(initial=0), 1))
    if native:
        for got, result in zip(tw.compile(whole)(*(arguments[v.name] for v in whole.inputs))[1:], match, strict=True):
            np.testing.assert_allclose(np.asarray(got), result, rtol=1e-9, atol=1e-10)
    return whole


def cell(steps: int, collect: bool, numbered: bool) -> tuple[Graph, dict[str, Array]]:
    """h <- tanh(h W + x_t) * c, c <- c + mean of x_t (and the number); collects h * x_t."""
    inner = GraphBuilder("step")
    number = inner.input("number", of(dtype=i64))
    h, c, x, w = (
        inner.input("h", of(2, 3)),
        inner.input("c", of()),
        inner.input("x", of(2, 3)),
        inner.input("w", of(3, 3)),
    )
    new = emit1(inner, "tanh", emit1(inner, "add", emit1(inner, "matmul", h, w), x))
    new = emit1(inner, "mul", new, c)
    on = emit1(inner, "add", c, emit1(inner, "reduce_mean", x, axes=(0, 1), keepdims=False))
    if numbered:
        share = emit1(
            inner, "mul", emit1(inner, "cast", number, dtype=f64), emit1(inner, "constant", value=np.float64(0.1))
        )
        on = emit1(inner, "add", on, emit1(inner, "mul", share, c))
    rows = [emit1(inner, "mul", new, x), new] if collect else []
    body = inner.finish((new, on, *rows))
    builder = GraphBuilder("g")
    values = [builder.input(n, of(*s)) for n, s in (("h", (2, 3)), ("c", ()), ("x", (steps, 2, 3)), ("w", (3, 3)))]
    result = emit(builder, "loop", None, None, *values, body=body, carried=2, scanned=1)
    shapes = {"h": (2, 3), "c": (), "x": (steps, 2, 3), "w": (3, 3)}
    return summed(builder, list(result)), {n: np.asarray(RNG.uniform(0.3, 1, s)) for n, s in shapes.items()}


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("collect", "numbered"), [(False, False), (True, False), (True, True)])
def test_scans(steps: int, collect: bool, numbered: bool) -> None:
    check(*cell(steps, collect, numbered))


def test_a_loop_of_known_trips_and_a_loop_inside_of_it() -> None:
    """x <- x + 0.1 sin(x w), five times; each time with three halvings by w inside."""
    deepest = GraphBuilder("inner")
    deepest.input("number", of(dtype=i64))
    y, w = deepest.input("y", of(4)), deepest.input("w", of(4))
    deep = deepest.finish((emit1(deepest, "mul", emit1(deepest, "cos", y), w),))
    inner = GraphBuilder("outer")
    inner.input("number", of(dtype=i64))
    x, w = inner.input("x", of(4)), inner.input("w", of(4))
    moved = emit1(inner, "sin", emit1(inner, "mul", x, w))
    (moved,) = emit(inner, "loop", None, None, moved, w, body=deep, carried=1, trip=3)
    body = inner.finish((emit1(inner, "add", x, moved),))
    builder = GraphBuilder("g")
    x, w = builder.input("x", of(4)), builder.input("w", of(4))
    result = emit(builder, "loop", None, None, x, w, body=body, carried=1, trip=5)
    whole = check(summed(builder, list(result)), {"x": RNG.uniform(0.3, 1, 4), "w": RNG.uniform(0.3, 1, 4)})
    assert sum(n.op == "loop" for n in whole.nodes) == 2, "the forward pass is not run twice"


def branch(op: str, both: bool) -> Graph:
    inner = GraphBuilder(op)
    x, y = inner.input("x", of(3)), inner.input("y", of(3))
    first = emit1(inner, op, x)
    return inner.finish((emit1(inner, "mul", first, y) if both else first, first))


@pytest.mark.parametrize("selected", [True, False])
def test_branches(selected: bool) -> None:
    """One branch reads both operands, the other one of them."""
    builder = GraphBuilder("g")
    p, x, y = builder.input("p", of(dtype=boolean)), builder.input("x", of(3)), builder.input("y", of(3))
    result = emit(builder, "cond", p, x, y, then=branch("sin", True), orelse=branch("exp", False))
    inputs = {"p": np.array(selected), "x": RNG.uniform(0.3, 1, 3), "y": RNG.uniform(0.3, 1, 3)}
    check(summed(builder, list(result)), inputs)


def test_a_branch_in_a_loop() -> None:
    inner = GraphBuilder("step")
    inner.input("number", of(dtype=i64))
    h, x = inner.input("h", of(3)), inner.input("x", of(3))
    total = emit1(inner, "reduce_sum", h, axes=(0,), keepdims=False)
    selected = emit1(inner, "gt", total, emit1(inner, "constant", value=np.float64(2.0)))
    new, _ = emit(inner, "cond", selected, h, x, then=branch("sin", True), orelse=branch("exp", False))
    body = inner.finish((emit1(inner, "add", new, x),))
    builder = GraphBuilder("g")
    h, x = builder.input("h", of(3)), builder.input("x", of(5, 3))
    result = emit(builder, "loop", None, None, h, x, body=body, carried=1, scanned=1)
    check(summed(builder, list(result)), {"h": RNG.uniform(0.3, 1, 3), "x": RNG.uniform(0.3, 1, (5, 3))})


def test_loops_that_data_ends_are_refused() -> None:
    inner = GraphBuilder("step")
    inner.input("number", of(dtype=i64))
    x = inner.input("x", of())
    half = emit1(inner, "mul", x, emit1(inner, "constant", value=np.float64(0.5)))
    on = emit1(inner, "gt", half, emit1(inner, "constant", value=np.float64(1.0)))
    builder = GraphBuilder("g")
    x = builder.input("x", of())
    (y,) = emit(builder, "loop", None, None, x, body=inner.finish((on, half)), carried=1, conditional=True)
    with pytest.raises(tw.Error, match="number of iterations data decides has no gradient"):
        gradient(builder.finish((y,)), y.name, ["x"])
