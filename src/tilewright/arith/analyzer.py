"""The analyzer: what is known about variables, and the canonical form and range of expressions under it.

`extents` says that each of its variables lies in `[0, extent)`; `facts` are conditions that hold. All results are
cached, so one analyzer should serve a whole loop nest. An i64 expression is simplified by its linear form (see
`forms`), whose atoms are simplified; other expressions by the rules (see `rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from tilewright.arith import compare, division, forms, interval, points, rules, wrapping
from tilewright.arith.forms import Form
from tilewright.arith.interval import EVERYTHING, Interval
from tilewright.arith.points import Point
from tilewright.ir.dtype import DType, boolean, i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var, cast
from tilewright.ir.rewrite import rebuild, walk_expr

Extents = Mapping[Var, Expr]

_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_PRODUCT_TERMS = 24
"""The largest number of terms of a product of two sums that is multiplied out."""


class _Stated:
    """The cached results of an analyzer that do not depend on its facts."""

    __slots__ = ("divisors", "facts", "forms", "ranges", "simple")

    def __init__(
        self,
        facts: tuple[Form, ...],
        linear: dict[Expr, Form],
        simple: dict[Expr, Expr],
        ranges: dict[Expr, Interval],
        divisors: dict[Expr, int],
    ) -> None:
        self.facts, self.forms, self.simple, self.ranges, self.divisors = facts, linear, simple, ranges, divisors


class Analyzer:
    """Simplifies index expressions, bounds them and proves conditions on them, given ranges of variables and facts that
    stay the same."""

    __slots__ = (
        "_divisors",
        "_forms",
        "_ranges",
        "_simple",
        "_stated",
        "_points",
        "_of_data",
        "_unbounded",
        "extents",
        "facts",
        "splitting",
        "steps",
    )

    def __init__(self, extents: Extents | None = None, facts: Iterable[Expr] = ()) -> None:
        self.extents: dict[Var, Expr] = dict(extents) if extents else {}
        self.facts: tuple[Form, ...] = ()
        self.steps = 0
        self.splitting = False
        self._points: dict[bool, tuple[Point, ...]] = {}
        self._forms: dict[Expr, Form] = {}
        self._simple: dict[Expr, Expr] = {}
        self._ranges: dict[Expr, Interval] = {}
        self._divisors: dict[Expr, int] = {}
        self._unbounded: dict[Expr, bool] = {}
        self._of_data: dict[Expr, bool] = {}
        self._stated: _Stated | None = None
        self._state(facts, ())

    def also(self, fact: Expr) -> Analyzer:
        """A new analyzer that also knows `fact`. It reuses what this one has cached, instead of simplifying all facts
        again."""
        result = Analyzer(self.extents)
        before = self._stated
        if before is not None:
            result._forms, result._simple = dict(before.forms), dict(before.simple)
            result._ranges, result._divisors = dict(before.ranges), dict(before.divisors)
        result._state((fact,), before.facts if before is not None else ())
        return result

    def _state(self, facts: Iterable[Expr], before: tuple[Form, ...]) -> None:
        """Add `facts`, conditions, to those in `before`, forms that are known to be nonnegative."""
        known = (*before, *(f for fact in facts for f in compare.nonnegative_forms(self, self.simplify(fact))))
        if self._simple:
            copies = dict(self._forms), dict(self._simple), dict(self._ranges), dict(self._divisors)
            self._stated = _Stated(known, *copies)
        if known:
            # What was simplified so far was so without the facts. Ranges stay (wide, but true), those of the facts'
            # own atoms above all: using a fact must not need it.
            for atom in [a for form in known for a in form[0]]:
                self.range(atom)
            self._forms, self._simple = {}, {}
            self.facts = known

    @property
    def remembered(self) -> int:
        """The number of cached expressions."""
        return len(self._simple) + len(self._forms)

    def refutes(self, form: Form) -> bool:
        """Whether `form` is negative at one of the sample points where the facts hold, so that a proof of `form >= 0`
        need not be tried."""
        known = self._points.get(self.facts != ())
        if known is None:
            known = self._points[self.facts != ()] = points.some(self.extents, self.facts)
        return any((value := p.form(form)) is not None and value < 0 for p in known)

    # -- the three questions ------------------------------------------------------------------------------------

    def simplify(self, e: Expr) -> Expr:
        """An expression equal to `e` for all values that the variables may have, in canonical form."""
        done = self._simple.get(e)
        if done is not None:
            return done
        kind = type(e)
        if kind is Const:
            return e
        if e.dtype is i64 and kind is not Load:
            form = self.form(e)
            result = forms.to_expr(form)
            self._forms[result] = form
        elif kind is Op:
            result = self._simplify_op(e)  # type: ignore[arg-type]
        elif e.children:
            result = rebuild(e, tuple([self.simplify(c) for c in e.children]))
        else:
            result = e
        self._simple[e] = self._simple[result] = result
        return result

    def bounds(self, e: Expr) -> Interval:
        """An interval that contains every value of an integer or boolean expression."""
        if e.dtype is not i64:
            return self.range(e)
        form = self.form(e)
        return EVERYTHING if wrapping.may_wrap(self, form) else self.form_range(form)

    def prove(self, condition: Expr) -> bool:
        """True if `condition` holds for all values of its variables; False means only that this is not known."""
        result = self.simplify(condition)
        return type(result) is Const and bool(result.value)

    # -- linear forms -------------------------------------------------------------------------------------------

    def form(self, e: Expr) -> Form:
        """The linear form of an i64 expression."""
        done = self._forms.get(e)
        if done is None:
            done = self._forms[e] = self._form(e)
        return done

    def _form(self, e: Expr) -> Form:
        if type(e) is Const:
            return ({}, e.value)
        if type(e) is Var:
            lo, hi = self.range(e)
            return ({}, lo) if lo is not None and lo == hi else ({e: 1}, 0)
        if type(e) is Op:
            name = e.name
            if name == "add" or name == "sub":
                total = forms.add(self.form(e.args[0]), self.form(e.args[1]), 1 if name == "add" else -1)
                return division.merge_digits(self, total)
            if name == "mul":
                return self._product(self.form(e.args[0]), self.form(e.args[1]))
            if name == "floordiv":
                return division.floordiv(self, self.form(e.args[0]), self.form(e.args[1]))
            if name == "mod":
                return division.mod(self, self.form(e.args[0]), self.form(e.args[1]))
            if name == "neg":
                return forms.scale(self.form(e.args[0]), -1)
            return self.atom_form(self._simplify_i64(e))
        if e.children:
            return ({rebuild(e, tuple([self.simplify(c) for c in e.children])): 1}, 0)
        return ({e: 1}, 0)

    def atom_form(self, e: Expr) -> Form:
        """The linear form of a simplified expression: itself as an atom, unless it is a sum, product, quotient or
        remainder."""
        if type(e) is Const:
            return ({}, e.value)
        if type(e) is Op and e.name in ("add", "sub", "mul", "floordiv", "mod", "neg"):
            return self.form(e)
        return ({e: 1}, 0)

    def _product(self, a: Form, b: Form) -> Form:
        long = (len(a[0]) + 1) * (len(b[0]) + 1) > _PRODUCT_TERMS
        if a[0] and b[0] and (long or (self._sum_of_data(a) and self._sum_of_data(b))):
            return ({forms.monomial((forms.to_expr(a), forms.to_expr(b))): 1}, 0)
        return division.merge_digits(self, forms.mul(a, b))

    def _sum_of_data(self, form: Form) -> bool:
        """Whether a form is a sum that contains loads. The product of two such sums stays a product: multiplied out
        it has no use for indices, and a model that squares a sum n times would make a polynomial of degree 2**n."""
        terms, constant = form
        return len(terms) + (constant != 0) > 1 and any(self.of_data(t) for t in terms)

    def _simplify_i64(self, e: Op) -> Expr:
        """The simplified form of an i64 expression whose operator is not linear: minimum, maximum, select and
        others."""
        name = e.name
        if name == "min" or name == "max":
            return self._extremum(name, e)
        return self._simplify_op(e)

    def _extremum(self, name: str, e: Op) -> Expr:
        a, b = self.form(e.args[0]), self.form(e.args[1])
        if not wrapping.may_wrap(self, a) and not wrapping.may_wrap(self, b):
            difference = forms.add(b, a, -1)
            if compare.nonnegative(self, difference):
                return forms.to_expr(a if name == "min" else b)
            if compare.nonnegative(self, forms.scale(difference, -1)):
                return forms.to_expr(b if name == "min" else a)
        left, right = forms.to_expr(a), forms.to_expr(b)
        if type(left) is Const or (type(right) is not Const and forms.order(right) < forms.order(left)):
            left, right = right, left
        return self._by_rules(Op(name, (left, right)))

    def _simplify_op(self, e: Op) -> Expr:
        name = e.name
        if name in _COMPARISONS and e.args[0].dtype is i64:
            return compare.simplify(self, name, self.form(e.args[0]), self.form(e.args[1]))
        if name == "select":
            condition = self.simplify(e.args[0])
            if type(condition) is Const:
                return self.simplify(e.args[1] if condition.value else e.args[2])
        args = tuple([self.simplify(a) for a in e.args])
        if name == "cast":
            return self._cast(e, args[0])
        rebuilt = rebuild(e, args)
        if type(rebuilt) is not Op:
            return rebuilt
        if name in _COMPARISONS and (decided := self._decide(rebuilt)) is not None:
            return decided
        return self._by_rules(rebuilt)

    def _by_rules(self, e: Op) -> Expr:
        replaced = rules.apply(e)
        return e if replaced is None else self.simplify(replaced)

    def _decide(self, e: Op) -> Expr | None:
        """The truth of a comparison of integers, if the ranges of its sides decide it; else None."""
        a, b = e.args
        if not a.dtype.is_int:
            return None
        difference = interval.add(self.bounds(a), interval.scale(self.bounds(b), -1))
        return compare.decide(e.name, difference)

    def _cast(self, e: Op, x: Expr) -> Expr:
        """The cast of `x` to the type of `e`, where two casts become one: `T -> U -> V` is `T -> V` if U holds all
        values of T, or if wrapping makes no difference."""
        target = e.dtype
        if type(x) is Op and x.name == "cast":
            source, middle = x.args[0].dtype, x.dtype
            wrapping = source.is_int and middle.is_int and target.is_int
            if (wrapping and (middle.bits >= target.bits or _holds(middle, source))) or _widens(source, middle):
                return self.simplify(cast(x.args[0], target))
        return cast(x, target)

    # -- ranges -------------------------------------------------------------------------------------------------

    def unbounded(self, atom: Expr) -> bool:
        """Whether the atom's value depends on data without any bound."""
        if type(atom) is Var:
            return False
        done = self._unbounded.get(atom)
        if done is None:
            done = self._unbounded[atom] = not all(wrapping.ends(self, atom))
        return done

    def of_data(self, atom: Expr) -> bool:
        """Whether an expression contains loads."""
        done = self._of_data.get(atom)
        if done is None:
            done = self._of_data[atom] = any(type(e) is Load for e in walk_expr(atom))
        return done

    def form_range(self, form: Form) -> Interval:
        """The interval of a linear form: exact if its atoms are independent."""
        terms, constant = form
        lo: int | None = constant
        hi: int | None = constant
        for atom, c in terms.items():
            low, high = self.range(atom)
            if c < 0:
                low, high = high, low
            lo = None if lo is None or low is None else lo + c * low
            hi = None if hi is None or high is None else hi + c * high
        return Interval(lo, hi)

    def range(self, atom: Expr) -> Interval:
        """The interval of an atom, or of any expression that is not i64."""
        done = self._ranges.get(atom)
        if done is None:
            done = self._ranges[atom] = self._range(atom)
        return done

    def _range(self, e: Expr) -> Interval:
        if type(e) is Const:
            value = int(e.value) if not e.dtype.is_float else None
            return Interval(value, value)
        limits = _type_range(e)
        if type(e) is Var:
            extent = self.extents.get(e)
            if extent is not None:
                most = self.bounds(extent).hi
                return Interval(0, None if most is None else max(most - 1, 0))
            return interval.intersect(_symbol_range(e), limits)
        if type(e) is not Op:
            return limits
        result = self._op_range(e)
        if limits is EVERYTHING:
            return self._unwrapped(e, result) if e.dtype is i64 else result
        # Narrow integers wrap: a result that may leave the type may be anything.
        inside = result.lo is not None and result.hi is not None and limits.contains(result.lo)
        return result if inside and limits.contains(result.hi or 0) else limits

    def _unwrapped(self, e: Op, interval: Interval) -> Interval:
        """`interval`, that of an i64 operator `e` without wrapping, if the operator does not wrap; the unbounded
        interval if it depends on data and may."""
        lo, hi = interval
        wraps = (lo is not None and lo < i64.min) or (hi is not None and hi > i64.max)
        if not wraps and (e.name not in _MAY_WRAP or (lo is not None and hi is not None)):
            return interval
        return EVERYTHING if self.of_data(e) and (wraps or not all(wrapping.operator_ends(self, e))) else interval

    def _op_range(self, e: Op) -> Interval:
        name, args = e.name, e.args
        if name == "floordiv" and type(args[1]) is Const and args[1].value > 1:
            return self._quotient_range(args[0], args[1].value)
        if name in _BINARY_RANGES:
            return _BINARY_RANGES[name](self.bounds(args[0]), self.bounds(args[1]))
        if name == "select":
            return interval.union(self.bounds(args[1]), self.bounds(args[2])) if not e.dtype.is_float else EVERYTHING
        if name == "lookup" and not e.dtype.is_float:
            entries = [int(entry.value) for entry in args[1:] if type(entry) is Const]
            return Interval(min(entries), max(entries))
        if name == "abs" and e.dtype.is_int:
            return interval.absolute(self.bounds(args[0]))
        if name == "neg" and e.dtype.is_int:
            return interval.scale(self.bounds(args[0]), -1)
        if name == "cast" and not args[0].dtype.is_float and not e.dtype.is_float:
            return self.bounds(args[0]) if e.dtype is not boolean else Interval(0, 1)
        if name == "bitand":
            masks = [r.hi for r in map(self.bounds, args) if r.lo is not None and r.lo >= 0 and r.hi is not None]
            return Interval(0, min(masks)) if masks else EVERYTHING
        return EVERYTHING

    def _quotient_range(self, x: Expr, d: int) -> Interval:
        """The interval of `x // d`. If a known divisor excludes the lower end of x's range, the next multiple of it
        counts: for x in 1..10 and even, x // 2 is at least 1."""
        bounds = self.bounds(x)
        result = interval.floordiv(bounds, Interval(d, d))
        if bounds.lo is None or bounds.lo % d == 0 or x.dtype is not i64 or not self.divides(d, self.form(x)):
            return result
        return interval.intersect(result, Interval(bounds.lo // d + 1, None))

    def divisor(self, atom: Expr) -> int:
        """An integer that divides all values of an atom; 0 if all are 0."""
        done = self._divisors.get(atom)
        if done is None:
            done = self._divisors[atom] = self._divisor(atom)
        return done

    def _divisor(self, e: Expr) -> int:
        if type(e) is Const:
            return abs(int(e.value))
        if type(e) is Var:
            return e.multiple if e not in self.extents else 1
        if type(e) is Op:
            name, args = e.name, e.args
            if name == "mul":
                whole = self.divisor(args[0]) * self.divisor(args[1])
                return whole & -whole if self.of_data(e) and self.unbounded(e) else whole
            if name in ("add", "sub", "min", "max"):
                return gcd(self.form_divisor(self.form(args[0])), self.form_divisor(self.form(args[1])))
            if name == "select":
                return gcd(self.form_divisor(self.form(args[1])), self.form_divisor(self.form(args[2])))
            if name == "mod" and type(args[1]) is Const:
                return gcd(self.form_divisor(self.form(args[0])), args[1].value)
            if name == "floordiv" and type(args[1]) is Const and args[1].value:
                whole = self.form_divisor(self.form(args[0]))
                return whole // args[1].value if whole % args[1].value == 0 else 1
        return 1

    def form_divisor(self, form: Form) -> int:
        """An integer that divides all values of a form."""
        common = form[1]
        for atom, c in form[0].items():
            common = gcd(common, c * self.divisor(atom))
        return abs(common) if not wrapping.may_wrap(self, form) else common & -common

    def divides(self, d: int, form: Form) -> bool:
        """Whether a number above 1 is known to divide every value of a form: all of its terms, or their sum, as in
        `n + -n % 4`."""
        if self.form_divisor(form) % d == 0:
            return True
        remainders = any(type(atom) is Op and atom.name == "mod" for atom in form[0])
        return remainders and division.mod_const(self, form, d) == forms.ZERO


_MAY_WRAP = frozenset(("mul", "add", "sub", "neg", "abs"))

_BINARY_RANGES = {
    "mul": interval.mul,
    "add": interval.add,
    "sub": lambda a, b: interval.add(a, interval.scale(b, -1)),
    "floordiv": interval.floordiv,
    "mod": interval.mod,
    "truncdiv": interval.truncdiv,
    "truncmod": interval.truncmod,
    "min": interval.minimum,
    "max": interval.maximum,
}


def _type_range(e: Expr) -> Interval:
    if e.dtype is i64 or e.dtype.is_float:
        return EVERYTHING
    return Interval(int(e.dtype.min) if e.dtype is not boolean else 0, int(e.dtype.max))


def _symbol_range(v: Var) -> Interval:
    lo = None if v.lo is None else -(-v.lo // v.multiple) * v.multiple
    hi = None if v.hi is None else v.hi // v.multiple * v.multiple
    return Interval(lo, hi)


def _holds(wide: DType, narrow: DType) -> bool:
    """True if the integer type `wide` has every value of `narrow`."""
    return wide.min <= narrow.min and narrow.max <= wide.max


_FLOAT_WIDENING = {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64")}


def _widens(source: DType, middle: DType) -> bool:
    """True if converting `source` to `middle` keeps every value, so that a further conversion sees the same number."""
    if source.is_float:
        return (source.name, middle.name) in _FLOAT_WIDENING
    if source.is_int:
        return middle.is_int and _holds(middle, source)
    return middle is not boolean
