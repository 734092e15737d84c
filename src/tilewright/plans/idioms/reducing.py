"""Schedules of one reduction stage in vectors.

A reduction along a contiguous dimension keeps several vectors of partial results and folds their lanes once, at the
end; a reduction whose kept dimension is contiguous has a vector of results side by side.

    for k_o: for lane in vectorized 0..32: part[lane] += x[k_o * 32 + lane]        part stays in registers
    for lane in vectorized 0..32: total += part[lane]
"""

from __future__ import annotations

from tilewright.arith import linear
from tilewright.ir.expr import Expr, Var, as_int
from tilewright.ir.loops import Block, Store
from tilewright.ir.rewrite import loads, variables, walk
from tilewright.plans.framework.analysis import Stage
from tilewright.plans.framework.common import extent, short_vectors, whole_extent
from tilewright.plans.framework.cost import instructions
from tilewright.schedule.dependence import reduction_update
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule

WINDOW = 64
"""The largest number of taps for which the reduction of a window is unrolled."""

LONG = 64
"""The least number of vectors for which a reduction keeps eight partial results: these hide an addition's latency."""

UNROLLED = 4
"""The largest number of steps of a row that are unrolled if the kernel does nothing else with the row: to mispredict
the end of so short a loop costs more than the row (roots of sums of 48 to 56 squares, 31,000 squares in all: 3.3 us,
unrolled 1.2; Zen 5, 27 November 2026)."""

MAX_OPERATIONS = 8
"""The largest number of operations per element for which eight vectors stay in registers."""


def steps(index: Expr, var: Var) -> int | None:
    """The stride of an index expression in `var`, by which it grows when `var` grows by one: 4 for `4*i + j` and `i`.
    None if it is not constant."""
    if var not in variables(index):
        return 0
    form = linear(index)
    rest = [atom for atom, _ in form.terms if atom is not var and var in variables(atom)]
    return None if rest else form.coefficient(var)


def lane_stride(stage: Stage, var: Var) -> int | None:
    """The largest stride, in elements, of the stage's loads along `var`, which occurs in last indices only (1:
    contiguous); None if it occurs in others, or is not linear."""
    largest = 0
    for stmt in walk(stage.block.body):
        if isinstance(stmt, Store):
            for load in loads(stmt.value):
                moved = [steps(i, var) for i in load.indices]
                if any(m != 0 for m in moved[:-1]) or (moved and moved[-1] is None):
                    return None
                largest = max(largest, abs(moved[-1] or 0) if moved else 0)
    return largest


def is_window(stage: Stage) -> bool:
    """Whether a stage is a reduction over a few taps, as in pooling."""
    taps = 1
    for it in stage.reduce:
        taps *= as_int(it.extent) or WINDOW + 1
    return taps <= WINDOW and len(stage.spatial) > 2


def partial_vectors(length: int, lanes: int, *, outer: bool = False) -> int:
    """The number of vectors of partial results with which a sum over `length` elements is computed. With `outer` loops
    of the reduction around it, a short run of elements has a partial result for each element, so that it needs no loop.
    """
    if outer and length <= 8 * lanes:
        return -(-length // lanes)
    vectors = length // lanes
    return 8 if vectors >= LONG else 4 if vectors >= 8 else 2 if vectors >= 4 else 1


def joined(s: Schedule, stage: Stage, reduce: list[LoopRef]) -> list[LoopRef]:
    """The loops `reduce` with the innermost ones fused, as far as they together access memory contiguously."""
    names = [it.var for it in stage.reduce]
    result = list(reduce)
    if len(result) != len(names):
        return result  # they have been joined or split before
    while len(result) > 1 and _continue(stage, names[-2], names[-1]):
        result = [*result[:-2], s.fuse(result[-2], result[-1])]
        names.pop()
    return result


def _continue(stage: Stage, outer: Var, inner: Var) -> bool:
    """Whether loops `outer` and `inner` of a reduction may be fused: in all loads they index the last two dimensions,
    and `inner` covers its dimension entirely."""
    for stmt in walk(stage.block.body):
        if isinstance(stmt, Store):
            for load in loads(stmt.value):
                at = [k for k, i in enumerate(load.indices) if i is inner]
                used = any(v in variables(i) for i in load.indices for v in (outer, inner))
                if not used:
                    continue
                if at != [len(load.indices) - 1] or load.indices[at[0] - 1] is not outer:
                    return False
                whole = next(it.extent for it in stage.reduce if it.var is inner)
                if load.buffer.shape[-1] is not whole or as_int(whole) is None:
                    return False
    return True


def reduce_lanes(
    s: Schedule,
    stage: Stage,
    reduce: list[LoopRef],
    lanes: int,
    vectors: int | None = None,
    row: LoopRef | None = None,
    *,
    short: bool = False,
) -> None:
    """Vectorise a reduction over the loops `reduce` along a contiguous dimension, with `vectors` vectors (None: a
    default) of `lanes` partial results, which are folded at the end. `row` is a loop over rows whose folds are done
    together; `short`: few steps are unrolled."""
    reduce = joined(s, stage, reduce)
    inner = reduce[-1]
    length = extent(s, inner)
    if length is not None and length < 2 * lanes:
        if length >= lanes // 2:
            with s.trying(f"{stage.name} is not vectorized"):
                s.vectorize(inner)
        return
    block = s.get(s.block(stage.name))
    assert isinstance(block, Block)
    is_short = vectors is None
    if vectors is None and length is None:
        width = short_vectors(whole_extent(s, inner), lanes)
    else:
        width = lanes * (vectors or partial_vectors(length or 0, lanes, outer=len(reduce) > 1))
    if is_short and (all(b not in s.func.params for b in stage.reads) or instructions(block) > MAX_OPERATIONS):
        # As many as the stage before makes at once: the two loops become one. Or as many as keep their operands in
        # registers while functions are computed, which need no more to hide the latency of an addition.
        width = min(width, 4 * lanes)
    outer, lane = s.split(inner, factor=width)
    if len(stage.writes) > 1:
        return  # LLVM makes better vectors of a loop of known trips than partial results in memory are
    partial: BlockRef | None = None
    with s.trying(f"{stage.name} is not reduced in vectors"):
        partial = s.rfactor(s.block(stage.name), lane, factor_axis=-1)
    if partial is None:
        return
    s.set_scope(partial, "local")
    own = s.loops(partial)
    fold = s.loops(s.block(stage.name))[-1]
    first = next(loop for loop in own if loop.name in {outer.name, *(r.name for r in reduce)})
    init = s.decompose_reduction(partial, first)
    for loop in (own[-1], s.loops(init)[-1]):
        s.vectorize(loop)
    if short and (extent(s, first) or UNROLLED + 1) <= UNROLLED:
        s.unroll(first)
    fold_lanes(s, s.block(stage.name), fold)
    if row is not None:
        rows = s.loops(s.block(stage.name))[-2]
        s.vectorize(s.loops(s.decompose_reduction(s.block(stage.name), rows))[-1])
        s.unroll(rows)


def fold_lanes(s: Schedule, block: BlockRef, lane: LoopRef) -> None:
    """Vectorise the loop `lane` that folds partial results into one; the reducers of users are folded element by
    element."""
    entry = s.get(block)
    if isinstance(entry, Block) and reduction_update(entry) is not None:
        s.vectorize(lane)


def reduce_columns(
    s: Schedule, block: BlockRef, reduce: list[LoopRef], lane: LoopRef, lanes: int, together: int
) -> None:
    """Vectorise a reduction across rows, where the results are contiguous along `lane`: if the results do not fit
    registers, `together` steps of the innermost reduction are added to a vector of them at once."""
    width = extent(s, lane)
    if (width is not None and width <= 8 * lanes) or together <= 1:
        s.reorder(*reduce, lane)
        init = s.decompose_reduction(block, reduce[0])
        s.vectorize(lane)
        s.vectorize(s.loops(init)[-1])
        return
    length = extent(s, reduce[-1])
    outer, inner = list(reduce), None
    if length is None or length >= 2 * together:
        step, inner = s.split(reduce[-1], factor=together)
        outer[-1] = step
    chunk, lane = s.split(lane, factor=lanes)
    s.reorder(*outer, chunk, *([inner] if inner is not None else []), lane)
    init = s.decompose_reduction(block, outer[0])
    s.vectorize(lane)
    if inner is not None:
        s.unroll(inner)
    s.vectorize(s.loops(init)[-1])


def reduce_window(s: Schedule, block: BlockRef, reduce: list[LoopRef], lane: LoopRef, lanes: int) -> None:
    """Schedule the reduction `block` over a window, `reduce`, with its taps unrolled and the results in vectors along
    `lane`, a few vectors at a time on long lines."""
    width = extent(s, lane)
    if width is None or width > 8 * lanes:
        chunk, lane = s.split(lane, factor=short_vectors(whole_extent(s, lane), lanes))
        s.reorder(chunk, *reduce, lane)
    else:
        s.reorder(*reduce, lane)
    init = s.decompose_reduction(block, reduce[0])
    for loop in reduce:
        s.unroll(loop)
    s.vectorize(lane)
    s.vectorize(s.loops(init)[-1])
