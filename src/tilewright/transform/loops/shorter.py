"""Versions of a sum over a line of symbolic length, for half of the vectors, a quarter, and so on, each without tests.

    alloc t: f32[64] {                                      if n <= 32 {
      for k in 0..64 {                                        alloc t: f32[64] {
        for v in 0..64 vectorized {                             for k in 0..64 {
          if v < n { t[v] = t[v] + A[k, v] } } }        ->        for v in 0..32 vectorized {
      for v in 0..64 vectorized {                                   if v < n { t[v] = t[v] + A[k, v] } } }
        if v < n { B[v] = t[v] } } }                            for v in 0..32 vectorized { ... } }
                                                            } else { alloc t: f32[64] { ... } }

A sum over a loop stays in registers if none of its vectors is under a separate test. So `narrow.py` leaves these loops
whole and `whole.py` removes their conditions: vectors past the end of the line are summed for nothing. Since each
version has half of the vectors of the next, these are at most half of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.arith import simplify
from tilewright.ir.expr import Buffer, Expr, Op, as_int, const
from tilewright.ir.loops import Allocate, For, If, Let, PrimFunc, Stmt, Store
from tilewright.ir.rewrite import loads, map_stmt, names_of, variables, walk, with_children
from tilewright.targets.target import Target
from tilewright.transform.loops.copies import conjuncts, copy_fresh
from tilewright.transform.loops.simplify import analyzer_of
from tilewright.transform.loops.whole import is_under_one_condition

Line = tuple[Expr, int]
"""(number of elements of a line, extent of the loops over it, whose bodies test that an element exists)."""


def shorter_sums(func: PrimFunc, target: Target) -> PrimFunc:
    """The function with versions of loops that sum the vectors of a line, by the number of vectors."""
    sums = summed(func.body)
    if not sums:
        return func
    body = _Versions(func, sums, target).statement(func.body)
    return func if body is func.body else func.with_body(body)


def summed(body: Stmt) -> frozenset[Buffer]:
    """Temporaries whose stores are all under one condition on the lane, and to which a serial loop adds vectors."""
    an = analyzer_of(body)
    results = (s for s in walk(body) if isinstance(s, Allocate) and any(_sums(s.body, s.buffer, looped=False)))
    return frozenset(s.buffer for s in results if is_under_one_condition(s, an))


def _sums(s: Stmt, buffer: Buffer, *, looped: bool) -> Iterator[bool]:
    """Yields True for each vectorized loop inside a serial loop that adds to the buffer under a condition."""
    looped |= isinstance(s, For) and s.kind == "serial"
    if looped and isinstance(s, For) and s.kind == "vectorized" and isinstance(s.body, If):
        store = s.body.then
        if isinstance(store, Store) and store.buffer == buffer and any(x.buffer == buffer for x in loads(store.value)):
            yield True
    for c in s.children:
        yield from _sums(c, buffer, looped=looped)


class _Versions:
    __slots__ = ("loops", "sums", "used_names", "target")

    def __init__(self, func: PrimFunc, sums: frozenset[Buffer], target: Target) -> None:
        self.sums, self.target, self.used_names = sums, target, names_of(func)
        self.loops = {s.var for s in walk(func.body) if isinstance(s, For)}

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, Allocate) and s.buffer in self.sums and (line := self.line(s)) is not None:
            return _versions(s, line, self.target.lanes(s.buffer.dtype.itemsize), self.used_names)
        return with_children(s, tuple([self.statement(c) for c in s.children])) if s.children else s

    def line(self, s: Allocate) -> Line | None:
        """The line that the vectors of a temporary belong to, if its length depends on a symbol and on no inner
        variable."""
        bound = {x.var for x in walk(s) if isinstance(x, For | Let)}
        lines = {
            line
            for x in walk(s)
            if isinstance(x, For) and isinstance(x.body, If) and any(y.buffer == s.buffer for y in _stores(x.body))
            if (line := _line_of(x)) is not None
        }
        if len(lines) != 1:
            return None
        ((count, size),) = lines
        named = set(variables(count))
        return (count, size) if named - self.loops and bound.isdisjoint(named) else None


def _stores(s: Stmt) -> Iterator[Store]:
    return (x for x in walk(s) if isinstance(x, Store))


def _line_of(loop: For) -> Line | None:
    """The line whose length a vectorized loop tests, if it tests nothing else; None otherwise."""
    size = as_int(loop.extent)
    if loop.kind != "vectorized" or size is None or not isinstance(loop.body, If):
        return None
    tests = [c for c in conjuncts(loop.body.condition) if loop.var in variables(c)]
    if len(tests) != 1 or type(tests[0]) is not Op or tests[0].name not in ("lt", "le"):
        return None
    index, count = tests[0].args
    return (simplify(count + (tests[0].name == "le")), size) if index is loop.var else None


def _versions(s: Allocate, line: Line, lanes: int, used_names: set[str]) -> Stmt:
    """The statement `s` in versions for the number of elements in `line`, which has vectors of `lanes` elements: at
    most a quarter of its vectors, at most half of them, and so on, then the statement itself. New names are added to
    `used_names`."""
    count, size = line
    result: Stmt = s
    vectors = -(-size // lanes)
    while vectors > 1:
        vectors = -(-vectors // 2)
        result = If(count <= vectors * lanes, copy_fresh(_of(s, line, vectors * lanes), used_names), result)
    return result


def _of(s: Stmt, line: Line, size: int) -> Stmt:
    """The statement with its loops over `line` shortened to `size` elements."""

    def on(x: Stmt) -> Stmt | None:
        return replace(x, extent=const(size)) if isinstance(x, For) and _line_of(x) == line else None

    return map_stmt(s, on)
