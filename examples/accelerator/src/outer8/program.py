"""A product's program: a tensor expression, its schedule over the scratchpad, and instructions of its loops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from outer8.machine import CLEAR, FIELDS, FLOATS, LOAD, OUTER, SCRATCH, STORE, TILE
from tilewright import te
from tilewright.codegen.vta.points import offset, sizes, value
from tilewright.ir.expr import Buffer, Var
from tilewright.ir.loops import Allocate, For, Intrinsic, PrimFunc, Region, Seq, Stmt
from tilewright.transform.loops.placed import placed_loops


def blocks(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a block of results: as large as the scratchpad allows."""
    fitting = [
        (m, n)
        for m in range(TILE, rows + 1, TILE)
        for n in range(TILE, columns + 1, TILE)
        if rows % m == 0 and columns % n == 0 and m * n + (m + n) * TILE <= FLOATS
    ]
    return max(fitting, key=lambda block: (1 / (1 / block[0] + 1 / block[1]), block))


def scheduled(rows: int, depth: int, columns: int) -> PrimFunc:
    """Blocks of results, each summed over tiles of the depth."""
    a = te.placeholder((rows, depth), "float32", name="a")
    b = te.placeholder((depth, columns), "float32", name="b")
    k = te.reduce_axis((0, depth), name="k")
    sums = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="sums")
    y = te.compute((rows, columns), lambda i, j: sums[i, j], name="y")
    s = te.create_schedule(y)
    stage, inner = s[y], s[sums]
    inner.set_scope(SCRATCH)
    loads = inner.cache_read(a, SCRATCH), inner.cache_read(b, SCRATCH)
    _, j, _, _ = stage.tile(*stage.loops, *blocks(rows, columns))
    inner.compute_at(stage, j)
    (i_0, i_1), (j_0, j_1), (k_0, k_1) = [inner.split(loop, factor=TILE) for loop in inner.loops[-3:]]
    inner.reorder(k_0, i_0, j_0, i_1, j_1, k_1)
    for load in loads:
        load.compute_at(inner, k_0)
    cleared = inner.decompose_reduction(k_0)
    tiles = ((loads[0], "load"), (loads[1], "load"), (cleared, "clear"), (stage, "store"))
    for part, name in tiles:
        part.tensorize(part.tile(*part.loops[-2:], TILE, TILE)[2], f"outer8_{name}")
    inner.tensorize(i_1, "outer8_sum")
    return placed_loops(te.lower(s, [a, b, y], "outer8"))


@lru_cache(maxsize=64)
def words(rows: int, depth: int, columns: int) -> np.ndarray[Any, Any]:
    """The instructions of a product, int32[n, 8]."""
    func = scheduled(rows, depth, columns)
    results = [(*i, *[0] * (FIELDS - len(i))) for i in _instructions(func.body, func, {}, {}, 0)]
    return np.array(results, np.int32)


Instruction = tuple[int, ...]


def _instructions(
    s: Stmt, func: PrimFunc, values: dict[Var, int], places: dict[Buffer, int], free: int
) -> Iterator[Instruction]:
    """Loops run here; what is left are calls of intrinsics."""
    match s:
        case Seq():
            for child in s.stmts:
                yield from _instructions(child, func, values, places, free)
        case For():
            for n in range(int(value(s.extent, values))):
                yield from _instructions(s.body, func, {**values, s.var: n}, places, free)
        case Allocate():
            size = int(np.prod(sizes(s.buffer)))
            yield from _instructions(s.body, func, values, {**places, s.buffer: free}, free + size)
        case Intrinsic():
            yield from _call(s, func, values, places)
        case _:
            raise NotImplementedError(f"outer8 runs no {type(s).__name__}")


def _call(s: Intrinsic, func: PrimFunc, values: dict[Var, int], places: dict[Buffer, int]) -> Iterator[Instruction]:
    def at(region: Region) -> tuple[int, int]:
        """Where a tile begins, and how far its rows are from each other."""
        first = int(offset(region.buffer, [start for start, _ in region.ranges], values))
        return places.get(region.buffer, 0) + first, sizes(region.buffer)[-1]

    out = s.outputs[0]
    match s.name:
        case "outer8_load":
            yield LOAD, func.params.index(s.inputs[0].buffer), *at(s.inputs[0]), *at(out)
        case "outer8_store":
            yield STORE, func.params.index(out.buffer), *at(out), *at(s.inputs[0])
        case "outer8_clear":
            place, distance = at(out)
            yield CLEAR, place, distance
        case "outer8_sum":
            (sums, row), (a, a_row), (b, b_row) = (at(r) for r in (out, *s.inputs))
            for k in range(TILE):
                yield OUTER, sums, row, a + k, a_row, b + k * b_row
