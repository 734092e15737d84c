"""One PPO update in each framework: loss as Stable-Baselines3's, gradients, clipping by norm, Adam."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tilewright.measure.contender import Prepared

OBSERVATION, ACTION = 17, 6
LR, EPS, CLIP, RANGE = 3e-4, 1e-5, 0.5, 0.2
HALF_LOG_TWO_PI = 0.9189385332046727


def batch(rows: int) -> list[Any]:
    """Observations, actions, their old log probabilities, advantages, returns."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((rows, OBSERVATION), (rows, ACTION), *[(rows,)] * 3)]
    arrays[2] -= 8
    return arrays


def weights(width: int) -> dict[str, Any]:
    """A policy and a value function of two hidden layers each, as Stable-Baselines3's."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {"log_std": (ACTION,)}
    for net, out in (("pi", ACTION), ("vf", 1)):
        for k, (i, o) in enumerate(((OBSERVATION, width), (width, width), (width, out))):
            shapes |= {f"{net}{k}.weight": (o, i), f"{net}{k}.bias": (o,)}
    return {n: (rng.normal(size=s) / np.sqrt(s[-1])).astype(np.float32) for n, s in shapes.items()}


def _module(width: int) -> Any:
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_std = nn.Parameter(torch.zeros(ACTION))
            for net, out in (("pi", ACTION), ("vf", 1)):
                for k, (i, o) in enumerate(((OBSERVATION, width), (width, width), (width, out))):
                    setattr(self, f"{net}{k}", nn.Linear(i, o))

        def forward(self, x: Any) -> Any:
            mean = self.pi2(torch.tanh(self.pi1(torch.tanh(self.pi0(x)))))
            return mean, self.vf2(torch.tanh(self.vf1(torch.tanh(self.vf0(x)))))[:, 0]

    module = Policy()
    module.load_state_dict({name: torch.tensor(value) for name, value in weights(width).items()})
    return module


def torch_loss(model: Any, obs: Any, action: Any, old: Any, advantage: Any, returns: Any) -> Any:
    import torch

    mean, value = model(obs)
    z = (action - mean) / model.log_std.exp()
    log_prob = (-0.5 * z * z - model.log_std - HALF_LOG_TWO_PI).sum(1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - old).exp()
    policy = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - RANGE, 1 + RANGE)).mean()
    return policy + 0.5 * ((returns - value) ** 2).mean()


def own(width: int, rows: int) -> Prepared:
    import torch

    import tilewright as tw
    from tilewright.train.optimizers import Adam

    arrays = batch(rows)
    start = time.perf_counter()
    step = tw.compile_step(_module(width), torch_loss, Adam(LR, eps=EPS), arrays, clip=CLIP)
    seconds = time.perf_counter() - start
    torch.set_num_threads(1)
    return Prepared(lambda: step(*arrays), lambda: dict(step.state_dict()), {"compile_seconds": seconds})


def eager(width: int, rows: int) -> Prepared:
    import torch

    torch.set_num_threads(1)
    module = _module(width)
    optimizer = torch.optim.Adam(module.parameters(), LR, eps=EPS, fused=True)
    arrays = [torch.tensor(a) for a in batch(rows)]

    def call() -> None:
        optimizer.zero_grad()
        torch_loss(module, *arrays).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()

    return Prepared(call, lambda: {n: v.numpy() for n, v in module.state_dict().items()}, {})


def jax(width: int, rows: int) -> Prepared:
    """The whole step in one `jit`, its arguments donated."""
    import jax as j
    import jax.numpy as jnp

    def loss(p: Any, obs: Any, action: Any, old: Any, advantage: Any, returns: Any) -> Any:
        def net(name: str) -> Any:
            h = obs
            for k in range(3):
                h = h @ p[f"{name}{k}.weight"].T + p[f"{name}{k}.bias"]
                h = jnp.tanh(h) if k < 2 else h
            return h

        z = (action - net("pi")) / jnp.exp(p["log_std"])
        log_prob = (-0.5 * z * z - p["log_std"] - HALF_LOG_TWO_PI).sum(1)
        scaled = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
        ratio = jnp.exp(log_prob - old)
        policy = -jnp.minimum(scaled * ratio, scaled * jnp.clip(ratio, 1 - RANGE, 1 + RANGE)).mean()
        return policy + 0.5 * ((returns - net("vf")[:, 0]) ** 2).mean()

    def step(state: Any, *args: Any) -> Any:
        p, m, v, t = state
        value, g = j.value_and_grad(loss)(p, *args)
        norm = jnp.sqrt(sum((x**2).sum() for x in g.values()))
        share, t = jnp.minimum(1.0, CLIP / (norm + 1e-6)), t + 1
        first, second = 1 - 0.9**t, 1 - 0.999**t
        g = {n: x * share for n, x in g.items()}
        m = {n: 0.9 * m[n] + 0.1 * x for n, x in g.items()}
        v = {n: 0.999 * v[n] + 0.001 * x * x for n, x in g.items()}
        p = {n: p[n] - LR / first * m[n] / (jnp.sqrt(v[n] / second) + EPS) for n in p}
        return (p, m, v, t), value

    p = {n: jnp.asarray(a) for n, a in weights(width).items()}
    zeros = {n: jnp.zeros_like(a) for n, a in p.items()}
    retained = [(p, zeros, {n: jnp.zeros_like(a) for n, a in p.items()}, jnp.float32(0))]
    compiled = j.jit(step, donate_argnums=0)
    arrays = [jnp.asarray(a) for a in batch(rows)]

    def call() -> None:
        retained[0], value = compiled(retained[0], *arrays)
        value.block_until_ready()

    return Prepared(call, lambda: {n: np.asarray(a) for n, a in retained[0][0].items()}, {"version": j.__version__})
