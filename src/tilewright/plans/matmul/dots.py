"""Matrix products by dot instructions: the tile of `contraction.py` with an instruction for its innermost loops.

    for outer..., panel group, row tile:
        tile[rows, panels, lanes] = 0                              registers
        for k in groups of the depth:
            tile[r, p, :] += dot(a[r, k, :], w[p, k, :, :])        rows and panels unrolled
        out[...] = epilogue(tile)

Weights are packed by `pack_dot`: panels as wide as the instruction, groups of the depth side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from tilewright.ir.expr import Expr, Load, Op, Var, as_int
from tilewright.ir.loops import BlockIter
from tilewright.plans.framework.analysis import Stage, Structure, factors, uses
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline, surrounding
from tilewright.plans.framework.symbolic import SYMBOLIC_ROWS, values_of
from tilewright.plans.matmul.tiles import MAX_ROWS
from tilewright.schedule.dot_intrinsics import Dot, find_dot
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

MAX_WASTE = 0.03
"""The largest share of panels of zeros that is accepted for wider tiles."""


def operands(anchor: Stage) -> tuple[Load, Load] | None:
    """(rows, packed weights) of a product whose weights end in (lane, group member); None for other products."""
    loads = factors(anchor.block)
    if loads is None or not anchor.spatial or len(anchor.reduce) < 2:
        return None
    member, column = anchor.reduce[-1].var, anchor.spatial[-1]
    for weights, rows in (loads, loads[::-1]):
        if len(weights.indices) < 3 or weights.indices[-1] is not member:
            continue
        if column in uses(weights, anchor.spatial) and column not in uses(rows, anchor.spatial):
            return (rows, weights) if _is_lane(weights.indices[-2], column.var) else None
    return None


def _is_lane(index: Expr, column: Var) -> bool:
    match index:
        case Op("mod", (inner, _)):
            return inner is column
    return index is column


def instruction(anchor: Stage, target: Target) -> Dot | None:
    """The dot instruction for which a product's weights are packed; None if there is none."""
    result = operands(anchor)
    if result is None:
        return None
    rows, weights = result
    dot = find_dot(rows.buffer.dtype, weights.buffer.dtype, target)
    shape = tuple(as_int(d) for d in weights.buffer.shape[-2:])
    return dot if dot is not None and shape == (dot.lanes, dot.group) else None


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is one product that a dot instruction of the target computes, with nothing before it and
    pointwise work after."""
    if len(structure.anchors) != 1:
        return False
    (anchor,) = structure.anchors
    epilogue = structure.after(anchor)
    return (
        len(anchor.reduce) == 2
        and not structure.before(anchor)
        and instruction(anchor, target) is not None
        and not any(st.block.is_reduction for st in structure.stages if st is not anchor)
        and (not epilogue or len(epilogue[-1].spatial) == len(anchor.spatial))
    )


def row_iter(anchor: Stage) -> BlockIter | None:
    """The innermost iterator whose values share the weights, preferably one with more than one iteration."""
    result = operands(anchor)
    assert result is not None
    shared = [it for it in anchor.spatial[:-1] if it not in uses(result[1], anchor.spatial)]
    wide = [it for it in shared if as_int(it.extent) != 1]
    return (wide or shared)[-1] if shared else None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,) = structure.anchors
    dot, row = instruction(anchor, target), row_iter(anchor)
    assert dot is not None
    counts = (1,) if row is None else values_of(row.extent, SYMBOLIC_ROWS)
    columns = as_int(anchor.spatial[-1].extent)
    panels = OPEN_PANELS if columns is None else -(-columns // dot.lanes)
    steps = as_int(anchor.reduce[0].extent) or 64
    times = prod(number(it.extent) for it in anchor.spatial[:-1])
    rest, result = surrounding(structure, anchor, target), []
    for tall, wide in _tiles(max(counts), panels, target):
        cost = sum(_cycles(tall, wide, m, panels, steps, dot, target) / m for m in counts) / len(counts)
        own = Cost(compute=times * cost, memory=roofline(structure, target).memory)
        result.append(Candidate((("rows", tall), ("panels", wide)), own + rest))
    return sorted(result, key=lambda c: c.cycles)


@lru_cache(maxsize=4096)
def product_cycles(rows: int, depth: int, columns: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of a `rows` x `depth` x `columns` product with the best register tile for the instruction."""
    panels, steps = -(-columns // dot.lanes), -(-depth // dot.group)
    return min(_cycles(m, p, rows, panels, steps, dot, target) for m, p in _tiles(rows, panels, target))


def _tiles(rows: int, panels: int, target: Target) -> Iterator[tuple[int, int]]:
    """The register tiles, as (rows, panels), whose sums and operands fit the registers."""
    for tall in range(1, min(MAX_ROWS, rows) + 1):
        for wide in range(1, min(8 if tall == 1 else 4, panels) + 1):
            # An instruction cannot do a part of a panel.
            if panels % wide == 0 and tall * wide + (1 if tall == 1 else wide) + 2 <= target.registers:
                yield tall, wide


OPEN_PANELS = 2
"""The multiple to which the number of panels is rounded up if the number of columns is known only at a call."""


def panel_multiple(columns: int, lanes: int) -> int:
    """The multiple to which the number of panels of `lanes` columns is padded for `columns` columns, so that a tile of
    several panels divides it: the largest of 12, 6, 4, 2, 1 that adds few panels."""
    panels = -(-columns // lanes)
    return next(m for m in (12, 6, 4, 2, 1) if m == 1 or -panels % m <= panels * MAX_WASTE)


def _cycles(tall: int, wide: int, rows: int, panels: int, steps: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of a product with `rows` rows and `panels` panels over `steps` groups of the depth, in register
    tiles of `tall` rows x `wide` panels."""

    def tile(m: int, p: int) -> float:
        return tile_cycles(m, p, steps, dot, target)

    whole, rest = divmod(rows, tall)
    groups, last = divmod(panels, wide)
    return sum(
        count * (whole * tile(tall, p) + (tile(rest, p) if rest else 0.0))
        for count, p in ((groups, wide), (1, last))
        if p and count
    )


def tile_cycles(rows: int, panels: int, steps: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of a tile of `rows` x `panels` accumulators over `steps` groups of the depth."""
    costs = target.costs.arithmetic
    loads = (rows + 2 * panels) / costs.loads_per_cycle
    dots = rows * panels * dot.cost / target.fma_per_cycle
    step = max(dots, loads, costs.dot_latency) + costs.load_beside_products * loads
    return steps * step + 2.0 * rows * panels + costs.tile_overhead


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    epilogue = structure.after(anchor)
    others = tuple(st for st in structure.stages if st not in epilogue and st is not anchor)
    inline_all(s, structure, (*others, *epilogue))
    block = s.block(anchor.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    order, inner, shared = tile_loops(s, anchor, out, candidate, dot)
    s.compute_at(block, order[-1])
    s.set_scope(block, "local")
    own = list(s.loops(block))[len(order) :]
    spatial, (steps, member) = own[: len(anchor.spatial)], own[len(anchor.spatial) :]
    *rows, column = spatial
    parts = list(s.split(column, factor=dot.lanes)) if extent(s, column) != dot.lanes else [column]
    rows = [loop for loop in rows if extent(s, loop) != 1]
    s.reorder(steps, *rows, *parts, member)
    init = s.decompose_reduction(block, steps)
    for loop in (*rows, *parts[:-1]):
        s.unroll(loop)
    s.tensorize(parts[-1], dot.name)
    for stage, count in ((init, len(rows) + len(parts)), (out, inner)):
        mine = s.loops(stage)[-count:]
        for loop in mine[:-1]:
            s.unroll(loop)
        s.vectorize(mine[-1])
    parallelize(s, order[:shared])


def tile_loops(
    s: Schedule, anchor: Stage, out: BlockRef, candidate: Candidate, dot: Dot
) -> tuple[list[LoopRef], int, int]:
    """Split the loops of the output by the candidate's tile. Returns (the loops outside of a tile, the number of loops
    inside, how many of the outer ones threads may share)."""
    row = row_iter(anchor)
    *others, column = s.loops(out)
    panel, inside, lane = s.split(column, factors=(None, candidate.knob("panels"), dot.lanes))
    result = operands(anchor)
    assert result is not None
    own = uses(result[1], anchor.spatial)
    first: list[LoopRef] = []
    later: list[LoopRef] = []
    last: list[LoopRef] = []
    inner: list[LoopRef] = []
    for it, loop in zip(anchor.spatial[:-1], others, strict=True):
        if it is row:
            tile, point = s.split(loop, factor=candidate.knob("rows"))
            last.append(tile)
            inner.append(point)
        else:
            (first if extent(s, loop) is None or it in own else later).append(loop)
    order = [*first, panel, *later, *last]
    s.reorder(*order, *inner, inside, lane)
    return order, len(inner) + 2, max(1, len(order) - len(last))


PLAN = Plan("dots", fits, candidates, apply, refines=("rows",))
"""The plan is preferred to that of rows, whose estimate ignores that narrow factors have to be widened without the
instruction."""
