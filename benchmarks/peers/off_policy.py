"""Whole updates of SAC and TD3: compiled, and in eager PyTorch in the order of Stable-Baselines3."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np

from benchmarks.peers.learning import ACTION, OBSERVATION
from tilewright.measure.contender import Prepared

LR, GAMMA, TAU, DELAY = 3e-4, 0.99, 0.005, 2
FUSED, UNFUSED = {"fused": True}, {}


def batch(algorithm: str, rows: int) -> list[Any]:
    """Transitions, and normal numbers for the actor or the target's actions."""
    rng = np.random.default_rng(0)
    shapes = [(rows, OBSERVATION), (rows, ACTION), (rows, 1), (rows, OBSERVATION)]
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    arrays[1] = np.tanh(arrays[1])
    arrays.append((rng.random((rows, 1)) < 0.05).astype(np.float32))
    noises = 2 if algorithm == "sac" else 1
    return arrays + [rng.normal(size=(rows, ACTION)).astype(np.float32) for _ in range(noises)]


def agent(algorithm: str, width: int) -> Any:
    """Networks of two hidden layers, as Stable-Baselines3's."""
    import torch
    from torch import nn

    def layers(inputs: int, outputs: int) -> Any:
        return nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
        )

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = layers(OBSERVATION, width)[:-1]
            self.mean, self.log_std = nn.Linear(width, ACTION), nn.Linear(width, ACTION)

        def forward(self, obs: Any) -> Any:
            hidden = self.body(obs)
            return self.mean(hidden), self.log_std(hidden).clamp(-20, 2)

    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = layers(OBSERVATION, ACTION)

        def forward(self, obs: Any) -> Any:
            return torch.tanh(self.body(obs))

    class Critics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = layers(OBSERVATION + ACTION, 1), layers(OBSERVATION + ACTION, 1)

        def forward(self, obs: Any, actions: Any) -> Any:
            both = torch.cat([obs, actions], 1)
            return self.one(both), self.two(both)

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.actor, self.critic = Gaussian() if algorithm == "sac" else Direct(), Critics()
            self.target, self.actor_target = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
            self.log_alpha = nn.Parameter(torch.zeros(1))

    return Agent()


def limit_flops(algorithm: str, width: int, rows: int) -> float:
    """The operations of the products: a forward pass counts two a weight and row, its gradients by data and by weights
    as much each. SAC: the actor twice forward and once back; the critics three times forward, back by all once, by data
    once. TD3: the same with one actor pass less, and every second time what moves the actor, by one critic."""
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in agent(algorithm, width).named_children()}
    actor, critics = sizes["actor"], sizes["critic"]
    passes = 4 * actor + 6 * critics if algorithm == "sac" else actor + 4 * critics + (3 * actor + critics) / DELAY
    return 2 * rows * passes


def own(algorithm: str, width: int, rows: int) -> Prepared:
    import torch

    import tilewright as tw
    from tilewright.train import off_policy
    from tilewright.train.optimizers import Adam

    arrays = batch(algorithm, rows)
    start = time.perf_counter()
    recipe = getattr(off_policy, algorithm)(Adam(LR), gamma=GAMMA, tau=TAU, noise=True)
    step = tw.compile_step(agent(algorithm, width), **recipe, example=arrays)
    seconds = time.perf_counter() - start
    torch.set_num_threads(1)
    return Prepared(lambda: step(*arrays), lambda: dict(step.state_dict()), {"compile_seconds": seconds})


def eager(algorithm: str, width: int, rows: int, adam: dict[str, Any] | None = None) -> Prepared:
    import torch

    torch.set_num_threads(1)
    model = agent(algorithm, width)
    arrays = [torch.tensor(a) for a in batch(algorithm, rows)]
    update = (_sac if algorithm == "sac" else _td3)(model, FUSED if adam is None else adam)
    return Prepared(lambda: update(*arrays), lambda: {n: v.numpy() for n, v in model.state_dict().items()}, {})


def unfused(algorithm: str, width: int, rows: int) -> Prepared:
    """With Adam as Stable-Baselines3 makes it."""
    return eager(algorithm, width, rows, UNFUSED)


def _follow(target: Any, source: Any) -> None:
    import torch

    with torch.no_grad():
        for old, new in zip(target.parameters(), source.parameters(), strict=True):
            old.mul_(1 - TAU)
            torch.add(old, new, alpha=TAU, out=old)


def _mover(parameters: Any, adam: dict[str, Any]) -> Any:
    import torch

    optimizer = torch.optim.Adam(list(parameters), LR, **adam)

    def move(loss: Any) -> float:
        result: float = loss.item()  # which the library logs
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return result

    return move


def _sac(model: Any, adam: dict[str, Any]) -> Any:
    import torch
    from torch.nn import functional as F

    critic, actor = _mover(model.critic.parameters(), adam), _mover(model.actor.parameters(), adam)
    temperature = _mover([model.log_alpha], adam)

    def act(obs: Any, noise: Any) -> Any:
        mean, log_std = model.actor(obs)
        normal = torch.distributions.Normal(mean, log_std.exp())
        before = mean + normal.scale * noise
        actions = torch.tanh(before)
        return actions, normal.log_prob(before).sum(1) - torch.log(1 - actions**2 + 1e-6).sum(1)

    def update(obs: Any, actions: Any, rewards: Any, following: Any, done: Any, noise: Any, other: Any) -> None:
        new, log_prob = act(obs, noise)
        log_prob = log_prob.reshape(-1, 1)
        alpha = torch.exp(model.log_alpha.detach())
        temperature(-(model.log_alpha * (log_prob - ACTION).detach()).mean())
        with torch.no_grad():
            then, then_log_prob = act(following, other)
            least, _ = torch.min(torch.cat(model.target(following, then), dim=1), dim=1, keepdim=True)
            wanted = rewards + (1 - done) * GAMMA * (least - alpha * then_log_prob.reshape(-1, 1))
        critic(0.5 * sum(F.mse_loss(values, wanted) for values in model.critic(obs, actions)))
        least, _ = torch.min(torch.cat(model.critic(obs, new), dim=1), dim=1, keepdim=True)
        actor((alpha * log_prob - least).mean())
        _follow(model.target, model.critic)

    return update


def _td3(model: Any, adam: dict[str, Any]) -> Any:
    import torch
    from torch.nn import functional as F

    critic, actor = _mover(model.critic.parameters(), adam), _mover(model.actor.parameters(), adam)
    count = 0

    def update(obs: Any, actions: Any, rewards: Any, following: Any, done: Any, noise: Any) -> None:
        nonlocal count
        count += 1
        with torch.no_grad():
            then = (model.actor_target(following) + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
            least, _ = torch.min(torch.cat(model.target(following, then), dim=1), dim=1, keepdim=True)
            wanted = rewards + (1 - done) * GAMMA * least
        critic(sum(F.mse_loss(values, wanted) for values in model.critic(obs, actions)))
        if count % DELAY == 0:
            actor(-model.critic.one(torch.cat([obs, model.actor(obs)], 1)).mean())
            _follow(model.target, model.critic)
            _follow(model.actor_target, model.actor)

    return update
