"""Partial results of a row in a buffer of its own, which becomes registers, and stored once.

for r in 0..8 {                                      for r in 0..8 {
  for v in vectorized 0..16 { p[r, v] = 0 }            alloc own: f32[16]
  for k in 0..n {                                      for v in vectorized 0..16 { own[v] = 0 }
    for v in vectorized 0..16 {                        for k in 0..n {
      p[r, v] = p[r, v] + x[r, k*16 + v]                 for v in vectorized 0..16 { own[v] = own[v] + x[r, k*16 + v] }
    }                                                  }
  }                                                    for v in vectorized 0..16 { p[r, v] = own[v] }
}                                                    }
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Load, Var, is_const
from tilewright.ir.loops import Allocate, For, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, fresh_name, loads, map_expr, map_stmt, walk
from tilewright.transform.loops.merge import parts, touched


def promote_partials(loop: For, taken: set[str]) -> For:
    """A loop over rows with what each of them starts, adds to and leaves in its line of a local buffer held apart."""
    for buffer in sorted({x.buffer for x in walk(loop.body) if isinstance(x, Store)}, key=lambda b: b.name):
        first = next(x for x in parts(loop.body) if buffer in touched(x))
        if buffer.scope == "local" and _starts(first, buffer, loop.var) and _summed(loop, buffer):
            own = Buffer(fresh_name(f"{buffer.name}_row", taken), buffer.dtype, buffer.shape[-1:], "local")
            lane = Var(fresh_name("lane", taken))
            place = (loop.var, *_zeros(buffer, first), lane)
            store = For(lane, buffer.shape[-1], Store(buffer, place, Load(own, (lane,))), "vectorized")
            loop = replace(loop, body=Allocate(own, seq([_moved(loop.body, buffer, own), store])))
    return loop


def _starts(s: Stmt, buffer: Buffer, row: Var) -> bool:
    """Whether a statement sets the whole line of a row."""
    if not (isinstance(s, For) and s.kind == "vectorized" and isinstance(s.body, Store) and s.body.buffer == buffer):
        return False
    first, *middle, last = s.body.indices
    whole = s.extent is buffer.shape[-1] and last is s.var and first is row and all(is_const(i, 0) for i in middle)
    return whole and not any(x.buffer == buffer for x in loads(s.body.value))


def _summed(loop: For, buffer: Buffer) -> bool:
    """Whether inner loops add to the line of each row, and nothing else touches it or another row's."""
    inner = [x for x in walk(loop.body) if isinstance(x, For) and x.kind == "serial"]
    if not any(buffer in touched(x) for x in inner):
        return False
    return all(i[0] is loop.var and all(is_const(x, 0) for x in i[1:-1]) for i in _places(loop.body, buffer))


def _places(s: Stmt, buffer: Buffer) -> list[tuple[Expr, ...]]:
    stored = [x.indices for x in walk(s) if isinstance(x, Store) and x.buffer == buffer]
    return stored + [x.indices for y in walk(s) for e in exprs_of(y) for x in loads(e) if x.buffer == buffer]


def _zeros(buffer: Buffer, s: Stmt) -> tuple[Expr, ...]:
    return _places(s, buffer)[0][1:-1]


def _moved(s: Stmt, buffer: Buffer, own: Buffer) -> Stmt:
    def load(e: Expr) -> Expr | None:
        return Load(own, e.indices[-1:]) if isinstance(e, Load) and e.buffer == buffer else None

    def store(s: Stmt) -> Stmt | None:
        return replace(s, buffer=own, indices=s.indices[-1:]) if isinstance(s, Store) and s.buffer == buffer else None

    return map_stmt(s, store, lambda e: map_expr(e, load))
