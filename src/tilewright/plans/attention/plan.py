"""Attention: both products and the softmax between them, a few rows of scores at a time.

    for batch and head:                                      parallel
        kt = panels of k;  vp = panels of v
        for block of row tiles:
            scores = q kt * scale + mask                     tiles of rows x width in registers
            scores = exp(scores - top)                       row by row; for many keys block by block
            y = scores vp / total

If sizes are known, in whole vectors, and whole rows of scores are held, this is a schedule of the stages
(`schedule.py`). Otherwise it is a routine (`loops.py`): no sequence of primitives produces an online softmax over
blocks of keys. The routine also supports few rows that read keys and values in place, padded panels, and paired
factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace

from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans.attention.loops import attention_loops
from tilewright.plans.attention.operands import Operands, operands
from tilewright.plans.attention.rows import Tile
from tilewright.plans.attention.schedule import is_scheduled, packed_anew, schedule
from tilewright.plans.attention.tiles import Sizes, ranked
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import number
from tilewright.plans.framework.work import Added
from tilewright.schedule.dot_intrinsics import named_dot
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    return operands(structure) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    result = operands(structure)
    assert result is not None
    return [Candidate(tuple(asdict(tile).items()), cost) for cost, tile in ranked(sizes(result), target)]


def sizes(result: Operands) -> Sizes:
    """The sizes that tiles of attention depend on."""
    q, k, v = (
        tuple(b.shape[a] for a in ORDERS[o])
        for b, o in zip((result.q, result.k, result.v), result.attrs.order, strict=False)
    )
    keys = k[1] if result.past_k is None else k[1] + result.past_k.shape[2]
    dot = None if result.attrs.dot is None else named_dot(result.attrs.dot)
    return Sizes(
        rows=q[1],
        keys=keys,
        depth=as_int(q[3]) or 64,
        out_depth=as_int(v[3]) or 64,
        heads=number(q[0]) * result.attrs.heads,
        itemsize=accumulator(result.q.dtype).itemsize,
        lanes=1 if dot is None else dot.lanes,
        dot=dot if dot is not None and dot.rows > 1 else None,
        terms=result.attrs.terms,
    )


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    result, tile = operands(structure), Tile(**dict(candidate.knobs))
    assert result is not None
    if is_scheduled(result, structure, tile, target):
        schedule(s, structure, result, tile, target)
    else:
        s.implement(ROUTINE.name, **dict(candidate.knobs))


def added(structure: Structure, candidate: Candidate, target: Target) -> tuple[Added, ...]:
    """The work that the schedule adds on purpose: each head that shares keys and values packs them again."""
    result = operands(structure)
    assert result is not None
    return packed_anew(structure, result)


def build(func: PrimFunc, knobs: Mapping[str, int]) -> PrimFunc:
    """`func`, which computes attention, with the routine's loops, tiled by `knobs`, as its body. Raises ScheduleError
    if they do not fit it."""
    result = operands(analyse(func))
    if result is None:
        raise refuse(func, "the routine 'attention' computes attention as its operator states it, and nothing beside")
    tile = Tile(**knobs)
    if not tile.tiles and as_int(result.q.shape[ORDERS[result.attrs.order[0]][1]]) is None:
        raise refuse(func, "rows of 'attention' that read keys where they are", expected="a number of them")
    if tile.keys % tile.width:
        raise refuse(func, "the keys of 'attention' are whole panels", expected=f"a multiple of {tile.width}")
    if tile.width % tile.side or (as_int(result.q.shape[ORDERS[result.attrs.order[0]][3]]) or 1) % tile.side:
        raise refuse(func, "squares of keys of 'attention'", expected=f"{tile.side} divides the width and the depth")
    dot = None if result.attrs.dot is None else named_dot(result.attrs.dot)
    if dot is not None and tile.width % dot.lanes:
        raise refuse(func, "the width of 'attention'", expected=f"a multiple of {dot.lanes} lanes", got=tile.width)
    if dot is not None and dot.rows > 1:
        count = as_int(result.q.shape[ORDERS[result.attrs.order[0]][1]])
        if tile.rows % dot.rows or not tile.tiles or tile.width % dot.depth or (count or tile.rows) < tile.rows:
            raise refuse(
                func,
                "tiles of 'attention' fill registers of matrices",
                expected=f"multiples of {dot.rows} rows, of those there are, and of {dot.depth} keys",
                got=f"{tile.rows} x {tile.width}",
            )
    return replace(func, body=attention_loops(func.name, result, func.params, tile).body, buffers=())


ROUTINE = register(Routine("attention", tuple(f.name for f in fields(Tile)), build, none=("tiles",)))
PLAN = Plan("attention", fits, candidates, apply, added=added, refines=("rows",))
"""Attention is preferred to the plan of rows, whose estimate leaves out that scores of all rows go to memory and
back."""
