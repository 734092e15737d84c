"""Products of matrices on a GPU: a block a tile of the result, whose factors its threads copy to shared memory, and
warps that multiply fragments of them (`mma.sync`), or four warps together (`wgmma`, where a GPU has it). Convolutions
are products whose factors are computed where they are copied (implicit products), and what follows pointwise is done on
the sums in registers. `product_loops.py` has the loops.

f32 are rounded to TF32, 10 bits of mantissa (`wgmma` cuts them off), and sums are of f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from tilewright.ir.expr import Buffer, Var, as_int
from tilewright.ir.loops import Block, For, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import loads, names_of, walk
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost, number
from tilewright.plans.gpu.common import THREADS, inline
from tilewright.plans.gpu.contractions import Contraction, contraction, extent_of
from tilewright.plans.gpu.elements import nest_of
from tilewright.plans.gpu.nests import cheap
from tilewright.plans.gpu.product_loops import Product
from tilewright.plans.gpu.product_tiles import WARP, depth_of, moving_of, steps_of
from tilewright.schedule.mma_intrinsics import DEPTH
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.gpu import Gpu
from tilewright.targets.target import Target

SYMBOL = 256
"""A symbolic extent counts as so many rows."""
STAGES = 4
"""Tiles of each factor that take turns, at most."""

TILES = ((128, 128, 2, 4), (128, 64, 4, 2), (64, 64, 2, 2), (32, 64, 1, 2), (16, 64, 1, 4), (64, 16, 4, 1))
"""Rows and columns of a tile, and of warps that share it."""
WIDE_TILES = ((128, 256, 8, 1), (128, 128, 8, 1), (64, 256, 4, 2), (64, 128, 4, 1), (64, 64, 4, 1))
"""Rows and columns of a tile, and of warps that share it and multiply by fours."""


def build(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The function whose first contraction is a product of tiles; other stages give each element a thread. Raises
    ScheduleError for one without a contraction."""
    nests = list(func.body.stmts if isinstance(func.body, Seq) else (func.body,))
    names = set(names_of(func))
    for k, nest in enumerate(nests):
        c = contraction_of(nest)
        if c is None:
            continue
        following = nests[k + 1] if k + 1 < len(nests) else None
        epilogue = None if following is None else epilogue_of(c, following, func)
        tiles = Product(c, epilogue, sizes, names).nest()
        rest = nests[k + 1 + (epilogue is not None) :]
        others = [nest_of(func, n, THREADS, names) for n in nests[:k]]
        more = [nest_of(func, n, THREADS, names) for n in rest]
        buffers = tuple(b for b in func.buffers if epilogue is None or b != c.result.buffer)
        return replace(func, body=seq([*others, tiles, *more]), buffers=buffers)
    raise refuse(func, "there is no contraction of matrices")


def contraction_of(nest: Stmt) -> Contraction | None:
    """The contraction that a nest of loops is."""
    while isinstance(nest, For):
        nest = nest.body
    return contraction(nest) if isinstance(nest, Block) else None


def epilogue_of(c: Contraction, nest: Stmt, func: PrimFunc) -> Block | None:
    """The pointwise block that a nest is, if it reads each sum once, at its own element, and nothing else does."""
    while isinstance(nest, For):
        nest = nest.body
    if not isinstance(nest, Block) or nest.is_reduction or not isinstance(nest.body, Store):
        return None
    if c.result.buffer in func.params or c.result.buffer in _read_by(func, {c.block.name, nest.name}):
        return None
    reads = {x for x in loads(nest.body.value) if x.buffer == c.result.buffer}
    others = {x.buffer for i in nest.body.indices for x in loads(i)}
    if len(reads) != 1 or c.result.buffer in others:
        return None
    (read,) = reads
    if any(not isinstance(i, Var) for i in read.indices) or len(set(read.indices)) != len(read.indices):
        return None
    own = {it.var for it in nest.iters if as_int(it.extent) != 1}
    return nest if own <= set(read.indices) else None


def _read_by(func: PrimFunc, but: set[str]) -> set[Buffer]:
    """The buffers that blocks other than these read."""
    results: set[Buffer] = set()
    for s in walk(func.body):
        if isinstance(s, Block) and s.name not in but:
            for inner in walk(s):
                if isinstance(inner, Store):
                    results |= {x.buffer for e in (inner.value, *inner.indices) for x in loads(e)}
    return results


def stages_of(c: Contraction, depth: int) -> int:
    """How many tiles of each factor take turns: several where copies can go on while one is multiplied, as many as
    there are steps at most."""
    steps = steps_of(c, depth)
    wide = any(moving_of(f, lines, c).under_way for f, lines in ((c.a, c.rows), (c.b, c.columns)))
    return min(STAGES, steps or STAGES) if wide else 1


ROUTINE = register(
    Routine("gpu product", ("rows", "columns", "row_warps", "column_warps", "stages", "together"), build, ("together",))
)


def _anchor(structure: Structure) -> Contraction | None:
    return next((c for s in structure.stages if (c := contraction(s.block)) is not None), None)


def _fits(structure: Structure, target: Target) -> bool:
    gpu, c = target.gpu, _anchor(structure)
    return c is not None and gpu is not None and any(unit.a is c.dtype for unit in gpu.matrix)


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    """Tiles by how many products the busiest multiprocessor adds, by what it reads, and by how many blocks it holds at
    once, of which one multiplies while another begins or ends."""
    c, gpu = _anchor(structure), target.gpu
    assert c is not None and gpu is not None
    wide = WIDE_TILES if any(unit.a is c.dtype for unit in gpu.wide) else ()
    tiles = [(tile, False) for tile in TILES] + [(tile, True) for tile in wide]
    results = (_candidate(c, target, gpu, tile, together) for tile, together in tiles)
    return sorted((x for x in results if x is not None), key=lambda x: x.cycles)


def _candidate(
    c: Contraction, target: Target, gpu: Gpu, tile: tuple[int, int, int, int], together: bool
) -> Candidate | None:
    """A tile with its estimate; None where not even one block fits."""
    m, n, k, batch = (number(extent_of(x), SYMBOL) for x in (c.rows, c.columns, c.depth, c.batch))
    rows, columns, row_warps, column_warps = tile
    blocks = ceil(m / rows) * ceil(n / columns) * max(1, batch)
    waves = ceil(blocks / target.cores)
    step = depth_of(c.dtype, together)
    unit = step if together else DEPTH[c.dtype]
    depth = ceil(k / unit) * unit
    rate = MULTIPLIED * (SINGLE_WARPS if gpu.wide and not together else 1.0) * 4 / c.dtype.itemsize
    compute = waves * rows * columns * depth / rate
    moved = waves * (rows + columns) * depth * c.dtype.itemsize / target.l2_bandwidth
    stages = stages_of(c, step)
    sizes = zip(("rows", "columns", "row_warps", "column_warps"), tile, strict=True)
    knobs = (*sizes, ("stages", stages), ("together", int(together)))
    threads = WARP * row_warps * column_warps
    shared = (rows + columns) * step * c.dtype.itemsize * stages
    resident = gpu.blocks(threads, rows * columns // threads + OTHER_REGISTERS, shared)
    if not resident:
        return None
    overhead = OVERHEAD / min(resident, max(1, ceil(blocks / target.cores)))
    return Candidate(knobs, Cost(compute=compute, memory=moved, overhead=overhead))


MULTIPLIED = 1024
"""Products of TF32 that a multiprocessor adds in a cycle (H100 whitepaper: 495 TFLOP/s without sparsity)."""
SINGLE_WARPS = 0.6
"""The share of that which single warps reach on a GPU whose warps multiply by fours: 0.63 of the peak on average
("Dissecting the NVIDIA Hopper architecture", 2024, section on `mma` and `wgmma`), less what loads of fragments take."""
OTHER_REGISTERS = 72
"""Registers of a thread beside its sums, for addresses and fragments: ptxas took up to 84 more than sums for sm_90."""
OVERHEAD = 1500.0
"""Cycles of a block's start, first loads and last stores; estimated, not measured."""


def _apply(s: Schedule, structure: Structure, candidate: Candidate, _target: Target) -> None:
    anchor = next(stage for stage in structure.stages if contraction(stage.block) is not None)
    after = structure.after(anchor)
    for stage in structure.stages:
        if stage in after or cheap(structure, stage):
            inline(s, structure, stage)
    s.implement(ROUTINE.name, **dict(candidate.knobs))


PLAN = Plan("gpu product", _fits, _candidates, _apply, refines=("gpu nests",))

__all__ = ["PLAN", "ROUTINE", "build"]
