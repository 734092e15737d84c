"""Rows are summed before the linear layers after them, with the same results and gradients."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.sum_first import sum_rows_first
from tilewright.transform.regions.captures import names_of

ROWS = 5


def pooled(
    *,
    total: str = "reduce_mean",
    axes: str = "[1]",
    keepdims: bool = False,
    after: str = "add(%c, %b) : f32[2, 5, 8]",
    product: str = "matmul(%h, %v) : f32[2, 5, 8]",
    seen: str = "%y",
) -> Graph:
    """A sum over the positions of x + (relu(x w) v + b), with an input of each kind that may stand after the layer."""
    shape = "f32[2, 1, 8]" if keepdims else "f32[2, 8]"
    shape = {"[0]": "f32[5, 8]", "[0, 1]": "f32[8]", "[2]": "f32[2, 5]"}.get(axes, shape)
    return ops.parse_graph(f"""
        graph @g(%x: f32[2, 5, 8], %w: f32[8, 16], %v: f32[16, 8], %u: f32[8, 16], %b: f32[8], %p: f32[5, 8],
                 %q: f32[2, 1, 8], %k: f32[2, 16, 8]) {{
          %a = matmul(%x, %w) : f32[2, 5, 16]
          %h = relu(%a) : f32[2, 5, 16]
          %c = {product}
          %d = {after}
          %e = add(%x, %d) : f32[2, 5, 8]
          %y = {total}(%e) {{axes = {axes}, keepdims = {str(keepdims).lower()}}} : {shape}
          return {seen}
        }}""")


def rows(graph: Graph) -> list[int]:
    """How many rows each product has."""
    shapes = [n.output.shape[:-1] for n in graph.nodes if n.op == "matmul"]
    return [prod(as_int(d) or 0 for d in shape) for shape in shapes]


def check(graph: Graph, result: Graph) -> None:
    rng = np.random.default_rng(0)
    arrays = {v.name: rng.normal(size=[int(str(d)) for d in v.shape]).astype(np.float32) for v in graph.inputs}
    want, got = (tuple(run_graph(g, arrays).values()) for g in (graph, result))
    for expected, array in zip(want, got, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("total", ["reduce_mean", "reduce_sum"])
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, 2),
        ({"keepdims": True}, 2),
        ({"axes": "[0]"}, 5),
        ({"axes": "[0, 1]"}, 1),
        ({"after": "sub(%b, %c) : f32[2, 5, 8]"}, 2),
        ({"after": "mul(%q, %c) : f32[2, 5, 8]"}, 2),
        ({"after": "div(%c, %b) : f32[2, 5, 8]"}, 2),
        ({"after": "add(%c, %p) : f32[2, 5, 8]", "axes": "[1]"}, 2),
        ({"product": "matmul(%h, %u) {transpose_b = true} : f32[2, 5, 8]"}, 2),
    ],
    ids=["mean", "kept", "sequences", "both", "negative", "scaled", "divided", "positions", "turned weight"],
)
def test_rows_are_summed_before_the_layer(total: str, options: dict[str, str], left: int) -> None:
    graph = pooled(total=total, **options)  # type: ignore[arg-type]
    result = sum_rows_first(graph)
    assert rows(result) == [10, left]
    check(graph, result)


@pytest.mark.parametrize(
    "options",
    [
        {"axes": "[2]"},
        {"seen": "%y, %e"},
        {"seen": "%y, %c"},
        {"total": "reduce_max"},
        {"after": "tanh(%c) : f32[2, 5, 8]"},
        {"after": "mul(%c, %c) : f32[2, 5, 8]"},
        {"after": "mul(%c, %p) : f32[2, 5, 8]"},
        {"after": "div(%b, %c) : f32[2, 5, 8]"},
        {"product": "matmul(%h, %k) : f32[2, 5, 8]", "axes": "[0]"},
        {"after": "add(%c, %p) : f32[2, 5, 8]", "axes": "[0, 1]"},
    ],
    ids=["columns", "rows read", "product read", "maximum", "tanh", "square", "weighted", "divisor", "own", "in part"],
)
def test_what_is_not_linear_or_read_stays(options: dict[str, str]) -> None:
    graph = pooled(**options)  # type: ignore[arg-type]
    assert sum_rows_first(graph) is graph


def test_a_small_number_of_columns_stay() -> None:
    """A product of a few columns is no more work than the sum of its rows."""
    text = str(pooled()).replace("%v: f32[16, 8]", "%v: f32[16, 1]")
    text = text.replace("%c = matmul(%h, %v) : f32[2, 5, 8]", "%c = matmul(%h, %v) : f32[2, 5, 1]")
    graph = ops.parse_graph(text)
    assert sum_rows_first(graph) is graph


def test_gradients_are_of_a_small_number_of_rows() -> None:
    """The gradient of the layer is one row a sequence, and so is its weight's gradient a product of few."""

    def stepped(graph: Graph) -> Graph:
        b = GraphBuilder("g", list(graph.inputs), [], list(graph.nodes), names_of(graph))
        one = ops.emit1(b, "constant", value=np.ones((2, 8), np.float32))
        sources = [v for v in graph.inputs if v.name in "xwvb"]
        flows = backward(b, b.nodes, {graph.outputs[0]: one}, sources)
        return b.finish((graph.outputs[0], *(flows[v] for v in sources)))

    graph = pooled()
    before, after = stepped(graph), stepped(sum_rows_first(graph))

    def work(graph: Graph) -> int:
        """Multiply-adds of all products."""
        products = [n for n in graph.nodes if n.op == "matmul"]
        sizes = [(n.inputs[0], n.output.shape[-1]) for n in products]
        return sum(prod(as_int(d) or 0 for d in (*x.shape, columns)) for x, columns in sizes if x is not None)

    assert work(before) == 6 * ROWS * 2 * 8 * 16
    assert work(after) == 3 * (ROWS + 1) * 2 * 8 * 16
    check(before, after)


def test_names_of_inputs_stay_theirs() -> None:
    """Inputs may be called as operators are; what the pass makes has other names."""
    text = str(pooled())
    for old, new in (("x", "reduce_mean"), ("w", "matmul"), ("b", "add"), ("p", "reshape")):
        text = re.sub(rf"%{old}\b", f"%{new}", text)
    graph = ops.parse_graph(text)
    result = sum_rows_first(graph)
    names = [v.name for n in result.nodes for v in n.outputs] + [v.name for v in result.inputs]
    assert len(names) == len(set(names)) and rows(result) == [10, 2]
    check(graph, result)
