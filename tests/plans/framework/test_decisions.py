"""Decisions: their keys distinguish layers and nothing else, their spaces have neighbours, forcing is part of
caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.notes import MayAlias, PastCaches
from tilewright.plans import candidates
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.cost import least
from tilewright.plans.framework.decision_key import Key, key_of_function, key_of_nodes, target_class
from tilewright.plans.framework.decisions import cheapest, decide, deciding, forcing
from tilewright.plans.framework.space import Knob, Setting, Space
from tilewright.support.errors import ParseError
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.layout.assign import assign_layouts, in_blocks
from tilewright.transform.lower import lower_group
from tilewright.transform.select.choose import choose_algorithms

ZEN4, HASWELL = Target.parse("znver4"), Target.parse("haswell")

Layer = tuple[int, int, int, int, int, int, int]


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Images, channels, filters, size of the map, window, stride, dilation of a convolution."""
    images, channels, filters = draw(st.integers(1, 4)), draw(st.sampled_from((16, 32, 48))), draw(st.integers(1, 64))
    window, stride = draw(st.sampled_from((1, 3, 5))), draw(st.integers(1, 2))
    dilation = draw(st.integers(1, 2)) if window > 1 else 1
    return images, channels, filters, draw(st.integers(12, 30)), window, stride, dilation


def model(layer: Layer, prefix: str = "", others: int = 0) -> Graph:
    """The layer among `others` that stand before it in the model."""
    images, channels, filters, size, window, stride, dilation = layer
    b = GraphBuilder(f"{prefix}model")
    for k in range(others):
        z, u = b.input(f"{prefix}z{k}", tensor(1, 1 << 10)), b.param(f"{prefix}u{k}", tensor(1 << 10, 1 << 10))
        ops.emit1(b, "relu", ops.emit1(b, "matmul", z, u))
    x, w = (
        b.input(f"{prefix}x", tensor(images, channels, size, size)),
        b.param(f"{prefix}w", tensor(filters, channels, window, window)),
    )
    pads = (window // 2 * dilation,) * 4
    attrs = {"pads": pads, "strides": (stride,) * 2, "dilations": (dilation,) * 2, "groups": 1}
    return b.finish((ops.emit1(b, "relu", ops.emit1(b, "conv", x, w, **attrs)),))


def layout_keys(graph: Graph, target: Target = ZEN4) -> dict[str, str]:
    """Keys of the decisions about convolutions of a graph, by kind."""
    with deciding() as record:
        assign_layouts(choose_algorithms(graph, target, in_blocks()), target)
    return {d.key.kind: d.key.name for d in record.decisions if "conv(" in d.key.text}


def kernel_keys(graph: Graph, target: Target = ZEN4) -> set[str]:
    """Keys of the plans of the kernels with a convolution in them."""
    run = split_prepare(assign_layouts(choose_algorithms(graph, target, in_blocks()), target)).run
    groups = [g for g in fuse(run) if any(n.op.startswith("lowered.conv") for n in g.nodes)]
    return {key_of_function(lower_group(g, g.label).func, target).name for g in groups}


@settings(max_examples=30, deadline=None)
@given(layers(), layers())
def test_layers_have_one_key_and_different_ones_never(first: Layer, second: Layer) -> None:
    """Whatever they are called, and whatever else is in the model (its weights decide where these come from)."""
    keys, there = layout_keys(model(first)), layout_keys(model(first, "other_", others=1))
    # Elsewhere something else may be decided, and other questions follow.
    both = keys.keys() & there.keys()
    assert both and all(keys[kind] == there[kind] for kind in both)
    assume(first != second)
    assert not {*keys.values(), *there.values()} & {*layout_keys(model(second)).values()}


@settings(max_examples=8, deadline=None)
@given(layers(), layers())
def test_kernels_have_one_key_and_different_ones_never(first: Layer, second: Layer) -> None:
    keys = kernel_keys(model(first))
    assert keys == kernel_keys(model(first, "other_"))
    assume(first != second)
    assert not keys & kernel_keys(model(second))


def test_what_surrounds_a_kernel_is_not_in_its_key() -> None:
    """Whether its memory is shared and its output goes past the caches is the model's matter; threads are not."""
    (group,) = fuse(model((1, 16, 16, 12, 3, 1, 1)))
    func = lower_group(group, "k").func
    enclosing = replace(func, notes=(*func.notes, MayAlias(), PastCaches()))
    assert key_of_function(func, ZEN4) == key_of_function(enclosing, ZEN4)
    assert key_of_function(func, ZEN4) != key_of_function(func, replace(ZEN4, threads=2))
    assert target_class(ZEN4) == target_class(ZEN4.adjusted(l3=1 << 20)) != target_class(HASWELL)


def test_keys_of_kernels_name_the_operators() -> None:
    (group,) = fuse(model((1, 16, 16, 12, 3, 1, 1)))
    text = key_of_function(lower_group(group, "k").func, ZEN4).text
    assert text == "conv+relu(f32[1, 16, 12, 12], f32[16, 16, 3, 3], f32[1, 16, 12, 12])"


def test_symbols_and_attributes_are_in_keys() -> None:
    def key(rows: object, transpose: bool, name: str = "n") -> Key:
        b = GraphBuilder("product")
        x, w = b.input("x", tensor(rows, 8)), b.param("w", tensor(8, 8))  # type: ignore[arg-type]
        ops.emit1(b, "matmul", x, w, transpose_b=transpose)
        return key_of_nodes("panels", b.nodes, ZEN4)

    n, m = (tw.te.var(name, lo=1) for name in "nm")
    assert key(n, False) == key(m, False)
    assert len({key(rows, t) for rows in (n, 4, tw.te.var("n", lo=2)) for t in (False, True)}) == 6
    assert key(n, True).text == "matmul(f32[n0, 8], f32[8, 8], transpose_b=True)"


@given(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.dictionaries(st.sampled_from("abc"), st.integers(-9, 1 << 40)))
def test_labels_parse_back(kind: str, knobs: dict[str, int]) -> None:
    setting = Setting(kind, tuple(knobs.items()))
    assert Setting.parse(setting.label) == setting


@pytest.mark.parametrize("label", ["", "winograd tile=x", "Winograd", "a b=1,"])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(ParseError, match="no setting"):
        Setting.parse(label)


def test_neighbours_differ_in_one_knob_where_the_space_has_such() -> None:
    def tile(rows: int, strip: int) -> Setting:
        return Setting("tiles", (("rows", rows), ("strip", strip)))

    # A strip is whole tiles: with other rows there is no strip of the same length.
    space = Space((tile(2, 8), tile(4, 8), tile(3, 9), tile(2, 4), Setting("other")))
    assert space.kinds == ("tiles", "other")
    assert space.knobs("tiles") == (Knob("rows", (2, 3, 4)), Knob("strip", (4, 8, 9)))
    assert space.neighbours(tile(2, 8)) == (tile(3, 9), tile(2, 4), Setting("other"))
    assert space.neighbours(tile(3, 9)) == (tile(2, 8), tile(4, 8), Setting("other"))
    assert space.neighbours(Setting("other")) == (tile(2, 8),)


def test_a_rule_is_told_from_an_estimate() -> None:
    about = Key("panels", "0")
    with deciding({"plan 1": "b"}) as record:
        assert decide(lambda: about, "ab", Setting) == "a"
        assert cheapest(lambda: Key("plan", "0"), {"x": 2.0, "y": 1.0}) == "y"
        assert cheapest(lambda: Key("plan", "1"), {"a": 1.0, "b": 2.0}) == "b"
    assert [(d.why, d.selected.label, d.estimate) for d in record.decisions] == [
        ("rule", "a", 0.0),
        ("estimate", "y", 1.0),
        ("forced", "b", 2.0),
    ]
    assert record.decisions[2].runners_up == ((Setting("a"), 1.0),)
    assert record.decisions[1].to_dict()["runners_up"] == [{"setting": "x", "cycles": 2.0}]


def test_a_forced_compile_is_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced setting is part of the program's key: it is found again, and no other compile finds it."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    graph = model((1, 16, 32, 12, 3, 1, 1))
    weights = {"w": np.ones((32, 16, 3, 3), np.float32)}
    with deciding() as record:
        tw.compile((graph, weights))
    (algorithm,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    other = next(s for s in algorithm.space if s.kind != algorithm.selected.kind)
    builds: list[str] = []
    assign = tw.compiler.choose_algorithms
    monkeypatch.setattr(tw.compiler, "choose_algorithms", lambda g, *rest: (builds.append(g.name), assign(g, *rest))[1])

    def texts(forced: dict[str, str]) -> str:
        with forcing(forced):
            created = tw.compile((graph, weights))
        return created.show("schedule")  # outside, where nothing is forced

    usual, told = texts({}), texts({algorithm.key.name: other.label})
    count = len(builds)
    assert usual != told and ("plan winograd" in usual) != ("plan winograd" in told)
    with forcing({algorithm.key.name: other.label}):
        tw.compile((graph, weights))
    tw.compile((graph, weights))
    assert len(builds) == count


@pytest.mark.parametrize("target", [ZEN4, HASWELL], ids=lambda t: t.cpu)
@pytest.mark.parametrize(
    "layer",
    [(1, 64, 64, 28, 3, 1, 1), (4, 32, 48, 20, 5, 1, 1), (1, 16, 32, 40, 3, 2, 1), (2, 48, 64, 14, 1, 1, 1)],
    ids=str,
)
def test_no_plan_is_estimated_below_what_any_takes(layer: Layer, target: Target) -> None:
    """Estimates are whole: of the kernels around a convolution none is chosen for less than the bound that is shown."""
    split = split_prepare(assign_layouts(choose_algorithms(model(layer), target, in_blocks()), target))
    for graph in (split.prepare, split.run):
        for group in fuse(graph):
            structure = analyse(lower_group(group, group.label).func)
            bound = least(structure, target).cycles
            for candidate in candidates(structure, target):
                assert candidate.cycles >= 0.999 * bound, (group.label, candidate)
