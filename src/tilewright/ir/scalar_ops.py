"""The operators of scalar expressions: arity, type rule, meaning in NumPy, how they print.

The interpreter, the simplifier's checks and the tests all read the meaning in the table `OPS`. Semantics worth knowing:

* `floordiv`/`mod` round to minus infinity, `truncdiv`/`truncmod` to zero; `div` is for floats. Division by zero of
  integers gives 0 everywhere (never a trap).
* Integer arithmetic wraps. `min`/`max` propagate NaN, as NumPy's do. `round` rounds halves to even.
* `larger(a, b)` is b where b > a, else a: the maximum of numbers, one instruction where `max` takes three or four. A
  NaN in b is left out, one in a stays.
* `exp_nonpositive(x)` is e^x of a rounded difference that is not positive (or NaN): for positive x any result is
  allowed, subnormal results are zero, and it may be a little less exact than `exp` (docs/accuracy.md).
* `select(c, a, b)` is lazy: loads in the branch that is not selected never happen. Padding is expressed so.
* `scaleb(x, n)` is x 2^floor(n), rounded once: infinity or zero if that overflows or underflows.
* `lookup(i, c0, c1, ...)` is entry `i` of a table of literals; an index outside takes the nearest entry.
* `extern(name, type, ...)` is the result of a C function (`c_functions.py`): each name is a separate operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from tilewright.ir.c_functions import PREFIX, apply
from tilewright.ir.functions import FUNCTIONS
from tilewright.support.classes import dataclass

LAZY = ("select", "and", "or")
"""The operators whose arguments after the first are evaluated only where they count."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """The meaning of an operator. `rule`: "same" (result has the arguments' type), "bool" (comparison), "logic" (bool
    to bool), "select", "lookup" (any number of arguments), "cast" (the type is given with the node), or "extern" (that,
    and any number of arguments of any types)."""

    name: str
    arity: int
    rule: Literal["same", "bool", "logic", "select", "lookup", "cast", "extern"]
    numpy: Callable[..., Any]
    symbol: str | None = None
    precedence: int = 0
    kinds: tuple[str, ...] = ("float", "int", "uint")


def _int_division(f: Callable[..., Any]) -> Callable[..., Any]:
    def divide(a: Any, b: Any) -> Any:
        zero = np.equal(b, 0)
        return np.where(zero, np.zeros_like(a), f(a, np.where(zero, np.ones_like(b), b))).astype(np.asarray(a).dtype)

    return divide


def _truncdiv(a: Any, b: Any) -> Any:
    quotient = np.floor_divide(a, b)
    return quotient + ((np.remainder(a, b) != 0) & ((np.less(a, 0)) != (np.less(b, 0)))).astype(np.asarray(a).dtype)


def _lookup(index: Any, *table: Any) -> Any:
    return np.asarray(table)[np.clip(index, 0, len(table) - 1)]


def _scaleb(x: Any, n: Any) -> Any:
    wide, power = (
        np.asarray(v) if np.asarray(v).dtype == np.float64 else np.asarray(v).astype(np.float32) for v in (x, n)
    )
    finite = np.isfinite(power)
    whole = np.clip(np.floor(np.where(finite, power, 0)), -5000, 5000).astype(np.int32)
    limit = np.where(np.isnan(power), power, np.where(power > 0, power, 0))
    return np.where(finite, np.ldexp(wide, whole), wide * limit).astype(np.asarray(x).dtype)


_F = ("float",)
_I = ("int", "uint")
_IB = ("int", "uint", "bool")
_ANY = ("float", "int", "uint", "bool")

_TABLE: list[OpInfo] = [
    OpInfo("add", 2, "same", np.add, "+", 60),
    OpInfo("sub", 2, "same", np.subtract, "-", 60),
    OpInfo("mul", 2, "same", np.multiply, "*", 70),
    OpInfo("div", 2, "same", np.divide, "/", 70, _F),
    OpInfo("floordiv", 2, "same", _int_division(np.floor_divide), "//", 70, _I),
    OpInfo("mod", 2, "same", _int_division(np.remainder), "%", 70, _I),
    OpInfo("truncdiv", 2, "same", _int_division(_truncdiv), kinds=_I),
    OpInfo("truncmod", 2, "same", _int_division(np.fmod), kinds=_I),
    OpInfo("fmod", 2, "same", np.fmod, kinds=_F),
    OpInfo("pow", 2, "same", np.power, kinds=_F),
    OpInfo("scaleb", 2, "same", _scaleb, kinds=_F),
    OpInfo("atan2", 2, "same", np.arctan2, kinds=_F),
    OpInfo("min", 2, "same", np.minimum, kinds=_ANY),
    OpInfo("max", 2, "same", np.maximum, kinds=_ANY),
    OpInfo("larger", 2, "same", lambda a, b: np.where(np.greater(b, a), b, a), kinds=_F),
    OpInfo("fma", 3, "same", lambda a, b, c: a * b + c, kinds=_F),
    OpInfo("neg", 1, "same", np.negative, "-", 80),
    OpInfo("abs", 1, "same", np.abs),
    OpInfo("eq", 2, "bool", np.equal, "==", 50, _ANY),
    OpInfo("ne", 2, "bool", np.not_equal, "!=", 50, _ANY),
    OpInfo("lt", 2, "bool", np.less, "<", 50, _ANY),
    OpInfo("le", 2, "bool", np.less_equal, "<=", 50, _ANY),
    OpInfo("gt", 2, "bool", np.greater, ">", 50, _ANY),
    OpInfo("ge", 2, "bool", np.greater_equal, ">=", 50, _ANY),
    OpInfo("isnan", 1, "bool", np.isnan, kinds=_F),
    OpInfo("isinf", 1, "bool", np.isinf, kinds=_F),
    OpInfo("and", 2, "logic", np.logical_and, "and", 30, ("bool",)),
    OpInfo("or", 2, "logic", np.logical_or, "or", 20, ("bool",)),
    OpInfo("not", 1, "logic", np.logical_not, "not", 40, ("bool",)),
    OpInfo("bitand", 2, "same", np.bitwise_and, kinds=_I),
    OpInfo("bitor", 2, "same", np.bitwise_or, kinds=_I),
    OpInfo("bitxor", 2, "same", np.bitwise_xor, kinds=_IB),
    OpInfo("bitnot", 1, "same", np.bitwise_not, kinds=_I),
    OpInfo("shl", 2, "same", np.left_shift, kinds=_I),
    OpInfo("shr", 2, "same", np.right_shift, kinds=_I),
    OpInfo("select", 3, "select", np.where, kinds=(*_ANY, "minifloat")),
    OpInfo("lookup", 2, "lookup", _lookup, kinds=(*_ANY, "minifloat")),
    OpInfo("cast", 1, "cast", lambda a: a, kinds=_ANY),
    OpInfo("bitcast", 1, "cast", lambda a: a, kinds=_ANY),
]
_TABLE += [OpInfo(row.name, 1, "same", row.numpy, kinds=_F) for row in FUNCTIONS.values()]


class _Operators(dict[str, OpInfo]):
    """The table of operators by name. A name that begins with PREFIX is not listed: its operator calls the C function
    that the rest of the name says."""

    def __missing__(self, name: str) -> OpInfo:
        if not name.startswith(PREFIX):
            raise KeyError(name)
        return OpInfo(name, 0, "extern", np.vectorize(partial(apply, name)), kinds=_ANY)


OPS: dict[str, OpInfo] = _Operators({info.name: info for info in _TABLE})
"""Every scalar operator, by name."""

TYPED_BY_ARGUMENTS = frozenset(info.name for info in _TABLE if info.rule != "cast")
"""The operators whose result type follows from their arguments; nodes of other operators state it."""
