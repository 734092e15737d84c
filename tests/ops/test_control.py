"""Loops and branches as operators: text, key, verifier, interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.graph import Graph
from tilewright.ir.key import key
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import CallError, ParseError, VerifyError
from tilewright.transform.graph.verify import graph_stage

SCAN = """graph @main(%xs: f32[n, 4], %s0: f32[4]) params(%w: f32[4]) where n in 0..64 {
  %s, %rows = loop(none, none, %s0, %xs, %w) {body = graph @body(%i: i64[], %s: f32[4], %x: f32[4], %w: f32[4]) {
    %t = mul(%s, %w) : f32[4]
    %next = add(%t, %x) : f32[4]
    return %next, %t
  }, carried = 1, scanned = 1} : f32[4], f32[n, 4]
  return %s, %rows
}"""

WHILE = """graph @main(%limit: f32[], %x0: f32[2], %most: i64[]) {
  %x, %k = loop(%most, none, %x0, %limit) {body = graph @body(%i: i64[], %x: f32[2], %limit: f32[]) {
    %y = add(%x, %x) : f32[2]
    %sum = reduce_sum(%y) {axes = [0], keepdims = false} : f32[]
    %go = lt(%sum, %limit) : bool[]
    return %go, %y
  }, carried = 1, conditional = true, counted = true} : f32[2], i64[]
  return %x, %k
}"""

BRANCH = """graph @main(%p: bool[], %x: f32[n]) where n in 1..8 {
  %y = cond(%p, %x) {orelse = graph @minus(%x: f32[n]) {
    %y = neg(%x) : f32[n]
    return %y
  }, then = graph @same(%x: f32[n]) {
    return %x
  }} : f32[n]
  return %y
}"""


def parsed(text: str) -> Graph:
    graph = parse_graph(text)
    graph_stage().begin(graph)
    return graph


@pytest.mark.parametrize("text", [SCAN, WHILE, BRANCH])
def test_bodies_print_and_parse(text: str) -> None:
    graph = parsed(text)
    assert str(graph) == text
    assert parsed(str(graph)) == graph


@pytest.mark.parametrize("text", [SCAN, WHILE, BRANCH])
def test_the_key_of_a_body_is_independent_of_names(text: str) -> None:
    renamed = text.replace("%x", "%other").replace("%y", "%result").replace("@body", "@iteration")
    assert renamed != text
    assert key(parsed(renamed)) == key(parsed(text))


def test_the_key_tells_bodies_separate() -> None:
    texts = [SCAN, SCAN.replace("mul", "sub"), SCAN.replace("return %next, %t", "return %next, %next")]
    assert len({key(parsed(t)) for t in texts}) == len(texts)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_scan_is_interpreted(length: int) -> None:
    rng = np.random.default_rng(length)
    xs, start, w = (rng.standard_normal(s).astype(np.float32) for s in ((length, 4), 4, 4))
    state, rows = start, []
    for x in xs:
        rows.append(state * w)
        state = rows[-1] + x
    result = run_graph(parsed(SCAN), {"xs": xs, "s0": start}, {"w": w})
    np.testing.assert_array_equal(result["s"], state)
    np.testing.assert_array_equal(result["rows"], np.array(rows, np.float32).reshape(length, 4))


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_scan_from_the_end(length: int) -> None:
    """Elements come, and what is collected stands, in the order of the sequence; native code does the same."""
    rng = np.random.default_rng(length)
    xs, start, w = (rng.standard_normal(s).astype(np.float32) for s in ((length, 4), 4, 4))
    text = SCAN.replace("{body", "{backward = true, body")
    result = run_graph(parsed(text), {"xs": xs, "s0": start}, {"w": w})
    transposed = run_graph(parsed(SCAN), {"xs": xs[::-1], "s0": start}, {"w": w})
    np.testing.assert_array_equal(result["s"], transposed["s"])
    np.testing.assert_array_equal(result["rows"], transposed["rows"][::-1])
    native = tw.compile((parsed(text), {"w": w}))(xs, start)
    for got, name in zip(native, ("s", "rows"), strict=True):
        np.testing.assert_allclose(got, result[name], rtol=1e-6)


@pytest.mark.parametrize(("most", "expected"), [(100, 4), (2, 2), (0, 0)])
def test_a_conditional_loop_is_interpreted(most: int, expected: int) -> None:
    inputs: dict[str, Any] = {"limit": np.float32(30), "x0": np.ones(2, np.float32), "most": np.int64(most)}
    result = run_graph(parsed(WHILE), inputs)
    assert result["k"] == expected
    np.testing.assert_array_equal(result["x"], np.full(2, 2.0**expected, np.float32))


@pytest.mark.parametrize("predicate", [True, False])
def test_a_branch_is_interpreted(predicate: bool) -> None:
    x = np.arange(3, dtype=np.float32)
    result = run_graph(parsed(BRANCH), {"p": np.array(predicate), "x": x})
    np.testing.assert_array_equal(result["y"], x if predicate else -x)


def test_an_endless_loop_ends_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.ops.control.MAX_INTERPRETED", 50)
    text = WHILE.replace("loop(%most", "loop(none")
    inputs = {"limit": np.float32(np.inf), "x0": np.zeros(2, np.float32), "most": np.int64(0)}
    with pytest.raises(CallError, match="does not end"):
        run_graph(parsed(text), inputs)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%xs: f32[n, 4]", "%xs: f32[n, 5]", "an element"),
        ("%s0: f32[4]", "%s0: f32[1, 4]", "what is carried"),
        ("carried = 1", "carried = 3", "does not fit"),
        ("carried = 1", "carried = -1", "does not fit"),
        ("return %next, %t", "return %next", "type rule"),
        ("return %next, %t", "return %t, %w, %x", "type rule"),
        ("%t = mul(%s, %w)", "%t = mul(%s0, %w)", "no value is named"),
        ("%t = mul(%s, %w) : f32[4]", "%t = mul(%s, %w) : f32[5]", "type rule"),
        ("loop(none, none, %s0", "loop(%s0, none, %s0", "count of a loop"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str, message: str) -> None:
    assert old in SCAN
    with pytest.raises((VerifyError, ParseError), match=message):
        parsed(SCAN.replace(old, new))


def test_a_loop_from_the_end_cannot_end_early() -> None:
    with pytest.raises((VerifyError, ParseError), match="cannot end early"):
        parsed(WHILE.replace("{body", "{backward = true, body"))


def test_a_body_may_not_use_symbols_that_nothing_gives() -> None:
    text = BRANCH.replace(
        "%y = neg(%x) : f32[n]",
        "%z = range() {dtype = i64, size = $m, start = 0, step = 1} : i64[m]\n%y = neg(%x) : f32[n]",
    )
    with pytest.raises(VerifyError, match="no symbol"):
        parsed(text)


def test_bodies_nest_to_a_depth() -> None:
    text = "graph @g() {\n  return\n}"
    for _ in range(300):
        text = f"graph @g() {{\n  cond() {{orelse = {text}, then = graph @e() {{ return }}}}\n  return\n}}"
    with pytest.raises(ParseError, match="nested"):
        parse_graph(text)
