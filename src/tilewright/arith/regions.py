"""Regions: which boxes of which buffers a statement reads and writes.

Loops inside the statement are eliminated by symbolic bounds; a block's regions are over its own iterators, any other
statement's over the loops around it. One region a buffer: the union box. A dimension whose index cannot be bounded
(loaded from memory, say) counts whole.

    for ii in 0..8 { B[io*8 + ii] = A[io*8 + ii + 1] }     reads A[io*8 + 1 : 8], writes B[io*8 : 8]
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arith.analyzer import Analyzer, Extents
from tilewright.arith.symbolic import eliminate
from tilewright.ir.expr import Buffer, Expr, Var, const, maximum, minimum
from tilewright.ir.loops import Block, For, If, Intrinsic, Let, Region, Stmt, Store
from tilewright.ir.rewrite import loads, own_loads, substitute, walk
from tilewright.support.classes import dataclass

Ends = tuple[Expr, Expr]
"""Least and greatest index, inclusive."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: the box of the buffer that it may touch, with inclusive ends; None in dimensions that cannot
    be bounded.

    `conditions` are those of the `If`s around it; `indices` are empty for a region of an intrinsic.
    """

    buffer: Buffer
    box: tuple[Ends | None, ...]
    is_write: bool
    indices: tuple[Expr, ...] = ()
    conditions: tuple[Expr, ...] = ()


def reads(stmt: Stmt, context: Extents | None = None) -> tuple[Region, ...]:
    """The regions that `stmt` reads; a reduction reads what it updates. `context`: extents of loops around it."""
    return _regions(stmt, context, lambda access: not access.is_write)


def writes(stmt: Stmt, context: Extents | None = None) -> tuple[Region, ...]:
    """The regions that `stmt` writes."""
    return _regions(stmt, context, lambda access: access.is_write)


def _regions(stmt: Stmt, context: Extents | None, wanted: Callable[[Access], bool]) -> tuple[Region, ...]:
    collector = Collector(stmt, context)
    boxes: dict[Buffer, list[Access]] = {}
    for access in collector.accesses():
        if wanted(access):
            boxes.setdefault(access.buffer, []).append(access)
    return tuple(collector.region(buffer, candidate) for buffer, candidate in boxes.items())


class Collector:
    """The accesses of one statement, bounded over the loops inside it."""

    __slots__ = ("_ends", "_only", "_substitution", "analyzer", "inner", "root")

    def __init__(self, root: Stmt, context: Extents | None = None, common: Extents | None = None) -> None:
        """`context`: extents of loops around the statement, in whose variables boxes are expressed; `common`: extents
        of loops around whose iterations all count together."""
        self.root = root
        extents: dict[Var, Expr] = dict(context or {})
        if isinstance(root, Block):
            extents.update((it.var, it.extent) for it in root.iters)
        loops = {s.var: s.extent for s in walk(root) if isinstance(s, For)} | dict(common or {})
        self.inner = frozenset(loops)
        self.analyzer = Analyzer({**extents, **loops})
        self._ends: dict[Expr, Ends | None] = {}
        self._substitution: dict[Var, Expr] = {}
        self._only: Buffer | None = None

    def accesses(self, only: Buffer | None = None) -> list[Access]:
        """Every access (to one buffer), in program order: what a statement loads before what it stores."""
        results: list[Access] = []
        self._only = only
        if isinstance(self.root, Block):
            if self.root.init is not None:
                self._visit(self.root.init, results, False)
            self._visit(self.root.body, results, self.root.is_reduction)
        else:
            self._visit(self.root, results, False)
        return results

    def region(self, buffer: Buffer, accesses: list[Access]) -> Region:
        """The smallest box of `buffer` that contains the boxes of all `accesses` to it."""
        simplify = self.analyzer.simplify
        ranges: list[tuple[Expr, Expr]] = []
        for d, whole in enumerate(buffer.shape):
            ends = self.union([a.box[d] for a in accesses])
            if ends is None:
                ranges.append((const(0), whole))
            else:
                ranges.append((ends[0], simplify(ends[1] - ends[0] + 1)))
        return Region(buffer, tuple(ranges))

    def union(self, all_ends: list[Ends | None]) -> Ends | None:
        """The smallest range that contains all of these inclusive ranges; None if one of them is unknown."""
        hull: Ends | None = None
        for ends in dict.fromkeys(all_ends):
            if ends is None:
                return None
            if hull is None:
                hull = ends
            else:
                lo, hi = minimum(hull[0], ends[0]), maximum(hull[1], ends[1])
                hull = self.analyzer.simplify(lo), self.analyzer.simplify(hi)
        return hull

    def _visit(self, s: Stmt, result: list[Access], reduction: bool, conditions: tuple[Expr, ...] = ()) -> None:
        for load in own_loads(s):
            if self._wanted(load.buffer):
                result.append(self._access(load.buffer, load.indices, False, conditions))
        match s:
            case Store():
                if self._wanted(s.buffer):
                    result.append(self._access(s.buffer, s.indices, True, conditions))
            case Intrinsic():
                for r in filter(self._wanted_region, s.inputs):
                    result.append(Access(r.buffer, self._region_box(r), False, (), conditions))
                for r in filter(self._wanted_region, s.outputs):
                    if reduction:
                        result.append(Access(r.buffer, self._region_box(r), False, (), conditions))
                    result.append(Access(r.buffer, self._region_box(r), True, (), conditions))
            case Let():
                self._bind(s.var, s.value)
            case Block():
                for it in s.iters:
                    self._bind(it.var, it.binding)
                reduction = reduction or s.is_reduction
            case If():
                self._visit(s.then, result, reduction, (*conditions, substitute(s.condition, self._substitution)))
                if s.orelse is not None:
                    self._visit(
                        s.orelse, result, reduction, (*conditions, substitute(~s.condition, self._substitution))
                    )
                return
        for child in s.children:
            self._visit(child, result, reduction, conditions)

    def _access(
        self, buffer: Buffer, indices: tuple[Expr, ...], is_write: bool, conditions: tuple[Expr, ...]
    ) -> Access:
        indices = tuple([substitute(i, self._substitution) for i in indices])
        return Access(buffer, tuple([self._bounds(i) for i in indices]), is_write, indices, conditions)

    def _wanted(self, buffer: Buffer) -> bool:
        return self._only is None or buffer is self._only or buffer == self._only

    def _wanted_region(self, r: Region) -> bool:
        return self._wanted(r.buffer)

    def _bind(self, v: Var, value: Expr) -> None:
        self._substitution[v] = substitute(value, self._substitution)

    def _region_box(self, r: Region) -> tuple[Ends | None, ...]:
        box: list[Ends | None] = []
        for start, extent in r.ranges:
            low, high = (self._bounds(substitute(e, self._substitution)) for e in (start, start + extent - 1))
            box.append(None if low is None or high is None else (low[0], high[1]))
        return tuple(box)

    def _bounds(self, index: Expr) -> Ends | None:
        if index not in self._ends:
            ends = eliminate(index, self.inner, self.analyzer)
            if ends is not None and any(loads(e) for e in ends):
                ends = None
            self._ends[index] = ends
        return self._ends[index]
