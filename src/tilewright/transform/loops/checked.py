"""Bounds that are checked while a function runs.

    block B: B[vi] = A[vi + d]           block B: if vi + d >= 0 and vi + d < n { B[vi] = A[vi + d] }
                                 ->               else if bounds[0] == 0 { bounds[0] = 1; bounds[1] = vi + d; ... }

An access that is proven to be inside is left alone. The first one that is outside is written into a buffer, with its
number, its index and the extent; what it was for is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tilewright.arith import prove
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Expr, Load, Var, const, equal, select
from tilewright.ir.guarded import Conditions, guarded_loads
from tilewright.ir.loops import TRUE, Block, For, If, Intrinsic, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, fresh_name, loads, map_stmt, walk, with_children
from tilewright.schedule.state import taken_names
from tilewright.support.classes import dataclass

ZERO = const(0)
FOUND = 3
"""What a call reports: the number of the access (0: all were inside), its index, the extent."""


@dataclass(frozen=True, slots=True)
class Access:
    """One index of a read or write that is not proven to lie in its dimension."""

    block: str
    buffer: str
    dimension: int
    index: Expr
    extent: Expr
    conditions: Conditions
    writes: bool = False

    def __str__(self) -> str:
        what = "writes" if self.writes else "reads"
        return (
            f"{self.block} {what} {self.buffer} at {self.index} in dimension {self.dimension}, which has {self.extent}"
        )

    @property
    def inside(self) -> Expr:
        return (self.index >= 0) & (self.index < self.extent)


def unproven(func: PrimFunc) -> tuple[Access, ...]:
    """The accesses of a function's blocks that are not proven to be inside."""
    found: dict[Access, None] = {}
    for block in (s for s in walk(func.body) if isinstance(s, Block)):
        extents = {it.var: it.extent for it in block.iters}
        for s in (block.body, *([] if block.init is None else [block.init])):
            found |= dict.fromkeys(_within(s, block.name, extents, ()))
    return tuple(found)


def check_bounds(func: PrimFunc) -> tuple[PrimFunc, tuple[Access, ...]]:
    """A function with a buffer more, into which it writes the first access that is outside; and the accesses that it
    checks, by their numbers from 1. Loops run one iteration after another."""
    report = Buffer(fresh_name("bounds", taken_names(func)), i64, (const(FOUND),))
    numbers: dict[tuple[object, ...], int] = {}
    accesses: list[Access] = []

    def number(a: Access) -> int:
        key = (a.block, a.buffer, a.dimension, a.index, a.writes)
        if key not in numbers:
            accesses.append(a)
            numbers[key] = len(accesses)
        return numbers[key]

    def on_block(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block):
            return None
        extents = {it.var: it.extent for it in s.iters}

        def guard(part: Stmt) -> Stmt:
            return _guard(part, s.name, extents, (), lambda a: (number(a), report))

        return replace(s, body=guard(s.body), init=None if s.init is None else guard(s.init))

    body = _serial(map_stmt(func.body, on_block))
    return replace(func, params=(*func.params, report), body=body), tuple(accesses)


Numbered = Callable[[Access], tuple[int, Buffer]]


def _guard(s: Stmt, block: str, extents: Mapping[Var, Expr], given: Conditions, numbered: Numbered) -> Stmt:
    """A statement that runs only where all that it touches is inside, and else reports the first that is not."""
    children = tuple(_guard(c, block, inner, known, numbered) for c, inner, known in _children(s, extents, given))
    result = with_children(s, children)
    for access in reversed(tuple(_direct(s, block, extents, given))):
        inside = access.inside
        for condition in reversed(access.conditions):
            inside = select(condition, inside, TRUE)
        result = If(inside, result, _reporting(access, *numbered(access)))
    return result


def _reporting(access: Access, number: int, report: Buffer) -> Stmt:
    values = (const(number), access.index, access.extent)
    stores = [Store(report, (const(k),), v) for k, v in enumerate(values)]
    return If(equal(Load(report, (const(0),)), const(0)), seq(stores))


def _children(
    s: Stmt, extents: Mapping[Var, Expr], given: Conditions
) -> Iterator[tuple[Stmt, Mapping[Var, Expr], Conditions]]:
    """The statements inside of one, each with what holds there."""
    match s:
        case For():
            yield s.body, {**extents, s.var: s.extent}, given
        case If():
            yield s.then, extents, (*given, s.condition)
            if s.orelse is not None:
                yield s.orelse, extents, (*given, ~s.condition)
        case _:
            yield from ((c, extents, given) for c in s.children)


def _within(s: Stmt, block: str, extents: Mapping[Var, Expr], given: Conditions) -> Iterator[Access]:
    yield from _direct(s, block, extents, given)
    for child, inner, known in _children(s, extents, given):
        yield from _within(child, block, inner, known)


def _direct(s: Stmt, block: str, extents: Mapping[Var, Expr], given: Conditions) -> Iterator[Access]:
    """The accesses that a statement makes itself and that are not proven to be inside."""
    for e in exprs_of(s):
        for load, conditions in guarded_loads(e, set(loads(e))):
            yield from _outside(Access(block, load.buffer.name, 0, ZERO, ZERO, conditions), load, extents, given)
    match s:
        case Store():
            yield from _outside(Access(block, s.buffer.name, 0, ZERO, ZERO, (), True), s, extents, given)
        case Intrinsic():
            for r in (*s.outputs, *s.inputs):
                ends = tuple(start for start, _ in r.ranges), tuple(start + n - 1 for start, n in r.ranges)
                some = tuple(n > 0 for _, n in r.ranges if not prove(n > 0))
                for end in ends:
                    access = Access(block, r.buffer.name, 0, ZERO, ZERO, some, r in s.outputs)
                    yield from _outside(access, Load(r.buffer, end), extents, given)


def _outside(access: Access, at: Load | Store, extents: Mapping[Var, Expr], given: Conditions) -> Iterator[Access]:
    for d, (index, extent) in enumerate(zip(at.indices, at.buffer.shape, strict=True)):
        found = replace(access, dimension=d, index=index, extent=extent)
        if not prove(found.inside, extents, (*given, *access.conditions)):
            yield found


def _serial(s: Stmt) -> Stmt:
    """The same with serial loops: the first access that is outside is to be the first in the program's order."""
    if isinstance(s, For):
        return For(s.var, s.extent, _serial(s.body))
    return with_children(s, tuple(map(_serial, s.children))) if s.children else s
