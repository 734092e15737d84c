"""PPO on CartPole where actor and learner are both compiled, in one process and one file. Needs PyTorch.

    python examples/compiled_ppo.py             # rollouts by a compiled policy, updates by a compiled step
    python examples/compiled_ppo.py --eager     # the same in eager PyTorch, with its fused Adam

The learner's parameters are one vector; after each update the policy packs its own weights from there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw
from tilewright.train import losses

Array = np.ndarray[Any, Any]
FIELDS = ("obs", "actions", "logprobs", "values", "rewards", "ends")


class CartPole:
    """Many poles at once, by the equations of Barto, Sutton and Anderson (1983) as Gymnasium's CartPole-v1 has them:
    one reward a step, 500 steps at most, a new pole where one has fallen."""

    def __init__(self, count: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (count, 4))
        self.age = np.zeros(count, int)

    @property
    def obs(self) -> Array:
        return self.state.astype(np.float32)

    def step(self, actions: Array) -> tuple[Array, Array]:
        """The poles that have fallen, and those that were taken away at their 500th step; new ones stand there."""
        x, v, angle, turn = self.state.T
        force = np.where(actions == 1, 10.0, -10.0)
        cos, sin = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * turn**2 * sin) / 1.1
        spin = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed = push - 0.05 * spin * cos / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * turn, turn + 0.02 * spin], 1)
        self.age += 1
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 12 * np.pi / 180)
        deferred = (self.age >= 500) & ~fallen
        new = fallen | deferred
        self.state[new] = self.rng.uniform(-0.05, 0.05, (new.sum(), 4))
        self.age[new] = 0
        return fallen, deferred


class Agent(nn.Module):
    """Logits [n, 2] and values [n] of observations [n, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self.tower(2), self.tower(1)

    @staticmethod
    def tower(outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    def forward(self, obs: Any) -> Any:
        return self.actor(obs), self.critic(obs).squeeze(1)


def loss_of(agent: Any, obs: Any, actions: Any, logprobs: Any, advantages: Any, targets: Any) -> Any:
    """PPO's, as Stable-Baselines3 has it."""
    logits, values = agent(obs)
    policy = losses.ppo(losses.categorical_log_prob(actions, logits), logprobs, advantages)
    return policy + 0.5 * losses.mse(values, targets)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--horizon", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--trace", type=float, default=0.8, help="lambda of the advantages")
    return parser.parse_args(arguments)


Act = Callable[[Array], tuple[Array, Array]]
Learn = Callable[..., None]


def compiled(agent: Agent, options: argparse.Namespace, example: list[Array]) -> tuple[Act, Learn, Callable[[], None]]:
    """Three calls: one gives logits and values, one takes a step, one makes the actor follow the learner."""
    step = tw.compile_step(agent, loss_of, tw.train.Adam(options.rate, eps=1e-5), example, clip=0.5)
    policy = tw.compile(agent, example[0][: options.envs])

    def learn(*batch: Array) -> None:
        step(*batch)

    return policy, learn, lambda: policy.update(step.weights)


def eager(agent: Agent, options: argparse.Namespace, example: list[Array]) -> tuple[Act, Learn, Callable[[], None]]:
    optimizer = torch.optim.Adam(agent.parameters(), options.rate, eps=1e-5, fused=True)

    def act(obs: Array) -> tuple[Array, Array]:
        with torch.no_grad():
            logits, values = agent(torch.from_numpy(obs))
        return logits.numpy(), values.numpy()

    def learn(*batch: Array) -> None:
        loss = loss_of(agent, *map(torch.from_numpy, batch))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()

    return act, learn, lambda: None


def train(options: argparse.Namespace) -> dict[str, float]:
    """The mean return of the last 100 episodes, and the seconds of rollouts and of updates."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng, envs = np.random.default_rng(options.seed), CartPole(options.envs, options.seed)
    rows, size = options.batch, (options.horizon, options.envs)
    example = [np.zeros((rows, 4), np.float32), np.zeros(rows, np.int64), *np.zeros((3, rows), np.float32)]
    act, learn, follow = (eager if options.eager else compiled)(Agent(), options, example)
    returns: list[float] = []
    seconds = {"rollouts": 0.0, "updates": 0.0}
    for _ in range(options.steps // (options.horizon * options.envs)):
        start = time.perf_counter()
        batch = rollout(envs, act, size, rng, options, returns)
        now = time.perf_counter()
        for _ in range(options.epochs):
            order = rng.permutation(len(batch[0]))
            for first in range(0, len(order) - rows + 1, rows):
                chosen = order[first : first + rows]
                learn(*(array[chosen] for array in batch))
        follow()
        seconds["rollouts"] += now - start
        seconds["updates"] += time.perf_counter() - now
    return {"return": float(np.mean(returns[-100:])), **seconds}


def rollout(
    envs: CartPole, act: Act, size: tuple[int, int], rng: Any, options: argparse.Namespace, returns: list[float]
) -> list[Array]:
    """Observations, actions, their log probabilities, advantages and targets of the values, a row each."""
    retained: dict[str, list[Array]] = {name: [] for name in FIELDS}
    for _ in range(size[0]):
        obs = envs.obs
        logits, values = act(obs)
        logits = logits - logits.max(1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        actions = (logs + rng.gumbel(size=logs.shape)).argmax(1)
        age = envs.age.copy()
        fallen, deferred = envs.step(actions)
        returns += (age[fallen | deferred] + 1.0).tolist()
        # A pole that was taken away would have gone on: its value stands for what would have come.
        rewards = 1.0 + np.where(deferred, options.gamma * values, 0)
        chosen = logs[np.arange(len(actions)), actions]
        for name, array in zip(FIELDS, (obs, actions, chosen, values, rewards, fallen | deferred), strict=True):
            retained[name].append(np.array(array))
    _, following = act(envs.obs)
    data = {name: np.stack(arrays) for name, arrays in retained.items()}
    advantages, carried = np.zeros(size), np.zeros(size[1])
    for t in reversed(range(size[0])):
        more = options.gamma * ~data["ends"][t]
        carried = data["rewards"][t] + more * following - data["values"][t] + more * options.trace * carried
        advantages[t], following = carried, data["values"][t]
    targets = advantages + data["values"]
    floats = (data["logprobs"], advantages, targets)
    flat = [data["obs"].reshape(-1, 4), data["actions"].reshape(-1)]
    return [*flat, *(array.reshape(-1).astype(np.float32) for array in floats)]


if __name__ == "__main__":
    figures = train(parse())
    print(
        f"return {figures['return']:.1f}, rollouts {figures['rollouts']:.1f} s, updates {figures['updates']:.1f} s "
        f"with their compilation left out"
    )
