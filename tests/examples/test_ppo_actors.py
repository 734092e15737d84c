"""The parts of the PPO example that need neither PyTorch nor gymnasium: environment, advantages, sampling, actors."""

from __future__ import annotations

import io
import math
import multiprocessing
import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import tilewright as tw
from examples.ppo_actors import display, monitor
from examples.ppo_actors.config import Config, parse
from examples.ppo_actors.environments import Catch
from examples.ppo_actors.fleet import Fleet
from examples.ppo_actors.trajectories import Shared, advantages, sample, slot_type

SMALL = Config(env="pixels", actors=2, envs=3, horizon=5, steps=100)


def test_catch_is_won_by_who_follows_the_ball() -> None:
    env = Catch(4)
    obs, _ = env.reset(seed=0)
    returned, episodes, ended = np.zeros(4), [], np.zeros(4, bool)
    for _ in range(5 * (Catch.SIZE - 1) * 3 + 10):
        frame = obs[:, 1]
        ball = frame[:, :-1].any(1).argmax(1)
        paddle = frame[:, -1].argmax(1) + Catch.HALF
        obs, reward, terminated, truncated, _ = env.step(1 + np.sign(ball - paddle))
        assert not truncated.any()
        assert not reward[ended].any(), "the step after an episode only resets"
        returned += reward
        episodes += returned[terminated].tolist()
        returned[terminated] = 0
        ended = terminated
    assert len(episodes) >= 8
    # The ball may land one column past where it was seen last, which the paddle of three columns covers.
    assert set(episodes) == {5.0}


def test_catch_shows_two_frames_and_begins_anew() -> None:
    env = Catch(2)
    before, _ = env.reset(seed=1)
    assert before.shape == (2, *Catch.shape) and before.dtype == Catch.dtype
    assert np.array_equal(before[:, 0], before[:, 1])
    after, _, _, _, _ = env.step(np.ones(2, np.int64))
    assert np.array_equal(after[:, 0], before[:, 1])
    assert (after[:, 1, 1] == 255).sum() == 2, "each ball fell by one row"


def segment_of(rng: np.random.Generator, config: Config) -> Any:
    segment = np.zeros(1, slot_type(config))[0]
    for name in ("reward", "value", "last_value"):
        segment[name][:] = rng.standard_normal(segment[name].shape)
    ends = rng.random(segment["terminated"].shape)
    segment["terminated"][:] = ends < 0.2
    segment["truncated"][:] = ends > 0.8
    return segment


def test_advantages_are_the_sums_of_their_definition() -> None:
    gamma, lam = 0.9, 0.7
    segment = segment_of(np.random.default_rng(0), SMALL)
    result = advantages(segment, gamma, lam)
    values = np.concatenate([segment["value"], segment["last_value"][None]])
    for t in range(SMALL.horizon):
        for env in range(SMALL.envs):
            total, weight = 0.0, 1.0
            for later in range(t, SMALL.horizon):
                following = 0.0 if segment["terminated"][later, env] else gamma * values[later + 1, env]
                total += weight * (segment["reward"][later, env] + following - values[later, env])
                weight *= gamma * lam
                if segment["terminated"][later, env] or segment["truncated"][later, env]:
                    break
            assert result[t, env] == pytest.approx(total, abs=1e-5)


def test_actions_are_drawn_with_their_probabilities() -> None:
    logits = np.array([0.0, 1.0, 3.0], np.float32)
    wanted = np.exp(logits) / np.exp(logits).sum()
    actions, logprobs = sample(np.tile(logits, (20_000, 1)), np.random.default_rng(0))
    assert np.allclose(logprobs, np.log(wanted)[actions], atol=1e-6)
    assert np.allclose(np.bincount(actions, minlength=3) / 20_000, wanted, atol=0.015)


def test_options() -> None:
    both = parse(["--compare", "--env", "pixels", "--actors", "3", "--chaos"]).runs
    assert [run.label for run in both] == ["Tilewright", "eager PyTorch"]
    assert both[0].actors == 3 and both[0].env == "pixels" and both[0].chaos == 2.0
    assert Config().updates * Config().actors * Config().segment <= Config().steps
    with pytest.raises(SystemExit):
        parse(["--actors", "0"])


class Still:
    """A fleet that does nothing."""

    def __init__(self, config: Config) -> None:
        self.shared = Shared(config, multiprocessing.get_context("spawn"))
        self.lives = [1] * config.actors


def test_what_is_shown() -> None:
    watched = monitor.Monitor(SMALL, Still(SMALL))  # type: ignore[arg-type]
    watched.rows += [monitor.Row(i * 0.5, 100 * i, math.sqrt(i), i, 0.5, 1, 0.01, 1000, 5.0) for i in range(200)]
    shown = Console(file=io.StringIO(), width=120)
    shown.print(display.picture(watched), display.results([watched]))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "versions behind: mean 0.50, most 1" in text and "pixels" in text
    assert "version  199" in display.line(watched)
    assert display.sparkline([math.nan, 0.0, 1.0], 10) == "▁█"
    assert len(display.sparkline([float(i) for i in range(200)], 50)) == 50


def weights_of(seed: int, bias: float) -> dict[str, np.ndarray[Any, Any]]:
    size = math.prod(Catch.shape)
    first = np.random.default_rng(seed).standard_normal((size, 4), np.float32) * 0.001
    biases = np.array([0, 0, 0, bias], np.float32)
    return {"w": first, "b": biases}


def linear_policy() -> onnx.ModelProto:
    """Logits and values of the pixels by one product; its last bias is the value of an empty picture."""
    nodes = [
        helper.make_node("Cast", ["obs"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["f"], ["x"]),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
        helper.make_node("Split", ["y", "sizes"], ["logits", "values"], axis=1),
        helper.make_node("Squeeze", ["values", "axis"], ["value"]),
    ]
    constants = {"sizes": np.array([3, 1]), "axis": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.UINT8, ["n", *Catch.shape])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n"]),
        ],
        [numpy_helper.from_array(a, name) for name, a in {**weights_of(0, 0), **constants}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_actors_use_what_is_published_and_are_replaced_when_killed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(tmp_path))
    context: Any = multiprocessing.get_context("spawn")
    publisher = tw.Publisher("policy", tw.compile(linear_policy()))
    fleet = Fleet(Shared(SMALL, context), publisher.name, context)
    try:
        # The bias is the version, so that each value tells which weights gave it.
        versions: set[int] = set()
        for version in range(1, 30):
            publisher.publish(weights_of(0, version), version=version)
            segments = fleet.collect(2)
            for full in segments:
                data = full.data
                versions.update(data["version"].tolist())
                pixels = data["obs"].reshape(SMALL.horizon, SMALL.envs, -1).astype(np.float32)
                wanted = pixels @ weights_of(0, 0)["w"][:, 3] + data["version"][:, None]
                assert np.allclose(data["value"], wanted, atol=1e-3)
                assert (data["version"] <= version).all() and (np.diff(data["version"]) >= 0).all()
            fleet.release(segments)
            if version == 10:
                fleet.kill(1)
        assert max(versions) >= 27, "slots hold two segments back, not more"
        # What was begun before the last version comes first, from the new actor too.
        deadline, newest = time.monotonic() + 60, False
        while fleet.lives != [1, 2] or not newest:
            assert time.monotonic() < deadline, "the killed actor was not replaced, or stays behind"
            segments = fleet.collect(2)
            whole = all((full.data["version"] == 29).all() for full in segments)
            newest = whole and any(full.actor == 1 for full in segments)
            fleet.release(segments)
        assert fleet.deaths == 1
    finally:
        fleet.close()
        publisher.close(remove=True)
    assert not any(tmp_path.iterdir())
    assert not multiprocessing.active_children()
