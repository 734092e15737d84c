"""Transcendental functions of f32. Each states its greatest error in units in the last place (ulp); see `math`.

The methods are the classical ones (argument reduction after W. J. Cody and W. Waite, Software Manual for the Elementary
Functions, 1980); the coefficients are minimax fits, each rounded to f32 in turn and the rest fitted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tilewright.ir.dtype import f32, f64, i32, i64
from tilewright.ir.expr import Const, Expr, all_of, binary, call, cast, const, equal, lookup, maximum, minimum, select
from tilewright.transform.math.parts import (
    as_float,
    bits,
    double,
    fma,
    greatest,
    polynomial,
    single,
    with_sign,
    word,
    zero_below,
)


def split(value: float) -> tuple[Const, Const]:
    """(the f32 nearest to a number, the rest)."""
    high = float(np.float32(value))
    return single(high), single(value - high)


LN2, LN2_REST = split(math.log(2))
LOG2E, LOG2E_REST = split(1 / math.log(2))
_ROUND = 1.5 * 2.0**23
"""The number which, added to a small f32, puts the nearest integer into the low bits."""

_INF, _NAN = single(math.inf), single(math.nan)

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
# tanh(x) = x p(x^2) / q(x^2), |x| <= 7.9: a third faster than by exp, which would have 3 ulp. The last factor of q is
# 1: x^2 is added to the one before, and additions have units of their own where multiplications are what bounds.
_TANH_MOST = 7.896175384521484
_TANH = (1190968.0, 160001.140625, 4239.29833984375, 25.824230194091797, 0.017749587073922157)
_TANH_BELOW = (1190968.0, 556990.375, 31107.154296875, 403.86541748046875, 1.0)
# gelu(x) = x (1/2 + x p(x^2) / q(x^2)), |x| <= 5.3, and the form with tanh, |x| <= 4.93; absolute error 5e-9
_GELU_MOST = 5.2981696128845215
_GELU = (
    0.3989422619342804, 0.03308289125561714, 0.004634896758943796, 0.00016157487698365003, 6.361663054121891e-06,
    2.3758424561037828e-08,
)  # fmt: skip
_GELU_BELOW = (
    1.0, 0.24959278106689453, 0.028217578306794167, 0.001843571080826223, 7.161930989241228e-05,
    1.2274571190573624e-06,
)  # fmt: skip
_GELU_TANH_MOST = 4.931942462921143
_GELU_TANH = (
    0.39894232153892517, 0.030424725264310837, 0.0036194014828652143, 0.00013264907465782017, 6.90888464305317e-06,
    2.2920435327478117e-08,
)  # fmt: skip
_GELU_TANH_BELOW = (
    1.0, 0.24375581741333008, 0.024326447397470474, 0.0012911387020722032, 7.489495328627527e-05,
    1.274023816222325e-06,
)  # fmt: skip
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


def _signed_zero(x: Expr, result: Expr) -> Expr:
    """`result` for nonzero x; x itself if it is a zero of either sign."""
    return select(equal(x, single(0.0)), x, result)


# exponentials


def reduced(x: Expr, bias: int | Expr, sign: float = 1.0) -> tuple[Expr, Expr]:
    """Reduce the argument of an exponential: x = sign n ln 2 + r with an integer n, where `sign` is 1 or -1 and |r| <=
    ln(2)/2. Returns (an i32 whose low bits are n + `bias`, r). A `bias` that differs between elements is an expression
    of f32, `_ROUND` plus the bias."""
    shifter = single(_ROUND + bias) if isinstance(bias, int) else bias
    shifted = fma(x, LOG2E * sign, shifter)
    n = shifted - shifter
    r = fma(n, LN2_REST * -sign, fma(n, LN2 * -sign, x))
    return bits(shifted), r


def exp_of_reduced(r: Expr) -> Expr:
    """exp(r) - 1."""
    return fma(r * r, polynomial(r, _EXP), r)


def _scaled(p: Expr, n: Expr) -> Expr:
    """p * 2^(n - 254), in two steps so that overflow and denormals come out right."""
    half = n >> word(1)
    return p * as_float(half << word(23)) * as_float((n - half) << word(23))


def _power(r: Expr, scale: float = 1.0, sign: float = 1.0) -> Expr:
    """exp(sign r) times a power of two."""
    return polynomial(r, [c * scale * sign**k for k, c in enumerate((1.0, 1.0, *_EXP))])


def exp(x: Expr) -> Expr:
    """e^x, 1 ulp."""
    bounded = maximum(single(_NOTHING), x)
    if greatest(x) <= _MODERATE:  # one product makes denormals too: 2^-24 e^r * 2^(n + 24)
        n, r = reduced(bounded, 127 + 24)
        return _power(r, 2.0**-24) * as_float(n << word(23))
    bounded = minimum(single(89.0), bounded)
    small = bits(bounded) < 0
    n, r = reduced(bounded, select(small, single(_ROUND + 127 + 24), single(_ROUND + 127 - 64)))
    return _power(r) * as_float(n << word(23)) * select(small, single(2.0**-24), single(2.0**64))


_MODERATE = 71.0
"""The largest x for which 2^24 e^x does not overflow."""

_NOTHING = -104.7
"""About -151 ln 2, where arguments of exp are clamped. There n + 24 is the exponent of zero, so that the product is an
exact zero and does not underflow, which would take an Intel core some hundred cycles."""


def exp_nonpositive(x: Expr) -> Expr:
    """e^x, 1 ulp, x <= 0; zero if e^x is below the normal numbers: 2 e^r * 2^(n - 1), and the exponent of zero from n =
    -126 on."""
    n, r = reduced(maximum(single(-126 * math.log(2)), x), 127 - 1)
    return _power(r, 2.0) * as_float(n << word(23))


def exp2(x: Expr) -> Expr:
    """2^x, 1 ulp."""
    return zero_below(x, -151.0, _exp2)


def _exp2(x: Expr) -> Expr:
    """2^x, -151 <= x."""
    x = minimum(single(129.0), x)
    shifted = x + single(_ROUND + 254)
    r = x - (shifted - single(_ROUND + 254))
    return _scaled(fma(r, polynomial(r, _EXP2), single(1.0)), bits(shifted))


def expm1(x: Expr) -> Expr:
    """e^x - 1, 2 ulp."""
    n, r = reduced(minimum(single(89.0), maximum(single(-20.0), x)), 126)
    half = as_float(n << word(23))  # 2^(n - 1), which does not overflow
    return _signed_zero(x, fma(exp_of_reduced(r), half, half - 0.5) * 2.0)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), 3 ulp: s / (s + s e^-x) with s = 2^-64, so that nothing overflows."""
    n, r = reduced(maximum(single(-104.0), minimum(single(30.0), x)), 127 - 64, -1.0)
    return single(2.0**-64) / fma(_power(r, sign=-1.0), as_float(n << word(23)), single(2.0**-64))


def tanh(x: Expr) -> Expr:
    """tanh, 5 ulp: a quotient of polynomials, clamped at the argument from which on tanh is 1 in f32 (beyond, the
    quotient would exceed 1)."""
    x = maximum(single(-_TANH_MOST), minimum(single(_TANH_MOST), x))
    square = x * x
    return x * polynomial(square, _TANH) / polynomial(square, _TANH_BELOW)


def erf(x: Expr) -> Expr:
    """The error function, 2 ulp: a polynomial below 0.9, above it 1 - exp(-t q(t))."""
    square = x * x
    small = fma(x, polynomial(square, _ERF), x)
    t = minimum(single(3.95), call("abs", x))
    n, r = reduced(-(t * polynomial(t, _ERFC)), 127)
    power = as_float(n << word(23))
    large = 1.0 - fma(exp_of_reduced(r), power, power)
    return select(call("abs", x) < 0.9, small, with_sign(large, x))


def gelu(x: Expr) -> Expr:
    """x (1 + erf(x / sqrt 2)) / 2, within 2.5e-7 |x|."""
    return _gated(x, _GELU_MOST, _GELU, _GELU_BELOW)


def gelu_tanh(x: Expr) -> Expr:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, within 2.5e-7 |x|."""
    return _gated(x, _GELU_TANH_MOST, _GELU_TANH, _GELU_TANH_BELOW)


def _gated(x: Expr, most: float, above: Sequence[float], below: Sequence[float]) -> Expr:
    """x (1/2 + t p(t^2) / q(t^2)), where t is x no greater than `most`, for which the quotient is exactly 1/2; `above`
    and `below` are the coefficients of p and q."""
    t = maximum(single(-most), minimum(single(most), x))
    square = t * t
    return x * (t * polynomial(square, above) / polynomial(square, below) + 0.5)


# logarithms

_SQRT_HALF = 0x3F3504F3
"""The bits of sqrt(1/2)."""


def _mantissa(x: Expr) -> tuple[Expr, Expr]:
    """(e, m) with x = m 2^e and sqrt(1/2) <= m < sqrt(2), for positive normal x."""
    shifted = bits(x) - _SQRT_HALF
    return shifted >> word(23), as_float((shifted & 0x7FFFFF) + _SQRT_HALF)


def _normal(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(e, m, whether x is denormal) with x = m 2^e and sqrt(1/2) <= m < sqrt(2), for any positive x."""
    tiny = x < 2.0**-126
    e, m = _mantissa(select(tiny, x * 2.0**23, x))
    return cast(select(tiny, e - 23, e), f32), m, tiny


def _log_specials(x: Expr, result: Expr) -> Expr:
    """`result`, a logarithm of x, or the value that is right for zero, negative numbers, infinity and NaN."""
    special = select(equal(x, single(0.0)), -_INF, select(x < 0.0, _NAN, x))
    return select(all_of([x > 0.0, x < math.inf]), result, special)


def _log_tail(f: Expr) -> Expr:
    """log(1 + f) - f."""
    square = f * f
    return fma(square * f, polynomial(f, _LOG), square * -0.5)


def log(x: Expr) -> Expr:
    """Natural logarithm, 1 ulp."""
    e, m, _ = _normal(x)
    f = m - 1.0
    tail = fma(e, LN2_REST, _log_tail(f))
    return _log_specials(x, fma(e, LN2, f + tail))


def log2(x: Expr) -> Expr:
    """Logarithm to base 2, 2 ulp."""
    e, m, _ = _normal(x)
    f = m - 1.0
    high = f * LOG2E
    low = fma(f, LOG2E_REST, fma(f, LOG2E, -high))
    return _log_specials(x, (e + high) + fma(_log_tail(f), LOG2E, low))


def log1p(x: Expr) -> Expr:
    """log(1 + x), 2 ulp: the logarithm of u = 1 + x, corrected by the rounding error of u."""
    u = x + 1.0
    e, m = _mantissa(u)
    lost = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    scale = as_float((127 - minimum(e, word(127))) << word(23))
    f = fma(lost, scale, m - 1.0)
    exponent = cast(e, f32)
    tail = fma(exponent, LN2_REST, _log_tail(f))
    result = fma(exponent, LN2, f + tail)
    special = select(equal(x, single(-1.0)), -_INF, select(x < -1.0, _NAN, x))
    return select(all_of([x > -1.0, x < math.inf]), _signed_zero(x, result), special)


# trigonometric functions

_REDUCED_LIMIT = 2.0**16
"""The largest argument that is reduced in f32; larger ones use a table."""
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100059e-15)
"""pi/2 as a sum of three f32."""
_ROUND64 = 1.5 * 2.0**52


def _reduced_inner(x: Expr) -> tuple[Expr, Expr]:
    """(q, r) with x = q pi/2 + r, |r| <= pi/4, for |x| <= 2^16. The first difference is exact."""
    shifted = fma(x, single(2 / math.pi), single(_ROUND))
    n = shifted - single(_ROUND)
    r = x
    for part in _HALF_PI:
        r = fma(n, single(-part), r)
    return bits(shifted), r


def _reduced_outer(x: Expr) -> tuple[Expr, Expr]:
    """(q, r) with x = q pi/2 + r, |r| <= pi/4, for 2^16 <= |x| < infinity, in f64: x is m 2^k with a whole m, and the
    part of 2^k 2/pi below 4 comes from a table (the method of M. H. Payne and R. N. Hanek, 1983, with a product for
    each exponent)."""
    exponent = ((bits(x) >> word(23)) & 255) - 143
    m = cast(as_float((bits(x) & 0x7FFFFF) | 0x3F800000), f64) * 2.0**23
    place = cast(exponent, i64)
    high, low = (lookup(place, table) for table in _quadrants())
    n = fma(m, high, double(_ROUND64)) - double(_ROUND64)
    turn = fma(m, low, fma(m, high, -n))  # the inner difference is exact
    sign = select(bits(x) < 0, double(-1.0), double(1.0))
    return cast(n * sign, i32), cast(turn * sign * (math.pi / 2), f32)


@cache
def _quadrants() -> tuple[tuple[Const, ...], tuple[Const, ...]]:
    """2^(e - 23) 2/pi mod 4 for e = 16, ..., 127, each as a sum of two f64."""
    bits = 256
    two_over_pi = (2 << 2 * bits) // _pi(bits)
    results = []
    for e in range(16, 128):
        rest = (two_over_pi << (e - 23) if e > 23 else two_over_pi >> (23 - e)) % (4 << bits)
        high = rest / (1 << bits)
        numerator, denominator = high.as_integer_ratio()
        results.append((double(high), double((rest - numerator * ((1 << bits) // denominator)) / (1 << bits))))
    return tuple(a for a, _ in results), tuple(b for _, b in results)


def _pi(bits: int) -> int:
    """pi 2^bits, by Machin's formula."""

    def arctan_of_inverse(k: int) -> int:
        power = total = (1 << (bits + 16)) // k
        n = 1
        while power:
            power //= -k * k
            n += 2
            total += power // n
        return total

    return (16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) >> 16


def _sin_cos(r: Expr) -> tuple[Expr, Expr]:
    """sin and cos for |r| <= pi/4."""
    square = r * r
    sine = fma(square * r, polynomial(square, _SIN), r)
    cosine = fma(square * square, polynomial(square, _COS), fma(square, single(-0.5), single(1.0)))
    return sine, cosine


def _odd(q: Expr) -> Expr:
    return binary("ne", q & 1, 0)


def _trigonometric(x: Expr, of_reduced: Callable[[Expr, Expr], Expr]) -> Expr:
    """`of_reduced(q, r)`, a trigonometric function of x = q pi/2 + r. A large, infinite or NaN x is reduced in a
    separate branch, which runs if any lane needs it."""
    outer = select(call("abs", x) < math.inf, of_reduced(*_reduced_outer(x)), _NAN)
    return select(call("abs", x) <= _REDUCED_LIMIT, of_reduced(*_reduced_inner(x)), outer)


def _sin_of_reduced(q: Expr, r: Expr) -> Expr:
    sine, cosine = _sin_cos(r)
    return as_float(bits(select(_odd(q), cosine, sine)) ^ ((q & 2) << word(30)))


def _cos_of_reduced(q: Expr, r: Expr) -> Expr:
    sine, cosine = _sin_cos(r)
    return as_float(bits(select(_odd(q), sine, cosine)) ^ (((q + 1) & 2) << word(30)))


def _tan_of_reduced(q: Expr, r: Expr) -> Expr:
    sine, cosine = _sin_cos(r)
    odd = _odd(q)
    return select(odd, -cosine, sine) / select(odd, sine, cosine)


def sin(x: Expr) -> Expr:
    """Sine, 2 ulp."""
    return _signed_zero(x, _trigonometric(x, _sin_of_reduced))


def cos(x: Expr) -> Expr:
    """Cosine, 2 ulp."""
    return _trigonometric(x, _cos_of_reduced)


def tan(x: Expr) -> Expr:
    """Tangent, 4 ulp."""
    return _signed_zero(x, _trigonometric(x, _tan_of_reduced))


# powers


def _log2_wide(x: Expr) -> Expr:
    """log2 of a positive normal f64, to about 40 bits: the series of artanh."""
    root = 0x3FE6A09E667F3BCD
    shifted = bits(x) - root
    e = cast(shifted >> const(52, i64), f64)
    m = as_float((shifted & 0xFFFFFFFFFFFFF) + root)
    s = (m - 1.0) / (m + 1.0)
    series = polynomial(s * s, [2 / math.log(2) / (2 * k + 1) for k in range(9)])
    return fma(s, series, e)


def _exp2_wide(x: Expr) -> Expr:
    """2^x of an f64 within +-1000, to about 38 bits."""
    shifted = x + (_ROUND64 + 1023)
    r = x - (shifted - (_ROUND64 + 1023))
    series = polynomial(r, [math.log(2) ** k / math.factorial(k) for k in range(10)])
    return series * as_float(bits(shifted) << const(52, i64))


def pow(x: Expr, y: Expr) -> Expr:
    """x^y, 1 ulp: 2^(y log2 |x|) in f64, then the cases of IEEE 754."""
    size, reach = call("abs", x), call("abs", y)
    finite = _both(size > 0.0, size < math.inf)
    log_size = _log2_wide(cast(select(finite, size, 1.0), f64))
    infinite = select(equal(size, single(0.0)), -_INF, size)
    exponent = select(finite, log_size, cast(infinite, f64)) * cast(y, f64)
    power = cast(_exp2_wide(minimum(double(300.0), maximum(double(-300.0), exponent))), f32)
    whole = equal(call("floor", y), y)
    half = y * 0.5
    odd = _both(_both(whole, binary("ne", call("floor", half), half)), reach < math.inf)
    signed = as_float(bits(power) ^ select(odd, bits(x) & -(1 << 31), 0))
    undefined = _both(_both(x < 0.0, x > -math.inf), binary("ne", call("floor", y), y))
    result = select(undefined, _NAN, signed)
    unit = maximum(equal(x, single(1.0)), equal(y, single(0.0)))
    return select(maximum(unit, _both(equal(x, single(-1.0)), equal(reach, _INF))), 1.0, result)


def _both(a: Expr, b: Expr) -> Expr:
    """The conjunction of two conditions that, unlike `and`, always evaluates both, so that loads in `b` need no
    mask."""
    return minimum(a, b)
