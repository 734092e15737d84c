"""Accumulate the partial results of a row in a small buffer, which becomes registers, and store them once.

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

from tilewright.ir.expr import Buffer, Expr, Load, Var
from tilewright.ir.loops import Allocate, For, Intrinsic, Let, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, fresh_name, loads, map_expr, map_stmt, names_of, uses, variables, walk
from tilewright.transform.loops.merge import parts


def promote_partials(func: PrimFunc) -> PrimFunc:
    """The function in which loops over rows accumulate the partial results of each row in a small buffer, which becomes
    registers, and store them once; the function itself if no loop does."""
    used_names = names_of(func)

    def statement(s: Stmt) -> Stmt | None:
        result = _of_rows(s, used_names) if isinstance(s, For) and s.kind == "serial" else s
        return None if result is s else result

    body = map_stmt(func.body, statement)
    return func if body is func.body else func.with_body(body)


def _of_rows(loop: For, used_names: set[str]) -> For:
    """`loop`, changed so that an iteration accumulates in a new local buffer of one row where it initialises a row of a
    larger local buffer and adds to it; it stores the row in the larger buffer at its end. `loop` itself if it has no
    such row. New names are added to `used_names`."""
    for buffer in sorted({x.buffer for x in walk(loop.body) if isinstance(x, Store)}, key=lambda b: b.name):
        line = _line(loop, buffer) if buffer.scope == "local" and len(buffer.shape) > 1 else None
        if line is not None:
            own = Buffer(fresh_name(f"{buffer.name}_row", used_names), buffer.dtype, buffer.shape[-1:], "local")
            lane = Var(fresh_name("lane", used_names))
            store = For(lane, buffer.shape[-1], Store(buffer, (*line, lane), Load(own, (lane,))), "vectorized")
            loop = replace(loop, body=Allocate(own, seq([_moved(loop.body, buffer, own), store])))
    return loop


def _line(loop: For, buffer: Buffer) -> tuple[Expr, ...] | None:
    """The leading indices of the row of `buffer` that each iteration initialises and that inner loops add to; None if
    an iteration accesses more of the buffer."""
    first = next(x for x in parts(loop.body) if uses(x, buffer))
    inner = (x for x in walk(loop.body) if isinstance(x, For))
    if not _starts(first, buffer) or not any(x.kind == "serial" and uses(x, buffer) for x in inner):
        return None
    if any(uses(x, buffer) for x in walk(loop.body) if isinstance(x, Intrinsic)):
        return None
    line, *others = {i[:-1] for i in _places(loop.body, buffer)}
    varies = {x.var for x in walk(loop.body) if isinstance(x, For | Let)} & {v for i in line for v in variables(i)}
    return None if others or varies else line


def _starts(s: Stmt, buffer: Buffer) -> bool:
    """Whether a statement is a vectorized loop that sets a whole row of the buffer."""
    if not (isinstance(s, For) and s.kind == "vectorized" and isinstance(s.body, Store) and s.body.buffer == buffer):
        return False
    whole = s.extent is buffer.shape[-1] and s.body.indices[-1] is s.var
    return whole and not any(x.buffer == buffer for x in loads(s.body.value))


def _places(s: Stmt, buffer: Buffer) -> list[tuple[Expr, ...]]:
    stored = [x.indices for x in walk(s) if isinstance(x, Store) and x.buffer == buffer]
    return stored + [x.indices for y in walk(s) for e in exprs_of(y) for x in loads(e) if x.buffer == buffer]


def _moved(s: Stmt, buffer: Buffer, own: Buffer) -> Stmt:
    def load(e: Expr) -> Expr | None:
        return Load(own, e.indices[-1:]) if isinstance(e, Load) and e.buffer == buffer else None

    def store(s: Stmt) -> Stmt | None:
        return replace(s, buffer=own, indices=s.indices[-1:]) if isinstance(s, Store) and s.buffer == buffer else None

    return map_stmt(s, store, lambda e: map_expr(e, load))
