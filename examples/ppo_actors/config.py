"""The configuration of a run: one frozen record that the learner and every actor get."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """A run of the example. Times are in seconds, `steps` counts steps of single environments."""

    env: str = "CartPole-v1"
    eager: bool = False
    """PyTorch in the actors instead of a store."""
    actors: int = 4
    envs: int = 16
    """Environments that an actor steps at once, which is the batch of its calls."""
    horizon: int = 32
    """Steps in a segment of experience."""
    steps: int = 300_000
    seed: int = 1
    chaos: float = 0.0
    """Every so many seconds a random actor is killed; 0 for never."""

    learning_rate: float = 1e-3
    epochs: int = 8
    minibatch: int = 512
    gamma: float = 0.98
    gae_lambda: float = 0.8
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def label(self) -> str:
        return "eager PyTorch" if self.eager else "Tilewright"

    @property
    def segment(self) -> int:
        """Environment steps in one segment."""
        return self.envs * self.horizon

    @property
    def updates(self) -> int:
        """How many updates of the weights the run makes: each takes as many segments as there are actors."""
        return max(1, self.steps // (self.segment * self.actors))


PIXELS = Config(env="pixels", steps=150_000, epochs=6, learning_rate=2e-3, gae_lambda=0.9, entropy=0.01)


@dataclass(frozen=True)
class Options:
    """The command line: one run, or two to compare, and where the plot goes."""

    runs: tuple[Config, ...]
    plot: Path


def parse(arguments: list[str] | None = None) -> Options:
    """The command line as `Options`."""
    parser = argparse.ArgumentParser(prog="python -m examples.ppo_actors", description="PPO with actors on one store")
    parser.add_argument("--env", choices=("CartPole-v1", "pixels"), default="CartPole-v1")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--eager", action="store_true", help="PyTorch in the actors instead of Tilewright")
    kind.add_argument("--compare", action="store_true", help="one run of each, plotted together")
    parser.add_argument("--chaos", type=float, nargs="?", const=2.0, default=0.0, metavar="SECONDS")
    parser.add_argument("--actors", type=int, help="actor processes")
    parser.add_argument("--envs", type=int, help="environments in each actor")
    parser.add_argument("--steps", type=int, help="steps of single environments, all together")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plot", type=Path, default=Path("out/ppo_actors.png"))
    options = vars(parser.parse_args(arguments))
    base = PIXELS if options["env"] == "pixels" else Config()
    set_ = {name: options[name] for name in ("actors", "envs", "steps", "seed") if options[name] is not None}
    if bad := [name for name in ("actors", "envs", "steps") if set_.get(name, 1) < 1]:
        parser.error(f"at least 1 is wanted for {', '.join(bad)}")
    first = replace(base, eager=options["eager"], chaos=options["chaos"], **set_)
    runs = (first, replace(first, eager=True)) if options["compare"] else (first,)
    return Options(runs, options["plot"])
