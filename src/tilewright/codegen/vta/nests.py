"""Loops of GEMM and ALU instructions: express the rows of all operations by two loops and a list of micro-operations.

    dst = y*56 + x,  src = c*522 + (y + ky)*58 + x + kx     ->     iter_out c, iter_in y, micro-operations over (ky,
    kx, x)

Loops whose steps agree become one. Of the rest two become the instruction's loops, so that few micro-operations remain;
and operations that write the same row keep a distance, as the pipeline of the GEMM core requires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.targets.vta.check import GEMM_DEPTH

Array = np.ndarray[Any, Any]

MAX_UOPS = 4096
"""The largest number of micro-operations of one instruction: half of their buffer."""
_MAX_STEP = 1023
_MAX_LOOP = (1 << 14) - 1


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops of one instruction: their two extents, the steps of each operand in both, and the rows of the
    micro-operations inside."""

    extents: tuple[int, int]
    steps: tuple[tuple[int, int], ...]
    uops: Array

    @property
    def operations(self) -> int:
        return self.extents[0] * self.extents[1] * len(self.uops)


@dataclass(frozen=True, slots=True)
class _Dim:
    extent: int
    steps: tuple[int, ...]


def nests(rows: Sequence[Array], *, depth: int = GEMM_DEPTH) -> Iterator[Nest]:
    """Yield nests of loops that together run all given operations.

    Args:
        rows: for each operand (destination first) its row in every operation, as arrays of one shape; the order of
            operations is free.
        depth: the least distance between operations that write the same row.
    """
    base = tuple(int(r.flat[0]) for r in rows) if rows[0].size else ()
    if not base:
        return
    dims = _dims(rows)
    if dims is None:  # no loops reach these rows: a list
        table = np.stack([r.ravel() for r in rows], 1)
        for at in range(0, len(table), MAX_UOPS):
            yield Nest((1, 1), ((0, 0),) * len(rows), table[at : at + MAX_UOPS])
        return
    yield from _split(base, _joined(dims), depth)


def _dims(rows: Sequence[Array]) -> list[_Dim] | None:
    """The loops of a nest in which operand k accesses the rows `rows[k]`, one for each dimension of these arrays that
    is longer than 1, with the step of each operand; None if an operand does not step evenly, or steps backwards."""
    shape = rows[0].shape
    dims = []
    for d, extent in enumerate(shape):
        if extent > 1:
            at = tuple(1 if k == d else 0 for k in range(len(shape)))
            dims.append(_Dim(extent, tuple(int(r[at]) - int(r.flat[0]) for r in rows)))
    for k, r in enumerate(rows):
        built = np.full((), int(r.flat[0]))
        for extent, d in ((n, d) for d, n in enumerate(shape) if n > 1):
            step = dims[[i for i, n in enumerate(shape) if n > 1].index(d)].steps[k]
            built = built + (np.arange(extent) * step).reshape([-1 if i == d else 1 for i in range(len(shape))])
        if not np.array_equal(np.broadcast_to(built, shape), r):
            return None
    return dims if all(step >= 0 for d in dims for step in d.steps) else None


def _joined(dims: Sequence[_Dim]) -> list[_Dim]:
    """The loops `dims`, with neighbours joined to one loop whose operands step evenly through both."""
    results: list[_Dim] = []
    for dim in dims:
        if results and all(a == b * dim.extent for a, b in zip(results[-1].steps, dim.steps, strict=True)):
            results[-1] = _Dim(results[-1].extent * dim.extent, dim.steps)
        else:
            results.append(dim)
    return results


def _split(base: tuple[int, ...], dims: list[_Dim], depth: int) -> Iterator[Nest]:
    """Yield the best nest of instructions for the loops `dims`, whose operands begin at the rows `base`; if no single
    nest fits, yield nests for each iteration of one loop. The distance between operations that write the same
    row is at least `depth`."""
    results = _best(base, dims, depth)
    if results is not None:
        yield results
        return
    # A loop that sums is decomposed first: its parts write each row once.
    outer = next((k for k, d in enumerate(dims) if not d.steps[0]), 0)
    dim = dims[outer]
    for n in range(dim.extent):
        at = tuple(b + n * step for b, step in zip(base, dim.steps, strict=True))
        yield from _split(at, [*dims[:outer], *dims[outer + 1 :]], depth)


def _best(base: tuple[int, ...], dims: list[_Dim], depth: int) -> Nest | None:
    padded = [*dims, _Dim(1, (0,) * len(base)), _Dim(1, (0,) * len(base))]
    best: tuple[int, int, int, int] | None = None
    for a, b in permutations(range(len(padded)), 2):
        if any(padded[k].extent > _MAX_LOOP or max(padded[k].steps) > _MAX_STEP for k in (a, b)):
            continue
        rest = _rest(padded, a, b)
        count = int(np.prod([d.extent for d in rest], dtype=np.int64))
        if count > MAX_UOPS or _distance([padded[a], padded[b], *rest]) < depth:
            continue
        if best is None or count < best[0]:
            best = (count, 0, a, b)
    if best is None:
        return None
    _, _, a, b = best
    rows = np.array([base], np.int64)
    for dim in _rest(padded, a, b):
        moves = np.arange(dim.extent)[:, None] * np.array(dim.steps)
        rows = (rows[:, None, :] + moves[None, :, :]).reshape(-1, len(base))
    out, inner = padded[a], padded[b]
    steps = tuple(zip(out.steps, inner.steps, strict=True))
    return Nest((out.extent, inner.extent), steps, rows)


def _rest(dims: Sequence[_Dim], a: int, b: int) -> list[_Dim]:
    """The loops of `dims` that become micro-operations, all but numbers `a` and `b`, which the instruction runs. Loops
    that sum into one row, whose destination does not move, come first."""
    rest = [d for k, d in enumerate(dims) if k not in (a, b) and d.extent > 1]
    return [*(d for d in rest if not d.steps[0]), *(d for d in rest if d.steps[0])]


def _distance(dims: Sequence[_Dim]) -> int:
    """The distance between two operations that write the same row, in operations; a large number if none do. Loops that
    move the destination row are taken to reach different rows."""
    distance = 1
    for dim in reversed(dims):
        if dim.extent > 1 and not dim.steps[0]:
            return distance
        distance *= dim.extent
    return 1 << 30
