"""The driver: what it announces, prints and checks, and which pass it blames."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

import tilewright as tw
from tests.transform.graph.graphs import ALL, numbers
from tilewright import te
from tilewright.compiler import compile_graph, graph_passes, pass_names
from tilewright.ir.graph import Graph, TensorType, Value
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ops import parse_graph
from tilewright.support.errors import FlagError, VerifyError
from tilewright.support.log import PassLog
from tilewright.targets.target import Target
from tilewright.transform.driver import run_passes
from tilewright.transform.graph.verify import graph_stage
from tilewright.transform.loops import LOOPS, lower_loops, passes

TARGET = Target.parse("x86-64-v3")


def add() -> PrimFunc:
    return parse_func("func @add(A: f32[8], C: f32[8]) { for i in 0..8 { C[i] = A[i] + 1.0 } }")


def wrong(func: PrimFunc) -> PrimFunc:
    return parse_func("func @add(A: f32[8], C: f32[8]) { for i in 0..8 { C[i + 1] = A[i] + 1.0 } }")


def same(func: PrimFunc) -> PrimFunc:
    return func


@pytest.mark.parametrize(("level", "where"), [("0", ""), ("1", "add: "), ("2", "add after the pass 'break it': ")])
def test_the_pass_that_broke_the_rules_is_named(level: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_VERIFY", level)
    steps: list[tuple[str, Callable[[PrimFunc], PrimFunc]]] = [("same", same), ("break it", wrong), ("also", same)]
    if not where:
        run_passes(add(), steps, LOOPS, what="add")
        return
    with pytest.raises(VerifyError) as error:
        run_passes(add(), steps, LOOPS, what="add")
    assert str(error.value).startswith(
        f"{where}is not what it must be\n  1. loop 'i': an index of 'C' is out of bounds"
    )


def test_no_selection_is_left_after_the_passes() -> None:
    graph = parse_graph("graph @g(%x: f32[4, 4]) { %y = matmul(%x, %x) by packed in fp32 : f32[4, 4] return %y }")
    with pytest.raises(VerifyError, match=r"node 0 \(matmul\).*a selection was left"):
        run_passes(graph, [], graph_stage())
    for _, apply in graph_passes(TARGET):
        graph = apply(graph)
    assert run_passes(graph, [], graph_stage()) == graph


def test_types_of_nodes_are_what_the_rules_give() -> None:
    def widen(graph: Graph) -> Graph:
        (node,) = graph.nodes
        value = Value(node.output.name, TensorType(node.output.dtype, (*node.output.shape, *node.output.shape)))
        return Graph(graph.name, graph.inputs, graph.params, (type(node)(node.op, node.inputs, (value,)),), (value,))

    graph = parse_graph("graph @g(%x: f32[4]) { %y = relu(%x) : f32[4] return %y }")
    with pytest.raises(VerifyError, match=r"after the pass 'widen'(.|\n)*its type rule gives"):
        run_passes(graph, [("widen", widen)], graph_stage())


def test_passes_keep_the_types_of_results() -> None:
    def flatten(graph: Graph) -> Graph:
        (node,) = graph.nodes
        (x,) = graph.inputs
        return parse_graph(f"graph @g(%{x.name}: f32[4, 1]) {{ %y = {node.op}(%{x.name}) : f32[4, 1] return %y }}")

    graph = parse_graph("graph @g(%x: f32[4]) { %y = relu(%x) : f32[4] return %y }")
    with pytest.raises(VerifyError, match=r"after the pass 'flatten'(.|\n)*results are not what they were"):
        run_passes(graph, [("flatten", flatten)], graph_stage())


def test_every_loop_pass_is_timed_and_announced_at_level_3() -> None:
    out = io.StringIO()
    names = [name for name, _ in passes(TARGET)]
    for level, announced in ((1, []), (3, names)):
        log = PassLog(level=level, dumps=(), stream=out)
        lower_loops(add(), TARGET, log)
        assert [record.name for record in log.records] == names
        assert [line.split("  ")[1].strip() for line in out.getvalue().splitlines()] == announced
    assert "partition loops" in out.getvalue() and "(unchanged)" in out.getvalue()


def test_dumps_show_the_program_before_and_after() -> None:
    out = io.StringIO()
    lower_loops(add(), TARGET, PassLog(level=0, dumps=("partition loops", "bound loops"), stream=out))
    titles = [line for line in out.getvalue().splitlines() if line.startswith("--")]
    # What the second would show before it stands there already: nothing has changed since.
    expected = ["before partition loops", "after partition loops", "after bound loops"]
    assert titles == [f"-- add {title}" for title in expected]
    out.truncate(0)
    lower_loops(add(), TARGET, PassLog(level=0, dumps=("all",), stream=out))
    assert out.getvalue().count("-- add before") == 1
    assert out.getvalue().count("-- add after") == len(passes(TARGET))


def test_a_compile_and_a_build_print_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = ALL["mlp"]()
    monkeypatch.setenv("TILEWRIGHT_DUMP", "fold scales, merge loops")
    for _ in range(2):  # what is in the cache is printed, too
        compile_graph(graph, numbers(graph, 1)[1], TARGET)
        text = capsys.readouterr().err
        assert "-- graph before fold scales\ngraph @mlp" in text and "-- graph after fold scales\ngraph @mlp" in text
        assert "-- run0_tanh before merge loops\nfunc @run0_tanh" in text
    a = te.placeholder((8,), name="A")
    c = te.compute((8,), lambda i: a[i] + 1.0, name="C")
    tw.build(te.create_schedule(c), [a, c], target=TARGET, name="one").source("llvm")
    assert "-- one after merge loops\nfunc @one" in capsys.readouterr().err


def test_an_unknown_pass_is_an_error_that_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ALL["mlp"]()
    monkeypatch.setenv("TILEWRIGHT_DUMP", "fold scale")
    with pytest.raises(
        FlagError, match=r"TILEWRIGHT_DUMP: no such pass.*fold scales.*prefetch weights, got 'fold scale'"
    ):
        compile_graph(graph, numbers(graph, 1)[1], TARGET)


def test_names_of_passes_are_in_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    graph = ALL["mlp"]()
    log = PassLog(level=0, dumps=())
    compile_graph(graph, numbers(graph, 1)[1], TARGET, log)
    ran = {record.name for record in log.records}
    named = {name for names in pass_names(TARGET).values() for name in names}
    assert named - ran == {"prefetch weights"}  # no weights here are worth it
    assert {"split prepare", "fuse run", "fuse prepare", "plan", "emit", "entry"} <= ran
