"""Stable-Baselines3 with and without Tilewright: `python -m benchmarks.bench_rl [GROUP ...]`. Needs the extra `rl`.

Groups: inference (a rollout's forward pass, eager and accelerated in turns, in one process), learning (PPO on CartPole,
several seeds each; takes minutes, and goes on where it was stopped). Rows are kept in results/rl.json by group, so a
run of one group replaces its rows and leaves the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks import harness, models
from tilewright.rl import sb3

REPORT = "rl"
RUNS = models.ROOT / "build" / "rl"
# The library's own tuned settings for this environment (rl-baselines3-zoo), at a constant rate.
CARTPOLE = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}
ENVIRONMENTS = 8
POINTS = 50

_SPEED_NOTE = """\
`forward` gives actions, values and log-probabilities of a batch of observations, sampling included; `predict` takes
NumPy arrays and gives actions. Environments of `collect_rollouts` do nothing. Turns alternate in one process; PyTorch
and Tilewright use the same number of threads.
"""
_LEARNING_NOTE = """\
A large p says that seeds alone make differences as large as that between the two.

![Learning curves](rl.png)
"""


class Still(gym.Env[Any, Any]):
    """Random observations that cost nothing: what is timed is the policy."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space = observation
        self.action_space = action
        self._obs = observation.sample()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}


POLICIES: dict[str, tuple[str, Any, Any]] = {
    "M64": ("MlpPolicy", spaces.Box(-1, 1, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)),
    "M64, discrete": ("MlpPolicy", spaces.Box(-1, 1, (17,), np.float32), spaces.Discrete(6)),
    "NAT": ("CnnPolicy", spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)),
}


# -- inference
# -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one call of eager PyTorch and of Tilewright, and how many times faster that is."""

    policy: str
    call: str
    environments: int
    threads: int
    eager: float
    tilewright: float
    ratio: harness.Interval


def race(eager: Callable[[], Any], ours: Callable[[], Any], rounds: int, seconds: float = 0.01) -> tuple[Any, ...]:
    """Medians of both and the ratio of turns that follow each other."""
    counts, times = [], []
    for call in (eager, ours):
        for _ in range(5):
            call()
        started = time.perf_counter()
        for _ in range(5):
            call()
        counts.append(max(1, int(5 * seconds / (time.perf_counter() - started))))
    for _ in range(rounds):
        turn = []
        for call, count in zip((eager, ours), counts, strict=True):
            call()  # the other's data leave the caches
            started = time.perf_counter()
            for _ in range(count):
                call()
            turn.append((time.perf_counter() - started) / count)
        times.append(turn)
    table = np.asarray(times)
    return *np.median(table, 0).tolist(), harness.bootstrap(table[:, 0] / table[:, 1])


def pair(policy: str, count: int, threads: int) -> tuple[Any, Any]:
    """A model twice, the second accelerated."""
    kind, observation, action = POLICIES[policy]
    created = []
    for _ in range(2):
        env = make_vec_env(lambda: Still(observation, action), n_envs=count)
        created.append(PPO(kind, env, n_steps=8, batch_size=8 * count, device="cpu", seed=0))
        created[-1].policy.set_training_mode(False)
    sb3.accelerate(created[1], threads=threads)
    return created[0], created[1]


def inference(options: argparse.Namespace, say: Callable[[str], None]) -> list[Speed]:
    rows = []
    for threads, policy, count in itertools.product((1, 2), POLICIES, (1, ENVIRONMENTS, 32)):
        if threads > 1 and (count != ENVIRONMENTS or not policy.startswith("NAT")):
            continue  # small calls gain nothing from threads, on either side
        torch.set_num_threads(threads)
        say(f"{policy}, {count} environments, {threads} threads")
        eager, ours = pair(policy, count, threads)
        obs = np.stack([POLICIES[policy][1].sample() for _ in range(count)])
        tensor = torch.as_tensor(obs)
        with torch.no_grad():
            result = race(partial(eager.policy, tensor), partial(ours.policy, tensor), options.rounds)
        rows.append(Speed(policy, "forward", count, threads, *result))
        if count == ENVIRONMENTS and threads == 1:
            result = race(partial(eager.predict, obs), partial(ours.predict, obs), options.rounds)
            rows.append(Speed(policy, "predict", count, threads, *result))
            rows.append(rollouts(policy, eager, ours, options.rounds))
    return rows


def rollouts(policy: str, eager: Any, ours: Any, rounds: int) -> Speed:
    """All of `collect_rollouts` but the environments' own work, a step."""
    calls = []
    for model in (eager, ours):
        _, callback = model._setup_learn(1)

        def collect(model: Any = model, callback: Any = callback) -> None:
            model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)

        calls.append(collect)
    slow, fast, ratio = race(calls[0], calls[1], max(10, rounds // 3), 0.02)
    steps = eager.n_steps
    return Speed(policy, "a step of collect_rollouts", ENVIRONMENTS, 1, slow / steps, fast / steps, ratio)


def speed_text(rows: list[Any]) -> str:
    header = ["policy", "call", "environments", "threads", "eager µs", "Tilewright µs", "times faster [95 %]"]
    cells = []
    for row in rows:
        r = row if isinstance(row, dict) else dataclasses.asdict(row)
        ratio = harness.Interval(**r["ratio"])
        times = [f"{r[name] * 1e6:.0f}" for name in ("eager", "tilewright")]
        cells.append([r["policy"], r["call"], r["environments"], r["threads"], *times, ratio])
    return f"## A rollout's forward pass\n\n{harness.markdown_table(header, cells)}\n{_SPEED_NOTE}"


# -- learning
# ------------------------------------------------------------------------------------------------------------


class Curve(BaseCallback):
    """The mean return of the last 100 episodes, at even distances."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._every = steps / POINTS
        self.points: list[float] = []

    def _on_step(self) -> bool:
        while self.num_timesteps >= (len(self.points) + 1) * self._every:
            results = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            self.points.append(float(np.mean(results)) if results else 0.0)
        return True


def train(accelerated: bool, seed: int, steps: int) -> dict[str, Any]:
    """One run, or what is on disk of it."""
    path = RUNS / f"cartpole-{'tilewright' if accelerated else 'eager'}-{seed}-{steps}.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored
    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS, seed=seed)
    model = PPO("MlpPolicy", env, device="cpu", seed=seed, **CARTPOLE)
    handle = sb3.accelerate(model) if accelerated else None
    model.set_random_seed(seed)
    curve = Curve(steps)
    started = time.perf_counter()
    model.learn(steps, callback=curve)
    seconds = time.perf_counter() - started
    versions = handle.version if handle is not None else 0
    if handle is not None:
        handle.restore()
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", n_envs=4, seed=1000 + seed), n_eval_episodes=20)
    run = {"accelerated": accelerated, "seed": seed, "steps": steps, "curve": curve.points, "final": float(mean)}
    run |= {"seconds": seconds, "versions": versions}
    RUNS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run) + "\n")
    return run


def learning(options: argparse.Namespace, say: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    for seed, accelerated in itertools.product(range(options.seeds), (False, True)):
        say(f"CartPole, seed {seed}, {'Tilewright' if accelerated else 'eager'}")
        rows.append(train(accelerated, seed, options.steps))
    return rows


def learning_text(rows: list[dict[str, Any]]) -> str:
    runs = {kind: [r for r in rows if r["accelerated"] == kind] for kind in (False, True)}
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        "mean return over the whole training": lambda r: float(np.mean(r["curve"])),
        "mean return in its second half": lambda r: float(np.mean(r["curve"][len(r["curve"]) // 2 :])),
        "return of the trained policy (20 episodes)": lambda r: r["final"],
    }
    cells = []
    for name, measure in measures.items():
        one, two = (np.asarray([measure(r) for r in runs[kind]]) for kind in (False, True))
        spread = [f"{v.mean():.1f} ± {v.std(ddof=1):.1f}" for v in (one, two)]
        cells.append([name, *spread, f"{harness.exact_p(one, two):.2f}"])
    header = ["CartPole-v1", "eager", "Tilewright", "p (permutations)"]
    what = f"PPO, {ENVIRONMENTS} environments, {rows[0]['steps']:,} steps, {len(runs[True])} seeds each"
    table = harness.markdown_table(header, cells)
    return f"## Learning\n\n{what}, mean ± standard deviation over seeds:\n\n{table}\n{_LEARNING_NOTE}"


def plot(rows: list[dict[str, Any]]) -> None:
    """Curves of all seeds and their means."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for kind, colour, label in ((False, "tab:gray", "eager PyTorch"), (True, "tab:orange", "Tilewright")):
        curves = np.asarray([r["curve"] for r in rows if r["accelerated"] == kind])
        at = np.linspace(0, rows[0]["steps"], curves.shape[1] + 1)[1:]
        for curve in curves:
            axes.plot(at, curve, color=colour, alpha=0.25, linewidth=1)
        axes.plot(at, curves.mean(0), color=colour, linewidth=2, label=f"{label}, mean of {len(curves)}")
    axes.set_xlabel("steps")
    axes.set_ylabel("return (last 100 episodes)")
    axes.set_title("PPO on CartPole-v1")
    axes.legend()
    figure.tight_layout()
    figure.savefig(harness.RESULTS / f"{REPORT}.png", dpi=120)


# -- the report
# ----------------------------------------------------------------------------------------------------------

GROUPS: dict[str, tuple[Callable[..., list[Any]], Callable[[list[Any]], str]]] = {
    "inference": (inference, speed_text),
    "learning": (learning, learning_text),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rl", description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each in `inference`")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"there are no groups {sorted(unknown)}")
    console = harness.console()
    path = harness.RESULTS / f"{REPORT}.json"
    rows: dict[str, Any] = json.loads(path.read_text())["rows"] if path.exists() else {}
    with console.status("") as status:
        for name in options.groups or GROUPS:
            result = GROUPS[name][0](options, status.update)
            rows[name] = [row if isinstance(row, dict) else dataclasses.asdict(row) for row in result]
    text = "\n".join(as_text(rows[name]) for name, (_, as_text) in GROUPS.items() if name in rows)
    console.print(text, markup=False, highlight=False)
    if not options.no_report:
        harness.write_report(REPORT, "Stable-Baselines3 with Tilewright", rows, text)
        if "learning" in rows:
            plot(rows["learning"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
