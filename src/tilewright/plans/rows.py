"""Chains of reductions and pointwise stages over common rows: softmax, normalisations, pooling, sums.

    for row...:                                  parallel; short rows a few together
        m[row] = max over x[row, :]              vectors over the reduced dimension, if it is contiguous
        e[row, :] = exp(x[row, :] - m)           a row-local buffer that stays in L1
        s[row] = sum over e[row, :]
        out[row, :] = e / s

Where the innermost dimension is kept and an outer one reduced, a row is a strip of columns:

    for n, strip:                                parallel
        for k: for j in strip: m[j] = max(m[j], x[n, k, j])
        ...

Stages are computed at the rows they share with the outputs; a function whose stages share no rows runs them one after
another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.arith import prove_equal
from tilewright.ir.expr import Buffer, as_int, is_const, product
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import exprs_of, loads, walk
from tilewright.ir.target import Target
from tilewright.plans.analysis import Stage, Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import (
    ENOUGH,
    extent,
    inline_all,
    lanes_of,
    parallelize,
    prefetch,
    stream_outputs,
    vectorize_spatial,
)
from tilewright.plans.cost import instructions, roofline
from tilewright.plans.reducing import (
    is_window,
    joined,
    lane_stride,
    partial_vectors,
    reduce_columns,
    reduce_lanes,
    reduce_window,
)
from tilewright.schedule.schedule import BlockRef, LoopRef, Schedule
from tilewright.support.errors import ScheduleError

CHEAP_OPS = 4

STRIP = 1024
"""Columns whose results are kept in the first-level cache: long runs of memory are read in order."""

STEPS = 4
"""Rows added to such a strip at once."""

SPREAD = 1 << 16
"""Elements from which on the reduction of everything is split into parts that threads share."""

PARTS = 32

TOGETHER = (8, 4, 2)
"""Numbers of short rows that are worked on together."""

PIPELINED = (256, 128, 64, 32, 16, 8)
"""Numbers of rows through which stages go one behind the other."""

MANY_REGISTERS = 32
"""Vector registers that a step of three stages needs: sixteen hold one stage's."""

STEP_VECTORS = 4
"""Vectors of a row that each stage works on before the next one's turn."""

LONG_ROW = 64
"""Vectors from which on a row is long: folding its lanes takes little of its time."""


def fits(structure: Structure, target: Target) -> bool:
    return True


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    rows = shared_rows(structure)
    strip = strip_width(structure, rows, target)
    cost = roofline(structure, target)
    pipelined = rows_pipelined(structure, rows, strip, target) if cost.compute > cost.memory / 2 else 0
    together = pipelined or rows_together(structure, rows, strip, target)
    knobs = (("rows", rows.leading), ("strip", strip), ("together", together), ("pipeline", int(pipelined > 0)))
    return [Candidate.of(knobs, cost)]


# what the stages share


@dataclass(frozen=True, slots=True)
class Rows:
    """The first `leading` dimensions, and the innermost one if `strip`, are the same in all stages."""

    leading: int
    strip: bool


def shared_rows(structure: Structure) -> Rows:
    """The dimensions that all materialised stages have in common with the output and pass on unchanged."""
    outputs = [s for s in structure.stages if structure.is_output(s)]
    kept = [s for s in structure.stages if materialised(structure, s)]
    out = outputs[-1]
    rank = len(out.spatial)
    if not rank or (len(kept) == 1 and out.role == "spatial"):
        return Rows(0, False)
    same = [all(d < len(st.spatial) and st.spatial[d].extent is out.spatial[d].extent for st in kept)
            for d in range(rank)]  # fmt: skip
    between = {s.name for stage in kept if stage is not out for s in (stage, *structure.after(stage))} - {out.name}
    if any(len(st.spatial) != rank for st in kept):
        same = [k and d < min(len(st.spatial) for st in kept) for d, k in enumerate(same)]
        same[-1] = False
    for stage in structure.stages:
        if stage.name in between:
            passed = _passed(structure, stage)
            same = [k and d < len(passed) and passed[d] for d, k in enumerate(same)]
    leading = same.index(False) if False in same else rank
    reductions = [st for st in kept if st.role != "spatial"]
    strip = same[-1] and as_int(out.spatial[-1].extent) != 1 and all(vector_last(st) for st in reductions)
    return Rows(min(leading, rank - 1) if strip else leading, strip)


def _passed(structure: Structure, stage: Stage) -> list[bool]:
    """For each dimension of a stage whether every reader reads it at its own iterator (or at extent one)."""
    result = [True] * len(stage.spatial)
    written = stage.writes
    for reader in structure.consumers(stage):
        for stmt in walk(reader.block.body):
            if not isinstance(stmt, Store):
                continue
            for load in loads(stmt.value):
                if load.buffer not in written:
                    continue
                for d, index in enumerate(load.indices):
                    it = reader.spatial[d] if d < len(reader.spatial) else None
                    own = it is not None and (index is it.var or (is_const(index, 0) and as_int(it.extent) == 1))
                    result[d] = result[d] and own
    return result


def materialised(structure: Structure, stage: Stage) -> bool:
    """Reductions always; spatial stages that are read by several or inside reductions and cost something; what is
    computed from a row's results, such as a mean, and read by all of its elements."""
    if structure.is_output(stage) or stage.role != "spatial":
        return True
    readers = structure.consumers(stage)
    if instructions(stage.block) and any(_spreads(stage, reader) for reader in readers):
        return any(p.role != "spatial" for p in structure.before(stage))
    if instructions(stage.block) <= CHEAP_OPS:
        return False
    return len(readers) > 1 or any(r.role != "spatial" and not _once(stage, r) for r in readers)


def _once(stage: Stage, reader: Stage) -> bool:
    """True if a reader has as many points as the stage: it reads each element once."""
    return prove_equal(product([it.extent for it in reader.block.iters]), product([it.extent for it in stage.spatial]))


def _spreads(stage: Stage, reader: Stage) -> bool:
    """True if many points of `reader` read one of `stage`."""
    pairs = zip(stage.spatial, reader.spatial, strict=False)
    return any(as_int(a.extent) == 1 != as_int(b.extent) for a, b in pairs) or len(stage.spatial) < len(reader.spatial)


def vector_last(stage: Stage) -> bool:
    """True when the last spatial iterator is contiguous in what the stage reads, or nearly so in a window."""
    if not stage.spatial or as_int(stage.spatial[-1].extent) == 1:
        return False
    stride = lane_stride(stage, stage.spatial[-1].var)
    return stride is not None and 1 <= stride <= (2 if is_window(stage) else 1)


def strip_width(structure: Structure, rows: Rows, target: Target) -> int:
    """Columns of a strip; 0 without strips. Several arrays of a strip must stay in the second-level cache; of a single
    reduction only the results need a place."""
    if not rows.strip:
        return 0
    kept = [s for s in structure.stages if materialised(structure, s)]
    out = [s for s in structure.stages if structure.is_output(s)][-1]
    lanes = lanes_of(out, target)
    width = as_int(out.spatial[-1].extent)
    if any(is_window(st) for st in kept if st.reduce):
        # A whole line, or so little of one that some strips touch neither end, where padding is.
        return 4 * lanes if width is None or width > 8 * lanes else width
    full = [st for st in kept if st.role == "spatial" and len(st.spatial) > rows.leading + 1]
    height = 1
    for st in full:
        tall = 1
        for it in st.spatial[rows.leading : -1]:
            tall *= as_int(it.extent) or 1024
        height = max(height, tall)
    if height == 1:
        widest = 8 * lanes
        if width is not None:
            return width if width <= widest else min(STRIP, width)
        return widest
    vectors = max(2, min(8, target.l2 // 2 // (height * lanes * 4 * 2)))
    return min(width or vectors * lanes, vectors * lanes)


def rows_together(structure: Structure, rows: Rows, strip: int, target: Target) -> int:
    """Short rows that go through all stages together: folding the lanes of one takes as long as a chain of shuffles,
    that of several hardly longer."""
    kept = [s for s in structure.stages if materialised(structure, s)]
    outputs = [s for s in structure.stages if structure.is_output(s)]
    folded = [s for s in kept if s.role != "spatial" and not vector_last(s)]
    if strip or not rows.leading or len(outputs) > 1 or not folded or len(kept) < 2:
        return 1
    leading = [as_int(it.extent) for it in outputs[0].spatial[: rows.leading]]
    long = LONG_ROW * target.lanes(4)
    own = [[as_int(it.extent) for it in s.block.iters[rows.leading :]] for s in kept]
    longest = max(prod(long if n is None else n for n in extents) for extents in own)
    if longest >= long or not leading[-1]:
        return 1
    parts = prod(n or ENOUGH for n in leading)
    most = min(parts // ENOUGH, target.l1 // 4 // (max(longest, 1) * 4))
    return next((n for n in TOGETHER if n <= most and leading[-1] % n == 0), 1)


def rows_pipelined(structure: Structure, rows: Rows, strip: int, target: Target) -> int:
    """Number of rows through which stages go one behind the other (`transform/loops/pipeline.py`); 0 where rows are too
    short, too long to stay in the first level of cache, or no whole number of steps. What waits for memory all the time
    gains nothing: three rows at once are three streams."""
    kept = [s for s in structure.stages if materialised(structure, s)]
    outputs = [s for s in structure.stages if structure.is_output(s)]
    folded = [s for s in kept if s.role != "spatial" and not vector_last(s)]
    if strip or not rows.leading or len(outputs) > 1 or len(folded) < 2 or target.registers < MANY_REGISTERS:
        return 0
    leading = [as_int(it.extent) for it in outputs[0].spatial[: rows.leading]]
    own = {prod(as_int(it.extent) or 0 for it in s.block.iters[rows.leading :]) for s in kept} - {1}
    if len(own) != 1 or None in leading:
        return 0
    (length,) = own
    step = STEP_VECTORS * target.lanes(4)
    if length < 2 * step or length % step or length * 4 > target.l1 // 2:
        return 0
    most = prod(n or 1 for n in leading) // ENOUGH
    return next((n for n in PIPELINED if n <= most and (leading[-1] or 1) % n == 0), 0)


# the schedule


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inlined = tuple(st for st in structure.stages if not materialised(structure, st))
    inline_all(s, structure, inlined)
    kept = [st for st in structure.stages if st not in inlined]
    rows, strip, together, pipeline = (candidate.knob(name) for name in ("rows", "strip", "together", "pipeline"))
    outputs = [st for st in kept if structure.is_output(st)]
    if all(as_int(it.extent) == 1 for st in kept for it in st.spatial):
        one_after_another(s, kept, target)
        return
    if (rows or strip) and len(outputs) == 1:
        around = gather(s, kept, outputs[0], rows, strip, together, bool(pipeline), target)
    elif rows and not strip and connected(structure, kept):
        around = spread(s, kept, rows)
    else:
        one_after_another(s, kept, target)
        return
    names = {loop.name for loop in around}
    for stage in kept:
        own = [loop for loop in s.loops(s.block(stage.name)) if loop.name not in names]
        schedule_inner(s, stage, own, len(own) - len(stage.reduce), target, bool(strip), bool(pipeline))
    if not strip:
        ask_ahead(s, names, rows, 1 if pipeline else together, target, PIPELINED_AHEAD if pipeline else 0)
    if pipeline:
        s.annotate(around[-1], "pipeline", 1)
    parallelize(s, around[:-1] if pipeline else around)


def ask_ahead(s: Schedule, around: set[str], rows: int, together: int, target: Target, least: int) -> None:
    """Let later passes over rows ask for the next ones, at least so many bytes ahead, which the first pass would have
    to wait for."""
    params = {b for b in s.func.params if (as_int(b.size) or 0) * b.dtype.itemsize > target.l2}
    passes: dict[Buffer, list[str]] = {}
    for block in s.blocks():
        inner = [loop for loop in s.loops(block) if loop.name not in around and (extent(s, loop) or 2) > 1]
        if len(inner) < 2:
            continue
        for e in (e for stmt in walk(s.get(block)) for e in exprs_of(stmt)):
            for load in loads(e):
                if load.buffer in params and inner[-2].name not in passes.setdefault(load.buffer, []):
                    passes[load.buffer].append(inner[-2].name)
    used: set[str] = set()
    for buffer, names in passes.items():
        length = as_int(product(buffer.shape[rows:]))
        free = [name for name in names[1:] if name not in used]
        size = (length or 0) * buffer.dtype.itemsize * together
        if not free or not SHORT <= size <= target.l1 // 2:
            continue
        used.add(free[-1])
        prefetch(s, s.loop(free[-1]), buffer, max(ROWS_AHEAD * size, least), level=2)


ROWS_AHEAD = 2
"""How many rows after the one that is worked on a row is asked for, into the second level: a pass in wide vectors is
shorter than memory takes, and the first level waits for fewer lines at once than the second."""

PIPELINED_AHEAD = 8192
"""Bytes ahead that are asked for at least where stages go one behind the other: the first one is a row or two ahead
itself, and short rows take less time than memory."""

SHORT = 512
"""Bytes of rows below which asking for the next ones is not worth an instruction."""


def gather(
    s: Schedule, kept: list[Stage], out: Stage, rows: int, strip: int, together: int, pipeline: bool, target: Target
) -> list[LoopRef]:
    """Compute every stage where the output needs it. Returns the loops around."""
    block = s.block(out.name)
    copied = out.reduce and (strip or len(kept) > 1)
    if copied:
        block = s.cache_write(block, "local")
    loops = list(s.loops(block))
    around = loops[:rows]
    last = loops[len(out.spatial) - 1]
    if strip:
        width = extent(s, last)
        if width is None or width > strip:
            chunk, last = s.split(last, factor=strip)
            s.reorder(*around, chunk, *loops[rows : len(out.spatial) - 1], last)
            around.append(chunk)
    if not around:
        return []
    if together > 1:
        around[-1], row = s.split(around[-1], factor=together)
        if pipeline:
            around.append(row)
    for stage in reversed(kept):
        if stage is not out or copied:
            s.compute_at(s.block(stage.name), around[-1])
    if copied:
        own = list(s.loops(block))[len(around) :]
        vector_tail(s, block, own, lanes_of(out, target), target, stream=False)
    return around


def spread(s: Schedule, kept: list[Stage], rows: int) -> list[LoopRef]:
    """Several outputs: every stage follows the first one, row by row. Returns the loops around."""
    around = list(s.loops(s.block(kept[0].name)))[:rows]
    for stage in kept[1:]:
        s.reverse_compute_at(s.block(stage.name), around[-1])
    return around


def connected(structure: Structure, kept: list[Stage]) -> bool:
    """True if every stage but the first reads what an earlier one makes."""
    names = [st.name for st in kept]
    return all(any(b.name in names[:k] for b in structure.before(st)) for k, st in enumerate(kept) if k)


def one_after_another(s: Schedule, kept: list[Stage], target: Target) -> None:
    for stage in kept:
        block, own = s.block(stage.name), list(s.loops(s.block(stage.name)))
        if not stage.reduce:
            vectorize_spatial(s, block, target, lanes_of(stage, target))
            continue
        if all(as_int(it.extent) == 1 for it in stage.spatial) and share_out(s, stage, own, target):
            continue
        own = list(s.loops(block))  # the reduction's may be other ones now
        spatial = own[: len(stage.spatial)]
        schedule_inner(s, stage, own, len(spatial), target, False)
        parallelize(s, spatial[:-1] if vector_last(stage) else spatial)


def share_out(s: Schedule, stage: Stage, own: list[LoopRef], target: Target) -> bool:
    """Reduce to one element in parts, as many whatever the number of threads, so that the sum is always the same one.
    False if there is too little to share."""
    reduce = joined(s, stage, own[len(stage.spatial) :])
    length = extent(s, reduce[0])
    if len(reduce) != 1 or length is None or length < SPREAD:
        return False
    lanes = lanes_of(stage, target)
    part, inner = s.split(reduce[0], nparts=PARTS)
    try:
        partial = s.rfactor(s.block(stage.name), part, factor_axis=0)
    except ScheduleError:
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
    for loop in (lane, s.loops(partial)[-1], s.loops(init)[-1]):
        s.vectorize(loop)
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
) -> None:
    """The loops of one stage below the shared rows, of which the first `outer` are not the reduction's. `pipeline`: in
    steps that are the same for all stages."""
    if not own:
        return
    lanes = lanes_of(stage, target)
    block = s.block(stage.name)
    if stage.role == "spatial":
        # What later stages read is made in as many vectors as their reductions take: two loops become one.
        most = 8 if any(b in s.func.params for b in stage.writes) and not pipeline else STEP_VECTORS
        vector_tail(s, block, own, lanes, target, stream=not strip, most=most)
        return
    spatial, reduce = own[:outer], own[outer:]
    if spatial and vector_last(stage) and (extent(s, spatial[-1]) or lanes) > 1:
        if is_window(stage):
            reduce_window(s, block, reduce, spatial[-1], lanes)
        else:
            reduce_columns(s, block, reduce, spatial[-1], lanes, STEPS)
        return
    reduce_lanes(s, stage, reduce, lanes, STEP_VECTORS if pipeline else None)


def vector_tail(
    s: Schedule, block: BlockRef, own: list[LoopRef], lanes: int, target: Target, *, stream: bool, most: int = 8
) -> None:
    """The innermost of a spatial block's own loops in vectors, a few at a time where there are more than `most`.
    `stream`: lines are written whole."""
    if not own:
        return
    inner = own[-1]
    size = extent(s, inner)
    if size is None or size > most * lanes:
        _, inner = s.split(inner, factor=4 * lanes)
    s.vectorize(inner)
    if stream:
        stream_outputs(s, block, inner, target)


PLAN = Plan("rows", fits, candidates, apply)
