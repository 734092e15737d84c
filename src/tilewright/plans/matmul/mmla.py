"""Matrix products by instructions that multiply two rows by two columns (`ops/lowered/mmla.py`).

pairs = rows, two and two                                          once, before
for outer..., panel group, tile of pairs:
    tile[pairs, panels, 2, 2] = 0                                  registers
    for k in groups of the depth:
        tile[r, p] += multiply(pairs[r, k], w[p, k])               pairs and panels unrolled
    rows[2 * pairs, 2 * panels] = tile                             registers, in the order of rows
    out[...] = epilogue(rows)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.mmla import MATMUL_MMLA, SIDE
from tilewright.plans.framework.analysis import Stage, Structure, factors
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, own_loops, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline, surrounding
from tilewright.plans.framework.symbolic import SYMBOLIC_ROWS, values_of
from tilewright.plans.idioms.panels import schedule_prologue, unroll_tile
from tilewright.schedule.dot_intrinsics import Dot, find_mmla
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

MAX_WASTE = 0.1
"""The largest share of panels of zeros that is accepted for wider tiles."""

MAX_SIDE = 6
"""The largest number of pairs, or of panels, in a tile."""


def instruction(anchor: Stage, target: Target) -> Dot | None:
    """The instruction for which a product's weights are packed; None if there is none."""
    loads = factors(anchor.block)
    if loads is None:
        return None
    rows, weights = loads
    dot = find_mmla(rows.buffer.dtype, weights.buffer.dtype, target)
    return dot if dot is not None and as_int(weights.buffer.shape[-1]) == dot.group else None


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a product in pairs, with pointwise work before and after it."""
    if structure.operator(MATMUL_MMLA) is None or len(structure.anchors) != 1:
        return False
    (anchor,) = structure.anchors
    epilogue = structure.after(anchor)
    return (
        instruction(anchor, target) is not None
        and not any(st.block.is_reduction for st in structure.stages if st is not anchor)
        and len(epilogue[-1].spatial) == len(epilogue[0].spatial)
    )


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    *lead, pairs, columns, _, _ = (it.extent for it in anchor.spatial)
    counts, panels = values_of(pairs, SYMBOLIC_ROWS), as_int(columns) or MAX_SIDE
    steps, times = as_int(anchor.reduce[0].extent) or 1, prod(map(number, lead))
    rest, memory, result = surrounding(structure, anchor, target), roofline(structure, target).memory, []
    for tall, wide in product_tiles(max(counts), panels, target):
        cycles = sum(_cycles(tall, wide, m, panels, steps, dot, target) * number(pairs) / m for m in counts)
        own = Cost(compute=times * cycles / len(counts), memory=memory)
        result.append(Candidate((("pairs", tall), ("panels", wide)), own + rest))
    return sorted(result, key=lambda c: c.cycles)


def product_tiles(pairs: int, panels: int, target: Target) -> Iterator[tuple[int, int]]:
    """The register tiles that fit, as (pairs of rows, panels). Panels of a tile divide `panels`, and are even if
    `panels` is."""
    for tall in range(1, min(MAX_SIDE, pairs) + 1):
        for wide in range(1, min(MAX_SIDE, panels) + 1):
            fits_panels = panels % wide == 0 and (wide % 2 == 0 or panels % 2)
            if fits_panels and tall * wide + min(tall, wide) + 2 <= target.registers:
                yield tall, wide


def panel_multiple(columns: int) -> int:
    """The multiple to which the number of panels is padded so that tiles divide it: six if that adds few panels, else
    four, or two for narrower products."""
    panels = -(-columns // SIDE)
    return next(m for m in (MAX_SIDE, 4, 2, 1) if m <= 2 or (m <= panels and -panels % m <= panels * MAX_WASTE))


def _cycles(tall: int, wide: int, pairs: int, panels: int, steps: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of a product of `pairs` pairs of rows and `panels` panels over `steps` groups of the depth, in
    tiles of `tall` pairs x `wide` panels."""
    whole, rest = divmod(pairs, tall)
    each = whole * tile_cycles(tall, wide, steps, dot, target)
    return panels / wide * (each + (tile_cycles(rest, wide, steps, dot, target) if rest else 0.0))


def tile_cycles(tall: int, wide: int, steps: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of a tile of `tall` pairs of rows by `wide` panels over `steps` groups of the depth: its
    products, its loads, and reordering its sums to rows."""
    costs = target.costs.arithmetic
    loads = (tall + 2 * wide) / costs.loads_per_cycle
    step = max(tall * wide * dot.cost / target.fma_per_cycle, loads, costs.dot_latency)
    return steps * (step + costs.load_beside_products * loads) + 4.0 * tall * wide + costs.tile_overhead


@lru_cache(maxsize=4096)
def product_cycles(rows: int, depth: int, columns: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of a `rows` x `depth` x `columns` product by the best tile, and of the copy of its rows to
    pairs, a load and a store per group."""
    pairs, panels, steps = -(-rows // SIDE), -(-columns // SIDE), -(-depth // dot.group)
    panels += -panels % panel_multiple(columns)
    shapes = product_tiles(pairs, panels, target)
    own = min(_cycles(m, p, pairs, panels, steps, dot, target) for m, p in shapes)
    return own + pairs * SIDE * steps * 2.0


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    prologue, (ordered, *epilogue) = structure.before(anchor), structure.after(anchor)
    used = {st.name for st in (*prologue, anchor, ordered)}
    inline_all(s, structure, tuple(st for st in structure.stages if st.name not in used))
    block, rows = s.block(anchor.name), s.block(ordered.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(rows, "local")
    *others, row, column = s.loops(out)
    tall, wide = SIDE * candidate.knob("pairs"), SIDE * candidate.knob("panels")
    tile, point = s.split(row, factor=tall)
    panel, inside = s.split(column, factor=wide)
    order = [*others, panel, tile]
    s.reorder(*order, point, inside)
    square_tile(s, anchor, block, rows, tile, dot)
    _in_vectors(s, out, 2, target.lanes(4))
    schedule_prologue(s, structure, prologue, target)
    parallelize(s, order)


def square_tile(s: Schedule, anchor: Stage, block: BlockRef, rows: BlockRef, tile: LoopRef, dot: Dot) -> None:
    """Compute `block`, a product in pairs of rows and columns, at the loop `tile` with its sums in registers, one
    instruction per two rows and columns; `rows` is the copy of the sums in the order of rows, in registers, too."""
    for stage in (rows, block):
        s.compute_at(stage, tile)
        s.set_scope(stage, "local")
    own = own_loops(s, block)
    *places, i, j = [loop for it, loop in own if it.kind == "spatial"]
    *steps, member = [loop for it, loop in own if it.kind == "reduce"]
    places = [loop for loop in places if extent(s, loop) != 1]
    s.reorder(*steps, *places, i, j, member)
    init = s.decompose_reduction(block, steps[0])
    for loop in places:
        s.unroll(loop)
    s.tensorize(i, dot.name)
    unroll_tile(s, init, len(anchor.spatial))
    _in_vectors(s, rows, len(own_loops(s, rows)), SIDE)


def _in_vectors(s: Schedule, stage: BlockRef, count: int, lanes: int) -> None:
    """Vectorise the innermost loop of a stage by `lanes` and unroll the other ones of the innermost `count`."""
    *before, columns = list(s.loops(stage))[-count:]
    if (extent(s, columns) or 0) > lanes:
        several, columns = s.split(columns, factor=lanes)
        before.append(several)
    for loop in before:
        s.unroll(loop)
    s.vectorize(columns)


PLAN = Plan("mmla", fits, candidates, apply)
