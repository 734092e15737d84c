"""Convolutions whose weights come with each call (in training, and as gradients of weights) against NumPy references:
their weights are packed in the run, and their speed is that of convolutions with weights that stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.layout.assign import assign_layouts

Shape = tuple[int, ...]

# (operator, shape of the input, shape of the weights, attributes)
CASES: list[tuple[str, Shape, Shape, dict[str, Any]]] = [
    ("conv", (2, 16, 9, 7), (32, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("conv", (3, 5, 8, 8), (7, 5, 3, 2), {"strides": (2, 1), "dilations": (1, 2)}),
    ("conv", (1, 3, 2, 2), (5, 3, 2, 2), {}),  # few pixels: not packed
    ("conv", (2, 16, 6, 6), (16, 16, 1, 1), {"strides": (2, 2)}),
    ("conv", (5, 4, 12, 11), (8, 4, 10, 9), {}),  # as the gradient of a 3x3 window
    ("conv", (2, 32, 5, 5), (64, 16, 3, 3), {"groups": 2}),
    ("conv", (2, 20, 5, 5), (20, 1, 3, 3), {"groups": 20, "pads": (1, 1, 1, 1)}),
    ("conv", (2, 6, 5, 5), (9, 2, 3, 3), {"groups": 3}),
    ("conv", (2, 3, 4, 5, 6), (16, 3, 2, 2, 2), {}),
    ("conv_transpose", (2, 16, 5, 4), (16, 9, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ("conv_transpose", (2, 5, 4, 4), (5, 7, 3, 3), {"dilations": (2, 1)}),
]


@pytest.mark.daily(4)
@pytest.mark.parametrize("position", range(len(CASES)))
def test_results(position: int) -> None:
    op, x_shape, w_shape, inputs = CASES[position]
    rank = len(x_shape) - 2
    attrs = {"strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank, "groups": 1} | inputs
    if op == "conv_transpose":
        attrs["output_padding"] = (0,) * rank
    builder = GraphBuilder("g")
    x, w = (builder.input(n, TensorType(f32, tuple(map(as_expr, s)))) for n, s in (("x", x_shape), ("w", w_shape)))
    (y,) = ops.emit(builder, op, x, w, **attrs)
    graph = builder.finish((y,))
    rng = np.random.default_rng(position)
    arrays = {"x": rng.normal(size=x_shape).astype(np.float32), "w": rng.normal(size=w_shape).astype(np.float32)}
    expected = run_graph(graph, arrays)[y.name]
    result = tw.compile(graph)(arrays["x"], arrays["w"])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_weights_are_packed_where_pixels_read_them() -> None:
    def create(size: int) -> set[str]:
        builder = GraphBuilder("g")
        x, w = (builder.input(n, TensorType(f32, tuple(map(as_expr, (2, 16, size, size))))) for n in "xw")
        w = ops.emit1(builder, "slice", w, begin=(0,) * 4, size=(2, 16, 2, 2), step=(1,) * 4)
        kinds = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "groups": 1}
        graph = builder.finish((ops.emit1(builder, "conv", x, w, **kinds),))
        return {node.op for node in assign_layouts(graph, Target.host()).nodes}

    assert "lowered.pack_conv" in create(8)
    assert "lowered.pack_conv" not in create(2)
