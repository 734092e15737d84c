"""Forward mode on the interpreter in f64, against differences along a direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.gradients.test_gradient import STEP, interpret, normal, ops_dtype, positive
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit, emit1

Array = np.ndarray[Any, Any]
CASES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("tanh", [normal(3, 4)], {}),
    ("mul", [normal(3, 1), normal(4)], {}),
    ("div", [normal(3, 4), positive(3, 4)], {}),
    ("matmul", [normal(3, 4), normal(4, 5)], {"transpose_a": False, "transpose_b": False}),
    ("softmax", [normal(3, 5)], {"axis": 1}),
    ("reduce_max", [normal(3, 5)], {"axes": (1,), "keepdims": False}),
    ("layer_norm", [normal(3, 6), normal(6), normal(6)], {"axis": 1, "epsilon": 1e-5}),
    ("transpose", [normal(3, 4)], {"perm": (1, 0)}),
    ("concat", [normal(2, 3), normal(1, 3)], {"axis": 0}),
]


def graph_of(op: str, inputs: list[Array], attrs: dict[str, Any]) -> Graph:
    builder = GraphBuilder("g")
    values = [
        builder.input(f"x{k}", TensorType(ops_dtype(a), tuple(as_expr(d) for d in a.shape)))
        for k, a in enumerate(inputs)
    ]
    return builder.finish(emit(builder, op, *values, **attrs)[:1])


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES, ids=[case[0] for case in CASES])
def test_operators(op: str, inputs: list[Array], attrs: dict[str, Any]) -> None:
    graph = graph_of(op, inputs, attrs)
    names = [v.name for v in graph.inputs]
    whole = tw.jvp(graph, [graph.outputs[0].name], names)
    assert [v.name for v in whole.inputs] == [*names, *(f"t.{name}" for name in names)]
    arguments = dict(zip(names, inputs, strict=True))
    direction = {name: normal(*a.shape) for name, a in arguments.items()}
    y, moved = interpret(whole, {**arguments, **{f"t.{name}": t for name, t in direction.items()}})
    ends = [interpret(graph, {n: a + h * direction[n] for n, a in arguments.items()})[0] for h in (STEP, -STEP)]
    np.testing.assert_array_equal(y, interpret(graph, arguments)[0])
    np.testing.assert_allclose(moved, (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-7)


def network() -> tuple[Graph, dict[str, Array]]:
    """Two outputs: one that two inputs lead to, and one that none of the chosen does."""
    builder = GraphBuilder("n")
    arrays = {"x": normal(4, 3), "w": normal(3, 3), "z": normal(2)}
    x, w, z = (
        builder.input(n, TensorType(ops_dtype(a), tuple(as_expr(d) for d in a.shape))) for n, a in arrays.items()
    )
    h = emit1(builder, "tanh", emit1(builder, "matmul", emit1(builder, "matmul", x, w), w))
    return builder.finish((emit1(builder, "mul", h, h, name="y"), emit1(builder, "exp", z, name="e"))), arrays


def test_several_outputs_and_readers() -> None:
    graph, arrays = network()
    y, e = (v.name for v in graph.outputs)
    whole = tw.jvp(graph, [y, e], ["w"])
    t = normal(3, 3)
    result = interpret(whole, {**arrays, "t.w": t})
    ends = [interpret(graph, {**arrays, "w": arrays["w"] + h * t})[0] for h in (STEP, -STEP)]
    np.testing.assert_allclose(result[2], (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(result[3], np.zeros(2))


def test_compiled_is_interpreted() -> None:
    rng = np.random.default_rng(3)
    builder = GraphBuilder("n")
    x = builder.input("x", TensorType(f32, (as_expr(8), as_expr(6))))
    graph = builder.finish((emit1(builder, "softmax", x, axis=1, name="y"),))
    whole = tw.jvp(graph, ["y"], ["x"])
    inputs = {name: rng.normal(size=(8, 6)).astype(np.float32) for name in ("x", "t.x")}
    expected = run_graph(whole, inputs)
    result = tw.compile(whole)(inputs["x"], inputs["t.x"])
    for value, array in zip(whole.outputs, result, strict=True):
        np.testing.assert_allclose(array, expected[value.name], rtol=1e-5, atol=1e-6)


def test_names_are_checked() -> None:
    graph, _ = network()
    with pytest.raises(tw.Error, match="no output has this name"):
        tw.jvp(graph, ["none"], ["x"])
    with pytest.raises(tw.Error, match="no input or parameter has this name"):
        tw.jvp(graph, [graph.outputs[0].name], ["none"])
