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
