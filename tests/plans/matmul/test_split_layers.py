"""Products that layers hold inside, by pieces of bf16: inputs of a recurrent layer, for all steps at once."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, forced, needs_compiler, products

STEPS, BATCH, INPUTS, HIDDEN = 16, 4, 64, 64


def lstm() -> tuple[bytes, np.ndarray]:
    """An ONNX model of one LSTM, and its input."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 4 * HIDDEN, INPUTS), "r": (1, 4 * HIDDEN, HIDDEN), "b": (1, 8 * HIDDEN)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32) / 8, n) for n, s in shapes.items()]
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=HIDDEN)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (STEPS, BATCH, INPUTS))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (STEPS, 1, BATCH, HIDDEN))
    graph = helper.make_graph([node], "lstm", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), rng.normal(size=(STEPS, BATCH, INPUTS)).astype(np.float32)


@pytest.mark.daily(2)
@needs_compiler
@pytest.mark.parametrize(("fast", "terms"), [("auto", 3), ("exact", 6)])
def test_the_inputs_of_a_recurrent_layer(fast: str, terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = lstm()
    usual = np.asarray(tw.compile(model)(x))
    target, label = amx(monkeypatch), f"split terms={terms},least=16"
    with forced(label, lambda: tw.compile(model, target=target, fast=fast)):
        split = tw.compile(model, target=target, fast=fast)
    assert any(f"matmul_x{terms}" in step.label for step in split.manifest.run_steps)
    before = products()
    np.testing.assert_allclose(np.asarray(split(x)), usual, rtol=1e-4, atol={3: 2e-5, 6: 2e-6}[terms])
    assert products() - before == STEPS * BATCH // 16 * (4 * HIDDEN // 16) * (INPUTS // 32) * terms
