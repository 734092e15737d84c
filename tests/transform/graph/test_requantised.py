"""Numbers of 8 bits that are dequantised, moved and quantised again stay what they are."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.daily(3)
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


SELECTING = """
graph @g(%q: u8[2, 6, 9, 11], %r: u8[2, 2, 9, 11]) params(%s: f32[]) {{
  %z = constant() {{value = array i32[] ({zero})}} : i32[]
  %a32 = cast(%q) {{dtype = i32}} : i32[2, 6, 9, 11]
  %az = sub(%a32, %z) : i32[2, 6, 9, 11]
  %af = cast(%az) {{dtype = f32}} : f32[2, 6, 9, 11]
  %a = mul(%af, %s) : f32[2, 6, 9, 11]
  %b32 = cast(%r) {{dtype = i32}} : i32[2, 2, 9, 11]
  %bz = sub(%b32, %z) : i32[2, 2, 9, 11]
  %bf = cast(%bz) {{dtype = f32}} : f32[2, 2, 9, 11]
  %b = mul(%bf, %s) : f32[2, 2, 9, 11]
  %index = constant() {{value = array i64[2, 2, 9, 11] ({at})}} : i64[2, 2, 9, 11]
  %y = {selecting}
  return %y, %a, %b
}}"""
AT = np.random.default_rng(7).integers(0, 6, (2, 2, 9, 11))


def scattered(a: Any, b: Any, combine: Any) -> Any:
    result = a.copy()
    for n, c, h, w in np.ndindex(b.shape):
        at = n, AT[n, c, h, w], h, w
        result[at] = combine(result[at], b[n, c, h, w])
    return result


def largest(a: Any, sign: int) -> Any:
    return np.take_along_axis(a, np.argsort(sign * a, axis=1, kind="stable"), 1)[:, :4]


SELECTED: dict[str, tuple[str, Any]] = {
    "largest": (
        "topk(%a) {axis = 1, k = 4, largest = true} : f32[2, 4, 9, 11], i64[2, 4, 9, 11]",
        lambda a, b: largest(a, -1),
    ),
    "smallest": (
        "topk(%a) {axis = 1, k = 4, largest = false} : f32[2, 4, 9, 11], i64[2, 4, 9, 11]",
        lambda a, b: largest(a, 1),
    ),
    "scatter": (
        'scatter_elements(%a, %index, %b) {axis = 1, reduction = "none"} : f32[2, 6, 9, 11]',
        lambda a, b: scattered(a, b, lambda old, new: new),
    ),
    "scatter, greatest": (
        'scatter_elements(%a, %index, %b) {axis = 1, reduction = "max"} : f32[2, 6, 9, 11]',
        lambda a, b: scattered(a, b, np.maximum),
    ),
    "gather": (
        "gather_elements(%a, %index) {axis = 1} : f32[2, 2, 9, 11]",
        lambda a, b: np.take_along_axis(a, AT, 1),
    ),
    "tile": ("tile(%a) {repeats = [1, 2, 1, 1]} : f32[2, 12, 9, 11]", lambda a, b: np.tile(a, (1, 2, 1, 1))),
    "edges": (
        'pad(%a) {after = [0, 0, 2, 1], before = [0, 0, 1, 0], mode = "edge"} : f32[2, 6, 12, 12]',
        lambda a, b: np.pad(a, [(0, 0), (0, 0), (1, 2), (0, 1)], mode="edge"),
    ),
    "zeros": (
        'pad(%a) {after = [0, 0, 2, 1], before = [0, 0, 1, 0], mode = "constant"} : f32[2, 6, 12, 12]',
        lambda a, b: np.pad(a, [(0, 0), (0, 0), (1, 2), (0, 1)]),
    ),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", SELECTED)
@pytest.mark.parametrize("scale", [np.float32(0.37), np.float32(-0.1)])
def test_operators_select_codes(name: str, scale: np.float32) -> None:
    selecting, reference = SELECTED[name]
    text = SELECTING.format(zero=7, selecting=selecting, at=", ".join(map(str, AT.reshape(-1))))
    graph = parse_graph(text if "topk" not in selecting else text.replace("%y = topk", "%y, %order = topk"))
    after = move_quantised(graph, BYTES)
    (node,) = (n for n in after.nodes if n.op == selecting.split("(")[0])
    assert node.inputs[0] is not None and node.inputs[0].dtype.bits == 8
    rng = np.random.default_rng(0)
    q, r = (rng.integers(0, 256, (2, n, 9, 11)).astype(np.uint8) for n in (6, 2))
    a, b = ((v.astype(np.int32) - 7).astype(np.float32) * scale for v in (q, r))
    model = tw.compile((graph, {"s": scale}))
    for got in (run_graph(after, {"q": q, "r": r}, {"s": scale})[after.outputs[0].name], model(q, r)[0]):
        np.testing.assert_array_equal(np.asarray(got), reference(a, b))


@pytest.mark.parametrize("other", ["%t", "8"], ids=["another scale", "another zero point"])
def test_a_scatter_of_other_codes_is_of_numbers(other: str) -> None:
    text = SELECTING.format(zero=7, selecting=SELECTED["scatter"][0], at=", ".join(map(str, AT.reshape(-1))))
    if other == "%t":
        text = text.replace("mul(%bf, %s)", "mul(%bf, %t)").replace("%s: f32[])", "%s: f32[], %t: f32[])")
    else:
        text = text.replace("%bz = sub(%b32, %z)", "%bz = sub(%b32, %v)")
        text = text.replace("  %z =", "  %v = constant() {value = array i32[] (8)} : i32[]\n  %z =")
    graph = parse_graph(text)
    assert move_quantised(graph, BYTES) is graph


@pytest.mark.costly(2)
@pytest.mark.parametrize("padding,zero", [("border", 7), ("reflection", 7), ("zeros", 0), ("zeros", 7)])
def test_nearest_samples_are_those_of_codes(padding: str, zero: int) -> None:
    """Zeros around codes that have another zero point are numbers."""
    graph = parse_graph(f"""
    graph @g(%q: u8[2, 6, 9, 11], %p: f32[2, 5, 4, 2]) params(%s: f32[]) {{
      %z = constant() {{value = array i32[] ({zero})}} : i32[]
      %a32 = cast(%q) {{dtype = i32}} : i32[2, 6, 9, 11]
      %az = sub(%a32, %z) : i32[2, 6, 9, 11]
      %af = cast(%az) {{dtype = f32}} : f32[2, 6, 9, 11]
      %a = mul(%af, %s) : f32[2, 6, 9, 11]
      %y = grid_sample(%a, %p) {{align_corners = true, mode = "nearest", padding = "{padding}"}} : f32[2, 6, 5, 4]
      return %y
    }}""")
    after = move_quantised(graph, BYTES)
    (node,) = (n for n in after.nodes if n.op == "grid_sample")
    assert (node.output.dtype.bits == 8) == (padding != "zeros" or zero == 0)
    rng, scale = np.random.default_rng(0), np.float32(0.37)
    q, p = rng.integers(0, 256, (2, 6, 9, 11)).astype(np.uint8), rng.uniform(-1.3, 1.3, (2, 5, 4, 2))
    p = p.astype(np.float32)
    a = (q.astype(np.int32) - zero).astype(np.float32) * scale
    want = np.zeros((2, 6, 5, 4), np.float32)
    for n, h, w in np.ndindex(2, 5, 4):
        x, y = (np.rint((float(c) + 1) / 2 * (d - 1)) for c, d in zip(p[n, h, w], (11, 9), strict=True))
        if padding == "reflection":
            x, y = (d - 1 - abs(abs(c) - (d - 1)) for c, d in ((x, 11), (y, 9)))
        at = (int(np.clip(y, 0, 8)), int(np.clip(x, 0, 10)))
        if padding != "zeros" or at == (y, x):
            want[n, :, h, w] = a[(n, slice(None), *at)]
    for got in (*run_graph(after, {"q": q, "p": p}, {"s": scale}).values(), tw.compile((graph, {"s": scale}))(q, p)):
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.costly(2)
@pytest.mark.parametrize("length,wide", [(128, "i16"), (129, "i32"), (70_000, "")])
@pytest.mark.parametrize("way", ["", ", exclusive = true", ", reverse = true", ", exclusive = true, reverse = true"])
def test_sums_of_codes_are_exact(length: int, wide: str, way: str) -> None:
    """Where an f32 would round the sums, they are of numbers."""
    graph = parse_graph(f"""
    graph @g(%q: u8[3, {length}]) params(%s: f32[]) {{
      %z = constant() {{value = array i32[] (7)}} : i32[]
      %w = cast(%q) {{dtype = i32}} : i32[3, {length}]
      %i = sub(%w, %z) : i32[3, {length}]
      %x = cast(%i) {{dtype = f32}} : f32[3, {length}]
      %a = mul(%x, %s) : f32[3, {length}]
      %y = cumsum(%a) {{axis = 1{way}}} : f32[3, {length}]
      return %y
    }}""")
    after = move_quantised(graph, BYTES)
    if not wide:
        assert after is graph
        return
    (node,) = (n for n in after.nodes if n.op == "cumsum")
    assert node.inputs[0] in after.inputs and node.output.dtype.name == wide
    q, scale = np.random.default_rng(0).integers(0, 256, (3, length)).astype(np.uint8), np.float32(0.37)
    q[0], step = 255, -1 if "reverse" in way else 1
    each = q.astype(np.int64)[:, ::step] - 7
    sums = np.cumsum(each, 1) - (each if "exclusive" in way else 0)
    want = sums[:, ::step].astype(np.float32) * scale
    for got in (*run_graph(after, {"q": q}, {"s": scale}).values(), tw.compile((after, {"s": scale}))(q)):
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
