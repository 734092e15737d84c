"""The work of a kernel, for profiles: floating-point operations and bytes, as polynomials of the symbols.

Operations are those of the unscheduled program (a multiply-add is two, a function such as exp one). Bytes count every
argument once, the minimum of any schedule; a kernel that gathers has no such figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from tilewright.ir.expr import Const, Expr, Op, Var
from tilewright.ir.loops import Block, PrimFunc, Store
from tilewright.ir.rewrite import exprs_of, loads, walk
from tilewright.plans.framework.variants import versions_of
from tilewright.plans.framework.work import operations_of
from tilewright.runtime.specs import Work, quotient

Polynomial = dict[tuple[Var, ...], int]
"""For each product of symbols its coefficient. A symbol may stand for its quotient by a number that divides it: with
`height` a multiple of 32, `height // 2` is 16 units."""


def polynomial(e: Expr) -> Work | None:
    """An expression as a polynomial in symbols or their quotients by known divisors; None if it is none with integer
    coefficients. Divisions are allowed if they are exact for all values of the symbols."""
    return _work(_polynomial(e))


def operations(func: PrimFunc) -> Work | None:
    """Floating-point operations of one call, counted for the last version of a function with several; None if an extent
    is not a polynomial."""
    total: Polynomial = {}
    _, func = versions_of(func)[-1]
    for block in (s for s in walk(func.body) if isinstance(s, Block)):
        count = sum(operations_of(s.value, floats=True) for s in walk(block.body) if isinstance(s, Store))
        _accumulate(total, _product(it.extent for it in block.iters), count)
    return _work(total)


def traffic(func: PrimFunc) -> Work | None:
    """The bytes of all parameters; None if a size is not a polynomial, or if data decides which elements are read."""
    total: Polynomial = {}
    exprs = (e for s in walk(func.body) for e in exprs_of(s))
    if any(loads(i) for e in exprs for load in loads(e) for i in load.indices):
        return None
    for buffer in func.params:
        _accumulate(total, _product(buffer.shape), buffer.dtype.itemsize)
    return _work(total)


_UNKNOWN = Var("?")


def _accumulate(total: Polynomial, term: Polynomial, factor: int) -> None:
    for powers, coefficient in term.items():
        total[powers] = total.get(powers, 0) + coefficient * factor


def _product(extents: Iterable[Expr]) -> Polynomial:
    result: Polynomial = {(): 1}
    for extent in extents:
        factor = _polynomial(extent)
        result = _multiply(result, factor)
    return result


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Counter[tuple[Var, ...]] = Counter()
    for p, x in a.items():
        for q, y in b.items():
            result[tuple(sorted((*p, *q), key=lambda v: v.name))] += x * y
    return dict(result)


def _polynomial(e: Expr) -> Polynomial:
    match e:
        case Const(value):
            return {(): int(value)}
        case Var():
            return {(e,): e.multiple}
        case Op("add" | "sub", (a, b)):
            total, more = dict(_polynomial(a)), _polynomial(b)
            if any(_UNKNOWN in powers for powers in (*total, *more)):  # two of them are not equal: none cancels another
                return {(_UNKNOWN,): 1}
            _accumulate(total, more, 1 if e.name == "add" else -1)
            return total
        case Op("mul", (a, b)):
            return _multiply(_polynomial(a), _polynomial(b))
        case Op("floordiv", (a, Const(n))) if n > 0:
            total = _polynomial(a)
            if all(coefficient % n == 0 for coefficient in total.values()):
                return {powers: coefficient // n for powers, coefficient in total.items()}
    return {(_UNKNOWN,): 1}


def _work(total: Polynomial) -> Work | None:
    results: list[tuple[int, tuple[str, ...]]] = []
    for powers, units in total.items():
        if units and _UNKNOWN in powers:
            return None
        coefficient, rest = divmod(units, prod(v.multiple for v in powers))
        if units and not rest:
            results.append((coefficient, tuple(v.name for v in powers)))
        elif units:
            results.append((units, tuple(quotient(v.name, v.multiple) for v in powers)))
    return tuple(sorted(results, key=lambda term: term[1]))
