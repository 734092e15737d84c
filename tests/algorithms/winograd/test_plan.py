"""Winograd plans: native code against a convolution in double precision, on awkward shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.algorithms.winograd.test_operators import convolution
from tests.algorithms.winograd.winograd_errors import MAX_DEVIATIONS, errors
from tests.codegen.llvm.prefetches import Hint, hints
from tests.transform.graph.graphs import BATCH, tensor
from tilewright import ops
from tilewright.algorithms.winograd.offers import tiles, within
from tilewright.algorithms.winograd.plan import tiles as winograd_tiles
from tilewright.algorithms.winograd.plan.errors import largest_error
from tilewright.algorithms.winograd.plan.tiles import (
    ENOUGH,
    MAX_SHARE_RATIO,
    PART,
    TileBlock,
    WinogradProblem,
    blocked,
    cost,
    divided,
    part_of,
    ranked,
    times,
)
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.compiler import compile_graph
from tilewright.ir.dtype import f32, u8
from tilewright.ir.expr import Var, as_int
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.loops import Allocate, For
from tilewright.ir.notes import Prefetch, find
from tilewright.ir.rewrite import walk
from tilewright.plans import plan
from tilewright.runtime.model import Model
from tilewright.targets.costs import Origin
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import ERRORS
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.graph.stored_codes import store_codes
from tilewright.transform.loops import lower_loops, remainder
from tilewright.transform.loops.portions import EvenBlocks
from tilewright.transform.lower import lower_group

HOST = Target.host()
BLOCK = HOST.vector_bits // 32


@contextmanager
def in_blocks(rows: int, columns: int) -> Iterator[None]:
    """Tiles go through the stages in blocks of this size, whatever is estimated; kernels are made anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd_tiles, "blocks", lambda *_: iter([TileBlock(rows, columns)]))
        patch.setenv("TILEWRIGHT_CACHE", "0")
        blocked.cache_clear()
        try:
            yield
        finally:
            blocked.cache_clear()


def layer(
    tile: int,
    images: Any,
    channels: int,
    filters: int,
    size: tuple[int, int],
    pads: tuple[int, ...],
    panel: tuple[int, int],
    window: int = 3,
    stride: int = 1,
    dilation: int = 1,
) -> Graph:
    """block -> winograd -> bias, skip, relu -> unblock, as layout assignment leaves it."""
    b = GraphBuilder("layer")
    width, panels = panel
    x = b.input("x", tensor(images, channels, *size))
    w = b.param("w", tensor(filters, channels, window, window))
    layout = {"block": BLOCK, "width": width * BLOCK, "panels": panels}
    packed = ops.emit1(b, "lowered.pack_winograd", w, tile=tile, stride=stride, **layout)
    blocked = ops.emit1(b, "lowered.block_channels", x, block=BLOCK)
    attrs = {"tile": tile, "window": window, "stride": stride, "pads": pads}
    attrs |= {"dilation": dilation, "out_block": BLOCK}
    y = ops.emit1(b, "lowered.conv_winograd", blocked, packed, channels=filters, input_channels=channels, **attrs)
    bias = ops.emit1(b, "lowered.block_channels", b.param("bias", tensor(1, filters, 1, 1)), block=BLOCK)
    y = ops.emit1(b, "relu", ops.emit1(b, "add", y, bias))
    return b.finish((ops.emit1(b, "lowered.unblock_channels", y, channels=filters),))


CASES = [
    # tile, channels, filters, size, pads, (tile rows, tile columns, vectors of a panel, panels), window
    (4, 3, 17, (7, 9), (1, 1, 1, 1), (2, 3, 1, 2), 3),
    (4, 17, 31, (19, 19), (1, 1, 1, 1), (5, 5, 2, 1), 3),
    (4, 31, 100, (5, 6), (0, 0, 0, 0), (3, 1, 2, 3), 3),
    (4, 16, 16, (1, 1), (1, 1, 1, 1), (1, 1, 2, 2), 3),
    (4, 16, 24, (13, 4), (2, 0, 1, 2), (2, 2, 3, 1), 3),
    (2, 100, 3, (4, 7), (1, 1, 1, 1), (2, 4, 1, 2), 3),
    (2, 20, 40, (6, 6), (0, 2, 2, 1), (4, 2, 2, 4), 3),
    (5, 17, 31, (19, 11), (1, 1, 1, 1), (4, 2, 2, 1), 3),
    (5, 100, 3, (4, 6), (0, 2, 1, 0), (1, 2, 1, 2), 3),
    (6, 17, 20, (19, 8), (1, 1, 1, 1), (2, 2, 2, 1), 3),
    (6, 8, 8, (3, 3), (0, 0, 0, 0), (1, 1, 1, 3), 3),
    (2, 9, 12, (9, 6), (2, 2, 2, 2), (2, 3, 1, 2), 5),
    (3, 9, 12, (7, 8), (2, 2, 2, 2), (2, 3, 1, 1), 5),
    (4, 16, 16, (11, 11), (2, 1, 0, 2), (3, 2, 2, 2), 5),
    (2, 8, 20, (10, 9), (3, 3, 3, 3), (2, 5, 1, 4), 7),
    (10, 17, 12, (13, 7), (3, 3, 2, 3), (2, 1, 2, 1), 7),
    (4, 8, 31, (1, 9), (4, 4, 4, 4), (1, 3, 1, 2), 9),
    # no tile columns: so many tiles that follow each other
    (6, 17, 20, (19, 8), (1, 1, 1, 1), (5, 0, 2, 1), 3),
    (4, 31, 40, (9, 13), (0, 2, 1, 0), (8, 0, 1, 2), 3),
    (2, 9, 12, (9, 6), (2, 2, 2, 2), (40, 0, 1, 2), 5),
    (4, 16, 16, (1, 1), (1, 1, 1, 1), (4, 0, 1, 1), 3),
]


def choose(shapes: tuple[WinogradProblem, ...], sizes: tuple[int, ...], target: Target) -> Winograd | None:
    """The best transform, None where computing directly is estimated to be faster."""
    _, best = ranked(shapes, sizes, target)[0]
    return best if isinstance(best, Winograd) else None


@pytest.mark.daily(5)
@pytest.mark.costly(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_code_agrees_with_a_ordinary_convolution(case: tuple[Any, ...]) -> None:
    tile, channels, filters, size, pads, block, window = case
    rng = np.random.default_rng(tile)
    w = (rng.standard_normal((filters, channels, window, window)) / (window * np.sqrt(channels))).astype(np.float32)
    bias = rng.standard_normal((1, filters, 1, 1)).astype(np.float32)
    graph = layer(tile, BATCH, channels, filters, size, pads, block[2:], window)
    with in_blocks(*block[:2]):
        program = compile_graph(graph, {"w": w, "bias": bias}, HOST)
    for threads in (1, 3):
        model = Model(program, threads=threads)
        for images in (1, 2, 5, 9):
            x = rng.standard_normal((images, channels, *size)).astype(np.float32)
            got = np.asarray(model(x))
            want = np.maximum(convolution(x, w, pads) + bias, 0)
            assert errors(got, want, tile, window, channels, BLOCK).max() <= MAX_DEVIATIONS


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize(("tile", "window"), [(4, 3), (5, 3), (6, 3), (3, 5), (4, 5), (2, 7)])
@pytest.mark.parametrize("channels", [300, 530])
def test_errors_do_not_grow_with_the_channels(tile: int, window: int, channels: int) -> None:
    rng = np.random.default_rng(channels)
    w = (rng.standard_normal((17, channels, window, window)) / (window * np.sqrt(channels))).astype(np.float32)
    x = rng.standard_normal((2, channels, 13, 12)).astype(np.float32)
    bias = np.zeros((1, 17, 1, 1), np.float32)
    pads = (window // 2,) * 4
    graph = layer(tile, BATCH, channels, 17, (13, 12), pads, (2, 1), window)
    with in_blocks(2, 2):
        got = np.asarray(Model(compile_graph(graph, {"w": w, "bias": bias}, HOST))(x))
    want = np.maximum(convolution(x, w, pads), 0)
    result = errors(got, want, tile, window, channels, BLOCK)
    assert result.max() <= MAX_DEVIATIONS
    assert np.sqrt((result[want > 0] ** 2).mean()) <= 1  # 1.1 to 1.3 if all 530 were summed at once
    assert np.abs(got - want).max() <= ERRORS["auto"] * want.max()


def test_an_image_of_bytes_is_converted_where_strips_are_copied() -> None:
    """A kernel that blocks channels itself converts them on the way: no map of floats stands in between."""
    target = Target.parse("znver4")
    block = target.vector_bits // 32
    b = GraphBuilder("layer")
    layout = {"tile": 4, "stride": 1, "block": block, "width": 2 * block, "panels": 2}
    packed = ops.emit1(b, "lowered.pack_winograd", b.param("w", tensor(64, 64, 3, 3)), **layout)
    x = ops.emit1(b, "cast", b.input("x", replace(tensor(1, 64, 56, 56), dtype=u8)), dtype=f32)
    x = ops.emit1(b, "lowered.block_channels", x, block=block)
    attrs = {"tile": 4, "window": 3, "stride": 1, "pads": (1, 1, 1, 1), "dilation": 1}
    y = ops.emit1(b, "lowered.conv_winograd", x, packed, channels=64, input_channels=64, out_block=block, **attrs)
    graph = split_prepare(b.finish((y,))).run
    (group,) = store_codes(fuse(graph, lambda conv, conversion: True), target, frozenset(graph.outputs))
    assert [node.op for node in group.nodes] == ["cast", "lowered.block_channels", "lowered.conv_winograd"]
    func = lower_loops(plan(lower_group(group, "k").func, target).func, target)
    buffers = [*func.params, *(s.buffer for s in walk(func.body) if isinstance(s, Allocate))]
    assert [as_int(buffer.size) for buffer in buffers if buffer.dtype is f32].count(64 * 56 * 56) == 1  # the result


def hints_of_blocks(target: Target, columns: int) -> tuple[list[Hint], int]:
    """The hints for the filters of 64 to 64 channels at 24 pixels in blocks of 3 x `columns` tiles, and the elements
    that a panel of one element of a tile has."""
    block = target.vector_bits // 32
    b = GraphBuilder("layer")
    packed = ops.emit1(
        b,
        "lowered.pack_winograd",
        b.param("w", tensor(64, 64, 3, 3)),
        tile=4,
        stride=1,
        block=block,
        width=2 * block,
        panels=2,
    )
    attrs = {"tile": 4, "window": 3, "stride": 1, "pads": (1, 1, 1, 1), "dilation": 1}
    x = b.input("x", tensor(1, 64 // block, 24, 24, block))
    y = ops.emit1(b, "lowered.conv_winograd", x, packed, channels=64, input_channels=64, out_block=block, **attrs)
    (group,) = fuse(split_prepare(b.finish((y,))).run)
    with in_blocks(3, columns):
        func = lower_loops(plan(lower_group(group, "k").func, target).func, target)
    (weights,) = (buffer for buffer in func.params if as_int(buffer.size) == 64 * 64 * 36)
    return list(hints(func, target, weights.name)), 64 * 2 * block


@pytest.mark.costly(4)
@pytest.mark.parametrize("columns", [2, 3, 5, 6])
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_all_of_the_next_panel_is_asked_for(name: str, columns: int) -> None:
    """Tiles of rows share the lines of a panel, however wide vectors are and however many steps a loop's body has."""
    result, panel = hints_of_blocks(Target.parse(name), columns)
    asked: dict[int, set[int]] = {}
    for hint in result:
        assert hint.note.nbytes == 4 * panel
        first = (hint.prefetched + panel) // 16
        asked.setdefault(hint.read // panel, set()).update(range(first, first + hint.lines))
    assert asked
    for number, lines in asked.items():
        assert lines >= set(range((number + 1) * panel // 16, (number + 2) * panel // 16))


@pytest.mark.costly(3)
@pytest.mark.parametrize("columns", [1, 3, 5])
def test_each_register_tile_asks_for_its_own_filters_where_that_is_faster(columns: int) -> None:
    """Into the first level, all that it reads so many bytes on, one alone too; not where filters are near."""
    inner = Target.parse("znver5")
    target = inner.adjusted(l2=1 << 18)
    assert all(hint.note.level == 2 for hint in hints_of_blocks(inner, columns)[0])
    result, _ = hints_of_blocks(target, columns)
    nbytes = target.costs.prefetching.filter_bytes
    asked: set[int] = set()
    for hint in result:
        assert (hint.note.nbytes, hint.note.level) == (nbytes, 1)
        first = (hint.prefetched + nbytes // 4) // 16
        asked.update(range(first, first + hint.lines))
    assert asked == set(range(nbytes // 64, nbytes // 64 + 64 * 64 * 36 // 16))


def test_two_register_tiles_ask_for_all_of_the_next_panel() -> None:
    """Maps of any size may have fewer tiles than the smallest one that is estimated; two register tiles, of which one
    has a row more, are the fewest that share."""
    target, side = Target.parse("znver4"), Var("h", lo=1, hi=20, likely=(13, 16, 19, 20))
    b = GraphBuilder("layer")
    types = [tensor(1, 16, side, side, 16), tensor(2, 6, 6, 4, 16, 16, 32)]
    x, packed = b.input("x", types[0]), b.param("w", types[1])
    attrs = {"tile": 4, "window": 3, "stride": 1, "pads": (1, 1, 1, 1), "dilation": 1}
    y = ops.emit1(b, "lowered.conv_winograd", x, packed, channels=256, input_channels=256, out_block=16, **attrs)
    (group,) = fuse(b.finish((y,)))
    planned = plan(lower_group(group, "k").func, target)
    (even,) = [n for s in walk(planned.func.body) if isinstance(s, For) and (n := find(s.notes, EvenBlocks))]
    (loop,) = [s for s in walk(planned.func.body) if isinstance(s, For) and find(s.notes, Prefetch)]
    note, steps = find(loop.notes, Prefetch), as_int(loop.extent)
    assert even.size % even.unit == 0 and steps is not None
    assert note is not None and note.lines is not None and note.rows is not None and note.rows < even.size
    read = 16 // steps * 32 * 4 / target.caches.line  # of a panel's lines, by so many of a block's 16 channels
    fewest = min(note.rows, 2 * even.unit - 1)
    assert note.lines * fewest >= read * min(even.unit, fewest)


def test_blocks_of_tiles_that_follow_each_other_are_alike() -> None:
    """25 tiles in blocks of 24 at most are two of about half, in whole register tiles; the estimate says so."""
    choice, block = Winograd(4, 32, 4), TileBlock(24, 0)
    shape = WinogradProblem(1, 20, 20, 256, 256, 3)
    assert divided(shape, choice, block, 8) == TileBlock(16, 0)
    assert divided(shape, choice, block, 6) == TileBlock(18, 0)
    assert divided(replace(shape, width=16), choice, block, 8) == block
    assert divided(shape, choice, TileBlock(2, 4), 4) == TileBlock(2, 4)
    target = Target.parse("znver4")
    assert cost(shape, choice, block, target, 8) == cost(shape, choice, TileBlock(16, 0), target, 8)


def test_channels_are_summed_in_equal_parts() -> None:
    assert [part_of(n, 16) for n in (1, 8, 9, 16, 20, 22, 32)] == [1, 8, 9, 8, 10, 11, 8]
    assert [part_of(n, 8) for n in (16, 17, 32, 40)] == [16, 17, 16, 20]


def test_parts_are_close_to_their_size_for_any_number_of_channels() -> None:
    """530 channels are 67 blocks of eight, a prime number: no equal parts but one and all."""
    assert [part_of(67, 8), part_of(37, 16), part_of(131, 4)] == [14, 8, 27]
    for lanes in (4, 8, 16):
        for blocks in range(1, 4096 // lanes):
            part = part_of(blocks, lanes) * lanes
            assert part <= MAX_SHARE_RATIO * PART
            assert part >= PART / MAX_SHARE_RATIO or part == blocks * lanes


STRIDED = [
    # tile, channels, filters, size, pads, (rows, columns, vectors of a panel, panels), window, stride, dilation
    (4, 17, 31, (19, 17), (1, 1, 1, 1), (2, 3, 2, 1), 3, 2, 1),
    (2, 3, 17, (8, 9), (0, 1, 2, 0), (3, 2, 1, 2), 3, 2, 1),
    (5, 16, 16, (1, 1), (1, 1, 1, 1), (1, 1, 2, 1), 3, 2, 1),
    (3, 8, 3, (9, 12), (1, 1, 1, 1), (2, 2, 1, 1), 2, 2, 1),
    (3, 17, 12, (20, 11), (0, 1, 0, 2), (3, 1, 2, 1), 4, 2, 1),
    (4, 9, 17, (21, 12), (2, 2, 1, 2), (2, 2, 1, 2), 5, 2, 1),
    (2, 17, 16, (12, 15), (3, 3, 3, 3), (2, 2, 2, 1), 7, 2, 1),
    (3, 10, 17, (17, 22), (0, 2, 1, 1), (2, 2, 1, 2), 5, 3, 1),
    (4, 17, 31, (19, 17), (2, 2, 2, 2), (2, 2, 2, 1), 3, 1, 2),
    (2, 9, 12, (13, 20), (3, 0, 1, 3), (3, 2, 1, 1), 3, 1, 3),
    (3, 8, 17, (17, 12), (4, 4, 4, 4), (2, 1, 1, 2), 5, 1, 2),
    (3, 16, 9, (22, 21), (3, 1, 2, 3), (1, 2, 1, 1), 3, 2, 3),
    (4, 8, 8, (5, 3), (6, 6, 6, 6), (5, 1, 1, 1), 3, 1, 6),
]


@pytest.mark.daily(2)
@pytest.mark.costly(4)
@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_strides_and_dilations(case: tuple[Any, ...]) -> None:
    tile, channels, filters, size, pads, block, window, stride, separate = case
    rng = np.random.default_rng(tile)
    w = (rng.standard_normal((filters, channels, window, window)) / (window * np.sqrt(channels))).astype(np.float32)
    bias = rng.standard_normal((1, filters, 1, 1)).astype(np.float32)
    graph = layer(tile, BATCH, channels, filters, size, pads, block[2:], window, stride, separate)
    with in_blocks(*block[:2]):
        program = compile_graph(graph, {"w": w, "bias": bias}, HOST)
    for threads in (1, 3):
        model = Model(program, threads=threads)
        for images in (1, 3):
            x = rng.standard_normal((images, channels, *size)).astype(np.float32)
            got = np.asarray(model(x))
            want = np.maximum(convolution(x, w, pads, stride, separate) + bias, 0)
            assert errors(got, want, tile, window, channels, BLOCK, stride, separate).max() <= MAX_DEVIATIONS


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize(("window", "stride", "separate"), [(3, 2, 1), (4, 2, 1), (5, 3, 1), (3, 1, 2)])
def test_a_model_takes_it(window: int, stride: int, separate: int) -> None:
    """Chosen by the estimate for a layer of a usual size, as `show` says, and within the bound of "auto"."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((96, 96, window, window)) / (10 * window)).astype(np.float32)
    b = GraphBuilder("model")
    x, weight = b.input("x", tensor(1, 96, 61, 60)), b.param("w", tensor(*w.shape))
    attrs = {"pads": (1, 1, 1, 1), "strides": (stride, stride), "dilations": (separate, separate), "groups": 1}
    graph = b.finish((ops.emit1(b, "relu", ops.emit1(b, "conv", x, weight, **attrs)),))
    model = tw.compile((graph, {"w": w}))
    assert "lowered.conv_winograd" in model.show("graph") and f"stride = {stride}" in model.show("graph")
    assert "winograd" in model.show("schedule")
    assert "winograd" not in tw.compile((graph, {"w": w}), fast="exact").show("graph")
    image = rng.standard_normal((1, 96, 61, 60)).astype(np.float32)
    want = np.maximum(convolution(image, w, (1, 1, 1, 1), stride, separate), 0)
    assert np.abs(np.asarray(model(image)) - want).max() <= ERRORS["auto"] * want.max()


def test_a_window_that_does_not_overlap_stays_direct() -> None:
    """Tiles have nothing to share; nor with a stride that differs between rows and columns."""
    for window, strides in ((2, (2, 2)), (1, (2, 2)), (3, (2, 1))):
        w = np.ones((64, 64, window, window), np.float32)
        b = GraphBuilder("model")
        attrs = {"pads": (0, 0, 0, 0), "strides": strides, "dilations": (1, 1), "groups": 1}
        y = ops.emit1(b, "conv", b.input("x", tensor(1, 64, 60, 60)), b.param("w", tensor(*w.shape)), **attrs)
        assert "winograd" not in tw.compile((b.finish((y,)), {"w": w})).show("graph")


@pytest.mark.daily(2)
@pytest.mark.costly(4)
@pytest.mark.parametrize("panels", [1, 2, 4, 7])
@pytest.mark.parametrize("rows", [2, 8])
def test_threads_share_blocks_of_tiles_or_groups_of_panels_or_elements(rows: int, panels: int) -> None:
    """Four blocks of tiles or one, and seven to one groups; the last may have panels without filters."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((7 * BLOCK - 3, 17, 3, 3)) / (3 * np.sqrt(17))).astype(np.float32)
    x = rng.standard_normal((1, 17, 30, 10)).astype(np.float32)
    graph = layer(4, 1, 17, len(w), (30, 10), (1, 1, 1, 1), (1, panels))
    bias = np.zeros((1, len(w), 1, 1), np.float32)
    with in_blocks(rows, 3):
        program = compile_graph(graph, {"w": w, "bias": bias}, HOST)
    want = np.maximum(convolution(x, w, (1, 1, 1, 1)), 0)
    for threads in (1, 3):
        got = np.asarray(Model(program, threads=threads)(x))
        assert errors(got, want, 4, 3, 17, BLOCK).max() <= MAX_DEVIATIONS


def test_nan_and_infinity_stay_in_their_tiles() -> None:
    graph = layer(4, 1, 16, 16, (12, 12), (1, 1, 1, 1), (2, 1))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    model = Model(compile_graph(graph, {"w": w, "bias": np.zeros((1, 16, 1, 1), np.float32)}, HOST))
    x = rng.standard_normal((1, 16, 12, 12)).astype(np.float32)
    clean = np.array(model(x))
    x[0, 3, 0, 0] = np.nan
    dirty = np.array(model(x))
    assert np.isnan(dirty[:, :, :2, :2]).all()
    np.testing.assert_array_equal(dirty[:, :, 4:, 4:], clean[:, :, 4:, 4:])


def test_nan_stays_in_the_tiles_of_a_stride() -> None:
    """A tile of 4 outputs reads 9 inputs: the last of them is the first of the next tile."""
    graph = layer(4, 1, 16, 16, (24, 24), (0, 0, 1, 1), (2, 1), 3, 2)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    model = Model(compile_graph(graph, {"w": w, "bias": np.zeros((1, 16, 1, 1), np.float32)}, HOST))
    x = rng.standard_normal((1, 16, 24, 24)).astype(np.float32)
    clean = np.array(model(x))
    x[0, 3, 7, 7] = np.nan
    dirty = np.array(model(x))
    assert np.isnan(dirty[:, :, 3, 3]).all()
    np.testing.assert_array_equal(dirty[:, :, 4:, :], clean[:, :, 4:, :])
    np.testing.assert_array_equal(dirty[:, :, :, 4:], clean[:, :, :, 4:])


def test_the_estimate_prefers_what_multiplies_less() -> None:
    wide = WinogradProblem(1, 56, 56, 64, 64, 3)
    result = choose((wide,), (2, 4), HOST)
    assert result is not None and result.tile == 4
    assert choose((wide,), (), HOST) is None
    four, two = (cost(wide, Winograd(tile, 2 * BLOCK, 1), TileBlock(2, 14), HOST).cycles for tile in (4, 2))
    assert four < two


def test_panels_go_together_while_their_products_stay_in_the_second_level() -> None:
    """The fewer groups, the less often tiles are read; all panels at once would spill the products of a large block."""
    for size, channels, filters in ((19, 128, 128), (28, 512, 512), (64, 256, 256)):
        shape = WinogradProblem(1, size, size, channels, filters, 3, 1e8)
        result = choose((shape,), (4,), Target.parse("haswell"))
        assert result is not None and result.panels > 1 and (filters // result.width) % result.panels == 0
        block = blocked((shape,), result, Target.parse("haswell"))[0][1]
        products = 4 * 36 * block.count * result.width * result.panels
        assert products <= 0.6 * Target.parse("haswell").l2
    alone = choose((WinogradProblem(1, 19, 19, 128, 16, 3),), (4,), Target.parse("haswell"))
    assert alone is not None and alone.panels == 1


def test_a_batch_has_blocks_of_tiles_for_some_threads() -> None:
    """Two or three blocks are cheapest on one core by a few percent, where each reads its filters from memory; one
    block is all there is of a small layer."""
    target = Target.parse("haswell").adjusted(l3=4 << 20)
    batch = WinogradProblem(8, 19, 19, 128, 128, 3, 8.6e6)
    result = choose((batch,), (5,), target)
    assert result is not None
    best, one = blocked((batch,), result, target)[0][1], Winograd(5, result.width, 1)
    assert times(batch, result, best) >= ENOUGH
    assert any(
        1 < times(batch, one, b) < ENOUGH
        and cost(batch, one, b, target).cycles < cost(batch, result, best, target).cycles
        for b in (TileBlock(rows, 4) for rows in range(11, 17))
    )
    single = WinogradProblem(1, 19, 19, 128, 128, 3, 8.6e6)
    result = choose((single,), (5,), target)
    assert result is not None and times(single, result, blocked((single,), result, target)[0][1]) == 1


def test_filters_that_tiles_prefetch_arrive_no_faster_than_line_buffers_hold_lines() -> None:
    """Larger tiles have more filters for each output."""
    layer = WinogradProblem(1, 19, 19, 128, 128, 3, 8.6e6)
    target = Target.parse("emeraldrapids")
    line = target.costs.prefetching.hinted_line
    assert line > 64 / target.l3_bandwidth
    free = replace(target, costs=target.costs.fitted(Origin("test"), hinted_line=0.0))
    five, four = (Winograd(tile, 32, 4) for tile in (5, 4))
    block = TileBlock(4, 4)
    filters = 4.0 * 7 * 7 * 128 * 128
    assert cost(layer, five, block, target, 8).memory - cost(layer, five, block, free, 8).memory == pytest.approx(
        filters / 64 * line - filters / target.l3_bandwidth
    )
    assert cost(layer, five, block, target, 16) == cost(layer, five, block, free, 16), "nobody prefetches for one tile"
    retained = [
        blocked((layer,), choice, free)[0][0] / blocked((layer,), choice, target)[0][0] for choice in (five, four)
    ]
    assert retained[0] < retained[1]


def test_settings_allow_tiles_by_the_inputs_of_a_phase() -> None:
    assert tiles(3, 1, "f2") == (2,) and tiles(3, 1, "f4") == (2, 4) and tiles(3, 1, "exact") == ()
    assert tiles(3, 1, "auto") == (2, 4, 5, 6)
    assert tiles(3, 2, "f2") == (2, 3) and tiles(3, 2, "auto") == (2, 3, 4, 5)
    assert tiles(5, 2, "auto") == (2, 3, 4) and tiles(7, 1, "auto") == (2, 6, 10, 14, 18)


def test_tiles_keep_the_bound_of_their_setting() -> None:
    """Whatever the window, the stride, the channels and the vectors. All of F(m, 3) fit, but for a sum that falls into
    no parts near 128; F(7, 2) is for few channels alone."""
    for lanes in (4, 8, 16):
        for window, stride in ((2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (9, 1), (3, 2), (5, 2), (5, 3)):
            for channels in (*range(1, 40), 64, 100, 128, 176, 192, 208, 256, 530, 1024):
                for setting in ("f2", "f4", "auto"):
                    sizes = within(ERRORS[setting], tiles(window, stride, setting), window, stride, channels, lanes)
                    expected = [largest_error(m, window, stride, channels, lanes) for m in sizes]
                    assert max(expected, default=0.0) <= ERRORS[setting]
                    assert bool(sizes) == bool(tiles(window, stride, setting))  # never so tight that nothing is left
    usual = tiles(3, 1, "auto")
    assert all(within(ERRORS["auto"], usual, 3, 1, c, 16) == usual for c in (16, 64, 128, 192, 256, 512, 1024))
    assert within(ERRORS["auto"], usual, 3, 1, 208, 16) == (2, 4, 5)
    assert within(ERRORS["auto"], (3, 5, 6, 7), 2, 1, 128, 16) == (3, 5, 6)
    assert within(ERRORS["auto"], (3, 5, 6, 7), 2, 1, 16, 16) == (3, 5, 6, 7)


def test_large_windows_take_fourier_tiles() -> None:
    for window in (7, 9, 15):
        result = choose((WinogradProblem(1, 56, 56, 64, 64, window),), (2, 16 - window + 1, 24 - window + 1), HOST)
        assert result is not None and result.tile > 2


@pytest.mark.parametrize("name", ["znver4", "x86-64-v3"])
def test_small_maps_with_several_filters_take_small_tiles(name: str) -> None:
    """The transformed filters of a large tile would be read for a handful of tiles. Machines are named: narrow vectors
    compute for longer than the filters take to arrive."""
    result = choose((WinogradProblem(1, 7, 7, 512, 512, 3),), (2, 4), Target.parse(name))
    assert result is None or result.tile == 2


def test_a_small_number_of_tiles_over_filters_in_a_cache_are_large() -> None:
    """Four tiles fill one register tile; their products take as long as filters from a cache, which come meanwhile."""
    target = Target.parse("znver4").adjusted(l2_bandwidth=32.0, l3_bandwidth=27.0, memory_bandwidth=8.0)
    for channels in (64, 128):
        result = choose((WinogradProblem(1, 7, 7, channels, channels, 3),), (2, 4, 5, 6), target)
        assert result is not None and result.tile == 4


def test_weights_of_products_stay_as_large_as_they_are() -> None:
    """A model whose weights are a matrix finds all of them in the last cache, whatever becomes of its filters."""
    target = Target.parse("znver4").adjusted(l3=32 << 20)
    filters, matrix = 4 * 9 * 64 * 64, 6 << 20
    windows = WinogradProblem(1, 7, 7, 64, 64, 3, filters + matrix)
    assert windows.away(6, target) == "memory" != windows.away(3, target)
    assert replace(windows, other=matrix).away(6, target) != "memory"
    is_long = 26 << 20
    assert replace(windows, other=is_long, model=filters + is_long).away(3, target) == "memory"


def test_the_last_of_tiles_that_follow_each_other_have_versions() -> None:
    """A register tile has no more rows than one more than the largest remainder that gets code of its own."""
    assert winograd_tiles.MAX_EVEN == remainder.MAX_REMAINDER + 1
