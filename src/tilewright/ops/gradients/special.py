"""Gradients of special functions, by identities that need functions of the same families (DLMF 5, 7, 10.29, 25.11.17).

Functions without a rule here are differentiated from their formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ir.graph import Value
from tilewright.ops.gradients.registry import Backward, gradient

Result = Sequence[Value | None]


def _times(b: Backward, number: float, value: Value) -> Value:
    return b.mul(b.like(number, value), value)


@gradient("lgamma")
def lgamma(b: Backward) -> Result:
    return [b.mul(b.g, b.emit("digamma", b.x()))]


@gradient("digamma")
def digamma(b: Backward) -> Result:
    """The derivative of digamma is the trigamma function, zeta(2, x)."""
    return [b.mul(b.g, b.emit("zeta", b.like(2, b.x()), b.x()))]


@gradient("zeta")
def zeta(b: Backward) -> Result:
    """The gradient by q alone, -s zeta(s + 1, q); like PyTorch, none by s."""
    s, q = b.x(0), b.x(1)
    slope = b.mul(b.emit("neg", s), b.emit("zeta", b.add(s, b.like(1, s)), q))
    return [None, b.reduced_to(b.mul(b.g, slope), q.shape)]


@gradient("erfc")
def erfc(b: Backward) -> Result:
    bell = b.emit("exp", b.emit("neg", b.mul(b.x(), b.x())))
    return [b.mul(b.g, _times(b, -2 / math.sqrt(math.pi), bell))]


@gradient("erfcx")
def erfcx(b: Backward) -> Result:
    slope = b.sub(b.mul(_times(b, 2, b.x()), b.y), b.like(2 / math.sqrt(math.pi), b.y))
    return [b.mul(b.g, slope)]


@gradient("erfinv")
def erfinv(b: Backward) -> Result:
    return [b.mul(b.g, _times(b, math.sqrt(math.pi) / 2, b.emit("exp", b.mul(b.y, b.y))))]


@gradient("ndtri")
def ndtri(b: Backward) -> Result:
    bell = b.emit("exp", _times(b, 0.5, b.mul(b.y, b.y)))
    return [b.mul(b.g, _times(b, math.sqrt(2 * math.pi), bell))]


@gradient("bessel_i0")
def bessel_i0(b: Backward) -> Result:
    return [b.mul(b.g, b.emit("bessel_i1", b.x()))]


@gradient("bessel_i0e")
def bessel_i0e(b: Backward) -> Result:
    slope = b.sub(b.emit("bessel_i1e", b.x()), b.mul(b.emit("sign", b.x()), b.y))
    return [b.mul(b.g, slope)]


@gradient("bessel_i1")
def bessel_i1(b: Backward) -> Result:
    return [b.mul(b.g, b.sub(b.emit("bessel_i0", b.x()), _over_x(b)))]


@gradient("bessel_i1e")
def bessel_i1e(b: Backward) -> Result:
    slope = b.sub(b.emit("bessel_i0e", b.x()), b.mul(b.emit("sign", b.x()), b.y))
    return [b.mul(b.g, b.sub(slope, _over_x(b)))]


def _over_x(b: Backward) -> Value:
    """y / x for a Bessel function y of order 1, whose limit at x = 0 is 1/2."""
    x = b.x()
    zero = b.emit("eq", x, b.like(0, x))
    return b.emit("select", zero, b.like(0.5, x), b.div(b.y, b.emit("select", zero, b.like(1, x), x)))
