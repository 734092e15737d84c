"""The axes of transpositions in registers: which blocks are such, the sides of their tiles, and what costs them cycles:
shuffles, rows that share the sets of a cache, vectors that cross lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, log2

from tilewright.arith import linear, simplify
from tilewright.ir.expr import Expr, Load, Op, Var, as_int, const
from tilewright.ir.loops import Block, BlockIter, Store
from tilewright.ir.rewrite import loads, substitute, variables
from tilewright.plans.framework.common import extent, own_loops
from tilewright.plans.framework.cost import fma_cycles
from tilewright.plans.idioms.reducing import steps
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

SHUFFLED = 4
"""The largest stride along the destination at which whole vectors are loaded and elements selected from them."""
GATHERED = 8
"""The least stride for which tiles smaller than a vector are faster than gathering a whole one."""
SIDES = (16, 8, 4)
"""The sides of a tile of 32-bit elements, in order of preference."""
FEWEST = 3
"""The least number of rows of a tile: LLVM keeps tiles of two in memory. Copied by elements, 4x18x32x2 to 2x4x32x18
takes 1.6 us instead of 4.0, 8x100x64x2 18 to 39 instead of 90; tiles of three rows are 1.1 to 1.9 times as fast as
elements (Zen 4, 28 November 2026)."""
SHORT = 16
"""The bytes of a row of tiles of elements that are smaller than 32 bits."""


@dataclass(frozen=True, slots=True)
class TileAxes:
    """The axes of a transposition in registers: the iterator that is contiguous in the sources (`down`), and the one
    that is contiguous in the destination (`along`). `sources` names the sources; `down` may run over several dimensions
    of a source as one, of which the first is stated with its name. If no smaller tile is full, a tile may be partial:
    half of its rows, and at least `FEWEST`, are enough.

    `run`: whether neighbouring tiles are contiguous in the sources; false if `down` runs from block to block of
    channels. `lanes`: the side of a tile, less than a vector if a dimension is short.
    """

    down: str
    along: str
    sources: tuple[tuple[str, int], ...]
    run: bool
    lanes: int


def loops_by_name(s: Schedule, block: BlockRef) -> dict[str, LoopRef]:
    """A block's own loops by the names of its iterators."""
    return {it.var.name: loop for it, loop in own_loops(s, block)}


def tile_axes(s: Schedule, block: BlockRef, target: Target) -> TileAxes | None:
    """The axes and sizes of a transposition in registers, with the largest tiles that fit; None for other blocks,
    dimensions shorter than a tile, and elements of more than 32 bits.

    The block may compute with the elements, and read other operands that are contiguous or constant along the
    destination (such as the scale of a channel).
    """
    stage = s.get(block)
    assert isinstance(stage, Block)
    if not isinstance(stage.body, Store) or not stage.iters or stage.body.buffer.dtype.itemsize > 4:
        return None
    sizes = {name: extent(s, loop) for name, loop in loops_by_name(s, block).items()}
    itemsize = stage.body.buffer.dtype.itemsize
    vector = target.lanes(4) if itemsize == 4 else SHORT // itemsize
    sides = [side for side in SIDES if side <= vector] if itemsize == 4 else [vector]
    tries = [(side, rows) for part in (1, 2) for side, rows in ((side, max(side // part, FEWEST)) for side in sides)]
    results = (_tiles_of(stage, sizes, side, rows, whole=side == vector) for side, rows in tries)
    return next((axes for axes in results if axes is not None), None)


def _tiles_of(stage: Block, sizes: Mapping[str, int | None], lanes: int, rows: int, *, whole: bool) -> TileAxes | None:
    """The axes of a transposition in tiles of `lanes` x `lanes`, of which at least `rows` rows are used, if the stage,
    whose iterators have the extents `sizes` (None: unknown), is one; else None. Unless `whole`, tiles are narrower than
    a vector, and only loads with long strides are transposed."""
    store = stage.body
    assert isinstance(store, Store)
    iters = {it.var.name: it for it in stage.iters if sizes[it.var.name] != 1}
    along = next((it for it in iters.values() if store.indices and it.var is store.indices[-1]), None)
    if along is None or (sizes[along.var.name] or lanes) < lanes:
        return None
    result: dict[Load, TileAxes] = {}
    for load in loads(store.value):
        if not whole and abs(_step(load, along.var) or lanes) < GATHERED:
            return None
        axes = _across(load, along.var, iters, sizes, lanes, rows)
        if axes is not None:
            result[load] = axes
        elif not _follows(load, along.var):
            return None
    if not result or len({(axes.down, axes.run) for axes in result.values()}) > 1:
        return None
    names = dict.fromkeys(source for axes in result.values() for source in axes.sources)
    if any(load.dtype.itemsize != store.buffer.dtype.itemsize for load in result) or len(
        {name for name, _ in names}
    ) < len(result):
        return None
    return replace(next(iter(result.values())), sources=tuple(names))


def _follows(load: Load, along: Var) -> bool:
    """Whether a load has stride 0 or 1 along the iterator `along`, so that it needs no transposition."""
    return _step(load, along) in (0, 1)


def _step(load: Load, along: Var) -> int | None:
    """The stride of a load, in elements, along the iterator `along`; None if it is not constant."""
    return steps(flat(load.indices, load.buffer.shape, 0), along)


def scattered_loads(s: Schedule, block: BlockRef) -> int:
    """How many of a block's loads are strided along the destination; strides of a few elements do not count, as
    shuffles serve them."""
    stage = s.get(block)
    assert isinstance(stage, Block)
    if not isinstance(stage.body, Store) or not stage.body.indices:
        return 0
    along = next((it.var for it in stage.iters if it.var is stage.body.indices[-1] and as_int(it.extent) != 1), None)
    if along is None:
        return 0
    moves = [_step(load, along) for load in loads(stage.body.value)]
    return sum(move is None or abs(move) > SHUFFLED for move in moves)


def colliding_lines(s: Schedule, block: BlockRef, axes: TileAxes, target: Target) -> float:
    """The number of cache lines that are evicted before a transposition in registers has used them, since the rows of
    one tile fall into the same sets of the first-level cache: all lines of a source, or of the destination, whose row
    pitch does so."""
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    sizes = {it.var.name: it for it in stage.iters}
    names = {name for name, _ in axes.sources}
    read = [(load.indices, load.buffer, axes.along) for load in loads(stage.body.value) if load.buffer.name in names]
    total = 0.0
    for indices, buffer, name in (*read, (stage.body.indices, stage.body.buffer, axes.down)):
        move = steps(flat(indices, buffer.shape, 0), sizes[name].var)
        pitch = abs(move or 0) * buffer.dtype.itemsize
        if share_sets(axes.lanes, pitch, target):
            total += (as_int(buffer.size) or 0) * buffer.dtype.itemsize / target.caches.line
    return total


def share_sets(rows: int, pitch: int, target: Target) -> bool:
    """Whether `rows` rows at a distance of `pitch` bytes exceed the associativity of the first-level cache: they fall
    into so few sets that some evict others. Of 4096-byte rows in a cache of 8 ways of 4096 bytes only 8 fit."""
    ways = target.caches.l1_ways
    way = target.l1 // ways
    return pitch > 0 and rows > ways * (way // gcd(pitch, way))


def row_pitch(stage: Block, down: str) -> int:
    """The distance in bytes between rows of the destination, which follow one another along iterator `down`; 0 if it is
    not constant."""
    assert isinstance(stage.body, Store)
    buffer = stage.body.buffer
    var = next(it.var for it in stage.iters if it.var.name == down)
    return abs(steps(flat(stage.body.indices, buffer.shape, 0), var) or 0) * buffer.dtype.itemsize


def split_stores(s: Schedule, block: BlockRef, axes: TileAxes, target: Target) -> float:
    """The number of vectors that a transposition stores across two cache lines, because the pitch of the destination's
    rows is no multiple of a line."""
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    buffer, line = stage.body.buffer, target.caches.line
    pitch = row_pitch(stage, axes.down)
    vector = axes.lanes * buffer.dtype.itemsize
    if pitch <= vector:
        return 0.0
    begin = gcd(pitch, line)  # rows begin at multiples of it
    splits = max(0.0, vector - begin) / line if begin < line else 0.0
    return (as_int(buffer.size) or 0) / axes.lanes * splits


def _across(
    load: Load, along: Var, iters: Mapping[str, BlockIter], sizes: Mapping[str, int | None], lanes: int, rows: int
) -> TileAxes | None:
    """The axes for transposing `load`, if it is contiguous along an iterator other than `along` (`down`, with at least
    `rows` elements) and `along` moves it from row to row; None for other loads. `sizes` are the extents of the
    iterators `iters` in a tile (None: unknown), `lanes` the elements of a vector."""
    holding = [k for k, i in enumerate(load.indices) if along in variables(i)]
    if len(holding) != 1 or linear(load.indices[holding[0]]).coefficient(along) != 1:
        return None
    last = len(load.indices) - 1
    for first in range(last, holding[0], -1):
        place = flat(load.indices, load.buffer.shape, first)
        if isinstance(place, Op) and place.name == "mod" and (as_int(place.args[1]) or 1) % lanes == 0:
            place = place.args[0]
        form = linear(simplify(place, {it.var: it.extent for it in iters.values()}))
        down = [n for n, it in iters.items() if form.coefficient(it.var) == 1 and (sizes[n] or lanes) >= rows]
        if len(down) == 1 and all(_stays(i, iters[down[0]].var, lanes) for i in load.indices[:first]):
            run = not any(iters[down[0]].var in variables(i) for i in load.indices[:first])
            return TileAxes(down[0], along.name, ((load.buffer.name, first),), run, lanes)
        if as_int(load.buffer.shape[first]) is None:
            break
    return None


def _stays(index: Expr, down: Var, lanes: int) -> bool:
    """Whether `index` does not change within each aligned run of `lanes` values of `down`: `c // 16` does not for 16
    lanes."""
    if down not in variables(index):
        return True
    tile, inside = Var("tile", lo=0), Var("inside", lo=0)
    return inside not in variables(simplify(substitute(index, {down: tile * lanes + inside}), {inside: const(lanes)}))


def flat(indices: Sequence[Expr], shape: Sequence[Expr], first: int) -> Expr:
    """The index of an element in the row-major order of the dimensions of `shape` from `first` on."""
    place: Expr = const(0)
    for index, size in zip(indices[first:], shape[first:], strict=True):
        place = place * size + index
    return place


def shuffle_cycles(elements: float, target: Target, side: int | None = None) -> float:
    """The cycles of shuffles to transpose `elements` elements in registers, in tiles of `side` rows (None: as many as a
    vector has lanes): each vector takes part in log2 of its lanes shuffles."""
    lanes = side or target.lanes(4)
    return fma_cycles(elements * log2(lanes), lanes, target)
