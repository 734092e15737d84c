"""The law of work: what a schedule does is counted, and candidates that do more than was ordered are rejected."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.random_layers import Layer, kernels, layers
from tilewright import ops, plans, te
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.loops import For, PrimFunc, Seq
from tilewright.kernels import KernelCompiler
from tilewright.plans import Candidate, Plan, named, plan
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.cost import Cost
from tilewright.plans.framework.decision_key import key_of_function
from tilewright.plans.framework.decisions import deciding
from tilewright.plans.framework.work import MAX_EXCESS, Added, points, work_of
from tilewright.schedule import Schedule
from tilewright.support.background import Background
from tilewright.support.cache import ObjectCache
from tilewright.support.log import PassLog
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options

AVX2 = Target.parse("x86-64-v3")


def chain(n: int, halo: int) -> PrimFunc:
    a = te.placeholder((n + halo,), name="A")
    b = te.compute((n + halo,), lambda i: a[i] + 1.0, name="B")
    return te.create_prim_func([a, te.compute((n,), lambda i: b[i] * b[i + halo], name="C")], "chain")


def tiled(n: int, halo: int, tile: int) -> PrimFunc:
    s = Schedule(chain(n, halo))
    outer, _ = s.split("i_1", factor=tile)
    s.compute_at("B", outer)
    return s.func


def test_points_under_conditions_are_counted_exactly() -> None:
    rng = random.Random(0)
    for _ in range(50):
        i, j, k, free = (Var(name) for name in "ijkf")
        sizes = [rng.randint(1, 7) for _ in range(3)]
        a, b, c, most = (rng.randint(1, 5) for _ in range(4))
        conditions = [i * a + j < b * 3, (j + k * c) % 4 < most]
        loops = [For(v, const(n), Seq(())) for v, n in zip((i, j, k), sizes, strict=True)]
        want = sum(
            x * a + y < b * 3 and (y + z * c) % 4 < most for x, y, z in itertools.product(*(range(n) for n in sizes))
        )
        assert points([*loops, For(free, const(3), Seq(()))], conditions, {}) == 3 * want


def test_what_tiles_read_twice_is_counted_and_can_be_stated() -> None:
    """64 elements in tiles of 4 with a halo of 4: all but the ends of B are computed twice."""
    work = work_of(tiled(64, 4, 4))
    assert [(e.block, e.operations, e.ordered, e.performed) for e in work.efforts] == [
        ("B", 1, 68, 128),
        ("C", 1, 64, 64),
    ]
    assert work.excess == (128 + 64) / (68 + 64) and work.worst.block == "B"
    assert work_of(tiled(64, 4, 4), (Added("B", "halo", 128),)).excess == 1
    assert work_of(tiled(64, 0, 4)).excess == work_of(tiled(66, 0, 4)).excess == 1  # What is clipped is not done.


def test_symbols_count_as_a_size_that_tiles_do_not_divide() -> None:
    n = te.var("n", lo=1)
    a = te.placeholder((n,), name="A")
    s = Schedule(te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1.0, name="B")], "add"))
    assert work_of(s.func).efforts[0].performed == 251
    s.split("i", factor=8)
    assert work_of(s.func).excess == 1


def by_tiles(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    outer, _ = s.split("i_1", factor=candidate.knob("tile"))
    s.compute_at("B", outer)


TILES = Plan(
    "tiles",
    lambda *_: True,
    lambda *_: [Candidate((("tile", tile),), Cost(compute=float(tile))) for tile in (4, 8, 64, 68)],
    by_tiles,
)


def test_candidates_that_do_more_are_rejected_and_the_next_one_is_selected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plans, "PLANS", (TILES,))
    func = chain(64, 4)
    planned = plan(func, AVX2)
    assert planned.chosen.label == "tiles tile=64"
    assert [r.candidate.label for r in planned.rejected] == ["tiles tile=4", "tiles tile=8"]
    assert [c.label for c in planned.others] == ["tiles tile=68"]
    said = "tiles tile=4: 1.45 times the operations, B 1.88 times"
    assert f"  rejected: {said}\n" in planned.describe()
    log = PassLog(level=0)
    with Background() as background:
        compiler = KernelCompiler(AVX2, background, ObjectCache(tmp_path), log)
        compiler.compile(compiler.asked(func))
    assert log.remarks[0] == f"chain: rejected {said}" and len(log.remarks) == 2


def test_what_is_forced_is_not_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PLANS", (TILES,))
    func = chain(64, 4)
    with deciding({key_of_function(func, AVX2).name: "tiles tile=8"}):
        assert plan(func, AVX2).chosen.label == "tiles tile=8"


def test_where_all_do_more_the_one_that_does_least_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = replace(TILES, candidates=lambda *at: TILES.candidates(*at)[:2])
    monkeypatch.setattr(plans, "PLANS", (fewer,))
    planned = plan(chain(64, 4), AVX2)
    assert planned.chosen.label == "tiles tile=8" and len(planned.rejected) == 2
    monkeypatch.setattr(plans, "PLANS", (replace(fewer, added=lambda *_: (Added("B", "halo", 128),)),))
    assert plan(chain(64, 4), AVX2).rejected == ()


def dilated(images: int, channels: int, filters: int, size: int, kernel: int, dilation: int, pad: int) -> Layer:
    b = GraphBuilder("dilated")
    x = b.input("x", TensorType(f32, tuple(map(const, (images, channels, size, size)))))
    w = b.param("w", TensorType(f32, tuple(map(const, (filters, channels, kernel, kernel)))))
    window = {"strides": (1, 1), "dilations": (dilation,) * 2, "groups": 1}
    return Layer("dilated", "", b.finish((ops.emit1(b, "conv", x, w, pads=(pad,) * 4, **window),)))


SPANNING = ((2, 16, 48, 43, 3, 3, 0), (1, 96, 32, 37, 3, 3, 3), (2, 64, 48, 42, 5, 2, 4))


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["x86-64-v3", "znver4"])
@pytest.mark.parametrize("sizes", SPANNING, ids=str)
def test_groups_of_tiles_that_span_lines_are_computed_once(sizes: tuple[int, ...], name: str) -> None:
    """Dilated maps have as many tiles a line as no group of them divides: two to nine times the products once."""
    target = Target.parse(name)
    labels = [func.name for func in kernels(dilated(*sizes), target) if plan(func, target).rejected]
    assert labels == []


def test_what_plans_make_of_random_layers_does_no_more_than_was_ordered() -> None:
    """Fifty layers on each of two targets; `make audit` looks at thousands."""
    selected = set()
    for target, seed in ((AVX2, 0), (Target.parse("znver4"), 1)):
        for layer in layers(50, seed):
            for func in kernels(layer, target, Options(fast="strassen")):
                planned = plan(func, target)
                selected.add(planned.plan)
                added = named(planned.plan).added
                work = work_of(planned.schedule.func, added(analyse(func), planned.chosen, target))
                assert work.excess <= MAX_EXCESS, f"{layer.kind} {layer.name}: {planned.describe()}"
    assert len(selected) >= 9  # of the plans in `PLANS`: the sizes are what they are for
