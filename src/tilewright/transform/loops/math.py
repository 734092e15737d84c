"""Transcendental functions of f32 as inline arithmetic, so that loops over them vectorise.

`expand_math` rewrites the operators of `EXPANSIONS` into fma, bit and compare operators. Each function below states its
greatest error in units in the last place (ulp) against the real value, as `tests/transform/test_math.py` checks it over
all magnitudes; infinities, NaN and signed zeros are as IEEE 754 says unless a docstring says otherwise. f16 and bf16
go through f32. f64, and what is not in the table, stays and becomes a call of the C library.

The methods are the classical ones (argument reduction after W. J. Cody and W. Waite, Software Manual for the Elementary
Functions, 1980); the coefficients are minimax fits, each rounded to f32 in turn and the rest fitted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.ir.dtype import bf16, f16, f32, f64, i32, i64
from tilewright.ir.expr import Const, Expr, Op, all_of, binary, call, cast, const, equal, maximum, minimum, select
from tilewright.ir.loops import PrimFunc, Stmt
from tilewright.ir.rewrite import map_expr, map_stmt


def expand_math(func: PrimFunc) -> PrimFunc:
    """`func` with the transcendental operators written out.

    B[i] = tanh(A[i])   ->   B[i] = bitcast[f32](... fma(...) ...)
    """
    memo: dict[Expr, Expr] = {}
    body = map_stmt(func.body, _keep, lambda e: expand(e, memo))
    return func if body is func.body else func.with_body(body)


def expand(e: Expr, memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with the transcendental operators written out."""
    return map_expr(e, _expand_node, memo)


def _keep(_: Stmt) -> None:
    return None


def _expand_node(e: Expr) -> Expr | None:
    if not isinstance(e, Op):
        return None
    if e.name == "pow" and isinstance(e.args[1], Const):
        simple = _constant_power(e.args[0], e.args[1].value)
        if simple is not None:
            return simple
    function = EXPANSIONS.get(e.name)
    if function is None:
        return None
    if e.dtype is f32:
        return function(*e.args)
    if e.dtype in (f16, bf16):
        return cast(function(*(cast(a, f32) for a in e.args)), e.dtype)
    return None


def _f(x: float) -> Const:
    return const(x, f32)


def _d(x: float) -> Const:
    return const(x, f64)


def _i(x: int) -> Const:
    return const(x, i32)


def _fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return call("fma", a, b, c)


def _bits(x: Expr) -> Expr:
    return Op("bitcast", (x,), i32 if x.dtype is f32 else i64)


def _float(x: Expr) -> Expr:
    return Op("bitcast", (x,), f32 if x.dtype is i32 else f64)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule."""
    result: Expr = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = _fma(result, x, const(c, x.dtype))
    return result


def _split(value: float) -> tuple[Const, Const]:
    """A number as the f32 next to it and what is left."""
    high = float(np.float32(value))
    return _f(high), _f(value - high)


_LN2, _LN2_REST = _split(math.log(2))
_LOG2E, _LOG2E_REST = _split(1 / math.log(2))
_ROUND = 1.5 * 2.0**23
"""Adding it to a small f32 puts the nearest integer into the low bits."""

_SIGN = _i(-(1 << 31))
_INF, _NAN = _f(math.inf), _f(math.nan)

# exp(r) = 1 + r + r^2 q(r), |r| <= ln(2)/2
_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166827350854874, 0.008368685841560364, 0.0013820137828588486)
# 2^r = 1 + r q(r), |r| <= 1/2
_EXP2 = (
    0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618500247597694, 0.0013390976237133145,
    0.00015328907466027886,
)  # fmt: skip
# log(1 + f) = f - f^2/2 + f^3 q(f), sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (
    0.3333333134651184, -0.2500082552433014, 0.20001250505447388, -0.1662319004535675, 0.142011821269989,
    -0.13161474466323853, 0.12766136229038239, -0.0763629898428917,
)  # fmt: skip
# sin(r) = r + r^3 q(r^2), cos(r) = 1 - r^2/2 + r^4 q(r^2), |r| <= pi/4
_SIN = (-0.1666666716337204, 0.008333379402756691, -0.00019853070261888206, 2.832689915521769e-06)
_COS = (0.0416666679084301, -0.0013888980029150844, 2.4822020350256935e-05, -2.8880890567961615e-07)
# erf(x) = x + x q(x^2), |x| <= 0.9
_ERF = (
    0.12837915122509003, -0.3761250674724579, 0.11281977593898773, -0.026773201301693916, 0.005003754049539566,
    -0.0006048859795555472,
)  # fmt: skip
# erfc(t) = exp(-t q(t)), 0.9 <= t <= 3.95
_ERFC = (
    1.1285200119018555, 0.6356991529464722, 0.10528715699911118, -0.022906234487891197, 0.0032200405839830637,
    -0.00021460292919073254,
)  # fmt: skip


# exponentials


def _reduced(x: Expr, bias: int) -> tuple[Expr, Expr]:
    """(integer n + bias in the low bits, r) with x = n ln 2 + r."""
    shifted = _fma(x, _LOG2E, _f(_ROUND + bias))
    n = shifted - _f(_ROUND + bias)
    r = _fma(n, -_LN2_REST, _fma(n, -_LN2, x))
    return _bits(shifted), r


def _exp_of_reduced(r: Expr) -> Expr:
    """exp(r) - 1."""
    return _fma(r * r, _polynomial(r, _EXP), r)


def _scaled(p: Expr, n: Expr) -> Expr:
    """p * 2^(n - 254), in two steps so that overflow and denormals come out right."""
    half = n >> _i(1)
    return p * _float(half << _i(23)) * _float((n - half) << _i(23))


def exp(x: Expr) -> Expr:
    """e^x, 1 ulp."""
    n, r = _reduced(minimum(_f(89.0), maximum(_f(-104.0), x)), 254)
    return _scaled(_exp_of_reduced(r) + 1.0, n)


def exp2(x: Expr) -> Expr:
    """2^x, 1 ulp."""
    x = minimum(_f(129.0), maximum(_f(-151.0), x))
    shifted = x + _f(_ROUND + 254)
    r = x - (shifted - _f(_ROUND + 254))
    return _scaled(_fma(r, _polynomial(r, _EXP2), _f(1.0)), _bits(shifted))


def expm1(x: Expr) -> Expr:
    """e^x - 1, 2 ulp."""
    n, r = _reduced(minimum(_f(89.0), maximum(_f(-20.0), x)), 126)
    half = _float(n << _i(23))  # 2^(n - 1), which does not overflow
    return _fma(_exp_of_reduced(r), half, half - 0.5) * 2.0


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), 3 ulp; what would be denormal (x < -87.3) may be 0."""
    n, r = _reduced(-maximum(_f(-88.9), minimum(_f(30.0), x)), 127)
    power = (_exp_of_reduced(r) + 1.0) * _float(n << _i(23))
    return 1.0 / (power + 1.0)


def tanh(x: Expr) -> Expr:
    """tanh, 3 ulp: t / (t + 2) with t = exp(2|x|) - 1."""
    size = minimum(_f(10.0), call("abs", x))
    n, r = _reduced(size + size, 127)
    power = _float(n << _i(23))
    t = _fma(_exp_of_reduced(r), power, power - 1.0)
    return _with_sign(t / (t + 2.0), x)


def _with_sign(positive: Expr, x: Expr) -> Expr:
    return _float(_bits(positive) | (_bits(x) & _SIGN))


def erf(x: Expr) -> Expr:
    """The error function, 2 ulp: a polynomial below 0.9, above it 1 - exp(-t q(t))."""
    square = x * x
    small = _fma(x, _polynomial(square, _ERF), x)
    t = minimum(_f(3.95), call("abs", x))
    n, r = _reduced(-(t * _polynomial(t, _ERFC)), 127)
    power = _float(n << _i(23))
    large = 1.0 - _fma(_exp_of_reduced(r), power, power)
    return select(call("abs", x) < 0.9, small, _with_sign(large, x))


# logarithms

_SQRT_HALF = 0x3F3504F3
"""The bits of sqrt(1/2)."""


def _mantissa(x: Expr) -> tuple[Expr, Expr]:
    """(e, m) with x = m 2^e and sqrt(1/2) <= m < sqrt(2), for positive normal x."""
    shifted = _bits(x) - _SQRT_HALF
    return shifted >> _i(23), _float((shifted & 0x7FFFFF) + _SQRT_HALF)


def _normal(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(e, m, x is denormal) as `_mantissa`, for any positive x."""
    tiny = x < 2.0**-126
    e, m = _mantissa(select(tiny, x * 2.0**23, x))
    return cast(select(tiny, e - 23, e), f32), m, tiny


def _log_specials(x: Expr, result: Expr) -> Expr:
    """Logarithms of zero, negative numbers, infinity and NaN."""
    special = select(equal(x, _f(0.0)), -_INF, select(x < 0.0, _NAN, x))
    return select(all_of([x > 0.0, x < math.inf]), result, special)


def _log_tail(f: Expr) -> Expr:
    """log(1 + f) - f."""
    square = f * f
    return _fma(square * f, _polynomial(f, _LOG), square * -0.5)


def log(x: Expr) -> Expr:
    """Natural logarithm, 2 ulp."""
    e, m, _ = _normal(x)
    f = m - 1.0
    tail = _fma(e, _LN2_REST, _log_tail(f))
    return _log_specials(x, _fma(e, _LN2, f + tail))


def log2(x: Expr) -> Expr:
    """Logarithm to base 2, 2 ulp."""
    e, m, _ = _normal(x)
    f = m - 1.0
    high = f * _LOG2E
    low = _fma(f, _LOG2E_REST, _fma(f, _LOG2E, -high))
    return _log_specials(x, (e + high) + _fma(_log_tail(f), _LOG2E, low))


def log1p(x: Expr) -> Expr:
    """log(1 + x), 2 ulp: the logarithm of u = 1 + x, with what was rounded off of u put back."""
    u = x + 1.0
    e, m = _mantissa(u)
    lost = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    scale = _float((127 - minimum(e, _i(127))) << _i(23))
    f = _fma(lost, scale, m - 1.0)
    exponent = cast(e, f32)
    tail = _fma(exponent, _LN2_REST, _log_tail(f))
    result = _fma(exponent, _LN2, f + tail)
    special = select(equal(x, _f(-1.0)), -_INF, select(x < -1.0, _NAN, x))
    return select(all_of([x > -1.0, x < math.inf]), result, special)


# trigonometric functions

_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_ROUND64 = 1.5 * 2.0**52


def _quadrant(x: Expr) -> tuple[Expr, Expr]:
    """(q, r) with x = q pi/2 + r, |r| <= pi/4; the reduction is in f64. Beyond 2^50 both are 0."""
    wide = cast(select(call("abs", x) < 2.0**50, x, select(call("abs", x) < math.inf, 0.0, _NAN)), f64)
    shifted = _fma(wide, _d(2 / math.pi), _d(_ROUND64))
    n = shifted - _d(_ROUND64)
    r = _fma(n, _d(-_HALF_PI[1]), _fma(n, _d(-_HALF_PI[0]), wide))
    return cast(_bits(shifted), i32), cast(r, f32)


def _sin_cos(r: Expr) -> tuple[Expr, Expr]:
    """sin and cos for |r| <= pi/4."""
    square = r * r
    sine = _fma(square * r, _polynomial(square, _SIN), r)
    cosine = _fma(square * square, _polynomial(square, _COS), _fma(square, _f(-0.5), _f(1.0)))
    return sine, cosine


def _odd(q: Expr) -> Expr:
    return binary("ne", q & 1, 0)


def sin(x: Expr) -> Expr:
    """Sine, 2 ulp for |x| < 2^50; 0 beyond."""
    q, r = _quadrant(x)
    sine, cosine = _sin_cos(r)
    result = select(_odd(q), cosine, sine)
    # The reduction gives +0 for -0.
    return select(equal(x, _f(0.0)), x, _float(_bits(result) ^ ((q & 2) << _i(30))))


def cos(x: Expr) -> Expr:
    """Cosine, 2 ulp for |x| < 2^50; 1 beyond."""
    q, r = _quadrant(x)
    sine, cosine = _sin_cos(r)
    result = select(_odd(q), sine, cosine)
    return _float(_bits(result) ^ (((q + 1) & 2) << _i(30)))


def tan(x: Expr) -> Expr:
    """Tangent, 4 ulp for |x| < 2^50; 0 beyond."""
    q, r = _quadrant(x)
    sine, cosine = _sin_cos(r)
    odd = _odd(q)
    result = select(odd, -cosine, sine) / select(odd, sine, cosine)
    return select(equal(x, _f(0.0)), x, result)


# powers


def _constant_power(x: Expr, exponent: float) -> Expr | None:
    """Powers that are a product, a quotient or a root."""
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


def _log2_wide(x: Expr) -> Expr:
    """log2 of a positive normal f64, to about 40 bits: the series of artanh."""
    root = 0x3FE6A09E667F3BCD
    shifted = _bits(x) - root
    e = cast(shifted >> const(52, i64), f64)
    m = _float((shifted & 0xFFFFFFFFFFFFF) + root)
    s = (m - 1.0) / (m + 1.0)
    series = _polynomial(s * s, [2 / math.log(2) / (2 * k + 1) for k in range(9)])
    return _fma(s, series, e)


def _exp2_wide(x: Expr) -> Expr:
    """2^x of an f64 within +-1000, to about 38 bits."""
    shifted = x + (_ROUND64 + 1023)
    r = x - (shifted - (_ROUND64 + 1023))
    series = _polynomial(r, [math.log(2) ** k / math.factorial(k) for k in range(10)])
    return series * _float(_bits(shifted) << const(52, i64))


def pow(x: Expr, y: Expr) -> Expr:
    """x^y, 1 ulp: 2^(y log2 |x|) in f64, then the cases of IEEE 754."""
    size = call("abs", x)
    finite = all_of([size > 0.0, size < math.inf])
    log_size = _log2_wide(cast(select(finite, size, 1.0), f64))
    infinite = select(equal(size, _f(0.0)), -_INF, size)
    exponent = select(finite, log_size, cast(infinite, f64)) * cast(y, f64)
    power = cast(_exp2_wide(minimum(_d(300.0), maximum(_d(-300.0), exponent))), f32)
    whole = equal(call("floor", y), y)
    half = y * 0.5
    odd = all_of([whole, binary("ne", call("floor", half), half), call("abs", y) < math.inf])
    negative = _bits(x) < 0
    signed = select(all_of([negative, odd]), -power, power)
    undefined = all_of([x < 0.0, x > -math.inf, call("not", whole)])
    result = select(undefined, _NAN, signed)
    one = binary("or", binary("or", equal(x, _f(1.0)), equal(y, _f(0.0))), _minus_one_to_infinity(x, y))
    return select(one, 1.0, result)


def _minus_one_to_infinity(x: Expr, y: Expr) -> Expr:
    return all_of([equal(x, _f(-1.0)), equal(call("abs", y), _INF)])


EXPANSIONS: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "pow": pow,
}
"""What is written out, by operator."""

__all__ = ["EXPANSIONS", "expand", "expand_math"]
