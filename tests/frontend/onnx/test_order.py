"""Files whose nodes stand in another order than that in which they read each other: ONNX Runtime runs them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.frontend.onnx.order import in_order

ort = pytest.importorskip("onnxruntime")
F, B = TensorProto.FLOAT, TensorProto.BOOL


def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A model from x: f32[n, 4] to y."""
    x, y = (helper.make_tensor_value_info(name, F, ["n", 4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def network(seed: int) -> list[onnx.NodeProto]:
    """Nodes that each read one or two random values before them."""
    draw, values, nodes = random.Random(seed), ["x"], []
    for k in range(12):
        pair = draw.choice(["Add", "Sub", "Max"])
        name = "y" if k == 11 else f"v{k}"
        nodes.append(helper.make_node(pair, [draw.choice(values), values[-1]], [name]))
        values.append(name)
    return nodes


def branches() -> list[onnx.NodeProto]:
    """A condition whose branches read the value of a later node."""

    def branch(name: str, op: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(name, F, ["n", 4])
        return helper.make_graph([helper.make_node(op, ["late"], [name])], name, [], [result])

    then, other = branch("then", "Exp"), branch("else", "Abs")
    sign = [
        helper.make_node("ReduceSum", ["late"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["c"], to=B),
    ]
    return [
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        *reversed(sign),
        helper.make_node("Tanh", ["x"], ["late"]),
    ]


def assert_as_onnx_runtime(stated: onnx.ModelProto) -> None:
    data: dict[str, Any] = {"x": np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)}
    before = stated.SerializeToString()
    (want,) = ort.InferenceSession(before, providers=["CPUExecutionProvider"]).run(None, data)
    np.testing.assert_allclose(tw.compile(stated)(data["x"]), want, rtol=1e-6, atol=1e-6)
    assert stated.SerializeToString() == before, "the caller's model stays as it is"


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_nodes(seed: int) -> None:
    nodes = network(seed)
    shuffled = random.Random(seed).sample(nodes, len(nodes))
    assert_as_onnx_runtime(model(shuffled))
    ordered = in_order(model(nodes))
    assert [n.output[0] for n in ordered.graph.node] == [n.output[0] for n in nodes], "an order that is right stays"


def test_values_that_branches_read() -> None:
    assert_as_onnx_runtime(model(branches()))


def test_a_circle_is_an_error() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    with pytest.raises(tw.errors.ModelError, match="nothing before it computes"):
        tw.compile(model([*nodes, helper.make_node("Neg", ["b"], ["y"])]))
