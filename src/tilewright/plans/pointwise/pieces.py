"""Pieces of f32 (`ops/lowered/split.py`): all pieces of a vector together, each from the remainder of the one before.

for row:                                           parallel
    for vector of the row:
        pieces[0], pieces[1], ... = straight-line code of one load

Pieces of a weight that is packed for dot instructions are made on its way to the panels: w is read once.

for rows, panel:                                   parallel
    for vector of the panel:
        panels[0], panels[1], ... = straight-line code of a few neighbours of w's rows
"""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.split import PIECES
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, roofline
from tilewright.plans.idioms.transposes import panel_groups
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function splits numbers into pieces, with pointwise work on the numbers before."""
    result = structure.operator(PIECES)
    if result is None:
        return False
    *before, last = structure.stages
    return last is result.stage("pieces") and all(s.role == "spatial" for s in before)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The only candidate. Its estimate divides the roofline's arithmetic by the number of pieces, since the roofline
    counts the chain of operations for each piece and the last piece's contains all others."""
    whole, last = roofline(structure, target), structure.stages[-1]
    place = _place(structure)
    count = as_int(last.spatial[place].extent) or 1
    return [Candidate((), Cost(whole.compute / count, whole.load / count, whole.store, whole.memory, whole.overhead))]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages[:-1])
    last = structure.stages[-1]
    block = s.block(last.name)
    loops = list(s.loops(block))
    piece = loops.pop(_place(structure))
    if panel_groups(s, block, target, piece):
        return
    *outer, inner = loops
    lanes = lanes_of(last, target)
    size = extent(s, inner)
    if size is None or size > lanes:
        chunk, inner = s.split(inner, factor=lanes)
        outer.append(chunk)
    s.reorder(*outer, piece, inner)
    s.unroll(piece)
    s.vectorize(inner)
    if outer:
        parallelize(s, outer)


def _place(structure: Structure) -> int:
    """The position of the loop over pieces among the loops of the last stage."""
    result, last = structure.operator(PIECES), structure.stages[-1]
    assert result is not None
    return 0 if result.attrs.first else len(last.spatial) - 2


PLAN = Plan("pieces", fits, candidates, apply, refines=("elementwise",))
