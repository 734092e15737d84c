"""When Strassen's method is offered."""

from __future__ import annotations

import pytest

from tests.transform.select.graphs import product, surroundings
from tilewright.algorithms.strassen.offers import one_sequence, quartered
from tilewright.transform.select.product import product_algorithm

NORMED = """graph @g(%x: f32[{x}]) params(%s: f32[256], %w: f32[{w}]) {{
  %r = {norm}(%x, %s) {{axis = {axis}, epsilon = 0.001}} : f32[{x}]
  %y = matmul(%r, %w) {{transpose_a = {transposed}}} : f32[{y}] return %y }}"""


def normed(
    x: str = "1, 512, 256",
    w: str = "256, 512",
    y: str = "1, 512, 512",
    axis: int = -1,
    norm: str = "layer_norm",
    transposed: str = "false",
) -> str:
    return NORMED.format(x=x, w=w, y=y, axis=axis, norm=norm, transposed=transposed)


@pytest.mark.parametrize(
    ("text", "fast", "expected"),
    [
        (normed(), "auto", True),
        (normed(), "f6", True),
        (normed(), "exact", False),
        (normed(), "f2", False),
        (normed(norm="rms_norm"), "auto", True),
        (normed("2, 512, 256", y="2, 512, 512"), "auto", False),  # samples would meet
        (normed("512, 256", y="512, 512"), "auto", False),  # rows of which nothing says that they are one sample's
        (normed("1, 1, 256", y="1, 1, 512"), "auto", False),  # a vector
        (normed(w="256, 511", y="1, 512, 511"), "auto", False),  # no halves
        (product("512, 256", "256, 512", "512, 512"), "auto", False),  # not normed
        (product("512, 256", "256, 512", "512, 512"), "strassen", True),
        (product("2, 512, 256", "256, 512", "2, 512, 512"), "strassen", False),
        (product("n, 256", "256, 512", "n, 512"), "strassen", False),
        (product("512, 256", "256, 512", "512, 512", "f64"), "strassen", False),
        (product("256, 512", "256, 512", "512, 512", how="transpose_a = true"), "strassen", False),
        (product("512, 256", "512, 256", "512, 512", how="transpose_b = true"), "strassen", True),
    ],
)
def test_which_products_may_be_of_quarters(text: str, fast: str, expected: bool) -> None:
    a = surroundings(text, fast=fast)
    result = quartered(a, a.graph.nodes[-1])
    assert (result is not None) == expected
    if result is not None:
        assert (result.rows, result.columns, result.depth) == (512, 512, 256)
    if not expected:
        assert product_algorithm(a, a.graph.nodes[-1]).name == "packed"


def test_rows_of_one_sample() -> None:
    for text, expected in ((normed(), True), (normed(axis=2), True), (normed(axis=1), False)):
        a = surroundings(text.replace("%s: f32[256]", "%s: f32[512, 256]") if not expected else text)
        assert one_sequence(a, a.graph.nodes[0].output) == expected
        assert not one_sequence(a, a.graph.inputs[0])
