"""Packing weights: transpositions through the first level of cache, scales on the way, stores past the caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import reference
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.compiler import graph_passes
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.loops import PrimFunc
from tilewright.ir.notes import PastCaches, with_note
from tilewright.kernels import KernelTexts
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

ZEN3, ZEN4, NEON = (Target.parse(name) for name in ("x86-64-v3", "znver4", "generic-aarch64"))

CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("lowered.pack_conv", (32, 16, 3, 3), {"block": 8, "width": 16}),
    ("lowered.pack_conv", (17, 31, 1, 1), {"block": 1, "width": 24}),  # one panel, not full; a prime number of channels
    ("lowered.pack_conv", (20, 3, 5, 5), {"block": 1, "width": 16}),
    ("lowered.pack_conv", (17, 144, 1, 1), {"block": 16, "width": 16}),
    ("lowered.pack_conv", (40, 2, 1, 1), {"block": 1, "width": 32}),  # less than a tile
    ("lowered.pack_winograd", (16, 8, 3, 3), {"tile": 4, "stride": 1, "block": 8, "width": 16, "panels": 1}),
    ("lowered.pack_winograd", (31, 3, 3, 3), {"tile": 2, "stride": 1, "block": 8, "width": 16, "panels": 2}),
    ("lowered.pack_matmul", (37, 70), {"transpose": True, "width": 16}),
    ("lowered.pack_matmul", (2, 66, 48), {"transpose": False, "width": 16}),
    ("lowered.pack_matmul", (65, 50), {"transpose": False, "width": 24}),
    ("lowered.pack_winograd", (9, 8, 3, 3), {"tile": 2, "stride": 2, "block": 8, "width": 16, "panels": 1}),
    ("lowered.pack_conv", (1, 1, 3, 3), {"block": 1, "width": 16}),  # a tile with one line
    ("lowered.pack_conv", (1, 1, 1, 1), {"block": 1, "width": 16}),
]


def packing(case: tuple[str, tuple[int, ...], dict[str, Any]], *, past_caches: bool, scaled: bool) -> PrimFunc:
    """One operator (on `w * scale`) as an unscheduled function."""
    op, shape, attrs = case
    b = GraphBuilder("g")
    w = b.input("w", tensor(*shape))
    if scaled:
        w = ops.emit1(b, "mul", w, b.input("scale", tensor(shape[0], *(1 for _ in shape[1:]))))
    graph = b.finish((ops.emit1(b, op, w, **attrs),))
    (group,) = fuse(graph)
    func = lower_group(group, "pack").func
    return replace(func, notes=with_note(func.notes, PastCaches())) if past_caches else func


def run(func: PrimFunc, arrays: list[Any], shape: tuple[int, ...]) -> Any:
    """The output of a scheduled function, its other parameters reshaped as it has them."""
    out = np.full(shape, np.nan, np.float32)
    space = [np.zeros([d.value for d in p.shape], np.float32) for p in func.params[len(arrays) + 1 :]]  # type: ignore[attr-defined]
    shapes = [[d.value for d in p.shape] for p in func.params]  # type: ignore[attr-defined]
    interpret(func, [*(a.reshape(s) for a, s in zip((*arrays, out), shapes, strict=False)), *space])
    return out


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("past_caches", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {'x'.join(map(str, case[1]))}")
def test_loops_pack_as_the_reference_does(case: tuple[str, tuple[int, ...], dict[str, Any]], past_caches: bool) -> None:
    op, shape, attrs = case
    rng = np.random.default_rng(0)
    w = rng.standard_normal(shape, np.float32)
    scale = rng.standard_normal((shape[0], *(1 for _ in shape[1:])), np.float32)
    (expected,) = reference(op, [w * scale], attrs)
    for target in (ZEN4, NEON) if past_caches else (ZEN3,):
        func = packing(case, past_caches=past_caches, scaled=True)
        got = run(lower_loops(plan(func, target).func, target), [w, scale], expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("shape", [(17, 24, 3, 3), (1, 1, 3, 3), (1, 1, 4, 2), (2, 1, 2, 2), (1, 3, 3, 1)])
def test_a_small_number_of_filters_of_a_transposed_convolution_are_packed(shape: tuple[int, ...], width: int) -> None:
    """Also where a tile reads one row alone and has no rows to be unrolled: loops around it stay as they are."""
    attrs = {"block": 1, "width": width, "strides": (2, 2)}
    case = ("lowered.pack_transposed", shape, attrs)
    w = np.random.default_rng(0).standard_normal(shape, np.float32)
    (expected,) = reference(case[0], [w], attrs)
    for target in (ZEN3, ZEN4, NEON):
        func = packing(case, past_caches=False, scaled=False)
        got = run(lower_loops(plan(func, target).func, target), [w], expected.shape)
        np.testing.assert_array_equal(got, expected)


def test_filters_go_through_tiles_and_whole_lines_past_the_caches() -> None:
    for case in (CASES[0], CASES[5], CASES[7]):
        texts = KernelTexts(packing(case, past_caches=True, scaled=True), ZEN3)
        loops = texts.loops()
        assert "w_local: f32[8, 8" in loops and loops.count("streaming") in (1, 2)
        assert "movntps" in texts.asm() and "gather" not in texts.asm()


def test_rows_of_a_matrix_are_cut_into_panels_some_at_a_time() -> None:
    loops = KernelTexts(packing(CASES[8], past_caches=True, scaled=False), ZEN3).loops()
    assert "@prefetch(buffers=[w], nbytes=256" in loops and "streaming" in loops


def test_a_batch_norm_is_folded_where_weights_are_packed() -> None:
    b = GraphBuilder("g")
    x, w = b.input("x", tensor(1, 16, 12, 12)), b.param("w", tensor(16, 16, 3, 3))
    statistics = [b.param(name, tensor(16)) for name in ("scale", "bias", "mean", "var")]
    y = ops.emit1(b, "conv", x, w, pads=(1, 1, 1, 1), strides=(1, 1), dilations=(1, 1), groups=1)
    factor, offset = (ops.emit1(b, "reshape", v, shape=(1, 16, 1, 1)) for v in statistics[:2])
    graph: Graph = b.finish((ops.emit1(b, "add", ops.emit1(b, "mul", y, factor), offset),))
    for _, function in graph_passes(ZEN3):
        graph = function(graph)
    groups = [[n.op for n in group.nodes] for group in fuse(split_prepare(graph).prepare)]
    packs = [group for group in groups if group[-1].startswith("lowered.pack_")]
    assert packs and all(group[0] == "mul" for group in packs), groups


def test_large_weights_are_packed_past_the_caches_and_right() -> None:
    b = GraphBuilder("g")
    side = 64
    host = Target.host().adjusted(l3=2 * 4 * side * side)
    x, w = b.input("x", tensor(3, side)), b.param("w", tensor(side, side))
    graph = b.finish((ops.emit1(b, "matmul", x, w, transpose_b=True),))
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((3, side), np.float32), "w": rng.standard_normal((side, side), np.float32)}
    model = tw.compile((graph, {"w": arrays["w"]}), target=host)
    assert "past_caches" in model.show("loops")
    (got,) = model.run({"x": arrays["x"]}).values()
    np.testing.assert_allclose(got, arrays["x"] @ arrays["w"].T, rtol=1e-5, atol=1e-5)
