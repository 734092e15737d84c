"""Optimisers: what becomes of parameters and their state, as operators on the whole arena at once.

Each follows PyTorch's formulas (`torch.optim`), also where papers differ: Adam's epsilon is added outside of the root,
and SGD's first step fills the momentum with the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.registry import emit1


@dataclass(slots=True)
class Vectors:
    """Operators on vectors of f32, written as arithmetic."""

    builder: GraphBuilder

    def emit(self, op: str, *inputs: Value) -> Value:
        return emit1(self.builder, op, *inputs, name=f"update.{op}")

    def number(self, value: float) -> Value:
        return emit1(self.builder, "constant", value=np.float32(value), name="update.constant")

    def add(self, a: Value, b: Value) -> Value:
        return self.emit("add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.emit("mul", a, b)

    def scaled(self, a: Value, factor: float) -> Value:
        return a if factor == 1 else self.mul(a, self.number(factor))

    def decayed(self, g: Value, p: Value, decay: float) -> Value:
        """The gradient with that of decay * p^2 / 2."""
        return self.add(g, self.scaled(p, decay)) if decay else g

    def mixed(self, old: Value, new: Value, keep: float) -> Value:
        """keep * old + (1 - keep) * new"""
        return self.add(self.scaled(old, keep), self.scaled(new, 1 - keep))


class Optimizer(Protocol):
    """An optimiser. `lr` is the learning rate of the first step; `Step.lr` changes it."""

    @property
    def lr(self) -> float: ...

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the vectors that it keeps beside the parameters; they start with zeros."""
        ...

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        """Numbers of step `count`, which begins with 1."""
        ...

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        """The new parameters and the new state."""
        ...


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent, with momentum if there is any (Nesterov's if asked for)."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def state(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        return (lr,)

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        g = v.decayed(g, p, self.weight_decay)
        if not self.momentum:
            return (v.emit("sub", p, v.mul(g, scalars[0])),)
        moving = v.add(v.scaled(state[0], self.momentum), g)
        step = v.add(g, v.scaled(moving, self.momentum)) if self.nesterov else moving
        return v.emit("sub", p, v.mul(step, scalars[0])), moving


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba, 2015 (arXiv 1412.6980); `decoupled` decays weights themselves and not their gradients (AdamW,
    Loshchilov and Hutter, arXiv 1711.05101)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    @property
    def state(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        first, second = (1 - beta**count for beta in self.betas)
        return lr / first, 1 / math.sqrt(second), 1 - lr * self.weight_decay

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        if self.weight_decay and self.decoupled:
            p = v.mul(p, scalars[2])
        else:
            g = v.decayed(g, p, self.weight_decay)
        mean = v.mixed(state[0], g, self.betas[0])
        square = v.mixed(state[1], v.mul(g, g), self.betas[1])
        size = v.add(v.mul(v.emit("sqrt", square), scalars[1]), v.number(self.eps))
        return v.emit("sub", p, v.mul(v.emit("div", mean, size), scalars[0])), mean, square


def AdamW(
    lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2
) -> Adam:
    """Adam whose weights decay by themselves."""
    return Adam(lr, betas, eps, weight_decay, decoupled=True)


@dataclass(frozen=True, slots=True)
class RMSprop:
    """Hinton's, as PyTorch has it; the epsilon is added outside of the root."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def state(self) -> tuple[str, ...]:
        return ("square_avg",)

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        return (lr,)

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        g = v.decayed(g, p, self.weight_decay)
        square = v.mixed(state[0], v.mul(g, g), self.alpha)
        size = v.add(v.emit("sqrt", square), v.number(self.eps))
        return v.emit("sub", p, v.mul(v.emit("div", g, size), scalars[0])), square


@dataclass(frozen=True, slots=True)
class Lion:
    """Chen et al., 2023 (arXiv 2302.06675): the sign of a mean, decay apart from it."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    @property
    def state(self) -> tuple[str, ...]:
        return ("exp_avg",)

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        return lr, 1 - lr * self.weight_decay

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        direction = v.emit("sign", v.mixed(state[0], g, self.betas[0]))
        p = v.mul(p, scalars[1]) if self.weight_decay else p
        return v.emit("sub", p, v.mul(direction, scalars[0])), v.mixed(state[0], g, self.betas[1])
