"""Stable-Baselines3 with its updates on compiled steps: `python -m benchmarks.bench_rl_updates`. Needs the extra `rl`.

Whole trainings, eager and accelerated with the same seeds, in turns in one process on one thread: how long `learn`
takes, and what is learned. A run takes seconds to minutes; what is finished is kept, so that the command goes on where
it was stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks import harness
from benchmarks.bench_rl import CARTPOLE, RUNS, Curve
from tilewright.rl import sb3

REPORT = "rl-updates"
PENDULUM = {"learning_rate": 1e-3, "batch_size": 64, "learning_starts": 500, "policy_kwargs": {"net_arch": [64, 64]}}
TASKS: dict[str, tuple[Any, str, int, int, dict[str, Any]]] = {
    "PPO, CartPole-v1": (PPO, "CartPole-v1", 8, 50_000, CARTPOLE),
    "SAC, Pendulum-v1": (SAC, "Pendulum-v1", 1, 5_000, PENDULUM),
}
"""Algorithm, environment, how many of them, steps, settings."""

_NOTE = """\
`learn` is its wall time, without what is compiled before; medians over seeds and of the ratios of runs with the same
seed. CartPole's settings are those of rl-baselines3-zoo at a constant rate, Pendulum's networks have 64 units a layer
and batches 64 rows. Both are Stable-Baselines3 in one process on one core; environments, buffers and logs are its own
on both sides. A large p says that seeds alone make differences as large as that between the two.
"""


def train(task: str, accelerated: bool, seed: int) -> dict[str, Any]:
    """One run, or what is on disk of it."""
    kind, environment, count, steps, options = TASKS[task]
    path = RUNS / f"updates-{environment}-{'tilewright' if accelerated else 'eager'}-{seed}-{steps}.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored
    torch.set_num_threads(1)
    env = make_vec_env(environment, n_envs=count, seed=seed)
    model = kind("MlpPolicy", env, device="cpu", seed=seed, **json.loads(json.dumps(options)))
    started = time.perf_counter()
    handle = sb3.accelerate(model, updates=True) if accelerated else None
    compiling = time.perf_counter() - started
    model.set_random_seed(seed)
    curve = Curve(steps)
    started = time.perf_counter()
    model.learn(steps, callback=curve)
    seconds = time.perf_counter() - started
    if handle is not None:
        handle.restore()
    mean, _ = evaluate_policy(model, make_vec_env(environment, n_envs=4, seed=1000 + seed), n_eval_episodes=20)
    run = {"task": task, "accelerated": accelerated, "seed": seed, "curve": curve.points, "final": float(mean)}
    run |= {"seconds": seconds, "compiling": compiling}
    RUNS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run) + "\n")
    return run


def times(task: str, eager: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[str]:
    one, two = (np.asarray([r["seconds"] for r in runs]) for runs in (eager, ours))
    ratio = harness.bootstrap(one / two)
    compiling = float(np.median([r["compiling"] for r in ours]))
    return [task, f"{np.median(one):.1f}", f"{np.median(two):.1f}", str(ratio), f"{compiling:.1f}"]


def returns(task: str, eager: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[list[str]]:
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        "whole training": lambda r: float(np.mean(r["curve"])),
        "its second half": lambda r: float(np.mean(r["curve"][len(r["curve"]) // 2 :])),
        "trained policy (20 episodes)": lambda r: r["final"],
    }
    rows = []
    for name, measure in measures.items():
        one, two = (np.asarray([measure(r) for r in runs]) for runs in (eager, ours))
        spread = [f"{v.mean():.1f} ± {v.std(ddof=1):.1f}" for v in (one, two)]
        rows.append([task, name, *spread, f"{harness.exact_p(one, two):.2f}"])
    return rows


def text(runs: list[dict[str, Any]]) -> str:
    timed, learned = [], []
    for task in dict.fromkeys(r["task"] for r in runs):
        eager, ours = ([r for r in runs if r["task"] == task and r["accelerated"] == kind] for kind in (False, True))
        timed.append(times(task, eager, ours))
        learned += returns(task, eager, ours)
    seeds = len({r["seed"] for r in runs})
    first = harness.markdown_table(["training", "eager s", "Tilewright s", "times faster [95 %]", "compiling s"], timed)
    second = harness.markdown_table(["training", "mean return of", "eager", "Tilewright", "p (permutations)"], learned)
    return f"## `learn`\n\n{first}\n## What is learned\n\n{seeds} seeds each, ± over seeds:\n\n{second}\n{_NOTE}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rl_updates", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=list(TASKS), help="one training; prints only")
    options = parser.parse_args(arguments)
    runs = []
    for task in [options.only] if options.only else TASKS:
        for seed in range(options.seeds):
            for accelerated in (False, True):
                runs.append(train(task, accelerated, seed))
                print(task, seed, accelerated, f"{runs[-1]['seconds']:.1f} s, {runs[-1]['final']:.1f}", flush=True)
    result = text(runs)
    print(result)
    if not options.only:
        harness.write_report(REPORT, "Stable-Baselines3 with compiled updates", {"runs": runs}, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
