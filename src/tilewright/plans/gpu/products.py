"""Matrix products on a GPU. A block computes a tile of the result: its threads copy the factors to shared memory, and
its warps multiply fragments of them (`mma.sync`), or four warps together (`wgmma`, if the GPU has it). Convolutions are
products whose factors are computed while they are copied (implicit products). The tensor memory accelerator copies
whole tiles of arrays if four warps multiply them (`BY_TILES`), and a pointwise epilogue is applied to the sums in
registers. `product_loops.py` has the loops.

f32 is rounded to TF32, 10 bits of mantissa (`wgmma` truncates), and sums are in f32.
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
"""The number that a symbolic extent counts as."""
STAGES = 4
"""The largest number of tiles of each factor that are used in turns."""

TILES = ((128, 128, 2, 4), (128, 64, 4, 2), (64, 64, 2, 2), (32, 64, 1, 2), (16, 64, 1, 4), (64, 16, 4, 1))
"""(rows, columns) of a tile, and the number of warps along each."""
WIDE_TILES = ((128, 256, 8, 1), (128, 128, 8, 1), (64, 256, 4, 2), (64, 128, 4, 1), (64, 64, 4, 1))
"""(rows, columns) of a tile, and the number of warps along each, for warps that multiply by fours."""


def build(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """`func` with its first contraction as a product by tiles of `sizes`; other stages have a thread for each element.
    Raises ScheduleError if there is no contraction."""
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
    """The nest that adds the sums in `partial`, one of each part of the depth, in place of the single sum that `nest`
    (the product, or its epilogue) computes or reads."""
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
    """The contraction that a nest of loops computes; None if it is none."""
    while isinstance(nest, For):
        nest = nest.body
    return contraction(nest) if isinstance(nest, Block) else None


def epilogue_of(c: Contraction, nest: Stmt, func: PrimFunc) -> Block | None:
    """The pointwise block in the loops `nest` that can follow the contraction `c` in one kernel, since it reads each
    sum once, at the element that it writes, and no other block reads sums; None if there is none."""
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
    """The buffers that blocks of a function read, without the blocks named in `but`."""
    results: set[Buffer] = set()
    for s in walk(func.body):
        if isinstance(s, Block) and s.name not in but:
            for inner in walk(s):
                if isinstance(inner, Store):
                    results |= {x.buffer for e in (inner.value, *inner.indices) for x in loads(e)}
    return results


def _splits(c: Contraction, depth: int) -> list[int]:
    """The numbers of parts into which the depth may be split among blocks: all have equally many steps of `depth`
    elements, at least two. With symbolic sizes only 1, since tiles may be many, and the sums of all parts take memory.
    """
    sizes = (as_int(extent_of(x)) for x in (c.rows, c.columns, c.batch))
    steps = None if None in sizes else steps_of(c, depth)
    return [s for s in SPLITS if s == 1 or (steps is not None and steps % s == 0 and steps // s >= 2)]


def stages_of(c: Contraction, depth: int, splits: int = 1) -> int:
    """The number of tiles of each factor in shared memory, used in turns, for steps of `depth` elements and a reduction
    divided among `splits` blocks: 1 without asynchronous copies, else several, but not more than a block has steps."""
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
    """The candidates, cheapest first: by the products and memory reads of the busiest multiprocessor, and by how many
    blocks it holds at once, since one multiplies while another begins or ends."""
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
    """The candidate with these sizes and its estimate: `tile` is (rows, columns, warps along rows, warps along
    columns), `together` is 1 if four warps share an instruction, and the depth is split into `splits` parts. None if a
    multiprocessor's registers and shared memory do not hold even one block."""
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
"""The products of TF32 that a multiprocessor adds per cycle (H100 whitepaper: 495 TFLOP/s without sparsity)."""
SINGLE_WARPS = 0.6
"""The share of `MULTIPLIED` that single warps reach on a GPU whose warps can multiply by fours: 0.63 of the peak on
average ("Dissecting the NVIDIA Hopper architecture", 2024, section on `mma` and `wgmma`), less the time of loading
fragments."""
OTHER_REGISTERS = 72
"""Registers of a thread beside its sums, for addresses and fragments: ptxas took up to 84 more than sums for sm_90."""
SPLITS = (1, 2, 4, 8)
"""The numbers of parts of the depth that different blocks sum, if tiles alone are too few for all multiprocessors."""
ANOTHER_KERNEL = 2500.0
"""The cycles that an additional kernel in a graph costs: about 1.4 us; estimated, not measured."""
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
    """The excess work of the kernel that adds the parts of a split depth: threads of its last block that have no
    element."""
    if candidate.knob("splits") == 1:
        return ()
    return tuple(Added(s.name, "whole tiles", -(-points(s.block) // THREADS) * THREADS) for s in structure.stages)


PLAN = Plan("gpu product", _fits, _candidates, _apply, added=_added, refines=("gpu nests",))

__all__ = ["PLAN", "ROUTINE", "build"]
