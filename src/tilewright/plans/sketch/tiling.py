"""The sketches of one reduction: the iterator of its vectors, the iterators that share loads, how many values of each
are in a register tile, which inputs are transposed first, and the order of the loops over tiles.

Sizes depend on registers and not on extents: loops are split with tails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from tilewright.ir.expr import Var, as_int
from tilewright.ir.loops import BlockIter, Store
from tilewright.ir.rewrite import variables, walk
from tilewright.plans.framework.analysis import Stage
from tilewright.plans.framework.cost import number
from tilewright.plans.sketch.access import Access
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_VECTORS = 4
ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 14)
"""The numbers of iterations, in a tile, of the iterator that shares a vector."""
SECOND = (1, 2, 3, 4)
"""The numbers of iterations, in a tile, of a second such iterator."""
SHORTEST = 2
"""The least number of vectors of a reduction for lanes along it."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """One sketch. Iterators are named by their places in the block.

    Args:
        lane: the iterator of the vectors; one that is reduced has partial results, which are folded at the end.
        vectors: the number of vectors along it in a tile.
        rows: (iterator, its iterations in a tile) pairs, unrolled around the vectors.
        packed: the indices of the loads that are transposed first, so that `lane` is contiguous.
        swap: whether the loop over the lane's vectors is inside of the loops over rows.
    """

    lane: int
    vectors: int
    rows: tuple[tuple[int, int], ...]
    packed: tuple[int, ...] = ()
    swap: bool = False

    @property
    def knobs(self) -> tuple[tuple[str, int], ...]:
        """The knobs of the tiling, (name, number) each. A knob that names an iterator of the tile's rows or columns is
        its number counted from 1, or 0 if there is none."""
        (a, n), (b, m) = (*((axis + 1, count) for axis, count in self.rows), (0, 1), (0, 1))[:2]
        pack = sum(1 << k for k in self.packed)
        return (
            ("lane", self.lane),
            ("vectors", self.vectors),
            ("along", a),
            ("rows", n),
            ("beside", b),
            ("columns", m),
            ("pack", pack),
            ("swap", int(self.swap)),
        )


def tiling_of(knobs: Sequence[tuple[str, int]]) -> Tiling:
    """The sketch of a setting with these knobs."""
    k = dict(knobs)
    rows = tuple((a - 1, n) for a, n in ((k["along"], k["rows"]), (k["beside"], k["columns"])) if a)
    packed = tuple(b for b in range(k["pack"].bit_length()) if k["pack"] >> b & 1)
    return Tiling(k["lane"], k["vectors"], rows, packed, bool(k["swap"]))


def tilings(stage: Stage, loads: Sequence[Access], lanes: int, target: Target) -> Iterator[Tiling]:
    """All tilings of the reduction `stage` by vectors of `lanes` elements whose tiles fit the registers."""
    iters = stage.block.iters
    for lane, it in enumerate(iters):
        extent = number(it.extent)
        if it.kind == "reduce" and (not _folds(stage, it, loads) or extent < SHORTEST * lanes):
            continue
        if it.kind == "spatial" and (extent < lanes // 2 or not _written_along(stage, it)):
            continue
        for packed in _packings(it, loads):
            for rows in _rows(stage, loads, lane, packed):
                yield from _sizes(stage, loads, lane, rows, packed, lanes, target)


def _folds(stage: Stage, it: BlockIter, loads: Sequence[Access]) -> bool:
    """Whether vectors of partial results along a reduced iterator pay: some load is contiguous along it, and none is
    strided."""
    return any(a.stride(it.var) == 1 for a in loads) and all(a.stride(it.var) in (0, 1) for a in loads)


def _written_along(stage: Stage, it: BlockIter) -> bool:
    """Whether the results of `stage` are contiguous along the iterator `it`: it is the last index, and occurs in no
    other."""
    stores = [s for s in walk(stage.block.body) if isinstance(s, Store)]
    return all(
        s.indices and s.indices[-1] is it.var and all(it.var not in variables(i) for i in s.indices[:-1])
        for s in stores
    )


def _packings(it: BlockIter, loads: Sequence[Access]) -> list[tuple[int, ...]]:
    """The sets of loads that may be transposed for vectors along an iterator: none, or all loads that are strided along
    it, if possible."""
    across = tuple(k for k, a in enumerate(loads) if a.stride(it.var) not in (0, 1))
    if not across:
        return [()]
    able = it.kind == "spatial" and all(packs(loads[k], it.var) for k in across)
    return [(), across] if able else [()]


def packs(access: Access, lane: Var) -> bool:
    """Whether a load can be transposed so that `lane` is contiguous: `lane` alone is one of its indices, and in no
    other."""
    places = [k for k, i in enumerate(access.load.indices) if i is lane]
    moves = [m for m in access.moves if m is None or lane in m]
    return len(places) == 1 and len(moves) == 1 and all(as_int(d) is not None for d in access.buffer.shape)


def packed_order(access: Access, lane: Var, reduced: Sequence[Var]) -> tuple[int, ...]:
    """The order of a buffer's dimensions in its transposed copy: the lane is last, reduced dimensions come before
    it."""
    rank = len(access.moves)
    at = next(k for k, i in enumerate(access.load.indices) if i is lane)
    inner = [k for k in range(rank) if k != at and set(reduced) & (access.moves[k] or {}).keys()]
    return (*(k for k in range(rank) if k != at and k not in inner), *inner, at)


def transposed(stage: Stage, loads: Sequence[Access], tiling: Tiling) -> list[Access]:
    """The accesses `loads` as the tiles make them: those in `tiling.packed` read transposed copies."""
    lane, reduced = stage.block.iters[tiling.lane].var, [it.var for it in stage.reduce]
    return [a.permuted(packed_order(a, lane, reduced)) if k in tiling.packed else a for k, a in enumerate(loads)]


def _rows(stage: Stage, loads: Sequence[Access], lane: int, packed: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The sets of up to two iterators over which a tile, vectorised along iterator number `lane`, may have rows:
    because some load does not depend on them, so that rows share it, or because windows overlap along them. `packed`
    are the numbers of the loads that are transposed first."""
    iters = stage.block.iters
    sharing = [
        k
        for k, it in enumerate(iters)
        if k != lane and it.kind == "spatial" and number(it.extent) > 1 and any(not a.uses(it.var) for a in loads)
    ]
    # Windows overlap: neighbouring results read the same elements.
    sharing += [
        k
        for k, it in enumerate(iters)
        if k != lane
        and k not in sharing
        and it.kind == "spatial"
        and number(it.extent) > 1
        and _slides(stage, loads, it)
    ]
    pairs = [(a, b) for n, a in enumerate(sharing) for b in sharing[n + 1 :]]
    return [(), *((k,) for k in sharing), *pairs]


def _slides(stage: Stage, loads: Sequence[Access], it: BlockIter) -> bool:
    """Whether a load adds the iterator `it` to a reduced one in an index, as a window does."""
    reduced = {r.var for r in stage.reduce}
    return any(m is not None and it.var in m and reduced & m.keys() for a in loads for m in a.moves)


def _sizes(
    stage: Stage,
    loads: Sequence[Access],
    lane: int,
    rows: tuple[int, ...],
    packed: tuple[int, ...],
    lanes: int,
    target: Target,
) -> Iterator[Tiling]:
    """All tilings with vectors of `lanes` elements along the iterator number `lane` and tiles over the iterators `rows`
    that fit the registers, where the loads with the numbers `packed` read transposed copies."""
    iters = stage.block.iters
    reduced = iters[lane].kind == "reduce"
    counts = [
        [n for n in sizes if 1 < n <= number(iters[k].extent)] for k, sizes in zip(rows, (ROWS, SECOND), strict=False)
    ]
    for vectors in range(1, (1 if reduced else MAX_VECTORS) + 1):
        if vectors > 1 and (vectors - 1) * lanes >= number(iters[lane].extent):
            break
        if any(a.blocks.get(iters[lane].var, vectors * lanes) % (vectors * lanes) for a in loads):
            continue  # vectors would reach over the end of a block
        for chosen in product(*counts):
            tile = tuple(zip(rows, chosen, strict=True))
            if registers(iters, loads, lane, vectors, tile, packed) > target.registers:
                continue
            yield Tiling(lane, vectors, tile, packed)
            if rows and not reduced:
                yield Tiling(lane, vectors, tile, packed, swap=True)


def registers(
    iters: Sequence[BlockIter],
    loads: Sequence[Access],
    lane: int,
    vectors: int,
    rows: Sequence[tuple[int, int]],
    packed: tuple[int, ...],
) -> int:
    """The number of registers of a step of a tile of `vectors` vectors and `rows`, (iterator, iterations) pairs: the
    results, the loaded vectors that several results share, one for a broadcast element, and two for computation.
    `packed`: the indices of loads that are contiguous along `lane`."""
    retained = vectors * prod(n for _, n in rows)
    shared = 0
    for k, access in enumerate(loads):
        if k in packed or access.stride(iters[lane].var) != 0:
            shared += vectors * prod(n for at, n in rows if access.uses(iters[at].var))
    # Of two factors that both have vectors one is read straight from memory, row by row.
    each = [vectors * prod(n for at, n in rows if a.uses(iters[at].var)) for a in loads if a.uses(iters[lane].var)]
    return retained + (shared - max(each) + 1 if len(each) > 1 else shared) + 3


__all__ = ["Tiling", "packed_order", "packs", "tiling_of", "tilings", "transposed"]
