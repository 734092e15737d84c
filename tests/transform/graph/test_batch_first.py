"""Attention goes batch first where transpositions go away by it, with the same results."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright import ops
from tilewright.ir.graph import Graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.batch_first import batch_first

ATTRS = "causal = false, fill = 0.0, first = [0, 2, 4], groups = 2, guard = false, heads = 2"


def layer(
    *, transposed: str = "%x", before: str = "[1, 0, 2]", following: str = "[1, 0, 2]", seen: str = "%z"
) -> Graph:
    """Self-attention over x [B, S, E] as PyTorch's layer has it."""
    return ops.parse_graph(f"""
        graph @g(%x: f32[3, 3, 8], %w: f32[24, 8], %b: f32[24], %o: f32[8, 8], %m: f32[3, 1, 24]) {{
          %t = transpose({transposed}) {{perm = {before}}} : f32[3, 3, 8]
          %p = matmul(%t, %w) {{transpose_b = true}} : f32[3, 3, 24]
          %a = add(%p, %b) : f32[3, 3, 24]
          %h = reshape(%a) {{shape = [$3, $3, $6, $4]}} : f32[3, 3, 6, 4]
          %y = lowered.attention(%h, %h, %h) {{{ATTRS}, order = "tttt", scale = 0.5}} : f32[3, 3, 2, 4]
          %f = reshape(%y) {{shape = [$9, $8]}} : f32[9, 8]
          %l = matmul(%f, %o) : f32[9, 8]
          %e = exp(%l) : f32[9, 8]
          %s = reshape(%e) {{shape = [$3, $3, $8]}} : f32[3, 3, 8]
          %z = transpose(%s) {{perm = {following}}} : f32[3, 3, 8]
          return {seen}
        }}""")


def transpositions(graph: Graph) -> int:
    return [n.op for n in graph.nodes].count("transpose")


@pytest.mark.parametrize(
    ("graph", "order", "left"),
    [
        (layer(), "ssss", 0),
        (layer(following="[0, 1, 2]"), "ssst", 1),
        (layer(before="[0, 1, 2]"), "ttts", 1),
        (layer(seen="%z, %p"), "ttts", 1),
        (layer(seen="%z, %e"), "ssst", 1),
        (layer(following="[0, 1, 2]", before="[0, 1, 2]"), "tttt", 2),
    ],
    ids=["both", "before", "behind", "projection read", "result read", "other transpositions"],
)
def test_transpositions_go_away(graph: Graph, order: str, left: int) -> None:
    """Where others read the turned values, they stay; nothing is computed twice."""
    result = batch_first(graph)
    (attention,) = (n for n in result.nodes if n.op == "lowered.attention")
    assert (attention.attrs.order, transpositions(result)) == (order, left)  # type: ignore[union-attr]
    assert len(result.nodes) == len(graph.nodes) - 2 + left
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.normal(size=[int(str(d)) for d in v.shape]).astype(np.float32) for v in graph.inputs}
    want, got = run_graph(graph, arrays), run_graph(result, arrays)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


def test_rows_that_differ_stay_where_they_are() -> None:
    """An addend for each position by itself is not the same in the other order."""
    text = str(layer()).replace("add(%p, %b)", "add(%p, %m)")
    graph = ops.parse_graph(text)
    assert batch_first(graph).nodes[0].op == "transpose"
    (attention,) = (n for n in batch_first(graph).nodes if n.op == "lowered.attention")
    assert attention.attrs.order == "ttts"  # type: ignore[union-attr]


def test_names_of_inputs_stay_theirs() -> None:
    """Inputs may be called as operators are; what the pass makes has other names."""
    text = str(layer())
    for old, new in (("x", "attention"), ("w", "matmul"), ("b", "add"), ("o", "reshape")):
        text = re.sub(rf"%{old}\b", f"%{new}", text)
    result = batch_first(ops.parse_graph(text))
    assert transpositions(result) == 0
    names = [v.name for v in (*result.inputs, *(v for n in result.nodes for v in n.outputs))]
    assert len(names) == len(set(names))
