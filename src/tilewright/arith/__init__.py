"""Arithmetic on expressions: simplify, bound, prove. All knowledge about the values of index expressions is in this
package.

`Extents` says that each of its variables lies in `[0, extent)`; symbols carry their own range and divisibility. i64
arithmetic is taken as exact, other integers wrap.

    simplify((io*8 + ii) // 8, {ii: 8})          ->  io
    bounds(io*8 + ii, {io: 4, ii: 8})            ->  Interval(0, 31)
    prove(i < n, {i: n})                         ->  True     (False: not known)
    symbolic_bounds(io*8 + ii, {ii: 8})          ->  (io*8, io*8 + 7)
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.arith import division, forms
from tilewright.arith.analyzer import Analyzer, Extents
from tilewright.arith.forms import Linear, order
from tilewright.arith.interval import Interval
from tilewright.arith.symbolic import Eliminator, eliminate
from tilewright.ir.expr import Expr, Var, const

_MEMO_LIMIT = 20_000
"""The largest number of simplified expressions that one analyzer caches; beyond it the cache of analyzers is
emptied."""


@lru_cache(maxsize=32)
def _remembered(items: tuple[tuple[Var, Expr], ...], facts: tuple[Expr, ...]) -> Analyzer:
    return Analyzer(dict(items), facts)


def _analyzer(extents: Extents | None, facts: tuple[Expr, ...] = ()) -> Analyzer:
    """An analyzer for variables with these extents and for the conditions `facts`; the last few are cached, since
    passes query one nest many times."""
    result = _remembered(tuple(extents.items()) if extents else (), facts)
    if result.remembered > _MEMO_LIMIT:
        _remembered.cache_clear()
        return _analyzer(extents, facts)
    return result


def release() -> None:
    """Drop the cached analyzers and the expressions that they know, for who has done with many."""
    _remembered.cache_clear()


def simplify(e: Expr, extents: Extents | None = None, assumptions: tuple[Expr, ...] = ()) -> Expr:
    """An expression equal to `e` wherever the variables lie in their extents and the conditions `assumptions` hold, in
    canonical form."""
    return _analyzer(extents, assumptions).simplify(e)


def bounds(e: Expr, extents: Extents | None = None) -> Interval:
    """An interval that contains every value of an integer or boolean expression; None for an unbounded end."""
    return _analyzer(extents).bounds(e)


def prove(condition: Expr, extents: Extents | None = None, assumptions: tuple[Expr, ...] = ()) -> bool:
    """True if `condition` holds for all values for which the conditions `assumptions` do; False means that this is not
    known."""
    return _analyzer(extents, assumptions).prove(condition)


def prove_equal(a: Expr, b: Expr, extents: Extents | None = None, assumptions: tuple[Expr, ...] = ()) -> bool:
    """True if `a` and `b` are proven equal where the conditions `assumptions` hold."""
    if a is b:
        return True
    analyzer = _analyzer(extents, assumptions)
    return analyzer.simplify(a) is analyzer.simplify(b) or (
        a.dtype.is_int and analyzer.simplify(a - b) is const(0, a.dtype)
    )


def exact_quotient(a: Expr, b: Expr, facts: tuple[Expr, ...] = ()) -> Expr | None:
    """The polynomial `q` for which a = b*q wherever `b` is not 0; None if there is none."""
    analyzer = _analyzer(None, facts)
    quotient = division.exact_quotient(analyzer.form(a), analyzer.form(b))
    return None if quotient is None else analyzer.simplify(forms.to_expr(quotient))


def symbolic_bounds(
    e: Expr, extents: Extents, context: Extents | None = None, assumptions: tuple[Expr, ...] = ()
) -> tuple[Expr, Expr] | None:
    """The least and greatest value of `e` over the variables of `extents`, as expressions of the others.

    Both ends are inclusive. `context` gives extents of variables that stay, `assumptions` are conditions. None if
    `e` cannot be bounded (say, an index loaded from memory).
    """
    analyzer = _analyzer({**context, **extents} if context else extents, assumptions)
    return eliminate(e, frozenset(extents), analyzer)


def symbolic_limits(e: Expr, extents: Extents, context: Extents, assumptions: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The upper bounds of `e` over `extents` and `context` that follow from the conditions `assumptions`;
    `symbolic_bounds` may find lower ones for some values.

    io*8 + ii < n  over  {ii: 8}:   symbolic_bounds(io*8 + ii) -> (io*8, io*8 + 7)    symbolic_limits -> (n - 1,)
    """
    return Eliminator(_analyzer({**context, **extents}, assumptions), frozenset(extents)).limits(e)


def linear(e: Expr, extents: Extents | None = None) -> Linear:
    """An i64 expression as an integer combination of opaque atoms, in a fixed order."""
    terms, constant = _analyzer(extents).form(e)
    return Linear(tuple(sorted(terms.items(), key=lambda t: order(t[0]))), constant)


__all__ = [
    "Analyzer",
    "Extents",
    "Interval",
    "Linear",
    "bounds",
    "exact_quotient",
    "linear",
    "prove",
    "prove_equal",
    "simplify",
    "symbolic_bounds",
    "symbolic_limits",
]
