"""One training, three times: by a compiled step, by eager PyTorch, by JAX's jit. The same weights, batches and Adam."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import tilewright as tw
from examples.mnist_like.networks import Weights, first_weights, network

RATE = 1e-2


class Learner(Protocol):
    """A learner that takes batches."""

    def step(self, pictures: Any, shown: Any) -> float:
        """The loss before the step."""
        ...

    def weights(self) -> Weights: ...


class Tilewright:
    """The graph of the loss, compiled with its gradients and Adam."""

    def __init__(self, hidden: tuple[int, ...], batch: int) -> None:
        graph = network(hidden, batch)
        self._step = tw.compile_step((graph, first_weights(hidden)), optimizer=tw.train.Adam(RATE))

    def step(self, pictures: Any, shown: Any) -> float:
        return self._step(pictures, shown)["loss"]

    def weights(self) -> Weights:
        return self._step.state_dict()


class Torch:
    """Eager PyTorch with its fused Adam, which is its fastest."""

    def __init__(self, hidden: tuple[int, ...], batch: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._weights = {n: torch.tensor(a, requires_grad=True) for n, a in first_weights(hidden).items()}
        self._optimizer = torch.optim.Adam(self._weights.values(), RATE, fused=True)

    def step(self, pictures: Any, shown: Any) -> float:
        torch, w = self._torch, self._weights
        x = torch.from_numpy(pictures)
        for k in range(len(w) // 2):
            x = torch.addmm(w[f"b{k}"], x.relu() if k else x, w[f"w{k}"])
        loss = torch.nn.functional.cross_entropy(x, torch.from_numpy(shown))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def weights(self) -> Weights:
        return {name: tensor.detach().numpy() for name, tensor in self._weights.items()}


class Jax:
    """Loss, gradients and Adam in one jit, whose arguments are donated."""

    def __init__(self, hidden: tuple[int, ...], batch: int) -> None:
        import jax
        import jax.numpy as jnp

        def loss(w: Any, x: Any, shown: Any) -> Any:
            for k in range(len(w) // 2):
                x = (jnp.maximum(x, 0) if k else x) @ w[f"w{k}"] + w[f"b{k}"]
            return -(shown * jax.nn.log_softmax(x)).sum(1).mean()

        def step(state: Any, x: Any, shown: Any) -> Any:
            w, m, v, t = state
            value, g = jax.value_and_grad(loss)(w, x, shown)
            t = t + 1
            m = {n: 0.9 * m[n] + 0.1 * g[n] for n in w}
            v = {n: 0.999 * v[n] + 0.001 * g[n] ** 2 for n in w}
            first, second = RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
            return ({n: w[n] - first * m[n] / (jnp.sqrt(v[n] * second) + 1e-8) for n in w}, m, v, t), value

        w = {name: jnp.asarray(a) for name, a in first_weights(hidden).items()}
        empty = [{name: jnp.zeros_like(a) for name, a in w.items()} for _ in range(2)]
        self._state: Any = (w, *empty, jnp.float32(0))
        self._step = jax.jit(step, donate_argnums=0)

    def step(self, pictures: Any, shown: Any) -> float:
        self._state, loss = self._step(self._state, pictures, shown)
        return float(loss)

    def weights(self) -> Weights:
        return {name: np.asarray(a) for name, a in self._state[0].items()}


LEARNERS: dict[str, tuple[str | None, Callable[[tuple[int, ...], int], Learner]]] = {
    "Tilewright": (None, Tilewright),
    "PyTorch": ("torch", Torch),
    "JAX": ("jax", Jax),
}
"""By name: the package that a learner needs, and what makes it."""


def installed() -> list[str]:
    """The learners whose package is installed."""
    return [name for name, (package, _) in LEARNERS.items() if package is None or importlib.util.find_spec(package)]
