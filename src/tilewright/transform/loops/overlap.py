"""Let the last tile of a line of symbolic length overlap the one before, where tests would be made for each element.

    for t in 0..(n + 15)//16 {                    if 17 <= n {
      for v in vectorized 0..16 {                   for t in 0..(n - 1)//16 { C[t*16 + v] = x[...] }
        if t*16 + v < n {                           { C[n - 16 + v] = x[...] }
          C[t*16 + v] = select(p, x[...], 0) }  ->  } else { if n == 16 { C[v] = x[...] }
      } }                                           else { for v in vectorized 0..16 { if v < n { ... } } } }

After a test of the symbol there are as many elements as a tile has, and none is tested but where a window leaves the
map. In a line of a map each tap of a window would be read under a mask of its own, each column of a register tile
after a jump of its own. What two tiles compute is written twice, so a tile may neither read what it writes nor, where
parameters may share memory, what another tile wrote in their place: a function with `MayAlias` stays as it is.

Inside, the symbol goes by another name with a range of its own, from which `partition.py` knows that windows of all
tiles but the first and last lie in the map.
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
"""Symbols that reach the size of a tile at no value up to this one are not looked at."""
MAX_MORE = 8
"""Elements more than a tile has, with which windows of its columns lie in the line or leave it at one end."""
MIN_LANES = 8
"""Lanes of vectors that are halved for lines which do not fill one: of smaller ones, half would be too little."""


def overlap_tails(func: PrimFunc) -> PrimFunc:
    """The function with the last tiles of symbolic lines moved to where whole tiles are."""
    if find(func.notes, MayAlias) is not None:
        return func
    body = _overlapped(func.body, {}, names_of(func))
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Line:
    """A loop over tiles of `size` of `count` elements, which `symbol` says; `own` are the tests that an element of a
    tile is one of them, `elements` the loops over those of a tile, of which some are `copies` of the code for each."""

    loop: For
    symbol: Var
    count: Expr
    size: int
    own: frozenset[Expr]
    elements: frozenset[Var]
    copies: bool

    def least(self, count: int) -> int | None:
        """The least value of the symbol with so many elements; None if none is known to be."""
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
    """The tiles that a loop goes over, each element of them after a test that it exists."""
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
    """n and the size of a tile, if a test is `tile * size + element < n`, or `<= n - 1`."""
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
    """Whether something is read that is also written, but for what a tile allocates."""
    own = {s.buffer for s in inside if isinstance(s, Allocate)}
    written = {s.buffer for s in inside if isinstance(s, Store)} - own
    return any(x.buffer in written for s in inside for x in own_loads(s))


def _tests_more(inside: list[Stmt], line: _Line) -> bool:
    """Whether elements are tested one by one for more than being there."""

    def conditions() -> Iterator[Expr]:
        for s in inside:
            if isinstance(s, If):
                yield from conjuncts(s.condition)
            for node in (n for e in exprs_of(s) for n in walk_expr(e)):
                if type(node) is Op and node.name == "select":
                    yield from conjuncts(node.args[0])

    return any(line.loop.var in variables(c) and c not in line.own for c in conditions())


def _split(line: _Line, outer: dict[Var, Expr], used_names: set[str]) -> Stmt | None:
    """The versions for more elements than a tile has, for as many and for fewer; None if a value of the symbol does not
    tell which it is, or if the tile occurs elsewhere than in the number of an element."""
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
    """The value of the symbol from which on no column of the first or the last tile is tested for a window that leaves
    both ends of a line; None if there is no such test, or if it is no small one."""
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
    """The tests of the symbol and of columns alone, for each column: loops that are unrolled have a number in each."""
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
    """The loop over tiles of half the size."""
    half = line.size // 2

    def on(s: Stmt) -> Stmt | None:
        return replace(s, extent=const(half)) if isinstance(s, For) and s.var in line.elements else None

    body = map_stmt(_Mover(line.loop.var, line.size, line.loop.var * half).statement(line.loop.body), on)
    return replace(line.loop, extent=Analyzer().simplify((line.count + (half - 1)) // half), body=body)


def _held(s: Stmt, tests: frozenset[Expr]) -> Stmt:
    """`s` where the tests are known to hold."""

    def on(s: Stmt) -> Stmt | None:
        if not isinstance(s, If):
            return None
        rest = [c for c in conjuncts(s.condition) if c not in tests]
        return replace(s, condition=all_of(rest)) if rest else s.then

    return map_stmt(s, on)


class _ElsewhereError(Exception):
    """The tile occurs elsewhere than in the number of an element."""


class _Mover:
    """The body of a loop over tiles of `size` for the elements from `first` on: `first` for `tile * size`."""

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
