"""Stable-Baselines3's updates on compiled steps: from the same state and batches they are its own to rounding."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is an extra: `make rl` runs this")

import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from tests.rl.environments import Memory, Toy
from tilewright.rl import sb3
from tilewright.support.errors import UnsupportedError

ROUNDING = {"rtol": 1e-4, "atol": 2e-6}
NETWORK = {"net_arch": [32, 24]}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def on_policy(kind: Any, observation: str, action: str, **options: Any) -> Any:
    """A model with a full buffer; every call gives the same."""
    env = make_vec_env(lambda: Toy(observation, action), n_envs=2, seed=0)
    policy = "CnnPolicy" if observation == "image" else "MlpPolicy"
    options = {"n_steps": 24, "device": "cpu", "seed": 0} | options
    if observation != "image":
        options = {"policy_kwargs": dict(NETWORK)} | options  # which A2C adds to
    model = kind(policy, env, **options)
    _, callback = model._setup_learn(100)
    model.set_random_seed(0)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    return model


def off_policy(kind: Any, observation: str = "vector", **options: Any) -> Any:
    """A model with transitions to replay; every call gives the same."""
    env = make_vec_env(lambda: Toy(observation, "discrete" if kind is DQN else "box"), n_envs=1, seed=0)
    options = {
        "buffer_size": 300,
        "batch_size": 20,
        "learning_starts": 0,
        "device": "cpu",
        "seed": 0,
    } | options
    options = {"policy_kwargs": dict(NETWORK)} | options
    model = kind("MlpPolicy", env, **options)
    model._setup_learn(100)
    model.set_random_seed(0)
    space, actions = model.observation_space, model.action_space
    space.seed(0)
    actions.seed(0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        arrays = [x[None] for x in (space.sample(), space.sample(), np.asarray(actions.sample()))]
        model.replay_buffer.add(*arrays, rng.normal(size=1), rng.random(1) < 0.1, [{}])
    return model


def train(model: Any, *args: Any, seed: int = 5) -> None:
    np.random.seed(seed)
    torch.manual_seed(seed)
    model.train(*args)


def compare(ours: Any, theirs: Any) -> None:
    """Weights, what optimizers keep, and what is logged."""
    one, two = ours.get_parameters(), theirs.get_parameters()
    assert one.keys() == two.keys()
    for key, expected in two.items():
        result = one[key]
        if "state" in expected and "param_groups" in expected:
            assert result["param_groups"] == expected["param_groups"]
            assert result["state"].keys() == expected["state"].keys(), key
            pairs = {(k, n): v for k, state in expected["state"].items() for n, v in state.items()}
            for (k, name), value in pairs.items():
                torch.testing.assert_close(
                    result["state"][k][name], value, **ROUNDING, msg=lambda m, n=name: f"{n} {m}"
                )
        else:
            assert result.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(result[name], value, **ROUNDING, msg=lambda m, n=name: f"{n} {m}")
    for name, logged in theirs.logger.name_to_value.items():
        if name.startswith("train/"):
            assert ours.logger.name_to_value[name] == pytest.approx(logged, rel=1e-3, abs=1e-5), name
    assert ours._n_updates == theirs._n_updates


ON_POLICY: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "discrete": (PPO, "vector", "discrete", {"batch_size": 16}),
    "box": (PPO, "vector", "box", {"batch_size": 16, "ent_coef": 0.01, "normalize_advantage": False}),
    "several": (PPO, "matrix", "multidiscrete", {"batch_size": 16, "clip_range_vf": 0.1}),
    "bits": (PPO, "double", "multibinary", {"batch_size": 48, "max_grad_norm": 0.05}),
    "rest": (PPO, "vector", "discrete", {"batch_size": 20}),
    "numbers": (PPO, "numbers", "discrete", {"batch_size": 16}),
    "schedules": (
        PPO,
        "vector",
        "box",
        {"batch_size": 16, "learning_rate": lambda p: 1e-3 * p, "clip_range": lambda p: 0.3 * p},
    ),
    "stopped": (PPO, "vector", "box", {"batch_size": 16, "learning_rate": 3e-3, "target_kl": 0.004}),
    # Adam would make a step of an error of 1e-9 in a gradient near zero, of which a convolution has many.
    "image": (PPO, "image", "discrete", {"batch_size": 48, "policy_kwargs": {"optimizer_class": torch.optim.SGD}}),
    "a2c": (A2C, "vector", "box", {}),
    "a2c, adam": (A2C, "vector", "discrete", {"use_rms_prop": False, "normalize_advantage": True, "ent_coef": 0.02}),
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy(name: str) -> None:
    kind, observation, action, options = ON_POLICY[name]
    if kind is PPO:
        options = {"n_epochs": 3} | options
    theirs, ours = (on_policy(kind, observation, action, **options) for _ in range(2))
    sb3.accelerate(ours, updates=True)
    for k in range(2):
        for model in (theirs, ours):
            model._current_progress_remaining = 1 - 0.4 * k
            train(model, seed=k)
        compare(ours, theirs)


OFF_POLICY: dict[str, tuple[Any, dict[str, Any]]] = {
    "sac": (SAC, {}),
    "sac, fixed": (SAC, {"ent_coef": 0.1, "gamma": 0.9, "tau": 0.1}),
    "sac, from a value": (SAC, {"ent_coef": "auto_0.3", "learning_rate": lambda p: 1e-3 * p}),
    "sac, several steps": (SAC, {"n_steps": 3}),
    "td3": (TD3, {}),
    "td3, other delay": (TD3, {"policy_delay": 3, "target_policy_noise": 0.4}),
    "ddpg": (DDPG, {}),
    "dqn": (DQN, {"max_grad_norm": 0.5}),
}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy(name: str) -> None:
    kind, options = OFF_POLICY[name]
    theirs, ours = (off_policy(kind, **options) for _ in range(2))
    sb3.accelerate(ours, updates=True)
    for k, count in enumerate((4, 1, 1, 5)):
        for model in (theirs, ours):
            train(model, count, 20, seed=k)
    compare(ours, theirs)


def test_target_networks_of_dqn_follow() -> None:
    """Target networks move outside of `train`."""
    theirs, ours = (off_policy(DQN, target_update_interval=1, tau=0.5) for _ in range(2))
    sb3.accelerate(ours, updates=True)
    for k in range(3):
        for model in (theirs, ours):
            train(model, 3, 20, seed=k)
            model._on_step()
    compare(ours, theirs)


@pytest.mark.parametrize("kind", [PPO, TD3])
def test_saved_restored_and_loaded_models_go_on(kind: Any, tmp_path: Path) -> None:
    """From a file, eager and accelerated, and where updates become eager again: as if nothing had happened."""
    arguments = () if kind is PPO else (3, 20)
    make = (lambda: on_policy(PPO, "vector", "box", batch_size=16)) if kind is PPO else (lambda: off_policy(TD3))
    theirs, ours = make(), make()
    handle = sb3.accelerate(ours, updates=True)
    for model in (theirs, ours):
        train(model, *arguments, seed=0)
    ours.save(tmp_path / "model")
    reloaded = [kind.load(tmp_path / "model", device="cpu") for _ in range(2)]
    assert "train" not in reloaded[0].__dict__
    sb3.accelerate(reloaded[1], updates=True)
    handle.restore()
    assert "train" not in ours.__dict__
    for model in (theirs, ours, *reloaded):
        if model in reloaded:
            model.set_logger(theirs.logger)
            for name in ("rollout_buffer", "replay_buffer"):
                if hasattr(theirs, name):
                    setattr(model, name, copy.deepcopy(getattr(theirs, name)))
        train(model, *arguments, seed=1)
    for model in (ours, *reloaded):
        compare(model, theirs)


def test_values_that_others_write_are_adopted() -> None:
    """Weights and optimizers' states that are loaded between updates."""
    theirs, ours = (on_policy(PPO, "vector", "box", batch_size=16) for _ in range(2))
    sb3.accelerate(ours, updates=True)
    other = on_policy(PPO, "vector", "box", batch_size=16)
    train(other, seed=9)
    retained = other.get_parameters()
    for k in range(2):
        for model in (theirs, ours):
            train(model, seed=k)
    for model in (theirs, ours):
        model.set_parameters(copy.deepcopy(retained))  # optimizers go on in what they are given
        with torch.no_grad():
            model.policy.value_net.bias.add_(0.5)
        train(model, seed=3)
    compare(ours, theirs)


def test_writes_that_no_counter_tells_of() -> None:
    theirs, ours = (on_policy(PPO, "vector", "box", batch_size=16) for _ in range(2))
    handle = sb3.accelerate(ours, updates=True)
    for model in (theirs, ours):
        train(model, seed=0)
        model.policy.value_net.bias.data.add_(1.0)
    handle.refresh()
    ours.policy.set_training_mode(False)
    theirs.policy.set_training_mode(False)
    with torch.no_grad():
        obs = torch.ones(2, 17)
        torch.testing.assert_close(ours.policy.predict_values(obs), theirs.policy.predict_values(obs), **ROUNDING)
    for model in (theirs, ours):
        train(model, seed=1)
    compare(ours, theirs)


def test_rollouts_use_what_was_learned() -> None:
    model = on_policy(PPO, "vector", "discrete", batch_size=16)
    sb3.accelerate(model, updates=True)
    obs = torch.zeros(3, 17)
    before = model.policy.predict_values(obs).clone()
    train(model)
    model.policy.set_training_mode(False)
    with torch.no_grad():
        after = model.policy.predict_values(obs)
        torch.testing.assert_close(after, type(model.policy).predict_values(model.policy, obs), rtol=1e-5, atol=1e-5)
    assert (after - before).abs().max() > 1e-4


@pytest.mark.parametrize("kind", [SAC, TD3, DQN])
def test_predictions_use_what_was_learned(kind: Any) -> None:
    model = off_policy(kind, learning_rate=1e-2)
    sb3.accelerate(model, updates=True)
    policy = model.policy
    policy.set_training_mode(False)
    obs = policy.obs_to_tensor(np.stack([model.observation_space.sample() for _ in range(5)]))[0]
    result = []
    for _ in range(3):
        train(model, 2, 20)
        with torch.no_grad():
            result.append(policy._predict(obs, True).clone())
            expected = type(policy)._predict(policy, obs, True)
        torch.testing.assert_close(result[-1], expected, rtol=1e-5, atol=1e-5)
    assert kind is DQN or (result[0] - result[2]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_it_learns(kind: Any) -> None:
    options: dict[str, Any] = {"n_steps": 64, "learning_rate": 3e-3} if kind is PPO else {"n_steps": 16}
    env = make_vec_env(Memory, n_envs=4, seed=0)
    model = kind("MlpPolicy", env, device="cpu", seed=0, **options)
    with sb3.accelerate(model, updates=True):
        model.learn(8_000)
        assert evaluate_policy(model, env, n_eval_episodes=20, warn=False)[0] > 9


class Overridden(PPO):
    def train(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: on_policy(Overridden, "vector", "box", batch_size=16), "a way of its own"),
        (lambda: on_policy(PPO, "vector", "box", batch_size=16).policy, "updates are an algorithm's"),
        (lambda: on_policy(PPO, "vector", "box", batch_size=16, use_sde=True), "gSDE"),
        (lambda: on_policy(PPO, "vector", "box", batch_size=47), "one row"),
        (lambda: off_policy(SAC, target_update_interval=2, gradient_steps=2), "target_update_interval"),
        (
            lambda: on_policy(
                PPO, "vector", "box", batch_size=16, policy_kwargs={"optimizer_class": torch.optim.Adagrad}
            ),
            "no compiled counterpart",
        ),
    ],
)
def test_what_is_not_supported_is_refused(make: Any, says: str) -> None:
    model = make()
    with pytest.raises(UnsupportedError, match=says):
        sb3.accelerate(model, updates=True)
    assert "train" not in model.__dict__
    assert "_predict" not in getattr(model, "policy", model).__dict__


def test_modes_of_training_stay() -> None:
    options = {"policy_kwargs": {"activation_fn": nn.ReLU, **NETWORK}}
    model = off_policy(SAC, **options)
    before = [part.training for part in model.policy.modules()]
    sb3.accelerate(model, updates=True)
    assert [part.training for part in model.policy.modules()] == before
