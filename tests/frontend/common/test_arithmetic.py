"""Remainders, powers and variances that all formats share, and nodes that are evaluated when compiling, by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.frontend.common.arithmetic import floored_remainder, small_power
from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.known import MAX_FOLDED, evaluated
from tilewright.frontend.common.norm import variance
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType, Value

X = np.array([5.5, -5.5, 5.5, -5.5, 6.0, -6.0, 0.0, -0.25], np.float32)
Y = np.array([2.0, 2.0, -2.0, -2.0, 3.0, -3.0, -1.0, 1.0], np.float32)


def emitter(*arrays: Any) -> tuple[Emitter, list[Value], dict[Value, Any]]:
    """An emitter into a new graph with an input for each array."""
    builder = GraphBuilder()
    values = [builder.input(f"x{k}", TensorType(f32, tuple(map(const, a.shape)))) for k, a in enumerate(arrays)]
    return Emitter(builder, {}, "y"), values, dict(zip(values, arrays, strict=True))


def result(n: Emitter, value: Value, arrays: dict[Value, Any]) -> Any:
    every = evaluated(n.builder.nodes, arrays)
    assert every is not None
    return every[value]


def test_a_remainder_has_the_sign_of_the_divisor() -> None:
    n, (x, y), arrays = emitter(X, Y)
    np.testing.assert_array_equal(result(n, floored_remainder(n, x, y), arrays), np.mod(X, Y))


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 0.5, -1])
def test_small_powers(exponent: float) -> None:
    n, (x,), arrays = emitter(np.abs(X[:6]))
    y = small_power(n, x, exponent)
    assert y is not None
    np.testing.assert_allclose(result(n, y, arrays), np.abs(X[:6]) ** exponent, rtol=1e-6)


def test_other_powers_are_left_to_pow() -> None:
    n, (x,), _ = emitter(X)
    assert small_power(n, x, 5) is None
    assert small_power(n, n.constant([2], i64), 0.5) is None  # a root of integers


def test_a_variance_has_its_parts() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4) ** 2
    n, (x,), arrays = emitter(data)
    mean, deviation, square = (result(n, v, arrays) for v in variance(n, x, [1]))
    np.testing.assert_allclose(mean[:, 0], data.mean(1))
    np.testing.assert_allclose(deviation, data - data.mean(1, keepdims=True))
    np.testing.assert_allclose(square[:, 0], data.var(1), rtol=1e-6)


def test_what_is_not_known_is_not_evaluated() -> None:
    n, (x,), arrays = emitter(X)
    n.emit("neg", x)
    assert evaluated(n.builder.nodes, {}) is None
    large, (y,), several = emitter(np.zeros(MAX_FOLDED + 1, np.float32))
    large.emit("neg", y)
    assert evaluated(large.builder.nodes, several) is None
    assert evaluated(n.builder.nodes, arrays) is not None
