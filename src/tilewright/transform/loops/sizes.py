"""The conditions on a call's sizes under which accesses stay inside of their buffers.

    block C: C[vi] = A[vi]   for vi < m, A of n elements      ->   needs m <= n

`checked.unproven` lists the accesses of a function that are not proven to be inside. If the index of one depends on
sizes and scalar arguments only, each call can check it once, before it runs. An index from memory cannot be checked so,
unless its element type bounds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilewright.arith import Analyzer, linear, simplify, symbolic_bounds
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const, equal, is_const, select
from tilewright.ir.loops import TRUE, Block, If, PrimFunc, Store, seq
from tilewright.ir.op_types import readable
from tilewright.ir.rewrite import fresh_name, loads, map_expr, substitute, variables, walk
from tilewright.schedule.state import conjoin, used_names_of, written_buffers
from tilewright.support.classes import dataclass
from tilewright.transform.loops.checked import Access

_LARGEST_TABLE = 1 << 16
"""The largest number of values of an index's element type for which the type's bound is used: a table may have an entry
for each value."""


@dataclass(frozen=True, slots=True)
class Outside:
    """An access that is out of bounds for the sizes of a call: the range of its index, and the extent; `sure` if the
    program certainly makes the access."""

    access: Access
    least: int | None
    most: int | None
    extent: int | None
    sure: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """Accesses that a call's sizes decide. `scalars` maps parameters without dimensions, whose numbers decide as well,
    to the variables that stand for them in the accesses. `partial` names blocks whose iterations the program may skip
    in part."""

    accesses: tuple[Access, ...] = ()
    scalars: tuple[tuple[Buffer, Var], ...] = ()
    partial: frozenset[str] = frozenset()

    def outside(self, values: Mapping[Var, Expr]) -> tuple[Outside, ...]:
        """The accesses that are not proven to be in bounds for the values `values` of sizes and scalar arguments."""
        results = (_outside(a, values, a.block in self.partial) for a in self.accesses)
        return tuple(f for f in results if f is not None)


def decided_by_sizes(func: PrimFunc, accesses: Iterable[Access]) -> tuple[Sizes, tuple[Access, ...]]:
    """(accesses that the sizes and scalar arguments of a call decide, accesses that data decides)."""
    written = set(written_buffers(func.body))
    scalars = {b: Var(b.name, b.dtype, None) for b in func.params if not b.shape and b not in written}
    by_sizes, by_data = [], []
    for a in accesses:
        known = _with_scalars(a, scalars)
        if _asks_data(known):
            by_data.append(a)
        else:
            by_sizes.append(known)
    mentioned = {v for a in by_sizes for e in _expressions(a) for v in variables(e)}
    passed = tuple((b, v) for b, v in scalars.items() if v in mentioned)
    return Sizes(tuple(by_sizes), passed, _partial(func) if by_sizes else frozenset()), tuple(by_data)


def _partial(func: PrimFunc) -> frozenset[str]:
    """The names of blocks of which some iterations may not run: blocks under a condition, and blocks that compute
    intermediate results, of which only needed elements are computed."""
    results = set(func.params)
    inside = {x.name for s in walk(func.body) if isinstance(s, If) for x in walk(s) if isinstance(x, Block)}
    blocks = (s for s in walk(func.body) if isinstance(s, Block))
    return frozenset(inside | {b.name for b in blocks if not results.issuperset(written_buffers(b))})


def requirement(access: Access) -> Expr | None:
    """A condition on sizes and scalar arguments under which an access is in bounds whenever it happens; None if it
    cannot be expressed without loop variables."""
    extents, conditions = dict(access.extents), (*access.assumptions, *access.conditions)
    ends = symbolic_bounds(access.index, extents, assumptions=conditions)
    if ends is None or any(v.axis or v in extents for e in (*ends, access.extent) for v in variables(e)):
        return None
    return simplify((ends[0] >= 0) & (ends[1] < access.extent))


def needed(access: Access) -> str:
    """The condition on sizes that an access needs, in words ("m <= n"); the access itself if there is none."""
    condition = requirement(access)
    return str(access) if condition is None else readable(condition)


def _or_nothing_runs(access: Access, condition: Expr) -> Expr:
    """The condition, required only if no loop around the access is empty."""
    own = {v for v, _ in access.extents}
    runs = [n > 0 for _, n in access.extents if own.isdisjoint(variables(n))]
    return simplify(select(conjoin(runs), condition, TRUE))


def guarded(func: PrimFunc, sizes: Sizes) -> PrimFunc | None:
    """A flat function that accesses nothing if its sizes are wrong. It has an additional parameter, into which it
    writes 0, or the number, from 1, of the access that fails. None if some access has no condition on sizes alone.

        C[i] = A[i] for i in 0..m    becomes    outside[0] = m <= n ? 0 : 1; if m <= n { ... }
    """
    conditions = [requirement(a) for a in sizes.accesses]
    places: dict[Var, Expr] = {v: Load(b, ()) for b, v in sizes.scalars}
    number: Expr = const(0)
    for k, (access, condition) in reversed(tuple(enumerate(zip(sizes.accesses, conditions, strict=True), 1))):
        if condition is None:
            return None
        number = select(substitute(_or_nothing_runs(access, condition), places), number, const(k))
    report = Buffer(fresh_name("outside", used_names_of(func)), i64, (const(1),))
    body = seq([Store(report, (const(0),), number), If(equal(number, const(0)), func.body)])
    at = len(func.params) - len(func.workspaces)
    return replace(func, params=(*func.params[:at], report, *func.params[at:]), body=body)


def _with_scalars(a: Access, scalars: Mapping[Buffer, Var]) -> Access:
    """An access with variables in place of loads of scalar parameters."""

    def bind(e: Expr) -> Expr:
        return map_expr(e, lambda x: scalars.get(x.buffer) if isinstance(x, Load) else None)

    def every(es: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple(map(bind, es))

    return replace(
        a,
        index=bind(a.index),
        extent=bind(a.extent),
        conditions=every(a.conditions),
        assumptions=every(a.assumptions),
        extents=tuple((v, bind(n)) for v, n in a.extents),
    )


def _expressions(a: Access) -> tuple[Expr, ...]:
    return (a.index, a.extent, *a.conditions, *a.assumptions, *(n for _, n in a.extents))


def _asks_data(a: Access) -> bool:
    """Whether it takes data in arrays, beside the sizes, to decide if access `a` is in bounds."""
    if not loads(a.index):
        return any(loads(n) for v, n in a.extents if v in variables(a.index))
    lo, hi = Analyzer(dict(a.extents), (*a.assumptions, *a.conditions)).bounds(a.index)
    return lo is None or lo < 0 or hi is None or hi >= _LARGEST_TABLE


def _outside(a: Access, values: Mapping[Var, Expr], partial: bool) -> Outside | None:
    """The access as out of bounds, for the values of the sizes in a call; None if it is proven to be in bounds.
    `partial`: the program may skip iterations of its block."""

    def bind(e: Expr) -> Expr:
        return simplify(substitute(e, values))

    index, extent = bind(a.index), bind(a.extent)
    extents = {v: bind(n) for v, n in a.extents}
    if any((as_int(n) or 0) <= 0 for n in extents.values() if as_int(n) is not None):
        return None  # a loop without iterations
    facts = tuple(map(bind, (*a.assumptions, *a.conditions)))
    analyzer = Analyzer(extents, facts)
    if any(is_const(f, False) for f in facts) or analyzer.prove((index >= 0) & (index < extent)):
        return None
    lo, hi = analyzer.bounds(index)
    straight = all(isinstance(atom, Var) and atom in extents for atom, _ in linear(index).terms)
    always = all(is_const(f, True) for f in facts) and all(as_int(n) is not None for n in (extent, *extents.values()))
    return Outside(a, lo, hi, as_int(extent), straight and always and not partial)
