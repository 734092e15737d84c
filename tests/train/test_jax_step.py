"""Steps of losses in JAX against JAX's own gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
from jax import numpy as jnp  # noqa: E402  after what may skip


def parameters() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"first": ((4, 3, 3, 3), (4,)), "second": ((64, 5), (5,))}
    return {
        name: {"w": rng.normal(size=w).astype(np.float32) / 4, "b": rng.normal(size=b).astype(np.float32)}
        for name, (w, b) in shapes.items()
    }


def loss(params: Any, x: Any, y: Any) -> Any:
    """A convolution, a layer, cross entropy."""
    first, second = params["first"], params["second"]
    h = jax.lax.conv_general_dilated(x, first["w"], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    h = jax.nn.relu(h + first["b"][:, None, None]).reshape(len(x), -1)
    logits = h @ second["w"] + second["b"]
    logs = jax.nn.log_softmax(logits)
    right = jnp.mean((jnp.argmax(logits, -1) == y).astype(jnp.float32))
    return {"accuracy": right, "loss": -jnp.mean(jnp.take_along_axis(logs, y[:, None], 1))}


def batch(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, 3, 6, 6)).astype(np.float32), rng.integers(0, 5, 8).astype(np.int32)


def test_steps_are_those_of_jax() -> None:
    params = parameters()
    step = tw.compile_step(params, loss, tw.train.SGD(0.1), example=batch(0))
    assert set(step.parameters) == {"first.w", "first.b", "second.w", "second.b"}
    for k in range(10):
        result = step(*batch(k))
        expected = loss(params, *batch(k))
        flows = jax.grad(lambda p, *inputs: loss(p, *inputs)["loss"])(params, *batch(k))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, flows)
        assert result["loss"] == pytest.approx(float(expected["loss"]), rel=1e-5)
        assert result["accuracy"] == pytest.approx(float(expected["accuracy"]))
    for name, value in step.parameters.items():
        layer, part = name.split(".")
        np.testing.assert_allclose(value, params[layer][part], rtol=1e-5, atol=1e-6)


def test_some_parameters_stay() -> None:
    step = tw.compile_step(parameters(), loss, tw.train.Adam(0.1), example=batch(0), trained=["second.w"])
    before = {name: value.copy() for name, value in step.state_dict().items()}
    step(*batch(0))
    changed = {name for name, value in step.state_dict().items() if (value != before[name]).any()}
    assert changed == {"second.w"}


def test_what_cannot_be_a_step() -> None:
    with pytest.raises(tw.Error, match="the loss is missing"):
        tw.compile_step(parameters(), lambda p, x, y: {"error": 0.0}, example=batch(0))
    with pytest.raises(tw.Error, match="the loss cannot be traced: got KeyError"):
        tw.compile_step(parameters(), lambda p, x, y: p["third"], example=batch(0))
    with pytest.raises(tw.Error, match="batches of any size are for modules"):
        tw.compile_step(parameters(), loss, example=batch(0), symbolic=True)


def test_arrays_that_the_loss_does_not_read() -> None:
    w, x = np.ones((3, 2), np.float32), np.ones((4, 3), np.float32)
    step = tw.compile_step({"w": w}, lambda p, x, y: (x @ p["w"]).sum(), tw.train.SGD(0.1), example=(x, x))
    assert step(x, x)["loss"] == 24
    with pytest.raises(tw.errors.CallError, match=r"x: f32\[4, 3\], y: f32\[4, 3\], got 1"):
        step(x)
