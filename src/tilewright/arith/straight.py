"""Straight-line programs for products with small constant matrices: `y = M x` with shared subexpressions.

Sums of two terms that several rows have, up to a factor, become variables of their own, the most frequent first (the
greedy method of Hartley 1996, "Subexpression sharing in filters using canonic signed digit multipliers", on factors
instead of digits). Rows that differ in the signs of some columns so get their even and odd parts, columns that differ
in the signs of some rows their sums and differences. A multiply-add counts as one operation, as a sum or product does.

In matrices with many entries, rows that are sums of two others are computed from these, and columns that are sums of
two others are merged into these: where the third column is the sum of the first two, `y = M x` has `x0 + x2` and `x1 +
x2` in their place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import lcm

from tilewright.support.classes import dataclass

Terms = tuple[tuple[Fraction, int], ...]
"""A sum of `factor * value`; values are numbered, the inputs first, then the variables in order."""

_TRIALS = 12
"""The number of further greedy searches, each with random tie-breaking; the best result is used."""
_MAX_SHARED = 4096
"""The largest number of entries of a matrix for which sums are shared: the search is quadratic in the rows."""
_LONG = 3
"""The least number of entries of a row or column for which computing it from others pays."""
_LARGE = 128
"""The number of entries above which sums of whole rows and columns are searched for, and only one greedy search is
made."""
_Rows = list[dict[int, Fraction]]
_Vector = tuple[tuple[int, Fraction], ...]
_Pair = tuple[int, int, int]
"""(first column, second column, number of the ratio of the second's factor to the first's)."""


@dataclass(frozen=True, slots=True)
class Straight:
    """A straight-line program. Values number 0 to `inputs - 1` are the inputs; value number `inputs + k` is the linear
    combination `variables[k]` of earlier values, and `rows` are the combinations that are the results."""

    inputs: int
    variables: tuple[Terms, ...]
    rows: tuple[Terms, ...]

    @property
    def operations(self) -> int:
        """How many sums, products and multiply-adds it takes."""
        return sum(map(operations, (*self.variables, *self.rows)))


def operations(terms: Terms) -> int:
    """The operations of one linear combination: an addition or multiply-add for each further term, and a product if no
    factor is 1 or -1."""
    ordinary = any(abs(factor) == 1 for factor, _ in terms)
    return max(0, len(terms) - ordinary)


@lru_cache(maxsize=256)
def straight_line(matrix: tuple[tuple[Fraction, ...], ...], *, whole: bool = False) -> Straight:
    """A program for `y = matrix @ x` with few operations. The same matrix gives the same program. `whole`: all factors
    in it are whole numbers, as those of the matrix must be then."""
    rows = [{k: x for k, x in enumerate(row) if x} for row in matrix]
    inputs = max(map(len, matrix), default=0)
    if inputs * len(rows) > _MAX_SHARED:
        return Straight(inputs, (), tuple(_terms(row) for row in rows))
    if inputs * len(rows) > _LARGE and not whole:
        return _composed(rows, inputs)
    best = _greedy(rows, inputs, lambda pairs: pairs[0], whole)
    rng = random.Random(0)
    for _ in range(_TRIALS):
        other = _greedy(rows, inputs, rng.choice, whole)
        if (other.operations, len(other.variables)) < (best.operations, len(best.variables)):
            best = other
    return best


def _composed(rows: _Rows, inputs: int) -> Straight:
    """A program for the product of the matrix `rows` with `inputs` numbers that first shares equal combinations of
    whole columns and rows, and then pairs of terms."""
    folded, variables = _fold_columns(rows, inputs)
    sums = _sums([tuple(sorted(row.items())) for row in folded])
    retained = [row for k, row in enumerate(folded) if k not in sums]
    inner = _greedy(retained, inputs + len(variables), lambda pairs: pairs[0])
    variables += inner.variables
    results: dict[int, Terms] = dict(zip((k for k in range(len(folded)) if k not in sums), inner.rows, strict=True))
    numbers: dict[int, int] = {}
    for k in sorted({part for parts in sums.values() for part, _ in parts}):
        numbers[k] = inputs + len(variables)
        variables.append(results[k])
        results[k] = ((Fraction(1), numbers[k]),)
    for k, parts in sums.items():
        results[k] = tuple(sorted(((Fraction(sign), numbers[part]) for part, sign in parts), key=lambda term: term[1]))
    return Straight(inputs, tuple(variables), tuple(results[k] for k in range(len(folded))))


def _fold_columns(rows: _Rows, inputs: int) -> tuple[_Rows, list[Terms]]:
    """(the matrix with fewer columns, the new values as linear combinations): an input whose column is plus or minus
    the sum of two others' is added to these first."""
    columns = [tuple((k, row[c]) for k, row in enumerate(rows) if c in row) for c in range(inputs)]
    rows = [dict(row) for row in rows]
    variables: list[Terms] = []
    for gone, parts in _sums(columns).items():
        for part, sign in parts:
            number = inputs + len(variables)
            variables.append(_terms({part: Fraction(1), gone: Fraction(sign)}))
            for row in rows:
                if part in row:
                    row[number] = row.pop(part)
        for row in rows:
            row.pop(gone, None)
    return rows, variables


def _sums(vectors: Sequence[_Vector]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Vector number -> ((number, sign), (number, sign)) for vectors that are the signed sum of two others; no vector
    occurs twice in the result. Vectors are lists of (place, entry)."""
    marks = _marks(vectors)
    where = {mark: k for k, mark in reversed(list(enumerate(marks)))}
    result: dict[int, tuple[tuple[int, int], ...]] = {}
    used: set[int] = set()
    for a, b in combinations(range(len(vectors)), 2):
        if a in used or b in used or min(len(vectors[a]), len(vectors[b])) < _LONG:
            continue
        for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            c = where.get(signs[0] * marks[a] + signs[1] * marks[b])
            if c is None or c in used or c in (a, b):
                continue
            if _sum(vectors[a], vectors[b], signs) == vectors[c]:
                result[c] = ((a, signs[0]), (b, signs[1]))
                used.update((a, b, c))
                break
    return result


def _marks(vectors: Sequence[_Vector]) -> list[int]:
    """A random linear hash of each vector: that of a sum is the sum of the hashes, and collisions have negligible
    probability."""
    scale = lcm(*(x.denominator for v in vectors for _, x in v))
    rng = random.Random(0)
    weights = [rng.getrandbits(64) for _ in range(1 + max((k for v in vectors for k, _ in v), default=0))]
    return [sum(weights[k] * int(x * scale) for k, x in v) for v in vectors]


def _sum(a: _Vector, b: _Vector, signs: tuple[int, int]) -> _Vector:
    total: dict[int, Fraction] = {}
    for sign, vector in zip(signs, (a, b), strict=True):
        for k, x in vector:
            total[k] = total.get(k, Fraction(0)) + sign * x
    return tuple((k, total[k]) for k in sorted(total) if total[k])


def _greedy(arguments: _Rows, inputs: int, choose: Callable[[Sequence[_Pair]], _Pair], whole: bool = False) -> Straight:
    numbers = _Numbers()
    rows = [{k: numbers.index(x) for k, x in row.items()} for row in arguments]
    variables: list[Terms] = []
    while True:
        counts: dict[_Pair, int] = {}
        for row in rows:
            columns = sorted(row.items())
            for i, (a, x) in enumerate(columns, 1):
                for b, y in columns[i:]:
                    pair = a, b, numbers.ratio(y, x)
                    if not whole or _is_whole(numbers.values[pair[2]]) or _is_whole(1 / numbers.values[pair[2]]):
                        counts[pair] = counts.get(pair, 0) + 1
        most = max(counts.values(), default=0)
        if most < 2:
            results = (_terms({k: numbers.values[x] for k, x in row.items()}) for row in rows)
            return Straight(inputs, tuple(variables), tuple(results))
        pair = choose([pair for pair, n in counts.items() if n == most])
        variables.append(_share(rows, pair, inputs + len(variables), numbers, _is_whole if whole else _is_binary))


class _Numbers:
    """Fractions by number, with a cache of the numbers of their ratios, since dividing and comparing fractions is
    slow."""

    __slots__ = ("_indices", "_ratios", "values")

    def __init__(self) -> None:
        self.values: list[Fraction] = []
        self._indices: dict[Fraction, int] = {}
        self._ratios: dict[tuple[int, int], int] = {}

    def index(self, x: Fraction) -> int:
        result = self._indices.setdefault(x, len(self.values))
        if result == len(self.values):
            self.values.append(x)
        return result

    def ratio(self, y: int, x: int) -> int:
        """The number under which the fraction `values[y] / values[x]` is stored."""
        entry = self._ratios.get((y, x))
        if entry is None:
            entry = self._ratios[y, x] = self.index(self.values[y] / self.values[x])
        return entry


def _share(
    rows: list[dict[int, int]], pair: _Pair, number: int, numbers: _Numbers, exact: Callable[[Fraction], bool]
) -> Terms:
    """The linear combination for value `number`, which replaces the pair of terms `pair` in all rows that contain it.
    One of its factors is 1: the one for which the other is `exact`, and then for which more rows have factor 1."""
    a, b, which = pair
    values, ratio = numbers.values, numbers.values[which]
    having = [row for row in rows if a in row and b in row and numbers.ratio(row[b], row[a]) == which]
    first = (exact(ratio), sum(abs(values[row[a]]) == 1 for row in having), abs(ratio) >= 1)
    second = (exact(1 / ratio), sum(abs(values[row[b]]) == 1 for row in having), abs(ratio) < 1)
    unit = a if first >= second else b
    for row in having:
        row[number] = row[unit]
        del row[a], row[b]
    return _terms({a: Fraction(1), b: ratio} if unit == a else {a: 1 / ratio, b: Fraction(1)})


def _is_binary(x: Fraction) -> bool:
    return x.denominator & (x.denominator - 1) == 0


def _is_whole(x: Fraction) -> bool:
    return x.denominator == 1


def _terms(row: dict[int, Fraction]) -> Terms:
    return tuple((row[k], k) for k in sorted(row))
