"""Chains of reductions and pointwise stages over common rows: softmax, normalisations, pooling, sums.

    for row...:                                  parallel; short rows a few together
        m[row] = max over x[row, :]              vectors over the reduced dimension, if it is contiguous
        e[row, :] = exp(x[row, :] - m)           a row-local buffer that stays in L1
        s[row] = sum over e[row, :]
        out[row, :] = e / s

If the innermost dimension is kept and an outer one reduced, a row is a strip of columns:

    for n, strip:                                parallel
        for k: for j in strip: m[j] = max(m[j], x[n, k, j])
        ...

Stages are computed at the rows they share with the outputs; a function whose stages share no rows runs them one after
another.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from tilewright.ir.expr import Buffer, Op, Var, as_int, product
from tilewright.ir.loops import Store
from tilewright.ir.notes import LoopNote, Prefetch, register
from tilewright.ir.rewrite import exprs_of, loads, walk, walk_expr
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import (
    buffer_names,
    extent,
    inline_all,
    lanes_of,
    parallelize,
    short_vectors,
    stream_outputs,
    vectorize_spatial,
    whole_extent,
)
from tilewright.plans.framework.cost import FUNCTIONS, roofline
from tilewright.plans.framework.variants import Values
from tilewright.plans.idioms.reducing import (
    fold_lanes,
    is_window,
    joined,
    partial_vectors,
    reduce_columns,
    reduce_lanes,
    reduce_window,
)
from tilewright.plans.rows.estimate import STEPS, folds, products, unfilled, windows
from tilewright.plans.rows.groups import STEP_VECTORS, row_length, rows_pipelined, rows_together
from tilewright.plans.rows.stages import Rows, materialised, shared_rows, vector_last
from tilewright.plans.rows.transposed import is_transposed, schedule_transposed, turning
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

SPREAD = 1 << 16
"""The least number of elements for which a reduction to one element is split into parts that threads share."""

PARTS = 32

SHORT_SUMS = 6
"""The largest number of reduced rows for which results stay in registers, a strip of eight vectors at a time: sums of 2
to 6 rows of 6,400 and 50,000 numbers take 0.5 to 0.75 of the time of strips of 1,024 with AVX2, 0.83 to 1.11 with
AVX-512 (sums, means, norms, maxima; Zen 5, 27 November 2026)."""


@register
@dataclass(frozen=True, slots=True)
class Pipeline(LoopNote):
    """A loop over rows works on several rows at once, each in another stage.

    Written by `plans/rows/plan.py`, read and removed by `transform/loops/pipeline.py`.
    """


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function has a reduction; others are left to the pointwise plans."""
    return any(stage.role != "spatial" for stage in structure.stages)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    rows = shared_rows(structure)
    strip = strip_width(structure, rows, target)
    cost = roofline(structure, target)
    waits = cost.compute <= cost.memory / 2
    pipelined, folded = (0, 1) if waits else rows_pipelined(structure, rows, strip, target)
    together = pipelined or rows_together(structure, rows, strip, target)
    knobs = {"rows": rows.leading, "strip": strip, "together": together, "pipeline": int(pipelined > 0), "fold": folded}
    cost = cost | products(structure, rows, target) | windows(structure, target)
    cost |= unfilled(structure, rows, strip, target)
    for stage in structure.stages:
        if is_transposed(structure, stage):
            cost += turning(stage, target)
    return [Candidate(tuple(knobs.items()), cost + folds(structure, rows, strip, together, target))]


def cases(structure: Structure, target: Target) -> list[Values]:
    """One row of a symbolic number gets a separate version if several rows are otherwise processed together."""
    if candidates(structure, target)[0].knob("together") == 1:
        return []
    out = next(s for s in structure.stages if structure.is_output(s))
    *others, row = (it.extent for it in out.spatial[: shared_rows(structure).leading])
    if not isinstance(row, Var) or any(as_int(n) != 1 for n in others):
        return []
    return [{row: 1}] if (row.lo or 0) <= 1 == row.multiple else []


def strip_width(structure: Structure, rows: Rows, target: Target) -> int:
    """Columns of a strip; 0 without strips. The arrays of a strip must stay in the second-level cache; for a single
    reduction these are only the results."""
    if not rows.strip:
        return 0
    retained = [s for s in structure.stages if materialised(structure, s)]
    out = [s for s in structure.stages if structure.is_output(s)][-1]
    lanes = lanes_of(out, target)
    width = as_int(out.spatial[-1].extent)
    if any(is_window(st) for st in retained if st.reduce):
        # A whole line, or so little of one that some strips touch neither end, where padding is.
        if width is None:
            return short_vectors(out.spatial[-1].extent, lanes, 1)
        return short_vectors(out.spatial[-1].extent, lanes) if width > 8 * lanes else width
    full = [st for st in retained if st.role == "spatial" and len(st.spatial) > rows.leading + 1]
    height = 1
    for st in full:
        tall = 1
        for it in st.spatial[rows.leading : -1]:
            tall *= as_int(it.extent) or 1024
        height = max(height, tall)
    if height == 1:
        widest = 8 * lanes
        is_short = all(prod(as_int(it.extent) or SHORT_SUMS + 1 for it in st.reduce) <= SHORT_SUMS for st in retained)
        if width is None:
            return widest
        return width if width <= widest else widest if is_short else min(target.costs.copies.strip, width)
    vectors = max(2, min(8, target.l2 // 2 // (height * lanes * 4 * 2)))
    return min(width or vectors * lanes, vectors * lanes)


# the schedule


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inlined = tuple(st for st in structure.stages if not materialised(structure, st))
    inline_all(s, structure, inlined)
    retained = [st for st in structure.stages if st not in inlined]
    rows, strip, together = (candidate.knob(name) for name in ("rows", "strip", "together"))
    pipeline, fold = bool(candidate.knob("pipeline")), candidate.knob("fold")
    outputs = [st for st in retained if structure.is_output(st)]
    if all(as_int(it.extent) == 1 for st in retained for it in st.spatial):
        one_after_another(s, retained, target)
        return
    if (rows or strip) and len(outputs) == 1:
        enclosing = gather(s, retained, outputs[0], rows, strip, together, fold if pipeline else 0, target)
    elif rows and not strip and connected(structure, retained):
        enclosing = spread(s, retained, rows)
    else:
        one_after_another(s, retained, target)
        return
    names = {loop.name for loop in enclosing}
    # Nothing but folds: one element a row is left.
    short = not strip and all(as_int(it.extent) == 1 for st in retained for it in st.spatial[rows:])
    scalars = together > 1 and not pipeline and folded_to_scalars(structure, retained, rows, target)
    for stage in retained:
        if is_transposed(structure, stage) and schedule_transposed(s, stage, target):
            continue
        own = [loop for loop in s.loops(s.block(stage.name)) if loop.name not in names]
        if fold > 1:
            schedule_folded(s, stage, own, target)
        else:
            outer = len(own) - len(stage.reduce)
            lone = scalars and all(as_int(it.extent) == 1 for it in stage.spatial[rows:])
            schedule_inner(s, stage, own, outer, target, bool(strip), pipeline, short=short, lone=lone)
    if not strip:
        together = fold if pipeline else together
        least = target.costs.prefetching.pipelined_bytes if pipeline else 0
        prefetch_rows(s, names, rows, together, fold > 1, target, least)
    if pipeline:
        s.annotate(enclosing[-1], Pipeline())
    parallelize(s, enclosing[:-1] if pipeline else enclosing)


def prefetch_rows(
    s: Schedule, enclosing: set[str], rows: int, together: int, whole: bool, target: Target, least: int
) -> None:
    """Add prefetches of the next rows, `together` rows at once, to loops inside of the loops `enclosing` that read a
    large input a second time, since the first loop over the next rows would wait for it: step by step or, if `whole`, a
    whole row at a time; at least `least` bytes ahead. An input's first `rows` dimensions are not part of a row."""
    costs = target.costs.prefetching
    params = {b for b in s.func.params if (as_int(b.size) or 0) * b.dtype.itemsize > target.l2}
    passes: dict[Buffer, list[str]] = {}
    for block in s.blocks():
        inner = [loop for loop in s.loops(block) if loop.name not in enclosing and (extent(s, loop) or 2) > 1]
        if len(inner) < 2:
            continue
        prefetching = inner[0] if whole else inner[-2]
        for e in (e for stmt in walk(s.get(block)) for e in exprs_of(stmt)):
            for load in loads(e):
                if load.buffer in params and prefetching.name not in passes.setdefault(load.buffer, []):
                    passes[load.buffer].append(prefetching.name)
    used: set[str] = set()
    for buffer, names in passes.items():
        length = as_int(product(buffer.shape[rows:]))
        free = [name for name in names[1:] if name not in used]
        size = (length or 0) * buffer.dtype.itemsize * together
        if not free or not costs.least_row <= size <= target.l1 // 2:
            continue
        used.add(free[-1])
        lines = size // together // target.caches.line if whole else None
        note = Prefetch(buffer_names([buffer]), max(costs.rows * size, least), lines=lines)
        s.annotate(s.loop(free[-1]), note)


def gather(
    s: Schedule, retained: list[Stage], out: Stage, rows: int, strip: int, together: int, pipeline: int, target: Target
) -> list[LoopRef]:
    """Compute all stages in `retained` inside the first `rows` loops of the output's stage `out`. If `together` is
    above 1, so many iterations of the last of these are computed at once or, if `pipeline` is not 0, in an inner loop
    over groups of `pipeline` of them, which is pipelined. With a `strip`, the innermost dimension is split into chunks
    of so many columns, and a loop over these is added. Returns the loops around the stages."""
    block = s.block(out.name)
    lone = len(out.writes) == 1 and not vector_last(out)
    copied = out.reduce and (strip or len(retained) > 1 or lone)
    if copied:
        block = s.cache_write(block, "local")
    loops = list(s.loops(block))
    enclosing = loops[:rows]
    last = loops[len(out.spatial) - 1]
    if strip:
        width = extent(s, last)
        if width is None or width > strip:
            chunk, last = s.split(last, factor=strip)
            s.reorder(*enclosing, chunk, *loops[rows : len(out.spatial) - 1], last)
            enclosing.append(chunk)
    if not enclosing:
        return []
    if together > 1:
        enclosing[-1], row = s.split(enclosing[-1], factor=together)
        if pipeline:
            enclosing.append(s.split(row, factor=pipeline)[0] if pipeline > 1 else row)
    for stage in reversed(retained):
        if stage is not out or copied:
            s.compute_at(s.block(stage.name), enclosing[-1])
    if copied:
        own = list(s.loops(block))[len(enclosing) :]
        vector_tail(s, block, own, lanes_of(out, target), target, stream=False)
    return enclosing


def spread(s: Schedule, retained: list[Stage], rows: int) -> list[LoopRef]:
    """For a function with several outputs, compute all stages in `retained` inside the first `rows` loops of the first
    one. Returns these loops."""
    enclosing = list(s.loops(s.block(retained[0].name)))[:rows]
    for stage in retained[1:]:
        s.reverse_compute_at(s.block(stage.name), enclosing[-1])
    return enclosing


def connected(structure: Structure, retained: list[Stage]) -> bool:
    """Whether each stage in `retained` but the first depends on one before it."""
    names = [st.name for st in retained]
    return all(any(b.name in names[:k] for b in structure.before(st)) for k, st in enumerate(retained) if k)


def one_after_another(s: Schedule, retained: list[Stage], target: Target) -> None:
    for _, run in groupby(retained, key=lambda stage: None if stage.reduce else [it.extent for it in stage.spatial]):
        stages = list(run)
        if not stages[0].reduce:
            side_by_side(s, stages, target)
            continue
        for stage in stages:
            block, own = s.block(stage.name), list(s.loops(s.block(stage.name)))
            if all(as_int(it.extent) == 1 for it in stage.spatial) and share_out(s, stage, own, target):
                continue
            own = list(s.loops(block))  # the reduction's may be other ones now
            spatial = own[: len(stage.spatial)]
            schedule_inner(s, stage, own, len(spatial), target, False)
            parallelize(s, spatial[:-1] if vector_last(stage) else spatial)


def side_by_side(s: Schedule, run: list[Stage], target: Target) -> None:
    """Fuse the vector loops of the pointwise stages in `run`, which have one shape, into that of the last one, as far
    as it reads them: in an optimiser's step, means and parameters are then read once."""
    *others, last = run
    names = {stage.name for stage in run}
    vectorize_spatial(s, s.block(last.name), target, lanes_of(last, target))
    loops = s.loops(s.block(last.name))
    for stage in reversed(others):
        moved = False
        with s.trying(f"{stage.name} is not made beside {last.name}"):
            if len(loops) > 1:
                s.compute_at(s.block(stage.name), loops[-2])
                lane = s.loops(s.block(stage.name))[-1]
                s.vectorize(lane)
                stream_outputs(s, s.block(stage.name), lane, target, names)
                moved = True
        if not moved:
            vectorize_spatial(s, s.block(stage.name), target, lanes_of(stage, target))


def share_out(s: Schedule, stage: Stage, own: list[LoopRef], target: Target) -> bool:
    """Divide the reduction `stage` to one element, with the loops `own`, into parts for threads. The number of parts
    does not depend on the number of threads, so that results are bit-equal. Returns False, and does nothing, if there
    is too little work to share."""
    reduce = joined(s, stage, own[len(stage.spatial) :])
    length = extent(s, reduce[0])
    if len(reduce) != 1 or length is None or length < SPREAD or len(stage.writes) > 1:
        return False
    lanes = lanes_of(stage, target)
    part, inner = s.split(reduce[0], nparts=PARTS)
    partial: BlockRef | None = None
    with s.trying(f"threads do not share {stage.name}"):
        partial = s.rfactor(s.block(stage.name), part, factor_axis=0)
    if partial is None:
        return False
    _, lane = s.split(inner, factor=lanes * partial_vectors(length // PARTS, lanes))
    side = s.rfactor(partial, lane, factor_axis=-1)
    s.set_scope(side, "local")
    part = next(loop for loop in s.loops(partial) if extent(s, loop) == PARTS)
    s.compute_at(side, part)
    loops = list(s.loops(side))
    lane, steps, *single = loops[[loop.name for loop in loops].index(part.name) + 1 :]
    s.reorder(steps, *single, lane)
    init = s.decompose_reduction(side, steps)
    for loop in (lane, s.loops(init)[-1]):
        s.vectorize(loop)
    fold_lanes(s, partial, s.loops(partial)[-1])
    s.parallel(part)
    return True


def schedule_inner(
    s: Schedule,
    stage: Stage,
    own: list[LoopRef],
    outer: int,
    target: Target,
    strip: bool,
    pipeline: bool = False,
    *,
    short: bool = False,
    lone: bool = False,
) -> None:
    """Schedule the loops `own` of one stage inside the common loops over rows; the first `outer` are spatial, the
    others its reduction. `strip`: rows are divided into strips; `pipeline`: steps have the same width in all stages;
    `short`: few steps are unrolled; `lone`: rows have one element."""
    if not own:
        return
    lanes = lanes_of(stage, target)
    block = s.block(stage.name)
    if stage.role == "spatial":
        # What later stages read is made in as many vectors as their reductions take: two loops become one.
        most = 8 if any(b in s.func.params for b in stage.writes) and not pipeline else STEP_VECTORS
        if lone and not has_function(stage):
            return
        long = [loop for loop in own if extent(s, loop) != 1] if lone else []
        vector_tail(s, block, long or own, lanes, target, stream=not strip, most=most)
        return
    spatial, reduce = own[:outer], own[outer:]
    if spatial and vector_last(stage) and (extent(s, spatial[-1]) or lanes) > 1:
        if is_window(stage):
            reduce_window(s, block, reduce, spatial[-1], lanes)
        else:
            reduce_columns(s, block, reduce, spatial[-1], lanes, STEPS)
        return
    reduce_lanes(s, stage, reduce, lanes, STEP_VECTORS if pipeline else None, short=short)


def folded_to_scalars(structure: Structure, retained: list[Stage], rows: int, target: Target) -> bool:
    """Whether the lanes of each row are folded by themselves, so that one result is stored at a time: rows have at
    least half a vector of elements, and none is transposed. Shorter rows LLVM vectorises across."""
    reducing = [stage for stage in retained if stage.role != "spatial"]
    short = (0 < row_length(stage, rows) < lanes_of(stage, target) // 2 for stage in reducing)
    return not any(short) and not any(is_transposed(structure, stage) for stage in retained)


def has_function(stage: Stage) -> bool:
    """Whether a stage computes a function of many operations. If rows have one element, such a function of a vector of
    rows takes as long as of one row; for single operations, gathering the vector would take longer."""
    values = [store.value for store in walk(stage.block.body) if isinstance(store, Store)]
    return any(isinstance(e, Op) and e.name in FUNCTIONS for value in values for e in walk_expr(value))


def schedule_folded(s: Schedule, stage: Stage, own: list[LoopRef], target: Target) -> None:
    """Schedule the loops `own` of one stage, the first over a group of rows that are folded together: reductions with
    rows unrolled, in single vectors; pointwise stages with one element per row in vectors across rows."""
    lanes = lanes_of(stage, target)
    own = [loop for loop in own if extent(s, loop) != 1]
    if stage.role != "spatial":
        reduce_lanes(s, stage, own[1:], lanes, 1, own[0])
        return
    if len(own) == 1:
        s.vectorize(own[0])
        return
    # What is summed next is made in single vectors as well: two loops become one.
    vectors = STEP_VECTORS if any(b in s.func.params for b in stage.writes) else 1
    _, lane = s.split(own[-1], factor=vectors * lanes)
    s.vectorize(lane)
    stream_outputs(s, s.block(stage.name), lane, target)


def vector_tail(
    s: Schedule, block: BlockRef, own: list[LoopRef], lanes: int, target: Target, *, stream: bool, most: int = 8
) -> None:
    """Vectorize the innermost of `own`, a spatial block's own loops, by `lanes` elements, in pieces of a few vectors if
    there are more than `most`. `stream`: each piece writes whole lines."""
    if not own:
        return
    inner = own[-1]
    size = extent(s, inner)
    if size is None or size > most * lanes:
        _, inner = s.split(inner, factor=short_vectors(whole_extent(s, inner), lanes))
    s.vectorize(inner)
    if stream:
        stream_outputs(s, block, inner, target)


PLAN = Plan("rows", fits, candidates, apply, cases)
