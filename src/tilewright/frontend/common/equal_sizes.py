"""Which sizes a model can have at all: those for which shapes that it joins are equal.

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
    """What divides each symbol, by name, so that the sizes of each pair are equal for its multiples, and for no others;
    nothing where that is not so, or sizes depend on several symbols."""
    by_symbol: dict[Var, list[tuple[Expr, Expr]]] = {}
    for a, b in dict.fromkeys(pairs):
        symbols = set(variables(a)) | set(variables(b))
        if len(symbols) != 1:
            return {}
        by_symbol.setdefault(symbols.pop(), []).append((a, b))
    found = {symbol.name: _divisor(symbol, own) for symbol, own in by_symbol.items()}
    return {name: by for name, by in found.items() if by} if all(found.values()) else {}


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
