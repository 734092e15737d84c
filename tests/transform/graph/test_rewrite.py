"""The rewriting kit: patterns, the driver, and that the canonical form is one."""

from __future__ import annotations

import pytest

from tests.transform.graph.graphs import ALL
from tilewright.ir.dtype import f64
from tilewright.ir.verify import verify_graph
from tilewright.ops import parse_graph
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.canonical import canonicalise
from tilewright.transform.graph.matching import Number, Operand, either, matches, op
from tilewright.transform.graph.rewrite import Match, Rewriter, Rule, rewrite

GRAPH = parse_graph("""
graph @g(%x: f32[4], %z: f32[4]) {
  %two = constant() {value = array f32[1] (2.0)} : f32[1]
  %wide = broadcast(%two) {shape = [$4]} : f32[4]
  %e = exp(%x) : f32[4]
  %m = mul(%wide, %e) : f32[4]
  %s = add(%m, %z) : f32[4]
  %t = reshape(%s) {shape = [$2, $2]} : f32[2, 2]
  %r = identity(%t) : f32[2, 2]
  %u = mul(%e, %e) : f32[4]
  return %r, %u
}""")
VALUES = {v.name: v for n in GRAPH.nodes for v in n.outputs} | {v.name: v for v in GRAPH.inputs}


def bound(pattern: Operand, name: str) -> list[dict[str, object]]:
    """The names of a pattern in each of its matches with a value."""
    results = matches(pattern, VALUES[name], Rewriter(GRAPH), {})
    return [{k: getattr(v, "name", v) for k, v in match.items()} for match in results]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (op("mul", op("exp", "a"), 2.0), "m", [{"a": "x"}]),  # operands in the other order
        (op("mul", Number("n"), "e"), "m", [{"n": 2.0, "e": "e"}]),
        (op("mul", "a", "b"), "m", [{"a": "wide", "b": "e"}, {"a": "e", "b": "wide"}]),
        (op("mul", "a", "a"), "m", []),
        (op("mul", "a", "a"), "u", [{"a": "e"}]),
        (op("add", op("mul"), "b", through=("reshape", "identity"), name="y"), "r", [{"y": "s", "b": "z"}]),
        (op("add", through=("reshape",)), "r", []),
        (op("exp", "a", private=True), "e", []),  # two nodes read it
        (op("mul", private=True), "m", [{}]),
        (either(op("sub", "a"), op(("add", "mul"), name="y")), "s", [{"y": "s"}]),
        (op("exp", "a", None), "e", []),  # there is no second operand
        (op("exp", where=lambda node: node.output.type.rank == 2), "e", []),
    ],
)  # fmt: skip
def test_what_matches(pattern: Operand, name: str, expected: list[dict[str, object]]) -> None:
    assert bound(pattern, name) == expected


def test_what_is_emitted_takes_the_name_and_the_place() -> None:
    after = rewrite(GRAPH, [Rule(op("mul", "a", 2.0), lambda m: m.emit("add", m["a"], m["a"]))])
    (node,) = [n for n in after.nodes if n.output.name == "m"]
    assert node.op == "add" and [n.op for n in after.nodes] == ["exp", "add", "add", "reshape", "identity", "mul"]


def test_a_match_that_comes_to_nothing_leaves_nothing() -> None:
    def build(m: Match) -> None:
        m.emit("neg", m["a"])

    assert rewrite(GRAPH, [Rule(op("exp", "a"), build)]) is GRAPH
    assert rewrite(GRAPH, [Rule(op("exp", "a"), lambda m: m.emit("cast", m["a"], dtype=f64))]) is GRAPH  # another type


def test_a_value_that_is_there_renames_readers_and_outputs_keep_their_names() -> None:
    after = rewrite(GRAPH, [Rule(op("identity", "a"), lambda m: m["a"]), Rule(op("exp", "a"), lambda m: m["a"])])
    assert [v.name for v in after.outputs] == ["r", "u"] and not any(n.op == "exp" for n in after.nodes)
    assert {v.name for n in after.nodes if n.op == "mul" for v in n.inputs if v is not None} == {"wide", "x"}


def test_rules_that_undo_one_another_end() -> None:
    rules = [
        Rule(op("exp", "a"), lambda m: m.emit("neg", m["a"])),
        Rule(op("neg", "a"), lambda m: m.emit("exp", m["a"])),
    ]
    assert rewrite(GRAPH, rules, repeat=True).outputs == GRAPH.outputs


@pytest.mark.parametrize("name", ALL)
def test_the_canonical_form_is_a_fixpoint(name: str) -> None:
    once = canonicalise(ALL[name]())
    assert canonicalise(once) is once


LAYERS = """
graph @g(%q: f32[2, 3, 5, 8], %k: f32[2, 3, 8, 5], %v: f32[2, 3, 5, 8]) {
  %s = matmul(%q, %k) : f32[2, 3, 5, 5]
  %p = softmax(%s) {axis = 3} : f32[2, 3, 5, 5]
  %x = matmul(%p, %v) : f32[2, 3, 5, 8]
  %t = matmul(%x, %k) : f32[2, 3, 5, 5]
  %r = softmax(%t) {axis = 3} : f32[2, 3, 5, 5]
  %y = matmul(%r, %v) : f32[2, 3, 5, 8]
  return %y
}"""


def test_two_matches_have_names_of_their_own() -> None:
    after = recognise_attention(parse_graph(LAYERS))
    assert [n.op for n in after.nodes].count("lowered.attention") == 2
    verify_graph(after)


def test_what_was_emitted_before_anyone_asks_may_depend_on_weights_alone() -> None:
    graph = parse_graph("graph @g(%x: f32[4]) params(%w: f32[4]) { %y = mul(%x, %w) : f32[4] return %y }")
    facts = []

    def build(m: Match) -> None:
        emitted = [m.emit("neg", m.emit("exp", m[name])) for name in ("w", "x")]
        facts.extend(value in m.rewriter.fixed for value in emitted)
        facts.append(m.emit("neg", emitted[0]) in m.rewriter.fixed)

    assert rewrite(graph, [Rule(op("mul", "x", "w"), build)]) is graph
    assert facts[:3] == [True, False, True]
