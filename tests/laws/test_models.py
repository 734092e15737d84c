"""Laws 1 and 3 on real models: every graph and every loop program on the way verifies and round-trips; every kernel has
a C form that compiles without a warning."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from benchmarks import models
from tests.codegen.c.c_run import COMPILER, FLAGS
from tilewright.codegen.c.emit import emit_c
from tilewright.compiler import graph_passes
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.graph import Graph
from tilewright.ir.key import key
from tilewright.ir.loops import PrimFunc
from tilewright.ir.verify import verify_func, verify_graph
from tilewright.ops import parse_func, parse_graph
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.memory import is_alias
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.loops import passes
from tilewright.transform.lower import lower_group

HOST = Target.host()


def graphs_of(name: str, target: Target = HOST) -> Iterator[Graph]:
    """The graph after each pass; last come `run` and `prepare`."""
    graph, _ = hoist_constants(import_onnx(models.POLICY[name]()).graph)
    yield graph
    for _, apply in graph_passes(target):
        graph = apply(graph)
        yield graph
    split = split_prepare(graph)
    yield split.run
    yield split.prepare


def kernels_of(graph: Graph) -> dict[str, PrimFunc]:
    """The distinct kernels of a graph, by key."""
    groups = [group for group in fuse(graph) if not is_alias(group)]
    funcs = [lower_group(group, f"kernel{i}").func for i, group in enumerate(groups)]
    return {key(func): func for func in funcs}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", ["m64", "nat", "az6"])
def test_every_stage(name: str) -> None:
    graphs = list(graphs_of(name))
    for graph in graphs:
        verify_graph(graph)
        assert parse_graph(str(graph)) == graph
    for func in {**kernels_of(graphs[-2]), **kernels_of(graphs[-1])}.values():
        check_round_trip(func)
        func = plan(func, HOST).func
        check_round_trip(func)
        readable = func
        for what, apply in passes(HOST):
            func = apply(func)
            check_round_trip(func)
            readable = readable if what == "expand math" else apply(readable)
        for loops in (func, readable):
            check_c(emit_c(loops))


def check_round_trip(func: PrimFunc) -> None:
    verify_func(func)
    assert parse_func(str(func)) == func


def check_c(text: str) -> None:
    if COMPILER is None:
        return
    command = [COMPILER, *FLAGS, "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
