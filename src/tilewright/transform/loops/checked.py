"""Check the bounds of accesses while a function runs.

    block B: B[vi] = A[vi + d]           block B: if vi + d >= 0 and vi + d < n { B[vi] = A[vi + d] }
                                 ->               else if bounds[0] == 0 { bounds[0] = 1; bounds[1] = vi + d; ... }

An access that is proven to be inside is not checked. The first access that is outside is reported in a buffer, with its
number, its index and the extent; the statement that makes it is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tilewright.arith import prove
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Expr, Load, Var, const, equal, select
from tilewright.ir.guarded import Conditions, guarded_loads
from tilewright.ir.loops import TRUE, Block, For, If, Intrinsic, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, fresh_name, loads, with_children
from tilewright.schedule.state import used_names_of
from tilewright.support.classes import dataclass

ZERO = const(0)
REPORT_WORDS = 3
"""The number of words that a call reports: the number of the access (0: all were inside), its index, the extent."""


@dataclass(frozen=True, slots=True)
class Access:
    """One index of a read or write that is not proven to lie in its dimension.

    The access happens if `conditions` (of the selects around it in its expression) and `assumptions` (of the enclosing
    statements) hold; `extents` are those of the enclosing loops.
    """

    block: str
    buffer: str
    dimension: int
    index: Expr
    extent: Expr
    conditions: Conditions
    writes: bool = False
    assumptions: Conditions = ()
    extents: tuple[tuple[Var, Expr], ...] = ()

    def __str__(self) -> str:
        what = "writes" if self.writes else "reads"
        return (
            f"{self.block} {what} {self.buffer} at {self.index} in dimension {self.dimension}, which has {self.extent}"
        )

    @property
    def inside(self) -> Expr:
        return (self.index >= 0) & (self.index < self.extent)


def unproven(func: PrimFunc) -> tuple[Access, ...]:
    """The accesses of a function that are not proven to be in bounds."""
    return tuple(dict.fromkeys(_within(func.body, func.name, {}, ())))


def check_bounds(func: PrimFunc) -> tuple[PrimFunc, tuple[Access, ...]]:
    """A function with an additional buffer, into which it writes the first access out of bounds; and the accesses that
    it checks, numbered from 1. All loops become serial."""
    report = Buffer(fresh_name("bounds", used_names_of(func)), i64, (const(REPORT_WORDS),))
    numbers: dict[tuple[object, ...], int] = {}
    accesses: list[Access] = []

    def number(a: Access) -> int:
        key = (a.block, a.buffer, a.dimension, a.index, a.writes)
        if key not in numbers:
            accesses.append(a)
            numbers[key] = len(accesses)
        return numbers[key]

    body = _serial(_guard(func.body, func.name, {}, (), lambda a: (number(a), report)))
    return replace(func, params=(*func.params, report), body=body), tuple(accesses)


Numbered = Callable[[Access], tuple[int, Buffer]]


def _guard(s: Stmt, block: str, extents: Mapping[Var, Expr], assumptions: Conditions, numbered: Numbered) -> Stmt:
    """A statement that runs `s`, inside of loops with the `extents`, only if all of its accesses are in bounds, and
    otherwise reports the first that is not. `numbered` returns an access's number and the buffer for the report;
    `block` is the name of the enclosing block."""
    children = tuple(
        _guard(c, name, inner, known, numbered) for c, name, inner, known in _children(s, block, extents, assumptions)
    )
    result = with_children(s, children)
    for access in reversed(tuple(_direct(s, block, extents, assumptions))):
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
    s: Stmt, block: str, extents: Mapping[Var, Expr], assumptions: Conditions
) -> Iterator[tuple[Stmt, str, Mapping[Var, Expr], Conditions]]:
    """The child statements of `s`, each with the name of its block, the extents of the loops around it and the
    conditions that hold there. Inside a block, loops and conditions around the block are not known."""
    match s:
        case Block():
            inner = {it.var: it.extent for it in s.iters}
            yield from ((c, s.name, inner, ()) for c in s.children)
        case For():
            yield s.body, block, {**extents, s.var: s.extent}, assumptions
        case If():
            yield s.then, block, extents, (*assumptions, s.condition)
            if s.orelse is not None:
                yield s.orelse, block, extents, (*assumptions, ~s.condition)
        case _:
            yield from ((c, block, extents, assumptions) for c in s.children)


def _within(s: Stmt, block: str, extents: Mapping[Var, Expr], assumptions: Conditions) -> Iterator[Access]:
    yield from _direct(s, block, extents, assumptions)
    for child, name, inner, known in _children(s, block, extents, assumptions):
        yield from _within(child, name, inner, known)


def _direct(s: Stmt, block: str, extents: Mapping[Var, Expr], assumptions: Conditions) -> Iterator[Access]:
    """The accesses that the statement `s` itself, not its children, makes inside of loops with the `extents`, and that
    are not proven to be in bounds."""
    for e in exprs_of(s):
        for load, conditions in guarded_loads(e, set(loads(e))):
            yield from _outside(Access(block, load.buffer.name, 0, ZERO, ZERO, conditions), load, extents, assumptions)
    match s:
        case Store():
            yield from _outside(Access(block, s.buffer.name, 0, ZERO, ZERO, (), True), s, extents, assumptions)
        case Intrinsic():
            for r in (*s.outputs, *s.inputs):
                ends = tuple(start for start, _ in r.ranges), tuple(start + n - 1 for start, n in r.ranges)
                some = tuple(n > 0 for _, n in r.ranges if not prove(n > 0))
                for end in ends:
                    access = Access(block, r.buffer.name, 0, ZERO, ZERO, some, r in s.outputs)
                    yield from _outside(access, Load(r.buffer, end), extents, assumptions)


def _outside(
    access: Access, at: Load | Store, extents: Mapping[Var, Expr], assumptions: Conditions
) -> Iterator[Access]:
    if any(prove(n <= 0) for n in extents.values()):
        return  # a loop without iterations
    for d, (index, extent) in enumerate(zip(at.indices, at.buffer.shape, strict=True)):
        result = replace(
            access, dimension=d, index=index, extent=extent, assumptions=assumptions, extents=tuple(extents.items())
        )
        if not prove(result.inside, extents, (*assumptions, *access.conditions)):
            yield result


def _serial(s: Stmt) -> Stmt:
    """The statement with all loops serial, so that the first access out of bounds is the first in program order."""
    if isinstance(s, For):
        return For(s.var, s.extent, _serial(s.body))
    return with_children(s, tuple(map(_serial, s.children))) if s.children else s
