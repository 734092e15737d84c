"""The estimated cycles of a sketch: the steps of its register tile, the folding of partial results, transpositions, and
the traffic between levels of memory.

Traffic into a level is counted by footprints: the data of the largest set of inner loops that fit the level are loaded
once for each iteration of the loops around; for loops directly around that a load does not depend on, its data are
still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import ceil, log2, prod

from tilewright.ir.expr import Var
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import walk
from tilewright.plans.framework.analysis import Stage
from tilewright.plans.framework.cost import Cost, load_cycles, nbytes_of, number, store_cycles, weight
from tilewright.plans.idioms.tile_axes import shuffle_cycles
from tilewright.plans.sketch.access import Access
from tilewright.plans.sketch.tiling import Tiling, transposed
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

FOLD = 1.0
"""The operations to halve a vector of partial results: one moves a half, one combines."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A load as tiles read it, possibly transposed: its stride along the vectors' iterator, and whether its address
    changes in each step of the reduction."""

    access: Access
    stride: int | None
    varies: bool
    line: int
    _touched: dict[tuple[int, ...], float] = field(default_factory=dict, repr=False, compare=False)

    def touched(self, extents: Mapping[Var, int]) -> float:
        """The bytes, in whole cache lines, that iterations of these extents read."""
        these = tuple([extents[v] for v in self.access.mentioned])
        entry = self._touched.get(these)
        if entry is None:
            entry = self._touched[these] = self.access.touched(extents, self.line)
        return entry


class Estimator:
    """Estimates the cost of each sketch of one reduction. Parts that many sketches share are computed once: there are
    hundreds."""

    def __init__(self, stage: Stage, loads: Sequence[Access], lanes: int, target: Target) -> None:
        self.stage, self.loads, self.lanes, self.target = stage, loads, lanes, target
        self.extents = {it.var: number(it.extent) for it in stage.block.iters}
        self.operations = _operations(stage, target)
        self._readings: dict[tuple[int, tuple[int, ...]], tuple[Reading, ...]] = {}
        self._packings: dict[tuple[int, ...], Cost] = {}

    def readings(self, tiling: Tiling) -> tuple[Reading, ...]:
        """The loads of the stage as tiles read them, one entry for each load, with `tiling`'s vectorised iterator and
        packed operands. Results are cached."""
        known = self._readings.get((tiling.lane, tiling.packed))
        if known is None:
            lane = self.stage.block.iters[tiling.lane].var
            read = transposed(self.stage, self.loads, tiling)
            line = self.target.caches.line
            known = tuple(Reading(a, a.stride(lane), _varies(a, self.stage), line) for a in read)
            self._readings[tiling.lane, tiling.packed] = known
        return known

    def estimate(self, tiling: Tiling) -> Cost:
        """The estimated cycles of the reduction with this sketch."""
        stage, target, lanes, extents = self.stage, self.target, self.lanes, self.extents
        iters = stage.block.iters
        read = self.readings(tiling)
        rows = {iters[k].var: n for k, n in tiling.rows}
        lane = iters[tiling.lane].var
        reduced = iters[tiling.lane].kind == "reduce"
        # Loops with tails: a last tile has as many rows as are left, a last vector counts whole.
        vectors = ceil(extents[lane] / lanes)
        tiles = ceil(vectors / tiling.vectors)
        outer = prod(extents[it.var] for it in stage.spatial if it.var is not lane and it.var not in rows)
        depth = prod(extents[it.var] for it in stage.reduce if it.var is not lane)
        row_tiles = prod(ceil(extents[v] / n) for v, n in rows.items())
        row_points = prod(extents[v] for v in rows)
        steps = outer * depth * tiles * row_tiles
        arithmetic = self.operations * outer * depth * vectors * row_points / target.fma_per_cycle
        latency = steps * target.costs.arithmetic.fma_latency
        loaded, gathered = _loaded(read, rows, vectors / tiles)
        separate = steps * lanes * gathered * target.costs.arithmetic.gathered
        size = max(4, stage.writes[0].dtype.itemsize)
        results = outer * row_points
        folds = results * FOLD * log2(lanes) if reduced else 0.0
        begun = outer * row_tiles * (1 if reduced else tiles) * target.costs.arithmetic.tile_overhead
        stored = results * (1 if reduced else vectors) * lanes * size
        inner = Cost(
            max(arithmetic, latency) + separate,
            load_cycles(steps * loaded * lanes * size, target),
            store_cycles(stored, target),
            traffic(stage, read, tiling, lanes, target),
            begun + folds,
        )
        return inner if not tiling.packed else inner + self.packing(tiling.packed)

    def packing(self, packed: tuple[int, ...]) -> Cost:
        """The estimated cycles of the transpositions of these loads."""
        known = self._packings.get(packed)
        if known is None:
            known = self._packings[packed] = packing([self.loads[k] for k in packed], self.target)
        return known


def _operations(stage: Stage, target: Target) -> float:
    """The operations per point of the iteration space, in multiply-adds: at least the one that reduces."""
    stores = [s for s in walk(stage.block.body) if isinstance(s, Store)]
    return sum(max(1.0, weight(s.value, target), _integers(s)) for s in stores)


def _integers(store: Store) -> float:
    """The operations on integers, which `weight` does not count: those of the reduced value and the reduction
    itself."""
    return 0.0 if store.buffer.dtype.is_float else 2.0


def _varies(access: Access, stage: Stage) -> bool:
    """Whether the address of the load `access` changes with an iterator that `stage` reduces."""
    return any(access.uses(it.var) for it in stage.reduce)


def _loaded(read: Sequence[Reading], rows: Mapping[Var, int], vectors: float) -> tuple[float, float]:
    """For one step of a tile with `rows` and `vectors` vectors a row: (whole vectors or broadcasts to load, vectors to
    load element by element)."""
    whole = separate = 0.0
    for r in read:
        if not r.varies:
            continue
        own = prod(n for v, n in rows.items() if r.access.uses(v))
        if r.stride == 0:
            whole += own
        elif r.stride in (1, -1):
            whole += own * vectors
        else:
            separate += vectors * own
    return whole, separate


def packing(transposed: Sequence[Access], target: Target) -> Cost:
    """The cost of transpositions before the tiles: a read, shuffles in registers, and a write."""
    total = Cost()
    for access in transposed:
        size = nbytes_of(access.buffer)
        shuffles = shuffle_cycles(size / access.itemsize, target)
        from_memory = size / target.l2_bandwidth if size > target.l1 // 2 else 0.0
        total += Cost(shuffles, load_cycles(size, target), store_cycles(size, target), 2 * from_memory)
    return total


def traffic(stage: Stage, read: Sequence[Reading], tiling: Tiling, lanes: int, target: Target) -> float:
    """The cycles of the transfers of the loads `read` into the first level of cache and the levels beyond, with the
    loops of `tiling` and vectors of `lanes` elements."""
    order = loop_order(stage, tiling, lanes)
    sizes = (target.l1, target.l2, target.l3)
    rates = (target.l2_bandwidth, target.l3_bandwidth, target.memory_bandwidth)
    retained = target.costs.traffic
    shares = (retained.resident_l1, retained.resident_l2, retained.resident_l3)
    touched: list[list[float]] = []

    def whole(k: int) -> float:
        """The bytes that the loops from number `k` on read; the bytes of each load are recorded on the way."""
        while len(touched) <= k:
            inside = _inside(order, len(touched))
            touched.append([r.touched(inside) for r in read])
        return sum(touched[k])

    total = 0.0
    for size, share, rate in zip(sizes, shares, rates, strict=True):
        if whole(0) <= share * size:
            break
        first = next((k for k in range(len(order) + 1) if whole(k) <= share * size), len(order))
        enclosing = order[:first]
        total += sum(touched[first][k] * _times(r.access, enclosing) for k, r in enumerate(read)) / rate
    return total


def loop_order(stage: Stage, tiling: Tiling, lanes: int) -> list[tuple[Var, int, int]]:
    """(iterator, number of iterations, values of the iterator per iteration) of each loop of `tiling`, with vectors of
    `lanes` elements, from outside to inside."""
    iters = stage.block.iters
    rows = dict(tiling.rows)
    lane = tiling.lane
    width = lanes * tiling.vectors
    free = [k for k, it in enumerate(iters) if it.kind == "spatial" and k != lane and k not in rows]
    spatial = [(k, 1) for k in free]
    tiles = [(k, rows[k]) for k in rows]
    panel = [(lane, width)] if iters[lane].kind == "spatial" else []
    spatial += [*tiles, *panel] if tiling.swap else [*panel, *tiles]
    reduce = [(k, lanes if k == lane else 1) for k, it in enumerate(iters) if it.kind == "reduce"]
    created = []
    for k, inner in (*spatial, *reduce):
        extent = number(iters[k].extent)
        created.append((iters[k].var, ceil(extent / inner), min(inner, extent)))
    return created


def _inside(order: Sequence[tuple[Var, int, int]], first: int) -> dict[Var, int]:
    """The number of values of each iterator that the loops from number `first` on cover."""
    return {v: inner * (times if k >= first else 1) for k, (v, times, inner) in enumerate(order)}


def _times(access: Access, enclosing: Sequence[tuple[Var, int, int]]) -> int:
    """How often the loops `enclosing` load what `access` reads inside of them: the iterations of all down to the
    innermost that changes its address."""
    used = [k for k, (v, _, _) in enumerate(enclosing) if access.uses(v)]
    return prod(times for _, times, _ in enclosing[: used[-1] + 1]) if used else 1


__all__ = ["Estimator"]
