"""Intrinsics of GPUs that the threads of a warp, or of four warps, compute together, described by one thread's results.

Lane `l` of a warp has rows g and g + 8 of a matrix of 16 rows, and columns 2t and 2t + 1 of one of 8 columns, where g =
l // 4 and t = l % 4: C[2, 2] of its sums, to which it adds products of rows of A and columns of B.

Tiles lie in shared memory as core matrices: 8 lines of 16 bytes that follow each other. Along a line are elements of
depth, or, of types of 16 bits, eight lines of a factor whose elements of depth are the lines of the core matrix
("across"). So a factor's fragment is A[h, r, k] of groups of depth h, rows r and k within a group; across, A[r, h, k].
"""

from __future__ import annotations

from math import inf

from tilewright.ir.dtype import DType, bf16, f16, f32, i8, i32
from tilewright.ir.expr import Buffer, Load, Op, Var, const, select
from tilewright.ir.loops import Block, BlockIter, For, PrimFunc, Stmt, Store
from tilewright.schedule.intrinsics import TensorIntrin, describe, register
from tilewright.targets.gpu import COPY_BYTES

DEPTH = {f32: 8, f16: 16, bf16: 16, i8: 32}
"""The number of products that one instruction adds to each sum, by the type of the factors; f32 is rounded to TF32."""

SUMS: dict[DType, DType] = {f32: f32, f16: f32, bf16: f32, i8: i32}
"""The type of the sums of products, by the type of the factors."""


def group_of(t: DType) -> int:
    """The number of elements of type `t` in a line of a core matrix, 16 bytes."""
    return 16 // t.itemsize


def _names(prefix: str, t: DType, across: tuple[bool, bool]) -> str:
    return f"{prefix}_{t.name}" + "".join(f"_{x}" for x, is_across in zip("ab", across, strict=True) if is_across)


def _product(t: DType, across: tuple[bool, bool]) -> TensorIntrin:
    name = _names("mma", t, across)
    each = group_of(t)
    extents = {"r": 2, "c": 2, "h": DEPTH[t] // each, "k": each}
    maps = {"A": "rhk" if across[0] else "hrk", "B": "hkc" if across[1] else "hck", "C": "rc"}
    return TensorIntrin(name, describe(name, extents, "hk", (t, t, SUMS[t]), maps))


def _wide_product(t: DType, columns: int, across: tuple[bool, bool]) -> TensorIntrin:
    """The intrinsic of a product of four warps (`wgmma`): sums of 64 rows and `columns` columns, over `STEP` bytes of
    depth; each thread has two of every eight columns. `across`: for each factor, whether the 16-byte lines of its core
    matrices in shared memory run across the depth, not along it."""
    name = _names(f"wgmma{columns}", t, across)
    each = group_of(t)
    extents = {"j": columns // 8, "r": 2, "c": 2, "h": STEP // 16, "k": each}
    maps = {"A": "rhk" if across[0] else "hrk", "B": "jhkc" if across[1] else "hjck", "C": "jrc"}
    return TensorIntrin(name, describe(name, extents, "hk", (t, t, SUMS[t]), maps))


def _copy(t: DType, count: int) -> TensorIntrin:
    """The intrinsic `D[i] = S[i]` for i below `count`, 16 bytes."""
    name = f"copy_async_{t.name}"
    i, vi = Var("i"), Var("vi")
    d, s = (Buffer(n, t, (const(count),)) for n in "DS")
    block = Block(name, (BlockIter(vi, const(count), "spatial", i),), Store(d, (vi,), Load(s, (vi,))))
    return TensorIntrin(name, PrimFunc(name, (d, s), For(i, const(count), block)))


STEP = 128
"""The bytes of depth in a product of four warps."""
WIDE_COLUMNS = (64, 128, 256)
"""The numbers of columns in a product of four warps."""


def _layouts(t: DType) -> list[tuple[bool, bool]]:
    """The possible layouts of the two factors of a product in shared memory, as pairs (first, second): for each factor
    whether the 16-byte lines of its core matrices run across the depth, not along it. Only factors of 16-bit types
    can."""
    both = (False, True) if t.itemsize == 2 else (False,)
    return [(a, b) for a in both for b in both]


MMA = {(t, across): register(_product(t, across)) for t in DEPTH for across in _layouts(t)}
"""Products of fragments (`mma.sync`), by the type of the factors and their layouts (`_layouts`)."""

WIDE = {
    (t, n, across): register(_wide_product(t, n, across)) for t in DEPTH for n in WIDE_COLUMNS for across in _layouts(t)
}
"""Products of four warps (`wgmma`), by the type of the factors, the number of columns, and the factors' layouts
(`_layouts`)."""


def _tile_product(t: DType, columns: int) -> TensorIntrin:
    """The intrinsic of a product of four warps whose tiles `COPY_TILE` copied."""
    name = _names(f"wgmma{columns}_tile", t, (False, False))
    extents = {"j": columns // 8, "r": 2, "c": 2, "h": STEP // 16, "k": group_of(t)}
    return TensorIntrin(name, describe(name, extents, "hk", (t, t, SUMS[t]), {"A": "rhk", "B": "jchk", "C": "jrc"}))


WIDE_TILE = {(t, n): register(_tile_product(t, n)) for t in DEPTH for n in WIDE_COLUMNS}
"""Products of four warps from tiles of lines of `STEP` bytes, by type and columns."""


def _copy_tile(t: DType, lines: int) -> TensorIntrin:
    """The intrinsic `D[g, l, h, k] = S[8g + l, h * width + k]`: lines of `STEP` bytes, with zeros for lines past the
    end."""
    name, each = f"copy_tile{lines}_{t.name}", group_of(t)
    extents = {"g": lines // 8, "l": 8, "h": STEP // 16, "k": each}
    loops, points = ({k: Var(f"{x}{k}") for k in extents} for x in ("", "v"))
    n = Var("n")
    d = Buffer("D", t, tuple(map(const, extents.values())))
    s = Buffer("S", t, (n, const(STEP // t.itemsize)))
    line = points["g"] * 8 + points["l"]
    value = select(line < n, Load(s, (line, points["h"] * each + points["k"])), const(0, t))
    iters = tuple(BlockIter(points[k], const(extents[k]), "spatial", loops[k]) for k in extents)
    stmt: Stmt = Block(name, iters, Store(d, tuple(points.values()), value))
    for k in reversed(extents):
        stmt = For(loops[k], const(extents[k]), stmt)
    return TensorIntrin(name, PrimFunc(name, (d, s), stmt))


COPY_TILE = {(t, lines): register(_copy_tile(t, lines)) for t in DEPTH for lines in (64, 128, 256)}
"""Asynchronous copies of tiles that one thread starts (`cp.async.bulk.tensor`), by type and lines. They complete as
those of `COPY_ASYNC` do."""

WARP = 32
"""The number of threads in a warp."""


def _copy_one(t: DType) -> TensorIntrin:
    """The intrinsic `D = S` for 4 bytes."""
    name = f"copy_async_one_{t.name}"
    d, s = (Buffer(n, t, ()) for n in "DS")
    return TensorIntrin(name, PrimFunc(name, (d, s), Block(name, (), Store(d, (), Load(s, ())))))


def _reduction(name: str, t: DType, lanes: int) -> TensorIntrin:
    """The intrinsic `y = x[0] + x[1] + ...` on elements of type `t`, or with the operator `name` in place of the sum,
    over `lanes` lanes of a warp, all or four; each of these lanes gets the result."""
    k, vk = Var("k"), Var("vk")
    y, x = Buffer("y", t, ()), Buffer("x", t, (const(lanes),))
    bound = {-inf: t.min, inf: t.max} if not t.is_float else {}
    value = const(bound.get(_IDENTITY[name], _IDENTITY[name]), t)
    body = Store(y, (), Op(name, (Load(y, ()), Load(x, (vk,))), t))
    called = f"{'warp' if lanes == WARP else 'quad'}_{name}_{t.name}"
    block = Block(called, (BlockIter(vk, const(lanes), "reduce", k),), body, Store(y, (), value))
    return TensorIntrin(called, PrimFunc(called, (y, x), For(k, const(lanes), block)))


_IDENTITY = {"add": 0, "mul": 1, "max": -inf, "min": inf, "larger": -inf}
"""The identity element of each reduction operator."""

WARP_REDUCE = {
    (name, t): register(_reduction(name, t, WARP))
    for t in (f32, i32)
    for name in _IDENTITY
    if t is f32 or name != "larger"
}
"""Reductions over a warp's lanes, by operator and type."""

QUAD = 4
"""The number of lanes of a warp that share rows of sums: 4g to 4g + 3."""
QUAD_REDUCE = {(name, f32): register(_reduction(name, f32, QUAD)) for name in ("add", "larger")}
"""Reductions over lanes that share rows of sums, by operator and type."""


def _held_product(t: DType) -> TensorIntrin:
    """The intrinsic of a product whose first factor is rows in registers, laid out as the sums of an earlier product: 8
    columns, or 16 for 16-bit types, of which lane q holds columns 2q + c. These columns are the depth, which B[h, q, c,
    n] has for lines n, or B[c, q, n] for f32."""
    name = f"mma_held_{t.name}"
    if t is f32:
        return TensorIntrin(
            name,
            describe(name, {"r": 2, "n": 2, "q": 4, "c": 2}, "qc", (t, t, f32), {"A": "qrc", "B": "cqn", "C": "rn"}),
        )
    extents = {"r": 2, "n": 2, "h": 2, "q": 4, "c": 2}
    return TensorIntrin(name, describe(name, extents, "hqc", (t, t, f32), {"A": "qhrc", "B": "hqcn", "C": "rn"}))


MMA_HELD = {t: register(_held_product(t)) for t in (f32, f16, bf16)}
"""Products (`mma.sync`) whose first factor is in registers as sums of an earlier one are, by the type of factors."""

COPY_ASYNC = {t: register(_copy(t, COPY_BYTES // t.itemsize)) for t in DEPTH}
"""Copies of 16 bytes from a parameter to shared memory by type, which are asynchronous. They are complete, for all
threads of the block, after the block's next barrier that waits for them (`Barrier.pending`); until then no thread may
access the elements that they write."""
COPY_ONE_ASYNC = {t: register(_copy_one(t)) for t in (f32, i32)}
"""Asynchronous copies of 4 bytes, by type."""
_TILES = frozenset(intrin.name for intrin in COPY_TILE.values())
_COPIES = frozenset(intrin.name for intrin in (*COPY_ASYNC.values(), *COPY_ONE_ASYNC.values())) | _TILES


def is_tile_copy(name: str) -> bool:
    """Whether an intrinsic is an asynchronous copy of a tile that one thread starts."""
    return name in _TILES


def is_async(name: str) -> bool:
    """Whether an intrinsic is an asynchronous copy, whose result exists only after a barrier of the block."""
    return name in _COPIES


__all__ = [
    "COPY_ASYNC",
    "COPY_ONE_ASYNC",
    "COPY_TILE",
    "DEPTH",
    "MMA",
    "MMA_HELD",
    "QUAD",
    "QUAD_REDUCE",
    "STEP",
    "SUMS",
    "WARP",
    "WARP_REDUCE",
    "WIDE",
    "WIDE_COLUMNS",
    "WIDE_TILE",
    "group_of",
    "is_async",
    "is_tile_copy",
]
