"""Transcendental functions as inline arithmetic, so that loops over them vectorise.

`expand_math` rewrites the operators of `SINGLE` (f32; f16 and bf16 go through it), `DOUBLE` (f64) and `EXACT` (all of
them) into fma, bit and compare operators. What is in no table stays and becomes a call of the C library. Infinities,
NaN and signed zeros are as IEEE 754 says; the greatest errors stand in `ACCURACY`, `OF_ARGUMENT` and their twins, and
docs/accuracy.md. The functions are in `math_f32`, `math_inverse`, `math_f64` and `remainder`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from tilewright.ir.dtype import bf16, f16, f32, f64
from tilewright.ir.expr import Const, Expr, Op, call, cast, const, equal, select
from tilewright.ir.functions import FUNCTIONS
from tilewright.ir.loops import PrimFunc, Stmt
from tilewright.ir.rewrite import map_expr, map_stmt
from tilewright.targets.target import Target
from tilewright.transform.math import f32 as math_f32
from tilewright.transform.math import f64 as math_f64
from tilewright.transform.math import inverse as math_inverse
from tilewright.transform.math import remainder
from tilewright.transform.math import tables as math_tables
from tilewright.transform.math.parts import linear_below, zero_below

Functions = Mapping[str, Callable[..., Expr]]
"""For each operator a function from its operands to the expression that replaces it."""


def expand_math(func: PrimFunc, target: Target | None = None) -> PrimFunc:
    """`func` with the transcendental operators expanded, by the functions that suit the target.

    B[i] = tanh(A[i])   ->   B[i] = bitcast[f32](... fma(...) ...)
    """
    memo: dict[Expr, Expr] = {}
    body = map_stmt(func.body, _keep, lambda e: expand(e, memo, target))
    return func if body is func.body else func.with_body(body)


def expand(e: Expr, memo: dict[Expr, Expr] | None = None, target: Target | None = None) -> Expr:
    """`e` with the transcendental operators expanded."""
    single: Functions = SINGLE
    double: Functions = DOUBLE
    if target is not None and target.isa.tables >= math_tables.ENTRIES:
        single = {**SINGLE, **TABLES}
    if target is not None and target.costs.arithmetic.subnormal:
        small = SMALL if target.isa.tables >= math_tables.ENTRIES else {**SMALL, **SMALL_WITHOUT_TABLES}
        single, double = saturating(single, VANISHING, small), saturating(double, VANISHING_DOUBLE, {})
    return map_expr(e, lambda node: _expand_node(node, single, double), memo)


def _keep(_: Stmt) -> None:
    return None


def saturating(functions: Functions, least: Mapping[str, float], small: Mapping[str, float]) -> Functions:
    """The functions, returning zero for arguments below `least`, where results would be subnormal, and the argument
    times the slope in `small` for arguments so tiny that their square does not matter."""
    zeros = {name: partial(zero_below, least=x, function=functions[name]) for name, x in least.items()}
    others = {name: partial(linear_below, slope=slope, function=functions[name]) for name, slope in small.items()}
    return {**functions, **zeros, **others}


def _expand_node(e: Expr, single: Functions, double: Functions) -> Expr | None:
    if not isinstance(e, Op):
        return None
    if e.name == "pow" and isinstance(e.args[1], Const):
        simple = _constant_power(e.args[0], e.args[1].value)
        if simple is not None:
            return simple
    function = (double if e.dtype is f64 else single).get(e.name) or EXACT.get(e.name) or EXPANDED.get(e.name)
    if function is None:
        return None
    if e.dtype in (f16, bf16):
        return cast(function(*(cast(a, f32) for a in e.args)), e.dtype)
    return function(*e.args)


def _constant_power(x: Expr, exponent: float) -> Expr | None:
    """A power with this exponent as a product, a quotient or a root; None for other exponents."""
    match exponent:
        case 1.0:
            return x
        case 2.0:
            return x * x
        case 3.0:
            return x * x * x
        case -1.0:
            return 1.0 / x
        case 0.5:
            # pow(-0, 0.5) is +0 and pow(-inf, 0.5) is inf.
            return select(equal(x, const(-math.inf, x.dtype)), math.inf, call("sqrt", x + 0.0))
    return None


def _by_others(expansion: Callable[[Expr, Callable[..., Expr]], Expr], x: Expr) -> Expr:
    return expand(expansion(x, call))


SINGLE: dict[str, Callable[..., Expr]] = {
    "exp": math_f32.exp,
    "exp_nonpositive": math_f32.exp_nonpositive,
    "exp2": math_f32.exp2,
    "expm1": math_f32.expm1,
    "log": math_f32.log,
    "log2": math_f32.log2,
    "log1p": math_f32.log1p,
    "tanh": math_f32.tanh,
    "sigmoid": math_f32.sigmoid,
    "erf": math_f32.erf,
    "gelu": math_f32.gelu,
    "gelu_tanh": math_f32.gelu_tanh,
    "sin": math_f32.sin,
    "cos": math_f32.cos,
    "tan": math_f32.tan,
    "pow": math_f32.pow,
    "sinh": math_inverse.sinh,
    "cosh": math_inverse.cosh,
    "arcsin": math_inverse.arcsin,
    "arccos": math_inverse.arccos,
    "arctan": math_inverse.arctan,
    "arcsinh": math_inverse.arcsinh,
    "arccosh": math_inverse.arccosh,
    "arctanh": math_inverse.arctanh,
}
"""Arithmetic for functions of f32, by operator."""

TABLES: dict[str, Callable[..., Expr]] = {
    "exp": math_tables.exp,
    "exp_nonpositive": math_tables.exp_nonpositive,
    "exp2": math_tables.exp2,
    "tanh": math_tables.tanh,
    "sigmoid": math_tables.sigmoid,
    "gelu": math_tables.gelu,
    "gelu_tanh": math_tables.gelu_tanh,
}
"""Functions of f32 by tables in registers, for machines with an instruction that picks from them."""

DOUBLE: dict[str, Callable[..., Expr]] = {
    "exp": math_f64.exp,
    "exp_nonpositive": math_f64.exp_nonpositive,
    "exp2": math_f64.exp2,
    "expm1": math_f64.expm1,
    "log": math_f64.log,
    "log2": math_f64.log2,
    "log1p": math_f64.log1p,
    "tanh": math_f64.tanh,
    "sigmoid": math_f64.sigmoid,
    "erf": math_f64.erf,
    "gelu": math_f64.gelu,
    "gelu_tanh": math_f64.gelu_tanh,
    "sin": math_f64.sin,
    "cos": math_f64.cos,
    "tan": math_f64.tan,
}
"""Arithmetic for functions of f64, by operator."""

VANISHING: dict[str, float] = {"exp": -87.33, "exp2": -126.0, "sigmoid": -87.33}
VANISHING_DOUBLE: dict[str, float] = {"exp": -708.39, "exp2": -1022.0, "sigmoid": -708.39}
"""The least arguments for which functions have normal results. On cores that take some hundred cycles for a subnormal
result (`targets/costs.py`: `subnormal`), lower arguments give zero."""

SMALL: dict[str, float] = {"log1p": 1.0, "expm1": 1.0, "erf": 2.0 / math.sqrt(math.pi)}
"""The slopes at zero of f32 functions that occur in activations and square their arguments."""
SMALL_WITHOUT_TABLES: dict[str, float] = {"gelu": 0.5, "gelu_tanh": 0.5}
"""The slopes at zero of f32 functions that square their arguments only where the target has no register tables."""

EXPANDED: dict[str, Callable[..., Expr]] = {
    row.name: partial(_by_others, row.expansion) for row in FUNCTIONS.values() if row.expansion is not None
}
"""Functions of f32 and f64 that are expanded into other functions."""

EXACT: dict[str, Callable[..., Expr]] = {"fmod": remainder.fmod}
"""Functions of f32 and f64 that have no rounding error."""

ACCURACY = {row.name: row.ulp for row in FUNCTIONS.values() if row.ulp is not None} | {"pow": 1.0}
"""The greatest error of each function in f32, in ulp; docs/accuracy.md says the same."""

ACCURACY_DOUBLE = {row.name: row.ulp64 for row in FUNCTIONS.values() if row.ulp64 is not None}
"""The greatest error of each function in f64, in ulp."""

NONPOSITIVE: dict[str, tuple[float, float]] = {"exp_nonpositive": (1.1, 0.04)}
NONPOSITIVE_DOUBLE: dict[str, tuple[float, float]] = {"exp_nonpositive": (1.02, 0.0)}
"""(a, b) for functions of nonpositive arguments in f64: the greatest error is a + b |argument| ulp."""

OF_ARGUMENT = {row.name: row.relative[0] for row in FUNCTIONS.values() if row.relative is not None}
OF_ARGUMENT_DOUBLE = {row.name: row.relative[1] for row in FUNCTIONS.values() if row.relative is not None}
"""The greatest errors, relative to the argument, of f64 functions that cancel where their results are small."""

__all__ = [
    "ACCURACY",
    "ACCURACY_DOUBLE",
    "DOUBLE",
    "EXACT",
    "NONPOSITIVE",
    "NONPOSITIVE_DOUBLE",
    "OF_ARGUMENT",
    "OF_ARGUMENT_DOUBLE",
    "SINGLE",
    "expand",
    "expand_math",
]
