"""Programs that once read or wrote outside, or raised what is no error of ours, by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import parser

import tilewright as tw

ONNX = (
    # What is padded with its own elements has to have some.
    """g (float[n, 8] x) => (float[a, b] y) <int64[4] p = {1, 0, 2, 0}> { y = Pad <mode: string = "wrap"> (x, p) }""",
    """g (float[n, 8] x) => (float[a, b] y)
    <int64[4] p = {0, 0, 2, 0}, int64[1] two = {2}, int64[1] last = {-1}, int64[1] low = {-2147483648},
     int64[1] o = {0}> {
      padded = Pad <mode: string = "edge"> (x, p)
      best, _i = TopK <axis: int = 0> (padded, two)
      y = Slice (best, last, low, o, last)
    }""",
    # Rows that are counted by a quotient of no elements.
    """g (float[n, 3] x) => (float[a, b] y)
    <int64[1] from = {-3}, int64[1] to = {2147483648}, int64[1] o = {0}, int64[1] step = {4611686018427387904},
     int64[3] s = {-1, 1, 3}, float[1, 4, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, float[1, 4, 1] r = {1, 1, 1, 1},
     int64[2] t = {-1, 1}> {
      cut = Slice (x, from, to, o, step)
      wide = Concat <axis: int = 1> (cut, cut)
      turned = Transpose (wide)
      rows = Reshape (turned, s)
      h = LSTM <hidden_size: int = 1> (rows, w, r)
      y = Reshape (h, t)
    }""",
)


def text(seed: int) -> str:
    """The program of a number."""
    return ONNX[seed]


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the program of a number at sizes n and m."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 19]>\n{ONNX[seed]}')
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].ClearField("type")
    model = tw.compile(proto, threads=threads)

    def call(n: int, m: int) -> Any:
        sizes = {"n": n, "m": m}
        rng = np.random.default_rng(n)
        shapes = [[sizes.get(str(d), d) for d in i.shape] for i in model.inputs]
        return model(*(rng.standard_normal([int(d) for d in shape]).astype(np.float32) for shape in shapes))

    return call
