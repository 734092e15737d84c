"""Tiles of products on GPUs: the sums of each warp, and the layout of a factor's tile in shared memory.

A factor's tile consists of core matrices, 8 contiguous lines of 16 bytes, as `ldmatrix` and `wgmma` read them; eight
threads write one at once without a bank conflict:

    [stage, group of depth, line // 8, line % 8, within the group]       elements of depth are contiguous in memory
    [stage, line // 8, depth // 8, depth % 8, line % 8]                  lines are ("across"; 16-bit types)
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_int, const, is_const
from tilewright.ir.loops import BlockIter, Region
from tilewright.ir.rewrite import variables
from tilewright.plans.gpu.contractions import Contraction, Factor, extent_of
from tilewright.schedule.mma_intrinsics import STEP, group_of
from tilewright.support.classes import dataclass
from tilewright.targets.gpu import COPY_BYTES

WARP = 32
ROW_BYTES = 64
"""The bytes of depth in a step of products by single warps: two instructions."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of a tile: rows and columns of a block and of each warp, and elements of depth in a step. `together`:
    four warps multiply together (`wgmma`), each 16 of 64 rows."""

    rows: int
    columns: int
    row_warps: int
    column_warps: int
    depth: int
    together: bool = False

    @property
    def threads(self) -> int:
        return WARP * self.row_warps * self.column_warps

    @property
    def high(self) -> int:
        """The number of fragments of 16 rows that a warp computes."""
        return self.rows // (16 * self.row_warps)

    @property
    def wide(self) -> int:
        """The number of fragments of 8 columns in a warp."""
        return self.columns // (8 * self.column_warps)

    def row(self, warp: Expr, i: Expr) -> Expr:
        """The number, counted in 16 rows of the block's tile, of fragment `i` of a warp."""
        if self.together:
            return (warp // (4 * self.column_warps) * self.high + i) * 4 + warp % 4
        return warp // self.column_warps * self.high + i

    def column(self, warp: Expr) -> Expr:
        """The number, counted in 8 columns of the block's tile, of a warp's first fragment."""
        return (warp // 4 if self.together else warp) % self.column_warps * self.wide


def depth_of(t: DType, together: bool) -> int:
    """How many elements of depth one step of a block multiplies; `together`: four warps share an instruction."""
    return (STEP if together else ROW_BYTES) // t.itemsize


@dataclass(frozen=True, slots=True)
class Shared:
    """The layout of a factor's tiles in shared memory, one per stage."""

    buffer: Buffer
    across: bool

    def place(self, stage: Expr, line: Expr, k: Expr) -> tuple[Expr, ...]:
        """The indices in `buffer` of the element at line `line` and depth `k` of a stage's tile."""
        if self.across:
            return stage, line // 8, k // 8, k % 8, line % 8
        each = group_of(self.buffer.dtype)
        return stage, k // each, line // 8, line % 8, k % each

    def region(
        self, stage: Expr, first: Expr, count: int, within: Expr, lines: int, group: Expr, groups: int
    ) -> Region:
        """The operand of an instruction in a tile: in each of `count` groups of eight lines from group `first` on,
        `lines` lines from `within` on; along the depth `groups` groups (of 16 bytes) from `group` on."""
        one, eights, own = const(1), (first, const(count)), (within, const(lines))
        deep = (group, const(groups))
        if self.across:
            return Region(self.buffer, ((stage, one), eights, deep, (const(0), const(8)), own))
        each = const(group_of(self.buffer.dtype))
        return Region(self.buffer, ((stage, one), deep, eights, own, (const(0), each)))


def shape_of(t: DType, stages: int, lines: int, depth: int, across: bool) -> tuple[int, ...]:
    """The shape of a `Shared` buffer for `stages` tiles of `lines` x `depth` elements of type `t`; `across`: elements
    are contiguous along the lines."""
    if across:
        return stages, lines // 8, depth // 8, 8, 8
    each = group_of(t)
    return stages, depth // each, lines // 8, 8, each


@dataclass(frozen=True, slots=True)
class Moving:
    """How threads copy a factor: the number of elements at once, whether these are contiguous along the lines (rather
    than the depth), and whether copies are asynchronous, which those of 4 and of 16 bytes can be."""

    width: int
    across: bool = False
    under_way: bool = True


def moving_of(f: Factor, lines: tuple[BlockIter, ...], c: Contraction) -> Moving:
    """How factor `f`, whose lines are the iterators `lines`, is copied: in units of 16 bytes if it is a load that is
    contiguous and aligned along its depth or, for 16-bit types, along its lines; else element by element."""
    width = COPY_BYTES // f.dtype.itemsize
    if _follows(f, c.depth[-1], width):
        return Moving(width)
    if f.dtype.itemsize == 2 and _follows(f, lines[-1], width):
        return Moving(width, across=True)
    return Moving(1, under_way=f.dtype.itemsize == 4 and loaded(f.value) is not None)


def loaded(value: Expr) -> tuple[Expr, Load] | None:
    """(condition, load) of a value that is a load under a condition and zero otherwise; None for other values."""
    match value:
        case Load():
            return const(True), value
        case Op("select", (condition, Load() as load, zero)) if is_const(zero, 0.0) or is_const(zero, 0):
            return condition, load
    return None


def _follows(f: Factor, it: BlockIter, width: int) -> bool:
    """Whether the elements of factor `f` are contiguous along iterator `it` in aligned groups of `width`, each of which
    is wholly inside or wholly outside of the load's condition (such as padding of a map)."""
    extent, pair = as_int(it.extent), loaded(f.value)
    if pair is None or not pair[1].indices or extent is None or extent % width:
        return False
    condition, load = pair
    *outer, inner = load.indices
    size = as_int(load.buffer.shape[-1])
    return inner is it.var and size is not None and not size % width and not _within(it.var, (condition, *outer))


def _within(var: Var, exprs: Iterable[Expr]) -> bool:
    return any(var in variables(e) for e in exprs)


@dataclass(frozen=True, slots=True)
class Lines:
    """The layout of a factor's tiles, one per stage, that copies of whole tiles produce: lines of 128 bytes of depth,
    [stage, line // 8, line % 8, group of depth, within the group]. In memory groups are swizzled
    (`codegen/ptx/tensor_maps.py`)."""

    buffer: Buffer

    def region(self, stage: Expr, first: Expr, count: int, within: Expr, lines: int) -> Region:
        """The operand of an instruction in a tile: in each of `count` groups of eight lines from group `first` on,
        `lines` lines from `within` on, with all of the depth."""
        one, zero, each = const(1), const(0), group_of(self.buffer.dtype)
        deep = ((zero, const(STEP // COPY_BYTES)), (zero, const(each)))
        return Region(self.buffer, ((stage, one), (first, const(count)), (within, const(lines)), *deep))

    def whole(self, stage: Expr) -> Region:
        """The region of a stage's whole tile."""
        inner = tuple((const(0), n) for n in self.buffer.shape[1:])
        return Region(self.buffer, ((stage, const(1)), *inner))


def lines_shape(t: DType, stages: int, lines: int) -> tuple[int, ...]:
    """The shape of a `Lines` buffer for `stages` tiles of `lines` lines."""
    return stages, lines // 8, 8, STEP // COPY_BYTES, group_of(t)


def by_tiles(f: Factor, lines: tuple[BlockIter, ...], c: Contraction) -> bool:
    """Whether a factor can be copied in whole tiles: it is a load whose last index is the depth, in whole steps, and
    one other index its lines; the other indices belong to the batch, or are constants."""
    value, mine = f.value, [it for it in lines if as_int(it.extent) != 1]
    deep = [it for it in c.depth if as_int(it.extent) != 1]
    if not isinstance(value, Load) or len(mine) != 1 or len(deep) != 1 or not 2 <= len(value.indices) <= MAX_RANK:
        return False
    *outer, last = value.indices
    depth, size = as_int(deep[0].extent), as_int(value.buffer.shape[-1])
    each = STEP // f.dtype.itemsize
    if last is not deep[0].var or depth is None or depth % each or size is None or size * f.dtype.itemsize % COPY_BYTES:
        return False
    others = [i for i in outer if i is not mine[0].var]
    return len(others) == len(outer) - 1 and not any({deep[0].var, mine[0].var} & set(variables(i)) for i in others)


MAX_RANK = 5
"""The largest number of dimensions of an array from which tiles are copied."""


def steps_of(c: Contraction, depth: int) -> int | None:
    """The number of steps of `depth` elements of a contraction; None if its depth is symbolic."""
    known = as_int(extent_of(c.depth))
    return None if known is None else -(-known // depth)


__all__ = [
    "WARP",
    "Lines",
    "Moving",
    "Shared",
    "Tile",
    "by_tiles",
    "depth_of",
    "lines_shape",
    "loaded",
    "moving_of",
    "shape_of",
    "steps_of",
]
