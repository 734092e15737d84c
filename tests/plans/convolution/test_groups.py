"""Convolutions in groups, transposed, of one and three dimensions: against float64, on sizes that fill nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import BATCH, numbers
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.compiler import graph_passes
from tilewright.ir.dtype import DType, f32, f64
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops import parse_func
from tilewright.ops.interpret import run_graph
from tilewright.plans import plan
from tilewright.schedule.trace import parse_trace
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.memory import is_alias
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

ZEN4 = Target.parse("znver4")


@dataclass(frozen=True)
class Case:
    """A convolution with bias and activation. `pads` is one number, or all of them."""

    channels: int
    filters: int
    size: tuple[int, ...]
    window: int
    groups: int = 1
    stride: int = 1
    pads: int | tuple[int, ...] = 0
    dilation: int = 1
    batch: Any = 1
    transpose: bool = False
    output_padding: int = 0
    activation: str = "relu"

    def graph(self, dtype: DType = f32) -> Graph:
        def tensor(*shape: Any) -> TensorType:
            return TensorType(dtype, tuple(as_expr(d) for d in shape))

        b = GraphBuilder("case")
        rank = len(self.size)
        x = b.input("x", tensor(self.batch, self.channels, *self.size))
        outer, inner = self.filters, self.channels // self.groups
        if self.transpose:
            outer, inner = self.channels, self.filters // self.groups
        w = b.param("w", tensor(outer, inner, *(self.window,) * rank))
        pads = (self.pads,) * 2 * rank if isinstance(self.pads, int) else self.pads
        attrs: dict[str, Any] = {"pads": pads, "strides": (self.stride,) * rank, "dilations": (self.dilation,) * rank}
        attrs["groups"] = self.groups
        if self.transpose:
            attrs["output_padding"] = (self.output_padding,) * rank
        y = ops.emit1(b, "conv_transpose" if self.transpose else "conv", x, w, **attrs)
        y = ops.emit1(b, "add", y, b.param("bias", tensor(self.filters, *(1,) * rank)))
        return b.finish((ops.emit1(b, self.activation, y),))


DEPTHWISE = {
    "3x3": Case(17, 17, (9, 11), 3, 17, pads=1),
    "3x3, stride 2, uneven pads": Case(
        100, 100, (14, 15), 3, 100, stride=2, pads=(0, 1, 1, 0), activation="hard_swish"
    ),
    "5x5 on a map smaller than the window": Case(31, 31, (3, 2), 5, 31, pads=2),
    "5x5, many columns": Case(8, 8, (6, 33), 5, 8, pads=2, activation="sigmoid"),
    "7x7, symbolic batch": Case(16, 16, (8, 9), 7, 16, pads=3, batch=BATCH),
    "small map": Case(17, 17, (4, 6), 3, 17, stride=2, pads=1, batch=BATCH),
    "one pixel": Case(3, 3, (1, 1), 3, 3, pads=1),
    "dilated": Case(24, 24, (13, 12), 3, 24, pads=2, dilation=2),
    "dilated, strided, no padding": Case(20, 20, (16, 11), 3, 20, stride=3, dilation=2),
    "multiplier 2": Case(12, 24, (6, 7), 3, 12, pads=1),
    "multiplier 3": Case(10, 30, (3, 4), 3, 10, pads=1, batch=2),
    "groups of 2": Case(30, 30, (6, 7), 3, 15, pads=1),
    "groups of 4": Case(20, 20, (7, 4), 3, 5, pads=1, stride=2),
}

TRANSPOSED = {
    "2x2, stride 2": Case(16, 24, (5, 7), 2, stride=2, transpose=True),
    "4x4, stride 2": Case(17, 31, (3, 4), 4, stride=2, pads=1, transpose=True, activation="hard_swish"),
    "3x3, stride 2, output padding": Case(8, 100, (4, 3), 3, stride=2, pads=1, output_padding=1, transpose=True),
    "5x5, stride 3, uneven pads": Case(3, 16, (4, 5), 5, stride=3, pads=(2, 0, 1, 3), transpose=True, batch=BATCH),
    "window smaller than the stride": Case(16, 3, (3, 3), 2, stride=3, transpose=True),
    "one pixel to many": Case(40, 20, (1, 1), 4, stride=2, transpose=True, batch=2),
    "dilated taps": Case(16, 8, (5, 4), 3, stride=2, pads=1, dilation=2, transpose=True, batch=BATCH),
    "dilated taps, stride 1": Case(5, 20, (4, 6), 2, pads=(1, 0, 2, 1), dilation=3, transpose=True),
    "a line": Case(16, 16, (1, 9), 4, stride=2, pads=(0, 1, 0, 1), transpose=True),
}

POINTWISE = {
    "pixels, groups of 17": Case(51, 51, (7, 7), 1, 3, batch=BATCH),
    "pixels, fewer filters": Case(16, 10, (3, 9), 1, 2, activation="sigmoid"),
    "pixels, a filter for each group": Case(6, 3, (1, 1), 1, 3),
    "pixels, full blocks": Case(64, 64, (4, 6), 1, 4, batch=2),
    "pixels, strided": Case(20, 30, (9, 7), 1, 2, stride=2, batch=BATCH),
}

WINDOWS = {
    "groups of two blocks": Case(64, 64, (6, 9), 3, 2, pads=1, batch=BATCH),
    "groups of two blocks, stride 2": Case(96, 64, (9, 8), 3, 2, stride=2, pads=(0, 1, 1, 0)),
    "volume": Case(3, 20, (5, 6, 9), 3, pads=1),
    "volume of full blocks": Case(16, 17, (4, 3, 5), 3, stride=2, pads=(1, 0, 1, 0, 1, 2), batch=BATCH),
    "volume, dilated": Case(8, 8, (5, 5, 26), 3, dilation=2, activation="sigmoid"),
    "volume of one pixel": Case(4, 4, (1, 1, 1), 3, pads=1),
}

GROWN = {
    "fewer filters than channels in a group": Case(40, 8, (9, 7), 3, 4, stride=2, pads=1, batch=BATCH),
    "groups of any size": Case(42, 34, (7, 11), 5, 2, pads=(2, 1, 0, 3), activation="sigmoid"),
    "groups of equal size that divide no block": Case(36, 36, (8, 5), 3, 3, pads=1, batch=2),
    "few filters, strided and dilated": Case(6, 4, (11, 13), 3, 2, stride=2, pads=2, dilation=2),
    "filters of whole blocks, any channels": Case(10, 64, (5, 6), 3, 2, pads=1),
    "blocks of channels, any filters": Case(64, 10, (5, 6), 3, 2, pads=1),
    "one pixel, groups": Case(15, 18, (1, 1), 3, 3, pads=1),
    "a line, groups": Case(24, 12, (1, 21), 3, 2, pads=1),
    "volume, groups": Case(8, 12, (3, 4, 5), 3, 2, pads=1, batch=BATCH),
    "volume, groups of blocks": Case(32, 32, (3, 3, 4), 3, 2, stride=2, pads=1),
    "volume of pixels, groups": Case(6, 10, (3, 2, 4), 1, 2),
    "multiplier 12": Case(4, 48, (6, 7), 3, 4, pads=1),
    "multiplier 32, dilated": Case(2, 64, (9, 8), 3, 2, dilation=2, batch=2),
    "multiplier 37, stride 2": Case(3, 111, (7, 7), 5, 3, stride=2, pads=2),
    "volume, depthwise": Case(5, 5, (3, 4, 5), 3, 5, pads=1),
    "volume, groups of half a block": Case(16, 16, (3, 4, 19), 3, 2, pads=1),
    "groups of three halves": Case(14, 42, (5, 18), 3, 2, pads=1, batch=BATCH),
    "groups of eight": Case(24, 24, (6, 17), 3, 3, pads=1, batch=BATCH),
}
"""Groups whose filters do not fill blocks."""

CASES = GROWN | DEPTHWISE | POINTWISE | WINDOWS | TRANSPOSED


def reference(case: Case, inputs: dict[str, Any], params: dict[str, Any]) -> np.ndarray:
    wide = [{name: a.astype(np.float64) for name, a in arrays.items()} for arrays in (inputs, params)]
    (result,) = run_graph(case.graph(f64), *wide).values()
    return np.asarray(result)


@pytest.mark.daily(4)
@pytest.mark.costly(4)
@pytest.mark.parametrize("name", CASES)
def test_native_code_against_float64(name: str) -> None:
    graph = CASES[name].graph()
    for batch in (1, 3, 9) if BATCH in graph.symbols else (1,):
        inputs, params = numbers(graph, batch)
        expected = reference(CASES[name], inputs, params)
        (got,) = tw.compile((graph, params)).run(inputs).values()
        assert got.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * scale)


def kernels(graph: Graph, target: Target) -> list[KernelCall]:
    for _, function in graph_passes(target):
        graph = function(graph)
    split = split_prepare(graph)
    groups = [g for part in (split.prepare, split.run) for g in fuse(part) if not is_alias(g)]
    return [lower_group(g, f"k{i}") for i, g in enumerate(groups)]


INTERPRETED = (
    "5x5 on a map smaller than the window",
    "one pixel",
    "groups of 4",
    "multiplier 3",
    "small map",
    "one pixel to many",
    "pixels, fewer filters",
    "pixels, a filter for each group",
    "volume of one pixel",
    "one pixel, groups",
)


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", INTERPRETED)
def test_wide_vectors_by_interpretation(name: str) -> None:
    """A function that is scheduled and lowered for registers of sixteen lanes means the same."""
    for kernel in kernels(CASES[name].graph(), ZEN4):
        if "conv" not in kernel.label or "pack" in kernel.label:
            continue
        planned = plan(kernel.func, ZEN4)
        assert parse_trace(str(planned.schedule.trace)).replay(kernel.func).func == planned.schedule.func
        flat = lower_loops(planned.func, ZEN4)
        assert parse_func(str(flat)) == flat
        want, got = arguments(kernel, 2), arguments(kernel, 2)
        interpret(kernel.func, want)
        for buffer in flat.params[len(got) :]:
            shape = [2 if d is BATCH else getattr(d, "value", 1) for d in buffer.shape]
            got.append(np.full(shape, np.nan, buffer.dtype.numpy))
        interpret(flat, got)
        for a, b in zip(want, got, strict=False):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("filters", "windows"), [(16, True), (8, True), (4, False)])
def test_groups_of_half_a_block_are_windows(filters: int, windows: bool) -> None:
    """Tiles of pixels fill as much of a line's vectors, and use it half as well; a quarter of one stays theirs."""
    case = Case(filters, filters, (3, 4, 19), 3, 2, pads=1)
    assert any(k.label.startswith("conv_windows") for k in kernels(case.graph(), ZEN4)) == windows


@pytest.mark.parametrize(
    ("each", "columns", "block"),
    [(8, 19, 8), (8, 1, 8), (5, 19, 8), (5, 4, 16), (12, 19, 16), (20, 19, 8), (40, 19, 16)],
)
def test_blocks_are_half_blocks_where_these_take_no_longer(each: int, columns: int, block: int) -> None:
    """Zen 4 starts two halves at once; short lines wait for their sums, many halves for loads."""
    graph = Case(2 * each, 2 * each, (3, 4, columns), 3, 2, pads=1).graph()
    for _, function in graph_passes(ZEN4):
        graph = function(graph)
    (conv,) = [n for n in graph.nodes if n.op == "lowered.conv_windows"]
    assert as_int(conv.output.shape[-1]) == block


def arguments(kernel: KernelCall, batch: int) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [[batch if d is BATCH else d.value for d in b.shape] for b in kernel.func.params]  # type: ignore[attr-defined]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", ["3x3", "multiplier 2", "groups of 4", *TRANSPOSED, *POINTWISE, *WINDOWS, *GROWN])
def test_packed_operators_and_their_references_agree(name: str) -> None:
    graph = CASES[name].graph()
    inputs, params = numbers(graph, 1)
    (expected,) = run_graph(graph, inputs, params).values()
    for _, function in graph_passes(ZEN4):
        graph = function(graph)
    (got,) = run_graph(graph, inputs, params).values()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_nothing_is_padded_in_memory_and_inside_the_image_nothing_is_tested() -> None:
    graph = Case(32, 32, (40, 40), 3, 32, pads=1).graph()
    (kernel,) = [k for k in kernels(graph, ZEN4) if "conv_depthwise" in k.label]
    flat = str(lower_loops(plan(kernel.func, ZEN4).func, ZEN4))
    assert "pad" not in flat and "select(" not in flat
    assert any("if " not in tile for tile in flat.split("alloc")[1:])
