"""Gradients of convolutions by their weights, compiled, against the NumPy reference in f64: every way in which channels
fill blocks, windows, strides, sums in one part and in several, any number of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler import compile_program
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.registry import get
from tilewright.runtime.model import Model

Array = np.ndarray[Any, Any]

# (images, channels, height, width, filters, window, strides, dilations, pads)
CASES: list[tuple[int, int, int, int, int, tuple[int, int], dict[str, Any]]] = [
    (2, 32, 9, 7, 48, (3, 3), {"pads": (1, 1, 1, 1)}),
    (3, 16, 8, 8, 16, (1, 1), {}),
    (3, 16, 9, 8, 32, (1, 1), {"strides": (2, 2)}),
    (2, 3, 17, 16, 64, (7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    (2, 5, 9, 9, 20, (3, 3), {"pads": (1, 0, 1, 2)}),
    (2, 64, 5, 5, 3, (3, 3), {"pads": (1, 1, 1, 1)}),
    (2, 64, 5, 5, 1, (1, 1), {}),
    (2, 1, 6, 5, 17, (2, 3), {}),
    (2, 1, 6, 5, 1, (2, 3), {}),
    (2, 40, 6, 6, 24, (1, 1), {}),
    (1, 16, 1, 1, 16, (1, 1), {}),
    (2, 16, 11, 12, 16, (3, 2), {"strides": (2, 3), "dilations": (2, 2)}),
    (5, 16, 66, 66, 16, (3, 3), {}),  # sums longer than registers keep
    (70, 16, 5, 4, 33, (2, 2), {}),
]


def compiled(x: tuple[Any, ...], g: tuple[Any, ...], attrs: dict[str, Any], **options: Any) -> Model:
    builder = GraphBuilder("g")
    a, b = (builder.input(n, TensorType(f32, tuple(map(as_expr, s)))) for n, s in (("x", x), ("g", g)))
    (y,) = ops.emit(builder, "conv_weight_gradient", a, b, **attrs)
    return Model(compile_program(builder.finish((y,)), **options))


def attributes(window: tuple[int, int], given: dict[str, Any]) -> dict[str, Any]:
    return {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "window": window} | given


def size(extent: int, axis: int, attrs: dict[str, Any]) -> int:
    reach = (attrs["window"][axis] - 1) * attrs["dilations"][axis]
    return int((extent + attrs["pads"][axis] + attrs["pads"][2 + axis] - reach - 1) // attrs["strides"][axis] + 1)


def check(model: Model, x: Array, g: Array, attrs: dict[str, Any]) -> None:
    definition = get("conv_weight_gradient")
    arrays = [x.astype(np.float64), g.astype(np.float64)]
    (expected,) = definition.reference(arrays, ops.attributes("conv_weight_gradient", attrs))
    found = model(x, g)
    assert found.shape == expected.shape
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6 * scale)


@pytest.mark.parametrize("position", range(len(CASES)))
@pytest.mark.parametrize("target", [None, "x86-64-v3"])
def test_results(position: int, target: str | None) -> None:
    n, c, h, w, f, window, given = CASES[position]
    attrs = attributes(window, given)
    rng = np.random.default_rng(position)
    x = rng.normal(size=(n, c, h, w)).astype(np.float32)
    g = rng.normal(size=(n, f, size(h, 0, attrs), size(w, 1, attrs))).astype(np.float32)
    check(compiled(x.shape, g.shape, attrs, target=target), x, g, attrs)


def test_any_number_of_images() -> None:
    attrs = attributes((3, 3), {"pads": (1, 1, 1, 1)})
    n = Var("n")
    model = compiled((n, 16, 6, 7), (n, 32, 6, 7), attrs)
    rng = np.random.default_rng(0)
    for images in (1, 2, 31, 32, 33, 100):
        x, g = (rng.normal(size=(images, c, 6, 7)).astype(np.float32) for c in (16, 32))
        check(model, x, g, attrs)


@pytest.mark.parametrize("images", [0, Var("n")])
def test_no_images(images: Any) -> None:
    attrs = attributes((1, 1), {})
    model = compiled((images, 16, 3, 3), (images, 32, 3, 3), attrs)
    found = np.ones((32, 16, 1, 1), np.float32)
    model(np.zeros((0, 16, 3, 3), np.float32), np.zeros((0, 32, 3, 3), np.float32), out=found)
    assert not found.any()


def test_threads_give_the_same_bits() -> None:
    attrs = attributes((3, 3), {"pads": (1, 1, 1, 1)})
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(40, c, 24, 24)).astype(np.float32) for c in (32, 64))
    model = compiled(x.shape, g.shape, attrs, threads=2)
    first = np.array(model(x, g))
    check(model, x, g, attrs)
    np.testing.assert_array_equal(first, model(x, g))


def test_what_is_not_finite_stays_where_it_is() -> None:
    attrs = attributes((1, 1), {})
    x, g = np.ones((2, 32, 3, 3), np.float32), np.ones((2, 16, 3, 3), np.float32)
    x[1, 3, 0, 0], g[0, 7, 1, 1] = np.nan, np.inf
    found = compiled(x.shape, g.shape, attrs)(x, g)[:, :, 0, 0]
    assert np.isnan(found[:, 3]).all()
    assert np.isinf(found[7, [k for k in range(32) if k != 3]]).all()
    assert np.isfinite(np.delete(np.delete(found, 7, 0), 3, 1)).all()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(tw.Error, match="another shape than the result"):
        compiled((2, 3, 5, 5), (2, 4, 5, 5), attributes((3, 3), {}))
    with pytest.raises(tw.Error, match="wrong length"):
        compiled((2, 3, 5, 5), (2, 4, 3, 3), attributes((3, 3), {"strides": (1,)}))
