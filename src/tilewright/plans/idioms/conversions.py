"""Changes of layout inside a convolution's kernel: tiles are transposed in registers when maps are copied into strips,
and when results have just been computed.

    for v in steps of 16:                              a strip's copy of NCHW lines
        for c in unrolled 0..16: for p in vectorized 0..16: tile[c, p] = x[c, v + p], 0 where that is padding
        for p in unrolled 0..16: for c in vectorized 0..16: strip[v + p, c] = tile[c, p]

    for v in steps of 16:                              NCHW output from lines that are still in cache
        for p in unrolled 0..16: for c in vectorized 0..16: tile[p, c] = y[v + p, c]
        for c in unrolled 0..16: for p in vectorized 0..16: out[c, v + p] = tile[p, c]
"""

from __future__ import annotations

from tilewright.ir.loops import Block, Store
from tilewright.ops.lowered.packed import UNBLOCK_CHANNELS
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def contiguous_output(structure: Structure, anchor: Stage) -> tuple[tuple[Stage, ...], Stage | None]:
    """(the stages after an anchor that are blocked, the stage that writes NCHW maps from them or None)."""
    *epilogue, last = structure.after(anchor) or (anchor,)
    if last is anchor:
        return (), None
    if last.attributes(UNBLOCK_CHANNELS) is not None and len(last.spatial) == 4:
        return tuple(epilogue), last
    return (*epilogue, last), None


def read_contiguous(s: Schedule, strip: BlockRef) -> tuple[BlockRef, BlockRef]:
    """Let the block `strip`, a copy into a blocked strip, first read NCHW lines, as they lie, into a tile in registers.
    Returns (the block that reads the lines, the block that writes the strip from the tile)."""
    copy = s.cache_write(strip, "local")
    s.transform_layout(strip, lambda *at: (*at[:-2], at[-1], at[-2]), _written(s, strip))
    return strip, copy


def transpose_in(s: Schedule, tile: BlockRef, copy: BlockRef, target: Target) -> None:
    """Schedule the transposition of NCHW lines into a blocked strip through registers: the block `tile` reads lines
    into registers, and `copy`, which is already in its place, writes the strip from them (both from
    `read_contiguous`)."""
    pixel, lane = s.loops(copy)[-2:]
    second_loops, pixel = s.split(pixel, factor=target.lanes(4))
    s.compute_at(tile, second_loops)
    first_loops, channel = s.loops(tile)[-2:]
    s.reorder(channel, first_loops)
    for row, vector in ((channel, first_loops), (pixel, lane)):
        s.unroll(row)
        s.vectorize(vector)


def transpose_out(
    s: Schedule, ordinary: BlockRef, blocked: BlockRef, channel: LoopRef, pixel: LoopRef, target: Target
) -> None:
    """Schedule the transposition of blocked lines to NCHW output through registers: `ordinary` writes the output
    from what `blocked` has computed; `channel` is its loop over a block of channels, inside `pixel`, the loop over a
    line."""
    second_loops, pixel = s.split(pixel, factor=target.lanes(4))
    s.reorder(second_loops, channel, pixel)
    tile = s.cache_read(ordinary, _written(s, blocked), "local")
    s.compute_at(tile, second_loops)
    first_loops, lane = s.loops(tile)[-2:]
    for row, vector in ((first_loops, lane), (channel, pixel)):
        s.unroll(row)
        s.vectorize(vector)


def _written(s: Schedule, ref: BlockRef) -> str:
    block = s.get(ref)
    assert isinstance(block, Block) and isinstance(block.body, Store)
    return block.body.buffer.name
