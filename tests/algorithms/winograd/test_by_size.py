"""Convolutions that keep their filters twice: which two layouts, when each is taken, and that both are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright import ops
from tilewright.algorithms.winograd.operators.by_size import ConvBySizeAttrs, versions
from tilewright.algorithms.winograd.plan.by_size import best_pair, with_pairs
from tilewright.algorithms.winograd.plan.tiles import TileBlock, WinogradProblem, fewest, heights, ranked
from tilewright.algorithms.winograd.selection import Winograd, WinogradBySize
from tilewright.arith import simplify
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.rewrite import substitute
from tilewright.ir.selection import Selection
from tilewright.plans import decided, plan
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.symbolic import estimated_at, small_maps_of, small_sides_of
from tilewright.plans.framework.variants import evaluated_where, versions_of
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.loops.workspace import used_where
from tilewright.transform.lower import lower_group

ZEN4 = Target.parse("znver4")
BOTH = WinogradBySize(6, 32, 1, 4, 32, 1, (300, 100, 200, 0))


def problems(*sides: int, channels: int = 64) -> tuple[WinogradProblem, ...]:
    return tuple(WinogradProblem(1, side, side, channels, channels, 3) for side in sides)


def layer(sides: tuple[Any, Any], both: WinogradBySize = BOTH) -> Any:
    """The kernel of a convolution of 16 to 16 channels, 3x3, and a ReLU."""
    b = GraphBuilder("layer")
    x = b.input("x", TensorType(f32, (const(1), const(1), *sides, const(16)), "NCHW16c"))
    tiles = (both.tile, both.neartile)
    packs = [b.param(f"w{m}", TensorType(f32, tuple(map(const, (1, m + 2, m + 2, 1, 1, 16, 32))))) for m in tiles]
    attrs = ConvBySizeAttrs(tiles[0], 3, 1, 1, (1, 1, 1, 1), 16, 16, 16, tiles[1], both.costs)
    y = ops.emit1(b, "lowered.conv_by_size", x, *packs, attrs=attrs)
    graph = b.finish((ops.emit1(b, "relu", y),))
    (group,) = fuse(graph)
    return lower_group(group, "layer").func


def test_small_sizes_below_what_a_range_is_evaluated_by() -> None:
    wide = Var("h", lo=1, hi=64)
    assert small_sides_of(wide) == (2, 5)
    assert small_sides_of(Var("h", lo=1)) == small_sides_of(const(9)) == ()
    assert small_sides_of(Var("h", lo=1, hi=64, likely=(8,))) == ()
    assert small_maps_of(wide, const(7)) == ((2, 7), (5, 7))
    assert estimated_at(wide) == (2, 5, 12, 32, 54)
    assert estimated_at(Var("h", lo=4, hi=64, multiple=4)) == (8, 16, 32, 56)
    assert estimated_at(Var("h", lo=1, likely=(8, 9))) == (8, 9)
    assert estimated_at(Var("h", lo=1)) == ()


def test_two_layouts_are_retained_where_they_gain() -> None:
    """Three tiles of F(6) suit 18 pixels, four of F(4) 16; where all maps are alike one layout is enough."""
    tiles = (4, 6)
    mixed = problems(16, 18, channels=256)
    best = with_pairs(mixed, (), tiles, ZEN4, directly=True)[0][1]
    assert isinstance(best, WinogradBySize) and {best.tile, best.neartile} == {4, 6}
    assert best_pair(problems(48), (), tiles, ZEN4, True) is None
    alike = problems(24, 48, 96)
    assert with_pairs(alike, (), tiles, ZEN4, directly=True)[0] == ranked(alike, tiles, ZEN4)[0]


def test_maps_of_some_pixels_are_computed_directly() -> None:
    shapes, small = problems(12, 32, 54, channels=16), problems(1, 2, channels=16)
    best = with_pairs(shapes, small, (2, 4, 6), ZEN4, directly=True)[0][1]
    assert isinstance(best, WinogradBySize) and best.neartile == 0
    each, fixed, first, other = best.costs
    assert first + other < each + fixed  # a pixel directly, or one tile
    assert all(
        not isinstance(option, WinogradBySize) or option.neartile
        for _, option in with_pairs(shapes, small, (2, 4, 6), ZEN4, directly=False)
    )


def test_costs_are_no_part_of_a_setting() -> None:
    setting = Setting.of(BOTH)
    assert Setting.parse(setting.label) == setting
    assert setting.label == ("winograd_by_size tile=6,width=32,panels=1,neartile=4,nearwidth=32,nearpanels=1")
    assert Selection(BOTH).algorithm is BOTH


@pytest.mark.parametrize("side", range(1, 40))
def test_the_lower_line_is_selected(side: int) -> None:
    h = Var("h", lo=1, hi=64)
    b = GraphBuilder("g")
    x = b.input("x", TensorType(f32, (const(2), const(1), h, const(9), const(16)), "NCHW16c"))
    packs = [b.param(f"w{m}", TensorType(f32, tuple(map(const, (1, m, m, 1, 1, 16, 32))))) for m in (8, 6)]
    attrs = ConvBySizeAttrs(6, 3, 1, 1, (1, 1, 1, 1), 16, 16, 16, 4, BOTH.costs)
    y = ops.emit1(b, "lowered.conv_by_size", x, *packs, attrs=attrs)
    created = b.finish((y,)).nodes[-1]
    first, second = versions(created)
    assert first.condition is not None and second.condition is None
    assert first.node.inputs[1] is packs[1] and second.node.inputs[1] is packs[0]
    six, four = 2 * -(-side // 6) * 2 * 300 + 100, 2 * -(-side // 4) * 3 * 200
    value = as_int(simplify(substitute(first.condition, {h: const(side)})))
    assert bool(value) == (four < six)


def test_each_version_is_evaluated_by_its_own_sizes() -> None:
    h = Var("h", lo=1, hi=64, likely=(4, 6, 8, 12, 30))
    func = layer((h, h))
    (condition, first), (_, second) = versions_of(func)
    assert condition is not None
    assert [s.likely for s in first.symbols] == [(4, 8)]
    assert [s.likely for s in second.symbols] == [(6, 12, 30)]
    (h,) = first.symbols
    for fewer in (h > 100, h > 4):  # nothing is left, or one size: estimated at all
        assert evaluated_where(first, [fewer]) is first
    planned = plan(func, ZEN4)
    assert planned.func.symbols == func.symbols
    assert [c for c, _ in planned.variants] == [condition]
    assert f"variant {condition}" in planned.describe()
    assert len(decided(func, ZEN4)) == 2


def test_no_map_is_one_register_tile_where_two_would_prefetch() -> None:
    choice, block = Winograd(6, 32, 8), TileBlock(20, 0)
    shapes = problems(7, 18, 30, channels=256)  # 4, 9 and 25 tiles
    result = heights(block, shapes, choice, ZEN4)
    assert result and max(result) == 5 and fewest(block, shapes, choice) == 4  # 6 tiles, of 13 x 10, are two of 3
    assert 10 in heights(block, problems(30, channels=256), choice, ZEN4)
    assert heights(TileBlock(2, 5), shapes, choice, ZEN4) == [1, 2, 3, 4, 5]  # blocks of columns: as ever


def test_a_version_that_is_not_selected_needs_no_memory() -> None:
    """Each workspace belongs to one of two versions, and has its size where that one is taken alone."""
    sides = Var("h", lo=4, hi=300), Var("w", lo=4, hi=300)
    func = layer(sides)
    flat = lower_loops(plan(func, ZEN4).func, ZEN4)
    needed = []
    for size in ((8, 8), (24, 24)):  # four tiles of either; 36 of F(4), 16 of F(6)
        numbers: dict[Var, Expr] = {s: const(n) for s, n in zip(sides, size, strict=True)}
        at = lambda e, n=numbers: as_int(simplify(substitute(e, n)))  # noqa: E731
        needed.append({b.name for b in flat.workspaces if at(used_where(flat, b))})
    assert all(needed) and needed[0].isdisjoint(needed[1])
    assert needed[0] | needed[1] == {b.name for b in flat.workspaces}


def convolution(likely: bool) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 16, 3, 3)).astype(np.float32) / 12,
        "b": rng.standard_normal(32).astype(np.float32),
    }
    m = model(
        [node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])],
        [info("x", [1, 16, "h", "w_"])],
        ["y"],
        weights,
    )
    sides = {"likely": [6, 12, 8, 16]} if likely else {}
    return m, {name: tw.dim(1, 48, **sides) for name in ("h", "w_")}


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("likely", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_all_sizes_are_right_and_weights_stay_live(likely: bool, threads: int, tmp_path: Path) -> None:
    """Both versions are called, new weights reach both layouts, and a saved file has both."""
    ort = pytest.importorskip("onnxruntime")
    m, dims = convolution(likely)
    compiled = tw.compile(m, dims=dims, threads=threads, records=None)
    if "conv_by_size" not in compiled.show("graph"):
        pytest.skip("one layout is enough on this machine")
    compiled.save(tmp_path / "layer.tw")
    loaded = tw.load(tmp_path / "layer.tw", threads=threads)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for factor in (1.0, 2.0):
        if factor != 1.0:
            weights = {i.name: factor * np.asarray(numpy_helper.to_array(i)) for i in m.graph.initializer}
            loaded.update(weights)
        for h, w in [(1, 1), (1, 7), (2, 2), (4, 4), (6, 6), (8, 8), (12, 12), (13, 5), (16, 16), (30, 31), (48, 48)]:
            x = rng.standard_normal((1, 16, h, w)).astype(np.float32)
            want = factor * session.run(None, {"x": x})[0]
            np.testing.assert_allclose(np.asarray(loaded(x)), want, atol=3e-5 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("sides", [(6, 12, 8, 16), (7, 11, 16, 18)])
def test_weights_that_come_with_each_call_are_packed_once(sides: tuple[int, ...]) -> None:
    shape = [32, 16, 3, 3]
    m = model(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], [info("x", [1, 16, "h", "v"]), info("w", shape)], ["y"]
    )
    compiled = tw.compile(m, dims={d: tw.dim(1, 48, likely=sides) for d in ("h", "v")}, records=None)
    assert "conv_by_size" not in compiled.show("graph")
