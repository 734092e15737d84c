"""Rules for special functions: error, gamma, Bessel and Chebyshev functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import RULES, rule
from tilewright.ir.graph import Value

_UNARY = {
    "erfc": "erfc",
    "special_erfc": "erfc",
    "special_erfcx": "erfcx",
    "erfinv": "erfinv",
    "special_erfinv": "erfinv",
    "special_ndtri": "ndtri",
    "lgamma": "lgamma",
    "special_gammaln": "lgamma",
    "digamma": "digamma",
    "special_digamma": "digamma",
    "special_psi": "digamma",
    "i0": "bessel_i0",
    "special_i0": "bessel_i0",
    "special_i0e": "bessel_i0e",
    "special_i1": "bessel_i1",
    "special_i1e": "bessel_i1e",
    "special_modified_bessel_i0": "bessel_i0",
    "special_modified_bessel_i1": "bessel_i1",
    "special_modified_bessel_k0": "bessel_k0",
    "special_modified_bessel_k1": "bessel_k1",
    "special_scaled_modified_bessel_k0": "bessel_k0e",
    "special_scaled_modified_bessel_k1": "bessel_k1e",
    "special_bessel_j0": "bessel_j0",
    "special_bessel_j1": "bessel_j1",
    "special_bessel_y0": "bessel_y0",
    "special_bessel_y1": "bessel_y1",
    "special_spherical_bessel_j0": "spherical_bessel_j0",
}
_BINARY = {"special_zeta": "zeta"} | {f"special_chebyshev_polynomial_{k}": f"chebyshev_{k}" for k in "tuvw"}


def _unary(op: str) -> Callable[[Call, Value], Value]:
    return lambda n, x: n.emit(op, n.floats(x))


def _binary(op: str) -> Callable[[Call, Operand, Operand], Value]:
    return lambda n, a, b: n.emit(op, n.operand(a, n.dtype), n.operand(b, n.dtype))


def _shifted(op: str) -> Callable[[Call, Operand, Operand], Value]:
    def run(n: Call, a: Operand, b: Operand) -> Value:
        x = n.operand(a, n.dtype)
        moved = n.emit("sub", n.emit("add", x, x), n.like(1, x))
        return n.emit(op, moved, n.operand(b, n.dtype))

    return run


for _aten, _ours in _UNARY.items():
    RULES[_aten] = _unary(_ours)
for _aten, _ours in _BINARY.items():
    RULES[_aten] = _binary(_ours)
for _kind in "tuvw":
    RULES[f"special_shifted_chebyshev_polynomial_{_kind}"] = _shifted(f"chebyshev_{_kind}")


@rule("polygamma", "special_polygamma", single=True)
def polygamma(n: Call, order: int, x: Value) -> Value:
    """The derivatives of digamma: (-1)^(n + 1) n! zeta(n + 1, x)."""
    x = n.floats(x)
    if order == 0:
        return n.emit("digamma", x)
    sums = n.emit("zeta", n.filled(order + 1, x.dtype, x.shape), x)
    return n.emit("mul", sums, n.like((-1.0) ** (order + 1) * math.factorial(order), x))


@rule("special_entr", single=True)
def entr(n: Call, x: Value) -> Value:
    """-x log(x), 0 where x is 0 and -inf below. The gradient is -(1 + log(x)): inf at 0, and NaN below."""
    x = n.floats(x)
    zero = n.like(0, x)
    inside = n.emit("select", n.emit("le", x, zero), n.like(1, x), x)  # NaN is not replaced
    value = n.emit("neg", n.emit("mul", inside, n.emit("log", inside)))
    value = n.emit("select", n.emit("lt", x, zero), n.like(-math.inf, x), value)

    def linear() -> Value:
        slope = n.emit("neg", n.emit("add", n.emit("log", x), n.like(1, x)))
        return n.emit("mul", x, n.emit("stop_gradient", slope))

    return n.surrogate(value, linear)


@rule("special_log_ndtr", single=True)
def log_ndtr(n: Call, x: Value) -> Value:
    """The logarithm of the normal distribution function, by one formula below 1 and another above. Inputs of each are
    clamped to its side, so that the unused one does not overflow and gradients are finite."""
    x = n.floats(x)
    one, root, half = n.like(1, x), n.like(math.sqrt(0.5), x), n.like(0.5, x)
    below = n.emit("lt", x, one)
    low = n.emit("mul", n.emit("select", below, x, one), root)
    tail = n.emit("log", n.emit("mul", n.emit("erfcx", n.emit("neg", low)), half))
    high = n.emit("mul", n.emit("select", below, one, x), root)
    rest = n.emit("log1p", n.emit("neg", n.emit("mul", n.emit("erfc", high), half)))
    return n.emit("select", below, n.emit("sub", tail, n.emit("mul", low, low)), rest)
