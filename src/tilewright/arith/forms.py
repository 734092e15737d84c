"""Linear forms: an i64 expression as an integer combination of opaque *atoms* plus a constant.

    (i + 1) * 8 + j - n * m   is   8*i + j - 1*(n*m) + 8

Inside this package a form is a pair `(terms, constant)` of a dict and an int, never changed once made. An atom is a
variable, a load, an operator that is not linear, or a product of such (a *monomial*: its factors sorted, so that equal
products are one expression). Index arithmetic is taken as exact, without overflow of i64, except where data may make
numbers of any size (`wrapping.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var, const
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b

Form = tuple[dict[Expr, int], int]

ZERO: Form = ({}, 0)
"""The form of 0: no terms and no constant."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`sum(coefficient * atom) + constant`; coefficients are not zero."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    def coefficient(self, atom: Expr) -> int:
        """The coefficient of an atom, 0 if it is absent (it may still occur inside other atoms)."""
        for term, c in self.terms:
            if term is atom:
                return c
        return 0


def add(a: Form, b: Form, factor: int = 1) -> Form:
    """`a + factor * b`."""
    if not b[0]:
        return (a[0], a[1] + factor * b[1])
    terms = dict(a[0])
    for atom, c in b[0].items():
        total = terms.get(atom, 0) + c * factor
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)
    return (terms, a[1] + factor * b[1])


def scale(a: Form, factor: int) -> Form:
    if factor == 1:
        return a
    if factor == 0:
        return ZERO
    return ({atom: c * factor for atom, c in a[0].items()}, a[1] * factor)


_FACTOR_LIMIT = 32
"""The largest number of factors that a product is divided into. Data squared n times has 2**n of them."""


def factors(atom: Expr) -> tuple[Expr, ...]:
    """The factors of a product of atoms, from left to right; of a product of more than 32 factors, and of any other
    atom, the atom itself alone."""
    if type(atom) is not Op or atom.name != "mul":
        return (atom,)
    parts: list[Expr] = []
    pending: list[Expr] = [atom]
    while pending:
        e = pending.pop()
        if type(e) is not Op or e.name != "mul":
            parts.append(e)
            continue
        pending += (e.args[1], e.args[0])
        if len(parts) + len(pending) > _FACTOR_LIMIT:
            return (atom,)
    return tuple(parts)


def monomial(parts: tuple[Expr, ...]) -> Expr:
    """The product of atoms, as expression with its factors in canonical order."""
    ordered = sorted(parts, key=order) if len(parts) > 1 else parts
    result = ordered[0]
    for factor in ordered[1:]:
        result = Op("mul", (result, factor))
    return result


def mul(a: Form, b: Form) -> Form:
    """The product of two linear forms, multiplied out."""
    if not a[0]:
        return scale(b, a[1])
    if not b[0]:
        return scale(a, b[1])
    result: Form = ({}, a[1] * b[1])
    if b[1]:
        result = add(result, (a[0], 0), b[1])
    if a[1]:
        result = add(result, (b[0], 0), a[1])
    for x, c in a[0].items():
        for y, d in b[0].items():
            result = add(result, ({monomial((*factors(x), *factors(y))): c * d}, 0))
    return result


def divide_monomial(atom: Expr, by: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """The factors of `atom` without those in `by`, each removed once; None if one of these is missing."""
    left: Sequence[Expr] = factors(atom)
    for factor in by:
        others = without(left, factor)
        if others is None:
            return None
        left = others
    return tuple(left)


def without(parts: Sequence[Expr], part: Expr) -> list[Expr] | None:
    """`parts` without one occurrence of `part`; None if there is none."""
    at = next((k for k, e in enumerate(parts) if e is part), None)
    return None if at is None else [*parts[:at], *parts[at + 1 :]]


def order(e: Expr) -> str:
    """A text that sorts atoms in the same order in every process."""
    if type(e) is Var:
        return e.name
    if type(e) is Const:
        return str(e.value)
    return _compound_order(e)


@lru_cache(maxsize=4096)
def _compound_order(e: Expr) -> str:
    parts = ",".join([order(c) for c in e.children])
    if type(e) is Op:
        text = f"{e.name}({parts})"
    elif type(e) is Load:
        text = f"{e.buffer.name}[{parts}]"
    else:
        text = str(e)
    # Expressions share parts, texts do not: written out, one may be exponentially long.
    return text if len(text) <= 200 else text[:40] + blake2b(text.encode(), digest_size=16).hexdigest()


def _position(term: tuple[Expr, int]) -> tuple[int, int, bool, str]:
    atom, c = term
    return (-len(factors(atom)), -abs(c), c < 0, order(atom))


def to_expr(form: Form) -> Expr:
    """The canonical expression of a linear form: products first, then by falling coefficient, the constant last."""
    terms, constant = form
    if not terms:
        return literal(constant)
    if len(terms) == 1:
        ((atom, c),) = terms.items()
        if c == 1:
            return atom if constant == 0 else _plus(atom, constant)
        if c < 0 < constant:
            return Op("sub", (literal(constant), atom if c == -1 else Op("mul", (atom, literal(-c)))))
        return _plus(Op("mul", (atom, literal(c))), constant)
    ordered = sorted(terms.items(), key=_position)
    # A sum starts with something positive if there is any.
    first = next((t for t in ordered if t[1] > 0), None)
    result: Expr | None = None
    if first is not None:
        ordered = [term for term in ordered if term is not first]
        result = _term(*first)
    elif constant > 0:
        result, constant = literal(constant), 0
    for atom, c in ordered:
        if result is None:
            result = _term(atom, c)
        elif c > 0:
            result = Op("add", (result, _term(atom, c)))
        else:
            result = Op("sub", (result, _term(atom, -c)))
    assert result is not None
    return _plus(result, constant)


def _term(atom: Expr, c: int) -> Expr:
    return atom if c == 1 else Op("mul", (atom, literal(c)))


def _plus(e: Expr, constant: int) -> Expr:
    if constant == 0:
        return e
    return Op("add", (e, literal(constant))) if constant > 0 else Op("sub", (e, literal(-constant)))


def literal(value: int) -> Expr:
    """A literal; for a number outside of i64 an expression of i64 literals with that exact value."""
    if i64.min <= value <= i64.max:
        return const(value)
    above, rest = divmod(value, 1 << 62)
    whole = Op("mul", (literal(above), const(1 << 62)))
    return Op("add", (whole, const(rest))) if rest else whole
