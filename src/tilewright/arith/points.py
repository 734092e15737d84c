"""Sample points: values of variables within their ranges, at which a false goal is refuted before a proof is tried.

A proof of `form >= 0` eliminates variables and atoms, and a failing proof takes all of its steps. If the form is
negative at one point, there is no proof, which is usual for goals with minima and maxima.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from tilewright.arith.forms import Form
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Const, Expr, Op, Var

_COUNT = 6
"""The number of points of an analyzer: all variables at their least, at their most, and some between."""
_TRIED = 40
"""The largest number of points that are tried to find those where the facts hold."""
_SPANS = (10, 1000, 100)
"""Distances from the known end of a range, or from 0, at which a variable without bounds is sampled."""

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "min": min,
    "max": max,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "select": lambda condition, a, b: a if condition else b,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": operator.not_,
}


class Point:
    """A sample point: values of variables, chosen when first needed, and of expressions. The value is None if unknown,
    as for loads, or if a variable's range is empty."""

    __slots__ = ("extents", "number", "values")

    def __init__(self, number: int, extents: Mapping[Var, Expr]) -> None:
        self.number = number
        self.extents = extents
        self.values: dict[Expr, Any] = {}

    def form(self, form: Form) -> int | None:
        """The value of a linear form."""
        total = form[1]
        for atom, c in form[0].items():
            value = self.value(atom)
            if value is None:
                return None
            total += c * value
        return total

    def value(self, e: Expr) -> Any:
        """The value of an i64 expression or a condition."""
        if type(e) is Const:
            return e.value
        try:
            return self.values[e]
        except KeyError:
            pass
        result = self.values[e] = self._value(e)
        return result

    def _value(self, e: Expr) -> Any:
        if e.dtype is not i64 and e.dtype is not boolean:
            return None
        if type(e) is Var:
            return self._variable(e)
        if type(e) is not Op or e.name not in _OPERATORS:
            return None
        args = [self.value(a) for a in e.args]
        return None if None in args else _OPERATORS[e.name](*args)

    def _variable(self, v: Var) -> int | None:
        extent = self.extents.get(v)
        if extent is not None:
            count = self.value(extent)
            return None if count is None or count <= 0 else self._chosen(v, 0, count - 1)
        lo, hi, step = v.lo, v.hi, v.multiple
        span = _SPANS[self.number % len(_SPANS)]
        if lo is None:
            lo = -span if hi is None else hi - span
        if hi is None:
            hi = max(lo, 0) + span * step
        least, most = -(-lo // step), hi // step
        return None if least > most else self._chosen(v, least, most) * step

    def _chosen(self, v: Var, least: int, most: int) -> int:
        if self.number < 2:
            return most if self.number else least
        return least + crc32(f"{self.number} {v.name}".encode()) % (most - least + 1)


def some(extents: Mapping[Var, Expr], facts: tuple[Form, ...]) -> tuple[Point, ...]:
    """Sample points, values of the variables in `extents`, at which all `facts`, forms that are known to be
    nonnegative, hold."""
    result: list[Point] = []
    for number in range(_TRIED if facts else _COUNT):
        point = Point(number, extents)
        if all((value := point.form(fact)) is not None and value >= 0 for fact in facts):
            result.append(point)
            if len(result) == _COUNT:
                break
    return tuple(result)
