"""Products with sparse weights in blocks of whole vectors (`ops/sparse.py`): rows of a few panels in registers.

for panel group, row tile:                                  parallel
    tile[rows, panels, V] = 0                               registers
    for j in the panel's blocks:
        tile[r, p, :] += x[r, index[p, j]] * values[p, j, :]       or, of windows, x[r, index[p, j] + place[p, j, :]]
    out[...] = epilogue(tile)

Several panels are independent sums, which hide latency. Narrower blocks with many rows are multiplied transposed, which
is a product of rows picked by an index: sketches and contractions schedule those.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ir.notes import Unroll
from tilewright.ops.sparse import SPARSE_MATMUL, WINDOW_MATMUL
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline
from tilewright.plans.idioms.contraction import unroll_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

LATENCY = 4.0
"""The cycles from a multiply-add to the next one that can use its sum."""
REGISTERS = 32
"""The least number of registers for which sums of several columns fit."""
LINE = 1.0
"""The cycles to load a cache line from the second level. Tiles of 2, 4, 8 and 12 columns by two vectors of a sparse
product of 32 rows take 3.6, 3.0, 2.4 and 2.4 cycles an element, estimated 4.0, 3.5, 2.8, 2.5 (3072 x 768, 70 % zeros,
Zen 5, 30 November 2026)."""
STEPS = 2
"""The number of blocks of a panel that are unrolled."""


def _total(structure: Structure) -> Stage | None:
    reductions = [st for st in structure.stages if st.block.is_reduction]
    if len(reductions) != 1:
        return None
    (total,) = reductions
    blocks, by_window = total.attributes(SPARSE_MATMUL), _by_window(total)
    return total if by_window or (blocks is not None and not blocks.transposed) else None


def _by_window(total: Stage) -> bool:
    return total.attributes(WINDOW_MATMUL) is not None


def _width(total: Stage) -> int:
    """The number of columns in a panel."""
    blocks = {b.shape for b in total.reads if b.dtype.is_int and len(b.shape) == 2}
    values = (b for b in total.reads if len(b.shape) == 3 and b.dtype.is_float and b.shape[:2] in blocks)
    return next((as_int(b.shape[2]) or 0 for b in values), 0)


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a product with sparse weights, not transposed, with blocks of whole vectors and columns
    that fill panels, pointwise work after it and none before."""
    total = _total(structure)
    if total is None or structure.before(total):
        return False
    width, columns = _width(total), as_int(total.spatial[-1].extent) or 1
    after = structure.after(total)
    alike = not after or len(after[-1].spatial) == len(total.spatial)
    return alike and width > 0 and width % lanes_of(total, target) == 0 and columns % width == 0


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    total = _total(structure)
    assert total is not None
    lanes, width = lanes_of(total, target), _width(total)
    vectors, rows = width // lanes, number(total.spatial[-2].extent)
    columns, depth = as_int(total.spatial[-1].extent) or 1, number(total.reduce[0].extent)
    memory, choices = roofline(structure, target).memory, []
    for tall in (1, 2, 4, 6, 8):
        for panels in (1, 2, 4, 8):
            sums = tall * panels * vectors
            if sums + vectors + 2 > target.registers or tall > max(rows, 1) or columns // width % panels:
                continue
            reads = vectors * (1 + 2 * tall) if _by_window(total) else vectors + tall
            loads = panels * (reads + 1) / target.costs.arithmetic.loads_per_cycle
            step = max(sums / target.fma_per_cycle, loads, LATENCY)
            tiles = -(-rows // tall) * columns / (width * panels)
            cost = Cost(compute=tiles * depth * step, memory=memory)
            choices.append(Candidate((("rows", tall), ("panels", panels)), cost))
    return sorted(choices, key=lambda c: c.cycles)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    total = _total(structure)
    assert total is not None
    epilogue = structure.after(total)
    inline_all(s, structure, (*(st for st in structure.stages if st is not total and st not in epilogue), *epilogue))
    block, width = s.block(total.name), _width(total)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    *others, column = s.loops(out)[-len(total.spatial) :]
    group, panel, lane = s.split(column, factors=(None, candidate.knob("panels"), width))
    tile, row = s.split(others[-1], factors=(None, candidate.knob("rows")))
    outer = [*others[:-1], tile]
    s.reorder(group, *outer, row, panel, lane)
    s.compute_at(block, tile)
    s.set_scope(block, "local")
    *_, own, wide, j = s.loops(block)
    beside, inside = s.split(wide, factors=(candidate.knob("panels"), width))
    s.reorder(j, beside, own, inside)
    s.annotate(j, Unroll(STEPS))
    first = s.decompose_reduction(block, j)
    unroll_tiles(s, (first, block, out), len(outer) + 1)
    parallelize(s, [group, *outer])


PLAN = Plan("sparse", fits, candidates, apply)
"""The plan of products with sparse weights in blocks of whole vectors."""


def _columns(structure: Structure) -> Stage | None:
    """The stage of the sums of a product with a sparse transposed weight of single elements; else None."""
    reductions = [st for st in structure.stages if st.block.is_reduction]
    blocks = reductions[0].attributes(SPARSE_MATMUL) if len(reductions) == 1 else None
    return reductions[0] if blocks is not None and blocks.transposed else None


def takes_columns(structure: Structure, target: Target) -> bool:
    """Whether a function is one transposed product with single elements as blocks and rows in whole vectors, with
    pointwise work after it, and registers can hold the sums of several columns (the 16 of AVX2 are too few: 0.95 times
    as fast as contractions)."""
    total = _columns(structure)
    if total is None or structure.before(total) or _width(total) != 1 or target.registers < REGISTERS:
        return False
    rows, after = as_int(total.spatial[-1].extent), structure.after(total)
    alike = not after or len(after[-1].spatial) == len(total.spatial)
    return alike and bool(rows) and (rows or 0) % lanes_of(total, target) == 0


def columns_candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The settings: the number of columns in a tile, and of vectors of rows for each."""
    total = _columns(structure)
    assert total is not None
    lanes, columns = lanes_of(total, target), as_int(total.spatial[-2].extent) or 1
    vectors, depth = (as_int(total.spatial[-1].extent) or 1) // lanes, number(total.reduce[0].extent)
    memory, choices = roofline(structure, target).memory, list[Candidate]()
    times = prod(number(it.extent) for it in total.spatial[:-2])
    length = max(number(b.shape[-2]) for b in total.reads if b.dtype.is_float)
    for beside in (1, 2, 3, 4, 6, 8, 12):
        for wide in (1, 2, 4):
            sums = beside * wide
            if sums + 3 > target.registers or columns % beside or vectors % wide:
                continue
            loads = beside * (wide + 2) / target.costs.arithmetic.loads_per_cycle
            # Columns beside each other read nearly the same rows, of which each step is one element further.
            lines = min(beside, length / depth) * wide * LINE * (lanes / 16)
            step = max(sums / target.fma_per_cycle, loads, LATENCY) + lines
            cost = Cost(compute=times * vectors / wide * columns / beside * depth * step, memory=memory)
            choices.append(Candidate((("columns", beside), ("rows", wide * lanes)), cost))
    return sorted(choices, key=lambda c: c.cycles)


def apply_columns(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    """Schedule tiles of some columns x vectors of rows; the rows of a tile stay in the second-level cache for all
    columns."""
    total = _columns(structure)
    assert total is not None
    epilogue, lanes = structure.after(total), lanes_of(total, target)
    inline_all(s, structure, (*(st for st in structure.stages if st is not total and st not in epilogue), *epilogue))
    block = s.block(total.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    *others, column, row = s.loops(out)[-len(total.spatial) :]
    wide = candidate.knob("rows") // lanes
    group, beside = s.split(column, factors=(None, candidate.knob("columns")))
    tile, vector, lane = s.split(row, factors=(None, wide, lanes))
    s.reorder(*others, tile, group, beside, vector, lane)
    s.compute_at(block, group)
    s.set_scope(block, "local")
    *_, own, rows, j = s.loops(block)
    vectors, inside = s.split(rows, factors=(wide, lanes))
    s.reorder(j, own, vectors, inside)
    first = s.decompose_reduction(block, j)
    unroll_tiles(s, (first, block, out), len(others) + 2)
    parallelize(s, [*others, tile, group])


COLUMNS = Plan("sparse columns", takes_columns, columns_candidates, apply_columns)
"""The plan of transposed products with sparse weights of single elements."""
