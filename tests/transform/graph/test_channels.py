"""Scales of weights follow the operators that move the weights."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.channels import moved_scale, moved_shape

MOVES = {
    "phases of a transposed filter": (
        (6, 8, 4, 4),
        (1, 8, 1, 1),
        "%a = reshape(%w) {shape = [1, 6, 8, 2, 2, 2, 2]} : f32[1, 6, 8, 2, 2, 2, 2] "
        "%b = slice(%a) {begin = [0, 0, 0, 1, 0, 1, 0], size = [1, 6, 8, 2, 2, 2, 2], step = [1, 1, 1, -1, 1, -1, 1]} "
        ": f32[1, 6, 8, 2, 2, 2, 2] "
        "%c = transpose(%b) {perm = [0, 4, 6, 2, 1, 3, 5]} : f32[1, 2, 2, 8, 6, 2, 2] "
        "%y = reshape(%c) {shape = [32, 6, 2, 2]} : f32[32, 6, 2, 2]",
        (32, 1, 1, 1),
    ),
    "a dimension of one more": (
        (4, 6),
        (1, 6),
        "%y = reshape(%w) {shape = [1, 4, 1, 6]} : f32[1, 4, 1, 6]",
        (1, 1, 1, 6),
    ),
    "joined with another": ((4, 6), (1, 6), "%y = reshape(%w) {shape = [24]} : f32[24]", (24,)),
    "joined beside": ((4, 2, 3), (4, 1, 1), "%y = reshape(%w) {shape = [4, 6]} : f32[4, 6]", (4, 1)),
    "split": ((4, 6), (1, 6), "%y = reshape(%w) {shape = [4, 2, 3]} : f32[4, 2, 3]", (1, 2, 3)),
    "another order": ((4, 6), (4, 1), "%y = transpose(%w) {perm = [1, 0]} : f32[6, 4]", (1, 4)),
    "one for all": ((4, 6), (1, 1), "%y = reshape(%w) {shape = [24]} : f32[24]", (1,)),
}


@pytest.mark.parametrize("name", MOVES)
def test_scales_move_with_what_they_multiply(name: str) -> None:
    shape, scale, text, wanted = MOVES[name]
    size = ", ".join(map(str, shape))
    end = text[text.rindex(": f32") + 2 :]
    graph = parse_graph(f"graph @g(%w: f32[{size}]) {{ {text} return %y }}")
    assert str(graph.outputs[0].type) == end
    known = scale
    scales = np.random.default_rng(0).random(scale).astype(np.float32)
    w = np.random.default_rng(1).random(shape).astype(np.float32)
    moved = scales
    for node in graph.nodes:
        result = moved_scale(node, known)
        assert result is not None
        moved, known = np.broadcast_to(moved, result[0]), result[1]
        moved = np.transpose(moved, node.attrs.perm) if node.op == "transpose" else moved.reshape(known)
        assert moved.shape == known
    assert known == wanted
    (want,) = run_graph(graph, {"w": w * scales}).values()
    (got,) = run_graph(graph, {"w": w}).values()
    np.testing.assert_array_equal(got * moved, want)


def test_what_is_not_known() -> None:
    (cut,) = parse_graph(
        "graph @g(%w: f32[4, 6]) { "
        "%y = slice(%w) {begin = [0, 1], size = [4, 3], step = [1, 1]} : f32[4, 3] return %y }"
    ).nodes
    assert moved_scale(cut, (1, 6)) is None
    assert moved_scale(cut, (4, 1)) == ((4, 1), (4, 1))
    (joined,) = parse_graph("graph @g(%w: f32[4, 6]) { %y = reshape(%w) {shape = [24]} : f32[24] return %y }").nodes
    assert moved_scale(joined, (6,)) is None
    assert moved_shape(joined, (1, 6)) is None
