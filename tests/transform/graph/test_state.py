"""Caches that grow become memory of the caller's: the same rows, and what is no cache is named."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.graph import Graph
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import ModelError
from tilewright.transform.graph.state import Stateful, pairs_by_name, with_state

DECODER = """
graph @g(%past_k: f32[2, 3, p, 4], %past_v: f32[2, p, 4], %x: f32[2, 3, n, 4]) where p in 0..90, n in 1..9 {
  %k = concat(%past_k, %x) {axis = 2} : f32[2, 3, p + n, 4]
  %m = reduce_mean(%x) {axes = [1], keepdims = false} : f32[2, n, 4]
  %v = concat(%past_v, %m) {axis = 1} : f32[2, p + n, 4]
  %s = reduce_sum(%k) {axes = [2], keepdims = false} : f32[2, 3, 4]
  %t = reduce_max(%v) {axes = [1], keepdims = false} : f32[2, 4]
  return %s, %k, %v, %t
}"""
INPUTS, OUTPUTS = ("past_k", "past_v", "x"), ("sums", "present_k", "present_v", "most")


def stateful(text: str = DECODER, pairs: dict[str, str] | None = None) -> Stateful:
    return with_state(parse_graph(text), INPUTS, OUTPUTS, "auto" if pairs is None else pairs)


def rows_first(x: np.ndarray, axis: int, room: int) -> np.ndarray:
    """A cache's memory with these rows."""
    rows = np.moveaxis(x, axis, 0)
    memory = np.full((room, *rows.shape[1:]), np.nan, np.float32)
    memory[: len(rows)] = rows
    return memory


def test_the_same_of_rows_that_stay() -> None:
    graph, retained = parse_graph(DECODER), stateful()
    assert retained.inputs == ("past_k", "past_v", "x", "past_length") and retained.outputs == ("sums", "most")
    assert [(c.input, c.output, c.axis) for c in retained.state.caches] == [
        ("past_k", "present_k", 2),
        ("past_v", "present_v", 1),
    ]
    assert retained.state.length == "past_length" and retained.state.rows == ((1, ("n",)),)
    rng = np.random.default_rng(0)
    for past, new in ((0, 1), (3, 2), (5, 9)):
        shapes = ((2, 3, past, 4), (2, past, 4), (2, 3, new, 4))
        inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in zip(INPUTS, shapes, strict=True)}
        want = dict(zip(OUTPUTS, run_graph(graph, inputs).values(), strict=True))
        memory = [rows_first(inputs[n], axis, past + new + 2) for n, axis in (("past_k", 2), ("past_v", 1))]
        names = [v.name for v in retained.graph.inputs]
        arrays = [*memory, inputs["x"], np.zeros((past, 0), np.int8)]
        got = run_graph(retained.graph, dict(zip(names, arrays, strict=True)))
        for name, array in zip(retained.outputs, got.values(), strict=True):
            np.testing.assert_allclose(array, want[name], rtol=1e-6)


def test_what_else_reads_the_past_sees_it_as_it_was() -> None:
    text = DECODER.replace("reduce_max(%v)", "reduce_max(%past_v)")
    retained = stateful(text)
    rng = np.random.default_rng(1)
    arguments = {"past_k": rng.standard_normal((2, 3, 4, 4)), "past_v": rng.standard_normal((2, 4, 4))}
    arguments = {n: x.astype(np.float32) for n, x in arguments.items()} | {"x": np.full((2, 3, 1, 4), 99, np.float32)}
    arrays = [
        rows_first(arguments["past_k"], 2, 8),
        rows_first(arguments["past_v"], 1, 8),
        arguments["x"],
        np.zeros((4, 0), np.int8),
    ]
    names = [v.name for v in retained.graph.inputs]
    _, most = run_graph(retained.graph, dict(zip(names, arrays, strict=True))).values()
    np.testing.assert_array_equal(most, arguments["past_v"].max(1))


def test_caches_by_their_names() -> None:
    inputs = ("ids", "past_key_values.0.key", "past.1", "cache_k", "past_lonely")
    outputs = ("logits", "present.0.key", "present.1", "new_cache_k")
    result = {"past_key_values.0.key": "present.0.key", "past.1": "present.1", "cache_k": "new_cache_k"}
    assert pairs_by_name(inputs, outputs) == result
    with pytest.raises(ModelError, match="no output has the name of an input's longer self"):
        pairs_by_name(("ids", "past_k"), ("logits",))


def refused(text: str = DECODER, pairs: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ModelError) as caught:
        stateful(text, pairs)
    return [f"{e.where}: {e.what}" for e in caught.value.each()]


def test_all_that_is_no_cache_is_named() -> None:
    assert refused(pairs={"old": "present_k", "past_v": "new", "x": "sums"}) == [
        "state 'old': 'present_k': there is no input of this name",
        "state 'past_v': 'new': there is no output of this name",
        "state 'x': 'sums': this is no cache that grows",
    ]
    other = DECODER.replace("%past_v: f32[2, p, 4]", "%past_v: f32[2, q, 4]").replace("f32[2, p + n", "f32[2, q + n")
    (said,) = refused(other.replace("p in 0..90", "p in 0..90, q in 0..90"))
    assert "the caches have several lengths" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("concat(%past_k, %x) {axis = 2}", "concat(%x, %past_k) {axis = 2}"),  # in front of it
        ("%k = concat(%past_k, %x) {axis = 2} : f32[2, 3, p + n, 4]",
         "%l = concat(%past_k, %x) {axis = 2} : f32[2, 3, p + n, 4] %k = relu(%l) : f32[2, 3, p + n, 4]"),
    ],
)  # fmt: skip
def test_outputs_that_are_no_longer_inputs(old: str, new: str) -> None:
    assert old in DECODER
    text = DECODER.replace(old, new)
    graph: Graph = parse_graph(text)
    assert graph.outputs[1].name == "k"
    assert any("the output is not the input with something after it" in said for said in refused(text))
