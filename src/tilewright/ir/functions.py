"""The functions of one real number, a row each, with all facts about them that any part of the compiler uses.

Importers and exporters read the names, the interpreter `numpy`, differentiation `slope`, `transform/math` the errors
and `expansion`, estimates `weight`; the operators of graphs, of `te` and of comprehensions follow from the rows. A new
function is a new row. One without an expansion is a call of the C library, unless `transform/math` has arithmetic for
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.support.classes import dataclass

if TYPE_CHECKING:
    from tilewright.ir.expr import Expr

Call = Callable[..., "Expr"]
"""The type of `ir.expr.call`, which is passed as an argument, because that module imports this one."""


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function of a floating-point number.

    numpy       its meaning
    slope       its derivative, from the argument, the result and `call`; None for step functions
    expansion   an equal expression of other functions, from the argument and `call`
    onnx        the operator's name in ONNX, and so on: aten (several), stablehlo (StableHLO or CHLO), mlir (dialect
                math), c (math.h, for doubles); "" where there is none
    weight      its cost in multiply-adds when expanded: half of its operations, since other units work beside the
                multipliers; 0: an instruction, or a cost among the machine's constants
    ulp, ulp64  the greatest error of its expansion in f32 and f64, in units in the last place
    relative    the greatest error in f32 and f64 relative to the argument, for functions that cancel where results are
                small
    inner       whether it is internal: no operator of graphs and formulas has this name
    """

    name: str
    numpy: Callable[..., Any]
    slope: Callable[[Expr, Expr, Call], Expr] | None = None
    expansion: Callable[[Expr, Call], Expr] | None = None
    onnx: str = ""
    aten: str = ""
    stablehlo: str = ""
    mlir: str = ""
    c: str = ""
    weight: float = 0.0
    ulp: float | None = None
    ulp64: float | None = None
    relative: tuple[float, float] | None = None
    inner: bool = False


def _erf(x: Any) -> Any:
    values = np.asarray(x)
    return np.vectorize(math.erf, otypes=[np.float64])(values.astype(np.float64)).astype(values.dtype)


def _sigmoid(x: Any) -> Any:
    values = np.asarray(x)
    e = np.exp(-np.abs(values))
    return np.where(values >= 0, 1 / (1 + e), e / (1 + e)).astype(values.dtype)


def _rsqrt(x: Any) -> Any:
    return (1 / np.sqrt(x)).astype(np.asarray(x).dtype)


CUBIC = 0.044715
"""The coefficient of the cube in the approximation of GELU by tanh."""


def _gelu(x: Any) -> Any:
    wide = np.asarray(x).astype(np.float64)
    return (0.5 * wide * (1 + _erf(wide * math.sqrt(0.5)))).astype(np.asarray(x).dtype)


def _gelu_tanh(x: Any) -> Any:
    wide = np.asarray(x).astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + CUBIC * wide**3)
    return (0.5 * wide * (1 + np.tanh(inner))).astype(np.asarray(x).dtype)


def _square(x: Expr, call: Call) -> Expr:
    """The expression of x squared, or of 2^-80 if x is less than 2^-40 in magnitude: added to 1 both give the same, and
    the result is never subnormal."""
    size = call("max", call("abs", x), 2.0**-40)
    return size * size


def _gelu_slope(x: Expr, _: Expr, call: Call) -> Expr:
    below = 0.5 * (1 + call("erf", x * math.sqrt(0.5)))
    return below + x * call("exp", -0.5 * _square(x, call) - 0.5 * math.log(2 * math.pi))


def _gelu_tanh_slope(x: Expr, _: Expr, call: Call) -> Expr:
    scale, square = math.sqrt(2 / math.pi), _square(x, call)
    t = call("tanh", scale * (x + x * (CUBIC * square)))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (scale * (1 + 3 * CUBIC * square))


def _erf_slope(x: Expr, _: Expr, call: Call) -> Expr:
    return 2 / math.sqrt(math.pi) * call("exp", -_square(x, call))


# fmt: off
_ROWS = (
    ScalarFunction("exp", np.exp, lambda x, y, call: y,
        onnx="Exp", aten="exp", stablehlo="exponential", mlir="exp", c="exp", weight=10, ulp=1.0, ulp64=1.02),
    ScalarFunction("exp_nonpositive", np.exp, lambda x, y, call: y,
        stablehlo="exponential", mlir="exp", c="exp", weight=10, inner=True),
    ScalarFunction("exp2", np.exp2, lambda x, y, call: y * math.log(2),
        mlir="exp2", c="exp2", weight=9, ulp=1.0, ulp64=1.0),
    ScalarFunction("expm1", np.expm1, lambda x, y, call: y + 1,
        stablehlo="exponential_minus_one", mlir="expm1", c="expm1", weight=11, ulp=1.5, ulp64=2.0),
    ScalarFunction("log", np.log, lambda x, y, call: 1 / x,
        onnx="Log", aten="log", stablehlo="log", mlir="log", c="log", weight=17, ulp=1.0, ulp64=1.0),
    ScalarFunction("log2", np.log2, lambda x, y, call: 1 / math.log(2) / x,
        mlir="log2", c="log2", weight=19, ulp=1.25, ulp64=2.0),
    ScalarFunction("log1p", np.log1p, lambda x, y, call: 1 / (x + 1),
        aten="log1p", stablehlo="log_plus_one", mlir="log1p", c="log1p", weight=21, ulp=1.5, ulp64=2.0),
    ScalarFunction("sqrt", np.sqrt, lambda x, y, call: 0.5 / y,
        onnx="Sqrt", aten="sqrt", stablehlo="sqrt", mlir="sqrt", c="sqrt"),
    ScalarFunction("rsqrt", _rsqrt, lambda x, y, call: -0.5 * y * y * y, stablehlo="rsqrt", mlir="rsqrt"),
    ScalarFunction("sin", np.sin, lambda x, y, call: call("cos", x),
        onnx="Sin", aten="sin", stablehlo="sine", mlir="sin", c="sin", weight=20, ulp=1.6, ulp64=2.0),
    ScalarFunction("cos", np.cos, lambda x, y, call: -call("sin", x),
        onnx="Cos", aten="cos", stablehlo="cosine", mlir="cos", c="cos", weight=20, ulp=1.6, ulp64=2.0),
    ScalarFunction("tan", np.tan, lambda x, y, call: 1 + y * y,
        onnx="Tan", aten="tan", stablehlo="tan", mlir="tan", c="tan", weight=24, ulp=3.75, ulp64=4.0),
    ScalarFunction("sinh", np.sinh, lambda x, y, call: call("cosh", x),
        onnx="Sinh", aten="sinh", stablehlo="chlo.sinh", mlir="sinh", c="sinh", weight=14, ulp=2.5),
    ScalarFunction("cosh", np.cosh, lambda x, y, call: call("sinh", x),
        onnx="Cosh", aten="cosh", stablehlo="chlo.cosh", mlir="cosh", c="cosh", weight=11, ulp=1.5),
    ScalarFunction("tanh", np.tanh, lambda x, y, call: 1 - y * y,
        onnx="Tanh", aten="tanh", stablehlo="tanh", mlir="tanh", c="tanh", weight=16, ulp=5.0, ulp64=3.0),
    ScalarFunction("arcsin", np.arcsin, lambda x, y, call: call("rsqrt", 1 - x * x),
        onnx="Asin", aten="asin arcsin", stablehlo="chlo.asin", mlir="asin", c="asin", weight=14, ulp=2.5),
    ScalarFunction("arccos", np.arccos, lambda x, y, call: -call("rsqrt", 1 - x * x),
        onnx="Acos", aten="acos arccos", stablehlo="chlo.acos", mlir="acos", c="acos", weight=16, ulp=1.25),
    ScalarFunction("arctan", np.arctan, lambda x, y, call: 1 / (1 + x * x),
        onnx="Atan", aten="atan arctan", stablehlo="chlo.atan", mlir="atan", c="atan", weight=13, ulp=1.5),
    ScalarFunction("arcsinh", np.arcsinh, lambda x, y, call: call("rsqrt", x * x + 1),
        onnx="Asinh", aten="asinh arcsinh", stablehlo="chlo.asinh", mlir="asinh", c="asinh", weight=40, ulp=2.0),
    ScalarFunction("arccosh", np.arccosh, lambda x, y, call: call("rsqrt", x * x - 1),
        onnx="Acosh", aten="acosh arccosh", stablehlo="chlo.acosh", mlir="acosh", c="acosh", weight=38, ulp=2.5),
    ScalarFunction("arctanh", np.arctanh, lambda x, y, call: 1 / (1 - x * x),
        onnx="Atanh", aten="atanh arctanh", stablehlo="chlo.atanh", mlir="atanh", c="atanh", weight=32, ulp=2.25),
    ScalarFunction("sigmoid", _sigmoid, lambda x, y, call: y * (1 - y),
        onnx="Sigmoid", aten="sigmoid special_expit", stablehlo="logistic", weight=16, ulp=2.5, ulp64=3.0),
    ScalarFunction("erf", _erf, _erf_slope,
        onnx="Erf", aten="erf special_erf", stablehlo="chlo.erf", mlir="erf", c="erf", weight=16, ulp=1.25, ulp64=2.0),
    ScalarFunction("gelu", _gelu, _gelu_slope, weight=16, relative=(2.5e-7, 5e-16)),
    ScalarFunction("gelu_tanh", _gelu_tanh, _gelu_tanh_slope, weight=16, relative=(2.5e-7, 5e-16), inner=True),
    ScalarFunction("floor", np.floor, onnx="Floor", stablehlo="floor", mlir="floor", c="floor"),
    ScalarFunction("ceil", np.ceil, onnx="Ceil", stablehlo="ceil", mlir="ceil", c="ceil"),
    ScalarFunction("trunc", np.trunc, mlir="trunc", c="trunc"),
    ScalarFunction("round", np.rint, onnx="Round", stablehlo="round_nearest_even", mlir="roundeven", c="rint"),
)
# fmt: on

FUNCTIONS: dict[str, ScalarFunction] = {row.name: row for row in _ROWS}
"""Every function of one number, by name."""


def names_in(language: str) -> dict[str, str]:
    """The functions that a language ("onnx", "aten", "stablehlo", "mlir", "c") has, by our name, with their first name
    in that language."""
    return {row.name: names.split()[0] for row in FUNCTIONS.values() if (names := getattr(row, language))}


def by_name_in(language: str) -> dict[str, str]:
    """Our names of the functions that a language has, by all their names in that language."""
    return {name: row.name for row in FUNCTIONS.values() if not row.inner for name in getattr(row, language).split()}
