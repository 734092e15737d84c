"""Parts for other compilers: what patterns match, which blocks are merged, and that the graph means what it meant."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType
from tilewright.ops import emit1, parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.ops.lowered.external_call import ExternalCallAttrs
from tilewright.runtime import compilers
from tilewright.runtime.compilers import Compiled, Compiler, Loaded
from tilewright.support.errors import CompileError, PluginError, PluginWarning
from tilewright.transform.graph.partition import Matcher, claimed, partition
from tilewright.transform.graph.patterns import ANY, Pattern, either, op
from tilewright.transform.graph.verify import graph_stage


def numpy_compiler(name: str, *patterns: Pattern, refuses: Callable[[Graph], bool] = lambda g: False) -> Compiler:
    """A compiler whose parts are interpreted."""

    def compile(region: Graph) -> Compiled:
        if refuses(region):
            raise ValueError("too hard")
        return Compiled(str(region).encode())

    def load(payload: bytes) -> Loaded:
        graph = parse_graph(payload.decode())

        def run(inputs: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
            values = dict(zip((v.name for v in (*graph.inputs, *graph.params)), (*inputs, *weights), strict=True))
            return list(run_graph(graph, values, values).values())

        return Loaded(run)

    return Compiler(name, patterns, compile, load)


@pytest.fixture
def known() -> Iterator[Callable[[Compiler], Compiler]]:
    """Registers compilers for one test."""
    names: list[str] = []

    def register(compiler: Compiler) -> Compiler:
        names.append(compilers.register(compiler).name)
        return compiler

    yield register
    for name in names:
        compilers.unregister(name)


def calls(graph: Graph) -> list[ExternalCallAttrs]:
    return [n.of(ExternalCallAttrs) for n in graph.nodes if n.op == "lowered.external_call"]


def operators(attrs: ExternalCallAttrs) -> list[str]:
    return [n.op for n in parse_graph(attrs.body).nodes]


CHAIN = """
    graph @g(%x: f32[n, 4]) params(%w: f32[4, 4], %b: f32[4]) where n in 1.. {
      %a = matmul(%x, %w) : f32[n, 4]
      %c = add(%b, %a) : f32[n, 4]
      %d = relu(%c) : f32[n, 4]
      %y = tanh(%d) : f32[n, 4]
      return %y
    }"""


def matched(graph: Graph, pattern: Pattern, root: str) -> list[str] | None:
    k = next(k for k, n in enumerate(graph.nodes) if n.output.name == root)
    matched = Matcher(graph, lambda k: True).match(pattern, k)
    return None if matched is None else [graph.nodes[k].op for k in sorted(matched)]


def test_patterns_are_read_from_the_result() -> None:
    graph = parse_graph(CHAIN)
    layer = op("add", op("matmul"), ANY)  # the product is the second operand here
    assert matched(graph, Pattern("p", op("relu", layer)), "d") == ["matmul", "add", "relu"]
    assert matched(graph, Pattern("p", op("relu", layer)), "c") is None
    assert matched(graph, Pattern("p", either(op("tanh", op("exp")), op(("exp", "tanh"), ANY))), "y") == ["tanh"]
    assert matched(graph, Pattern("p", op("relu", op("add", op("matmul", op("matmul"), ANY), ANY))), "d") is None
    assert matched(graph, Pattern("p", op("matmul", ANY)), "a") is None  # it has two operands
    one = op(("add", "matmul"), ANY, ANY)  # written once, at two places
    assert matched(graph, Pattern("p", op("relu", op("add", one, ANY))), "d") == ["matmul", "add", "relu"]
    assert matched(graph, Pattern("p", op("add", either(op("relu"), one), ANY)), "c") == ["matmul", "add"]
    product = op("matmul")
    twice = parse_graph("""
        graph @g(%x: f32[4, 4]) params(%w: f32[4, 4]) {
          %a = matmul(%x, %w) : f32[4, 4]
          %b = matmul(%w, %x) : f32[4, 4]
          %y = add(%a, %b) : f32[4, 4]
          return %y
        }""")
    assert matched(twice, Pattern("p", op("add", product, product)), "y") == ["matmul", "matmul", "add"]


def test_conditions_of_nodes_and_of_matches() -> None:
    graph = parse_graph(CHAIN)

    def is_wide(node: Node) -> bool:
        return node.output.shape[-1] == as_expr(5)

    assert matched(graph, Pattern("p", op("matmul", where=is_wide)), "a") is None
    assert matched(graph, Pattern("p", op("matmul"), accepts=lambda nodes: len(nodes) == 2), "a") is None
    assert matched(graph, Pattern("p", op("matmul"), accepts=lambda nodes: len(nodes) == 1), "a") == ["matmul"]


def test_the_higher_priority_is_first(known: Any) -> None:
    short, long = Pattern("short", op("matmul"), 1), Pattern("long", op("add", op("matmul"), ANY), 2)
    known(numpy_compiler("vendor", short, long))
    known(numpy_compiler("other", replace(short, priority=3), long))
    graph = parse_graph(CHAIN)
    assert [operators(c) for c in calls(partition(graph, ["vendor"]))] == [["matmul", "add"]]
    assert [operators(c) for c in calls(partition(graph, ["other"]))] == [["matmul"]]


def test_neighbours_are_merged_and_weights_are_parameters(known: Any) -> None:
    known(numpy_compiler("vendor", *(Pattern(name, op(name)) for name in ("matmul", "add", "relu"))))
    regions, _ = claimed(parse_graph(CHAIN), ["vendor"])
    (region,) = regions.values()
    assert [n.op for n in region.graph.nodes] == ["matmul", "add", "relu"]
    assert [v.name for v in region.graph.inputs] == ["x"] and [v.name for v in region.graph.params] == ["w", "b"]
    assert sorted(region.patterns) == ["add", "matmul", "relu"]


def test_parts_form_no_cycle(known: Any) -> None:
    """a -> tanh -> c and a -> c: with tanh outside, a and c stay two parts."""
    known(numpy_compiler("vendor", Pattern("relu", op("relu")), Pattern("add", op("add"))))
    graph = parse_graph("""
        graph @g(%x: f32[4]) {
          %a = relu(%x) : f32[4]
          %b = tanh(%a) : f32[4]
          %c = add(%a, %b) : f32[4]
          %y = relu(%c) : f32[4]
          return %y
        }""")
    assert [operators(c) for c in calls(partition(graph, ["vendor"]))] == [["relu"], ["add", "relu"]]


def test_a_pattern_with_a_path_through_a_node_outside_is_no_part(known: Any) -> None:
    """The sum's other operand comes from inside by a way around: as one part it would have to be there and away."""
    pattern = Pattern("pair", op("add", op("relu"), ANY))
    known(numpy_compiler("vendor", pattern))
    graph = parse_graph("""
        graph @g(%x: f32[4]) {
          %a = relu(%x) : f32[4]
          %b = tanh(%a) : f32[4]
          %y = add(%a, %b) : f32[4]
          return %y
        }""")
    assert partition(graph, ["vendor"]) is graph


def test_who_comes_next_takes_what_is_refused(known: Any) -> None:
    takes = Pattern("layer", op("add", op("matmul"), ANY))
    known(numpy_compiler("hard", takes, refuses=lambda g: True))
    known(numpy_compiler("vendor", takes))
    graph = parse_graph(CHAIN)
    with pytest.raises(CompileError, match=r"g_hard_0 \(matmul, add\): the compiler 'hard' cannot.*too hard"):
        partition(graph, ["hard"])
    with pytest.warns(PluginWarning, match="vendor is asked instead"):
        assert [c.compiler for c in calls(partition(graph, ["hard", "vendor"]))] == ["vendor"]
    with pytest.warns(PluginWarning, match="tilewright is asked instead"):
        assert partition(graph, ["hard", "tilewright", "vendor"]) is graph


@pytest.mark.parametrize("compiled", [None, b"", Compiled("text"), Compiled(b"", (TensorType(f32, (as_expr(4),)),))])  # type: ignore[arg-type]
def test_what_a_compiler_makes_is_checked(known: Any, compiled: Any) -> None:
    known(
        replace(
            numpy_compiler("vendor", Pattern("p", op("matmul"))), compile=lambda g: compiled, load=lambda b: Loaded(len)
        )
    )  # type: ignore[arg-type, misc]
    with pytest.raises(CompileError, match=r"gives no part|packs weights"):
        partition(parse_graph(CHAIN), ["vendor"])


def test_sizes_that_a_region_does_not_see_keep_it(known: Any) -> None:
    """The region would have to know n, and none of its inputs has it."""
    known(numpy_compiler("vendor", Pattern("broadcast", op("broadcast"))))
    graph = parse_graph("""
        graph @g(%x: f32[n], %z: f32[1]) where n in 1.. {
          %b = broadcast(%z) {shape = [$n]} : f32[n]
          %y = add(%x, %b) : f32[n]
          return %y
        }""")
    assert partition(graph, ["vendor"]) is graph


def test_names_are_checked(known: Any) -> None:
    known(numpy_compiler("vendor"))
    with pytest.raises(PluginError, match=r"no such compiler is installed.*vendor, tilewright.*'tea'"):
        compilers.find("tea")
    for name in ("vendor", "tilewright"):
        with pytest.raises(PluginError, match="another compiler"):
            compilers.register(numpy_compiler(name))


def random_graph(rng: random.Random) -> Graph:
    builder = GraphBuilder("g")
    n, four = as_expr(3), as_expr(4)
    values = [builder.input("x", TensorType(f32, (n, four))), builder.param("w", TensorType(f32, (n, four)))]
    for _ in range(rng.randint(2, 16)):
        name = rng.choice(["relu", "tanh", "neg", "add", "mul", "sub"])
        operands = rng.choices(values[-6:], k=2 if name in ("add", "mul", "sub") else 1)
        values.append(emit1(builder, name, *operands))
    return builder.finish(tuple(dict.fromkeys(rng.choices(values[2:], k=2))))


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_mean_what_they_meant(known: Any, seed: int) -> None:
    """Each region is as the compiler gets it, blocks are convex, and values are those of before."""
    rng = random.Random(seed)
    graph = random_graph(rng)
    names = ["relu", "tanh", "neg", "add", "mul", "sub"]
    patterns = [Pattern(n, op(n), rng.randint(0, 2)) for n in rng.sample(names, rng.randint(1, 4))]
    patterns.append(Pattern("pair", op(rng.choice(names[3:]), op(rng.choice(names)), ANY), rng.randint(0, 2)))
    half = len(patterns) // 2
    known(numpy_compiler("one", *patterns[:half]))
    known(numpy_compiler("two", *patterns[half:]))
    changed = partition(graph, ["one", "two"])
    graph_stage().each(changed)
    values = {"x": np.full((3, 4), 0.5, np.float32)}, {"w": np.arange(12, dtype=np.float32).reshape(3, 4)}
    before, after = (run_graph(g, *values) for g in (graph, changed))
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    left = {n.op for n in changed.needed()}
    single = {p.name for p in patterns} & set(names)
    assert not left & single
