"""Comparisons of i64 expressions: decided by the range of the difference, proven by eliminating variables, else
normalised to one form (`a < b`, `a <= b`, or `c <= a` with a literal c; positive terms on both sides, constants on the
right).

`nonnegative` proves `form >= 0`. Interval arithmetic comes first. Where ranges are symbolic, a variable v in
`[0, extent)` with coefficient c is replaced by the worse end (0 if c >= 0, else `extent - 1`), and atoms by what bounds
them: `d*(x // d)` by `x - d + 1` or `x`, a minimum by either or both sides. So `i < n` follows from the extent n, and
`io*8 + ii < n` from `io < n // 8` if 8 divides n.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from tilewright.arith import division, forms
from tilewright.arith.forms import Form
from tilewright.arith.interval import Interval
from tilewright.arith.wrapping import may_wrap
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, Op, Var, const
from tilewright.ir.rewrite import substitute, walk_expr

if TYPE_CHECKING:
    from tilewright.arith.analyzer import Analyzer

TRUE = const(True)
FALSE = const(False)
ONE = const(1)
_DEPTH = 8
"""The largest number of variables and atoms that a proof may eliminate one after another."""

_STEPS = 120
"""The largest number of goals that a proof may try: minima and maxima branch."""


def decide(name: str, difference: Interval) -> Const | None:
    """The truth of the comparison `name` of two integers whose difference lies in this interval; None if that does not
    decide it."""
    lo, hi = difference
    match name:
        case "lt":
            return TRUE if hi is not None and hi < 0 else FALSE if lo is not None and lo >= 0 else None
        case "le":
            return TRUE if hi is not None and hi <= 0 else FALSE if lo is not None and lo > 0 else None
        case "gt":
            return TRUE if lo is not None and lo > 0 else FALSE if hi is not None and hi <= 0 else None
        case "ge":
            return TRUE if lo is not None and lo >= 0 else FALSE if hi is not None and hi < 0 else None
        case "eq" | "ne":
            if (lo is not None and lo > 0) or (hi is not None and hi < 0):
                return FALSE if name == "eq" else TRUE
            if lo == 0 and hi == 0:
                return TRUE if name == "eq" else FALSE
    return None


def simplify(an: Analyzer, name: str, a: Form, b: Form) -> Expr:
    """`a <name> b` as a literal or in canonical form."""
    wraps = may_wrap(an, a) or may_wrap(an, b)
    if name in ("eq", "ne"):
        difference = division.merge_digits(an, forms.add(a, b, -1))
        return _wrapped_equality(an, name, difference) if wraps else _equality(an, name, difference)
    if name in ("gt", "ge"):
        a, b = b, a
    strict = name in ("lt", "gt")
    if wraps:
        return const(not strict) if a == b else Op("lt" if strict else "le", (forms.to_expr(a), forms.to_expr(b)))
    # a < b  is  b - a - 1 >= 0;  a <= b  is  b - a >= 0.
    slack = division.merge_digits(an, forms.add(b, a, -1))
    if strict:
        slack = (slack[0], slack[1] - 1)
    if nonnegative(an, slack):
        return TRUE
    if nonnegative(an, (forms.scale(slack, -1)[0], -slack[1] - 1)):
        return FALSE
    if not i64.min < slack[1] < i64.max:
        return Op("lt" if strict else "le", (forms.to_expr(a), forms.to_expr(b)))
    result = inequality(an, slack)
    if any(may_wrap(an, an.form(side)) for side in result.children):
        return Op("lt" if strict else "le", (forms.to_expr(a), forms.to_expr(b)))
    return result


def inequality(an: Analyzer, slack: Form) -> Expr:
    """The canonical expression of `slack >= 0`."""
    terms, constant = slack
    terms, constant = _drop_low_part(an, terms, constant)
    g = gcd(*terms.values())
    terms, constant = {t: c // g for t, c in terms.items()}, constant // g
    left = {t: -c for t, c in terms.items() if c < 0}
    right = {t: c for t, c in terms.items() if c > 0}
    if not left:
        return Op("le", (const(-constant), forms.to_expr((right, 0))))
    if constant == 0 and right:
        return Op("le", (forms.to_expr((left, 0)), forms.to_expr((right, 0))))
    return Op("lt", (forms.to_expr((left, 0)), forms.to_expr((right, constant + 1))))


def _drop_low_part(an: Analyzer, terms: dict[Expr, int], constant: int) -> tuple[dict[Expr, int], int]:
    """(terms, constant) of an inequality `>= 0`, simplified: `g*a + b + k >= 0` with `0 <= b + (k mod g) < g` is `a + k
    // g >= 0`. So the inner variable of a split loop disappears."""
    if len(terms) < 2:
        return terms, constant
    for g in sorted({abs(c) for c in terms.values()} - {1}, reverse=True):
        low = {t: c for t, c in terms.items() if c % g}
        if low and len(low) < len(terms):
            lo, hi = an.form_range((low, constant % g))
            if lo is not None and hi is not None and lo // g == hi // g:
                return {t: c // g for t, c in terms.items() if c % g == 0}, constant // g + lo // g
    return terms, constant


def _equality(an: Analyzer, name: str, difference: Form) -> Expr:
    terms, constant = difference
    decided = decide(name, an.form_range(difference))
    if decided is not None:
        return decided
    g = 0
    for atom, c in terms.items():
        g = gcd(g, c * an.divisor(atom))
    if g and constant % g:
        return FALSE if name == "eq" else TRUE
    if nonnegative(an, (terms, constant - 1)) or nonnegative(an, (forms.scale(difference, -1)[0], -constant - 1)):
        return FALSE if name == "eq" else TRUE
    g = gcd(*terms.values(), constant)
    terms, constant = {t: c // g for t, c in terms.items()}, constant // g
    positive = {t: c for t, c in terms.items() if c > 0}
    negative = {t: -c for t, c in terms.items() if c < 0}
    if not positive:
        positive, negative, constant = negative, positive, -constant
    left = forms.to_expr((positive, constant if constant > 0 and negative else 0))
    right = forms.to_expr((negative, 0 if constant > 0 and negative else -constant))
    return Op(name, (left, right))


def _wrapped_equality(an: Analyzer, name: str, difference: Form) -> Expr:
    """The expression of `difference == 0` (`name` is "eq") or `difference != 0` ("ne") modulo 2**64. An odd constant
    decides it for a sum that is always even, but `2*x == 2*y` must not be divided by 2."""
    terms, constant = difference
    constant -= ((constant >> 63) + 1 >> 1) << 64
    if not terms:
        return const((constant == 0) == (name == "eq"))
    if constant % an.form_divisor((terms, 0)):
        return const(name == "ne")
    return Op(name, (forms.to_expr((terms, 0)), const(-constant)))


def nonnegative_forms(an: Analyzer, condition: Expr) -> list[Form]:
    """The linear forms that are at least 0 wherever a simplified condition holds; [] if there are none."""
    if type(condition) is not Op:
        return []
    a, b = condition.args[0], condition.args[-1]
    if condition.name == "and":
        return nonnegative_forms(an, a) + nonnegative_forms(an, b)
    if a.dtype is not i64:
        return []
    if may_wrap(an, an.form(a)) or may_wrap(an, an.form(b)):
        return []
    difference = forms.add(an.form(b), an.form(a), -1)
    match condition.name:
        case "lt":
            return [(difference[0], difference[1] - 1)]
        case "le":
            return [difference]
        case "eq":
            return [difference, forms.scale(difference, -1)]
    return []


# -- proof ------------------------------------------------------------------------------------------------------


def nonnegative(an: Analyzer, form: Form, depth: int = _DEPTH) -> bool:
    """True if `form >= 0` is proven for all values that `an` allows; False proves nothing. `depth` counts the
    recursions."""
    if depth < _DEPTH:
        an.steps += 1
        return an.steps <= _STEPS and _nonnegative(an, form, depth)
    outside, an.steps = an.steps, 0
    try:
        return _nonnegative(an, form, depth)
    finally:
        an.steps = outside


def _nonnegative(an: Analyzer, form: Form, depth: int) -> bool:
    lo, hi = an.form_range(form)
    if lo is not None and lo >= 0:
        return True
    if hi is not None and hi < 0:
        return False
    if depth == _DEPTH and an.refutes(form):
        return False
    if an.facts:
        # Questions that arise on the way are answered without the facts, else they could need each other.
        facts, an.facts = an.facts, ()
        try:
            if _from_facts(an, facts, form, depth):
                return True
        finally:
            an.facts = facts
    if depth == 0 or (lo is not None and hi is not None and _independent(an, form)):
        return False
    if _eliminate_variable(an, form, depth) or _relax_atom(an, form, depth):
        return True
    if depth < _DEPTH or an.splitting:
        return False
    # What comes up for the parts of a symbol is answered without parts of these.
    an.splitting = True
    try:
        return _split_symbol(an, form)
    finally:
        an.splitting = False


def _from_facts(an: Analyzer, facts: tuple[Form, ...], form: Form, depth: int) -> bool:
    """Whether one of `facts`, which are nonnegative, proves `form >= 0`: a multiple k > 0 of it is subtracted so that a
    common term cancels, and the rest is proven nonnegative, at most `depth` levels deep."""
    for fact in facts:
        ratios = {form[0][t] // c for t, c in fact[0].items() if t in form[0] and form[0][t] % c == 0}
        for k in sorted(ratios):
            if k > 0:
                rest = forms.add(form, fact, -k)
                low = an.form_range(rest).lo
                if (low is not None and low >= 0) or (depth == _DEPTH and nonnegative(an, rest, depth // 2)):
                    return True
    return False


def _split_symbol(an: Analyzer, form: Form) -> bool:
    """Whether `form >= 0` is proven by splitting a symbol: where several quotients of n by 8 occur, as in `(n + 7)//8 -
    n//8`, n is replaced by `8*q + r` with r in 0..7."""
    divided = [
        (atom.args[0], atom.args[1].value)
        for atom in form[0]
        if type(atom) is Op and atom.name in ("floordiv", "mod") and type(atom.args[1]) is Const
    ]
    if not divided:
        return False
    x, d = max(divided, key=lambda pair: pair[1])
    for v in an.form(x)[0]:
        if type(v) is not Var or v in an.extents or d < 2:
            continue
        if sum(any(e is v for e in walk_expr(atom)) for atom in form[0]) < 2:
            # One occurrence alone says no more than its range.
            continue
        lo, hi = an.range(v)
        q = Var(f"{v.name}//{d}", lo=None if lo is None else lo // d, hi=None if hi is None else hi // d)
        r = Var(f"{v.name}%{d}", lo=0, hi=d - 1)
        split = an.form(substitute(forms.to_expr(form), {v: q * d + r}))
        if nonnegative(an, split, _DEPTH - 1):
            return True
    return False


def _independent(an: Analyzer, form: Form) -> bool:
    """Whether the form's interval is exact, so that no other method can prove more: its variables have constant, hence
    independent, extents."""
    return all(type(atom) is Var and type(an.extents.get(atom, ONE)) is Const for atom in form[0])


def _eliminate_variable(an: Analyzer, form: Form, depth: int) -> bool:
    extents = an.extents
    present = {f for atom in form[0] for f in _variables_of(atom) if f in extents}
    if not present:
        return False
    symbolic = [
        v
        for v in present
        if type(extents[v]) is not Const or any(len(forms.factors(t)) > 1 and v in forms.factors(t) for t in form[0])
    ]
    symbolic.sort(key=lambda v: v.name)
    for v in symbolic:
        # Innermost first: a variable that another one's extent mentions must stay until that one is gone.
        if any(e is v for w in symbolic if w is not v for e in walk_expr(extents[w])):
            continue
        parts = coefficient(form, v)
        if parts is None:
            continue
        factor, rest = parts
        lo, hi = an.form_range(factor)
        if lo is not None and lo >= 0:
            return nonnegative(an, rest, depth - 1)
        if hi is not None and hi <= 0:
            last = forms.add(an.form(extents[v]), ({}, -1))
            return nonnegative(an, forms.add(rest, forms.mul(factor, last)), depth - 1)
    return False


def _variables_of(atom: Expr) -> tuple[Var, ...]:
    """The variables among the factors of an atom."""
    if type(atom) is Var:
        return (atom,)
    if type(atom) is not Op or atom.name != "mul":
        return ()
    return tuple(f for f in forms.factors(atom) if type(f) is Var)


def coefficient(form: Form, v: Var) -> tuple[Form, Form] | None:
    """`(c, r)` with `form = c*v + r` and no v among c's and r's factors; None if v has a higher power."""
    factor: dict[Expr, int] = {}
    factor_constant = 0
    rest: dict[Expr, int] = {}
    for atom, c in form[0].items():
        parts = forms.factors(atom)
        left = forms.without(parts, v)
        if left is None:
            rest[atom] = c
            continue
        if any(e is v for e in left):
            return None
        if left:
            factor[forms.monomial(tuple(left))] = c
        else:
            factor_constant += c
    return (factor, factor_constant), (rest, form[1])


def _relax_atom(an: Analyzer, form: Form, depth: int) -> bool:
    for atom, c in form[0].items():
        if type(atom) is not Op:
            continue
        rest = forms.add(form, ({atom: 1}, 0), -c)
        name = atom.name
        if any(a.dtype is i64 and may_wrap(an, an.form(a)) for a in atom.args):
            continue
        if name == "floordiv" and abs(c) == 1 and _exact_quotient(an, atom, rest, c, depth):
            return True
        if name == "floordiv" and type(atom.args[1]) is Const:
            # d*(x // d) lies in [x - d + 1, x]; the whole inequality is multiplied by d.
            d = atom.args[1].value
            x = an.form(atom.args[0])
            worst = x if c < 0 else (x[0], x[1] - d + 1)
            if nonnegative(an, forms.add(forms.scale(rest, d), worst, c), depth - 1):
                return True
        elif name == "min" or name == "max" or name == "select":
            sides = [nonnegative(an, forms.add(rest, an.form(s), c), depth - 1) for s in atom.args[-2:]]
            either = (name == "min") == (c < 0) and name != "select"
            if any(sides) if either else all(sides):
                return True
        elif name == "mod" and type(atom.args[1]) is not Const:
            # x % m lies in [0, m - 1] for m > 0.
            m = an.form(atom.args[1])
            least = an.form_range(m).lo
            if least is not None and least > 0:
                worst = (m[0], m[1] - 1) if c < 0 else forms.ZERO
                if nonnegative(an, forms.add(rest, worst, c), depth - 1):
                    return True
    return False


def _exact_quotient(an: Analyzer, atom: Op, rest: Form, c: int, depth: int) -> bool:
    """Whether `atom`, a quotient `x // d`, times `c` (1 or -1), plus `rest`, is proven to be nonnegative, for d > 0: `x
    // d + r >= 0` is `x + r*d >= 0`, and `x // d <= r` is `x < (r + 1)*d`. `depth` is how many further levels of
    recursion the proof may use."""
    x, d = an.form(atom.args[0]), an.form(atom.args[1])
    least = an.form_range(d).lo
    if least is None or least <= 0:
        return False
    if c > 0:
        return nonnegative(an, forms.add(forms.mul(rest, d), x), depth - 1)
    above = forms.mul((rest[0], rest[1] + 1), d)
    return nonnegative(an, forms.add(forms.add(above, x, -1), ({}, -1)), depth - 1)
