"""Rules for dropout, and for random numbers in graphs that have a key of such numbers (learning steps).

Dropout keeps an element where a random number of 24 bits in [0, 1) is less than the probability of keeping, and divides
it by that. The generator is Tilewright's, not PyTorch's, so that only the distribution is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import SAMPLING, rule
from tilewright.ir.dtype import boolean, f32
from tilewright.ir.expr import Expr, as_expr
from tilewright.ir.graph import Value
from tilewright.support.errors import UnsupportedError

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
SATURATED = -SELU_ALPHA * SELU_SCALE
"""The value that alpha dropout writes to dropped elements: the lower limit of SELU."""


@rule("dropout", "feature_dropout")
def dropout(n: Call, x: Value, p: float, train: bool) -> Value:
    if not train or not p:
        return x
    return n.emit("mul", x, _scaled(n, _retained(n, _channels(n, x), 1 - p), 1 - p, x))


@rule("native_dropout")
def native_dropout(n: Call, x: Value, p: float, train: bool | None) -> list[Value]:
    """Dropout; returns the result and the mask of retained elements."""
    if train is False or not p:
        return [x, n.filled(True, boolean, x.shape)]
    retained = _retained(n, x.shape, 1 - p)
    return [n.emit("mul", x, _scaled(n, retained, 1 - p, x)), retained]


@rule("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(n: Call, x: Value, p: float, train: bool) -> Value:
    """Dropped elements become SELU's limit; a scale and a shift keep mean and variance (Klambauer et al., 2017)."""
    if not train or not p:
        return x
    retained = _retained(n, _channels(n, x), 1 - p)
    if p == 1:
        return n.emit("mul", x, n.like(0, x))
    scale = 1 / math.sqrt((1 - p) * (1 + p * SATURATED**2))
    held = n.emit("select", retained, x, n.like(SATURATED, x))
    return n.emit("add", n.emit("mul", held, n.like(scale, x)), n.like(-scale * SATURATED * p, x))


def _channels(n: Call, x: Value) -> tuple[Expr, ...]:
    """The shape of dropout's mask: that of `x` or, for feature dropout, one entry for each channel."""
    if "feature" not in n.name:
        return x.shape
    return (*x.shape[:2], *[as_expr(1)] * (x.type.rank - 2))


def _scaled(n: Call, retained: Value, share: float, x: Value) -> Value:
    """Dropout's factors, of `x`'s type: 1 / share where `retained`, else 0."""
    return n.emit("select", retained, n.like(1 / share if share else 0, x), n.like(0, x))


def _retained(n: Call, shape: Sequence[Expr], share: float) -> Value:
    return n.emit("lt", _uniform(n, shape), n.constant(share, f32))


def _uniform(n: Call, shape: Sequence[Expr]) -> Value:
    if n.random is None:
        raise UnsupportedError(
            f"the operator {n.name} in training mode is not supported", hint="sample outside of the model"
        )
    return n.random.uniform(shape)


@rule("rand", "rand_like", table=SAMPLING)
def rand(n: Call, *_: Any, **__: Any) -> Value:
    return n.cast(_uniform(n, n.shape), n.dtype)


@rule("uniform", table=SAMPLING)
def uniform(n: Call, x: Value, low: float = 0.0, high: float = 1.0, **_: Any) -> Value:
    spread = n.emit("mul", _uniform(n, n.shape), n.constant(high - low, f32))
    return n.cast(n.emit("add", spread, n.constant(low, f32)), n.dtype)


@rule("bernoulli.p", table=SAMPLING)
def bernoulli(n: Call, x: Value, p: float = 0.5, **_: Any) -> Value:
    return n.cast(_retained(n, n.shape, p), n.dtype)


@rule("bernoulli", table=SAMPLING)
def bernoulli_of_each(n: Call, x: Value, **_: Any) -> Value:
    return n.cast(n.emit("lt", _uniform(n, n.shape), n.cast(x, f32)), n.dtype)


@rule("randn", "randn_like", table=SAMPLING)
def randn(n: Call, *_: Any, **__: Any) -> Value:
    return n.cast(_normal(n), n.dtype)


@rule("normal", "normal_functional", table=SAMPLING)
def normal(n: Call, mean: Any, std: Any = 1.0, *rest: Any, **_: Any) -> Value:
    """Normal random numbers with tensors (or numbers) of means and standard deviations; one overload has the tensor to
    be filled as first argument."""
    if "functional" in n.name or (rest and isinstance(rest[0], int | float)):
        mean, std = std, rest[0] if rest else 1.0
    spread = n.emit("mul", _normal(n), n.operand(std, f32))
    return n.cast(n.emit("add", spread, n.operand(mean, f32)), n.dtype)


def _normal(n: Call) -> Value:
    """Standard normal random numbers: sqrt(-2 log(1 - u)) cos(2 pi v) (Box and Muller, 1958)."""
    inner = n.emit("sub", n.constant(1.0, f32), _uniform(n, n.shape))  # (0, 1]
    radius = n.emit("sqrt", n.emit("mul", n.emit("log", inner), n.constant(-2.0, f32)))
    angle = n.emit("mul", _uniform(n, n.shape), n.constant(2 * math.pi, f32))
    return n.emit("mul", radius, n.emit("cos", angle))
