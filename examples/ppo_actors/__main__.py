"""PPO with actor processes on one weight store: see `python -m examples.ppo_actors --help`."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from typing import Any

from rich.console import Console

from examples.ppo_actors import plot
from examples.ppo_actors.config import Config, parse
from examples.ppo_actors.display import Display, results
from examples.ppo_actors.fleet import Fleet, interrupts_blocked
from examples.ppo_actors.monitor import Monitor
from examples.ppo_actors.policies import Copies, Source, Store
from examples.ppo_actors.trajectories import Shared


def train(config: Config, console: Console, monitors: list[Monitor]) -> None:
    """One run from the first weights to the last; its monitor is added to `monitors` at once.

    The loop that this example is about: collect, train, publish, give the slots back. Actors play on meanwhile.
    """
    from examples.ppo_actors.learner import Learner, example_for

    context: Any = multiprocessing.get_context("spawn")
    learner = Learner(config)
    agent = learner.agent
    source: Source = Copies(agent, context) if config.eager else Store(agent, example_for(config))
    fleet = None
    try:
        fleet = Fleet(Shared(config, context), source.address, context)
        monitor = Monitor(config, fleet)
        monitors.append(monitor)
        with Display(monitor, console) as display:
            for _ in range(config.updates):
                segments = fleet.collect(config.actors)
                monitor.update(segments, source.version)
                display.update()
                learner.update([full.data for full in segments])
                source.publish(agent.state_dict())
                fleet.release(segments)
                if (killed := fleet.chaos()) is not None:
                    monitor.kills.append((monitor.seconds, killed))
    finally:
        with interrupts_blocked():
            if fleet is not None:
                fleet.close()
            source.close()


def main(arguments: list[str] | None = None) -> int:
    """Run, draw, print. 130 if it was interrupted, as is the custom."""
    options = parse(arguments)
    console = Console()
    monitors: list[Monitor] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`, so that nothing is left
    status = 0
    try:
        for config in options.runs:
            train(config, console, monitors)
    except KeyboardInterrupt:
        console.print("interrupted")
        status = 130
    finished = [monitor for monitor in monitors if monitor.rows]
    if finished:
        console.print(results(finished))
        plot.save(finished, options.plot)
        console.print(f"plot: {options.plot}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
