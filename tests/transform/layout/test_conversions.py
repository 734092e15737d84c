"""Convolutions that change layouts by themselves: the same results in one kernel, and where it pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.algorithms.winograd import test_plan as winograd
from tests.algorithms.winograd.test_operators import convolution
from tests.algorithms.winograd.winograd_errors import MAX_DEVIATIONS, errors
from tests.plans.convolution import test_convolution as direct
from tests.transform.graph.graphs import BATCH, tensor
from tilewright import ops
from tilewright.compiler import compile_graph, graph_passes
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.plans.framework.decisions import Decision, deciding
from tilewright.runtime.model import Model
from tilewright.targets.target import Target
from tilewright.transform.graph.conversions import absorbs
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.graph.split import split_prepare

HOST = Target.host()
ZEN4 = Target.parse("znver4")


def decided(graph: Graph, options: Options = DEFAULTS, forced: Mapping[str, str] | None = None) -> list[Decision]:
    """The decisions about a graph before there are kernels."""
    with deciding(forced or {}) as record:
        fused(graph, HOST, options)
    return record.decisions


def fused(graph: Graph, target: Target, options: Options = DEFAULTS) -> Sequence[Group]:
    for _, function in graph_passes(target, options):
        graph = function(graph)
    return fuse(split_prepare(graph).run, lambda *nodes: absorbs(*nodes, target=target))


def inside(decisions: Iterable[Decision]) -> dict[str, str]:
    """The settings with which all that can be converted inside is."""
    result = {d.key.name: "inside" for d in decisions if "inside" in d.space.labels}
    assert result
    return result


def labels(model: Model) -> list[str]:
    """The kernels of `run` that change layouts."""
    return [step.label for step in model.manifest.run_steps if "block_channels" in step.label]


def takes_tiles(case: tuple[Any, ...]) -> bool:
    """Whether a map is not dilated, has a whole tile, and tiles go in rows, which are transposed together."""
    tile, _, _, size, pads, block, window, stride, separate = case
    out = [(size[i] + pads[i] + pads[i + 2] - window) // stride + 1 for i in (0, 1)]
    return separate == 1 and min(out) >= tile and block[1] > 0


TILES = [case for case in (*((*case, 1, 1) for case in winograd.CASES), *winograd.STRIDED) if takes_tiles(case)]


@pytest.mark.daily(3)
@pytest.mark.costly(3)
@pytest.mark.parametrize("case", TILES, ids=str)
def test_winograd(case: tuple[Any, ...]) -> None:
    tile, channels, filters, size, pads, block, window, stride, _ = case
    rng = np.random.default_rng(tile)
    w = (rng.standard_normal((filters, channels, window, window)) / (window * np.sqrt(channels))).astype(np.float32)
    bias = rng.standard_normal((1, filters, 1, 1)).astype(np.float32)
    graph = winograd.layer(tile, BATCH, channels, filters, size, pads, block[2:], window, stride)
    with winograd.in_blocks(*block[:2]):
        with deciding(inside(decided(graph))):
            program = compile_graph(graph, {"w": w, "bias": bias}, HOST)
    for threads in (1, 3):
        model = Model(program, threads=threads)
        assert labels(model)[0] == "block_channels + conv_winograd + add + relu + unblock_channels"
        for images in (1, 2, 5):
            x = rng.standard_normal((images, channels, *size)).astype(np.float32)
            got = np.asarray(model(x))
            want = np.maximum(convolution(x, w, pads, stride) + bias, 0)
            assert errors(got, want, tile, window, channels, winograd.BLOCK, stride).max() <= MAX_DEVIATIONS


LINES: list[direct.Case] = [case for case in direct.CASES if case[4] != (1, 1)] + [
    (2, 3, 17, (40, 37), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    (3, 3, 31, (33, 70), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    (1, 17, 3, (12, 100), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (2, 64, 100, (35, 40), (3, 3), (1, 1), (0, 1, 2, 0), (1, 1)),
]


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("case", LINES, ids=str)
def test_direct(case: direct.Case, residual: bool) -> None:
    data = direct.arrays(case)
    if not residual:
        data["r"] = np.zeros((), np.float32)
    graph = direct.graph_of(case, symbolic=True, residual=residual)
    weights = {name: data[name] for name in ("w", "bias")}

    options, ways = Options(fast="exact"), direct.directly(graph, HOST)
    panels = [d for d in decided(graph, options, ways) if d.key.kind == "panels"]
    sites = ways | {d.key.name: next(x for x in d.space.labels if "flat=0" in x) for d in panels}
    with deciding(sites | inside(decided(graph, options, sites))):
        model = tw.compile((graph, weights), fast="exact")
    assert any(label.endswith("relu + unblock_channels") for label in labels(model))
    (got,) = model.run({"x": data["x"], "r": data["r"]} if residual else {"x": data["x"]}).values()
    direct.check(got, case, data)


def test_a_convolution_alone() -> None:
    """No bias and nothing else stands between it and its NCHW output."""
    rng = np.random.default_rng(0)
    for channels, window in ((3, 7), (32, 3)):
        w = rng.standard_normal((24, channels, window, window)).astype(np.float32) / window
        b = GraphBuilder("alone")
        attrs = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "groups": 1}
        x = b.input("x", tensor(1, channels, 60, 61))
        graph = b.finish((ops.emit1(b, "conv", x, b.param("w", tensor(*w.shape)), **attrs),))
        with deciding(inside(decided(graph))):
            model = tw.compile((graph, {"w": w}))
        assert len(labels(model)) == 1
        image = rng.standard_normal((1, channels, 60, 61)).astype(np.float32)
        want = convolution(image, w, (1, 1, 1, 1))
        assert np.abs(np.asarray(model(image)) - want).max() <= 2e-5 * np.abs(want).max()


def kernels(graph: Graph, winograd: str = "auto") -> list[str]:
    return [g.label for g in fused(graph, ZEN4, Options(fast=winograd))]


def layer(size: int, channels: int = 64, *, twice: bool = False, stride: int = 1) -> Graph:
    b = GraphBuilder("layer")
    x = b.input("x", tensor(1, channels, size, size))
    attrs = {"pads": (1, 1, 1, 1), "strides": (stride, stride), "dilations": (1, 1), "groups": 1}
    y, *others = (
        ops.emit1(b, "conv", x, b.param(f"w{i}", tensor(64, channels, 3, 3)), **attrs) for i in (0, 1)[: 1 + twice]
    )
    return b.finish((ops.emit1(b, "relu", y), *others))


def test_maps_that_leave_the_second_level_of_cache_are_converted_inside() -> None:
    assert kernels(layer(224)) == ["block_channels + conv_winograd + relu + unblock_channels"]
    assert kernels(layer(224, 3, stride=2), "exact") == ["conv_blocked + relu + unblock_channels"]
    assert kernels(layer(19))[0] == "block_channels"


def test_what_two_convolutions_read_is_converted_once() -> None:
    first, *others = kernels(layer(224, twice=True))
    assert first == "block_channels" and all(label.startswith("conv_winograd") for label in others)
