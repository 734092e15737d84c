"""Rules for the optimisers of ai.onnx.preview.training: the pseudo code of their schemas, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError

DOMAIN = "ai.onnx.preview.training."

Step = Callable[[Value, Value, list[Value]], tuple[Value, ...]]
"""From a tensor, its gradient and its states to the new tensor and states."""


def _each(n: Call, states: int, step: Step) -> list[Value]:
    """Apply an optimiser's `step` to each tensor. The node's inputs are rate and count, then all tensors, all
    gradients, and all tensors of each of the `states`; outputs are in that order, without gradients."""
    parts = 2 + states
    arguments = [n.value(i) for i in range(2, len(n.items))]
    if not arguments or len(arguments) % parts:
        raise ModelError("the tensors, gradients and states differ in number", expected=f"a multiple of {parts}")
    count = len(arguments) // parts
    results = [
        step(arguments[k], arguments[count + k], [arguments[(2 + s) * count + k] for s in range(states)])
        for k in range(count)
    ]
    return [result[part] for part in range(1 + states) for result in results]


def _times(n: Call, x: Value, factor: float) -> Value:
    return n.emit("mul", x, n.like(factor, x))


def _regularized(n: Call, x: Value, gradient: Value) -> Value:
    return n.emit("add", _times(n, x, n.real("norm_coefficient", 0.0)), gradient)


@rule(f"{DOMAIN}Adagrad")
def adagrad(n: Call) -> list[Value]:
    rate, time = n.value(0), n.value(1)
    decay = _times(n, n.cast(time, rate.dtype), n.real("decay_factor", 0.0))
    rate = n.emit("div", rate, n.emit("add", n.like(1.0, rate), decay))

    def step(x: Value, gradient: Value, states: list[Value]) -> tuple[Value, ...]:
        g = _regularized(n, x, gradient)
        squares = n.emit("add", states[0], n.emit("mul", g, g))
        size = n.emit("add", n.emit("sqrt", squares), n.like(n.real("epsilon", 1e-6), squares))
        return n.emit("sub", x, n.emit("div", n.emit("mul", rate, g), size)), squares

    return _each(n, 1, step)


@rule(f"{DOMAIN}Momentum")
def momentum(n: Call) -> list[Value]:
    rate, time = n.value(0), n.value(1)
    alpha, mode = n.real("alpha", 0.0), n.text("mode", "")
    if mode not in ("standard", "nesterov"):
        raise ModelError("attribute mode must be standard or nesterov", got=mode)
    later = n.emit("gt", time, n.like(0, time))
    beta = n.emit("select", later, n.like(n.real("beta", 1.0), rate), n.like(1.0, rate))

    def step(x: Value, gradient: Value, states: list[Value]) -> tuple[Value, ...]:
        g = _regularized(n, x, gradient)
        velocity = n.emit("add", _times(n, states[0], alpha), n.emit("mul", beta, g))
        move = velocity if mode == "standard" else n.emit("add", g, _times(n, velocity, alpha))
        return n.emit("sub", x, n.emit("mul", rate, move)), velocity

    return _each(n, 1, step)


@rule(f"{DOMAIN}Adam")
def adam(n: Call) -> list[Value]:
    rate, time = n.value(0), n.value(1)
    alpha, beta = n.real("alpha", 0.9), n.real("beta", 0.999)
    after = n.real("norm_coefficient_post", 0.0)
    t, one = n.cast(time, rate.dtype), n.like(1.0, rate)
    corrected = n.emit("sqrt", n.emit("sub", one, n.emit("pow", n.like(beta, rate), t)))
    corrected = n.emit("div", n.emit("mul", rate, corrected), n.emit("sub", one, n.emit("pow", n.like(alpha, rate), t)))
    rate = n.emit("select", n.emit("gt", time, n.like(0, time)), corrected, rate)

    def step(x: Value, gradient: Value, states: list[Value]) -> tuple[Value, ...]:
        g = _regularized(n, x, gradient)
        mean = n.emit("add", _times(n, states[0], alpha), _times(n, g, 1 - alpha))
        squares = n.emit("add", _times(n, states[1], beta), _times(n, n.emit("mul", g, g), 1 - beta))
        size = n.emit("add", n.emit("sqrt", squares), n.like(n.real("epsilon", 1e-6), squares))
        moved = n.emit("sub", x, n.emit("div", n.emit("mul", rate, mean), size))
        return _times(n, moved, 1 - after), mean, squares

    return _each(n, 2, step)


__all__ = ["adagrad", "adam", "momentum"]
