"""Products in registers of matrices whose rows do not fit the second level of cache go block by block of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, cached, needs_compiler
from tests.plans.matmul.test_split import AMX, linear, weights
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.ir.loops import PrimFunc
from tilewright.plans import plan
from tilewright.plans.framework.decisions import Decision, deciding, forcing
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

L2 = 32 << 10


def planned(sizes: tuple[int, int, int], options: Options, target: Target = AMX) -> tuple[Decision, PrimFunc]:
    """How a product is tiled, and its loops."""
    graph = linear(*sizes)
    for name, function in graph_passes(target, options):
        graph = function(graph)
        if name == "assign layouts":
            break
    with deciding() as record:
        group = next(g for g in fuse(graph) if any(n.op.startswith("lowered.matmul") for n in g.nodes))
        func = plan(lower_group(group, "kernel").func, target).func
    return next(d for d in record.decisions if d.selected.kind == "tile dots"), func


@pytest.mark.parametrize(
    ("sizes", "options", "block"),
    [
        ((128, 768, 768), Options("bf16"), 0),
        ((1024, 1024, 1024), Options("bf16"), 512),
        ((2048, 2048, 2048), Options("bf16"), 256),
        ((1024, 1024, 1024), Options(), 256),  # two pieces
        ((1024, 1024, 1024), Options(fast="exact"), 128),  # three
    ],
)
def test_blocks_fit_half_of_the_second_level(sizes: tuple[int, int, int], options: Options, block: int) -> None:
    decision, _ = planned(sizes, options)
    assert dict(decision.selected.knobs).get("block", 0) == block


@pytest.mark.parametrize(
    ("options", "multiplies", "loads"), [(Options("bf16"), 4, 4), (Options(), 12, 8), (Options(fast="exact"), 24, 16)]
)
def test_loads_of_a_step(options: Options, multiplies: int, loads: int) -> None:
    """Blocks change nothing inside a tile."""
    _, func = planned((1024, 1024, 1024), options)
    text = assembly(emit_llvm(lower_loops(func, AMX), AMX), AMX)
    assert [text.count(f"\t{word}\t") for word in ("tdpbf16ps", "tileloadd")] == [multiplies, loads]


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_lines_from_beyond_the_second_level(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows change no bit. Without them each of eight groups of panels brings all 1,024 lines of the rows into
    the second level again; with them each of four blocks brings all 1,024 lines of the panels."""
    host = amx(monkeypatch)
    target = replace(host, caches=replace(host.caches, l1=L2 // 4, l2=L2))
    x, graph = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32), linear(256, 128, 256)
    decision, _ = planned((256, 128, 256), Options("bf16"), target)
    assert dict(decision.selected.knobs)["block"] == 64
    whole = next(s.label for s in decision.space if s.label == decision.selected.label.replace(",block=64", ""))
    results, lines = [], []
    for label in (whole, decision.selected.label):
        with forcing({decision.key.name: label}):
            model = tw.compile((graph, weights(256, 128)), target=target, precision="bf16", threads=threads)
        with cached(L2) as misses:
            results.append(np.asarray(model(x)))
            lines.append(misses())
    np.testing.assert_array_equal(*results)
    exact = np.maximum(x.astype(np.float64) @ weights(256, 128)["w"].T + weights(256, 128)["b"], 0)
    assert np.abs(results[0] - exact).max() <= 1e-2 * exact.max()
    if threads == 1:  # the emulated cache is no memory of two
        assert lines == [8 * 1024 + 1024, 1024 + 4 * 1024]


WAYS = {"bf16": Options("bf16"), "x3": Options(), "x6": Options(fast="exact")}


@pytest.mark.parametrize(("way", "depth"), [("bf16", 256), ("x3", 128), ("x6", 64)])
def test_a_group_of_panels_and_two_tiles_fit_the_first_level(way: str, depth: int) -> None:
    """Blocks of the depth are offered to tuning; no estimate takes them."""
    decision, _ = planned((128, 768, 256), WAYS[way])
    settings = {
        s.label.partition(",depth=")[0]: dict(s.knobs).get("depth") for s in decision.space if "depth" in s.label
    }
    assert settings["tile dots rows=32,panels=2"] == depth and "depth" not in decision.selected.label


@pytest.mark.daily(3)
@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("way", "bound"), [("bf16", 1e-2), ("x3", 1e-5), ("x6", 5e-7)])
def test_lines_from_beyond_the_first_level(
    way: str, bound: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels come from the second level once for each block of the depth instead of for each tile of rows."""
    host = amx(monkeypatch)
    target = replace(host, caches=replace(host.caches, l1=48 << 10, l2=2 << 20))
    x, graph = np.random.default_rng(0).standard_normal((128, 768)).astype(np.float32), linear(128, 768, 256)
    decision, _ = planned((128, 768, 256), WAYS[way], target)
    label = "tile dots rows=32,panels=2"
    deep = next(s.label for s in decision.space if s.label.startswith(f"{label},depth="))
    options = {"precision": WAYS[way].precision, "fast": WAYS[way].fast, "threads": threads}
    with deciding() as record:
        tw.compile((graph, weights(256, 768)), target=target, **options)
    pieces = {
        d.key.name: next(s for s in d.space.labels if f"terms={way[1]}," in s)
        for d in record.decisions
        if d.key.kind == "algorithm" and way != "bf16"
    }
    lines = []
    for one in (label, deep):
        with forcing({**pieces, decision.key.name: one}):
            model = tw.compile((graph, weights(256, 768)), target=target, **options)
        with cached(64 << 10) as misses:
            got = np.asarray(model(x))
            lines.append(misses())
        exact = np.maximum(x.astype(np.float64) @ weights(256, 768)["w"].T + weights(256, 768)["b"], 0)
        assert np.abs(got - exact).max() <= bound * exact.max()
    if threads == 1:  # the emulated cache is no memory of two
        assert 0 < lines[1] <= 0.65 * lines[0]


@needs_compiler
@pytest.mark.costly(4)
@pytest.mark.parametrize("seed", range(6))
def test_random_products_by_blocks_of_the_depth(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting with such blocks, of rows that fill no registers, in several parts."""
    host, rng = amx(monkeypatch), np.random.default_rng(seed)
    target = replace(host, caches=replace(host.caches, l1=16 << 10, l2=512 << 10))
    rows, depth, columns = (int(n) for n in rng.integers((33, 2, 17), (150, 5, 100)))
    depth = 64 * depth - int(rng.integers(9))
    parts, threads = ((), (3,))[seed % 2], 1 + seed // 3
    graph = linear(rows, depth, columns, parts)
    with deciding() as record:
        tw.compile((graph, weights(columns, depth)), target=target, precision="bf16", threads=threads)
    decision = next(d for d in record.decisions if d.selected.kind == "tile dots")
    deep = [s.label for s in decision.space if "depth" in s.label]
    x, w = rng.standard_normal((*parts, rows, depth)).astype(np.float32), weights(columns, depth)
    exact = np.maximum(x.astype(np.float64) @ w["w"].T + w["b"], 0)
    results = []
    for label in (decision.selected.label, *deep):
        with forcing({decision.key.name: label}):
            model = tw.compile((graph, w), target=target, precision="bf16", threads=threads)
        results.append(np.array(model(x)))
    assert np.abs(results[0] - exact).max() <= 1e-2 * exact.max()
    for other in results[1:]:  # the same products, added in another order
        assert np.abs(other - results[0]).max() <= 1e-6 * exact.max()
    assert deep
