"""Straight-line programs for products with small constant matrices: `y = M x` with shared subexpressions.

Sums of two terms that several rows have, up to a factor, become variables of their own, the most frequent first (the
greedy method of Hartley 1996, "Subexpression sharing in filters using canonic signed digit multipliers", on factors
instead of digits). Rows that differ in the signs of some columns so get their even and odd parts, columns that differ
in the signs of some rows their sums and differences. A multiply-add counts as one operation, as a sum or product does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Terms = tuple[tuple[Fraction, int], ...]
"""A sum of `factor * value`; values are numbered, the inputs first, then the variables in order."""

_TRIALS = 12
_MOST_SHARED = 4096
"""Entries of a matrix above which nothing is shared: the search is quadratic in the rows."""
_Rows = list[dict[int, Fraction]]
_Pair = tuple[int, int, Fraction]


@dataclass(frozen=True, slots=True)
class Straight:
    """`variables[k]` is the sum that value number `inputs + k` stands for; `rows` are the results."""

    inputs: int
    variables: tuple[Terms, ...]
    rows: tuple[Terms, ...]

    @property
    def operations(self) -> int:
        """How many sums, products and multiply-adds it takes."""
        return sum(map(operations, (*self.variables, *self.rows)))


def operations(terms: Terms) -> int:
    """Operations of one sum: a product more if no factor is 1 or -1."""
    plain = any(abs(factor) == 1 for factor, _ in terms)
    return max(0, len(terms) - plain)


@lru_cache(maxsize=256)
def straight_line(matrix: tuple[tuple[Fraction, ...], ...]) -> Straight:
    """A program for `y = matrix @ x` with few operations. The same matrix gives the same program."""
    rows = [{k: x for k, x in enumerate(row) if x} for row in matrix]
    inputs = max(map(len, matrix), default=0)
    if inputs * len(rows) > _MOST_SHARED:
        return Straight(inputs, (), tuple(_terms(row) for row in rows))
    best = _greedy(rows, inputs, lambda pairs: pairs[0])
    rng = random.Random(0)
    for _ in range(_TRIALS):
        other = _greedy(rows, inputs, rng.choice)
        if (other.operations, len(other.variables)) < (best.operations, len(best.variables)):
            best = other
    return best


def _greedy(given: _Rows, inputs: int, choose: Callable[[Sequence[_Pair]], _Pair]) -> Straight:
    rows = [dict(row) for row in given]
    variables: list[Terms] = []
    while True:
        counts: dict[_Pair, int] = {}
        for row in rows:
            columns = sorted(row)
            for i, a in enumerate(columns):
                for b in columns[i + 1 :]:
                    pair = a, b, row[b] / row[a]
                    counts[pair] = counts.get(pair, 0) + 1
        most = max(counts.values(), default=0)
        if most < 2:
            return Straight(inputs, tuple(variables), tuple(_terms(row) for row in rows))
        variables.append(
            _share(rows, choose([pair for pair, n in counts.items() if n == most]), inputs + len(variables))
        )


def _share(rows: _Rows, pair: _Pair, number: int) -> Terms:
    """Put value `number` in the place of a pair of terms; what it stands for. One of its factors is 1: the one that
    leaves an exact binary fraction for the other, and 1 in as many rows as possible."""
    a, b, ratio = pair
    having = [row for row in rows if a in row and b in row and row[b] / row[a] == ratio]
    first = (_is_binary(ratio), sum(abs(row[a]) == 1 for row in having), abs(ratio) >= 1)
    second = (_is_binary(1 / ratio), sum(abs(row[b]) == 1 for row in having), abs(ratio) < 1)
    unit = a if first >= second else b
    for row in having:
        row[number] = row[unit]
        del row[a], row[b]
    return _terms({a: Fraction(1), b: ratio} if unit == a else {a: 1 / ratio, b: Fraction(1)})


def _is_binary(x: Fraction) -> bool:
    return x.denominator & (x.denominator - 1) == 0


def _terms(row: dict[int, Fraction]) -> Terms:
    return tuple((row[k], k) for k in sorted(row))
