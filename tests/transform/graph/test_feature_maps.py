"""Pointwise operators between windows over lines: on maps, with the results of the graph as it was written."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Value
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.feature_maps import keep_maps
from tilewright.transform.graph.rewrite import eliminate_dead

RNG = np.random.default_rng(19)
LENGTH = 11

LINES = """
graph @g(%x: f32[2, 3, n], %r: f32[R]) params(%v: f32[4, 3, 1, 3], %w: f32[4, 4, 1, 3]) where n in 1..40 {
  %a = reshape(%x) {shape = [$2, $3, $1, $n]} : f32[2, 3, 1, n]
  %b = conv(%a, %v) {dilations = [1, 1], groups = 1, pads = [0, 1, 0, 1], strides = [1, 1]} : f32[2, 4, 1, n]
  %c = relu(%b) : f32[2, 4, 1, n]
  %d = reshape(%c) {shape = [$2, $4, $n]} : f32[2, 4, n]
  %e = add(%d, %r) : f32[2, 4, n]
  %f = tanh(%e) : f32[2, 4, n]
  %g = reshape(%f) {shape = [$2, $4, $1, $n]} : f32[2, 4, 1, n]
  %h = conv(%g, %w) {dilations = [1, 1], groups = 1, pads = [0, 1, 0, 1], strides = [1, 1]} : f32[2, 4, 1, n]
  %i = reshape(%h) {shape = [$2, $4, $n]} : f32[2, 4, n]
  %y = add(%i, %f) : f32[2, 4, n]
  return %y, %e
}"""


def _reshaped(graph: Graph) -> int:
    """Reshapes of what is computed."""
    produced = {v for n in graph.nodes for v in n.outputs if n.op != "reshape"}
    return sum(n.op == "reshape" and n.inputs[0] in produced for n in graph.nodes)


def _arrays(values: tuple[Value, ...]) -> dict[str, np.ndarray]:
    shapes = ((v.name, [as_int(d) or LENGTH for d in v.shape]) for v in values)
    return {name: (RNG.standard_normal(prod(s)).reshape(s) * 0.5).astype(np.float32) for name, s in shapes}


@pytest.mark.daily(3)
@pytest.mark.parametrize("operand", ["2, 4, n", "4, 1", "1, 1, n", "n", "1"])
def test_lines_between_convolutions_stay_maps(operand: str) -> None:
    """The second convolution reads what is pointwise before it as it is; two results are given back as lines."""
    graph = parse_graph(LINES.replace("R]", f"{operand}]"))
    result = eliminate_dead(keep_maps(graph))
    (second,) = [n for n in result.nodes if n.op == "conv" and n.output.name == "h"]
    (before,) = [n for n in result.nodes if second.inputs[0] in n.outputs]
    assert before.op == "tanh"
    assert _reshaped(graph) == 3 and _reshaped(result) == 2
    assert [(v.name, v.type) for v in result.outputs] == [(v.name, v.type) for v in graph.outputs]
    inputs, weights = _arrays(graph.inputs), _arrays(graph.params)
    want = run_graph(graph, inputs, weights)
    compiled = tw.compile((graph, weights))
    for got in (run_graph(result, inputs, weights), dict(zip(want, compiled(*inputs.values()), strict=True))):
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


def test_rows_of_a_map_that_are_no_lines_stay() -> None:
    """A reshape that joins dimensions, or leaves out the batch, is not one line of a map."""
    for shape in ("2, 12", "1, 24", "6, 4"):
        graph = parse_graph(f"""
        graph @g(%x: f32[1, 3, 2, 4]) params(%v: f32[3, 3, 1, 1]) {{
          %b = conv(%x, %v) {{dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]}} : f32[1, 3, 2, 4]
          %d = reshape(%b) {{shape = [{", ".join("$" + d for d in shape.split(", "))}]}} : f32[{shape}]
          %y = relu(%d) : f32[{shape}]
          return %y
        }}""")
        assert keep_maps(graph) is graph


def test_lines_between_convolutions_are_no_kernels() -> None:
    """A model of two such convolutions with a function between has one kernel each, beside the changes of layout."""
    text = """
    graph @g(%x: f32[1, 16, 48]) params(%v: f32[32, 16, 1, 3], %w: f32[32, 32, 1, 3]) {
      %a = reshape(%x) {shape = [$1, $16, $1, $48]} : f32[1, 16, 1, 48]
      %b = conv(%a, %v) {dilations = [1, 1], groups = 1, pads = [0, 1, 0, 1], strides = [1, 1]} : f32[1, 32, 1, 48]
      %d = reshape(%b) {shape = [$1, $32, $48]} : f32[1, 32, 48]
      %f = relu(%d) : f32[1, 32, 48]
      %g = reshape(%f) {shape = [$1, $32, $1, $48]} : f32[1, 32, 1, 48]
      %h = conv(%g, %w) {dilations = [1, 1], groups = 1, pads = [0, 1, 0, 1], strides = [1, 1]} : f32[1, 32, 1, 48]
      %y = reshape(%h) {shape = [$1, $32, $48]} : f32[1, 32, 48]
      return %y
    }"""
    graph = parse_graph(text)
    program = tw.compile_program((graph, _arrays(graph.params)))
    labels = [step.label for step in program.manifest.run_steps]
    assert "relu" not in labels and sum("conv" in label for label in labels) == 2
