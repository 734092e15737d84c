"""Pointwise and data-moving functions: everything inlined into the outputs, vectors inside, threads outside.

A transposition (packing weights, changing layouts) has no dimension that is contiguous on both sides. It walks the
source along its contiguous dimensions, inside a box of the destination that stays in cache:

    for panel, k_outer:                              threads
        for lane, k_inner:                           reads run along k, writes stay within a box
            packed[panel, k, lane] = w[panel * width + lane, k]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.arith import linear
from tilewright.ir.expr import Buffer, Expr, Op, as_int
from tilewright.ir.loops import Block, BlockIter, Store
from tilewright.ir.rewrite import loads, variables
from tilewright.ir.target import Target
from tilewright.plans.analysis import Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize, vectorize_spatial
from tilewright.plans.cost import roofline
from tilewright.schedule.schedule import BlockRef, LoopRef, Schedule

BOX = 128 << 10
"""Elements of the destination that a transposition writes in one go: they stay in the second-level cache, while long
runs of the source are read in order, as prefetchers like it."""

STRIP = 16
"""Elements read along a long contiguous dimension before going to the next row of the box."""


def fits(structure: Structure, target: Target) -> bool:
    return all(stage.role == "spatial" for stage in structure.stages)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate.of((), roofline(structure, target))]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages)
    for stage in structure.stages:
        if structure.is_output(stage):
            block = s.block(stage.name)
            tile = tile_axes(s, block, target)
            strip = [] if tile else source_order(s, block)
            if tile:
                transpose_tiles(s, block, tile, target)
            elif strip:
                transpose(s, block, strip)
            else:
                vectorize_spatial(s, block, target, lanes_of(stage, target))


def source_order(s: Schedule, block: BlockRef) -> list[str]:
    """For a pure transposition the block's iterators along the source's contiguous dimensions, innermost first, up to
    the one that is innermost in the destination; empty for anything else."""
    stage = s.get(block)
    assert isinstance(stage, Block)
    store = stage.body
    if not isinstance(store, Store) or not stage.iters:
        return []
    sources = loads(store.value)
    if len(sources) != 1:
        return []
    iters = {it.var.name: it for it in stage.iters if as_int(it.extent) != 1}
    last = store.indices[-1]
    order: list[str] = []
    for index in reversed(sources[0].indices):
        run = contiguous_run(index, iters)
        if not run or any(name in order for name in run):
            if as_int(index) is None:
                return []
            continue
        for name in run:
            order.append(name)
            if iters[name].var is last:
                return order if len(order) > 1 else []
    return []


def contiguous_run(index: Expr, iters: Mapping[str, BlockIter]) -> list[str]:
    """The iterators of `outer * 16 + inner`, the one of unit stride first; as far as each continues the last."""
    form = linear(index)
    run: list[str] = []
    stride = 1
    while (name := next((n for n, it in iters.items() if form.coefficient(it.var) == stride), None)) is not None:
        run.append(name)
        size = as_int(iters[name].extent)
        if size is None:
            break
        stride *= size
    return run


def transpose(s: Schedule, block: BlockRef, strip: list[str]) -> None:
    """The loops of `strip` innermost, those of large boxes cut into pieces; all others around them, in threads."""
    stage = s.get(block)
    assert isinstance(stage, Block)
    by_name = dict(zip([it.var.name for it in stage.iters], s.loops(block), strict=True))
    outer = [loop for name, loop in by_name.items() if name not in strip]
    size = 1
    for name in strip:
        size *= extent(s, by_name[name]) or BOX
    for name in strip[:-1]:
        length = extent(s, by_name[name])
        if size > BOX and (length is None or length > STRIP):
            piece, by_name[name] = s.split(by_name[name], factor=STRIP)
            outer.append(piece)
            size = size // (length or BOX) * STRIP
    inner = [by_name[name] for name in reversed(strip)]
    s.reorder(*outer, *inner)
    parallelize(s, outer)


@dataclass(frozen=True, slots=True)
class TileAxes:
    """The iterators that are contiguous in the source (`down`) and in the destination (`along`), and the source."""

    down: str
    along: str
    source: Buffer


def tile_axes(s: Schedule, block: BlockRef, target: Target) -> TileAxes | None:
    """What a transposition in registers needs; None for anything else, small dimensions, and other element sizes."""
    stage = s.get(block)
    assert isinstance(stage, Block)
    store = stage.body
    lanes = target.lanes(4)
    if not isinstance(store, Store) or not stage.iters or lanes not in (4, 8, 16):
        return None
    sources = loads(store.value)
    iters = {it.var: it for it in stage.iters}
    along = store.indices[-1] if store.indices else None
    if len(sources) != 1 or along not in iters or sources[0].dtype.itemsize != 4 or store.buffer.dtype.itemsize != 4:
        return None
    *outer, last = sources[0].indices
    if isinstance(last, Op) and last.name == "mod" and (as_int(last.args[1]) or 1) % lanes == 0:
        last = last.args[0]
    moving = [v for v in iters if v in variables(last)]
    if len(moving) != 1 or linear(last).coefficient(moving[0]) != 1 or moving[0] is along:
        return None
    down = moving[0]
    holding = [i for i in outer if along in variables(i)]
    if len(holding) != 1 or linear(holding[0]).coefficient(along) != 1 or along in variables(last):
        return None
    sizes = [as_int(iters[v].extent) for v in (down, along)]
    if any(n is not None and n < lanes for n in sizes):
        return None
    return TileAxes(down.name, along.name, sources[0].buffer)


def transpose_tiles(s: Schedule, block: BlockRef, axes: TileAxes, target: Target) -> None:
    """Square tiles through registers, as many together as fill a line of cache on both sides:

    for ...: for along_far, down_far: for along_wide, down_wide: for down_near, along_near:
        for a in unrolled 0..8: for d in vectorized 0..8: tile[a, d] = x[.., along + a, .., down + d]
        for d in unrolled 0..8: for a in vectorized 0..8: y[.., down + d, .., along + a] = tile[a, d]
    """
    stage = s.get(block)
    assert isinstance(stage, Block)
    lanes = target.lanes(4)
    by_name = dict(zip([it.var.name for it in stage.iters], s.loops(block), strict=True))
    others = [loop for name, loop in by_name.items() if name not in (axes.down, axes.along)]
    far: list[LoopRef] = []
    wide: list[LoopRef] = []
    near: list[LoopRef] = []
    tiles: list[LoopRef] = []
    for name in (axes.along, axes.down):
        loop, tile = s.split(by_name[name], factor=lanes)
        tiles.append(tile)
        size = extent(s, loop)
        if lanes < LINE and (size is None or size >= 2 * LINE // lanes):
            loop, middle = s.split(loop, factor=LINE // lanes)
            near.append(middle)
        size = extent(s, loop)
        if size is not None and size > 4 * PAGES:
            loop, middle = s.split(loop, factor=PAGES)
            wide.append(middle)
        far.append(loop)
    along, down = tiles
    around = [*others, *far, *wide, *reversed(near)]
    s.reorder(*around, down, along)
    cache = s.cache_read(block, axes.source.name, "local")
    s.compute_at(cache, around[-1])
    own = [loop for loop in s.loops(cache) if extent(s, loop) != 1][-2:]
    s.vectorize(own[-1])
    s.unroll(own[0])
    s.unroll(down)
    s.vectorize(along)
    parallelize(s, [*others, *far])


LINE = 16
"""Elements in a line of cache."""

PAGES = 4
"""Lines of a row that are written before the next rows, where rows are so long that each is in pages of its own."""


PLAN = Plan("elementwise", fits, candidates, apply)
