"""Gradients of convolutions by their weights, compiled, against the NumPy reference in f64: every way in which channels
fill blocks, windows, strides, sums in one part and in several, any number of images; over pixels and over tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.algorithms.winograd.winograd_errors import MAX_DEVIATIONS
from tilewright import ops
from tilewright.algorithms.winograd.operators.correlation import transforms
from tilewright.algorithms.winograd.plan.errors import deviations, longest
from tilewright.algorithms.winograd.plan.sums import SumsProblem, lengths
from tilewright.compiler import compile_program, passed
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.registry import get
from tilewright.plans.framework.decisions import deciding
from tilewright.runtime.model import Model
from tilewright.targets.target import Target

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


def graph_of(x: tuple[Any, ...], g: tuple[Any, ...], attrs: dict[str, Any]) -> Graph:
    builder = GraphBuilder("g")
    a, b = (builder.input(n, TensorType(f32, tuple(map(as_expr, s)))) for n, s in (("x", x), ("g", g)))
    (y,) = ops.emit(builder, "conv_weight_gradient", a, b, **attrs)
    return builder.finish((y,))


def compiled(x: tuple[Any, ...], g: tuple[Any, ...], attrs: dict[str, Any], **options: Any) -> Model:
    return Model(compile_program(graph_of(x, g, attrs), **options))


def over_tiles(
    x: tuple[Any, ...], g: tuple[Any, ...], attrs: dict[str, Any], tile: int, target: str = "host", threads: int = 1
) -> Model:
    """Summed over Winograd's tiles, whatever is estimated."""
    machine = Target.parse(target)
    with deciding() as record:
        for count in {1, threads}:  # what is little work is planned for one thread as well
            passed(graph_of(x, g, attrs), replace(machine, threads=count))
    created = [d.key.name for d in record.decisions if d.key.kind == "algorithm"]
    with deciding(dict.fromkeys(created, f"winograd_sums tile={tile}")) as record:
        model = compiled(x, g, attrs, target=machine, threads=threads)
    kinds = {d.selected.kind for d in record.decisions}
    assert "winograd_sums" in kinds
    assert target == "host" or "winograd sums" in kinds, "the plan, which on a host is one of several"
    return model


def attributes(window: tuple[int, int], arguments: dict[str, Any]) -> dict[str, Any]:
    return {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "window": window} | arguments


def attrs_of(arguments: dict[str, Any]) -> Any:
    return ops.attributes("conv_weight_gradient", arguments)


def size(extent: int, axis: int, attrs: dict[str, Any]) -> int:
    reach = (attrs["window"][axis] - 1) * attrs["dilations"][axis]
    return int((extent + attrs["pads"][axis] + attrs["pads"][2 + axis] - reach - 1) // attrs["strides"][axis] + 1)


def check(model: Model, x: Array, g: Array, attrs: dict[str, Any]) -> None:
    definition = get("conv_weight_gradient")
    arrays = [x.astype(np.float64), g.astype(np.float64)]
    (expected,) = definition.reference(arrays, ops.attributes("conv_weight_gradient", attrs))
    result = model(x, g)
    assert result.shape == expected.shape
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(result, expected, rtol=0, atol=4e-6 * scale)


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("position", range(len(CASES)))
@pytest.mark.parametrize("target", [None, "x86-64-v3"])
def test_results(position: int, target: str | None) -> None:
    n, c, h, w, f, window, inputs = CASES[position]
    attrs = attributes(window, inputs)
    rng = np.random.default_rng(position)
    x = rng.normal(size=(n, c, h, w)).astype(np.float32)
    g = rng.normal(size=(n, f, size(h, 0, attrs), size(w, 1, attrs))).astype(np.float32)
    check(compiled(x.shape, g.shape, attrs, target=target), x, g, attrs)


TILES: list[tuple[int, int, int, int, int, int, int, tuple[int, int, int, int]]] = [
    # (tile, images, channels, height, width, filters, window, pads)
    (4, 2, 32, 9, 7, 48, 3, (1, 1, 1, 1)),
    (4, 1, 16, 4, 4, 16, 3, (1, 1, 1, 1)),
    (2, 3, 20, 5, 6, 17, 3, (1, 0, 0, 2)),
    (4, 40, 48, 6, 5, 16, 3, (1, 1, 1, 1)),  # chunks of which the last one has fewer tiles
    (4, 1, 64, 66, 3, 64, 3, (0, 1, 0, 1)),
    (2, 2, 160, 2, 2, 176, 3, (1, 1, 1, 1)),  # several groups of blocks
    (2, 2, 4, 9, 9, 5, 5, (2, 2, 2, 2)),
    (3, 2, 16, 8, 8, 16, 2, (0, 0, 1, 1)),
    (2, 1, 16, 1, 1, 16, 3, (1, 1, 1, 1)),
]


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("position", range(len(TILES)))
@pytest.mark.parametrize(("target", "threads"), [("host", 1), ("host", 2), ("x86-64-v3", 1)])
def test_sums_over_tiles(position: int, target: str, threads: int) -> None:
    tile, n, c, h, w, f, window, pads = TILES[position]
    attrs = attributes((window, window), {"pads": pads})
    rng = np.random.default_rng(position)
    x = rng.normal(size=(n, c, h, w)).astype(np.float32)
    g = rng.normal(size=(n, f, size(h, 0, attrs), size(w, 1, attrs))).astype(np.float32)
    model = over_tiles(x.shape, g.shape, attrs, tile, target=target, threads=threads)
    check(model, x, g, attrs)


@pytest.mark.costly(2)
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("images", "side"), [(8, 33), (64, 4)])
def test_errors_of_sums_over_tiles_are_as_expected(tile: int, images: int, side: int) -> None:
    """Each within so many standard deviations, and all together not far below one: the model says what happens."""
    attrs = attributes((3, 3), {"pads": (1, 1, 1, 1)})
    rng = np.random.default_rng(tile)
    x, g = (rng.normal(size=(images, c, side, side)).astype(np.float32) for c in (32, 32))
    result = over_tiles(x.shape, g.shape, attrs, tile)(x, g)
    (want,) = get("conv_weight_gradient").reference([x.astype(np.float64), g.astype(np.float64)], attrs_of(attrs))
    problem = SumsProblem(images, side, side, 2, 2, 3)
    _, g_matrix, _ = transforms(3, tile)
    sums = [
        np.array(deviations(3, tile, 1, *each, filters=1 + 2 * longest(g_matrix)))
        for each in lengths(problem, tile, Target.host())
    ]
    worst = max(sums, key=max)
    # Tiles at the ends of a map are in part zeros, so that a weight's variance is that of the pixels that there are.
    scale = np.sqrt(images * side * side)
    errors = np.abs(result - want) / scale / np.sqrt(np.outer(worst, worst))
    assert errors.max() < MAX_DEVIATIONS
    assert np.sqrt((errors**2).mean()) > 0.1


def test_which_tiles_settings_allow() -> None:
    attrs = attributes((3, 3), {"pads": (1, 1, 1, 1)})
    tiles = {"exact": [], "f2": [2], "f4": [2, 4], "auto": [2, 4]}
    for fast, expected in tiles.items():
        with deciding() as record:
            compiled((4, 64, 12, 12), (4, 64, 12, 12), attrs, fast=fast)
        (created,) = (d for d in record.decisions if d.key.kind == "algorithm")
        assert {s.label for s in created.space} == {"direct", *(f"winograd_sums tile={m}" for m in expected)}


def test_what_is_not_finite_reaches_the_weights_of_its_channels() -> None:
    attrs = attributes((3, 3), {"pads": (1, 1, 1, 1)})
    x, g = np.ones((2, 32, 9, 9), np.float32), np.ones((2, 32, 9, 9), np.float32)
    x[1, 3, 4, 4], g[0, 7, 8, 8] = np.nan, np.inf
    result = over_tiles(x.shape, g.shape, attrs, 4)(x, g)
    assert np.isnan(result[:, 3]).all()
    assert not np.isfinite(result[7]).any()
    assert np.isfinite(np.delete(np.delete(result, 7, 0), 3, 1)).all()


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
    result = np.ones((32, 16, 1, 1), np.float32)
    model(np.zeros((0, 16, 3, 3), np.float32), np.zeros((0, 32, 3, 3), np.float32), out=result)
    assert not result.any()


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
    result = compiled(x.shape, g.shape, attrs)(x, g)[:, :, 0, 0]
    assert np.isnan(result[:, 3]).all()
    assert np.isinf(result[7, [k for k in range(32) if k != 3]]).all()
    assert np.isfinite(np.delete(np.delete(result, 7, 0), 3, 1)).all()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(tw.Error, match="another shape than the result"):
        compiled((2, 3, 5, 5), (2, 4, 5, 5), attributes((3, 3), {}))
    with pytest.raises(tw.Error, match="wrong length"):
        compiled((2, 3, 5, 5), (2, 4, 3, 3), attributes((3, 3), {"strides": (1,)}))
