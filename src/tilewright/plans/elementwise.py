"""Pointwise and data-moving functions: everything inlined into the outputs, vectors inside, threads outside.

A transposition (packing weights, changing layouts) has no dimension that is contiguous on both sides. It walks the
source along its contiguous dimensions, inside a box of the destination that stays in cache:

    for panel, k_outer:                              threads
        for lane, k_inner:                           reads run along k, writes stay within a box
            packed[panel, k, lane] = w[panel * width + lane, k]
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arith import linear
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.loops import Block, BlockIter, Store
from tilewright.ir.rewrite import loads
from tilewright.ir.target import Target
from tilewright.plans.analysis import Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize, vectorize_spatial
from tilewright.plans.cost import roofline
from tilewright.schedule.schedule import BlockRef, Schedule

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
            strip = source_order(s, block)
            if strip:
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


PLAN = Plan("elementwise", fits, candidates, apply)
