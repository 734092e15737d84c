"""Estimates of loops that come without blocks: they take what is written, as often as it is written."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.ir.dtype import f32, i32, i64
from tilewright.ir.expr import Buffer, as_expr, cast
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.loopnest import Nest
from tilewright.plans import plan
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.cost import Cost, bandwidth, roofline
from tilewright.plans.framework.nests import DECIDED, nest
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group

ZEN4 = Target.parse("znver4")


def buffer(name: str, *shape: int, dtype: object = f32) -> Buffer:
    return Buffer(name, dtype, tuple(map(as_expr, shape)))  # type: ignore[arg-type]


def sorted_rows(rows: int, length: int, k: int) -> PrimFunc:
    b = GraphBuilder("topk")
    x = b.input("x", TensorType(f32, (as_expr(rows), as_expr(length))))
    graph = b.finish(ops.emit(b, "topk", x, axis=1, k=k, largest=True))
    return lower_group(fuse(graph)[0], "kernel").func


def steps(count: int, width: int) -> PrimFunc:
    """`count` steps of a recurrence with a square matrix of weights, a vector at a time."""
    w, y = buffer("w", width, width), buffer("y", width)
    func = Nest("steps", [w, y])
    with func.loop("s", count), func.loop("k", width) as k, func.loop("v", width // 16) as v:
        with func.loop("lane", 16, kind="vectorized") as lane:
            at = v * 16 + lane
            func.store(y, (at,), y[at] + w[k, at] * y[k])
    return func.finish()


def test_weights_come_once_more_at_each_step() -> None:
    """From the level that holds them: of 1 MB, 8 steps bring 8 MB, of which a roofline counts one."""
    func = steps(8, 512)
    nbytes = 512 * 512 * 4
    assert nest(func, ZEN4).memory == pytest.approx(8 * nbytes / bandwidth(nbytes + 2048, ZEN4))
    assert nest(steps(16, 512), ZEN4).cycles == pytest.approx(2 * nest(func, ZEN4).cycles)
    assert plan(func, ZEN4).chosen.cost == nest(func, ZEN4)


def test_ranks_compare_all_pairs() -> None:
    """Sixteen times as many, beside what is done once an element, of four times as many elements."""
    small, large = (nest(sorted_rows(8, n, n), ZEN4) for n in (32, 128))
    assert 5 < large.compute / small.compute < 16
    assert large.cycles > 4 * roofline(analyse(sorted_rows(8, 128, 128)), ZEN4).cycles


def test_passes_over_digits_are_as_long_as_the_rows() -> None:
    """How many elements a pass moves is a local scalar that has been set to the length."""
    short, long = (nest(sorted_rows(1, n, n), ZEN4).cycles for n in (4_000, 40_000))
    assert 5 < long / short < 12


def test_copies_of_a_body_share_what_does_not_depend_on_them() -> None:
    def tile(kind: str) -> Cost:
        x, w, y = buffer("x", 4, 64), buffer("w", 64, 16), buffer("y", 4, 16)
        func = Nest("tile", [x, w, y])
        with func.loop("k", 64) as k, func.loop("row", 4, kind=kind) as row:  # type: ignore[arg-type]
            with func.loop("lane", 16, kind="vectorized") as lane:
                func.store(y, (row, lane), y[row, lane] + x[row, k] * w[k, lane])
        return nest(func.finish(), ZEN4)

    separate, together = tile("serial"), tile("unrolled")
    assert together.compute == separate.compute
    assert separate.load - together.load == 64 * 3 / ZEN4.costs.arithmetic.loads_per_cycle


def test_counters_wait_for_themselves_and_what_data_decide_is_rare() -> None:
    x, counts = buffer("x", 100, dtype=i32), buffer("counts", 8, dtype=i64)
    ordinary, decided = Nest("count", [x, counts]), Nest("some", [x, counts])
    with ordinary.loop("k", 100) as k:
        place = cast(x[k], i64)
        ordinary.store(counts, (place,), counts[place] + 1)
    with decided.loop("k", 100) as k, decided.when(x[k] > 0):
        place = cast(x[k], i64)
        decided.store(counts, (place,), counts[place] + 1)
    always, sometimes = nest(ordinary.finish(), ZEN4), nest(decided.finish(), ZEN4)
    assert always.compute == 100 * ZEN4.costs.arithmetic.forwarded
    assert sometimes.store == DECIDED * always.store
