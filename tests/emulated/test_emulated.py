"""Programs in a process of an engine: their numbers, weights that change, dimensions, loops, and how failures show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.emulated import library
from tests.emulated.library import EmulatedLibrary
from tests.emulated.machines import MACHINES
from tilewright.runtime import model as runtime
from tilewright.support.errors import CallError

NODE = MACHINES["node"]
pytestmark = pytest.mark.skipif(NODE.missing is not None, reason="there is no Node")
POLICY = """
    <ir_version: 9, opset_import: ["" : 20]>
    policy (float[batch, 4] obs) => (float[batch, 2] action)
    <float[4, 2] weight = {1, 2, 3, 4, 5, 6, 7, 8}> { sum = MatMul(obs, weight)  action = Relu(sum) }
"""
COUNTED = """
    <ir_version: 9, opset_import: ["" : 20]>
    counted (float[3] x) => (float[3] y)
    <int64 most = {9223372036854775807}, bool yes = {1}, float two = {2}, float bound = {50}> {
        y = Loop <body = body (int64 k, bool before, float[3] had) => (bool again, float[3] doubled) {
            doubled = Mul(had, two)
            largest = ReduceMax<keepdims = 0>(doubled)
            again = Less(largest, bound)
        }> (most, yes, x)
    }
"""
CODES = """
    <ir_version: 9, opset_import: ["" : 20]>
    codes (float[n] x) => (int8[n] y) <float scale = {0.5}, int8 zero = {3}> { y = QuantizeLinear(x, scale, zero) }
"""


@pytest.fixture(autouse=True)
def on_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runtime, "link", lambda program: EmulatedLibrary(program, NODE))
    monkeypatch.setattr(runtime, "check_target", lambda target, where: None)
    yield
    library.failures.clear()


def compiled(text: str, **options: Any) -> tw.Model:
    return tw.Model(tw.compile_program(onnx.parser.parse_model(text), target=NODE.target, **options))


def test_dimensions_and_new_weights() -> None:
    model, weight = compiled(POLICY), np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    for batch in (1, 7):
        obs = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        np.testing.assert_allclose(model(obs), np.maximum(obs @ weight, 0), rtol=1e-5, atol=1e-6)
    model.update({"weight": -weight})
    np.testing.assert_allclose(model(obs), np.maximum(obs @ -weight, 0), rtol=1e-5, atol=1e-6)
    assert not library.failures


def test_a_loop_that_data_ends() -> None:
    model = compiled(COUNTED)
    np.testing.assert_array_equal(model(np.array([1, 2, 3], np.float32)), [32, 64, 96])
    model.max_iterations = 2
    with pytest.raises(CallError, match="more than 2 iterations"):
        model(np.array([1, 2, 3], np.float32))
    assert not library.failures


def test_an_engine_that_ends_is_noticed() -> None:
    model = compiled(POLICY)
    engine: Any = model._engine.linked
    engine._process.kill()
    with pytest.raises(CallError):  # sizes cannot be asked for any more
        model(np.zeros((2, 4), np.float32))
    assert library.failures
    assert "ended" in library.failures[0] or "BrokenPipe" in library.failures[0]


def test_codes_are_rounded_to_even() -> None:
    x = np.array(
        [0.25, 0.75, -0.25, -0.75, 1.25, 0.3, 62.2, 62.3, 1e30, -1e30, -65.6, -65.8, np.inf, -np.inf], np.float32
    )
    wanted = np.clip(np.rint(x.astype(np.float64) / 0.5) + 3, -128, 127)
    for codes in (x, np.tile(x, 5)[:67]):
        np.testing.assert_array_equal(compiled(CODES)(codes), np.resize(wanted, len(codes)))
    assert not library.failures
