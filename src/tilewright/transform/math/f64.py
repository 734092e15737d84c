"""Transcendental functions of f64. Each states its greatest error in units in the last place (ulp); see `math`.

Reductions are those of `math_f32`. Logarithm, sine and cosine have the coefficients of FDLIBM (Sun Microsystems, 1993),
the others are least-squares fits on Chebyshev nodes. 64-bit integers are only shifted left or as unsigned numbers and
turned into floats by putting them below 2^52, because vector units have little else for them. Sine, cosine and tangent
of arguments beyond 2^19 are those of the C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.ir.dtype import i64, u64
from tilewright.ir.expr import Expr, Op, all_of, binary, call, const, equal, maximum, minimum, select
from tilewright.transform.math.parts import as_float, bits, double, fma, polynomial, with_sign, zero_below

_LN2, _LN2_REST = double(math.log(2)), double(2.3190468138462996e-17)
_LOG2E, _LOG2E_REST = double(1 / math.log(2)), double(2.0355273740931033e-17)
_ROUND = 1.5 * 2.0**52
"""The number which, added to a small f64, puts the nearest integer into the low bits."""

# exp(r) = 1 + r + r^2 q(r), |r| <= ln(2)/2
_EXP = (
    0.5, 0.16666666666666685, 0.04166666666666671, 0.008333333333316316, 0.0013888888888863645, 0.0001984126989792604,
    2.4801587363841404e-05, 2.755723349537905e-06, 2.7557241509053003e-07, 2.511246639457876e-08,
    2.0924509983525334e-09,
)  # fmt: skip
# 2^r = 1 + r q(r), |r| <= 1/2
_EXP2 = (
    0.6931471805599453, 0.24022650695910072, 0.0555041086648217, 0.009618129107628487, 0.0013333558146390344,
    0.0001540353039335363, 1.5252733856301845e-05, 1.3215486823300383e-06, 1.0178051189330248e-07,
    7.0548917314771335e-09, 4.456675909646663e-10, 2.5737162828619293e-11,
)  # fmt: skip
# log(1 + f) = f - f^2/2 + s (f^2/2 + s^2 q(s^2)), s = f / (2 + f)
_LOG = (
    0.6666666666666735, 0.3999999999940942, 0.2857142874366239, 0.22222198432149784, 0.1818357216161805,
    0.15313837699209373, 0.14798198605116586,
)  # fmt: skip
# sin(r) = r + r^3 q(r^2), cos(r) = 1 - r^2/2 + r^4 q(r^2), |r| <= pi/4
_SIN = (
    -0.16666666666666632, 0.00833333333332249, -0.0001984126982985795, 2.7557313707070068e-06, -2.5050760253406863e-08,
    1.58969099521155e-10,
)  # fmt: skip
_COS = (
    0.0416666666666666, -0.001388888888887411, 2.480158728947673e-05, -2.7557314351390663e-07, 2.087572321298175e-09,
    -1.1359647557788195e-11,
)  # fmt: skip
# erf(x) = x + x q(x^2), |x| <= 1
_ERF = (
    0.12837916709551256, -0.37612638903183515, 0.1128379167094405, -0.026866170643090832, 0.005223977605955977,
    -0.0008548325921832884, 0.00012055293361789941, -1.4924708324571507e-05, 1.6447084274239356e-06,
    -1.6205964194101388e-07, 1.3709519207384055e-08, -7.77682913736281e-10,
)  # fmt: skip
# erfc(t) = exp(-t q(t - 3)), 1 <= t <= 6
_ERFC = (
    3.5734543473270377, 0.910099780558728, 0.01576481274744787, -0.002784306984055997, 0.00047699884921230086,
    -7.710223648195858e-05, 1.1340149248712869e-05, -1.4082338106754594e-06, 1.1293878035070688e-07,
    7.746169367659718e-09, -6.3888598234428165e-09, 1.929486684689124e-09, -4.4205508788003847e-10,
    7.577584836215394e-11, -1.4544423741883767e-11, 3.128056587206336e-12, 1.1041570140910879e-12,
    5.0956723897744935e-14, -1.1007978023493074e-13, -5.046646787880941e-14, -3.2012921006094124e-15,
)  # fmt: skip


def _signed_zero(x: Expr, result: Expr) -> Expr:
    """`result` for nonzero x; x itself if it is a zero of either sign."""
    return select(equal(x, double(0.0)), x, result)


# exponentials


def _reduced(x: Expr, bias: int) -> tuple[Expr, Expr]:
    """Reduce the argument of an exponential: x = n ln 2 + r with an integer n and |r| <= ln(2)/2. Returns (an i64 whose
    low bits are n + `bias`, r)."""
    shifted = fma(x, _LOG2E, double(_ROUND + bias))
    n = shifted - double(_ROUND + bias)
    r = fma(n, -_LN2_REST, fma(n, -_LN2, x))
    return bits(shifted), r


def _power(n: Expr) -> Expr:
    """2^(e - 1023) for the number e in the low 11 bits of `n`, the exponent field of an f64."""
    return as_float(n << const(52, i64))


def _exp_of_reduced(r: Expr) -> Expr:
    """exp(r) - 1."""
    return fma(r * r, polynomial(r, _EXP), r)


def _scaled(p: Expr, n: Expr) -> Expr:
    """p * 2^(n - 2046), in two steps so that overflow and denormals come out right."""
    half = Op("bitcast", (Op("bitcast", (n,), u64) >> const(1, u64),), i64)
    return p * _power(half) * _power(n - half)


def exp(x: Expr) -> Expr:
    """e^x, 1 ulp."""

    def bounded(x: Expr) -> Expr:
        n, r = _reduced(minimum(double(710.0), x), 2046)
        return _scaled(_exp_of_reduced(r) + 1.0, n)

    return zero_below(x, -746.0, bounded)


def exp_nonpositive(x: Expr) -> Expr:
    """e^x, 1 ulp, x <= 0; zero if e^x is below the normal numbers: 2 e^r * 2^(n - 1), and the exponent of zero from n =
    -1022 on."""
    n, r = _reduced(maximum(double(-1022 * math.log(2)), x), 1023 - 1)
    power = _exp_of_reduced(r) + 1.0
    return (power + power) * _power(n)


def exp2(x: Expr) -> Expr:
    """2^x, 1 ulp."""
    return zero_below(x, -1076.0, _exp2)


def _exp2(x: Expr) -> Expr:
    """2^x, -1076 <= x."""
    x = minimum(double(1025.0), x)
    shifted = x + double(_ROUND + 2046)
    r = x - (shifted - double(_ROUND + 2046))
    return _scaled(fma(r, polynomial(r, _EXP2), double(1.0)), bits(shifted))


def expm1(x: Expr) -> Expr:
    """e^x - 1, 2 ulp."""
    n, r = _reduced(minimum(double(710.0), maximum(double(-40.0), x)), 1022)
    half = _power(n)  # 2^(n - 1), which does not overflow
    return _signed_zero(x, fma(_exp_of_reduced(r), half, half - 0.5) * 2.0)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), 3 ulp: s / (s + s e^-x) with s = 2^-256, so that nothing overflows."""
    n, r = _reduced(-maximum(double(-746.0), minimum(double(60.0), x)), 1023 - 256)
    power = (_exp_of_reduced(r) + 1.0) * _power(n)
    return double(2.0**-256) / (power + 2.0**-256)


def tanh(x: Expr) -> Expr:
    """tanh, 3 ulp: t / (t + 2) with t = exp(2|x|) - 1."""
    size = minimum(double(22.0), call("abs", x))
    n, r = _reduced(size + size, 1023)
    power = _power(n)
    t = fma(_exp_of_reduced(r), power, power - 1.0)
    return with_sign(t / (t + 2.0), x)


def erf(x: Expr) -> Expr:
    """The error function, 2 ulp: a polynomial below 1, above it 1 - exp(-t q(t))."""
    size = call("abs", x)
    small = fma(x, polynomial(x * x, _ERF), x)
    t = minimum(double(6.0), size)
    n, r = _reduced(-(t * polynomial(t - 3.0, _ERFC)), 1023)
    power = _power(n)
    large = 1.0 - fma(_exp_of_reduced(r), power, power)
    return select(size < 1.0, small, with_sign(large, x))


def gelu(x: Expr) -> Expr:
    """x (1 + erf(x / sqrt 2)) / 2, within 5e-16 |x|."""
    return x * fma(erf(x * math.sqrt(0.5)), double(0.5), double(0.5))


def gelu_tanh(x: Expr) -> Expr:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, within 5e-16 |x|."""
    root = math.sqrt(2 / math.pi)
    inner = x * fma(x * x, double(0.044715 * root), double(root))
    return x * fma(tanh(inner), double(0.5), double(0.5))


# logarithms

_SQRT_HALF = 0x3FE6A09E667F3BCD
"""The bits of sqrt(1/2)."""
_WHOLE = 0x4330000000000000
"""The bits of 2^52: or-ed with a small integer they make a float."""


def _mantissa(x: Expr) -> tuple[Expr, Expr]:
    """(e, m) with x = m 2^e and sqrt(1/2) <= m < sqrt(2), for positive normal x."""
    # Biased by 2048 exponents, so that what is shifted is not negative.
    shifted = bits(x) - (_SQRT_HALF - (2048 << 52))
    biased = Op("bitcast", (Op("bitcast", (shifted,), u64) >> const(52, u64),), i64)
    e = as_float(biased | _WHOLE) - (2.0**52 + 2048)
    return e, as_float((shifted & ((1 << 52) - 1)) + _SQRT_HALF)


def _normal(x: Expr) -> tuple[Expr, Expr]:
    """(e, m) with x = m 2^e and sqrt(1/2) <= m < sqrt(2), for any positive x."""
    tiny = x < 2.0**-1022
    e, m = _mantissa(select(tiny, x * 2.0**54, x))
    return select(tiny, e - 54.0, e), m


def _log_specials(x: Expr, result: Expr) -> Expr:
    """`result`, a logarithm of x, or the value that is right for zero, negative numbers, infinity and NaN."""
    special = select(equal(x, double(0.0)), double(-math.inf), select(x < 0.0, double(math.nan), x))
    return select(all_of([x > 0.0, x < math.inf]), result, special)


def _log_tail(f: Expr) -> Expr:
    """log(1 + f) - f."""
    s = f / (f + 2.0)
    square = s * s
    half = f * f * 0.5
    return fma(s, fma(square, polynomial(square, _LOG), half), -half)


def log(x: Expr) -> Expr:
    """Natural logarithm, 1 ulp."""
    e, m = _normal(x)
    f = m - 1.0
    tail = fma(e, _LN2_REST, _log_tail(f))
    return _log_specials(x, fma(e, _LN2, f + tail))


def log2(x: Expr) -> Expr:
    """Logarithm to base 2, 2 ulp."""
    e, m = _normal(x)
    f = m - 1.0
    high = f * _LOG2E
    low = fma(f, _LOG2E_REST, fma(f, _LOG2E, -high))
    return _log_specials(x, (e + high) + fma(_log_tail(f), _LOG2E, low))


def log1p(x: Expr) -> Expr:
    """log(1 + x), 2 ulp: the logarithm of u = 1 + x, corrected by the rounding error of u."""
    u = x + 1.0
    e, m = _mantissa(u)
    lost = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    f = m - 1.0
    tail = fma(e, _LN2_REST, _log_tail(f)) + lost / u
    result = fma(e, _LN2, f + tail)
    special = select(equal(x, double(-1.0)), double(-math.inf), select(x < -1.0, double(math.nan), x))
    # Below 2^-54 the logarithm is x itself, a negative zero too.
    return select(all_of([x > -1.0, x < math.inf]), select(call("abs", x) < 2.0**-54, x, result), special)


# trigonometric functions

_REDUCED_LIMIT = 2.0**19
"""The largest argument that is reduced by a few steps; for larger ones the C library computes the function."""
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
"""pi/2 as a sum of three f64."""


def _reduced_inner(x: Expr) -> tuple[Expr, Expr]:
    """(q, r) with x = q pi/2 + r, |r| <= pi/4, for |x| <= 2^19. The first difference is exact."""
    shifted = fma(x, double(2 / math.pi), double(_ROUND))
    n = shifted - double(_ROUND)
    r = x
    for part in _HALF_PI:
        r = fma(n, double(-part), r)
    return bits(shifted), r


def _sin_cos(r: Expr) -> tuple[Expr, Expr]:
    """sin and cos for |r| <= pi/4."""
    square = r * r
    sine = fma(square * r, polynomial(square, _SIN), r)
    cosine = fma(square * square, polynomial(square, _COS), fma(square, double(-0.5), double(1.0)))
    return sine, cosine


def _odd(q: Expr) -> Expr:
    return binary("ne", q & 1, 0)


def _trigonometric(x: Expr, name: str, of_reduced: Callable[[Expr, Expr], Expr]) -> Expr:
    """`of_reduced(q, r)`, a trigonometric function of x = q pi/2 + r. For a large, infinite or NaN x it is the C
    library's function `name`, which is called if any lane needs it."""
    return select(call("abs", x) <= _REDUCED_LIMIT, of_reduced(*_reduced_inner(x)), Op(name, (x,)))


def _sin_of_reduced(q: Expr, r: Expr) -> Expr:
    sine, cosine = _sin_cos(r)
    return as_float(bits(select(_odd(q), cosine, sine)) ^ ((q & 2) << const(62, i64)))


def _cos_of_reduced(q: Expr, r: Expr) -> Expr:
    sine, cosine = _sin_cos(r)
    return as_float(bits(select(_odd(q), sine, cosine)) ^ (((q + 1) & 2) << const(62, i64)))


def _tan_of_reduced(q: Expr, r: Expr) -> Expr:
    sine, cosine = _sin_cos(r)
    odd = _odd(q)
    return select(odd, -cosine, sine) / select(odd, sine, cosine)


def sin(x: Expr) -> Expr:
    """Sine, 2 ulp."""
    return _signed_zero(x, _trigonometric(x, "sin", _sin_of_reduced))


def cos(x: Expr) -> Expr:
    """Cosine, 2 ulp."""
    return _trigonometric(x, "cos", _cos_of_reduced)


def tan(x: Expr) -> Expr:
    """Tangent, 4 ulp."""
    return _signed_zero(x, _trigonometric(x, "tan", _tan_of_reduced))
