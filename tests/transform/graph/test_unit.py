"""Attention with one key, and products of depth one: against NumPy, with NaN, infinity and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.expr import as_int
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.graph.unit import simplify_units

RNG = np.random.default_rng(17)

ATTENTION = """
graph @g(%q: f32[2, n, D], %k: f32[2, 1, D], %v: f32[2, 1, V], %mask: f32[n, 1]) where n in 1.. {
  %c = constant() {value = array f32[] (0.5)} : f32[]
  %s = matmul(%q, %k) {transpose_b = true} : f32[2, n, 1]
  %t = mul(%s, %c) : f32[2, n, 1]
  %m = add(%t, %mask) : f32[2, n, 1]
  %p = softmax(%m) {axis = -1} : f32[2, n, 1]
  %y = matmul(%p, %v) : f32[2, n, V]
  return %y
}"""


@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 1, 1), (7, 16, 5), (33, 17, 64)])
def test_attention_with_one_key(rows: int, depth: int, width: int) -> None:
    model = tw.compile((parse_graph(ATTENTION.replace("D]", f"{depth}]").replace("V]", f"{width}]")), {}))
    assert "softmax" not in model.show("graph") and "attention" not in model.show("graph")
    q, k, v = (RNG.standard_normal(s).astype(np.float32) for s in ((2, rows, depth), (2, 1, depth), (2, 1, width)))
    mask = np.zeros((rows, 1), np.float32)
    if rows > 1:
        q[0, 0, 0], q[1, 1, 0], v[1, 0, 0], mask[2], mask[3] = np.nan, np.inf, np.inf, -np.inf, -1e30
    y = model(q, k, v, mask)
    with np.errstate(invalid="ignore"):
        scores = np.einsum("bid,bjd->bij", q, k) * 0.5 + mask
        raised = np.exp(scores - scores.max(-1, keepdims=True))
        want = (raised / raised.sum(-1, keepdims=True)) * v
    np.testing.assert_array_equal(y, want)
    assert rows == 1 or (np.isnan(y[:, 2]).all() and np.isfinite(y[0, 3]).all())


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_depth_one(transposed: bool) -> None:
    shape = "[3, 9, 1]" if transposed else "[3, 1, 9]"
    text = f"""
    graph @g(%a: f32[5, 1, n, 1], %b: f32{shape}) where n in 1.. {{
      %y = matmul(%a, %b) {{transpose_b = {str(transposed).lower()}}} : f32[5, 3, n, 9]
      return %y
    }}"""
    model = tw.compile((parse_graph(text), {}))
    assert "matmul" not in model.show("graph")
    for n in (1, 4, 31):
        a = RNG.standard_normal((5, 1, n, 1)).astype(np.float32)
        b: Any = RNG.standard_normal((3, 9, 1) if transposed else (3, 1, 9)).astype(np.float32)
        a[0, 0, 0], b[0, 0, 0] = np.inf, 0
        with np.errstate(invalid="ignore"):
            want = a * (b.swapaxes(1, 2) if transposed else b)
        np.testing.assert_array_equal(model(a, b), want)


@pytest.mark.parametrize(("whole", "joined"), [("1, 4", True), ("1, 1, 4", True), ("2, 2", False)])
def test_products_keep_leading_ones_that_reshapes_took_and_gave_back(whole: str, joined: bool) -> None:
    """One product with its batch of one instead of reshapes around one without; of another batch they stay."""
    types = {name: f"f32[{whole}, {shape}]" for name, shape in (("a", "6, 8"), ("b", "8, 5"), ("y", "6, 5"))}
    batch = ", ".join(f"${d}" for d in whole.split(", "))
    text = f"""graph @g(%a: {types["a"]}, %b: {types["b"]}) {{
      %c = reshape(%a) {{shape = [$4, $6, $8]}} : f32[4, 6, 8]
      %d = reshape(%b) {{shape = [$4, $8, $5]}} : f32[4, 8, 5]
      %p = matmul(%c, %d) {{transpose_a = false}} : f32[4, 6, 5]
      %y = reshape(%p) {{shape = [{batch}, $6, $5]}} : {types["y"]}
      return %y
    }}"""
    graph = parse_graph(text)
    result = eliminate_dead(simplify_units(graph))
    assert [n.op for n in result.nodes] == (["matmul"] if joined else ["reshape", "reshape", "matmul", "reshape"])
    assert result.outputs[0].type == graph.outputs[0].type


VOLUME = """
graph @g(%x: f32[n, 6, D, 5, 3], %r: f32[1, 1, D, 1, 1], %s: f32[n, 8, 1, 5, 3], %l: f32[3])
    params(%w: f32[8, 3, K], %b: f32[8, 1, 1, 1]) where n in 1.. {
  %c = conv(%x, %w) {
    dilations = [1, 1, 1], groups = 2, pads = [P, P], strides = [1, 1, 1]} : f32[n, 8, D, 5, 3]
  %t = add(%c, %b) : f32[n, 8, D, 5, 3]
  %u = relu(%t) : f32[n, 8, D, 5, 3]
  %v = mul(%u, %l) : f32[n, 8, D, 5, 3]
  %y = mul(%v, %r) : f32[n, 8, D, 5, 3]
  %z = add(%y, %s) : f32[n, 8, D, 5, 3]
  return %z, %v
}"""


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("window", "joined"),
    [((1, 1, 1), True), ((3, 1, 1), True), ((1, 1, 3), True), ((3, 3, 1), False), ((3, 1, 3), False)],
)
@pytest.mark.parametrize("depth", [1, 4])
def test_dimensions_without_windows_are_one(window: tuple[int, ...], joined: bool, depth: int) -> None:
    """A map's convolution and what is pointwise after it, also with operands along one of the two dimensions alone."""
    sizes, pads = (", ".join(map(str, values)) for values in (window, (k // 2 for k in window)))
    graph = parse_graph(VOLUME.replace("K]", f"{sizes}]").replace("P", pads).replace("D,", f"{depth},"))
    result = eliminate_dead(simplify_units(graph))
    ranks = [[n.output.type.rank for n in result.nodes if n.op == op] for op in ("conv", "relu")]
    assert ranks == [[4], [4]] if joined else [[5], [5]]
    assert [v.type for v in result.outputs] == [v.type for v in graph.outputs]
    inputs, weights = (
        {v.name: RNG.standard_normal([as_int(d) or 2 for d in v.shape], np.float32) for v in values}
        for values in (graph.inputs, graph.params)
    )
    want = run_graph(graph, inputs, weights)
    compiled = tw.compile((graph, weights))
    for got in (run_graph(result, inputs, weights), dict(zip(want, compiled(*inputs.values()), strict=True))):
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


GATE = """
graph @g(%x: f32[n, 6, 1, 1], %m: f32[n, 6, H, 3]) params(%w: f32[4, 6, 1, 1], %v: f32[6, C, 1, 1], %d: f32[6, 1, 1],
    %s: f32[]) where n in 0.. {
  %c = conv(%x, %w) {dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [S, 1]} : f32[n, 4, 1, 1]
  %u = sigmoid(%c) : f32[n, 4, 1, 1]
  %h = mul(%c, %u) : f32[n, 4, 1, 1]
  %e = conv(%h, %v) {dilations = [1, 1], groups = G, pads = [0, 0, 0, 0], strides = [1, 1]} : f32[n, 6, 1, 1]
  %t = add(%e, %d) : f32[n, 6, 1, 1]
  %k = mul(%t, %s) : f32[n, 6, 1, 1]
  %y = mul(%m, %k) : f32[n, 6, H, 3]
  return %y, %h
}"""


@pytest.mark.daily(4)
@pytest.mark.parametrize(("groups", "products"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("height", [1, 5])
def test_maps_of_one_pixel_are_rows(groups: int, products: int, height: int) -> None:
    """Squeeze and excitation: convolutions and what is pointwise between them, up to the map that they scale."""
    text = GATE.replace("H,", f"{height},").replace("C,", f"{4 // groups},").replace("= G,", f"= {groups},")
    graph = parse_graph(text.replace("[S,", f"[{height},"))
    result = eliminate_dead(simplify_units(graph))
    assert sum(n.op == "matmul" for n in result.nodes) == products
    ranks = {n.op: n.output.type.rank for n in result.nodes if n.op in ("sigmoid", "conv")}
    assert ranks == ({"sigmoid": 2} if groups == 1 else {"sigmoid": 2, "conv": 4})
    assert [v.type for v in result.outputs] == [v.type for v in graph.outputs]
    weights = {v.name: RNG.standard_normal([as_int(d) or 2 for d in v.shape], np.float32) for v in graph.params}
    compiled = tw.compile((graph, weights))
    for images in (0, 1, 3):
        x, m = (RNG.standard_normal((images, 6, *sides), np.float32) for sides in ((1, 1), (height, 3)))
        want = run_graph(graph, {"x": x, "m": m}, weights)
        for got in (run_graph(result, {"x": x, "m": m}, weights), dict(zip(want, compiled(x, m), strict=True))):
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pads", ["0, 0, 0, 1", "1, 1, 1, 1"])
def test_maps_of_one_pixel_with_padding_stay(pads: str) -> None:
    text = f"""
    graph @g(%x: f32[2, 6, 1, 1]) params(%w: f32[4, 6, 1, 1]) {{
      %c = conv(%x, %w) {{dilations = [1, 1], groups = 1, pads = [{pads}], strides = [3, 3]}} : f32[2, 4, 1, 1]
      return %c
    }}"""
    graph = parse_graph(text)
    assert simplify_units(graph) is graph


@pytest.mark.parametrize("largest", [True, False])
def test_single_elements_are_sorted(largest: bool) -> None:
    text = f"""
    graph @g(%x: f32[n, 1, 5]) where n in 0.. {{
      %y, %i = topk(%x) {{axis = 1, k = 1, largest = {str(largest).lower()}}} : f32[n, 1, 5], i64[n, 1, 5]
      %z = add(%y, %y) : f32[n, 1, 5]
      return %z, %i
    }}"""
    model = tw.compile((parse_graph(text), {}))
    assert "topk" not in model.show("graph")
    for n in (0, 1, 7):
        x = RNG.standard_normal((n, 1, 5)).astype(np.float32)
        if n:
            x[0, 0, 2] = np.nan
        doubled, indices = model(x)
        np.testing.assert_array_equal(doubled, x + x)
        np.testing.assert_array_equal(indices, np.zeros((n, 1, 5), np.int64))


def test_no_element_of_one_is_selected() -> None:
    text = """
    graph @g(%x: f32[3, 1]) {
      %y, %i = topk(%x) {axis = 1, k = 0, largest = true} : f32[3, 0], i64[3, 0]
      return %y, %i
    }"""
    model = tw.compile((parse_graph(text), {}))
    assert [y.shape for y in model(np.ones((3, 1), np.float32))] == [(3, 0), (3, 0)]
