"""Sums of data, which wrap: where a comparison or a remainder of them must not be rewritten.

Sizes and indices are far from the ends of i64, so that their arithmetic is exact (`forms.py`). Numbers that a model
loads may be anything, as the largest integer that marks "none" is, or a hash. Rewriting of sums and products alone is
right for them as well, modulo 2**64; `x - y < z` is not `x < y + z`, and `x * k % 10` is not `x * (k % 10) % 10`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.arith.forms import Form
from tilewright.ir.expr import Const, Expr, Load, Op, Var

if TYPE_CHECKING:
    from tilewright.arith.analyzer import Analyzer

Ends = tuple[bool, bool]
"""Whether an expression has a bound below, and one above, that data does not decide."""


def may_wrap(an: Analyzer, form: Form) -> bool:
    """Whether a linear form adds or multiplies numbers of the data that may be anything."""
    terms, constant = form
    if not terms or (constant == 0 and next(iter(terms.values())) == 1 and len(terms) == 1):
        return False
    return any(an.unbounded(atom) for atom in terms)


def hashes(an: Analyzer, form: Form, divisor: int) -> bool:
    """Whether a linear form to be divided multiplies numbers that may be anything by one that has nothing to do with
    the divisor: then the product is a hash, not an address."""
    return any(c % divisor and divisor % c and an.unbounded(atom) for atom, c in form[0].items())


def ends(an: Analyzer, e: Expr) -> Ends:
    """Whether the ends of an integer expression are bounded by something else than data."""
    kind = type(e)
    if kind is Var or kind is Const:
        return True, True
    if kind is Load and e.dtype.bits == 64:
        return False, False
    lo, hi = an.bounds(e)
    if lo is not None and hi is not None:
        return True, True
    if kind is not Op:
        return False, False
    return _of_operator(e.name, [ends(an, a) for a in e.children if a.dtype.is_int or e.name == "cast"])  # type: ignore[attr-defined]


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


__all__ = ["ends", "hashes", "may_wrap"]
