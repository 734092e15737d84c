"""Policies trained here in fewer bits and compressed, by their returns: `make bench-policies`, or
`python -m benchmarks.bench_policies`. Needs Stable-Baselines3.

Three policies are trained; each acts for some episodes in f32, in int8 (calibrated, and by ranges of each row), with
weights of 4 bits, and pruned with shared values, from the same seeds of the environment. A permutation test says how
often chance alone gives a difference of mean returns as large as that to f32: below 0.05 the returns are others.

A compressed policy follows the original's actions in states that the policy itself and stretches of random actions
lead to: where a good policy alone acts, nearly all states are the goal's, and a pruned one never learns the way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from tilewright.compression.recipe import Recipe

SHUFFLES = 20_000
RECIPE = Recipe(prune=0.75, stages=3, values=16, epochs=30, rate=2e-3)
EPISODES, ROWS = 80, 64
"""Episodes whose states are samples, and states of a sample."""
FIRST_SEED = 10_000
"""The first of the seeds of these, of which none is one of the episodes that count."""
STRETCH = (5, 40)
"""The least and the greatest number of steps with one random action, or without."""
Act = Callable[[Any], Any]


@dataclass(frozen=True)
class Task:
    """A policy: its algorithm, environment, steps of training, and what the algorithm is told."""

    algorithm: Any
    environment: str
    steps: int
    options: dict[str, Any]
    environments: int = 1

    @property
    def name(self) -> str:
        return f"{self.algorithm.__name__} {self.environment}"


WIDE = {"net_arch": [128, 128]}
TASKS = (
    Task(PPO, "CartPole-v1", 40_000, {"n_steps": 512, "policy_kwargs": WIDE}),
    Task(
        A2C,
        "CartPole-v1",
        80_000,
        {"n_steps": 16, "learning_rate": 1e-3, "gae_lambda": 0.95, "policy_kwargs": WIDE},
        environments=8,
    ),
    Task(SAC, "Pendulum-v1", 16_000, {"learning_rate": 1e-3, "policy_kwargs": WIDE}),
)


def actor_of(model: Any) -> nn.Module:
    """The deterministic part of a policy: from observations to logits, or to the squashed mean of actions."""
    policy = model.policy.eval()
    if isinstance(model, SAC):
        return nn.Sequential(policy.actor.latent_pi, policy.actor.mu, nn.Tanh()).eval()
    return nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net).eval()


def returns(task: Task, act: Act, episodes: int) -> np.ndarray:
    """The return of each episode, whose seeds are its number."""
    env = gymnasium.make(task.environment)
    totals = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            observation, reward, done = stepped(env, np.asarray(act(_row(observation)))[0])
            total += reward
        totals.append(total)
    return np.asarray(totals)


def states(task: Task, act: Act, episodes: int) -> list[np.ndarray]:
    """Observations of episodes in which stretches of the policy and of one random action alternate, shuffled."""
    env, rng = gymnasium.make(task.environment), np.random.default_rng(1)
    rows = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=FIRST_SEED + seed)
        done, left, chosen = False, 0, None
        while not done:
            if left == 0:
                left = int(rng.integers(*STRETCH))
                chosen = rng.uniform(-1, 1, np.shape(act(_row(observation)))[1:]) if chosen is None else None
            rows.append(_row(observation))
            observation, _, done = stepped(env, np.asarray(act(rows[-1]))[0] if chosen is None else chosen)
            left -= 1
    whole = np.concatenate(rows)[rng.permutation(len(rows))]
    return [whole[k : k + ROWS] for k in range(0, len(whole) - ROWS + 1, ROWS)]


def stepped(env: Any, y: np.ndarray) -> tuple[Any, float, bool]:
    """The next observation after a policy's output, the reward, whether the episode is over."""
    discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    observation, reward, ended, cut, _ = env.step(int(y.argmax()) if discrete else y * env.action_space.high)
    return observation, float(reward), ended or cut


def _row(observation: Any) -> np.ndarray:
    return np.asarray(observation, np.float32)[None]


def chance(a: np.ndarray, b: np.ndarray) -> float:
    """The share of random divisions of all returns in two whose means differ as much as those of `a` and `b`."""
    rng, both = np.random.default_rng(0), np.concatenate([a, b])
    seen = abs(a.mean() - b.mean()) - 1e-9
    shuffled = rng.permuted(np.broadcast_to(both, (SHUFFLES, both.size)), axis=1)
    differences = np.abs(shuffled[:, : a.size].mean(1) - shuffled[:, a.size :].mean(1))
    return float((np.count_nonzero(differences >= seen) + 1) / (SHUFFLES + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of training")
    parser.add_argument("--tasks", nargs="*", default=None, help="those whose names begin so")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for task in (t for t in TASKS if args.tasks is None or t.name.startswith(tuple(args.tasks))):
        environment = make_vec_env(task.environment, task.environments, seed=0)
        model = task.algorithm("MlpPolicy", environment, seed=0, device="cpu", **task.options)
        model.learn(int(task.steps * args.share))
        actor = actor_of(model)
        exact = tw.compile(actor, (torch.zeros(32, *model.observation_space.shape),), dynamic="auto")
        seen = states(task, exact, EPISODES)
        example = (torch.from_numpy(seen[0]),)
        kinds: dict[str, Any] = {
            "int8, calibrated": lambda a=actor, e=example, s=seen: tw.quantize(
                a, e, calibrate=s, precision="int8", max_drop=9
            ),
            "int8, a range a row": lambda a=actor, e=example: tw.compile(a, e, precision="int8"),
            "int4w": lambda a=actor, e=example: tw.compile(a, e, precision="int4w"),
            "compressed": lambda a=actor, e=example, s=seen: tw.compress(a, e, calibrate=s, recipe=RECIPE, max_drop=9),
        }
        base = returns(task, exact, args.episodes)
        rows.append([task.name, "f32", f"{base.mean():.1f} ± {base.std():.1f}", "-", "-"])
        print(rows[-1], flush=True)
        for name, make in kinds.items():
            other = make()
            got = returns(task, other, args.episodes)
            smaller = f"{other.report.ratio:.1f}" if name == "compressed" else "-"
            rows.append([task.name, name, f"{got.mean():.1f} ± {got.std():.1f}", f"{chance(base, got):.3f}", smaller])
            print(rows[-1], flush=True)
    text = markdown_table(["policy", "type", "return", "p of the same returns", "times smaller"], rows)
    text += f"\n\n{args.episodes} episodes each. Compressed: {RECIPE}."
    write_markdown("policies", "Returns of policies in fewer bits, by permutation test", text)


if __name__ == "__main__":
    main()
