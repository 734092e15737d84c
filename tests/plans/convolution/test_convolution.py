"""Direct convolution: native code against double precision, and blockings that fit."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.prefetches import hints
from tests.transform.graph.graphs import BATCH, tensor
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.compiler import graph_passes
from tilewright.ir.expr import Var, as_int
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.loops import Allocate, For
from tilewright.ir.rewrite import walk
from tilewright.ops.interpret import run_graph
from tilewright.plans import plan
from tilewright.plans.convolution import direct
from tilewright.plans.convolution.pixels import PixelProblem, prefetches, runs_together
from tilewright.plans.convolution.tiles import Blocking, DirectProblem, blockings, estimate, ranked, tile_steps
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.base import Candidate
from tilewright.plans.framework.cost import Cost
from tilewright.plans.framework.decisions import deciding
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

Case = tuple[Any, ...]
TARGETS = {name: Target.parse(name) for name in ("znver4", "haswell", "generic-aarch64")}

# batch, channels, filters, (height, width), window, strides, pads (top, left, bottom, right), dilations
CASES: list[Case] = [
    (1, 3, 17, (9, 11), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (2, 3, 31, (23, 22), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    (3, 4, 32, (20, 20), (8, 8), (4, 4), (0, 0, 0, 0), (1, 1)),
    (1, 17, 31, (7, 5), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    (2, 31, 17, (6, 9), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 100, 100, (7, 7), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
    (9, 16, 24, (5, 5), (1, 1), (1, 1), (1, 0, 2, 1), (1, 1)),
    (4, 32, 40, (19, 19), (3, 3), (2, 1), (0, 2, 1, 0), (1, 1)),
    (1, 64, 48, (14, 14), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    (5, 16, 16, (7, 7), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    (1, 8, 9, (1, 30), (1, 5), (1, 2), (0, 2, 0, 2), (1, 1)),
    (1, 8, 8, (30, 1), (5, 1), (3, 1), (1, 0, 0, 0), (2, 1)),
    (1, 160, 32, (13, 13), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    (1, 512, 33, (6, 6), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 64, 64, (56, 56), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 16, 16, (40, 41), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    (1, 1, 1, (5, 5), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 1, 5, (4, 4), (4, 4), (1, 1), (3, 3, 3, 3), (1, 1)),
    (1, 520, 264, (3, 2), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 3, 40, (98, 96), (16, 16), (16, 17), (0, 0, 0, 0), (1, 1)),
    (2, 5, 33, (64, 70), (16, 3), (16, 8), (0, 0, 0, 0), (1, 2)),
    (1, 521, 530, (6, 5), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
]


def graph_of(case: Case, symbolic: bool = False, residual: bool = True) -> Graph:
    n, c, k, (h, w), (kh, kw), strides, pads, dilations = case
    b = GraphBuilder("case")
    x = b.input("x", tensor(BATCH if symbolic else n, c, h, w))
    attrs = {"pads": pads, "strides": strides, "dilations": dilations, "groups": 1}
    y = ops.emit1(b, "conv", x, b.param("w", tensor(k, c, kh, kw)), **attrs)
    y = ops.emit1(b, "add", y, b.param("bias", tensor(1, k, 1, 1)))
    if residual:
        y = ops.emit1(b, "add", y, b.input("r", tensor(*y.shape)))
    return b.finish((ops.emit1(b, "relu", y),))


def directly(graph: Graph, target: Target) -> dict[str, str]:
    """The settings by which convolutions of few filters are not made of those of their taps."""
    with deciding() as record:
        for _, function in graph_passes(target, Options(fast="exact")):
            graph = function(graph)
    return {d.key.name: "direct" for d in record.decisions if d.selected.kind == "taps"}


def arrays(case: Case) -> dict[str, np.ndarray]:
    n, c, k, (h, w), (kh, kw), *_ = case
    rng = np.random.default_rng(0)
    shapes = {"w": (k, c, kh, kw), "bias": (1, k, 1, 1), "x": (n, c, h, w)}
    result = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    result["r"] = rng.standard_normal(reference(case, result).shape).astype(np.float32)
    return result


def reference(case: Case, data: dict[str, np.ndarray]) -> np.ndarray:
    """The convolution with bias in double precision."""
    _, _, _, _, (kh, kw), (sh, sw), (top, left, bottom, right), (dh, dw) = case
    x = np.pad(data["x"].astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    oh, ow = (x.shape[2] - (kh - 1) * dh - 1) // sh + 1, (x.shape[3] - (kw - 1) * dw - 1) // sw + 1
    y = np.zeros((x.shape[0], data["w"].shape[0], oh, ow))
    for i in range(kh):
        for j in range(kw):
            part = x[:, :, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
            y += np.einsum("nchw,kc->nkhw", part, data["w"][:, :, i, j].astype(np.float64))
    return y + data["bias"]


def check(got: np.ndarray, case: Case, data: dict[str, np.ndarray]) -> None:
    want = np.maximum(reference(case, data) + data["r"], 0)
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= 5e-6 * np.abs(want).max(initial=0)


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_code_against_double_precision(case: Case) -> None:
    data, graph = arrays(case), graph_of(case)
    with deciding(directly(graph, Target.host())):
        model = tw.compile((graph, {"w": data["w"], "bias": data["bias"]}), fast="exact")
    (got,) = model.run({"x": data["x"], "r": data["r"]}).values()
    check(got, case, data)


def test_any_batch() -> None:
    case = CASES[8]
    model = tw.compile((graph_of(case, symbolic=True, residual=False), {k: arrays(case)[k] for k in ("w", "bias")}))
    for n in range(1, 10):
        data = arrays((n, *case[1:]))
        (got,) = model.run({"x": data["x"]}).values()
        check(got, case, data | {"r": np.zeros((), np.float32)})


H, W = Var("height", lo=1, hi=70), Var("width", lo=1, hi=70)
PIXELS = [
    # channels, filters, stride, whether the input is multiplied first, whether another convolution follows
    (64, 48, 1, False, True),
    (480, 80, 1, True, True),
    (120, 40, 1, True, True),
    (32, 24, 2, True, True),
    (72, 24, 1, True, False),
    (24, 72, 1, False, False),
    (1, 1, 1, False, False),
    (20, 33, 2, False, False),
]


@pytest.mark.daily(2)
@pytest.mark.costly(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", PIXELS, ids=str)
def test_windows_of_one_pixel_over_maps_of_any_size(case: tuple[Any, ...], threads: int) -> None:
    """In strips of pixels that follow each other through the lines: fewer than a tile, a tile's rest, many strips."""
    channels, filters, stride, scaled, followed = case
    b, rng = GraphBuilder("case"), np.random.default_rng(0)
    y = x = b.input("x", tensor(BATCH, channels, H, W))
    if scaled:
        y = ops.emit1(b, "mul", x, b.input("scale", tensor(BATCH, channels, 1, 1)))
    shapes = {"w": (filters, channels, 1, 1), "v": (16, filters, 3, 3)}
    attrs = {"pads": (0, 0, 0, 0), "strides": (stride, stride), "dilations": (1, 1), "groups": 1}
    y = ops.emit1(b, "relu", ops.emit1(b, "conv", y, b.param("w", tensor(*shapes["w"])), **attrs))
    if stride == 1:
        y = ops.emit1(b, "add", y, b.input("r", tensor(*y.shape)))
    if followed:
        attrs = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "groups": 1}
        y = ops.emit1(b, "conv", y, b.param("v", tensor(*shapes["v"])), **attrs)
    graph = b.finish((y,))
    weights = {p.name: rng.standard_normal(shapes[p.name]).astype(np.float32) for p in graph.params}
    model = tw.compile((graph, weights), fast="exact", threads=threads)
    for n, h, w in ((1, 1, 1), (2, 3, 5), (1, 7, 2), (3, 14, 14), (1, 20, 23), (1, 70, 61)):
        symbols = {"batch": n, "height": h, "width": w}
        sizes = {i.name: [symbols[d] if isinstance(d, str) else d for d in i.shape] for i in model.inputs}
        data = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        (got,) = model.run(data).values()
        (want,) = run_graph(graph, data, weights).values()
        assert np.abs(got - want).max() <= 5e-6 * np.abs(want).max()


def kernel_of(case: Case, target: Target) -> KernelCall:
    graph = graph_of(case)
    forced = directly(graph, target)
    # Where nothing is forced, decisions are listed where they are asked for.
    with deciding(forced) if forced else nullcontext():
        for _, function in graph_passes(target, Options(fast="exact")):
            graph = function(graph)
    groups = [g for g in fuse(split_prepare(graph).run) if any(n.op == "lowered.conv_blocked" for n in g.nodes)]
    (group,) = groups
    return lower_group(group, "k")


SMALL = [
    (2, 32, 24, (5, 3), (1, 1), (1, 1), (1, 0, 2, 1), (1, 1)),
    (1, 32, 16, (5, 5), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
]


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("knobs", [(1, 16, 3, 1), (3, 16, 9, 2), (5, 16, 1 << 20, 1), (2, 16, 8, 1 << 20)], ids=str)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_all_blockings_mean_the_same(case: Case, knobs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["znver4"]
    blocking = Blocking(*knobs)
    shape = DirectProblem(1, 8, 8, (1, 1), 1, 16, 16, 16, 4096, False)
    choice = [(estimate(shape, blocking, target), blocking)]
    monkeypatch.setattr("tilewright.plans.convolution.direct.blockings", lambda *_: choice)
    kernel = kernel_of(case, target)
    rng = np.random.default_rng(1)
    shapes = [(b, tuple(int(getattr(d, "value", 0)) for d in b.shape)) for b in kernel.func.params]
    ordinary = [rng.standard_normal(shape).astype(b.dtype.numpy) for b, shape in shapes]
    monkeypatch.setattr("tilewright.plans.PLANS", (direct.PLAN,))  # others may have the better estimate
    planned = plan(kernel.func, target)
    assert dict(planned.chosen.knobs)["rows"] == blocking.rows
    flat = lower_loops(planned.func, target)
    inputs = [a.copy() for a in ordinary]
    space = [np.full([getattr(d, "value", 1) for d in b.shape], np.nan, np.float32) for b in flat.params[len(inputs) :]]
    interpret(kernel.func, ordinary)
    interpret(flat, [*inputs, *space])
    np.testing.assert_allclose(inputs[-1], ordinary[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strip", [28, 196, 266, 784])
@pytest.mark.parametrize("batch", [1, 2])
def test_sums_of_strips_stay_in_registers(batch: int, strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the strips of a map are counted from: sums are zeroed, summed up and read as one tile's."""
    target, blocking = TARGETS["znver4"], Blocking(14, 16, strip)
    case = (batch, 256, 128, (56, 56), (1, 1), (1, 1), (0,) * 4, (1, 1))
    shape = DirectProblem(1, 56, 56, (1, 1), 1, 256, 16, 128, 4 * 256 * 56**2, False)
    choice = [(estimate(shape, blocking, target), blocking)]
    monkeypatch.setattr("tilewright.plans.convolution.direct.blockings", lambda *_: choice)
    monkeypatch.setattr("tilewright.plans.PLANS", (direct.PLAN,))  # others may have the better estimate
    planned = plan(kernel_of(case, target).func, target)
    assert dict(planned.chosen.knobs)["strip"] == strip
    sums = [s.buffer for s in walk(lower_loops(planned.func, target).body) if isinstance(s, Allocate)]
    assert sums and all(b.scope == "local" for b in sums)
    assert all(math.prod(as_int(d) or 0 for d in b.shape) <= target.registers * target.lanes(4) for b in sums), sums


@pytest.mark.parametrize("name", TARGETS)
def test_blockings_fit_registers_and_work(name: str) -> None:
    target = TARGETS[name]
    lanes = target.lanes(4)
    for size, filters, channels, window in ((56, 64, 64, 3), (7, 512, 2048, 1), (19, 17, 128, 3), (1, 1000, 512, 1)):
        shape = DirectProblem(
            1, size, size, (window, window), 1, channels, 16, filters, 4 * channels * size**2, window > 1
        )
        for _, blocking in ranked((shape,), (False, True), target):
            vectors = blocking.width // lanes
            assert blocking.rows * vectors + min(blocking.rows, vectors) < max(target.registers, 3)
            assert blocking.width < filters + lanes


def test_estimates_prefer_full_tiles() -> None:
    target = TARGETS["haswell"]
    shape = DirectProblem(1, 56, 56, (3, 3), 1, 64, 8, 64, 4 * 64 * 58 * 58, True)
    (best, blocking), *_, (worst, _) = blockings((shape,), 16, False, target)
    assert best.cycles < worst.cycles
    assert blocking.rows >= 5
    assert estimate(shape, Blocking(1, 16), target).cycles > 1.5 * best.cycles


@pytest.mark.parametrize(
    ("channels", "filters", "size", "narrow"),
    [(32, 128, 40, True), (64, 256, 56, True), (128, 512, 28, True), (512, 128, 28, False), (1024, 256, 14, False)],
)
def test_panels_of_one_vector_where_pixels_stay_beside_them(
    channels: int, filters: int, size: int, narrow: bool
) -> None:
    """1x1 convolutions on Zen 4 (docs/decisions/narrow-panels.md): by more than a rounding error."""
    target = Target.parse("znver4").adjusted(l2=1 << 20)
    shape = DirectProblem(1, size, size, (1, 1), 1, channels, 16, filters, 4 * channels * size**2, False)
    cycles = {blocking.width: cycles for cycles, blocking in ranked((shape,), (True,), target)}
    others = min(c for width, c in cycles.items() if width > target.lanes(4))
    assert cycles[target.lanes(4)] < 0.995 * others if narrow else cycles[target.lanes(4)] > 1.001 * others


def test_elements_are_operands_of_single_vectors_alone() -> None:
    target = Target.parse("znver4")
    assert tile_steps(14, 1, target, operands=True) < tile_steps(14, 1, target)
    assert tile_steps(6, 4, target, operands=True) == tile_steps(6, 4, target)
    usual = Target.parse("x86-64-v3")
    assert tile_steps(6, 1, usual, operands=True) == pytest.approx(tile_steps(6, 1, usual))


@pytest.mark.parametrize(("channels", "filters", "asks"), [(520, 264, True), (64, 64, False)])
def test_weights_past_the_second_level_are_asked_for_in_advance(channels: int, filters: int, asks: bool) -> None:
    case = (1, channels, filters, (5, 5), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))
    kernel = kernel_of(case, TARGETS["haswell"])
    flat = str(lower_loops(plan(kernel.func, TARGETS["haswell"]).func, TARGETS["haswell"]))
    assert ("prefetch" in flat) == asks


@pytest.mark.parametrize(
    ("channels", "filters", "size", "window", "flat", "knobs"),
    [
        (64, 80, (7, 7), 1, True, {}),
        (64, 56, (5, 13), 1, True, {"rows": 3}),
        (32, 64, (12, 12), 1, True, {"strip": 48}),
        (256, 24, (6, 7), 1, True, {"channels": 8}),
        (16, 40, (9, 13), 3, False, {}),
        (16, 40, (6, 11), 3, False, {"rows": 2, "strip": 3}),
        (63, 80, (7, 7), 1, True, {}),
        (203, 56, (5, 13), 1, True, {"rows": 3}),
        (7, 40, (20, 28), 4, False, {"rows": 3}),
    ],
)
def test_tiles_ask_for_the_weights_that_come_next(
    channels: int,
    filters: int,
    size: tuple[int, int],
    window: int,
    flat: bool,
    knobs: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles prefetch the next panel, or the next block of channels; those at the end of a line or a map may prefetch
    nothing."""
    pad, target = window % 2 and window // 2, TARGETS["haswell"].adjusted(l1=1 << 12, l2=1 << 13)
    strides = (1, 1) if window % 2 else (window, window)

    def forced(*args: Any) -> list[tuple[Cost, Blocking]]:
        cost, blocking = blockings(*args)[0]
        return [(cost, replace(blocking, **knobs))]

    monkeypatch.setattr("tilewright.plans.convolution.direct.blockings", forced)
    case = (1, channels, filters, size, (window, window), strides, (pad,) * 4, (1, 1))
    with deciding() as record:
        kernel_of(case, target)
    panels = next(d for d in record.decisions if d.key.kind == "panels")
    label = next(x for x in panels.space.labels if x.endswith(str(int(flat))))
    with deciding({panels.key.name: label}):
        kernel = kernel_of(case, target)
    func = lower_loops(plan(kernel.func, target).func, target)
    (weights,) = (b for b in func.params if len(b.shape) == 6)
    asked: dict[int, set[int]] = {}
    for hint in hints(func, target, weights.name):
        part = hint.note.nbytes // 4
        lines = asked.setdefault(hint.read // part * part + part, set())
        for line in range(hint.lines):
            lines.add((hint.prefetched + part) // 16 + line)
    count = as_int(weights.size) or 0
    assert set(asked) == set(range(part, count + part, part))
    for first, lines in asked.items():
        assert lines >= set(range(first // 16, (first + part) // 16))


@pytest.mark.parametrize(("channels", "size", "most"), [(64, (6, 6), 11), (64, (4, 4), 22)])
def test_tiles_prefetch_some_lines_at_a_time(channels: int, size: tuple[int, int], most: int) -> None:
    """Not those of all windows of a block of channels at once, nine times as many."""
    target = Target.parse("emeraldrapids").adjusted(l1=1 << 12, l2=1 << 13)
    case = (1, channels, 64, size, (3, 3), (1, 1), (1,) * 4, (1, 1))
    func = lower_loops(plan(kernel_of(case, target).func, target).func, target)
    (weights,) = (b for b in func.params if len(b.shape) == 6)
    lines = {hint.lines for hint in hints(func, target, weights.name)}
    assert lines and max(lines) <= most


def test_a_tile_alone_leaves_unblocked_weights_to_hardware() -> None:
    """With its own step's hint at each step few pixels took 1.1 to 1.4 times as long."""
    target = TARGETS["haswell"].adjusted(l1=1 << 12, l2=1 << 13)
    for channels, size, asks in ((203, (1, 5), False), (208, (1, 5), True), (203, (7, 7), True)):
        case = (1, channels, 56, size, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))
        flat = str(lower_loops(plan(kernel_of(case, target).func, target).func, target))
        assert ("prefetch" in flat) == asks


@pytest.mark.parametrize(("channels", "size", "window"), [(208, (1, 5), 1), (203, (1, 5), 1), (64, (3, 3), 3)])
def test_a_tile_alone_prefetches_all_of_its_panel_on_cores_that_follow_too_slowly(
    channels: int, size: tuple[int, int], window: int
) -> None:
    target = Target.parse("emeraldrapids").adjusted(l1=1 << 12, l2=1 << 13)
    case = (1, channels, 64, size, (window, window), (1, 1), (window // 2,) * 4, (1, 1))
    func = lower_loops(plan(kernel_of(case, target).func, target).func, target)
    (weights,) = (b for b in func.params if len(b.shape) == 6)
    asked = set()
    for hint in hints(func, target, weights.name):
        assert hint.note.nbytes == target.costs.prefetching.alone_panel_bytes
        asked |= {hint.prefetched // 16 + line for line in range(hint.lines)}
    assert asked == set(range((as_int(weights.size) or 0) // 16))


@pytest.mark.parametrize(
    ("window", "strides", "dilation", "by_columns"),
    [
        ((16, 16), (16, 16), 1, False),
        ((16, 16), (15, 16), 1, False),
        ((16, 16), (16, 15), 1, True),
        ((16, 2), (16, 4), 4, True),
        ((16, 2), (16, 5), 4, False),
        ((2, 2), (2, 2), 1, True),
        ((4, 1), (1, 1), 1, False),
    ],
)
def test_windows_that_do_not_meet_are_read_along_their_lines(
    window: tuple[int, int], strides: tuple[int, int], dilation: int, by_columns: bool
) -> None:
    """Steps of an unblocked input that share elements are distant; small windows stay in the first level anyway."""
    target = TARGETS["haswell"].adjusted(l1=1 << 12)
    case = (1, 3, 16, (64, 80), window, strides, (0, 0, 0, 0), (1, dilation))
    (anchor,) = analyse(kernel_of(case, target).func).anchors
    candidate = Candidate((("rows", 5), ("width", 16)), Cost())
    assert direct.is_by_columns(anchor, candidate, target) == by_columns


@pytest.mark.parametrize(("filters", "rows", "asks"), [(16, 6, False), (32, 6, True), (48, 6, True), (64, 3, True)])
def test_panels_take_turns_to_ask_for_the_pixels_that_come_next(
    filters: int, rows: int, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels, strip, target = 32, 36, TARGETS["haswell"].adjusted(l1=1 << 12, l2=1 << 14)
    choice = [(Cost(compute=1.0), Blocking(rows, 16, strip))]
    monkeypatch.setattr("tilewright.plans.convolution.direct.blockings", lambda *_: choice)
    case = (1, channels, filters, (12, 13), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))
    with deciding() as record:
        kernel_of(case, target)
    panels = next(d for d in record.decisions if d.key.kind == "panels")
    with deciding({panels.key.name: "panels width=16,flat=1"}):
        kernel = kernel_of(case, target)
    func = lower_loops(plan(kernel.func, target).func, target)
    x = next(b for b in func.params if len(b.shape) == 5 and as_int(b.shape[1]) == channels // 8)
    asked: dict[int, set[int]] = {}
    for hint in hints(func, target, x.name):
        assert hint.note.nbytes == 4 * 8 * strip
        first = (hint.prefetched + 8 * strip) // 16
        asked.setdefault(hint.read, set()).update(first + line for line in range(hint.lines))
    before_last = range(0, 4 * strip, rows) if asks else ()
    assert set(asked) >= {8 * (12 * 13 * block + pixel) for block in range(channels // 8) for pixel in before_last}
    assert asks or not asked
    for read, lines in asked.items():
        wanted = {(read + 8 * (strip + row)) // 16 for row in range(rows)}
        assert lines >= wanted
        assert len(lines) <= len(wanted) + 1, "shares are rounded up"


def test_a_register_tile_has_no_condition_inside() -> None:
    for target in TARGETS.values():
        for case in ((1, 32, 64, (19, 19), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)), CASES[14]):
            flat = str(lower_loops(plan(kernel_of(case, target).func, target).func, target))
            tiles = flat[flat.index("alloc conv") :]
            assert "select(" not in tiles
            assert all("if " not in line or "fused" in line for line in tiles.splitlines())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("filters", [8, 64])
def test_one_panel_of_filters_has_strips_that_threads_share(name: str, filters: int) -> None:
    """An operand that is read where it lies needs no strip for its own sake; one panel has nothing else to share."""
    case = (1, 64, filters, (56, 56), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))
    target = replace(TARGETS[name], threads=2)
    flat = lower_loops(plan(kernel_of(case, target).func, target).func, target)
    shared = [s for s in walk(flat.body) if isinstance(s, For) and s.kind == "parallel"]
    assert shared and all((as_int(s.extent) or 1) % 2 == 0 for s in shared)


def test_panels_and_flatness_can_be_forced() -> None:
    case = (1, 32, 64, (7, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1))
    data = arrays(case)
    model = (graph_of(case), {"w": data["w"], "bias": data["bias"]})
    with deciding() as record:
        tw.compile(model, fast="exact")
    panels = next(d for d in record.decisions if d.key.kind == "panels")
    assert {label[-1] for label in panels.space.labels} == {"0", "1"}
    for label in (panels.space.labels[0], panels.space.labels[-1]):
        with deciding({panels.key.name: label}):
            forced = tw.compile(model, fast="exact")
        (got,) = forced.run({"x": data["x"], "r": data["r"]}).values()
        check(got, case, data)


ORDINARY: list[Case] = [
    (2, 31, 20, (6, 9), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 17, 30, (1, 2), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 60, 48, (40, 33), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (3, 8, 12, (9, 12), (1, 1), (2, 3), (0, 0, 0, 0), (1, 1)),
    (1, 70, 36, (64, 64), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 3, 32, (64, 64), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (2, 5, 33, (32, 32), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 2, 96, (16, 16), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (0, 8, 8, (5, 5), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
]


@pytest.mark.daily(4)
@pytest.mark.parametrize("case", ORDINARY, ids=str)
def test_one_pixel_between_ordinary_maps(case: Case) -> None:
    """Nothing is converted; NaN and infinity go through."""
    data, graph = arrays(case), graph_of(case, residual=False)
    weights = {name: data[name] for name in ("w", "bias")}
    with deciding() as record:
        tw.compile((graph, weights))
    sites = [d.key.name for d in record.decisions if d.key.kind == "algorithm"]
    with deciding(dict.fromkeys(sites, "pixels")):
        model = tw.compile((graph, weights))
    assert len(sites) == 1 and "lowered.block_channels" not in str(model.show("graph"))
    check(model(data["x"]), case, data | {"r": np.zeros((), np.float32)})
    data["x"][:1, 0, 0, 0], data["x"][:, 1, -1, 0] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        want = np.maximum(reference(case, data), 0)
    np.testing.assert_allclose(model(data["x"]), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "side", "filters", "prefetched"),
    [(16, 100, 8, False), (16, 127, 3, False), (16, 127, 4, True), (16, 800, 1, True)],
)
def test_a_small_number_of_filters_prefetch_from_memory_alone(
    channels: int, side: int, filters: int, prefetched: bool
) -> None:
    target = TARGETS["znver4"].adjusted(l2=1 << 20, l3=32 << 20)
    assert prefetches(PixelProblem(filters, side * side, channels), filters, target) == prefetched


@pytest.mark.parametrize(
    ("channels", "filters", "side", "together"), [(3, 32, 64, 6), (3, 32, 63, 1), (3, 8, 64, 1), (3, 96, 16, 6)]
)
def test_maps_that_share_sets_are_written_some_lines_at_a_time(
    channels: int, filters: int, side: int, together: int
) -> None:
    """Several runs of pixels by a panel of filters before the next, where all filters' maps lie in the same sets."""
    target = Target.parse("znver4").adjusted(l1=32 << 10)
    shape = PixelProblem(filters, side * side, channels)
    candidate = Candidate((("filters", 8), ("vectors", 3), ("copied", 0)), Cost())
    assert runs_together(shape, candidate, 48, target) == together


def test_layers_of_one_pixel_are_blocked_where_others_are() -> None:
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}

    def operators(*windows: int) -> list[str]:
        b = GraphBuilder("mixed")
        y = b.input("x", tensor(1, 64, 20, 20))
        for i, window in enumerate(windows):
            w = b.param(f"w{i}", tensor(64, 64, window, window))
            y = ops.emit1(b, "relu", ops.emit1(b, "conv", y, w, pads=(window // 2,) * 4, **attrs))
        graph = b.finish((y,))
        for _, function in graph_passes(TARGETS["haswell"], Options(fast="exact")):
            graph = function(graph)
        return [n.op for n in graph.nodes if n.op.startswith("lowered.conv")]

    assert operators(1, 1) == ["lowered.conv_pointwise_groups"] * 2
    assert operators(1, 3, 1, 1) == ["lowered.conv_blocked"] * 4


@pytest.mark.parametrize(
    ("name", "stride", "ordinary"),
    [("znver3", 1, False), ("haswell", 1, True), ("znver4", 1, True), ("znver4", 2, True)],
)
def test_scattered_rows_cost_most_on_zen_3(name: str, stride: int, ordinary: bool) -> None:
    """A map that leaves the second level of cache, of more rows than hardware follows; samples are taken out first."""
    case = (1, 144, 24, (56 * stride, 56 * stride), (1, 1), (stride, stride), (0, 0, 0, 0), (1, 1))
    graph = graph_of(case, residual=False)
    for _, function in graph_passes(Target.parse(name), Options()):
        graph = function(graph)
    assert ("lowered.conv_pointwise_groups" in [n.op for n in graph.nodes]) is ordinary


@pytest.mark.parametrize("filters", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["haswell", "znver4"])
def test_a_small_number_of_filters_read_ordinary_maps_once(name: str, filters: int) -> None:
    """Neither is a map put into blocks that are read for a filter or two, nor is all of it read for each filter."""
    target = Target.parse(name)
    for channels, side in ((222, 95), (64, 420))[: min(2, filters)]:
        case = (1, channels, filters, (side, side), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))
        graph = graph_of(case, residual=False)
        for _, function in graph_passes(target, Options()):
            graph = function(graph)
        groups = [g for g in fuse(split_prepare(graph).run) if any("conv" in n.op for n in g.nodes)]
        (kernel,) = (lower_group(g, f"k{i}") for i, g in enumerate(groups))
        # Channels that fill no blocks are not put into any.
        plans = ("pixels", "convolution") if channels % target.lanes(4) else ("pixels",)
        assert plan(kernel.func, target).plan in plans, (channels, side)


@pytest.mark.parametrize(
    ("steps", "products", "expected"),
    [
        (16, 9, 8),  # 72 products
        (13, 27, 13),  # 351, where 1 step has 27
        (127, 27, 1),  # not 3,429
        (122, 27, 2),  # nor 61 steps
        (3, 200, 1),
        (3, 9, 3),  # all there are
    ],
)
def test_bodies_of_unrolled_loops_stay_small(steps: int, products: int, expected: int) -> None:
    assert direct.body_steps(steps, products) == expected


def test_blockings_of_32_problems_are_retained() -> None:
    """The best ones of all are, so that a network that is compiled again need not estimate them once more."""
    target = Target.parse("x86-64-v4")
    shapes = [DirectProblem(1, 28, 28, (1, 1), 1, 64, 16, 16 * k, 4 * 64 * 28**2, False) for k in range(1, 61)]
    best = [ranked((shape,), (True, False), target) for shape in shapes]
    retained = blockings.cache_info().currsize
    assert 0 < retained <= 32
    assert all(ranked((shape,), (True, False), target) is b for shape, b in zip(shapes, best, strict=True))
