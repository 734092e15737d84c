"""Which sizes a model can have at all: those for which shapes that it joins are equal.

Files name the dimensions of their inputs, and some exporters give each dimension of each input a name of its own: two
inputs that are added have one batch under two names.

A network that halves its maps and doubles them again, and then joins them with those from before, takes heights that
halving does not round: `height // 2 * 2` is `height` for the even ones. Nobody says so in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.rewrite import substitute, variables

START = 1 << 12
"""Sizes from which on pairs are compared: small ones are rounded to nothing."""
MOST = 256
"""The largest divisor that is looked for."""


def divisors(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, int]:
    """What divides each symbol, by name, so that the sizes of the pairs that depend on it alone are equal for its
    multiples, and for no others; nothing where that is not so."""
    found = {symbol.name: _divisor(symbol, own) for symbol, own in _by_symbol(pairs).items()}
    return {name: by for name, by in found.items() if by} if all(found.values()) else {}


def _by_symbol(pairs: Sequence[tuple[Expr, Expr]]) -> dict[Var, list[tuple[Expr, Expr]]]:
    """The pairs that depend on one symbol alone."""
    found: dict[Var, list[tuple[Expr, Expr]]] = {}
    for a, b in dict.fromkeys(pairs):
        symbols = set(variables(a)) | set(variables(b))
        if len(symbols) == 1:
            found.setdefault(symbols.pop(), []).append((a, b))
    return found


def sufficient(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, int]:
    """The least number for each symbol of whose multiples the sizes of the pairs are equal, whether they are for other
    sizes or not; symbols that need none, and those for which there is none, are left out."""
    found = {}
    for symbol, own in _by_symbol(pairs).items():
        for by in range(2 * symbol.multiple, MOST + 1, symbol.multiple):
            if all(_equal(a, b, symbol, n * by) for n in (*range(1, MOST), START) for a, b in own):
                found[symbol.name] = by
                break
    return found


def joined(pairs: Sequence[tuple[Expr, Expr]], order: Sequence[Var]) -> dict[Var, Var]:
    """Symbols that are another one, which stands before them in `order`: pairs of two symbols say so."""
    same: dict[Var, Var] = {}

    def first(v: Var) -> Var:
        return first(same[v]) if v in same else v

    for a, b in pairs:
        if isinstance(a, Var) and isinstance(b, Var) and a in order and b in order and first(a) is not first(b):
            early, late = sorted((first(a), first(b)), key=order.index)
            same[late] = early
    return {v: first(v) for v in same}


def _divisor(symbol: Var, pairs: Sequence[tuple[Expr, Expr]]) -> int | None:
    step = symbol.multiple
    sizes = range(START * step, START * step + 2 * MOST * step, step)
    fitting = [n for n in sizes if all(_equal(a, b, symbol, n) for a, b in pairs)]
    by = gcd(*fitting)
    if not fitting or by == step or fitting != [n for n in sizes if n % by == 0]:
        return None
    least = -(-max(symbol.lo or 1, 1) // by) * by
    if symbol.hi is not None and least > symbol.hi:
        return None
    return by if all(_equal(a, b, symbol, n) for n in (least, least + by) for a, b in pairs) else None


def _equal(a: Expr, b: Expr, symbol: Var, value: int) -> bool:
    numbers: dict[Var, Expr] = {symbol: const(value)}
    left, right = (as_int(simplify(substitute(e, numbers))) for e in (a, b))
    return left is not None and left == right
