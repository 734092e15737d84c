"""Remove stores into intermediate buffers that nothing reads, and loops that become empty.

alloc B: f32[8] { for i in 0..8 { B[i] = 0.0 }      ->    C[0] = 1.0
  C[0] = 1.0 }
"""

from __future__ import annotations

from tilewright.ir.expr import Buffer
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, loads, walk, with_children


def drop_dead_stores(func: PrimFunc) -> PrimFunc:
    """The function without buffers that are only written (its parameters are read by the caller)."""
    body = func.body
    while True:
        allocated = {s.buffer for s in walk(body) if isinstance(s, Allocate)}
        dead = allocated - _read(body)
        if not dead:
            return func if body is func.body else func.with_body(body)
        body = _without(body, dead) or Seq(())


def _read(body: Stmt) -> set[Buffer]:
    """The buffers that are loaded other than to update themselves, or used by an intrinsic."""
    members: set[Buffer] = set()
    for s in walk(body):
        own = s.buffer if isinstance(s, Store) else None
        for e in exprs_of(s):
            members.update(load.buffer for load in loads(e) if load.buffer != own)
        if isinstance(s, Intrinsic):
            members.update(r.buffer for r in (*s.outputs, *s.inputs))
    return members


def _without(s: Stmt, dead: set[Buffer]) -> Stmt | None:
    match s:
        case Store():
            return None if s.buffer in dead else s
        case Seq(stmts):
            retained = [r for c in stmts if (r := _without(c, dead)) is not None]
            return seq(retained) if retained else None
        case If(condition, then, orelse):
            first = _without(then, dead)
            second = None if orelse is None else _without(orelse, dead)
            if first is None:
                return None if second is None else If(~condition, second)
            return If(condition, first, second)
        case Allocate(buffer, body) if buffer in dead:
            return _without(body, dead)
        case For() | Let() | Allocate():
            inner = _without(s.body, dead)
            return None if inner is None else with_children(s, (inner,))
    return s
