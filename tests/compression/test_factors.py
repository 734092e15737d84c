"""Factors of convolutions, against the weights that they stand for and against what the graph computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.compression.factors import Factors, cp, tucker
from tilewright.compression.recipe import Recipe

RNG = np.random.default_rng(11)
Array = np.ndarray[Any, Any]


def of_rank(f: int, c: int, window: tuple[int, ...], rank: int) -> Array:
    """A weight that is a sum of so many products, with a little noise."""
    terms = [RNG.standard_normal((n, rank)) for n in (f, c, *window)]
    letters = "fcij"[: len(terms)]
    whole = np.einsum(",".join(f"{a}r" for a in letters) + "->" + letters, *terms)
    return (whole / np.abs(whole).max() + 1e-4 * RNG.standard_normal(whole.shape)).astype(np.float32)


def whole_of(factors: Factors, shape: tuple[int, ...]) -> Array:
    """The weight that convolutions one after another are, by their action on single channels and elements."""
    total = np.eye(shape[1]).reshape(shape[1], shape[1], *[1] * (len(shape) - 2))  # [output, input channel, window]
    for factor in factors:
        a = factor.array.astype(np.float64)
        if factor.groups == 1 and a.shape[:2] != (1, 1):  # of rank 1, lines are one group
            total = np.einsum("fc...,cn...->fn...", a, total) if a[0, 0].size == 1 or total[0, 0].size == 1 else None
        else:
            total = a * total
    return total


@pytest.mark.parametrize("method", [tucker, cp])
@pytest.mark.parametrize("window", [(3, 3), (5,), (1, 4)])
def test_factors_have_the_energy_that_is_asked_for(method: Any, window: tuple[int, ...]) -> None:
    weight = of_rank(24, 18, window, 3)
    factors = method(weight, 0.999)
    assert factors is not None and sum(f.array.size for f in factors) < 0.7 * weight.size
    left = np.sum((whole_of(factors, weight.shape) - weight) ** 2) / np.sum(weight.astype(np.float64) ** 2)
    assert left < (0.001 if method is cp else 0.002)  # Tucker's two unfoldings lose as much each at the most


@pytest.mark.parametrize("window", [(3, 3), (1, 3)])
def test_lines_of_rank_one(window: tuple[int, ...]) -> None:
    weight = of_rank(12, 10, window, 1)
    factors = cp(weight, 0.99)
    assert factors is not None and {f.array.shape[0] for f in factors[:-1]} == {1}
    np.testing.assert_allclose(whole_of(factors, weight.shape), weight, rtol=0, atol=1e-3)


def test_tucker_has_the_ranks_of_both_unfoldings() -> None:
    core = RNG.standard_normal((4, 3, 3, 3))
    weight = np.einsum("rqij,fr,cq->fcij", core, RNG.standard_normal((20, 4)), RNG.standard_normal((16, 3)))
    factors = tucker(weight.astype(np.float32), 1 - 1e-9)
    assert factors is not None and factors[1].array.shape == (4, 3, 3, 3)
    np.testing.assert_allclose(whole_of(factors, weight.shape), weight, rtol=0, atol=1e-4 * np.abs(weight).max())


def test_one_by_one_is_two_factors_and_noise_is_none() -> None:
    flat = (RNG.standard_normal((20, 2)) @ RNG.standard_normal((2, 30))).astype(np.float32).reshape(20, 30, 1, 1)
    for method in (tucker, cp):
        factors = method(flat, 0.9999)
        assert factors is not None and [f.array.shape for f in factors] == [(2, 30, 1, 1), (20, 2, 1, 1)]
        np.testing.assert_allclose(whole_of(factors, flat.shape), flat, rtol=0, atol=0.1)
        assert method(RNG.standard_normal((8, 8, 3, 3)).astype(np.float32), 0.999) is None
        assert method(np.full((8, 8, 3, 3), np.nan, np.float32), 0.5) is None


def model(weight: Array, attrs: dict[str, Any], x: tuple[int, ...]) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], **attrs)],
        "g",
        [info("x", TensorProto.FLOAT, x)],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.daily(2)
@pytest.mark.parametrize("convolutions,suffixes", [("tucker", "in core out"), ("cp", "in line0 line1 out")])
@pytest.mark.parametrize(
    "window,attrs", [((3, 3), {"strides": [2, 1], "pads": [1, 0, 2, 1]}), ((1, 3), {"dilations": [1, 2]})]
)
def test_the_graph_computes_what_its_factors_say(
    convolutions: Any, suffixes: str, window: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    weight = of_rank(12, 10, window, 2)
    x = RNG.standard_normal((2, 10, 9, 8)).astype(np.float32)
    recipe = Recipe(energy=0.99, convolutions=convolutions)
    small = tw.compress(model(weight, attrs, x.shape), calibrate=[x], recipe=recipe, max_drop=1)
    assert list(small.weights) == [f"w.{s}" for s in suffixes.split()]
    factors = (tucker if convolutions == "tucker" else cp)(weight, 0.99)
    assert factors is not None
    exact = model(whole_of(factors, weight.shape).astype(np.float32), attrs, x.shape)
    (wanted,) = ReferenceEvaluator(exact).run(None, {"x": x})
    np.testing.assert_allclose(small(x), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_convolutions_stay_whole_where_that_is_said() -> None:
    weight = of_rank(12, 10, (3, 3), 2)
    x = RNG.standard_normal((1, 10, 6, 6)).astype(np.float32)
    recipe = {"low_rank": {"energy": 0.9, "convolutions": "none"}}
    assert list(tw.compress(model(weight, {}, x.shape), calibrate=[x], recipe=recipe).weights) == ["w"]
