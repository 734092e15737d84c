"""Floor division and remainder of linear forms. Each law holds for negative numbers too, because both round down.

With d > 0:
    (d*q + r) // d           = q + r // d                          (d*q + r) % d = r % d
    r // d                   = t, r % d = r - t*d                  when t*d <= r < (t+1)*d by bounds or by facts
    (g*a + b) // (g*d)       = (a + t) // d                        when t*g <= b < (t+1)*g
    (g*a + b) % (g*d)        = g*((a + t) % d) + b - t*g           likewise
    (x // c + k) // d        = (x + k*c) // (c*d)                  for c > 0
    (x % (d*k)) // d         = (x // d) % k                        (x % (d*k)) % d = x % d
    c*d*(x // d) + c*(x % d) = c*x                                 (digits merge, also inside longer chains)
    x % d + d*((q + x // d) % m) = (q*d + x) % (d*m)           likewise
    x - d*(x // d)           = x % d
    x // c - d*((x + k*c) // (c*d)) = (x // c + k) % d - k     for c > 0
    x // d * (c*d)           = c*x                                 when d divides x, also in products of such quotients
    (c*x) // (x // d)        = c*d, (c*x) % (x // d) = 0           when d divides x and x > 0
    x // d // e              = x // (d*e)                          also where e divides x // d
By definition x // 0 = x % 0 = 0, so laws with a symbolic divisor (digits that merge are one) need it to be positive.
The literal divisors of quotients and remainders in forms are above 1.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from tilewright.arith import compare, forms
from tilewright.arith.forms import ZERO, Form
from tilewright.arith.wrapping import may_wrap
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, Op, Var, const

if TYPE_CHECKING:
    from tilewright.arith.analyzer import Analyzer


def floordiv(an: Analyzer, a: Form, b: Form) -> Form:
    """The linear form of `a // b`, rounded down."""
    return _symbolic(an, "floordiv", a, b) if b[0] else floordiv_const(an, a, b[1])


def mod(an: Analyzer, a: Form, b: Form) -> Form:
    """The linear form of `a % b`, the remainder of floor division."""
    return _symbolic(an, "mod", a, b) if b[0] else mod_const(an, a, b[1])


def floordiv_const(an: Analyzer, a: Form, d: int) -> Form:
    if d == 0:
        return ZERO
    if d == i64.min:
        return ({Op("floordiv", (forms.to_expr(a), const(d))): 1}, 0) if a[0] else ({}, a[1] // d)
    if d < 0:
        if may_wrap(an, forms.scale(a, -1)):
            return ({Op("floordiv", (forms.to_expr(a), const(d))): 1}, 0)
        a, d = forms.scale(a, -1), -d
    if d == 1:
        return a
    if may_wrap(an, a):
        return ({Op("floordiv", (forms.to_expr(a), const(d))): 1}, 0)
    quotient, rest = _split(an, a, d)
    if rest[0]:
        return forms.add(quotient, _reduced_floordiv(an, rest, d))
    return forms.add(quotient, ({}, rest[1] // d))


def _split(an: Analyzer, a: Form, d: int) -> tuple[Form, Form]:
    """`(q, r)` with `a = d*q + r`, for a constant d: q has the terms that d divides, with the whole part of other
    coefficients, and r what remains."""
    quotient: Form = ({}, a[1] // d)
    rest: dict[Expr, int] = {}
    for atom, c in a[0].items():
        if c % d == 0:
            quotient = forms.add(quotient, ({atom: c // d}, 0))
        elif (c * an.divisor(atom)) % d == 0:
            # (c*x)/d is whole; with g = gcd(c, d) it is (c/g) * (x / (d/g)).
            g = gcd(c, d)
            quotient = forms.add(quotient, _exact(an, atom, d // g), c // g)
        else:
            whole = abs(c) // d * (1 if c > 0 else -1)
            if whole:
                quotient = forms.add(quotient, ({atom: whole}, 0))
            rest[atom] = c - whole * d
    return quotient, (rest, a[1] % d)


def _exact(an: Analyzer, atom: Expr, d: int) -> Form:
    """The form of `atom / d`, where d is known to divide it: in a product each factor, in order, is divided by as much
    of d as divides it."""
    parts = forms.factors(atom)
    if len(parts) > 1:
        left = d
        quotient: Form = ({}, 1)
        for part in parts:
            own = gcd(left, an.divisor(part))
            left //= own
            quotient = forms.mul(quotient, _exact(an, part, own) if own > 1 else ({part: 1}, 0))
        if left == 1:
            return quotient
    elif type(atom) is Op and atom.name == "floordiv" and type(atom.args[1]) is Const:
        return floordiv_const(an, an.form(atom.args[0]), atom.args[1].value * d)
    return ({Op("floordiv", (atom, const(d))): 1}, 0)


def _common_part(an: Analyzer, r: Form, d: int) -> tuple[int, Form, Form] | None:
    """`(g, a, b)` with `r = g*a + b` for the largest g that divides d, where b stays within one period of g, 0 <= b <
    g; None if there is none."""
    for g in sorted({gcd(c, d) for c in r[0].values()} - {1}, reverse=True):
        low = ({x: c for x, c in r[0].items() if c % g}, r[1])
        t = _period(an, low, g)
        if t is not None:
            return g, ({x: c // g for x, c in r[0].items() if c % g == 0}, t), (low[0], low[1] - t * g)
    return None


def _period(an: Analyzer, r: Form, d: int) -> int | None:
    """The t for which `t*d <= r < (t+1)*d` is proven, so that `r // d` is t; None if no t is."""
    lo, hi = an.form_range(r)
    if lo is None:
        return None
    t = lo // d
    if hi is not None and hi // d == t:
        return t
    # A tile that overhangs leaves its period, but for the condition that keeps it inside.
    below: Form = (forms.scale(r, -1)[0], (t + 1) * d - 1 - r[1])
    return t if an.facts and compare.nonnegative(an, below) else None


def _reduced_floordiv(an: Analyzer, r: Form, d: int) -> Form:
    t = _period(an, r, d)
    if t is not None:
        return ({}, t)
    common = _common_part(an, r, d)
    if common is not None:
        g, a, _ = common
        return floordiv_const(an, a, d // g)
    if len(r[0]) == 1:
        ((atom, c),) = r[0].items()
        if c == 1 and type(atom) is Op and type(atom.args[-1]) is Const:
            inner = atom.args[-1].value
            if atom.name == "floordiv":
                return floordiv_const(an, forms.add(an.form(atom.args[0]), ({}, r[1] * inner)), inner * d)
            if atom.name == "mod" and inner % d == 0 and r[1] == 0:
                return mod_const(an, floordiv_const(an, an.form(atom.args[0]), d), inner // d)
    return ({Op("floordiv", (forms.to_expr(r), const(d))): 1}, 0)


def mod_const(an: Analyzer, a: Form, d: int) -> Form:
    if d == 0:
        return ZERO
    if d == i64.min:
        return ({Op("mod", (forms.to_expr(a), const(d))): 1}, 0) if a[0] else ({}, a[1] % d)
    if d < 0 and may_wrap(an, forms.scale(a, -1)):
        return ({Op("mod", (forms.to_expr(a), const(d))): 1}, 0)
    if d < 0:
        return forms.scale(mod_const(an, forms.scale(a, -1), -d), -1)
    if d == 1:
        return ZERO
    if d & (d - 1) and may_wrap(an, a):
        return ({Op("mod", (forms.to_expr(a), const(d))): 1}, 0)
    for atom, c in a[0].items():
        if type(atom) is Op and atom.name == "mod" and type(atom.args[1]) is Const:
            if (c * atom.args[1].value) % d == 0:
                opened = forms.add(a, ({atom: 1}, 0), -c)
                return mod_const(an, forms.add(opened, an.form(atom.args[0]), c), d)
    _, r = _split(an, a, d)
    if not r[0]:
        return ({}, r[1] % d)
    t = _period(an, r, d)
    if t is not None:
        return (r[0], r[1] - t * d)
    common = _common_part(an, r, d)
    if common is not None:
        g, high, low = common
        return merge_digits(an, forms.add(low, mod_const(an, high, d // g), g))
    return ({Op("mod", (forms.to_expr(r), const(d))): 1}, 0)


# -- symbolic divisors ------------------------------------------------------------------------------------------


def _symbolic(an: Analyzer, name: str, a: Form, b: Form) -> Form:
    """The form of `a // b` or `a % b` (by `name`) for a symbolic b. With `a = b*q + r` by polynomial division they are
    q and r if `0 <= r < b` is proven, else `q + r // b` and `r % b` if b > 0 is."""
    divisor = forms.to_expr(b)
    if may_wrap(an, a) or may_wrap(an, b):
        return ({Op(name, (forms.to_expr(a), divisor)): 1}, 0)
    if (times := _times_even_part(an, a, divisor)) is not None:
        return ({}, times) if name == "floordiv" else ZERO
    least = an.form_range(b).lo
    if least is None or least <= 0:
        return ZERO if a == ZERO else ({Op(name, (forms.to_expr(a), divisor)): 1}, 0)
    quotient = _divide_polynomial(a, b)
    rest = forms.add(a, forms.mul(quotient, b), -1)
    below = forms.add(forms.add(b, rest, -1), ({}, -1))
    if rest == ZERO or (compare.nonnegative(an, rest) and compare.nonnegative(an, below)):
        return quotient if name == "floordiv" else rest
    atom = Op(name, (forms.to_expr(rest), divisor))
    return forms.add(quotient, ({atom: 1}, 0)) if name == "floordiv" else ({atom: 1}, 0)


def _times_even_part(an: Analyzer, a: Form, b: Expr) -> int | None:
    """`c*d` if a is `c*x` and b is `x // d`, where d divides x and x > 0: then it is `a // b`. None otherwise."""
    x, d, m = _digit(b)
    if m is not None or d == 1 or not a[0]:
        return None
    whole = an.form(x)
    (atom, c), *_ = a[0].items()
    once = whole[0].get(atom, 0)
    if not once or c % once or forms.scale(whole, c // once) != a:
        return None
    least = an.form_range(whole).lo
    return c // once * d if least is not None and least > 0 and an.divides(d, whole) else None


def _divide_polynomial(a: Form, b: Form) -> Form:
    """The quotient of polynomials a and b, without remainder: every term of a that b's leading term (that with the most
    factors) divides."""
    lead, c = max(b[0].items(), key=lambda t: (len(forms.factors(t[0])), -abs(t[1]), forms.order(t[0])))
    by = forms.factors(lead)
    quotient = ZERO
    for atom, k in a[0].items():
        left = forms.divide_monomial(atom, by)
        if left is not None and k % c == 0:
            term: Form = ({forms.monomial(left): k // c}, 0) if left else ({}, k // c)
            quotient = forms.add(quotient, term)
    return quotient


def exact_quotient(a: Form, b: Form) -> Form | None:
    """The polynomial q with `q*b = a` for all values of the atoms, by long division; None if there is none. Where b is
    0, a is too, and q says nothing of their quotient."""
    if not b[0]:
        whole = b[1] and all(c % b[1] == 0 for c in (*a[0].values(), a[1]))
        return ({x: c // b[1] for x, c in a[0].items()}, a[1] // b[1]) if whole else None
    by, coefficient = max(b[0].items(), key=_leading)
    lead = forms.factors(by)
    quotient = ZERO
    while a != ZERO:
        if not a[0] or len(quotient[0]) > _LARGEST_QUOTIENT:
            return None
        atom, c = max(a[0].items(), key=_leading)
        left = forms.divide_monomial(atom, lead)
        if left is None or c % coefficient:
            return None
        term: Form = ({forms.monomial(left): c // coefficient}, 0) if left else ({}, c // coefficient)
        quotient, a = forms.add(quotient, term), forms.add(a, forms.mul(term, b), -1)
    return quotient


_LARGEST_QUOTIENT = 64
"""The largest number of terms of a quotient."""


def _leading(term: tuple[Expr, int]) -> tuple[int, list[str]]:
    """A sort key for `term`, (monomial, coefficient): by degree, then by factors; a common factor of two products does
    not change their order."""
    parts = forms.factors(term[0])
    return len(parts), sorted((forms.order(p) for p in parts), reverse=True)


# -- digits -----------------------------------------------------------------------------------------------------


def merge_digits(an: Analyzer, a: Form) -> Form:
    """The form `a` in which digits of one number are joined, `x // (k*m) * m + (x // k) % m` to `x // k`, and products
    of exact quotients are multiplied out."""
    terms = a[0]
    divided = False
    for atom, c in terms.items():
        if type(atom) is not Op:
            continue
        if atom.name == "floordiv" or atom.name == "mul":
            whole = _whole_quotients(an, atom, c)
            if whole is not None:
                return merge_digits(an, forms.add(forms.add(a, ({atom: 1}, 0), -c), whole))
        divided = divided or atom.name == "floordiv" or atom.name == "mod"
    if not divided:
        return a
    views = {atom: _digit(atom) for atom in terms}
    for atom, c in terms.items():
        if type(atom) is Op and atom.name == "mod" and type(atom.args[1]) is not Const:
            if (whole := _merge_symbolic(an, a, atom, c)) is not None:
                return merge_digits(an, whole)
            continue
        x, k, m = views[atom]
        if m is None:
            if k > 1 and c % k == 0 and (low := _remainder(an, a, atom, c, x, k)) is not None:
                return merge_digits(an, low)
            if k > 1 and (low := _quotient_remainder(an, a, atom, c, x, k, views)) is not None:
                return merge_digits(an, low)
            if k > 1 and c % k == 0 and an.divides(k, an.form(x)):
                rest = forms.add(a, ({atom: 1}, 0), -c)
                return merge_digits(an, forms.add(rest, an.form(x), c // k))
            continue
        for other, co in terms.items():
            y, ky, my = views[other]
            if other is atom or co != c * m or ky % m:
                continue
            if (y is x and ky == k * m) or _same_digit(an, atom, y, ky // m, m):
                rest = forms.add(forms.add(a, ({atom: 1}, 0), -c), ({other: 1}, 0), -co)
                merged = floordiv_const(an, an.form(y), ky // m)
                if my is not None:
                    merged = mod_const(an, merged, m * my)
                return merge_digits(an, forms.add(rest, merged, c))
        above = _merge_sum(an, a, atom, c, x, k, m)
        if above is not None:
            return merge_digits(an, above)
    return a


def _whole_quotients(an: Analyzer, atom: Expr, c: int) -> Form | None:
    """`c * atom`, a product with exact quotients of dimensions by divisors, with the fraction of `c` and all divisors
    reduced, and what is left divided among the dimensions in order; None if nothing changes.

    `24 * (h // 32)` is `3 * (h // 4)`, `h // 8 * (w // 32)` is `h // 32 * (w // 8)`, where 32 divides h and w. With `p
    = h + -h % 4`, which 4 divides, `16 * b * (p // 4) * (p // 4)` is `b * p * p`.
    """
    dimensions: list[tuple[Expr, int]] = []
    others: list[Expr] = []
    divisor = 1
    for factor in forms.factors(atom):
        x, k, m = _digit(factor)
        if m is None and (an.divisor(x) % k == 0 if type(x) is Var else k > 1 and an.divides(k, an.form(x))):
            dimensions.append((x, an.divisor(x) if type(x) is Var else k))
            divisor *= k
        else:
            others.append(factor)
    if divisor == 1:
        return None
    common = gcd(c, divisor)
    left = divisor // common
    sums: list[Form] = []
    for x, known in sorted(dimensions, key=lambda entry: forms.order(entry[0])):
        part = gcd(left, known)
        left //= part
        if part > 1:
            others.append(Op("floordiv", (x, const(part))))
        elif type(x) is Var:
            others.append(x)
        else:
            sums.append(an.form(x))
    if left > 1:
        return None
    whole = ({forms.monomial(tuple(others)): c // common}, 0) if others else ({}, c // common)
    for each in sums:
        whole = forms.mul(whole, each)
    return None if whole == ({atom: c}, 0) else whole


def _remainder(an: Analyzer, a: Form, atom: Expr, c: int, x: Expr, k: int) -> Form | None:
    """`a`, in which `c*x - c*k*(x // k)` is replaced by `c*(x % k)`; `atom` is the quotient. None unless all terms of x
    occur in `a`."""
    numerator = an.form(x)
    factor = -c // k
    if any(a[0].get(t) != factor * h for t, h in numerator[0].items()):
        return None
    rest = forms.add(forms.add(a, ({atom: 1}, 0), -c), numerator, -factor)
    return forms.add(rest, mod_const(an, numerator, k), factor)


def _quotient_remainder(
    an: Analyzer, a: Form, atom: Expr, c: int, y: Expr, k: int, views: dict[Expr, tuple[Expr, int, int | None]]
) -> Form | None:
    """`a`, in which `co*(x // n) - co*d*(y // k)` with `k = n*d` and `y = x + n*s` is replaced by `co*((x // n + s) %
    d) - co*s`; `atom` is the second quotient. None if there is no such pair. (`(x // n) // d` is simplified to `x //
    k`, so that the numerator does not appear in it.)"""
    for other, co in a[0].items():
        x, n, m = views[other]
        if m is not None or not 1 < n < k or k % n or c != -co * (k // n):
            continue
        terms, shift = forms.add(an.form(y), an.form(x), -1)
        if not terms and shift % n == 0:
            moved: Form = ({other: 1}, shift // n)
            rest = forms.add(forms.add(a, ({atom: 1}, 0), -c), moved, -co)
            return forms.add(rest, mod_const(an, moved, k // n), co)
    return None


def _merge_symbolic(an: Analyzer, a: Form, atom: Op, c: int) -> Form | None:
    """`a`, in which `c*d*(x // d) + c*(x % d)` is replaced by `c*x`; `atom` is the remainder, and d is symbolic and
    positive. None if `a` lacks the other terms."""
    x, d = atom.args
    least = an.form_range(an.form(d)).lo
    product = forms.mul(({Op("floordiv", (x, d)): 1}, 0), an.form(d))
    if least is None or least <= 0 or any(a[0].get(t) != c * h for t, h in product[0].items()):
        return None
    rest = forms.add(forms.add(a, ({atom: 1}, 0), -c), product, -c)
    return forms.add(rest, an.form(x), c)


def _merge_sum(an: Analyzer, a: Form, atom: Expr, c: int, x: Expr, k: int, m: int) -> Form | None:
    """`a`, in which `c*((x // k) % m) + c*m*((q + x // (k*m)) % n)`, two digits of one number of which q is added to
    the upper, is replaced by `c*((q*m + x // k) % (m*n))`; `atom` is the lower digit. None if there is no upper one."""
    for other, co in a[0].items():
        if co != c * m or type(other) is not Op or other.name != "mod" or type(other.args[1]) is not Const:
            continue
        numerator, n = an.form(other.args[0]), other.args[1].value
        for part, once in numerator[0].items():
            if once == 1 and len(numerator[0]) > 1 and _digit(part) == (x, k * m, None):
                q = forms.add(numerator, ({part: 1}, 0), -1)
                whole = forms.add(floordiv_const(an, an.form(x), k), q, m)
                rest = forms.add(forms.add(a, ({atom: 1}, 0), -c), ({other: 1}, 0), -co)
                return forms.add(rest, mod_const(an, whole, m * n), c)
    return None


def _same_digit(an: Analyzer, atom: Expr, y: Expr, k: int, m: int) -> bool:
    """Whether `atom` equals `(y // k) % m`, although remainders in it may have been simplified: `(2*(i % 16) + j) % 4`
    is written as `(2*i + j) % 4`."""
    return mod_const(an, floordiv_const(an, an.form(y), k), m) == ({atom: 1}, 0)


def _digit(atom: Expr) -> tuple[Expr, int, int | None]:
    """(x, k, m) of an atom of the form `(x // k) % m`, with k 1 without a quotient, and m None without a remainder."""
    m: int | None = None
    x = atom
    if type(x) is Op and x.name == "mod" and type(x.args[1]) is Const:
        m = x.args[1].value
        x = x.args[0]
    if type(x) is Op and x.name == "floordiv" and type(x.args[1]) is Const:
        return x.args[0], x.args[1].value, m
    return x, 1, m
