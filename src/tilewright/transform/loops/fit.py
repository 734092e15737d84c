"""Shrink buffers that have a constant upper bound as size to the rows that are used.

    alloc t: f32[64, 48, 16] {                          alloc t: f32[64, min(n, 48)//2*2 + 1, 16] {
      for i in 0..64 {                                    for i in 0..64 {
        for j in 0..min(n, 48) { t[i, j, ...] = ... } }     for j in 0..min(n, 48) { t[i, j, ...] = ... } }
      ... t[i, j, ...] ... }                       ->     ... t[i, j, ...] ... }

A block of Winograd tiles of which a small map fills a fifth would otherwise spread over five times as many pages, and
take the memory of a whole block. The number of rows is always odd, so that planes do not share sets of the cache
(`spread.py`). Buffers that live in registers or on the stack have literal sizes.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.symbolic import Eliminator
from tilewright.ir.expr import Buffer, Expr, Var, as_int, const, minimum
from tilewright.ir.loops import Allocate, For, Intrinsic, Let, PrimFunc, Stmt
from tilewright.ir.rewrite import replace_buffers, substitute, variables, walk, with_children
from tilewright.targets.memory import USUAL, Caches
from tilewright.transform.loops.spread import spread
from tilewright.transform.loops.unread import Loops, accesses
from tilewright.transform.loops.workspace import STACK_LIMIT

MIN_ROWS = 8
"""The least number of rows of a buffer: to save more is not worth computing addresses."""


def fit_buffers(func: PrimFunc, caches: Caches = USUAL) -> PrimFunc:
    """The function in which buffers whose known sizes are only bounds have symbolic sizes."""
    if not func.symbols:
        return func
    body = _statement(func.body, {}, {v: v for v in func.symbols}, caches)
    return func if body is func.body else func.with_body(body)


def _statement(s: Stmt, outer: Loops, named: dict[Var, Expr], caches: Caches) -> Stmt:
    """The statement with shrunk buffers. `named`: the function's symbols, and `let` variables in terms of them."""
    if not s.children:
        return s
    inside = {**outer, s.var: s.extent} if isinstance(s, For) else outer
    if isinstance(s, Let) and named.keys() >= set(variables(s.value)):
        named = {**named, s.var: substitute(s.value, named)}
    s = with_children(s, tuple([_statement(c, inside, named, caches) for c in s.children]))
    if isinstance(s, Allocate) and s.buffer.scope == "global" and _is_large(s):
        fitted = _fitted(s, outer, named, caches)
        if fitted.shape != s.buffer.shape:
            return Allocate(fitted, replace_buffers(s.body, {s.buffer: fitted}))
    return s


def _is_large(s: Allocate) -> bool:
    """Whether a buffer of known size is in a workspace; buffers on the stack need literal sizes."""
    sizes = [as_int(n) for n in s.buffer.shape]
    nbytes = s.buffer.dtype.itemsize
    for n in sizes:
        if n is None:
            return False
        nbytes *= n
    return nbytes > STACK_LIMIT or any(isinstance(c, For) and c.kind == "parallel" for c in walk(s.body))


def _fitted(s: Allocate, outer: Loops, named: dict[Var, Expr], caches: Caches) -> Buffer:
    """The buffer of `s` with only the used elements in each dimension; the last one, along which vectors run, stays.
    `named` are the values of variables that lets define."""
    if any(isinstance(c, Intrinsic) for c in walk(s.body)):
        return s.buffer
    known = tuple(as_int(n) or 0 for n in s.buffer.shape)
    fitted: dict[int, Expr] = {}
    for d, whole in enumerate(known[:-1]):
        count = _count(s, d, outer) if whole > MIN_ROWS else None
        if count is not None and variables(count) and named.keys() >= set(variables(count)):
            fitted[d] = Analyzer().simplify(substitute(count, named) // 2 * 2 + 1)
    odd = tuple(n // 2 * 2 + 1 if d in fitted else n for d, n in enumerate(known))
    separate = spread(odd, s.buffer.dtype.itemsize, caches, frozenset(fitted)) if fitted else known
    return replace(s.buffer, shape=tuple([fitted.get(d, const(n)) for d, n in enumerate(separate)]))


def _count(s: Allocate, place: int, outer: Loops) -> Expr | None:
    """A bound, in terms of symbols, on all indices in dimension `place` of the buffer that `s` allocates; None if no
    single expression is known."""
    members: set[Expr] = set()
    for access, _, loops, facts in accesses(s.body, s.buffer, {}):
        an = Analyzer({**outer, **loops}, facts)
        inner = Eliminator(an, frozenset((*outer, *loops)))
        index = access.indices[place]
        bounds = inner.bounds(index)
        if bounds is None:
            return None
        end = bounds[1] + 1
        for limit in inner.limits(index):
            end = minimum(end, limit + 1)
        members.add(Analyzer().simplify(end))
    return members.pop() if len(members) == 1 else None
