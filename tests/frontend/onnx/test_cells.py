"""Recurrent layers with the activations that ONNX calls optional, against their equations in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node

Array = np.ndarray[Any, Any]
F = np.float32
HIDDEN = 3
ALPHA, BETA = 0.75, 0.5
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "Affine": lambda x: ALPHA * x + BETA,
    "ScaledTanh": lambda x: ALPHA * np.tanh(BETA * x),
    "LeakyRelu": lambda x: np.where(x >= 0, x, ALPHA * x),
    "ThresholdedRelu": lambda x: np.where(x >= ALPHA, x, 0),
    "HardSigmoid": lambda x: np.clip(ALPHA * x + BETA, 0, 1),
}
PARTS = {"RNN": 1, "GRU": 3, "LSTM": 4}


def steps(kind: str, f: Callable[[Array], Array], x: Array, w: Array, r: Array) -> Array:
    """All states of a layer without biases, whose first function is `f` and whose others are tanh."""
    h = c = np.zeros((x.shape[1], HIDDEN), F)
    states = []
    for row in x:
        gates = [row @ m.T for m in np.split(w, PARTS[kind])]
        back = np.split(r, PARTS[kind])
        if kind == "RNN":
            h = f(gates[0] + h @ back[0].T)
        elif kind == "GRU":
            z, reset = (f(g + h @ m.T) for g, m in zip(gates[:2], back[:2], strict=True))
            h = (1 - z) * np.tanh(gates[2] + (reset * h) @ back[2].T) + z * h
        else:
            i, o, forget = (f(g + h @ m.T) for g, m in zip(gates[:3], back[:3], strict=True))
            c = forget * c + i * np.tanh(gates[3] + h @ back[3].T)
            h = o * np.tanh(c)
        states.append(h)
    return np.stack(states)[:, None]


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("time", [3, 20])
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("name", ["Affine", "ScaledTanh"])
def test_activations_of_two_numbers(name: str, kind: str, time: int) -> None:
    run(name, kind, time)


@pytest.mark.parametrize("name", ["LeakyRelu", "ThresholdedRelu", "HardSigmoid"])
def test_others(name: str) -> None:
    run(name, "RNN", 3)


def run(name: str, kind: str, time: int) -> None:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((PARTS[kind] * HIDDEN, 2)) * 0.4).astype(F)
    r = (rng.standard_normal((PARTS[kind] * HIDDEN, HIDDEN)) * 0.4).astype(F)
    two = name not in ("LeakyRelu", "ThresholdedRelu")
    layer = node(
        kind,
        ["x", "w", "r"],
        ["y"],
        hidden_size=HIDDEN,
        activations=[name, *["Tanh"] * {"RNN": 0, "GRU": 1, "LSTM": 2}[kind]],
        activation_alpha=[ALPHA],
        **({"activation_beta": [BETA]} if two else {}),
    )
    m = model([layer], [info("x", [time, "batch", 2])], ["y"], {"w": w[None], "r": r[None]})
    x = rng.standard_normal((time, 2, 2)).astype(F)
    want = steps(kind, FUNCTIONS[name], x, w, r)
    np.testing.assert_allclose(tw.compile(m, fallback="never")(x), want, rtol=1e-4, atol=1e-5)


def test_numbers_that_are_missing_are_those_of_the_operators() -> None:
    """Not 0, as in ONNX Runtime (docs/disagreements.md)."""
    x = np.array([-2, -0.5, 0.5, 0.9, 1.5, 3], F).reshape(1, 6, 1)
    ones = {"w": np.ones((1, 1, 1), F), "r": np.ones((1, 1, 1), F)}
    for name, want in (("Affine", x), ("ScaledTanh", np.tanh(x)), ("ThresholdedRelu", np.where(x > 1, x, 0))):
        layer = node("RNN", ["x", "w", "r"], ["y"], hidden_size=1, activations=[name])
        compiled = tw.compile(model([layer], [info("x", [1, 6, 1])], ["y"], ones), fallback="never")
        np.testing.assert_allclose(np.asarray(compiled(x)).ravel(), want.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", PARTS)
def test_weights_whose_sizes_are_open(kind: str) -> None:
    """`hidden_size` says what they are, and a call with others is refused."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 2, 2)).astype(F)
    w = (rng.standard_normal((1, PARTS[kind] * HIDDEN, 2)) * 0.4).astype(F)
    r = (rng.standard_normal((1, PARTS[kind] * HIDDEN, HIDDEN)) * 0.4).astype(F)
    names = ["Relu", *["Tanh"] * {"RNN": 0, "GRU": 1, "LSTM": 2}[kind]]
    layer = node(kind, ["x", "w", "r"], ["y"], hidden_size=HIDDEN, activations=names)
    inputs = [info(name, [f"{name}{k}" for k in range(3)]) for name in "xwr"]
    compiled = tw.compile(model([layer], inputs, ["y"]), fallback="never")
    want = steps(kind, lambda a: np.maximum(a, 0), x, w[0], r[0])
    np.testing.assert_allclose(compiled(x, w, r), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.Error, match="wrong dimension 1"):
        compiled(x, np.concatenate([w, w], 1), r)
