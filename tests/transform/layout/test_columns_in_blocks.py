"""Values between products of learning steps lie in blocks of columns; results are those of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.graph import Graph
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.layout import columns
from tilewright.transform.layout.assign import assign_layouts
from tilewright.transform.layout.columns import in_columns, parts_of

TARGET = Target.parse("x86-64-v4")


def step(
    *, batch: str = "2, 64", rows: int = 128, wide: int = 96, between: str = "gelu(%hb)", more: str = "", seen: str = ""
) -> Graph:
    """Two linear layers of weights that come with each call, and the backward pass through them."""
    h = f"f32[{batch}, {wide}]"
    return ops.parse_graph(
        f"""
        graph @g(%x: f32[{batch}, 32], %w: f32[{wide}, 32], %b: f32[{wide}], %v: f32[48, {wide}],
                 %g: f32[{batch}, 48]) {{
          %h = matmul(%x, %w) {{transpose_a = false, transpose_b = true}} : {h}
          %hb = add(%h, %b) : {h}
          %a = {between} : {h}
          {more}
          %y = matmul(%a, %v) {{transpose_a = false, transpose_b = true}} : f32[{batch}, 48]
          %gr = reshape(%g) {{shape = [{rows}, 48]}} : f32[{rows}, 48]
          %ar = reshape(%a) {{shape = [{rows}, {wide}]}} : f32[{rows}, {wide}]
          %dv = matmul(%gr, %ar) {{transpose_a = true, transpose_b = false}} : f32[48, {wide}]
          %da = matmul(%g, %v) : {h}
          %p = gt(%hb, %one) : bool[{batch}, {wide}]
          %dh = select(%p, %da, %one) : {h}
          %db = reduce_sum(%dh) {{axes = [0, 1], keepdims = false}} : f32[{wide}]
          %dx = matmul(%dh, %w) : f32[{batch}, 32]
          %xr = reshape(%x) {{shape = [{rows}, 32]}} : f32[{rows}, 32]
          %dr = reshape(%dh) {{shape = [{rows}, {wide}]}} : f32[{rows}, {wide}]
          %dw = matmul(%dr, %xr) {{transpose_a = true, transpose_b = false}} : f32[{wide}, 32]
          return %y, %dv, %db, %dx, %dw{seen}
        }}""".replace("%h = matmul", "%one = constant() {value = array f32[] (1.0)} : f32[]\n          %h = matmul")
    )


def attention(*, batch: int = 2, length: int = 64, joined: bool = True, seen: str = "") -> Graph:
    """The backward pass through attention to a linear layer that makes queries, keys and values."""
    rows = batch * length
    attrs = "causal = false, fill = 0.0, first = [0, 2, 4], groups = 2, guard = false, heads = 2"
    attrs = f'{attrs}, joined = {str(joined).lower()}, order = "ssss", scale = 0.25'
    head, whole = f"f32[{batch}, {length}, 2, 16]", f"f32[{batch}, {length}, 96]"
    back = f"%d = attention_gradient(%q, %q, %q, %g) {{{attrs}}} : {whole}"
    if not joined:
        back = f"""
          %dq, %dk, %dv = attention_gradient(%q, %q, %q, %g) {{{attrs}}} : {head}, {head}, {head}
          %dc = concat(%dq, %dk, %dv) {{axis = 2}} : f32[{batch}, {length}, 6, 16]
          %d = reshape(%dc) {{shape = [{batch}, {length}, 96]}} : {whole}"""
    return ops.parse_graph(
        f"""
        graph @g(%x: f32[{batch}, {length}, 32], %w: f32[96, 32], %q: f32[{batch}, {length}, 6, 16],
                 %g: {head}) {{
          {back}
          %db = reduce_sum(%d) {{axes = [0, 1], keepdims = false}} : f32[96]
          %dx = matmul(%d, %w) : f32[{batch}, {length}, 32]
          %xr = reshape(%x) {{shape = [{rows}, 32]}} : f32[{rows}, 32]
          %dr = reshape(%d) {{shape = [{rows}, 96]}} : f32[{rows}, 96]
          %dw = matmul(%dr, %xr) {{transpose_a = true, transpose_b = false}} : f32[96, 32]
          return %db, %dx, %dw{seen}
        }}"""
    )


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LARGE", 1024)


def names(graph: Graph) -> set[str]:
    return {v.name for v in in_columns(graph, 16)}


def test_what_is_between_products() -> None:
    assert names(step()) == {"h", "hb", "a", "ar", "da", "p", "dh", "dr"}


def test_what_attention_sends_back() -> None:
    assert names(attention()) == {"d", "dr"}
    assert not names(attention(seen=", %d")) and not names(attention(joined=False))
    result = [n.op for n in assign_layouts(attention(), TARGET).nodes]
    assert result.count("lowered.conv_blocked") == result.count("lowered.conv_weight") == 1
    assert result.count("transpose") == 3  # x becomes blocks, dx rows and the weights' gradient a matrix


@pytest.mark.parametrize(
    "graph",
    [
        step(wide=90),
        step(seen=", %a"),
        step(more="%e = softmax(%a) {axis = 2} : f32[2, 64, 96]", seen=", %e"),
        step(batch="2, 4", rows=8),
        step(wide=32),
        step(batch="2, 16", rows=32),
    ],
    ids=[
        "columns that fill no blocks",
        "an output",
        "another reader",
        "few elements",
        "narrower than around them",
        "fewer than the weights",
    ],
)
def test_others_are_rows(graph: Graph) -> None:
    """A value that is tied to an output, or to a reader that wants rows, by pointwise work is rows, too: here all of
    it."""
    assert not names(graph)


def test_weights_that_stay_are_packed_beforehand() -> None:
    graph = step()
    x, *weights, g = graph.inputs
    assert not in_columns(replace(graph, inputs=(x, g), params=tuple(weights)), 16)


def test_no_copy_is_left_between_the_products() -> None:
    graph = assign_layouts(step(), TARGET)
    created = [n.op for n in graph.nodes]
    assert created.count("lowered.conv_blocked") == 4 and created.count("lowered.conv_weight") == 2
    assert "lowered.matmul_packed" not in created
    # x and g become blocks, y and dx rows again, and blocks of the weights' gradients matrices.
    assert created.count("transpose") == 6


@pytest.mark.parametrize(
    ("rows", "parts"), [(1024, 8), (128, 1), (96, 1), (300, 3), (1000, 8), (131, 1), (254, 2), (1, 1)]
)
def test_parts(rows: int, parts: int) -> None:
    assert parts_of(rows) == parts


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "graph",
    [
        step(),
        step(batch="3, 100", rows=300),
        step(batch="1, 131", rows=131, wide=64),
        step(between="mul(%hb, %b)"),
        attention(),
        attention(batch=3, length=100),
        attention(batch=1, length=384),
    ],
    ids=[
        "one part",
        "three parts",
        "a prime number of rows",
        "a factor a column",
        "attention's gradient",
        "attention's gradient, three parts",
        "attention's gradient, parts of a sequence",
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_results(graph: Graph, threads: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[int(str(d)) for d in v.shape]).astype(np.float32) for v in graph.inputs]
    wanted = run_graph(graph, dict(zip((v.name for v in graph.inputs), arrays, strict=True)))
    got = tw.compile((graph, {}), threads=threads)(*arrays)
    for mine, want in zip(got.values() if isinstance(got, dict) else got, wanted.values(), strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
