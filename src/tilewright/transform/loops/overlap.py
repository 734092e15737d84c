"""Let the last tile of a line of symbolic length overlap the one before, instead of testing each of its elements.

    for t in 0..(n + 15)//16 {                    if 17 <= n {
      for v in vectorized 0..16 {                   for t in 0..(n - 1)//16 { C[t*16 + v] = x[...] }
        if t*16 + v < n {                           { C[n - 16 + v] = x[...] }
          C[t*16 + v] = select(p, x[...], 0) }  ->  } else { if n == 16 { C[v] = x[...] }
      } }                                           else { for v in vectorized 0..16 { if v < n { ... } } } }

After one test of the symbol every tile is full, and elements are tested only where a window leaves the map. Otherwise
each tap of a window would be read under a separate mask, and each column of a register tile after a separate jump.
Elements that two tiles compute are written twice, so a tile may not read what it writes, nor, if parameters may share
memory, what another tile wrote: a function with `MayAlias` stays as it is.

Inside, the symbol is renamed to one with a narrower range, by which `partition.py` proves that windows of all tiles but
the first and last lie in the map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.arith import Analyzer, linear, simplify
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, Op, Var, all_of, as_int, const, equal
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, PrimFunc, Stmt, Store, seq
from tilewright.ir.notes import MayAlias, find
from tilewright.ir.rewrite import (
    exprs_of,
    fresh_name,
    map_exprs_of,
    map_stmt,
    names_of,
    own_loads,
    rebuild,
    substitute,
    substitute_stmt,
    variables,
    walk,
    walk_expr,
    with_children,
)
from tilewright.support.classes import dataclass
from tilewright.transform.loops.copies import conjuncts, copy_fresh
from tilewright.transform.loops.remainder import all_after
from tilewright.transform.loops.simplify import simplify_stmt

MAX_SYMBOL = 1 << 20
"""The largest value of a symbol that is tried as the one from which on a line has as many elements as a tile."""
MAX_MORE = 8
"""How far above the least symbol for which a line is longer than a tile a version may begin in which each column's
window is tested for leaving the line at one end only."""
MIN_LANES = 8
"""The least number of lanes of a vector that may be halved for shorter lines."""


def overlap_tails(func: PrimFunc) -> PrimFunc:
    """The function in which the last tiles of symbolic lines are moved back to overlap the tile before."""
    if find(func.notes, MayAlias) is not None:
        return func
    body = _overlapped(func.body, {}, names_of(func))
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Line:
    """A loop over tiles of `size` elements, of `count` in all, which depends on `symbol`. `own` are the conditions that
    an element of a tile exists, `elements` the variables of the loops over a tile's elements; `copies`: some are
    unrolled."""

    loop: For
    symbol: Var
    count: Expr
    size: int
    own: frozenset[Expr]
    elements: frozenset[Var]
    copies: bool

    def least(self, count: int) -> int | None:
        """The least value of the symbol for which the line has at least `count` elements; None if it is not known."""
        low, high = max(self.symbol.lo or 0, 0), min(MAX_SYMBOL, self.symbol.hi or MAX_SYMBOL)
        while low < high:
            middle = (low + high) // 2
            there = as_int(substitute(self.count, {self.symbol: const(middle)}))
            if there is None:
                return None
            low, high = (low, middle) if there >= count else (middle + 1, high)
        return low


def _overlapped(s: Stmt, outer: dict[Var, Expr], used_names: set[str]) -> Stmt:
    if isinstance(s, For):
        line = _line(s, outer)
        result = None if line is None else _split(line, outer, used_names)
        if result is not None:
            return result
    if isinstance(s, For | Let):
        outer = {**outer, s.var: s.extent if isinstance(s, For) else s.value}
    return with_children(s, tuple([_overlapped(c, outer, used_names) for c in s.children])) if s.children else s


def _line(loop: For, outer: dict[Var, Expr]) -> _Line | None:
    """The tiles that a loop, inside of loops with the extents `outer`, goes over, if each element is guarded by a test
    that it exists; None otherwise."""
    if loop.kind != "serial":
        return None
    inside = list(walk(loop.body))
    inner = {s.var: s for s in inside if isinstance(s, For) and s.kind in ("vectorized", "unrolled")}
    tests = {part for s in inside if isinstance(s, If) for part in conjuncts(s.condition)}
    bounds = {part: result for part in tests if (result := _bound(part, loop.var, inner)) is not None}
    if len(set(bounds.values())) != 1:
        return None
    ((count, size),) = set(bounds.values())
    symbols = variables(count)
    an = Analyzer({**outer, loop.var: loop.extent})
    if len(symbols) != 1 or symbols[0] in outer or not an.prove(equal((count + (size - 1)) // size, loop.extent)):
        return None
    if any(isinstance(s, Intrinsic) for s in inside) or not all_after(loop.body, set(bounds)) or _rereads(inside):
        return None
    (symbol,) = symbols
    elements = frozenset(v for test in bounds for v in variables(test) if v in inner)
    copies = any(inner[v].kind == "unrolled" for v in elements)
    line = _Line(loop, symbol, count, size, frozenset(bounds), elements, copies)
    return line if copies or _tests_more(inside, line) else None


def _bound(part: Expr, tile: Var, inner: dict[Var, For]) -> tuple[Expr, int] | None:
    """(n, size of a tile) if the condition `part` is the test `tile * size + element < n` or `<= n - 1`, where the
    variables of the loops `inner` number elements; None for other conditions."""
    if type(part) is not Op or part.name not in ("lt", "le"):
        return None
    index, count = part.args
    count = count if part.name == "lt" else simplify(count + 1)
    elements = [v for v in variables(index) if v in inner]
    if len(elements) != 1 or tile in variables(count):
        return None
    (element,) = elements
    size = as_int(inner[element].extent)
    if size is None or size < 2:
        return None
    rest = Analyzer().simplify(index - tile * size - element)
    return (count, size) if type(rest) is Const and rest.value == 0 else None


def _rereads(inside: list[Stmt]) -> bool:
    """Whether the statements both read and write a buffer that they do not allocate."""
    own = {s.buffer for s in inside if isinstance(s, Allocate)}
    written = {s.buffer for s in inside if isinstance(s, Store)} - own
    return any(x.buffer in written for s in inside for x in own_loads(s))


def _tests_more(inside: list[Stmt], line: _Line) -> bool:
    """Whether some test or select inside depends on a single element, other than the line's tests that the element
    exists."""

    def conditions() -> Iterator[Expr]:
        for s in inside:
            if isinstance(s, If):
                yield from conjuncts(s.condition)
            for node in (n for e in exprs_of(s) for n in walk_expr(e)):
                if type(node) is Op and node.name == "select":
                    yield from conjuncts(node.args[0])

    return any(line.loop.var in variables(c) and c not in line.own for c in conditions())


def _split(line: _Line, outer: dict[Var, Expr], used_names: set[str]) -> Stmt | None:
    """The loop over `line`, inside of loops with the extents `outer`, in versions for more elements than a tile has,
    for equally many and for fewer; None if the symbol's value does not determine the case, or if the tile's variables
    occur outside of element numbers. New names are added to `used_names`."""
    loop, symbol, size = line.loop, line.symbol, line.size
    more, whole = line.least(size + 1), line.least(size)
    if more is None or whole is None:
        return None
    least = symbol.lo or 0
    several, full, short, others = (
        Var(fresh_name(symbol.name, used_names), i64, low, high, symbol.multiple)
        for low, high in ((max(more, least), symbol.hi), (whole, more - 1), (least, whole - 1), (least, more - 1))
    )
    count = {v: substitute(line.count, {symbol: v}) for v in (several, full)}
    if not Analyzer().prove(count[several] > size):
        return None
    held = _held(loop.body, line.own)
    try:
        last = _Mover(loop.var, size, line.count - size).statement(held)
    except _ElsewhereError:
        return None
    extent = Analyzer().simplify((line.count - 1) // size)

    def version(v: Var, *parts: Stmt) -> Let:
        copy = seq([copy_fresh(substitute_stmt(s, {symbol: v}), used_names) for s in parts])
        extents = {c.var: c.extent for c in walk(copy) if isinstance(c, For)}
        return Let(v, symbol, simplify_stmt(copy, Analyzer({**outer, **extents})))

    def halved() -> Stmt:
        smaller = version(short, _halved(line))
        return replace(smaller, body=_overlapped(smaller.body, outer, used_names))

    moved = (replace(loop, extent=extent, body=held), last)
    first = version(several, *moved)
    result: Stmt = first
    if (inside := _inside(first, line, max(more, least))) is not None:
        whole_windows = Var(fresh_name(symbol.name, used_names), i64, inside, symbol.hi, symbol.multiple)
        fewer = Var(fresh_name(symbol.name, used_names), i64, several.lo, inside - 1, symbol.multiple)
        result = If(symbol >= inside, version(whole_windows, *moved), version(fewer, *moved))
    if least >= more:
        return result
    if not Analyzer().prove(equal(count[full], size)):
        return If(symbol >= more, result, version(others, loop))
    rest: Stmt = version(full, substitute_stmt(held, {loop.var: const(0)}))
    if least < whole:
        rest = If(symbol >= whole, rest, version(short, loop) if line.copies or size < MIN_LANES else halved())
    return If(symbol >= more, result, rest)


def _inside(version: Let, line: _Line, least: int) -> int | None:
    """The least value of the symbol from which on the tests of all columns in `version`, that their windows do not
    leave the line, are true in the first and in the last tile. None if there are no such tests, or if the value is more
    than `MAX_MORE` above `least`, the least value of the symbol in this version."""
    tests = _columns_tested(version.body, version.var)
    if not line.copies or not tests:
        return None
    for more in range(1, MAX_MORE + 1):
        larger = Var(version.var.name, i64, least + more, line.symbol.hi, line.symbol.multiple)
        known = [substitute(t, {version.var: larger}) for t in tests]
        if (line.symbol.hi or MAX_SYMBOL) >= least + more and all(as_int(Analyzer().simplify(t)) == 1 for t in known):
            return least + more
    return None


def _columns_tested(s: Stmt, symbol: Var) -> list[Expr]:
    """The tests in `s` that depend only on the symbol and on columns; a test in an unrolled loop is repeated with the
    number of each of its columns."""
    results: list[Expr] = []

    def on(s: Stmt, numbers: dict[Var, range]) -> None:
        if isinstance(s, For):
            size = as_int(s.extent)
            numbers = {**numbers, s.var: range(size)} if s.kind == "unrolled" and size is not None else numbers
        if isinstance(s, If):
            for test in conjuncts(s.condition):
                columns = [v for v in variables(test) if v is not symbol]
                if symbol in variables(test) and all(v in numbers for v in columns):
                    for values in product(*(numbers[v] for v in columns)):
                        results.append(substitute(test, dict(zip(columns, map(const, values), strict=True))))
        for child in s.children:
            on(child, numbers)

    on(s, {})
    return list(dict.fromkeys(results))


def _halved(line: _Line) -> Stmt:
    """The loop over tiles, with tiles of half the size."""
    half = line.size // 2

    def on(s: Stmt) -> Stmt | None:
        return replace(s, extent=const(half)) if isinstance(s, For) and s.var in line.elements else None

    body = map_stmt(_Mover(line.loop.var, line.size, line.loop.var * half).statement(line.loop.body), on)
    return replace(line.loop, extent=Analyzer().simplify((line.count + (half - 1)) // half), body=body)


def _held(s: Stmt, tests: frozenset[Expr]) -> Stmt:
    """The statement `s` with the conditions `tests` replaced by true."""

    def on(s: Stmt) -> Stmt | None:
        if not isinstance(s, If):
            return None
        rest = [c for c in conjuncts(s.condition) if c not in tests]
        return replace(s, condition=all_of(rest)) if rest else s.then

    return map_stmt(s, on)


class _ElsewhereError(Exception):
    """Raised if the body of a loop over tiles uses the tile's number elsewhere than in the number of one of its
    elements."""


class _Mover:
    """Rewrites the body of a loop over tiles of `size` for the elements from `first` on: `first` replaces `tile *
    size`."""

    __slots__ = ("first", "memo", "size", "tile")

    def __init__(self, tile: Var, size: int, first: Expr) -> None:
        self.tile, self.size, self.first = tile, size, first
        self.memo: dict[Expr, Expr] = {}

    def statement(self, s: Stmt) -> Stmt:
        return map_exprs_of(with_children(s, tuple(map(self.statement, s.children))), self.expr)

    def expr(self, e: Expr) -> Expr:
        if self.tile not in variables(e):
            return e
        if e not in self.memo:
            self.memo[e] = self.moved(e)
        return self.memo[e]

    def moved(self, e: Expr) -> Expr:
        times = linear(e).coefficient(self.tile) if e.dtype is i64 else 0
        if times and times % self.size == 0:
            rest = simplify(e - self.tile * times)
            if self.tile not in variables(rest):
                return simplify(rest + self.first * (times // self.size))
        if not e.children:
            raise _ElsewhereError
        return rebuild(e, [self.expr(c) for c in e.children])
