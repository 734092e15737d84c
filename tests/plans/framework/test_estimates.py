"""Estimates: stages add up as stated, levels of memory are distinguished, what is shown is stable text; decisions can
be listed and forced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops, te
from tilewright.algorithms.strassen.plan import convolution as strassen_conv
from tilewright.algorithms.winograd.plan import tiles as winograd_tiles
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.expr import Expr, Var
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.loops import PrimFunc
from tilewright.ir.selection import Direct
from tilewright.kernels import KernelCompiler
from tilewright.ops import parse_func
from tilewright.plans import plan
from tilewright.plans.convolution import tiles as conv_tiles
from tilewright.plans.convolution.inside import share_inside
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.base import Candidate, Planned
from tilewright.plans.framework.common import shares_well
from tilewright.plans.framework.cost import (
    FUNCTIONS,
    Cost,
    bandwidth,
    fetch_cycles,
    fma_cycles,
    level,
    load_cycles,
    roofline,
    sharing,
    store_cycles,
)
from tilewright.plans.framework.decision_key import key_of_function
from tilewright.plans.framework.decisions import Decision, deciding
from tilewright.support.background import Background
from tilewright.support.cache import ObjectCache
from tilewright.support.errors import ScheduleError
from tilewright.targets.costs import Origin
from tilewright.targets.target import Target
from tilewright.transform.call import CompiledKernel
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group
from tilewright.transform.math.expand import EXACT, SINGLE, TABLES

Golden = Callable[[str], None]

FIXED = Target.parse("x86-64-v3").adjusted(
    l1=32 << 10,
    l2=512 << 10,
    l3=32 << 20,
    fma_per_cycle=2.0,
    l1_bandwidth=64.0,
    l2_bandwidth=32.0,
    l3_bandwidth=16.0,
    memory_bandwidth=8.0,
    frequency=2.0,
)


def product(rows: int, depth: int, columns: int) -> Graph:
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(rows, depth)), b.param("w", tensor(depth, columns))
    return b.finish((ops.emit1(b, "matmul", x, w),))


def test_stages_overlap_and_phases_add() -> None:
    busy = Cost(compute=100.0, load=60.0, store=10.0)
    assert busy.cycles == 100.0
    assert busy.bound == "compute"
    fed = busy | Cost(memory=200.0)
    assert fed.cycles == pytest.approx(200.0 + 0.3 * 100.0)
    assert fed.bound == "memory"
    both = busy + fed
    assert both.cycles == pytest.approx(busy.cycles + fed.cycles)
    assert both.compute == 200.0
    assert (2.0 * 3 * fed.cycles) == pytest.approx((fed * 6).cycles)
    assert Cost(overhead=5.0, compute=1.0).bound == "overhead"


def test_levels_and_units() -> None:
    assert [level(n, FIXED) for n in (1 << 14, 1 << 16, 1 << 20, 1 << 26)] == ["l1", "l2", "l3", "memory"]
    assert [bandwidth(n, FIXED) for n in (1 << 14, 1 << 16, 1 << 20, 1 << 26)] == [64.0, 32.0, 16.0, 8.0]
    assert fetch_cycles(1 << 14, 1 << 14, FIXED) == 0.0
    assert fetch_cycles(800.0, 1 << 26, FIXED) == 100.0
    assert fma_cycles(1600.0, 8, FIXED) == 100.0
    assert load_cycles(6400.0, FIXED) == 100.0
    assert Cost(compute=2000.0).microseconds(FIXED) == 1.0


def test_the_roofline_counts_work_and_bytes() -> None:
    b = GraphBuilder("double")
    x = b.input("x", tensor(1 << 10, 1 << 10))
    (group,) = fuse(b.finish((ops.emit1(b, "add", x, x),)))
    cost = roofline(analyse(lower_group(group, "k").func), FIXED)
    assert cost.compute == pytest.approx((1 << 20) / 16)
    # Read once and written twice (a line is read before it is written), from the third level.
    assert cost.memory == pytest.approx(3 * (4 << 20) / 16.0)
    assert cost.bound == "memory"


def test_functions_take_what_the_machine_has_units_for() -> None:
    """Zen 4 has units beside those that multiply, Intel's servers have none for vectors of 512 bits."""
    x = te.placeholder((4096,), "f32", "x")
    y = te.compute((4096,), lambda i: te.exp(x[i]), name="y")
    structure = analyse(te.create_prim_func([x, y], "exp"))
    intel = Target.parse("sapphirerapids")
    assert roofline(structure, Target.parse("znver4")).compute == 4096 / 16 * 10.0
    assert roofline(structure, intel).compute == pytest.approx(4096 / 16 * intel.costs.arithmetic.function * 10.0 / 2)
    assert intel.costs.arithmetic.function > 1.0


def test_all_functions_that_are_written_out_have_a_weight() -> None:
    assert {*SINGLE, *TABLES, *EXACT} == set(FUNCTIONS)


def test_rows_of_some_elements_fill_no_vectors() -> None:
    """A softmax of rows of two elements computes each by itself, of seventeen in two vectors; 64 fill theirs."""

    def compute(columns: int) -> float:
        b = GraphBuilder("case")
        graph = b.finish((ops.emit1(b, "softmax", b.input("x", tensor(64, columns)), axis=1),))
        return plan(lower_group(fuse(graph)[0], "kernel").func, Target.parse("znver4")).chosen.cost.compute / columns

    full = compute(64)
    assert compute(2) > 8 * full
    assert 1.5 * full < compute(17) < 2.5 * full


def test_sums_of_a_row_before_other_sums_of_it_gather_nothing() -> None:
    """A norm's squares are summed after the mean, whose vectors run along the row like theirs."""
    b = GraphBuilder("case")
    x, scale = b.input("x", tensor(106, 1600)), b.param("scale", tensor(1600))
    graph = b.finish((ops.emit1(b, "layer_norm", x, scale, scale, axis=1, epsilon=1e-5),))
    assert plan(lower_group(fuse(graph)[0], "kernel").func, FIXED).chosen.cost.overhead == 0.0


@pytest.mark.parametrize(("pixels", "split"), [(361, 15 / 16), (392, 0.5), (400, 0.0)])
def test_rows_that_begin_anywhere_in_a_line_are_stored_across_two(pixels: int, split: float) -> None:
    b = GraphBuilder("case")
    graph = b.finish((ops.emit1(b, "transpose", b.input("x", tensor(8, pixels, 16)), perm=(0, 2, 1)),))
    func = lower_group(fuse(graph)[0], "kernel").func
    target = Target.parse("znver4")
    costs = target.costs.fitted(Origin("2026-11-26"), split_store=100.0)
    more = [plan(func, t).chosen.cost.compute for t in (replace(target, costs=costs), target)]
    assert more[0] - more[1] == pytest.approx(8 * pixels * split * 100.0)


def test_describe_tells_what_was_estimated(golden: Golden) -> None:
    b = GraphBuilder("bias")
    x, bias = b.input("x", tensor(64, 8)), b.param("bias", tensor(8))
    (group,) = fuse(b.finish((ops.emit1(b, "relu", ops.emit1(b, "add", x, bias)),)))
    planned = plan(lower_group(group, "k").func, FIXED)
    slower = Candidate((("rows", 2), ("width", 8)), Cost(compute=9000.0, load=9500.0, memory=100.0), "rows")
    same = replace(planned.chosen, knobs=(("ahead", 0),))  # is not said twice
    golden(replace(planned, others=(same, slower)).describe())


def listed(graph: Graph, weights: dict[str, np.ndarray], forced: dict[str, str] | None = None) -> tuple:  # type: ignore[type-arg]
    with deciding(forced) as record:
        compiled = tw.compile((graph, weights))
    return compiled, record


def contractions(d: Decision) -> list[str]:
    return [label for label in d.space.labels if label.startswith("contraction")]


def test_forced_decisions_are_obeyed() -> None:
    graph = product(12, 32, 40)
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((32, 40)).astype(np.float32)}
    x = rng.standard_normal((12, 32)).astype(np.float32)
    compiled, record = listed(graph, weights)
    layout = [d for d in record.decisions if d.key.kind == "panels"]
    assert len(layout) == 1
    assert len(layout[0].space) > 1
    assert layout[0].selected.label == layout[0].space.labels[0]
    assert sorted(layout[0].estimates) == list(layout[0].estimates)
    for label in layout[0].space.labels:
        other, forced = listed(graph, weights, {layout[0].key.name: label})
        kernels = [d for d in forced.decisions if len(d.space) > 1 and d.key.kind == "plan"]
        assert all(f"width={label.partition('=')[2]}" in text for d in kernels for text in contractions(d))
        assert not forced.unused()
        last = contractions(kernels[0])[-1]
        worst, repeated = listed(graph, weights, {layout[0].key.name: label, kernels[0].key.name: last})
        assert next(d.selected.label for d in repeated.decisions if d.key == kernels[0].key) == last
        for model in (compiled, other, worst):
            np.testing.assert_allclose(model(x), x @ weights["w"], rtol=1e-5, atol=1e-5)


def test_wrong_decisions_are_refused() -> None:
    graph, weights = product(12, 32, 40), {"w": np.ones((32, 40), np.float32)}
    _, record = listed(graph, weights)
    name = next(d.key.name for d in record.decisions if d.key.kind == "panels")
    with pytest.raises(ScheduleError, match="no such setting") as caught:
        listed(graph, weights, {name: "panels width=7"})
    assert name in str(caught.value)
    assert "width=8" in str(caught.value) or "width=16" in str(caught.value)
    _, record = listed(graph, weights, {"plan of another model": "rows=1"})
    assert record.unused() == ("plan of another model",)


def compile_kernel(func: PrimFunc, target: Target, store: ObjectCache | None = None) -> CompiledKernel:
    with Background(cpus=1) as at_once:
        compiler = KernelCompiler(target, at_once, store)
        return compiler.compile(compiler.asked(func))


def test_a_forced_kernel_has_an_entry_of_its_own_in_the_cache() -> None:
    (group,) = fuse(product(12, 32, 40))
    func = lower_group(group, "k").func
    store = ObjectCache()
    ordinary = compile_kernel(func, FIXED, store)
    planned = plan(func, FIXED)
    with deciding({key_of_function(func, FIXED).name: planned.others[0].label}):
        forced = compile_kernel(func, FIXED, store)
    with deciding({key_of_function(func, FIXED).name: planned.chosen.label}) as record:
        same = compile_kernel(func, FIXED, store)
    assert forced.symbol != ordinary.symbol == same.symbol
    assert [d.key for d in record.decisions] == [key_of_function(func, FIXED)]  # although it was found in the cache
    assert compile_kernel(func, FIXED, store).symbol == ordinary.symbol


def test_equal_targets_give_equal_bytes_and_ceilings_are_part_of_them() -> None:
    (group,) = fuse(product(12, 32, 40))
    func = lower_group(group, "k").func
    reloaded = compile_kernel(func, FIXED.adjusted(cores=7, frequency=4.0))
    assert compile_kernel(func, FIXED).object == reloaded.object
    assert compile_kernel(func, FIXED.adjusted(l2_bandwidth=8.0)).symbol != reloaded.symbol


def test_small_kernels_are_for_one_thread() -> None:
    def planned(*shape: object) -> Planned:
        b = GraphBuilder("double")
        x = b.input("x", tensor(*shape))
        (group,) = fuse(b.finish((ops.emit1(b, "add", x, x),)))
        return plan(lower_group(group, "k").func, FIXED)

    small, large, symbolic = planned(4, 16), planned(256, 256), planned(Var("n", lo=1), 16)
    assert [p.alone for p in (small, large, symbolic)] == [True, False, False]
    assert "one thread" in small.describe()
    assert parse_func(str(small.func)) == small.func
    assert "tw_barrier" not in emit_llvm(lower_loops(small.func, FIXED), FIXED)
    assert "tw_barrier" in emit_llvm(lower_loops(large.func, FIXED), FIXED)


def test_whether_threads_share_a_kernel_is_a_decision() -> None:
    """Calls with several threads have the decision; with one there is nothing to decide."""
    two = replace(FIXED, threads=2)
    for rows, selected, other in ((4, "alone", "shared"), (4096, "shared", "alone")):
        b = GraphBuilder("double")
        x = b.input("x", tensor(rows, 16))
        (group,) = fuse(b.finish((ops.emit1(b, "add", x, x),)))
        func = lower_group(group, "k").func
        with deciding() as record:
            usual = compile_kernel(func, two)
        (created,) = (d for d in record.decisions if d.key.kind == "threads")
        assert created.selected.label == selected and set(created.space.labels) == {"alone", "shared"}
        assert created.estimate == min(created.estimates)
        with deciding({created.key.name: other}):
            assert plan(func, two).alone == (other == "alone")
            assert compile_kernel(func, two).symbol != usual.symbol
        with deciding() as record:
            plan(func, FIXED)
        assert [d.key.kind for d in record.decisions] == ["plan"]


def test_shares_are_even() -> None:
    assert [shares_well(n) for n in (12, 16, 17, 25, 32, 50, 127, 128)] == [
        False,
        True,
        False,
        False,
        True,
        False,
        True,
        True,
    ]


def test_what_a_small_number_of_parts_cost() -> None:
    """The longest share counts; one thread shares with no other row."""
    one = Target.parse("znver4")
    two, three = replace(one, threads=2), replace(one, threads=3)
    assert [sharing(n, one) for n in range(1, 9)] == [1.0] * 8
    assert [sharing(n, two) for n in (1, 2, 3, 4, 5)] == [2.0, 1.0, 4 / 3, 1.0, 6 / 5]
    assert [sharing(n, three) for n in (1, 3, 4)] == [3.0, 1.0, 3 / 2]


@pytest.mark.parametrize("threads", [2, 4])
def test_parts_are_chosen_for_the_threads_of_a_call(threads: int) -> None:
    """One thread takes five blocks of tiles and seven strips; more take as many each, where that costs little."""
    levels = {"l2_bandwidth": 32.0, "l3_bandwidth": 27.0, "memory_bandwidth": 8.0}
    one = Target.parse("znver4").adjusted(l2=1 << 20, l3=32 << 20, **levels)
    more = replace(one, threads=threads)
    result = {}
    for target in (one, more):
        shape = winograd_tiles.WinogradProblem(1, 56, 56, 64, 64, 3, 1e8)
        selected = winograd_tiles.ranked((shape,), (2, 4, 5, 6), target)[0][1]
        assert isinstance(selected, Winograd)
        pixel = conv_tiles.DirectProblem(1, 28, 28, (1, 1), 1, 512, 16, 256, 4 * 512 * 28 * 28, False)
        strips = strassen_conv.best(pixel, 32, 100 << 20, target)
        assert strips is not None
        block = winograd_tiles.blocked((shape,), selected, target)[0][1]
        lengths = {n: strassen_conv.estimate(pixel, strips[1], n, 100 << 20, target) for n in strassen_conv.strips(392)}
        strip = min(lengths, key=lambda n: lengths[n].cycles)
        result[target.threads] = winograd_tiles.times(shape, selected, block), 392 // strip
    assert all(sharing(n, more) > 1.1 for n in result[1])
    assert all(sharing(n, more) <= 1.1 for n in result[threads])


def test_a_program_is_created_for_its_threads_and_separated() -> None:
    b = GraphBuilder("model")
    graph = b.finish((ops.emit1(b, "relu", b.input("x", tensor(4, 4))),))
    created = [tw.compile((graph, {}), threads=n, target=Target.host()) for n in (1, 2)]
    assert [m.threads for m in created] == [1, 2]
    assert created[0].manifest.target == created[1].manifest.target
    host = Target.host()
    assert replace(host, threads=2).fingerprint != host.fingerprint


def test_functions_after_products_of_pixels_count() -> None:
    """A simple epilogue is part of the products' estimate."""

    def compute(function: str) -> float:
        b = GraphBuilder("model")
        x, w = b.input("x", tensor(1, 32, 40, 40)), b.input("w", tensor(1, 4, 32, 8))
        y = ops.emit1(b, "lowered.conv_pointwise_groups", x, w, channels=32)
        (group,) = fuse(b.finish((ops.emit1(b, function, y),)))
        return plan(lower_group(group, "kernel").func, Target.parse("znver4")).chosen.cost.compute

    relu, sigmoid = compute("relu"), compute("sigmoid")
    assert relu == pytest.approx(32 * 32 * 1600 / 16, rel=0.1)
    assert sigmoid - relu > 10 * 32 * 1600 / 16


def test_channels_that_fill_no_blocks_are_not_padded_directly() -> None:
    """24 channels take three quarters of what 32 take, not as long."""
    fewer, full = (winograd_tiles.WinogradProblem(1, 28, 28, c, 64, 3) for c in (24, 32))
    ratio = winograd_tiles.direct(fewer, FIXED) / winograd_tiles.direct(full, FIXED)
    assert 0.7 < ratio < 0.85


def test_a_register_tile_of_products_takes_its_steps_and_half_of_its_stores() -> None:
    steps = conv_tiles.tile_steps(6, 2, FIXED)
    one = winograd_tiles.product_cycles(6, 6, 2, 64, FIXED)
    stored = 0.5 * 6 * store_cycles(2 * FIXED.vector_bits / 8, FIXED)
    assert one == pytest.approx(64 * steps + stored)
    assert winograd_tiles.product_cycles(12, 6, 2, 64, FIXED) == pytest.approx(2 * one)


def test_tiles_past_the_second_level_are_written_one_by_one() -> None:
    """Additional channels take longer where the transformed tiles leave the second level."""

    def scattered(channels: int) -> float:
        shape = winograd_tiles.WinogradProblem(1, 16, 16, channels, 16, 3)
        block = winograd_tiles.TileBlock(4, 4)
        return winograd_tiles.block_cost(shape, Winograd(4, 16, 1), block, FIXED, 4).overhead

    written = 4 * 36 * 1024 * 16
    assert scattered(64) == pytest.approx(0.0, abs=1e-6)
    assert scattered(1024) > written / FIXED.l3_bandwidth
    assert scattered(2048) == pytest.approx(2 * scattered(1024))


@pytest.mark.parametrize("target", ["znver4", "haswell"])
def test_what_is_dilated_is_evaluated_as_it_is_computed_directly(target: str) -> None:
    """A dilated map of one pixel is one pixel directly, but a tile of each submap by transforms."""
    result = Target.parse(target)
    shape = winograd_tiles.WinogradProblem(9, 1, 1, 96, 32, 3, whole=(1, 1, 1))
    undivided = winograd_tiles.WinogradProblem(1, 1, 1, 96, 32, 3)
    assert winograd_tiles.direct(shape, result) == winograd_tiles.direct(undivided, result)
    (_, best), *_ = winograd_tiles.ranked((shape,), (2, 4), result)
    assert best == Direct()


@pytest.mark.parametrize(
    ("size", "window", "stride", "dilation", "pad"), [(5, 3, 1, 1, 1), (7, 5, 2, 2, 4), (9, 3, 1, 1, 0)]
)
def test_taps_outside_of_the_image_are_not_counted(
    size: int, window: int, stride: int, dilation: int, pad: int
) -> None:
    x, w = te.placeholder((1, 8, size, size), name="x"), te.placeholder((8, window, window), name="w")
    count = (size + 2 * pad - dilation * (window - 1) - 1) // stride + 1
    p, q = te.reduce_axis(window, "p"), te.reduce_axis(window, "q")

    def element(c: Expr, i: Expr, j: Expr) -> Expr:
        at = i * stride + p.var * dilation - pad, j * stride + q.var * dilation - pad
        return te.sum(x[(0, c, *at)] * w[c, p.var, q.var], axis=[p, q])

    y = te.compute((8, count, count), element, name="y")
    (anchor,) = analyse(te.create_prim_func([x, w, y], "conv")).stages
    taps = [o * stride + k * dilation - pad for o in range(count) for k in range(window)]
    share = sum(0 <= t < size for t in taps) / len(taps)
    assert share_inside(anchor) == pytest.approx(share**2)
