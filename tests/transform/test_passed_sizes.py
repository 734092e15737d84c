"""Kernels of `prepare` whose sizes are arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import reference
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.compiler import compile_graph
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.plans import plan
from tilewright.runtime.model import Model
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.passed_sizes import lower_passed, passed_sizes
from tilewright.transform.remember import remembering

Case = tuple[str, tuple[int, ...], dict[str, Any]]
WINOGRAD = {"tile": 4, "stride": 1, "block": 8, "width": 16, "panels": 2}
KINDS: list[list[Case]] = [
    [("lowered.pack_winograd", (k, c, 3, 3), WINOGRAD) for k, c in ((35, 11), (16, 8), (1, 3))],
    [
        ("lowered.pack_conv", (k, c, 1, 1), {"block": 1, "width": 16})
        for k, c in ((17, 19), (16, 40), (3, 17), (41, 33))
    ],
    [("lowered.pack_conv", (k, c, 3, 3), {"block": 8, "width": 24}) for k, c in ((24, 8), (25, 16), (1, 24), (50, 8))],
]
"""Convolutions of one kind each, with panels and blocks that are full and that are not."""
ZEN3, ZEN4, NEON = (Target.parse(name) for name in ("x86-64-v3", "znver4", "generic-aarch64"))


def packing(cases: list[Case]) -> Graph:
    """A graph that packs some weights and gives them."""
    b = GraphBuilder("packing")
    results = [
        ops.emit1(b, op, b.param(f"w{k}", tensor(*shape)), **attrs) for k, (op, shape, attrs) in enumerate(cases)
    ]
    return b.finish(tuple(results))


def weights(cases: list[Case]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"w{k}": rng.standard_normal(shape, np.float32) for k, (_, shape, _) in enumerate(cases)}


@pytest.mark.daily(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_function_packs_all_of_a_kind(threads: int, tmp_path: Path) -> None:
    """Native code, called with the numbers of each; also from a file, and step by step."""
    # any machine: what is asserted is how many functions pack, which no estimate decides
    cases = [case for kind in KINDS for case in kind]
    program = compile_graph(packing(cases), weights(cases), replace(Target.host(), threads=threads))
    steps = program.manifest.prepare_steps
    assert len({s.kernel for s in steps}) == len(KINDS)
    assert [s.sizes for s in steps] == [shape[:2] for _, shape, _ in cases]
    model = Model(program)
    model.save(tmp_path / "packing.tw")
    for m in (model, tw.load(tmp_path / "packing.tw")):
        for got, (op, _, attrs), w in zip(m(), cases, weights(cases).values(), strict=True):
            np.testing.assert_allclose(got, *reference(op, [w], attrs), rtol=1e-6, atol=1e-7)
    assert len(model.profile_prepare(1).kernels) == len(steps)


@pytest.mark.costly(4)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0][0]} {kind[0][1][2]}")
@pytest.mark.parametrize("target", [ZEN3, ZEN4, NEON], ids=["zen3", "zen4", "neon"])
def test_loops_pack_as_the_reference_does(kind: list[Case], target: Target) -> None:
    with remembering():
        groups = fuse(packing(kind))
        passed = passed_sizes(groups, target)
        calls = [lower_passed(group, passed.get(k), "pack") for k, group in enumerate(groups)]
    func = lower_loops(plan(calls[0].func, target).func, target)
    for call, (op, _, attrs), w in zip(calls, kind, weights(kind).values(), strict=True):
        if not call.sizes:  # fewer elements than a tile of this machine has
            continue
        assert call.func is calls[0].func
        (expected,) = reference(op, [w], attrs)
        out = np.full(expected.shape, np.nan, np.float32)
        array = w.reshape(len(w), -1) if len(func.params[0].shape) == 2 else w  # where dimensions are joined
        interpret(func, [array, out], symbols={s.name: n for s, n in call.sizes})
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7)


def test_two_sizes_have_functions_of_their_own() -> None:
    """Two sizes, of which one comes twice, and channels that fill no tile."""
    cases = [KINDS[0][k] for k in (0, 1, 0)] + [("lowered.pack_conv", (16, c, 1, 1), KINDS[1][0][2]) for c in (2, 3, 4)]
    assert not passed_sizes(fuse(packing(cases)), ZEN3)
    assert passed_sizes(fuse(packing([*cases, KINDS[0][2]])), ZEN3).keys() == {0, 1, 2, 6}
