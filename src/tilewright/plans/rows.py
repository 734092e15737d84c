"""Chains of reductions and pointwise stages over common rows: softmax, normalisations, pooling, sums.

    for row...:                                  parallel
        m[row] = max over x[row, :]              vectors over the reduced dimension, if it is contiguous
        e[row, :] = exp(x[row, :] - m)           a row-local buffer that stays in L1
        s[row] = sum over e[row, :]
        out[row, :] = e / s

Stages are computed at the rows they share with the output; a function whose stages share no rows runs them one after
another.
"""

from __future__ import annotations

import contextlib

from tilewright.arith import linear
from tilewright.ir.expr import Load, Op, as_int, is_const
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import loads, variables, walk
from tilewright.ir.target import Target
from tilewright.plans.analysis import Stage, Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize, vectorize_spatial
from tilewright.schedule.schedule import LoopRef, Schedule
from tilewright.support.errors import ScheduleError

CHEAP_OPS = 4


def fits(structure: Structure, target: Target) -> bool:
    return True


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate((("rows", shared_rows(structure)),), 0.0)]


def shared_rows(structure: Structure) -> int:
    """How many leading spatial dimensions all materialised stages have in common with the output, passed unchanged."""
    outputs = [s for s in structure.stages if structure.is_output(s)]
    kept = [s for s in structure.stages if materialised(structure, s)]
    if len(outputs) != 1 or len(kept) == 1:
        return 0
    out = outputs[0]
    count = len(out.spatial)
    inner = [s for s in kept if s is not out]
    for stage in inner:
        same = [a.extent is b.extent for a, b in zip(stage.spatial, out.spatial, strict=False)]
        count = min(count, same.index(False) if False in same else len(same))
    between = {s.name for stage in inner for s in (stage, *structure.after(stage))} - {out.name}
    for stage in structure.stages:
        if stage.name in between:
            count = min(count, _common(structure, stage))
    across = [s for s in kept if s.role != "spatial"]
    if count == len(out.spatial) and all(vector_last(s) for s in across):
        count -= 1
    return count


def materialised(structure: Structure, stage: Stage) -> bool:
    """Reductions always; spatial stages that are read by several or inside reductions and cost something."""
    if structure.is_output(stage) or stage.role != "spatial":
        return True
    readers = structure.consumers(stage)
    return cost(stage) > CHEAP_OPS and (len(readers) > 1 or any(r.role != "spatial" for r in readers))


def cost(stage: Stage) -> int:
    """Weighted operations of one element."""
    total = 0
    for stmt in walk(stage.block.body):
        if isinstance(stmt, Store):
            seen: set[object] = set()
            stack = [stmt.value]
            while stack:
                e = stack.pop()
                if e in seen or isinstance(e, Load):
                    continue
                seen.add(e)
                if isinstance(e, Op) and e.dtype.is_float:
                    total += 8 if e.name in ("exp", "log", "tanh", "erf", "pow", "sigmoid", "sin", "cos") else 1
                stack.extend(e.children)
    return total


def _common(structure: Structure, stage: Stage) -> int:
    """Leading dimensions d such that every reader reads this stage at its own d-th iterator (or at extent one)."""
    count = len(stage.spatial)
    written = stage.writes[0]
    for reader in structure.consumers(stage):
        for stmt in walk(reader.block.body):
            if not isinstance(stmt, Store):
                continue
            for load in loads(stmt.value):
                if load.buffer != written:
                    continue
                same = 0
                for index, it in zip(load.indices, reader.spatial, strict=False):
                    if index is not it.var and not (is_const(index, 0) and as_int(it.extent) == 1):
                        break
                    same += 1
                count = min(count, same)
    return count


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inlined = tuple(st for st in structure.stages if not materialised(structure, st))
    inline_all(s, structure, inlined)
    kept = [st for st in structure.stages if st not in inlined]
    rows = candidate.knob("rows")
    outputs = [st for st in kept if structure.is_output(st)]
    if rows and len(outputs) == 1:
        out = outputs[0]
        row_loops = list(s.loops(s.block(out.name)))[:rows]
        for stage in reversed(kept):
            if stage is not out:
                s.compute_at(s.block(stage.name), row_loops[-1])
        for stage in kept:
            own = [loop for loop in s.loops(s.block(stage.name)) if loop.name not in {r.name for r in row_loops}]
            schedule_inner(s, stage, own, target)
        parallelize(s, row_loops)
        return
    for stage in kept:
        own = list(s.loops(s.block(stage.name)))
        spatial, reduce = own[: len(stage.spatial)], own[len(stage.spatial) :]
        if reduce:
            schedule_inner(s, stage, own, target)
            parallelize(s, spatial[:-1] if vector_last(stage) else spatial)
        else:
            vectorize_spatial(s, s.block(stage.name), target, lanes_of(stage, target))


def vector_last(stage: Stage) -> bool:
    """True when the last spatial iterator is contiguous in what the stage reads and writes."""
    if not stage.spatial or as_int(stage.spatial[-1].extent) == 1:
        return False
    last = stage.spatial[-1].var
    for stmt in walk(stage.block.body):
        if isinstance(stmt, Store):
            for load in loads(stmt.value):
                at = [k for k, i in enumerate(load.indices) if last in variables(i)]
                if at and (at != [len(load.indices) - 1] or linear(load.indices[-1]).coefficient(last) != 1):
                    return False
    return True


def schedule_inner(s: Schedule, stage: Stage, own: list[LoopRef], target: Target) -> None:
    """The loops of one stage below the shared rows."""
    if not own:
        return
    lanes = lanes_of(stage, target)
    block = s.block(stage.name)
    if stage.role == "spatial":
        inner = own[-1]
        size = extent(s, inner)
        if size is None or size > 8 * lanes:
            _, inner = s.split(inner, factor=4 * lanes)
        s.vectorize(inner)
        return
    spatial = own[: len(own) - len(stage.reduce)]
    reduce = own[len(own) - len(stage.reduce) :]
    if spatial and vector_last(stage) and (extent(s, spatial[-1]) or lanes) > 1:
        inner = spatial[-1]
        size = extent(s, inner)
        if size is None or size > 4 * lanes:
            _, inner = s.split(inner, factor=lanes)
        s.reorder(*reduce, inner)
        init = s.decompose_reduction(block, reduce[0])
        s.vectorize(inner)
        s.vectorize(s.loops(init)[-1])
        return
    vector_reduce(s, reduce, lanes)


def vector_reduce(s: Schedule, reduce: list[LoopRef], lanes: int) -> None:
    """Reduce along a contiguous dimension: a few vectors at a time, then across their lanes.

    What cannot be combined across lanes (a reducer of several values) stays a plain loop.
    """
    inner = reduce[-1]
    size = extent(s, inner)
    if size is not None and size < 2 * lanes:
        return
    _, lane = s.split(inner, factor=4 * lanes if size is None or size >= 8 * lanes else lanes)
    with contextlib.suppress(ScheduleError):
        s.vectorize(lane)


PLAN = Plan("rows", fits, candidates, apply)
