"""The schedule of attention's stages if whole rows of scores are held: for known sizes and not too many keys.

for batch and head:                                             parallel
    keys[panel, d, lane], values[chunk, j, lane]                panels of a tile's width
    for block of row tiles:
        for panel, tile:                                        register tiles
            scores = queries keys;  scaled = scores * scale + mask
        for row:
            top = max(scaled);  weights = exp(scaled - top);  total = sum(weights)
        for chunk, tile:                                        register tiles
            result = weights values;  y = result / total
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ir.notes import Unroll
from tilewright.ops.lowered.attention import ATTENTION, ORDERS
from tilewright.plans.attention.operands import Operands
from tilewright.plans.attention.rows import Tile
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.common import inline_all
from tilewright.plans.framework.cost import number
from tilewright.plans.framework.work import Added
from tilewright.plans.idioms.reducing import reduce_lanes
from tilewright.plans.rows.groups import STEP_VECTORS
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

STORED = ("scores", "scaled", "top", "weights", "total", "result", "y")
"""The stages with buffers, besides the panels of keys and values; the others are inlined."""


def is_scheduled(result: Operands, structure: Structure, tile: Tile, target: Target) -> bool:
    """Whether this schedule supports a tile: sizes are known, panels are packed, a block has all keys, and vectors are
    whole. A partial vector would be split into powers of two, whose products take longer than those of a padded
    panel."""
    rows, keys = (extent_of(structure, "scores", k) for k in (2, 3))
    columns = extent_of(structure, "result", 3)
    if (
        result.attrs.dot is not None
        or result.starts is not None
        or structure.func.symbols
        or rows is None
        or keys is None
        or columns is None
    ):
        return False
    lanes = lanes_of(structure, target)
    return tile.tiles > 0 and 0 < keys <= tile.keys and keys % lanes == columns % lanes == 0


def lanes_of(structure: Structure, target: Target) -> int:
    """Lanes of a vector of scores."""
    return target.lanes(stage_of(structure, "weights").writes[0].dtype.itemsize)


def stage_of(structure: Structure, name: str) -> Stage:
    """A stage of the operator. Its block has another name in the function if an argument or a symbol has that name."""
    attention = structure.operator(ATTENTION)
    assert attention is not None
    return attention.stage(name)


def extent_of(structure: Structure, stage: str, dimension: int) -> int | None:
    """The extent of one of a stage's dimensions: batch, heads, rows, keys or depth."""
    return as_int(stage_of(structure, stage).spatial[dimension].extent)


def panels(structure: Structure) -> tuple[Stage, Stage]:
    """The stages that are packed: keys and values, including those of a cache if there is one."""
    names = {stage.origin.stage for stage in structure.stages if stage.origin is not None}
    prefix = "all_" if "all_keys" in names else ""
    return stage_of(structure, f"{prefix}keys"), stage_of(structure, f"{prefix}values")


def packed_anew(structure: Structure, result: Operands) -> tuple[Added, ...]:
    """The excess work that packing keys and values states to the check of operations: each query head packs them again,
    also where several heads share them."""
    each = result.attrs.heads // result.attrs.groups
    points = {stage.name: prod(number(it.extent) for it in stage.spatial) for stage in panels(structure)}
    return tuple(Added(name, "each panel", each * n) for name, n in points.items() if each > 1)


def schedule(s: Schedule, structure: Structure, candidate: Operands, tile: Tile, target: Target) -> None:
    """Schedule the attention with operands `candidate`, with the register tile `tile`."""
    retained = (*(stage_of(structure, name) for name in STORED), *panels(structure))
    inline_all(s, structure, tuple(stage for stage in structure.stages if stage not in retained))
    scores, scaled, top, weights, total, result, y = (s.block(stage.name) for stage in retained[: len(STORED)])
    head, block, each = output(s, y, candidate, tile, -(-(extent_of(structure, "scores", 2) or 1) // tile.rows))
    s.compute_at(result, each)
    register_tile(s, result, tile)
    for stage in (total, weights, top, scaled):
        s.compute_at(stage, block)
    softmax(s, structure, (top, weights, total), target)
    rows, keys = s.loops(scaled)[-2:]
    tiles, row = s.split(rows, factor=tile.rows)
    panel, lane = s.split(keys, factor=tile.width)
    s.reorder(panel, tiles, row, lane)
    s.unroll(row)
    s.vectorize(lane)
    s.compute_at(scores, tiles)
    register_tile(s, scores, tile)
    for stage in (scaled, weights):
        s.set_scope(stage, "padded")
    pack(s, panels(structure), scores, head, tile)
    s.parallel(head)


def output(s: Schedule, y: BlockRef, result: Operands, tile: Tile, count: int) -> tuple[LoopRef, LoopRef, LoopRef]:
    """Order and tile the loops of the output `y`, with `count` tiles of rows in blocks of `tile.tiles`. Returns the
    loops over heads, over blocks of tiles, and over the tiles of a block."""
    loops = s.loops(y)
    batch, rows, heads, depth = (loops[k] for k in ORDERS[result.attrs.order[3]])
    s.reorder(batch, heads, rows, depth)
    head = s.fuse(batch, heads)
    blocks = -(-count // tile.tiles)  # about equal ones: what is left of them is code of its own
    block, each, row = s.split(rows, factors=(None, -(-count // blocks), tile.rows))
    chunk, lane = s.split(depth, factor=tile.width)
    s.reorder(head, block, chunk, each, row, lane)
    s.unroll(row)
    s.vectorize(lane)
    return head, block, each


def register_tile(s: Schedule, block: BlockRef, tile: Tile) -> None:
    """Schedule a product: its sums are in registers, unrolled rows by a vector, with the reduction outside, unrolled by
    `tile.steps`."""
    s.set_scope(block, "local")
    row, lane, step = s.loops(block)[-3:]
    s.reorder(step, row, lane)
    if tile.steps > 1:
        s.annotate(step, Unroll(tile.steps))
    for part in (block, s.decompose_reduction(block, step)):
        row, lane = s.loops(part)[-2:]
        s.unroll(row)
        s.vectorize(lane)


def softmax(s: Schedule, structure: Structure, blocks: tuple[BlockRef, BlockRef, BlockRef], target: Target) -> None:
    """Schedule the softmax row by row, in vectors along the keys; exponentials are summed as they are computed.
    `blocks`: the largest score, the exponentials, their sum."""
    lanes = lanes_of(structure, target)
    top, weights, total = blocks
    row, keys = s.loops(weights)[-2:]
    s.compute_at(top, row)
    s.reverse_compute_at(total, row)
    length = s.extent(keys)
    if length is None or length > STEP_VECTORS * lanes:
        _, keys = s.split(keys, factor=STEP_VECTORS * lanes)
    s.vectorize(keys)
    for name, ref in (("top", top), ("total", total)):
        reduce_lanes(s, stage_of(structure, name), [s.loops(ref)[-1]], lanes, STEP_VECTORS)


def pack(s: Schedule, packed: tuple[Stage, Stage], scores: BlockRef, head: LoopRef, tile: Tile) -> None:
    """Schedule the two stages `packed`, which copy the keys and values of a head into panels: keys side by side for
    each element of their depth, transposed in registers square by square, and values as rows of a chunk."""
    rows, values = (s.block(stage.name) for stage in packed)
    width, side = tile.width, tile.side
    keys = rows if side == 1 else s.cache_read(scores, packed[0].writes[0].name, "global")
    for block in (keys, values):
        s.compute_at(block, head)
    s.transform_layout(keys, lambda b, g, j, d: (b, g, j // width, d, j % width))
    s.transform_layout(values, lambda b, g, j, d: (b, g, d // width, j, d % width))
    j, d = s.loops(keys)[-2:]
    panel, lane = s.split(j, factor=width)
    if side == 1:
        s.reorder(panel, d, lane)
    else:
        squares, lane = s.split(lane, factor=side)
        outer, d = s.split(d, factor=side)
        s.reorder(panel, squares, outer, d, lane)
        s.unroll(d)
        s.set_scope(rows, "local")
        s.compute_at(rows, outer)
        row, along = s.loops(rows)[-2:]
        s.unroll(row)
        s.vectorize(along)
    s.vectorize(lane)
    _, lane = s.split(s.loops(values)[-1], factor=width)
    s.vectorize(lane)
