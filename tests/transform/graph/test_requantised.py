"""Numbers of 8 bits that are dequantised, moved and quantised again stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import parse_graph
from tilewright.transform.graph.requantised import move_quantised


def text(move: str = "transpose(%a) {perm = [1, 0]}", zero: int = 7, scale: str = "%s", kind: str = "u8") -> str:
    return f"""
    graph @g(%q: {kind}[5, 7]) params(%s: f32[], %r: f32[]) {{
      %z = constant() {{value = array i32[] (7)}} : i32[]
      %f = constant() {{value = array f32[] ({zero}.0)}} : f32[]
      %w = cast(%q) {{dtype = i32}} : i32[5, 7]
      %i = sub(%w, %z) : i32[5, 7]
      %x = cast(%i) {{dtype = f32}} : f32[5, 7]
      %a = mul(%x, %s) : f32[5, 7]
      %m = {move} : f32[7, 5]
      %d = div(%m, {scale}) : f32[7, 5]
      %n = round(%d) : f32[7, 5]
      %t = add(%n, %f) : f32[7, 5]
      %y = cast(%t) {{dtype = u8}} : u8[7, 5]
      return %y
    }}"""


@pytest.mark.parametrize(
    "value", [text(), text("reshape(%a) {shape = [7, 5]}")], ids=["transposed", "in another shape"]
)
def test_only_the_move_is_left(value: str) -> None:
    after = move_quantised(parse_graph(value))
    (move,) = after.nodes
    assert move.op in ("transpose", "reshape") and move.inputs == after.inputs
    q = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
    for scale in (0.013, 1.0, 3.4e5, 1e-30):
        model = tw.compile((parse_graph(value), {"s": np.float32(scale), "r": np.float32(1)}))
        want = q.T if "transpose" in value else q.reshape(7, 5)
        np.testing.assert_array_equal(np.asarray(model(q)), want)


@pytest.mark.parametrize("scale", [0.001, 0.0173, 1.0, 5.0, 1e-36, 1e30])
def test_dividing_what_was_multiplied_is_exact(scale: float) -> None:
    levels, s = np.arange(-255, 256).astype(np.float32), np.float32(scale)
    np.testing.assert_array_equal(np.rint(levels * s / s), levels)


@pytest.mark.parametrize(
    "arguments",
    [text(zero=8), text(scale="%r"), text("neg(%k)"), text(kind="i8")],
    ids=["another zero point", "another scale", "not moved alone", "another type"],
)
def test_what_is_left_alone(arguments: str) -> None:
    arguments = arguments.replace("%m = neg(%k)", "%k = transpose(%a) {perm = [1, 0]} : f32[7, 5] %m = neg(%k)")
    graph = parse_graph(arguments)
    assert move_quantised(graph) is graph
