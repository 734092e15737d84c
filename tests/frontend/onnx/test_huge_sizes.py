"""Sizes that no memory has, as constants and as data: an error each, before anything is touched. `tests/fuzz/huge.py`
tries thousands of others."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright import te
from tilewright.support.errors import CallError, Error, ExpressionError, ModelError, ShapeError


def model(text: str) -> object:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 19]>\n{text}')


@pytest.mark.parametrize("count", [1 << 61, (1 << 62) + 1, 1 << 40])
def test_what_a_loop_collects_and_nothing_reads(count: int) -> None:
    """A count times the bytes of a row wraps around to few bytes, or none."""
    text = f"""g (float[2] x) => (float[2] y) <int64 n = {{{count}}}, bool c = {{1}}> {{
      y, z = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] t, float[2] o) {{
        t = Add(s, s) o = Sqrt(t) co = Identity(ci) }}> }}"""
    with pytest.raises(ModelError, match="too large"):
        tw.compile(model(text))


@pytest.mark.parametrize("kind", ["Tile", "Expand"])
@pytest.mark.parametrize("times", [1 << 62, (1 << 62) + 1, (1 << 63) - 1, 0x5555555555555556, 1 << 31])
def test_products_that_wrap(kind: str, times: int) -> None:
    """4 * 2**62 is 0 and 3 * 0x5555555555555556 is 2 in 64 bits."""
    for rows in (3, 4):
        x = f"float[{rows}, 3] x" if kind == "Tile" else "float[1, 3] x"
        proto = model(f"g ({x}) => (float[a, b] y) <int64[2] n = {{{times}, 1}}> {{ y = {kind}(x, n) }}")
        with pytest.raises(ModelError, match=r"large|negative"):
            tw.compile(proto)


def test_outputs_that_there_is_no_memory_for() -> None:
    proto = model("g (float[n, 0] x, float[m, 0] y) => (float[n, m] z) { t = Transpose(y) z = MatMul(x, t) }")
    compiled = tw.compile(proto)
    x = np.empty(((1 << 31) - 1, 0), np.float32)
    with pytest.raises(CallError, match="large a one"):
        compiled(x, x)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1, 4, 2, 2] x) => (float[a, b, c, d] y) { y = LRN <size = 70368744177664> (x) }",
        """g (float[1, 1, 4, 4] x) => (float[a, b, c, d] y) {
          y = MaxPool <kernel_shape = [1099511627776, 1], pads = [549755813888, 0, 549755813888, 0]> (x) }""",
    ],
)
def test_windows_that_no_one_can_look_through(text: str) -> None:
    with pytest.raises(Error, match="window"):
        tw.compile(model(text))


def test_stages_between() -> None:
    n = te.var("n", lo=0)
    a = te.placeholder((n, 4), name="A")
    for more in ((1 << 36, 1 << 36), (n * (1 << 30), 1 << 31), ((1 << 40) + n, 1 << 40)):
        b = te.compute((n, *more), lambda i, j, k: te.cast(i + j + k, "f32"), name="B")
        c = te.compute((n, 4), lambda i, j, b=b: b[i, j, 0] + a[i, j], name="C")
        with pytest.raises(ShapeError, match="more memory than there can be"):
            tw.build(te.create_schedule(c), [a, c])


@pytest.mark.parametrize("extent", [1 << 62, (1 << 40) + 1, (1 << 63) - 1])
def test_extents(extent: int) -> None:
    with pytest.raises(ExpressionError, match="not an extent"):
        te.compute((extent, 4), lambda i, j: te.cast(i + j, "f32"), name="B")
    with pytest.raises(ExpressionError, match="not an extent"):
        te.reduce_axis(extent, "r")


def test_batch_dimensions_that_no_tensor_has() -> None:
    for batch in (-(1 << 62), 2, -1):
        text = f"""g (float[4, 3] x) => (float[a] y) <int64[1, 1] i = {{0}}> {{
          y = GatherND <batch_dims = {batch}> (x, i) }}"""
        with pytest.raises(Error, match="batch dimensions"):
            tw.compile(model(text))


def test_symbols_whose_product_no_i64_has() -> None:
    """The largest sizes decide which values share memory, as exactly."""
    proto = model("""g (float[n, m, k, 4] x) => (float[a, b, c, d] y) {
      s = Softmax <axis = 3> (x) t = Transpose <perm = [3, 2, 1, 0]> (s) u = Relu (t) v = Softmax <axis = 0> (u)
      y = Transpose <perm = [3, 2, 1, 0]> (v) }""")
    most = (1 << 31) - 1
    compiled = tw.compile(proto, dims={name: tw.dim(1, most) for name in ("n", "m", "k")})
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 4)).astype(np.float32)
    assert np.asarray(compiled(x)).shape == x.shape


def test_a_dilation_that_is_wider_than_numbers_are() -> None:
    weight = ", ".join(["1"] * 18)
    text = f"""g (float[1, 2, 5, 6] x) => (float[a, b, c, d] y) <float[1, 2, 3, 3] w = {{{weight}}}> {{
      y = Conv <dilations = [9223372036854775800, 2], pads = [2, 1, 2, 1]> (x, w) }}"""
    with pytest.raises(Error):
        tw.compile(model(text))
