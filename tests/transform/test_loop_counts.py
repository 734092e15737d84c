"""How often a loop runs: as a polynomial of sizes where it is one, else as a number that the program computes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph

SUMS = """
graph @g(%x: f32[n, 4], %h0: f32[4]) where n in 2.. {{
  %a = slice(%x) {{begin = [0, 0], size = [$({count}), 4], step = [{step}, 1]}} : f32[{count}, 4]
  %h, %seen = loop(none, none, %h0, %a) {{body = graph @step(%i: i64[], %h: f32[4], %r: f32[4]) {{
    %z = add(%h, %r) : f32[4]
    %t = tanh(%z) : f32[4]
    return %t, %t
  }}, carried = 1, scanned = 1}} : f32[4], f32[{count}, 4]
  return %h, %seen
}}"""


@pytest.mark.parametrize(("count", "step", "known"), [("n // 2", 2, False), ("n - 1", 1, True), ("2", 1, True)])
def test_loops_over_parts_of_a_sequence(count: str, step: int, known: bool) -> None:
    graph = parse_graph(SUMS.format(count=count, step=step))
    model = tw.compile((graph, {}))
    (loop,) = (s.region for s in model.manifest.run_steps if s.region is not None and s.region.kind == "loop")
    assert (loop.trip is not None) == known and (loop.count is None) == known
    rng = np.random.default_rng(0)
    for n in (2, 5, 9):
        inputs = {"x": rng.normal(size=(n, 4)).astype(np.float32), "h0": rng.normal(size=4).astype(np.float32)}
        for got, want in zip(model.run(inputs).values(), run_graph(graph, inputs).values(), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)
