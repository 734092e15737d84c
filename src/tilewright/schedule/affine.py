"""Solving index expressions for the variables in them: points (layouts, inlining) and boxes (moving blocks).

An index map is a tuple of expressions such as `(i // 16, j, i % 16)` or `(i * 16 + j,)`. What can be solved: variables,
quotients with their remainders, and sums in mixed radix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith import bounds, linear, prove, prove_equal, simplify
from tilewright.ir.expr import Expr, Op, Var, as_int, binary, ceildiv, const, maximum, minimum

Range = tuple[Expr, Expr]
"""An inclusive range (first, last)."""


def quotient(e: Op) -> tuple[Expr, Expr, Expr | None]:
    """(base, divisor, modulus) such that `e` is `base // divisor % modulus`; modulus is None if there is no
    remainder."""
    inner, operand = e.args
    if e.name == "floordiv":
        size = as_int(inner.args[1]) if isinstance(inner, Op) and inner.name == "mod" else None
        step = as_int(operand)
        if isinstance(inner, Op) and size and step and size % step == 0:
            return inner.args[0], operand, const(size // step)
        return inner, operand, None
    if isinstance(inner, Op) and inner.name == "floordiv":
        return inner.args[0], inner.args[1], operand
    return inner, const(1), operand


def is_quotient(e: Expr) -> bool:
    return isinstance(e, Op) and e.name in ("floordiv", "mod")


def chain_of(base: Expr, pieces: Sequence[tuple[Expr, Expr | None]], extents: Mapping[Var, Expr]) -> list[int] | None:
    """The indices of those `pieces` (divisor, modulus) that together determine `base`, least significant first, where
    variables have the `extents`; None if they do not. For base < 64: `base % 8` and `base // 8` do."""
    reached: Expr = const(1)
    chosen: list[int] = []
    for _ in pieces:
        k = next((k for k, (d, _) in enumerate(pieces) if d is reached or prove_equal(d, reached)), None)
        if k is None or k in chosen:
            return None
        chosen.append(k)
        modulus = pieces[k][1]
        if modulus is None or prove(base < reached * modulus, extents):
            return chosen
        reached = reached * modulus
    return None


def solve(indices: Sequence[Expr], values: Sequence[Expr], extents: Mapping[Var, Expr]) -> dict[Var, Expr]:
    """The variables of `extents` that `indices == values` determines, each as an expression of the values.

    The result is correct only for `values` that are the map of some point in `extents`.
    """
    known = list(zip(indices, values, strict=True))
    pieces: dict[Expr, list[tuple[Expr, Expr | None, Expr]]] = {}
    solved: dict[Var, Expr] = {}
    while known:
        index, value = known.pop()
        if isinstance(index, Var):
            if index in extents and index not in solved:
                solved[index] = value
        elif isinstance(index, Op) and is_quotient(index):
            base, divisor, modulus = quotient(index)
            result = pieces.setdefault(base, [])
            result.append((divisor, modulus, value))
            chain = chain_of(base, [(d, m) for d, m, _ in result], extents)
            if chain is not None:
                whole: Expr = const(0)
                for k in reversed(chain):
                    whole = whole + result[k][2] * result[k][0]
                known.append((base, whole))
        else:
            known.extend(_digits(index, value, extents))
    return {v: simplify(e) for v, e in solved.items()}


def _digits(index: Expr, value: Expr, extents: Mapping[Var, Expr]) -> list[tuple[Expr, Expr]]:
    """The terms of `index`, a sum in mixed radix such as `i * 16 + j` with j < 16 by the variables' `extents`, each
    with its value when the sum is `value`; [] for other sums."""
    form = linear(index)
    terms = sorted(form.terms, key=lambda term: term[1])
    if not terms or terms[0][0] is index or terms[0][1] <= 0:
        return []
    below = 0
    for term, step in terms:
        interval = bounds(term, extents)
        if below >= step or interval.lo is None or interval.lo < 0:
            return []
        if (term, step) != terms[-1]:
            if interval.hi is None:
                return []
            below += step * interval.hi
    rest = value - form.constant if form.constant else value
    results: list[tuple[Expr, Expr]] = []
    for k in range(len(terms)):
        term, step = terms[k]
        if k + 1 == len(terms):
            results.append((term, rest // step))
        elif terms[k + 1][1] % step == 0:
            results.append((term, rest // step % (terms[k + 1][1] // step)))
        else:
            return []
    return results


def solve_ranges(
    indices: Sequence[Expr], ranges: Sequence[Range | None], extents: Mapping[Var, Expr]
) -> dict[Var, Range]:
    """For each variable of `extents` a range outside of which some of `indices` is outside its range in `ranges` (None:
    any value)."""
    result: dict[Var, Range] = {}
    tops: dict[Expr, list[tuple[Expr, Expr | None, Range]]] = {}
    for index, box in zip(indices, ranges, strict=True):
        if box is None:
            continue
        if isinstance(index, Op) and is_quotient(index):
            base, divisor, modulus = quotient(index)
            if isinstance(base, Var):
                tops.setdefault(base, []).append((divisor, modulus, box))
            continue
        form = linear(index)
        if len(form.terms) == 1 and isinstance(form.terms[0][0], Var) and form.terms[0][1] > 0:
            var, step = form.terms[0]
            low = simplify(ceildiv(box[0] - form.constant, step))
            high = simplify((box[1] - form.constant) // step)
            assert isinstance(var, Var)
            if var in extents:
                result[var] = intersect(result[var], (low, high)) if var in result else (low, high)
    for base, parts in tops.items():
        for divisor, modulus, (low, high) in parts:
            assert isinstance(base, Var)
            if base in extents and modulus is None:
                box = simplify(low * divisor), simplify(high * divisor + divisor - 1)
                result[base] = intersect(result[base], box) if base in result else box
    return result


def inside(indices: Sequence[Expr], shape: Sequence[Expr], extents: Mapping[Var, Expr]) -> bool:
    """Whether `indices` are known to lie in a buffer of `shape` for all values of the variables in `extents`, so that
    no select need guard them."""
    return all(not outside(i, size, extents) for i, size in zip(indices, shape, strict=True))


def outside(index: Expr, size: Expr, extents: Mapping[Var, Expr]) -> list[Expr]:
    """The conditions among `0 <= index` and `index < size` that are not proven for all iterations of loops with
    `extents`. If an iteration runs, all extents are at least 1; without this fact the simplifier would, for a loop over
    n in 0..1, assume that the variable is 0."""
    conditions = (binary("ge", index, const(0)), binary("lt", index, size))
    runs = tuple(binary("gt", x, const(0)) for x in extents.values() if as_int(x) is None)
    return [c for c in conditions if not prove(c, extents) and not (runs and prove(c, extents, runs))]


def union(a: Range, b: Range) -> Range:
    """The least range that contains both."""
    return lesser(a[0], b[0]), greater(a[1], b[1])


def intersect(a: Range, b: Range) -> Range:
    return greater(a[0], b[0]), lesser(a[1], b[1])


def lesser(a: Expr, b: Expr) -> Expr:
    """`min(a, b)`, but `a` or `b` itself where their difference is known."""
    difference = bounds(simplify(a - b), {})
    if difference.hi is not None and difference.hi <= 0:
        return a
    if difference.lo is not None and difference.lo >= 0:
        return b
    return minimum(a, b)


def greater(a: Expr, b: Expr) -> Expr:
    """`max(a, b)`, but `a` or `b` itself where their difference is known."""
    difference = bounds(simplify(a - b), {})
    if difference.lo is not None and difference.lo >= 0:
        return a
    if difference.hi is not None and difference.hi <= 0:
        return b
    return maximum(a, b)
