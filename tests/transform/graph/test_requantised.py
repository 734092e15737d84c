"""Numbers of 8 bits that are dequantised, moved and quantised again stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import passed
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.graph.requantised import move_quantised

BYTES, FLOATS = Target.parse("znver4"), Target.parse("x86-64-v3")
"""A target with dot instructions of bytes, and one without."""


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
    after = move_quantised(parse_graph(value), FLOATS)
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
    assert move_quantised(graph, FLOATS) is graph


def test_what_has_another_zero_point_is_quantised_before_it_is_moved() -> None:
    graph = parse_graph(text(zero=8))
    after = move_quantised(graph, BYTES)
    (move,) = (n for n in after.nodes if n.op == "transpose")
    assert move.output == after.outputs[0] and move.output.dtype.bits == 8
    q = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
    feed, weights = {"q": q}, {"s": np.float32(0.013), "r": np.float32(1)}
    (got,), (want,) = (run_graph(g, feed, weights).values() for g in (after, graph))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(want, np.minimum(q.T.astype(int) + 1, 255))


POOLED = """
graph @g(%q: {kind}[2, 3, 9, 11]) params(%s: f32[], %w: f32[2, 3, 9, 11]) {{
  %z = constant() {{value = array i32[] ({zero})}} : i32[]
  %w32 = cast(%q) {{dtype = i32}} : i32[2, 3, 9, 11]
  %i = sub(%w32, %z) : i32[2, 3, 9, 11]
  %x = cast(%i) {{dtype = f32}} : f32[2, 3, 9, 11]
  %a = mul(%x, %s) : f32[2, 3, 9, 11]
  %y = {picked}
  return %y, %a
}}"""
PICKS = {
    "max_pool": "max_pool(%a) {dilations = [1, 1], kernel = [3, 2], pads = [1, 1, 1, 0], "
    "skips_nan = true, strides = [2, 1]} : f32[2, 3, 5, 11]",
    "slice": "slice(%a) {begin = [0, 1, 2, 0], size = [2, 2, 5, 4], step = [1, 1, 1, 3]} : f32[2, 2, 5, 4]",
}


@pytest.mark.parametrize("kind,zero", [("u8", 7), ("i8", -3)])
@pytest.mark.parametrize("name", PICKS)
@pytest.mark.parametrize("scale", [np.float32(0.37), np.float32(-0.1)])
def test_codes_are_picked_for_all_readers(name: str, kind: str, zero: int, scale: np.float32) -> None:
    graph = parse_graph(POOLED.format(kind=kind, zero=zero, picked=PICKS[name]))
    after = move_quantised(graph, BYTES)
    (pick,) = (n for n in after.nodes if n.op == name)
    assert pick.inputs[0] is not None and pick.inputs[0].dtype.bits == 8
    assert (move_quantised(graph, FLOATS) is graph) == (name == "slice")
    rng = np.random.default_rng(0)
    q = rng.integers(0, 256, (2, 3, 9, 11)).astype(np.uint8).view(np.uint8 if kind == "u8" else np.int8)
    real = (q.astype(np.int32) - zero).astype(np.float32) * scale
    if name == "slice":
        want = real[:, 1:3, 2:7, 0:10:3]
    else:
        padded = np.pad(real, [(0, 0), (0, 0), (1, 1), (1, 0)], constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(2, 3))[:, :, ::2]
        want = windows.max((-2, -1))
    model = tw.compile((graph, {"s": scale, "w": real}))
    for got in (run_graph(passed(graph, BYTES), {"q": q}, {"s": scale, "w": real})[after.outputs[0].name], model(q)[0]):
        np.testing.assert_array_equal(np.asarray(got), want)


def test_windows_of_padding_alone_are_pooled_as_numbers() -> None:
    wide = PICKS["max_pool"].replace("pads = [1, 1, 1, 0]", "pads = [3, 1, 3, 0]").replace("5, 11]", "7, 11]")
    graph = parse_graph(POOLED.format(kind="u8", zero=7, picked=wide))
    assert move_quantised(graph, BYTES) is graph


@pytest.mark.parametrize("scale", ["constant", "input"])
def test_a_scale_that_may_be_negative_pools_numbers(scale: str) -> None:
    text = POOLED.format(kind="u8", zero=7, picked=PICKS["max_pool"]).replace("%s: f32[], ", "")
    if scale == "input":
        text = text.replace(") params", ", %s: f32[]) params")
    else:
        text = text.replace("  %z =", "  %s = constant() {value = array f32[] (-0.5)} : f32[]\n  %z =")
    graph = parse_graph(text)
    assert move_quantised(graph, BYTES) is graph
