"""Registries by hand: what is registered is used, what is there already is refused, and code counts in keys."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import compiler, plans
from tilewright.frontend import registry as frontends
from tilewright.frontend.registry import Frontend
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.registry import emit1, get
from tilewright.plans import PLANS, extended
from tilewright.plans.framework import registry as plan_registry
from tilewright.support import plugins
from tilewright.support.errors import PluginError
from tilewright.targets.target import Target
from tilewright.transform.graph import extra
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.layout import assign

TARGET = Target.parse("x86-64-v3")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registrations of a test are forgotten with it."""
    monkeypatch.setattr(plugins, "_by_hand", Counter())
    for module in (frontends, plan_registry, extra):
        monkeypatch.setattr(module, "_extra", [])
    monkeypatch.setattr(assign, "RULES", dict(assign.RULES))


def nothing(graph: Graph, target: Target) -> Graph:
    return graph


@pytest.mark.parametrize(
    ("place", "neighbours"),
    [
        (("before", "canonicalise"), (None, "canonicalise")),  # the first of several
        (("after", "assign layouts"), ("assign layouts", "separate pooling")),
        (("after", "materialize outputs"), ("materialize outputs", "optimise bodies")),
    ],
)
def test_a_pass_stands_at_its_place(place: Any, neighbours: tuple[str | None, ...]) -> None:
    extra.register(GraphPass("mine", nothing, place))
    names = [None, *(name for name, _ in compiler.graph_passes(TARGET)), None]
    at = names.index("mine")
    assert (names[at - 1], names[at + 1]) == neighbours
    assert "mine" in compiler.pass_names(TARGET)["graph"]


def test_a_pass_may_stand_beside_another_from_outside() -> None:
    extra.register(GraphPass("mine", nothing, ("before", "fold scales")))
    extra.register(GraphPass("yours", nothing, ("after", "mine")))
    names = [name for name, _ in compiler.graph_passes(TARGET)]
    assert names[names.index("mine") : names.index("mine") + 3] == ["mine", "yours", "fold scales"]


def test_places_that_there_are_not() -> None:
    extra.register(GraphPass("mine", nothing, ("after", "tea")))
    with pytest.raises(PluginError, match=r"pass 'mine': there is no such place: .*fold scales.*tea"):
        compiler.graph_passes(TARGET)


def test_plans_from_outside_come_first() -> None:
    own = extended(PLANS)
    assert own[: len(PLANS)] == PLANS
    mine = plans.register(plans.Plan("mine", lambda *_: False, lambda *_: [], lambda *_: None))
    assert extended(PLANS) == (mine, *own)
    plan_registry.unregister("mine")
    assert extended(PLANS) == own


def test_frontends_are_asked_about_what_is_no_onnx(tmp_path: Path) -> None:
    mine = frontends.register(Frontend("mine", lambda model: True, lambda *_: pytest.fail("not called")))
    assert frontends.find("a.txt") is mine and frontends.find({"layers": 3}) is mine
    assert frontends.find("a.onnx") is None and frontends.find(tmp_path / "a.onnx") is None
    assert frontends.find(b"") is None


def test_names_are_new() -> None:
    plan = plans.Plan("mine", lambda *_: False, lambda *_: [], lambda *_: None)
    frontend = Frontend("mine", bool, lambda *_: pytest.fail("not called"))
    graph_pass = GraphPass("mine", nothing, ("before", "fold scales"))
    for register, what in ((plans.register, plan), (frontends.register, frontend), (extra.register, graph_pass)):
        register(what)  # type: ignore[operator]
        with pytest.raises(PluginError, match=r"there is another .* 'mine'"):
            register(what)  # type: ignore[operator]
    with pytest.raises(PluginError, match="there is another layout rule 'conv'"):
        assign.register("conv", assign.POINTWISE)
    assert assign.register("relu", assign.POINTWISE) is assign.RULES["relu"]


def test_a_layout_rule_is_asked() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType(f32, (as_expr(4), as_expr(8))))
    graph = builder.finish((emit1(builder, "relu", x),))
    asked = []
    assign.register("relu", assign.Rule(lambda assigner, node: bool(asked.append(node)), blocks=False))
    assert assign.assign_layouts(graph, TARGET).nodes == graph.nodes
    assert asked == list(graph.nodes)


def test_code_that_is_registered_by_hand_counts() -> None:
    before = plugins.digests()
    plugins.count(get("relu").infer, None, partial(get("relu").infer))
    assert plugins.digests() == before, "the package's own code has its digest elsewhere"
    extra.register(GraphPass("mine", nothing, ("before", "fold scales")))
    extra.register(GraphPass("yours", partial(nothing), ("before", "fold scales")))
    assert len(plugins.digests()) == len(before) + 3, "one module, a function and a partial of it"
    extra.unregister("mine")
    assert len(plugins.digests()) == len(before) + 2
    extra.unregister("yours")
    assert plugins.digests() == before


@pytest.mark.parametrize("form", ["closure", "partial", "default", "method"])
def test_values_of_functions_that_are_registered_by_hand_count(form: str) -> None:
    """Two passes of one source that hold other values have other keys; those of equal numbers have equal ones."""

    class Holder:
        def __init__(self, value: object) -> None:
            self.value = value

        def run(self, graph: Graph, target: Target) -> Graph:
            return graph

    def digests(value: object) -> tuple[str, ...]:
        def closed(graph: Graph, target: Target) -> Graph:
            assert value is not graph
            return graph

        def by_default(graph: Graph, target: Target, value: object = value) -> Graph:
            return graph

        forms = {
            "closure": closed,
            "partial": partial(nothing, value),
            "default": by_default,
            "method": Holder(value).run,
        }
        extra.register(GraphPass("mine", forms[form], ("before", "fold scales")))
        try:
            return plugins.digests()
        finally:
            extra.unregister("mine")

    before = plugins.digests()
    assert digests(1) == digests(1) != digests(2)
    assert digests(("a", 2.0)) == digests(("a", 2.0)) != digests(("a", 2))
    assert digests(digests) == digests(digests), "a function by its module and name"
    assert digests(np) == digests(np) != digests(pytest), "a module by its name"
    array = np.zeros(3)
    assert digests(array) != digests(array), "a value that does not name itself is new each time"
    assert plugins.digests() == before


def test_lambdas_of_one_function_have_other_keys() -> None:
    digests = []
    for run in (lambda graph, target: graph, lambda graph, target: Graph(graph.name)):
        extra.register(GraphPass("mine", run, ("before", "fold scales")))
        digests.append(plugins.digests())
        extra.unregister("mine")
    assert digests[0] != digests[1]


def test_sources_of_a_package_are_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "some_plugin"
    (package / "inner").mkdir(parents=True)
    digests = []
    for name, text in (("__init__.py", ""), ("inner/a.py", "x = 1"), ("inner/a.py", "x = 2"), ("notes.txt", "y")):
        (package / name).write_text(text)
        plugins._source_digest.cache_clear()
        digests.append(plugins._source_digest("some_plugin"))
    assert len(set(digests)) == 3 and digests[-1] == digests[-2]


def test_code_without_a_file_is_located_by_no_one() -> None:
    plugins._source_digest.cache_clear()
    first = plugins._source_digest("no_such_module")
    assert plugins._source_digest("no_such_module") == first, "the same within a process"
    plugins._source_digest.cache_clear()
    assert plugins._source_digest("no_such_module") != first
