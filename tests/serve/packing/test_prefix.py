"""Heads over one trunk: the trunk is computed once, and each head gives what it gives by itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.specs import evaluate
from tilewright.serve.packing.prefix import merge

HIDDEN = 64


def network(head: int, prefix: str, trunk_seed: int = 0) -> onnx.ModelProto:
    """A trunk of three layers and a head of one; all values have names of their own."""
    source = np.random.default_rng(trunk_seed)
    nodes, weights, value = [], [], "obs"
    for k, size in enumerate((16, HIDDEN, HIDDEN)):
        matrix = source.standard_normal((size, HIDDEN)).astype(np.float32) / 8
        weights.append(numpy_helper.from_array(matrix, f"{prefix}w{k}"))
        nodes.append(helper.make_node("MatMul", [value, f"{prefix}w{k}"], [f"{prefix}m{k}"]))
        nodes.append(helper.make_node("Relu", [f"{prefix}m{k}"], [f"{prefix}r{k}"], name=f"{prefix}n{k}"))
        value = f"{prefix}r{k}"
    matrix = np.random.default_rng(head).standard_normal((HIDDEN, head)).astype(np.float32)
    weights.append(numpy_helper.from_array(matrix, f"{prefix}head"))
    nodes.append(helper.make_node("MatMul", [value, f"{prefix}head"], ["y"]))
    graph = helper.make_graph(
        nodes, prefix, [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", head])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def work(model: tw.Model, rows: int) -> int:
    """Operations of a call."""
    return sum(evaluate(step.flops, {"n": rows}) for step in model.manifest.run_steps if step.flops)


def test_two_heads_over_one_trunk() -> None:
    heads = {"action": network(6, "a"), "value": network(1, "v")}
    alone = {name: tw.Model(tw.compile_program(model)) for name, model in heads.items()}
    both = tw.Model(tw.compile_program(merge(heads)))
    x = np.random.default_rng(5).standard_normal((7, 16)).astype(np.float32)
    outputs = both.run({"obs": x})
    assert list(outputs) == ["action/y", "value/y"]
    for name, model in alone.items():
        np.testing.assert_allclose(outputs[f"{name}/y"], model(x), rtol=1e-5, atol=1e-5)
    assert sum(work(m, 8) for m in alone.values()) / work(both, 8) >= 1.6


def test_trunks_that_differ_stay_two() -> None:
    heads = {"a": network(6, "a"), "b": network(6, "b", trunk_seed=1)}
    merged = merge(heads)
    assert (
        len([n for n in merged.graph.node if n.op_type == "MatMul"]) == 8
    )  # heads with the same weights have other inputs
    x = np.random.default_rng(5).standard_normal((3, 16)).astype(np.float32)
    outputs = tw.Model(tw.compile_program(merged)).run({"obs": x})
    for name, model in heads.items():
        np.testing.assert_allclose(outputs[f"{name}/y"], tw.compile(model)(x), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_merged_is_told() -> None:
    other = network(6, "b")
    other.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(tw.Error, match="another type"):
        merge({"a": network(6, "a"), "b": other})
    other = network(6, "b")
    other.opset_import[0].version = 20
    with pytest.raises(tw.Error, match="another version"):
        merge({"a": network(6, "a"), "b": other})
    with pytest.raises(tw.Error, match="no models"):
        merge({})
