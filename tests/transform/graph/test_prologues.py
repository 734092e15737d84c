"""Images in integers: the scale goes into the weights, the conversion into the first convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import BATCH, tensor
from tilewright import ops
from tilewright.compiler import graph_passes
from tilewright.ir.dtype import f32, u8
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.split import split_prepare

ZEN4 = Target.parse("znver4")


def network(pads: tuple[int, ...], op: str = "div", shared: bool = False, batch: Any = BATCH) -> Graph:
    """uint8 frames, scaled, through one strided convolution."""
    b = GraphBuilder("case")
    x = ops.emit1(b, "cast", b.input("x", TensorType(u8, tensor(batch, 4, 21, 22).shape)), dtype=f32)
    scale = ops.emit1(b, "constant", value=np.asarray(255.0 if op == "div" else 1 / 255, np.float32))
    x = ops.emit1(b, op, *((x, scale) if op == "div" else (scale, x)))
    w = b.param("w", tensor(8, 4, 5, 5))
    y = ops.emit1(b, "conv", x, w, pads=pads, strides=(2, 2), dilations=(1, 1), groups=1)
    y = ops.emit1(b, "relu", y)
    return b.finish((y, ops.emit1(b, "relu", x)) if shared else (y,))


def labels(graph: Graph) -> list[str]:
    for _, function in graph_passes(ZEN4):
        graph = function(graph)
    return [g.label for g in fuse(split_prepare(graph).run)]


@pytest.mark.parametrize("op", ["div", "mul"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (2, 1, 0, 2)])
def test_frames_are_converted_inside_the_convolution(pads: tuple[int, ...], op: str) -> None:
    graph = network(pads, op)
    first, *others = labels(graph)
    assert first.endswith("cast + conv_blocked + relu") and others == ["unblock_channels"]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 4, 5, 5)).astype(np.float32)
    model = tw.compile((graph, {"w": w}))
    for n in (1, 3):
        x = rng.integers(0, 256, (n, 4, 21, 22)).astype(np.uint8)
        (got,) = model.run({"x": x}).values()
        padded = np.pad(x / 255.0, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (2, 3))[:, :, ::2, ::2]
        want = np.maximum(np.einsum("nchwij,kcij->nkhw", windows, w.astype(np.float64)), 0)
        assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def test_what_others_read_too_is_computed_once() -> None:
    assert "conv_blocked + relu" in labels(network((0, 0, 0, 0), shared=True))
