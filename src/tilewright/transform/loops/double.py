"""Double buffering: fill a loop's buffers one iteration ahead, alternating between two halves (the note
`DoubleBuffer`).

    for i in 0..n @double_buffer(buffers=[B]) {       alloc B: f32[2, 8] {
      alloc B: f32[8] {                                 if 0 < n { for j in 0..8 { B[0, j] = A[j] } }
        for j in 0..8 { B[j] = A[i*8 + j] }      ->     for i in 0..n {
        for j in 0..8 { C[i*8 + j] = B[j] }               if i + 1 < n { for j in 0..8 { B[(i + 1) % 2, j] = ... } }
      } }                                                 for j in 0..8 { C[i*8 + j] = B[i % 2, j] } } }

A loop that no longer has this form stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Load, const
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Region, Seq, Stmt, Store, seq
from tilewright.ir.notes import DoubleBuffer, find, without
from tilewright.ir.rewrite import (
    buffers_in,
    map_expr,
    map_exprs_of,
    names_of,
    substitute_stmt,
    variables,
    walk,
    with_children,
)
from tilewright.ir.scopes import find_memory, sharing
from tilewright.transform.loops.copies import copy_fresh

TWO = const(2)


def double_buffers(func: PrimFunc) -> PrimFunc:
    """The function in which the buffers of `DoubleBuffer` notes have two halves."""
    if not any(isinstance(s, For) and find(s.notes, DoubleBuffer) for s in walk(func.body)):
        return func
    return func.with_body(_statement(func.body, names_of(func)))


def _statement(s: Stmt, used_names: set[str]) -> Stmt:
    if s.children:
        s = with_children(s, tuple(_statement(c, used_names) for c in s.children))
    note = find(s.notes, DoubleBuffer) if isinstance(s, For) else None
    if not isinstance(s, For) or note is None:
        return s
    loop: Stmt = replace(s, notes=without(s.notes, DoubleBuffer))
    for name in note.buffers:
        loop = _doubled(loop, s, name, used_names)
    return loop


def _doubled(stmt: Stmt, old: For, name: str, used_names: set[str]) -> Stmt:
    """The statement with the buffer `name`, which the loop `old` fills, in two halves. The loop may stand after the
    first fills of other buffers."""
    loop = next((s for s in walk(stmt) if isinstance(s, For) and s.var is old.var), None)
    if loop is None or loop.kind != "serial":
        return stmt
    result = _parts(loop.body, name)
    if result is None:
        return stmt
    buffer, others, fill, rest = result
    reads = {b for s in fill for b in buffers_in(s)} - {buffer}
    if reads & _written(seq((*fill, *rest))) or reads & {a.buffer for a in others} or variables(buffer.size):
        return stmt
    # Which half is meant is known only when it runs: no register can be that, while a memory of its own can.
    scope = buffer.scope if find_memory(buffer.scope) or sharing(buffer.scope) else "global"
    half_parts = replace(buffer, shape=(TWO, *buffer.shape), scope=scope)
    following = loop.var + 1
    first = copy_fresh(substitute_stmt(seq(fill), {loop.var: const(0)}), used_names)
    upcoming = copy_fresh(substitute_stmt(seq(fill), {loop.var: following}), used_names)
    body: Stmt = seq(
        (
            If(following < loop.extent, _half(upcoming, buffer, half_parts, following % TWO)),
            _half(seq(rest), buffer, half_parts, loop.var % TWO),
        )
    )
    for other in reversed(others):
        body = replace(other, body=body)
    start = _half(first, buffer, half_parts, const(0))
    new = Allocate(half_parts, seq((If(const(0) < loop.extent, start), replace(loop, body=body))))
    return _replaced(stmt, loop, new)


def _parts(body: Stmt, name: str) -> tuple[Buffer, list[Allocate], list[Stmt], list[Stmt]] | None:
    """(buffer, other allocations, statements that fill the buffer, other statements) of a loop's body, for the buffer
    called `name`; None if the buffer is read before it is filled."""
    others: list[Allocate] = []
    buffer: Buffer | None = None
    while isinstance(body, Allocate):
        if body.buffer.name == name:
            buffer = body.buffer
        else:
            others.append(body)
        body = body.body
    if buffer is None or not isinstance(body, Seq):
        return None
    fill = [s for s in body.stmts if buffer in _written(s)]
    rest = [s for s in body.stmts if buffer not in _written(s)]
    last = max((k for k, s in enumerate(body.stmts) if buffer in _written(s)), default=0)
    early = any(buffer in buffers_in(s) for s in body.stmts[:last] if s not in fill)
    return None if not fill or not rest or early else (buffer, others, fill, rest)


def _written(stmt: Stmt) -> set[Buffer]:
    members = {s.buffer for s in walk(stmt) if isinstance(s, Store)}
    return members | {r.buffer for s in walk(stmt) if isinstance(s, Intrinsic) for r in s.outputs}


def _half(stmt: Stmt, old: Buffer, new: Buffer, half: Expr) -> Stmt:
    """A statement with one half of the doubled buffer in place of the old buffer."""
    memo: dict[Expr, Expr] = {}

    def load(e: Expr) -> Expr | None:
        return Load(new, (half, *e.indices)) if type(e) is Load and e.buffer == old else None

    def region(r: Region) -> Region:
        return Region(new, ((half, const(1)), *r.ranges)) if r.buffer == old else r

    def go(s: Stmt) -> Stmt:
        s = map_exprs_of(with_children(s, tuple(map(go, s.children))), lambda e: map_expr(e, load, memo))
        match s:
            case Store() if s.buffer == old:
                return Store(new, (half, *s.indices), s.value)
            case Intrinsic():
                return replace(s, outputs=tuple(map(region, s.outputs)), inputs=tuple(map(region, s.inputs)))
        return s

    return go(stmt)


def _replaced(s: Stmt, old: Stmt, new: Stmt) -> Stmt:
    if s is old:
        return new
    return with_children(s, tuple(_replaced(c, old, new) for c in s.children)) if s.children else s
