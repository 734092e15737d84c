"""Copy propagation under a condition: read the source of a padded copy directly if no element of the copy is padding.

    alloc s: f32[8] {                                            if 1 <= t and t*6 + 7 < n {
      for i in 0..8 {                                              for j in 0..8 { B[j] = f(A[t*6 + j - 1]) }
        s[i] = select(1 <= t*6 + i and t*6 + i < n,       ->     } else {
                      A[t*6 + i - 1], 0.0) }                       alloc s: f32[8] { ... as before ... }
      for j in 0..8 { B[j] = f(s[j]) } }                         }

Tiles at the border of a map use the copy, all others read the map itself. Copies qualify if they are read no more often
than written and have their vector lanes contiguous in the source: they exist for their padding alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.arith import Analyzer
from tilewright.arith.compare import nonnegative_forms
from tilewright.arith.forms import to_expr
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, all_of, as_int, const
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import (
    exprs_of,
    loads,
    map_expr,
    map_stmt,
    names_of,
    own_loads,
    substitute,
    variables,
    walk,
    with_children,
)
from tilewright.support.classes import dataclass
from tilewright.transform.loops.copies import conjuncts, copy_fresh

Loops = dict[Var, Expr]


def forward_copies(func: PrimFunc) -> PrimFunc:
    """The function with versions that read the sources of padded copies directly."""
    body = _Forwarder(names_of(func), frozenset(func.params)).statement(func.body, {})
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Copy:
    """`buffer[indices] = select(condition, source, ...)` in `loops`, from the outermost."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    condition: Expr
    source: Load
    loops: tuple[For, ...]


class _Forwarder:
    """One walk over a function. Statements that write a parameter are left alone, since it might alias the source."""

    __slots__ = ("params", "used_names")

    def __init__(self, used_names: set[str], params: frozenset[Buffer]) -> None:
        self.used_names, self.params = used_names, params

    def statement(self, s: Stmt, outer: Loops) -> Stmt:
        if isinstance(s, For):
            outer = {**outer, s.var: s.extent}
        if isinstance(s, Allocate):
            forwarded = self.forwarded(s, outer)
            if forwarded is not None:
                return forwarded
        return with_children(s, tuple([self.statement(c, outer) for c in s.children])) if s.children else s

    def forwarded(self, s: Allocate, outer: Loops) -> Stmt | None:
        """The statements from a copy to its last reader in two versions, inside the allocations that follow `s`."""
        inner: Stmt = s.body
        enclosing: list[Buffer] = []
        while isinstance(inner, Allocate):
            enclosing.append(inner.buffer)
            inner = inner.body
        first, *after = inner.stmts if isinstance(inner, Seq) else (inner,)
        copy = _copy_in(first, s.buffer)
        readers = [k for k, x in enumerate(after) if any(_touches(x, s.buffer))]
        if copy is None or not readers:
            return None
        rest, after = seq(after[: readers[-1] + 1]), after[readers[-1] + 1 :]
        condition = _whole(copy, outer)
        direct = _direct(rest, copy) if condition is not None and self.is_free(rest, copy) else None
        if condition is None or direct is None:
            return None
        chosen = If(condition, copy_fresh(direct, self.used_names), Allocate(s.buffer, seq([first, rest])))
        body = seq([chosen, *after])
        for buffer in reversed(enclosing):
            body = Allocate(buffer, body)
        return body

    def is_free(self, rest: Stmt, copy: _Copy) -> bool:
        """Whether the statements that read the copy read it no more often than it was written and cannot write its
        source."""
        inside = list(walk(rest))
        written = {s.buffer for s in inside if isinstance(s, Store)}
        mixed = any(isinstance(s, Intrinsic) for s in inside) or copy.source.buffer in written
        return not mixed and self.params.isdisjoint(written) and _read_once(rest, copy)


def _copy_in(s: Stmt, buffer: Buffer) -> _Copy | None:
    """The padded copy that a nest of loops makes, if that is all it does."""
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    if not isinstance(s, Store) or s.buffer != buffer or any(x.kind in ("parallel", "thread") for x in loops):
        return None
    value = s.value
    if not loops or type(value) is not Op or value.name != "select" or type(value.args[1]) is not Load:
        return None
    source, lane = value.args[1], loops[-1]
    contiguous = s.indices[-1] is lane.var and source.indices[-1] is lane.var
    if lane.kind != "vectorized" or not contiguous or any(loads(i) for i in source.indices) or loads(value.args[0]):
        return None
    return _Copy(buffer, s.indices, value.args[0], source, tuple(loops))


def _touches(s: Stmt, buffer: Buffer) -> Iterator[bool]:
    """For each access in statement `s`, whether it is of the buffer. Stores, loads and regions of intrinsics are
    accesses."""
    for x in walk(s):
        yield isinstance(x, Store) and x.buffer == buffer
        yield isinstance(x, Intrinsic) and any(r.buffer == buffer for r in (*x.outputs, *x.inputs))
        yield from (load.buffer == buffer for load in own_loads(x))


def _whole(copy: _Copy, outer: Loops) -> Expr | None:
    """The condition under which all elements of a copy come from its source; None if it cannot be expressed or never
    holds."""
    inner = {s.var: s.extent for s in copy.loops}
    an = Analyzer({**outer, **inner})
    eliminator = Eliminator(an, frozenset(inner))
    parts: list[Expr] = []
    for part in conjuncts(an.simplify(copy.condition)):
        slacks = nonnegative_forms(an, part)
        ends = eliminator.of_form(slacks[0]) if len(slacks) == 1 else None
        if ends is None:
            return None
        parts.append(an.simplify(to_expr(ends[0]) >= 0))
    condition = Analyzer(outer).simplify(all_of(dict.fromkeys(parts)))
    return None if isinstance(condition, Const) else condition


def _read_once(s: Stmt, copy: _Copy) -> bool:
    """Whether a statement reads the copy at most as often as the copy has elements."""
    written = _times(copy.loops)
    read = 0
    for enclosing in _reads(s, copy.buffer, ()):
        times = _times(enclosing)
        if times is None:
            return False
        read += times
    return written is not None and 0 < read <= written


def _times(loops: tuple[For, ...]) -> int | None:
    extents = [as_int(s.extent) for s in loops]
    return None if None in extents else prod(e for e in extents if e is not None)


def _reads(s: Stmt, buffer: Buffer, enclosing: tuple[For, ...]) -> Iterator[tuple[For, ...]]:
    for e in exprs_of(s):
        for load in loads(e):
            if load.buffer == buffer:
                yield enclosing
    for child in s.children:
        yield from _reads(child, buffer, (*enclosing, s) if isinstance(s, For) else enclosing)


def _direct(s: Stmt, copy: _Copy) -> Stmt | None:
    """The readers with the source in place of the copy; None if the source's index is not a function of the copy's."""
    places = tuple(Var(f"place{k}") for k in range(len(copy.indices)))
    inverse: dict[Var, Expr] = {}
    an = Analyzer()
    for index, place in zip(copy.indices, places, strict=True):
        own = [v for v in variables(index) if any(v is x.var for x in copy.loops)]
        if own and own[-1] not in inverse:
            fastest = min(own, key=lambda v: _step(index, v, an))
            if _step(index, fastest, an) != 1:
                return None
            inverse[fastest] = place - substitute(index, {fastest: const(0)})
    indices = tuple(an.simplify(substitute(i, inverse)) for i in copy.source.indices)
    if any(v is x.var for i in indices for v in variables(i) for x in copy.loops):
        return None

    def on(e: Expr) -> Expr | None:
        if type(e) is not Load or e.buffer != copy.buffer:
            return None
        supplied = dict(zip(places, e.indices, strict=True))
        return Load(copy.source.buffer, tuple(substitute(i, supplied) for i in indices))

    memo: dict[Expr, Expr] = {}
    return map_stmt(s, lambda _: None, lambda e: map_expr(e, on, memo))


def _step(index: Expr, v: Var, an: Analyzer) -> int:
    """The increase of an index when the variable `v` grows by 1; 0 if that is not a constant."""
    step = an.simplify(substitute(index, {v: v + 1}) - index)
    value = as_int(step)
    return value if value is not None else 0
