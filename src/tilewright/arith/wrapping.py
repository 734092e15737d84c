"""Sums of data, which wrap: where a comparison or a remainder of them must not be rewritten.

Sizes and indices are far from the ends of i64, so that their arithmetic is exact (`forms.py`). Numbers that a model
loads may be anything, as the largest integer that marks "none" is, or a hash. Rewriting of sums and products alone is
right for them as well, modulo 2**64; `x - y < z` is not `x < y + z`, and `x * k % 10` is not `x * (k % 10) % 10`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from tilewright.arith import interval
from tilewright.arith.forms import Form, factors
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var

if TYPE_CHECKING:
    from tilewright.arith.analyzer import Analyzer

Ends = tuple[bool, bool]
"""Whether an expression has a bound below, and one above, that data does not decide."""


_HALF = 1 << 62
"""A number so large that a sum of it and a size may leave i64."""
_FACTOR = 1 << 40
"""A number so large that its product with a size may leave i64."""


def may_wrap(an: Analyzer, form: Form) -> bool:
    """Whether a linear form that depends on loaded data may exceed i64."""
    terms, constant = form
    if not terms or (len(terms) == 1 and constant == 0 and _single(terms)):
        return False
    if not -_HALF < constant < _HALF or any(not -_FACTOR < c < _FACTOR for c in terms.values()):
        return True
    lo = hi = constant
    for atom, c in terms.items():
        if type(atom) is Var or not an.of_data(atom):
            continue
        if an.unbounded(atom):
            return True
        low, high = reduce(interval.mul, [an.range(f) for f in factors(atom)])
        if low is not None and high is not None:
            lo, hi = lo + min(c * low, c * high), hi + max(c * low, c * high)
    return lo < i64.min or i64.max < hi


def _single(terms: dict[Expr, int]) -> bool:
    ((atom, c),) = terms.items()
    return c == 1 and not (type(atom) is Op and atom.name == "mul")


def ends(an: Analyzer, e: Expr) -> Ends:
    """(whether its lower end, whether its upper end is bounded) by something else than loaded data, for an integer
    expression."""
    kind = type(e)
    if kind is Var or kind is Const:
        return True, True
    if kind is Load and e.dtype.bits == 64:
        return False, False
    if type(e) is Op and e.dtype is i64 and e.name in ("add", "sub", "mul", "neg"):
        return operator_ends(an, e)
    lo, hi = an.range(e)
    if lo is not None and hi is not None:
        return True, True
    return operator_ends(an, e) if type(e) is Op else (False, False)


def operator_ends(an: Analyzer, e: Op) -> Ends:
    """(whether the lower, whether the upper end of an operator is bounded) by something else than loaded data, from its
    operands."""
    return _of_operator(e.name, [ends(an, a) for a in e.args if a.dtype.is_int or e.name == "cast"])


def _of_operator(name: str, parts: list[Ends]) -> Ends:
    every, below, above = all(all(p) for p in parts), [p[0] for p in parts], [p[1] for p in parts]
    match name:
        case "add" | "select":
            return all(below), all(above)
        case "sub":
            return below[0] and above[1], above[0] and below[1]
        case "neg":
            return above[0], below[0]
        case "min":
            return all(below), any(above)
        case "max":
            return any(below), all(above)
        case "mod" | "truncmod":
            return all(parts[1]), all(parts[1])
        case _:
            return every, every


__all__ = ["ends", "may_wrap", "operator_ends"]
