"""Convolutions of maps whose height and width are symbols, by Winograd's transforms as well, against compiles for
each size's direct convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node

SIZES = [(1, 1), (2, 3), (5, 17), (16, 16), (30, 31), (33, 64), (70, 7)]


def network(channels: int, window: int, **attributes: Any) -> Any:
    """A convolution with what is usual after it."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((channels, channels, window, window)).astype(np.float32) / (window * channels**0.5),
        "b": rng.standard_normal(channels).astype(np.float32),
    }
    pads = [attributes.get("dilations", [1])[0] * (window // 2)] * 4
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=pads, **attributes),
        node("Relu", ["c"], ["y"]),
    ]
    return model(nodes, [info("x", ["n", channels, "h", "w_"])], ["y"], weights)


@pytest.mark.daily(2)
@pytest.mark.costly(3)
@pytest.mark.parametrize(
    ("window", "attributes", "threads"),
    [(3, {}, 1), (3, {}, 2), (5, {}, 1), (3, {"strides": [2, 2]}, 1), (3, {"dilations": [2, 2]}, 1)],
)
@pytest.mark.parametrize(
    "dims",
    [
        {"h": tw.dim(1, 640, likely=[30, 64, 101]), "w_": tw.dim(1, 640, likely=[30, 64, 101])},
        {"h": tw.dim(16, 640, multiple=16, likely=[48, 96]), "w_": tw.dim(16, 640, multiple=16, likely=[64, 96])},
    ],
)
def test_maps_of_any_size(window: int, attributes: dict[str, Any], dims: dict[str, Any], threads: int) -> None:
    proto = network(32, window, **attributes)
    any_size = tw.compile(proto, dims=dims, threads=threads)
    assert isinstance(any_size, tw.Model)
    if window == 3 and not attributes:
        assert any("winograd" in s.label for s in any_size.manifest.run_steps)
    rng = np.random.default_rng(1)
    exact = tw.compile(proto, fast="exact")
    unit = dims["h"].multiple
    for height, width in {(-(-h // unit) * unit, -(-w // unit) * unit) for h, w in SIZES}:
        for images in (1, 3):
            x = rng.standard_normal((images, 32, height, width)).astype(np.float32)
            want = np.asarray(exact(x))
            np.testing.assert_allclose(any_size(x), want, rtol=0, atol=5e-5 * np.abs(want).max())


def test_chains_of_maps_that_halve_and_double() -> None:
    """Sizes of inner maps are computed from symbols."""
    rng = np.random.default_rng(0)
    weights = {k: rng.standard_normal((32, 32, 3, 3)).astype(np.float32) / 17 for k in "abc"}
    nodes = [
        node("Conv", ["x", "a"], ["p"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["p"], ["q"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["q", "b"], ["r"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["r"], ["s"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["s", "c"], ["t"], pads=[1, 1, 1, 1]),
        node("Add", ["s", "t"], ["y"]),
    ]
    proto = model(nodes, [info("x", [1, 32, "h", "w_"])], ["y"], weights)
    side = tw.dim(4, 200, likely=[64, 101])
    any_size, exact = tw.compile(proto, dims={"h": side, "w_": side}), tw.compile(proto, fast="exact")
    for height, width in ((4, 4), (9, 30), (64, 33), (101, 47)):
        x = rng.standard_normal((1, 32, height, width)).astype(np.float32)
        want = np.asarray(exact(x))
        np.testing.assert_allclose(any_size(x), want, rtol=0, atol=5e-5 * np.abs(want).max())
