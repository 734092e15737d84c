"""Gradients of convolutions by their weights by Winograd's transforms, a chunk of tile rows at a time.

    for group of blocks of filters, group of blocks of channels:        parallel
        for chunk of tile rows:
            for block of channels of the group, tile row:
                strip = lines of the data;  half = B^T strip;  data[:, :, block, tiles] = half B
            for block of filters of the group, tile row:
                strip = lines of the gradient;  half = G strip;  gradient[:, :, block, tiles] = half G^T
            for xi in size x size:
                for vectors of filters, block of channels, rows of it:
                    sums[xi, ...] += data[xi] gradient[xi]              a register tile, summed over the chunk's tiles
        out[...] = A^T sums A

The sums of a group, and both transforms of a chunk, stay in the second level of cache; every group transforms its
chunks again. The stages are those of `algorithms/winograd/operators/weight_gradient.py`, restated for the size of
chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.algorithms.winograd.operators.weight_gradient import (
    WINOGRAD_WEIGHT,
    WinogradWeightAttrs,
    sums_in_chunks,
)
from tilewright.algorithms.winograd.plan.convolution import constant_product
from tilewright.algorithms.winograd.plan.sums import SumsProblem, ranked
from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.plans.convolution.direct import unroll_steps
from tilewright.plans.framework.analysis import Operator, Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import own_loops, parallelize
from tilewright.plans.framework.cost import number
from tilewright.plans.framework.restate import restate
from tilewright.plans.framework.work import Added
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.target import Target
from tilewright.te import Tensor


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a convolution's gradient by its weights over Winograd's tiles, and nothing else."""
    result = structure.operator(WINOGRAD_WEIGHT)
    return result is not None and len(result.stages) == len(structure.stages)


def _operator(structure: Structure) -> Operator[WinogradWeightAttrs]:
    result = structure.operator(WINOGRAD_WEIGHT)
    assert result is not None
    return result


def problem(operator: Operator[WinogradWeightAttrs]) -> SumsProblem:
    """The sizes of the gradient that the operator computes, for the estimate."""
    (x,), (g,) = operator.stage("data_strip").reads, operator.stage("gradient_strip").reads
    images, channels, *_ = (as_int(d) or 1 for d in x.shape)
    _, filters, height, width, _ = (as_int(d) or 1 for d in g.shape)
    return SumsProblem(images, height, width, channels, filters, operator.attrs.window)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    operator = _operator(structure)
    results = []
    for cost, way in ranked(problem(operator), operator.attrs.tile, target):
        results.append(Candidate(way.knobs, cost))
    return results


def in_chunks(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The gradient that `func` computes, restated as sums over chunks of `sizes["tilerows"]` rows of tiles. Raises
    ScheduleError if `func` computes something else."""
    structure = analyse(func)
    if not fits(structure, Target.parse("x86-64-v2")):
        raise refuse(
            func, "the routine 'winograd sums in chunks' computes gradients of weights by Winograd's transforms"
        )
    operator = _operator(structure)

    def gradient(x: Tensor, g: Tensor) -> Tensor:
        return sums_in_chunks(x, g, operator.attrs, sizes["tilerows"])

    (x,), (g,) = operator.stage("data_strip").reads, operator.stage("gradient_strip").reads
    return restate(structure, operator, (x, g), gradient)


IN_CHUNKS = register(Routine("winograd sums in chunks", ("tilerows",), in_chunks))


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    operator = _operator(structure)
    out, upright = (s.block(operator.stage(f"weight_{what}").name) for what in ("columns", "rows"))
    fo, co, p, q, ci, lane, _ = s.loops(out)
    filters, fo = s.split(fo, factor=candidate.knob("filters"))
    channels, co = s.split(co, factor=candidate.knob("channels"))
    s.reorder(filters, channels, fo, co, ci, p, q, lane)
    s.compute_at(upright, ci)
    s.set_scope(upright, "local")
    for block in (upright, out):
        constant_product(s, block)
    chunk = products(s, s.block(operator.stage("product").name), channels, candidate)
    for name in ("data", "gradient"):
        transform(s, operator, name, chunk, candidate.knob("tilerows"))
    parallelize(s, [filters, channels])


def products(s: Schedule, product: BlockRef, enclosing: LoopRef, candidate: Candidate) -> LoopRef:
    """Schedule the sums over a chunk's tiles in register tiles, which are added to the sums of earlier chunks. Returns
    the loop inside which a chunk's tiles are transformed: over chunks or, if there is only one, the loop `enclosing`
    it."""
    *_, chunk, _ = s.loops(product)
    several = s.extent(chunk) != 1
    if several:
        tile = s.rfactor(product, chunk)
        s.set_scope(tile, "local")
    else:
        tile, product = product, s.cache_write(product, "local")
    s.compute_at(product, enclosing)
    y, z, fo, co, ci, lane, *chunks = s.loops(product)[-7 if several else -6 :]
    group, vector = s.split(fo, factor=candidate.knob("vectors"))
    part, row = s.split(ci, factor=candidate.knob("rows"))
    s.reorder(*chunks, y, z, group, co, part, row, vector, lane)
    s.compute_at(tile, part)
    s.set_scope(product, "padded")
    if several:
        enclosing = chunks[0]
        zero = s.decompose_reduction(product, enclosing)
        s.vectorize(s.loops(zero)[-1])
    unroll_tile(s, product, 3)
    own = own_loops(s, tile)
    vector, _, row, lane = [loop for it, loop in own if it.kind == "spatial"][-4:]
    reduce = [loop for it, loop in own if it.kind == "reduce"]
    s.reorder(*reduce, row, vector, lane)
    start = s.decompose_reduction(tile, reduce[0])
    unroll_steps(s, reduce, candidate.knob("rows") * candidate.knob("vectors"))
    for block in (start, tile):
        unroll_tile(s, block, 3)
    return enclosing


def transform(s: Schedule, operator: Operator[WinogradWeightAttrs], name: str, chunk: LoopRef, rows: int) -> None:
    """Schedule the transform of the data or of the gradient (`name`), one block of channels and one row of tiles at a
    time, in the loop `chunk`, which has `rows` rows of tiles."""
    strip, half, tiles = (s.block(operator.stage(f"{name}_{what}").name) for what in ("strip", "rows", "columns"))
    s.compute_at(tiles, chunk)
    s.set_scope(tiles, "padded")
    y, z, block, t = s.loops(tiles)[-6:-2]
    across = as_int(operator.stage(f"{name}_columns").spatial[4].extent)
    row, column = s.split(t, factor=(across or 1) // rows)
    s.reorder(block, row, column, y, z)
    s.compute_at(half, row)
    s.compute_at(strip, row)
    constant_product(s, half)
    constant_product(s, tiles)
    v, lane = s.loops(strip)[-2:]
    # Two at once, so that the loop is split where padding begins: each element would test whether it is padding.
    _, v = s.split(v, factor=2)
    s.unroll(v)
    s.vectorize(lane)


def added(structure: Structure, candidate: Candidate, target: Target) -> tuple[Added, ...]:
    """The stages that are computed several times, with how often: each group of blocks of filters transforms the data,
    and each group of channels the gradient."""
    operator = _operator(structure)
    groups = {
        "data": number(operator.stage("product").spatial[2].extent) // candidate.knob("filters"),
        "gradient": number(operator.stage("product").spatial[3].extent) // candidate.knob("channels"),
    }
    stages = [
        (operator.stage(f"{name}_{what}"), n) for name, n in groups.items() for what in ("strip", "rows", "columns")
    ]
    return tuple(
        Added(stage.name, "each panel", n * prod(number(it.extent) for it in stage.block.iters)) for stage, n in stages
    )


PLAN = Plan("winograd sums", fits, candidates, apply, added=added, restated=IN_CHUNKS)
