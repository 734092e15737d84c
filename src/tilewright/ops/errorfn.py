"""Error functions and normal probabilities: erfc, erfcx, the inverses erfinv and ndtri.

erfcx(x) = e^(x^2) erfc(x) of positive numbers is t e^P(t), t = 2 / (2 + x), P a Chebyshev series (the form of Numerical
Recipes, section 6.2; the coefficients were made with 40 digits from erfcx itself). Relative errors in f64: erfcx 2e-15,
erfc 1e-15 (1 + x^2); erfinv 1e-14 up to 1 - 1e-6; ndtri (Moshier's Cephes) 1e-14.
"""

from __future__ import annotations

import math

from tilewright.ops.special import Number, chebyshev, equal, function, polynomial, special, where

_ERFCX = (
    -2.818172049233666e-17,
    1.2104155260268665e-16,
    -9.45913739158196e-17,
    -1.5230170376644079e-15,
    7.106094375229547e-15,
    3.810850090180406e-16,
    -1.1270821055347594e-13,
    3.130921223147401e-13,
    8.944879454152163e-13,
    -6.8860275408733375e-12,
    2.394038090307693e-12,
    9.646791102173656e-11,
    -2.2736512230330625e-10,
    -9.91364156476669e-10,
    5.0593434955326294e-09,
    6.529054439115804e-09,
    -8.523809591493766e-08,
    1.5626441722068822e-08,
    1.3036558355805296e-06,
    -1.6242900046470396e-06,
    -2.0278578112534225e-05,
    4.2523324806907755e-05,
    0.00036683949785276145,
    -0.0009465953444820369,
    -0.009561514786808632,
    0.019476473204185836,
    0.6419697923564902,
    -1.3026537197817094,
)
"""Coefficients of the factor P of erfcx, as a series in Chebyshev polynomials of 2 t - 1 (see the module)."""

_CENTRE = (
    (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
    (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0),
)
_TAIL = ((1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200, 1.0))
"""Coefficients (numerator, denominator) of the first approximation of erfinv: `_CENTRE` up to 0.7, `_TAIL` beyond
(Pavlis 1996)."""

_P0 = (
    -59.96335010141079,
    98.00107541859997,
    -56.67628574690703,
    13.931260938727968,
    -1.2391658386738125,
)
_Q0 = (
    1.0,
    1.9544885833814176,
    4.676279128988815,
    86.36024213908905,
    -225.46268785411937,
    200.26021238006066,
    -82.03722561683334,
    15.90562251262117,
    -1.1833162112133,
)
_P1 = (
    4.0554489230596245,
    31.525109459989388,
    57.16281922464213,
    44.08050738932008,
    14.684956192885803,
    2.1866330685079025,
    -0.1402560791713545,
    -0.03504246268278482,
    -0.0008574567851546854,
)
_Q1 = (
    1.0,
    15.779988325646675,
    45.39076351288792,
    41.3172038254672,
    15.04253856929075,
    2.504649462083094,
    -0.14218292285478779,
    -0.03808064076915783,
    -0.0009332594808954574,
)
_P2 = (
    3.2377489177694603,
    6.915228890689842,
    3.9388102529247444,
    1.3330346081580755,
    0.20148538954917908,
    0.012371663481782003,
    0.00030158155350823543,
    2.6580697468673755e-06,
    6.239745391849833e-09,
)
_Q2 = (
    1.0,
    6.02427039364742,
    3.6798356385616087,
    1.3770209948908132,
    0.21623699359449663,
    0.013420400608854318,
    0.00032801446468212774,
    2.8924786474538068e-06,
    6.790194080099813e-09,
)
"""Numerators and denominators for ndtri: in the middle, and for two ranges of sqrt(-2 log y)."""


def _scaled_tail(x: Number) -> Number:
    """erfcx of x >= 0."""
    t = 2.0 / (x + 2.0)
    return t * function("exp", chebyshev(t * 4.0 - 2.0, _ERFCX))


def erfcx(x: Number) -> Number:
    size = function("abs", x)
    tail = _scaled_tail(size)
    return where(
        x < 0.0, function("exp", x * x) * 2.0 - tail, where(size > 1e150, 1.0 / (x * math.sqrt(math.pi)), tail)
    )


def erfc(x: Number) -> Number:
    size = function("abs", x)
    tail = _scaled_tail(size) * function("exp", -(size * size))
    tail = where(size > 30.0, 0.0, tail)
    return where(function("isnan", x), x, where(x < 0.0, 2.0 - tail, tail))


def erfinv(y: Number) -> Number:
    """The inverse of erf: a rational approximation, then two steps of Newton's method."""
    size = function("abs", y)
    inner = y * polynomial(y * y, _CENTRE[0]) / polynomial(y * y, _CENTRE[1])
    z = function("sqrt", -function("log", (1.0 - size) * 0.5))
    outer = polynomial(z, _TAIL[0]) / polynomial(z, _TAIL[1])
    x = where(size <= 0.7, inner, where(y < 0.0, -outer, outer))
    for _ in range(2):
        # Beyond one half by the complement, which keeps the digits of 1 - y.
        size_x = function("abs", x)
        left = (1.0 - size) - erfc(size_x)
        error = where(size <= 0.5, function("erf", x) - y, where(y < 0.0, -left, left))
        x = x - error / (function("exp", -(x * x)) * (2.0 / math.sqrt(math.pi)))
    x = where(equal(size, 1.0), where(y < 0.0, -math.inf, math.inf), x)
    return where(size > 1.0, math.nan, x)


def ndtri(p: Number) -> Number:
    """The argument at which the normal distribution function is p."""
    upper = p > 1.0 - math.exp(-2)
    y = where(upper, 1.0 - p, p)
    middle = y - 0.5
    square = middle * middle
    reduced = (middle + middle * (square * polynomial(square, _P0) / polynomial(square, _Q0))) * math.sqrt(2 * math.pi)
    x = function("sqrt", function("log", y) * -2.0)
    z = 1.0 / x
    first, second = z * polynomial(z, _P1) / polynomial(z, _Q1), z * polynomial(z, _P2) / polynomial(z, _Q2)
    outer = x - function("log", x) / x - where(x < 8.0, first, second)
    result = where(y > math.exp(-2), reduced, where(upper, outer, -outer))
    result = where(equal(p, 0.0), -math.inf, where(equal(p, 1.0), math.inf, result))
    return where((p < 0.0) | (p > 1.0), math.nan, result)


special("erfc", 1, erfc)
special("erfcx", 1, erfcx)
special("erfinv", 1, erfinv)
special("ndtri", 1, ndtri)
