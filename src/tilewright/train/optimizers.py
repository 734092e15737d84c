"""Optimisers: the update of parameters and their state, as operators on the whole arena at once.

Each follows PyTorch's formulas (`torch.optim`), also where papers differ: Adam's epsilon is added outside of the root,
and SGD's first step initialises the momentum with the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Protocol

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.options import described


@dataclass(slots=True)
class Vectors:
    """Operators on vectors of one type, with the syntax of arithmetic."""

    builder: GraphBuilder
    dtype: DType

    def emit(self, op: str, *inputs: Value) -> Value:
        return emit1(self.builder, op, *inputs, name=f"update.{op}")

    def number(self, value: float) -> Value:
        return emit1(self.builder, "constant", value=np.array(value, self.dtype.numpy), name="update.constant")

    def add(self, a: Value, b: Value) -> Value:
        return self.emit("add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.emit("mul", a, b)

    def scaled(self, a: Value, factor: float) -> Value:
        return a if factor == 1 else self.mul(a, self.number(factor))

    def uphill(self, g: Value, maximize: bool) -> Value:
        return self.emit("neg", g) if maximize else g

    def decayed(self, g: Value, p: Value, decay: float) -> Value:
        """The gradient `g` plus decay * `p`, which is the gradient of decay * p^2 / 2."""
        return self.add(g, self.scaled(p, decay)) if decay else g

    def mixed(self, old: Value, new: Value, keep: float) -> Value:
        """The moving average, keep * old + (1 - keep) * new."""
        return self.add(self.scaled(old, keep), self.scaled(new, 1 - keep))


def check_numbers(where: str, below: float = math.inf, **numbers: Any) -> None:
    """Raise ModelError for numbers that are not from 0 to below `below`; the error names `where.name`."""
    bound = "a number from 0 on" if below == math.inf else f"a number from 0 to less than {below:g}"
    for name, value in numbers.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not (0 <= value < below):
            raise ModelError(
                "the argument makes no sense", where=f"{where}.{name}", expected=bound, got=described(value)
            )


def check_flags(where: str, **flags: Any) -> None:
    """Raise ModelError for values that are neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            got = described(value)
            raise ModelError("the argument makes no sense", where=f"{where}.{name}", expected="True or False", got=got)


def check_betas(where: str, betas: Any) -> None:
    """Raise ModelError unless `betas` is a pair of averaging coefficients, from 0 to less than 1."""
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        expected = "a pair of numbers from 0 to less than 1"
        raise ModelError("the argument makes no sense", where=f"{where}.betas", expected=expected, got=described(betas))
    check_numbers(where, 1.0, **{f"betas[{k}]": beta for k, beta in enumerate(betas)})


class Optimizer(Protocol):
    """An optimiser. `lr` is the learning rate of the first step; `Step.lr` changes it."""

    @property
    def lr(self) -> float: ...

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state vectors; they start with zeros."""
        ...

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        """The numbers that step `count` (from 1) passes to the update."""
        ...

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        """The parameters after one update, followed by the optimizer's state after it, from the parameters `p`, the
        gradients `g`, the state before and the step's `scalars`."""
        ...


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent, optionally with momentum (or Nesterov's), whose later gradients may be damped; `maximize`
    ascends."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    maximize: bool = False

    def __post_init__(self) -> None:
        check_numbers("SGD", lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        check_numbers("SGD", dampening=self.dampening)
        check_flags("SGD", nesterov=self.nesterov, maximize=self.maximize)
        if self.nesterov and (not self.momentum or self.dampening):
            expected, got = "momentum > 0 and dampening = 0", f"momentum {self.momentum}, dampening {self.dampening}"
            raise ModelError("Nesterov's momentum needs others", where="SGD.nesterov", expected=expected, got=got)

    @property
    def state(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        return lr, 1.0 if count == 1 else 1 - self.dampening

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        g = v.decayed(v.uphill(g, self.maximize), p, self.weight_decay)
        if not self.momentum:
            return (v.emit("sub", p, v.mul(g, scalars[0])),)
        new = v.mul(g, scalars[1]) if self.dampening else g
        moving = v.add(v.scaled(state[0], self.momentum), new)
        step = v.add(g, v.scaled(moving, self.momentum)) if self.nesterov else moving
        return v.emit("sub", p, v.mul(step, scalars[0])), moving


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba, 2015 (arXiv 1412.6980); `decoupled` applies weight decay to the weights instead of the gradients
    (AdamW, Loshchilov and Hutter, arXiv 1711.05101); `amsgrad` divides by the largest mean so far (Reddi et al.,
    2018)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    amsgrad: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        check_numbers("Adam", lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        check_betas("Adam", self.betas)
        check_flags("Adam", decoupled=self.decoupled, amsgrad=self.amsgrad, maximize=self.maximize)

    @property
    def state(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        first, second = self.betas
        return lr / (1 - first**count), 1 / math.sqrt(1 - second**count), 1 - lr * self.weight_decay

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        g = v.uphill(g, self.maximize)
        if self.weight_decay and self.decoupled:
            p = v.mul(p, scalars[2])
        else:
            g = v.decayed(g, p, self.weight_decay)
        mean = v.mixed(state[0], g, self.betas[0])
        square = v.mixed(state[1], v.mul(g, g), self.betas[1])
        most = (v.emit("max", state[2], square),) if self.amsgrad else ()
        size = v.add(v.mul(v.emit("sqrt", most[0] if most else square), scalars[1]), v.number(self.eps))
        return v.emit("sub", p, v.mul(v.emit("div", mean, size), scalars[0])), mean, square, *most


def AdamW(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Adam:
    """Adam with decoupled weight decay; `lr`, `betas`, `eps`, `weight_decay`, `amsgrad` and `maximize` are as in
    PyTorch."""
    return Adam(lr, betas, eps, weight_decay, decoupled=True, amsgrad=amsgrad, maximize=maximize)


@dataclass(frozen=True, slots=True)
class RMSprop:
    """RMSprop (Hinton) as in PyTorch, with epsilon added outside of the root. `centered` divides by the deviation from
    a moving mean; with `momentum`, updates are moving averages."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        check_numbers("RMSprop", lr=self.lr, alpha=self.alpha, eps=self.eps)
        check_numbers("RMSprop", weight_decay=self.weight_decay, momentum=self.momentum)
        check_flags("RMSprop", centered=self.centered, maximize=self.maximize)

    @property
    def state(self) -> tuple[str, ...]:
        retained = {"momentum": bool(self.momentum), "grad_avg": self.centered}
        return ("square_avg", *(name for name, there in retained.items() if there))

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        return (lr,)

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        old = dict(zip(self.state, state, strict=True))
        g = v.decayed(v.uphill(g, self.maximize), p, self.weight_decay)
        new = {"square_avg": v.mixed(old["square_avg"], v.mul(g, g), self.alpha)}
        square = new["square_avg"]
        if self.centered:
            mean = new["grad_avg"] = v.mixed(old["grad_avg"], g, self.alpha)
            square = v.emit("sub", square, v.mul(mean, mean))
        step = v.emit("div", g, v.add(v.emit("sqrt", square), v.number(self.eps)))
        if self.momentum:
            step = new["momentum"] = v.add(v.scaled(old["momentum"], self.momentum), step)
        return v.emit("sub", p, v.mul(step, scalars[0])), *(new[name] for name in self.state)


@dataclass(frozen=True, slots=True)
class Lion:
    """Lion (Chen et al., 2023, arXiv 2302.06675): the sign of a moving average, with decoupled weight decay."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_numbers("Lion", lr=self.lr, weight_decay=self.weight_decay)
        check_betas("Lion", self.betas)

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
