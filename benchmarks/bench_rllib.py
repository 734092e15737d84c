"""RLlib's PPO with compiled updates and compiled acting: `python -m benchmarks.bench_rllib`. Needs the extra `rl`.

Three algorithms of the same settings take turns in one process on one thread, an iteration each: RLlib's own, one whose
learner is compiled, and one whose runner is, too. Environments, episodes, advantages and metrics are RLlib's in all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks import harness
from tilewright.rl.rllib import TilewrightEnvRunner
from tilewright.rl.rllib_learner import TilewrightPPOLearner

TASKS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "CartPole-v1, 2 x 64": ("CartPole-v1", [64, 64], {"minibatch_size": 128, "num_epochs": 10}),
    "Pendulum-v1, 2 x 256": ("Pendulum-v1", [256, 256], {"minibatch_size": 256, "num_epochs": 10}),
}
"""Environment, widths of the networks, settings of an update of 2,048 rows."""
KINDS = ("RLlib", "compiled learner", "compiled learner and runner")
HEADER = ["PPO", "s an iteration", *(f"{kind}: times faster [95 %]" for kind in KINDS[1:])]


def config_of(task: str, kind: str) -> Any:
    """An algorithm that acts and learns in this process."""
    environment, widths, training = TASKS[task]
    config = PPOConfig().environment(environment).debugging(seed=0)
    config = config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=widths))
    runner = {"env_runner_cls": TilewrightEnvRunner} if kind == KINDS[2] else {}
    config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=8, **runner)
    if kind != KINDS[0]:
        config = config.learners(learner_class=TilewrightPPOLearner)
    return config.training(lr=3e-4, train_batch_size=2048, grad_clip=0.5, grad_clip_by="global_norm", **training)


def row(task: str, rounds: int) -> list[str]:
    """Seconds of RLlib's iterations, and how many times faster ours are."""
    algorithms = {kind: config_of(task, kind).build_algo() for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        for turn in range(rounds + 1):
            for kind, algorithm in algorithms.items():
                began = time.perf_counter()
                algorithm.train()
                if turn:  # the first one compiles
                    seconds[kind].append(time.perf_counter() - began)
    finally:
        for algorithm in algorithms.values():
            algorithm.stop()
    own = np.asarray(seconds[KINDS[0]])
    faster = [str(harness.bootstrap(own / np.asarray(seconds[kind]))) for kind in KINDS[1:]]
    return [task, f"{statistics.median(own):.2f}", *faster]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rllib", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for task in TASKS:
        rows.append(row(task, options.rounds))
        print(*rows[-1], sep="  ", flush=True)
    if not options.no_report:
        title = "RLlib's PPO with compiled updates and acting, one thread"
        harness.write_report("rllib", title, {"rows": rows}, harness.markdown_table(HEADER, rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
