"""Tables in place of functions of one number of 8 bits: the same numbers, and where they are not made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import DType, i8, u8
from tilewright.ir.graph import Graph
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group
from tilewright.transform.passes.tabulate import tabulate

ZEN4 = Target.parse("znver4")
SCALES = {"s": np.float32(0.05), "r": np.array([0.03], np.float32)}

BETWEEN = """
    graph @g(%q: u8[64]) params(%s: f32[]) {
      %f = cast(%q) {dtype = f32} : f32[64]
      %a = erf(%f) : f32[64]
      %b = cast(%a) {dtype = u8} : u8[64]
      %c = cast(%b) {dtype = f32} : f32[64]
      %d = tanh(%c) : f32[64]
      %e = add(%d, %a) : f32[64]
      %y = cast(%e) {dtype = u8} : u8[64]
      return %b, %y
    }"""


def silu(shape: str, source: DType = u8, result: DType = u8, where: str = "") -> Graph:
    return parse_graph(f"""
    graph @g(%q: {source}[{shape}]) params(%s: f32[], %r: f32[1]) {where} {{
      %f = cast(%q) {{dtype = f32}} : f32[{shape}]
      %x = mul(%f, %s) : f32[{shape}]
      %e = sigmoid(%x) : f32[{shape}]
      %m = mul(%x, %e) : f32[{shape}]
      %d = mul(%m, %r) : f32[{shape}]
      %n = round(%d) : f32[{shape}]
      %y = cast(%n) {{dtype = {result}}} : {result}[{shape}]
      return %y
    }}""")


def expected(q: np.ndarray[Any, Any], result: DType, s: float, r: float) -> np.ndarray[Any, Any]:
    x = q.astype(np.float64) * s
    return np.clip(np.rint(x / (1 + np.exp(-x)) * r), int(result.min), int(result.max)).astype(result.numpy)


@pytest.mark.costly(3)
@pytest.mark.parametrize("source", [u8, i8], ids=str)
@pytest.mark.parametrize("result", [u8, i8], ids=str)
@pytest.mark.parametrize("shape", [(0,), (1,), (16,), (67,), (1000,), (7, 33), (2, 3, 5, 7)], ids=str)
def test_native_code(source: DType, result: DType, shape: tuple[int, ...]) -> None:
    graph = silu(", ".join(map(str, shape)), source, result)
    numbers = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8).view(source.numpy)
    model = tw.compile((graph, {"s": np.float32(0.043), "r": np.array([7.1], np.float32)}))
    got = np.asarray(model(numbers))
    np.testing.assert_array_equal(got, expected(numbers, result, np.float32(0.043), np.float32(7.1)))


def test_every_number_and_new_scales() -> None:
    model = tw.compile((silu("n", i8, i8, "where n in 1.."), SCALES))
    numbers = np.arange(-128, 128).astype(np.int8)
    for s, r in ((0.043, 7.1), (0.11, -3.3)):
        model.update({"s": np.float32(s), "r": np.array([r], np.float32)})
        for part in (numbers, numbers[::-1].copy(), numbers[5:70].copy()):
            np.testing.assert_array_equal(np.asarray(model(part)), expected(part, i8, np.float32(s), np.float32(r)))


def test_what_is_not_a_number_goes_where_it_went() -> None:
    """Infinity times zero, and numbers beyond the result's, become the same as without a table."""
    graph = silu("256")
    weights = {"s": np.float32(np.inf), "r": np.array([1.0], np.float32)}
    numbers = np.arange(256, dtype=np.uint8)
    want = run_graph(graph, {"q": numbers}, weights)["y"]
    assert set(np.unique(want)) == {0, 255}
    np.testing.assert_array_equal(np.asarray(tw.compile((graph, weights))(numbers)), want)


def test_the_code_permutes_registers() -> None:
    text = compiled(tabulate(silu("640"), ZEN4), ZEN4)
    assert text.count("vpermi2b") + text.count("vpermt2b") >= 2
    older = Target.parse("x86-64-v3")
    text = compiled(tabulate(parse_graph(BETWEEN), older), older)
    assert "vpinsrb" in text and "vgather" not in text


def compiled(graph: Graph, target: Target) -> str:
    group = next(g for g in fuse(graph) if any(n.op == "lowered.entry" for n in g.nodes))
    chosen = plan(lower_group(group, "kernel").func, target)
    return assembly(emit_llvm(lower_loops(chosen.func, target), target), target)


@pytest.mark.parametrize(
    "body",
    [
        # a scale for each channel; a sum of two values; what is 8 bits wide no more
        "%x = mul(%f, %v) : f32[4, 8] %e = erf(%x) : f32[4, 8] %y = cast(%e) {dtype = u8} : u8[4, 8]",
        "%x = mul(%f, %z) : f32[4, 8] %e = erf(%x) : f32[4, 8] %y = cast(%e) {dtype = u8} : u8[4, 8]",
        "%x = mul(%f, %s) : f32[4, 8] %y = erf(%x) : f32[4, 8]",
        # a shift is as quick as a table
        "%x = mul(%f, %s) : f32[4, 8] %y = cast(%x) {dtype = u8} : u8[4, 8]",
    ],
)
def test_what_is_left_alone(body: str) -> None:
    graph = parse_graph(f"""
    graph @g(%q: u8[4, 8], %z: f32[4, 8]) params(%s: f32[], %v: f32[8]) {{
      %f = cast(%q) {{dtype = f32}} : f32[4, 8] {body} return %y
    }}""")
    assert tabulate(graph, ZEN4) is graph


def test_a_value_between_is_read_from_a_table_too() -> None:
    """Each value of 8 bits that is far enough from the first one."""
    result = tabulate(parse_graph(BETWEEN), ZEN4)
    entries = [n for n in result.nodes if n.op == "lowered.entry"]
    assert [n.output.name for n in entries] == ["b", "y"] and {n.inputs[0].name for n in entries if n.inputs[0]} == {
        "q"
    }


def test_the_choice_is_a_decision() -> None:
    graph = silu("640")
    with deciding() as record:
        assert tabulate(graph, ZEN4) is not graph
    (decision,) = [d for d in record.decisions if d.key.kind == "table"]
    assert decision.selected.label == "read" and decision.space.labels == ("read", "computed")
    with forcing({decision.key.name: "computed"}):
        assert tabulate(graph, ZEN4) is graph
