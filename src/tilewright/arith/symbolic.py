"""Symbolic bounds: the least and greatest value of an expression over some variables, as expressions of the others.

    symbolic_bounds(io*8 + ii + 1, {ii: 8})  ->  (io*8 + 1, io*8 + 8)

Tight for linear forms and for floordiv, mod, min and max of them; `None` where a variable cannot be eliminated. Facts
of the analyzer decide quotients and remainders, and give upper ends of their own (`limits`):

    limits(io*8 + ii + 1, {ii: 8}) where io*8 + ii < n  ->  (n,)
"""

from __future__ import annotations

from tilewright.arith import compare, forms
from tilewright.arith.analyzer import Analyzer
from tilewright.arith.forms import Form
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Op, Var, const
from tilewright.ir.rewrite import walk_expr

Range = tuple[Form, Form]


class Eliminator:
    """Computes bounds of expressions over the variables `inner`, as expressions of all others."""

    __slots__ = ("_free", "analyzer", "inner")

    def __init__(self, analyzer: Analyzer, inner: frozenset[Var]) -> None:
        self.analyzer = analyzer
        self.inner = inner
        self._free: dict[Expr, bool] = {}

    def bounds(self, e: Expr) -> tuple[Expr, Expr] | None:
        """(least, greatest) value of `e` over the inner variables, both simplified; None if not known."""
        result = self.of_form(self.analyzer.form(e))
        if result is None:
            return None
        lo, hi = (self.analyzer.simplify(forms.to_expr(f)) for f in result)
        return lo, hi

    def limits(self, e: Expr) -> tuple[Expr, ...]:
        """Upper bounds of `e` without inner variables, one for each of the analyzer's facts by which one follows: `e <=
        e + k*fact` for the k > 0 with which an inner variable cancels."""
        an, form = self.analyzer, self.analyzer.form(e)
        result: dict[Expr, None] = {}
        for fact in an.facts:
            for v, c in fact[0].items():
                k, rest = divmod(form[0].get(v, 0), -c)
                if v in self.inner and k > 0 and not rest:
                    ends = self.of_form(forms.add(form, fact, k))
                    if ends is not None:
                        result[an.simplify(forms.to_expr(ends[1]))] = None
        return tuple(result)

    def free(self, e: Expr) -> bool:
        """True if no inner variable stands in `e`."""
        known = self._free.get(e)
        if known is None:
            known = self._free[e] = not any(node in self.inner for node in walk_expr(e) if type(node) is Var)
        return known

    def of_form(self, form: Form) -> Range | None:
        lo, hi = form, form
        for atom, c in form[0].items():
            if self.free(atom) or type(atom) is Var or all(self._is_simple(f) for f in forms.factors(atom)):
                continue
            ends = self._atom(atom)
            if ends is None:
                return None
            low, high = ends if c > 0 else (ends[1], ends[0])
            lo = forms.add(forms.add(lo, ({atom: 1}, 0), -c), low, c)
            hi = forms.add(forms.add(hi, ({atom: 1}, 0), -c), high, c)
        least, most = self._variables(lo, -1), self._variables(hi, 1)
        return None if least is None or most is None else (least, most)

    def _is_simple(self, factor: Expr) -> bool:
        return type(factor) is Var or self.free(factor)

    def _variables(self, form: Form, sign: int) -> Form | None:
        """The greatest value (`sign` > 0) or least value of a polynomial over its inner variables, eliminated one after
        another; None if that is not possible."""
        extents = self.analyzer.extents
        while True:
            present = {f for atom in form[0] for f in forms.factors(atom) if type(f) is Var and f in self.inner}
            if not present:
                return form if all(self.free(atom) for atom in form[0]) else self._repeated(form, sign)
            v = next(
                (v for v in sorted(present, key=forms.order) if not self._is_needed(v, present)),
                None,
            )
            parts = compare.coefficient(form, v) if v is not None else None
            if parts is None or v is None:
                return None
            factor, rest = parts
            last = forms.mul(factor, forms.add(self.analyzer.form(extents[v]), ({}, -1)))
            lo, hi = self.analyzer.form_range(factor)
            if lo is not None and lo >= 0:
                best = last if sign > 0 else forms.ZERO
            elif hi is not None and hi <= 0:
                best = forms.ZERO if sign > 0 else last
            else:
                best = self.analyzer.form(Op("max" if sign > 0 else "min", (const(0), forms.to_expr(last))))
            form = forms.add(rest, best)

    def _is_needed(self, v: Var, present: set[Var]) -> bool:
        extents = self.analyzer.extents
        return any(e is v for w in present if w is not v for e in walk_expr(extents[w]))

    def _repeated(self, form: Form, sign: int) -> Form | None:
        # The extent added an atom over another inner variable.
        ends = self.of_form(form)
        return None if ends is None else ends[1 if sign > 0 else 0]

    def _atom(self, e: Expr) -> Range | None:
        an = self.analyzer
        if type(e) is Op:
            result = self._op(e)
            if result is not None:
                return result
        lo, hi = an.range(e)
        return None if lo is None or hi is None else (({}, lo), ({}, hi))

    def _op(self, e: Op) -> Range | None:
        an, name, args = self.analyzer, e.name, e.args
        if name in ("floordiv", "mod"):
            return self._division(e)
        if name in ("min", "max"):
            a, b = self._ends(args[0]), self._ends(args[1])
            if a is None or b is None:
                return self._one_sided(name, e, a or b)
            lo, hi = (an.form(Op(name, (forms.to_expr(x), forms.to_expr(y)))) for x, y in zip(a, b, strict=True))
            return lo, hi
        if name == "select":
            a, b = self._ends(args[1]), self._ends(args[2])
            if a is None or b is None:
                return None
            lo = an.form(Op("min", (forms.to_expr(a[0]), forms.to_expr(b[0]))))
            hi = an.form(Op("max", (forms.to_expr(a[1]), forms.to_expr(b[1]))))
            return lo, hi
        return None

    def _one_sided(self, name: str, e: Op, known: Range | None) -> Range | None:
        """Bounds of `min(e, other)` or `max(e, other)`, as `name` says, where only the bounds of `other` (`known`) are
        expressions without inner variables, and the bounds of `e` are numbers, which limit the result from one side:
        `min(e, y) <= y`. None if there are no such bounds. Clamped indices of gathers are of this kind."""
        lo, hi = self.analyzer.range(e)
        if known is None:
            return None
        if name == "min" and lo is not None:
            return ({}, lo), known[1]
        if name == "max" and hi is not None:
            return known[0], ({}, hi)
        return None

    def _ends(self, e: Expr) -> Range | None:
        return self.of_form(self.analyzer.form(e))

    def _division(self, e: Op) -> Range | None:
        an = self.analyzer
        x, d = e.args
        ends = self._ends(x)
        least = an.bounds(d).lo
        if not self.free(d) or least is None or least <= 0:
            return None
        divisor = an.form(d)
        if e.name == "floordiv":
            if ends is None:
                return None
            return self._quotient(ends[0], d), self._quotient(ends[1], d)
        most = (divisor[0], divisor[1] - 1)
        if ends is not None:
            low, high = self._quotient(ends[0], d), self._quotient(ends[1], d)
            if low == high:
                shift = forms.mul(low, divisor)
                return forms.add(ends[0], shift, -1), forms.add(ends[1], shift, -1)
            if compare.nonnegative(an, ends[0]):
                smaller = an.form(Op("min", (forms.to_expr(ends[1]), forms.to_expr(most))))
                return forms.ZERO, smaller
        return forms.ZERO, most

    def _quotient(self, x: Form, d: Expr) -> Form:
        return self.analyzer.form(Op("floordiv", (forms.to_expr(x), d)))


def eliminate(e: Expr, inner: frozenset[Var], analyzer: Analyzer) -> tuple[Expr, Expr] | None:
    """(the least, the greatest) value of `e` over all values of the variables `inner`, whose extents the analyzer
    knows, as expressions without them; None if they are not known."""
    if e.dtype is not i64:
        lo, hi = analyzer.bounds(e)
        return None if lo is None or hi is None else (const(lo), const(hi))
    return Eliminator(analyzer, inner).bounds(e)
