"""The PPO examples train for some seconds: versions grow, actors use the newest, eager does the same."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("torch", reason="PyTorch is an extra: `make rl` runs this")
pytest.importorskip("gymnasium", reason="gymnasium is an extra: `make rl` runs this")

from examples.ppo_actors.__main__ import main, train
from examples.ppo_actors.config import Config
from examples.ppo_actors.monitor import Monitor

UPDATES = 24
SHORT = Config(actors=2, envs=8, horizon=16, steps=2 * 8 * 16 * UPDATES, epochs=1)


def run(config: Config) -> tuple[Monitor, str]:
    monitors: list[Monitor] = []
    console = Console(file=io.StringIO(), width=200)
    train(config, console, monitors)
    return monitors[0], console.file.getvalue()  # type: ignore[attr-defined]


def assert_fresh(monitor: Monitor) -> None:
    """Actors that kept their first policy would be late by half the run. Two slots an actor make it one or two, but
    the system may stop an actor in the middle of a segment for longer than that."""
    assert sum(row.stale for row in monitor.rows) / len(monitor.rows) < UPDATES / 5


@pytest.mark.parametrize("eager", [False, True], ids=["tilewright", "eager"])
@pytest.mark.parametrize("env", ["CartPole-v1", "pixels"])
def test_versions_grow_and_actors_use_them(store: str, env: str, eager: bool) -> None:
    monitor, shown = run(replace(SHORT, env=env, eager=eager))
    versions = [row.version for row in monitor.rows]
    assert versions == list(range(versions[0], versions[0] + UPDATES)), "each update is one version"
    assert_fresh(monitor)
    assert monitor.steps > 0.9 * SHORT.steps
    assert "return" in shown and "version" in shown
    assert not os.listdir(os.environ["TILEWRIGHT_STORE_DIR"])


def test_killed_actors_are_replaced(store: str) -> None:
    monitor, _ = run(replace(SHORT, chaos=0.5, steps=4 * SHORT.steps))
    assert monitor.kills
    assert monitor.rows[-1].version == monitor.config.updates - 1
    assert_fresh(monitor)


def test_both_are_compared_and_drawn(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is an extra: `make rl` runs this")
    plot = tmp_path / "plots" / "ppo.png"
    fewer = ["--actors", "1", "--envs", "4", "--steps", "1000"]
    assert main(["--compare", "--plot", str(plot), *fewer]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "Tilewright" in shown and "eager PyTorch" in shown


def test_the_loop_of_one_process_is_the_same_as_eager() -> None:
    from examples import cleanrl_ppo

    short = ["--total-timesteps", "4096", "--update-epochs", "4"]
    compiled, eager = (cleanrl_ppo.train(cleanrl_ppo.parse([*short, *more])) for more in ([], ["--eager"]))
    # The same seeds and outputs that differ by 1e-7: the runs stay together until a sampled action differs.
    assert 15 < eager["return"] < 150
    assert compiled["return"] == pytest.approx(eager["return"], rel=0.35)
    assert compiled["calls"] == eager["calls"]
