"""Products of matrices on a GPU: a block a tile of the result, whose factors its threads copy to shared memory, and
warps that multiply fragments of them (`mma.sync`), or four warps together (`wgmma`, where a GPU has it). Convolutions
are products whose factors are computed where they are copied (implicit products). Whole tiles of arrays are copied by
the tensor memory accelerator where four warps multiply them (`BY_TILES`), and what follows pointwise is done on
the sums in registers. `product_loops.py` has the loops.

f32 are rounded to TF32, 10 bits of mantissa (`wgmma` cuts them off), and sums are of f32.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from math import ceil

from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const
from tilewright.ir.loops import Block, For, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import loads, map_expr, names_of, walk
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost, number
from tilewright.plans.framework.work import Added
from tilewright.plans.gpu.common import THREADS, inline, points
from tilewright.plans.gpu.contractions import Contraction, contraction, extent_of
from tilewright.plans.gpu.elements import nest_of
from tilewright.plans.gpu.nests import cheap
from tilewright.plans.gpu.product_loops import BY_TILES, Product
from tilewright.plans.gpu.product_tiles import WARP, by_tiles, depth_of, moving_of, steps_of
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
        product = Product(c, epilogue, sizes, names)
        tiles = product.nest()
        rest = nests[k + 1 + (epilogue is not None) :]
        others = [nest_of(func, n, THREADS, names) for n in nests[:k]]
        buffers = tuple(b for b in func.buffers if epilogue is None or b != c.result.buffer)
        if product.partial is not None:
            rest = [added(c, nest if epilogue is None or following is None else following, product.partial), *rest]
            buffers = (*buffers, product.partial)
        more = [nest_of(func, n, THREADS, names) for n in rest]
        return replace(func, body=seq([*others, tiles, *more]), buffers=buffers)
    raise refuse(func, "there is no contraction of matrices")


def added(c: Contraction, nest: Stmt, partial: Buffer) -> Stmt:
    """The nest that follows a product, or the product's own, with the sum of all parts in the place of its sums."""
    while isinstance(nest, For):
        nest = nest.body
    assert isinstance(nest, Block) and isinstance(nest.body, Store)
    store = nest.body

    def total(at: tuple[Expr, ...]) -> Expr:
        parts = (Load(partial, (const(s), *at)) for s in range(as_int(partial.shape[0]) or 0))
        return reduce(operator.add, parts)

    if nest.is_reduction:
        value = total(store.indices)
    else:
        read = c.result.buffer
        value = map_expr(store.value, lambda e: total(e.indices) if isinstance(e, Load) and e.buffer == read else None)
    iters = tuple(it for it in nest.iters if it.kind == "spatial")
    return replace(nest, iters=iters, init=None, body=replace(store, value=value))


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


def _splits(c: Contraction, depth: int) -> list[int]:
    """The numbers of parts of the depth, with equally many steps each, two at least. Where a size is a symbol, tiles
    may be many, and memory for all parts large, so that there is one part."""
    sizes = (as_int(extent_of(x)) for x in (c.rows, c.columns, c.batch))
    steps = None if None in sizes else steps_of(c, depth)
    return [s for s in SPLITS if s == 1 or (steps is not None and steps % s == 0 and steps // s >= 2)]


def stages_of(c: Contraction, depth: int, splits: int = 1) -> int:
    """How many tiles of each factor take turns: several where copies can go on while one is multiplied, as many as
    a block has steps at most."""
    whole = steps_of(c, depth)
    steps = None if whole is None else whole // splits
    wide = any(moving_of(f, lines, c).under_way for f, lines in ((c.a, c.rows), (c.b, c.columns)))
    return min(STAGES, steps or STAGES) if wide else 1


ROUTINE = register(
    Routine(
        "gpu product",
        ("rows", "columns", "row_warps", "column_warps", "stages", "splits", "together"),
        build,
        ("together",),
    )
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
    both = all(by_tiles(f, lines, c) for f, lines in ((c.a, c.rows), (c.b, c.columns)))
    tiles = [(tile, BY_TILES if both else 1) for tile in wide] + [(tile, 0) for tile in TILES]
    results = (
        _candidate(c, target, gpu, tile, together, splits)
        for tile, together in tiles
        for splits in _splits(c, depth_of(c.dtype, bool(together)))
    )
    return sorted((x for x in results if x is not None), key=lambda x: x.cycles)


def _candidate(
    c: Contraction, target: Target, gpu: Gpu, tile: tuple[int, int, int, int], together: int, splits: int
) -> Candidate | None:
    """A tile with its estimate; None where not even one block fits."""
    m, n, k, batch = (number(extent_of(x), SYMBOL) for x in (c.rows, c.columns, c.depth, c.batch))
    rows, columns, row_warps, column_warps = tile
    blocks = ceil(m / rows) * ceil(n / columns) * max(1, batch) * splits
    waves = ceil(blocks / target.cores)
    step = depth_of(c.dtype, bool(together))
    unit = step if together else DEPTH[c.dtype]
    depth = ceil(k / unit) * unit / splits
    rate = MULTIPLIED * (SINGLE_WARPS if gpu.wide and not together else 1.0) * 4 / c.dtype.itemsize
    compute = waves * rows * columns * depth / rate
    moved = waves * (rows + columns) * depth * c.dtype.itemsize / target.l2_bandwidth
    if splits > 1:
        moved += 2 * splits * m * n * max(1, batch) * 4 / (target.l2_bandwidth * target.cores)
    stages = stages_of(c, step, splits)
    sizes = zip(("rows", "columns", "row_warps", "column_warps"), tile, strict=True)
    knobs = (*sizes, ("stages", stages), ("splits", splits), ("together", together))
    threads = WARP * row_warps * column_warps
    shared = (rows + columns) * step * c.dtype.itemsize * stages
    resident = gpu.blocks(threads, rows * columns // threads + OTHER_REGISTERS, shared)
    if not resident:
        return None
    overhead = OVERHEAD / min(resident, max(1, ceil(blocks / target.cores)))
    overhead += ANOTHER_KERNEL * (splits > 1)
    return Candidate(knobs, Cost(compute=compute, memory=moved, overhead=overhead))


MULTIPLIED = 1024
"""Products of TF32 that a multiprocessor adds in a cycle (H100 whitepaper: 495 TFLOP/s without sparsity)."""
SINGLE_WARPS = 0.6
"""The share of that which single warps reach on a GPU whose warps multiply by fours: 0.63 of the peak on average
("Dissecting the NVIDIA Hopper architecture", 2024, section on `mma` and `wgmma`), less what loads of fragments take."""
OTHER_REGISTERS = 72
"""Registers of a thread beside its sums, for addresses and fragments: ptxas took up to 84 more than sums for sm_90."""
SPLITS = (1, 2, 4, 8)
"""Parts of the depth that different blocks add, where tiles alone are too few for all multiprocessors."""
ANOTHER_KERNEL = 2500.0
"""Cycles that a kernel after another one in a graph takes by itself: about 1.4 us; estimated, not measured."""
OVERHEAD = 1500.0
"""Cycles of a block's start, first loads and last stores; estimated, not measured."""


def _apply(s: Schedule, structure: Structure, candidate: Candidate, _target: Target) -> None:
    anchor = next(stage for stage in structure.stages if contraction(stage.block) is not None)
    after = structure.after(anchor)
    for stage in structure.stages:
        if stage in after or cheap(structure, stage):
            inline(s, structure, stage)
    s.implement(ROUTINE.name, **dict(candidate.knobs))


def _added(structure: Structure, candidate: Candidate, _target: Target) -> tuple[Added, ...]:
    """Threads of the last block that have no element, in the kernel that adds parts of sums."""
    if candidate.knob("splits") == 1:
        return ()
    return tuple(Added(s.name, "whole tiles", -(-points(s.block) // THREADS) * THREADS) for s in structure.stages)


PLAN = Plan("gpu product", _fits, _candidates, _apply, added=_added, refines=("gpu nests",))

__all__ = ["PLAN", "ROUTINE", "build"]
