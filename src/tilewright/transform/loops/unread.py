"""Remove loop iterations whose results nothing reads.

    for b in 0..(n + 47)//48 {                          for b in 0..(n + 47)//48 {
      alloc t: f32[48] {                                  alloc t: f32[48] {
        for j in 0..4 { ... t[j*12 + i] = ... }    ->       for j in 0..min((n - b*48 + 11)//12, 4) { ... }
        for k in 0..48 {                                    for k in 0..48 {
          if b*48 + k < n { A[b*48 + k] = t[k] } } } }        if b*48 + k < n { A[b*48 + k] = t[k] } } } }

So a block at the end of a map, such as the last block of Winograd tiles, costs only what its own tiles cost. If all
reads of a dimension are below a limit, a serial loop that determines the outer part of that index and stores nothing
else stops at the limit. Loops without a serial loop inside, or with a condition around the whole body, stay as they
are. So do, for known sizes, loops whose iterations together prefetch weights from memory: fewer would prefetch less.

If such a loop goes over tiles of several rows and sizes are not known, the rows of the last tile are guarded by the
condition that they are read, by which `even.py` then divides the tiles:

    for j in 0..(n + 3)//4 {                          for j in 0..(n + 3)//4 {
      for i in unrolled 0..4 { t[j*4 + i] = x } }  ->   for i in unrolled 0..4 { if j*4 + i < n { t[j*4 + i] = x } } }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from tilewright.arith import Analyzer
from tilewright.arith.compare import coefficient
from tilewright.arith.forms import to_expr
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_int, const, is_const, minimum
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Stmt, Store
from tilewright.ir.notes import NonresidentWeights, Prefetch, find
from tilewright.ir.rewrite import exprs_of, loads, map_stmt, own_loads, variables, walk, walk_expr, with_children
from tilewright.transform.loops.copies import conjuncts
from tilewright.transform.loops.remainder import MAX_REMAINDER

Loops = dict[Var, Expr]


def leave_out_unread(func: PrimFunc) -> PrimFunc:
    """The function without the last iterations of loops if nothing reads their results."""
    if not any(isinstance(s, If) for s in walk(func.body)):
        return func
    nonresident = NonresidentWeights("memory") in func.notes and not func.symbols
    body = _statement(func.body, {}, nonresident, bool(func.symbols))
    return func if body is func.body else func.with_body(body)


def _statement(s: Stmt, outer: Loops, nonresident: bool, even: bool) -> Stmt:
    """Rewrites a statement bottom-up, since a buffer inside another's scope reads that one. `nonresident`: weights come
    from memory; `even`: single rows of tiles are removed too."""
    if not s.children:
        return s
    inside = {**outer, s.var: s.extent} if isinstance(s, For) else outer
    s = with_children(s, tuple([_statement(c, inside, nonresident, even) for c in s.children]))
    if isinstance(s, Allocate):
        reads: list[_Read] | None = None
        for place in range(len(s.buffer.shape)):
            reads = _reads(s.body, s.buffer, outer) if reads is None else reads
            limit = _limit(s.buffer, place, reads, outer)
            if limit is not None:
                s = replace(s, body=_Stopper(s.buffer, place, limit, nonresident, even).statement(s.body, outer))
                reads = None
    return s


_Read = tuple[tuple[Expr, ...], Eliminator]
"""The indices of a read, and an eliminator of the variables of loops inside the buffer's scope."""


def _reads(body: Stmt, buffer: Buffer, outer: Loops) -> list[_Read]:
    """The reads of a buffer in `body`, except those that only update the element which their statement stores."""
    known: dict[tuple[tuple[tuple[Var, Expr], ...], tuple[Expr, ...]], Eliminator] = {}
    results: list[_Read] = []
    for access, statement, loops, facts in accesses(body, buffer, {}):
        if isinstance(access, Store) or _updates(access, statement):
            continue
        enclosing = tuple(loops.items()), facts
        if enclosing not in known:
            known[enclosing] = Eliminator(Analyzer({**outer, **loops}, facts), frozenset(loops))
        results.append((access.indices, known[enclosing]))
    return results


def _limit(buffer: Buffer, place: int, reads: Sequence[_Read], outer: Loops) -> Expr | None:
    """An upper bound, in terms of enclosing loops, of the indices of all `reads` in dimension `place`; None if it is
    not below the dimension's extent."""
    members: set[Expr] = set()
    analyzer = Analyzer(outer)
    for index, inner in dict.fromkeys((indices[place], inner) for indices, inner in reads):
        ends = inner.limits(index)
        if not ends:
            bounds = inner.bounds(index)
            if bounds is None:
                return None
            ends = (bounds[1],)
        members.add(analyzer.simplify(reduce(minimum, [end + 1 for end in ends])))
    if len(members) != 1:
        return None
    (limit,) = members
    whole = analyzer.prove(limit >= buffer.shape[place])
    return None if whole or not any(isinstance(n, Var) for n in walk_expr(limit)) else limit


def accesses(
    s: Stmt, buffer: Buffer, loops: Loops, facts: tuple[Expr, ...] = ()
) -> Iterator[tuple[Load | Store, Stmt, Loops, tuple[Expr, ...]]]:
    """Each read and write of the buffer in `s`, with its statement and the loops and conditions around it, of which
    `loops` and `facts` are around `s`."""
    for load in own_loads(s):
        if load.buffer == buffer:
            yield load, s, loops, facts
    if isinstance(s, Store) and s.buffer == buffer:
        yield s, s, loops, facts
    if isinstance(s, For):
        loops = {**loops, s.var: s.extent}
    for child in s.children:
        known = [c for c in conjuncts(s.condition) if not loads(c)] if isinstance(s, If) and child is s.then else []
        yield from accesses(child, buffer, loops, (*facts, *known))


def _updates(access: Load, s: Stmt) -> bool:
    """Whether a load reads the element that its statement stores to."""
    return isinstance(s, Store) and s.buffer == access.buffer and s.indices == access.indices


class _Stopper:
    """Shortens loops that fill a buffer: each ends at the iteration where its index in dimension `place` reaches
    `limit`."""

    __slots__ = ("buffer", "even", "limit", "nonresident", "place")

    def __init__(self, buffer: Buffer, place: int, limit: Expr, nonresident: bool, even: bool) -> None:
        self.buffer, self.place, self.limit, self.nonresident, self.even = buffer, place, limit, nonresident, even

    def statement(self, s: Stmt, outer: Loops) -> Stmt:
        if not s.children:
            return s
        if isinstance(s, For):
            end = self.end(s, outer)
            if end is not None:
                return self.by_row(s, outer) or replace(s, extent=Analyzer(outer).simplify(minimum(s.extent, end)))
            outer = {**outer, s.var: s.extent}
        return with_children(s, tuple([self.statement(c, outer) for c in s.children]))

    def end(self, loop: For, outer: Loops) -> Expr | None:
        """The new extent of a loop that stores to the buffer alone; None if the loop may not end earlier."""
        inside = list(walk(loop.body))
        stores = [s for s in inside if isinstance(s, Store) and s.buffer == self.buffer]
        own = {s.buffer for s in inside if isinstance(s, Allocate)} | {self.buffer}
        others = any(isinstance(s, Intrinsic) or (isinstance(s, Store) and s.buffer not in own) for s in inside)
        small = not any(isinstance(s, For) and s.kind == "serial" for s in inside)
        if loop.kind != "serial" or isinstance(loop.body, If) or small or (self.nonresident and _sharing(inside)):
            return None
        if not stores or others:
            return None
        ends = {self.end_of(s, loop, inside, outer) for s in stores}
        return ends.pop() if len(ends) == 1 else None

    def by_row(self, loop: For, outer: Loops) -> For | None:
        """The loop over only the tiles with rows below the limit, each row guarded by a test that it is below; None if
        the loop does not go over tiles of rows."""
        rows = _tile_rows(loop, self.buffer, self.place) if self.even else None
        if rows is None:
            return None
        (size,) = {as_int(row.extent) for row in rows}
        assert size is not None
        an = Analyzer(outer)
        count = an.simplify(minimum(loop.extent * size, self.limit))
        mine = {row.var for row in rows}

        def following(s: Stmt) -> Stmt | None:
            if not isinstance(s, For) or s.var not in mine:
                return None
            row = loop.var * size + s.var
            return replace(s, body=If(row < count, _unless_known(s.body, row, count, an)))

        return replace(loop, extent=an.simplify((count + (size - 1)) // size), body=map_stmt(loop.body, following))

    def end_of(self, store: Store, loop: For, inside: list[Stmt], outer: Loops) -> Expr | None:
        """The iteration of `loop` from which on all indices that `store` writes are at or above the limit; None if it
        cannot be determined. `inside`: the statements in the loop; `outer`: the extents of the enclosing loops."""
        inner = {s.var: s.extent for s in inside if isinstance(s, For)}
        an = Analyzer({**outer, loop.var: loop.extent, **inner})
        parts = coefficient(an.form(store.indices[self.place]), loop.var)
        if parts is None:
            return None
        (terms, step), rest = parts
        ends = Eliminator(an, frozenset(inner)).of_form(rest)
        if terms or step <= 0 or ends is None:
            return None
        end = an.simplify((self.limit - to_expr(ends[0]) + (step - 1)) // step)
        return None if loop.var in variables(end) else end  # an index such as i + (i + j) // 3


def _sharing(inside: list[Stmt]) -> bool:
    """Whether the rows of a tile share a prefetch, each issuing a part of it."""
    notes = (find(s.notes, Prefetch) for s in inside if isinstance(s, For))
    return any(note is not None and note.rows is not None for note in notes)


def _unless_known(body: Stmt, row: Expr, count: Expr, an: Analyzer) -> Stmt:
    """`body` without its condition if the condition is `row < count`, or `row < m` for an operand m of a minimum
    `count`."""
    condition = body.condition if isinstance(body, If) and body.orelse is None else None
    if not isinstance(body, If) or type(condition) is not Op or condition.name != "lt":
        return body
    a, b = condition.args
    known = any(is_const(an.simplify(a - b - (row - limit)), 0) for limit in _minima(count))
    return body.then if known else body


def _minima(e: Expr) -> list[Expr]:
    """The operands of nested minima; the expression itself if it is no minimum."""
    return [m for a in e.args for m in _minima(a)] if type(e) is Op and e.name == "min" else [e]


def _tile_rows(loop: For, buffer: Buffer, place: int) -> list[For] | None:
    """The loops over a tile's rows if `loop` goes over tiles and does nothing but store rows whose numbers are index
    `place` of the buffer; None otherwise. Rows must not share elements of other buffers that the loop writes."""
    inside = list(walk(loop.body))
    loops = {s.var: s for s in inside if isinstance(s, For) and s.kind in ("unrolled", "serial")}
    members = set()
    for s in inside:
        if isinstance(s, Store) and s.buffer == buffer:
            row = [v for v in variables(s.indices[place]) if v in loops]
            size = as_int(loops[row[0]].extent) if len(row) == 1 else None
            if size is None or not 2 < size <= MAX_REMAINDER + 1:
                return None
            if Analyzer().simplify(s.indices[place] - loop.var * size - row[0]) is not const(0):
                return None
            members.add((size, loops[row[0]].kind))
    rows = {v: s for v, s in loops.items() if {(as_int(s.extent), s.kind)} == members}
    own = {s.buffer for s in inside if isinstance(s, Allocate)}
    if len(members) != 1 or any(not _one_place(inside, b, rows) for b in own):
        return None
    alone = all(sum(v in rows for v in enclosing) == 1 for enclosing in _enclosing_loops(loop.body))
    return list(rows.values()) if alone else None


def _one_place(inside: list[Stmt], buffer: Buffer, rows: Mapping[Var, For]) -> bool:
    """Whether one dimension of a buffer is indexed by a row variable in every access."""
    accesses = [e.indices for s in inside for part in exprs_of(s) for e in loads(part) if e.buffer == buffer]
    accesses += [s.indices for s in inside if isinstance(s, Store) and s.buffer == buffer]
    return any(all(indices[d] in rows for indices in accesses) for d in range(len(buffer.shape)))


def _enclosing_loops(s: Stmt, enclosing: tuple[Var, ...] = ()) -> Iterator[tuple[Var, ...]]:
    """For each store the variables of the loops around it."""
    if isinstance(s, Store):
        yield enclosing
    for child in s.children:
        yield from _enclosing_loops(child, (*enclosing, s.var) if isinstance(s, For) else enclosing)
