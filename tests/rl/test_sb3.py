"""Stable-Baselines3: what an accelerated model computes is what it computed, and new weights arrive."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is an extra: `make rl` runs this")

import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy

import tilewright as tw
from tests.rl.environments import ACTIONS, OBSERVATIONS, Toy
from tilewright.rl import sampling, sb3
from tilewright.support.errors import UnsupportedError, WeightError

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ppo(observation: str = "vector", action: str = "discrete", policy: str = "", seed: int = 0, **kwargs: Any) -> Any:
    kinds = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}
    env = make_vec_env(lambda: Toy(observation, action), n_envs=4, seed=seed)
    options = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "device": "cpu", "seed": seed} | kwargs
    return PPO(policy or kinds.get(observation, "MlpPolicy"), env, **options)


def observations(model: Any, count: int, seed: int = 3) -> Any:
    """A batch as `collect_rollouts` makes it."""
    space = model.observation_space
    space.seed(seed)
    results = [space.sample() for _ in range(count)]
    if isinstance(results[0], dict):
        batch: Any = {key: np.stack([f[key] for f in results]) for key in results[0]}
    else:
        batch = np.stack(results)
    return model.policy.obs_to_tensor(batch)[0]


def spread(policy: Any) -> None:
    """Make outputs differ: fresh policies give nearly equal probabilities and biases of zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter) / max(1, parameter[0].numel()) ** 0.5)


def eager(policy: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return getattr(type(policy), name)(policy, *args, **kwargs)


def check_forward(model: Any, counts: tuple[int, ...] = (1, 4, 9)) -> None:
    policy = model.policy
    policy.set_training_mode(False)
    for count in counts:
        obs = observations(model, count)
        for deterministic in (True, False):
            torch.manual_seed(7)
            expected = eager(policy, "forward", obs, deterministic)
            torch.manual_seed(7)
            with torch.no_grad():
                result = policy(obs, deterministic)
            for one, other in zip(result, expected, strict=True):
                assert one.shape == other.shape and one.dtype == other.dtype
                torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
        with torch.no_grad():
            values = policy.predict_values(obs)
        torch.testing.assert_close(values, eager(policy, "predict_values", obs), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", ["vector", "image"])
def test_actions_values_and_log_probs_are_the_eager_ones(observation: str, action: str) -> None:
    model = ppo(observation, action)
    spread(model.policy)
    accelerated = sb3.accelerate(model)
    check_forward(model)
    assert accelerated.version == 0  # nothing was trained, nothing was taken over


@pytest.mark.parametrize("observation", [o for o in OBSERVATIONS if o not in ("vector", "image")])
def test_observation_spaces(observation: str) -> None:
    model = ppo(observation)
    spread(model.policy)
    sb3.accelerate(model)
    check_forward(model)


@pytest.mark.parametrize(
    "options",
    [
        {"net_arch": []},
        {"net_arch": {"pi": [32], "vf": [48, 16]}, "activation_fn": torch.nn.ReLU},
        {"share_features_extractor": False},
        {"activation_fn": torch.nn.SiLU, "log_std_init": -1.0},
    ],
)
def test_architectures(options: dict[str, Any]) -> None:
    model = ppo(action="box", policy_kwargs=options)
    spread(model.policy)
    sb3.accelerate(model)
    check_forward(model, (1, 4))


@pytest.mark.parametrize("squash", [False, True])
def test_state_dependent_noise(squash: bool) -> None:
    model = ppo(action="box", use_sde=True, policy_kwargs={"squash_output": squash})
    sb3.accelerate(model)
    model.policy.reset_noise(4)
    check_forward(model, (1, 4))
    with pytest.raises(UnsupportedError, match="gSDE"):
        sb3.publish(ppo(action="box", use_sde=True), "noise")


def test_seeds_give_the_eager_trajectories() -> None:
    """Three iterations of PPO, accelerated and eager, from one seed: the same actions and nearly the same weights."""
    models = [ppo(seed=5), ppo(seed=5)]
    sb3.accelerate(models[1])
    for model in models:
        model.set_random_seed(5)
        model.learn(3 * 64)
    first, second = (m.rollout_buffer for m in models)
    np.testing.assert_array_equal(first.actions, second.actions)
    np.testing.assert_allclose(first.log_probs, second.log_probs, rtol=1e-4, atol=1e-4)
    for one, other in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_every_rollout_uses_the_last_weights(algorithm: Any) -> None:
    """A test that fails if actors keep the first policy: log-probabilities in the buffer are those of the weights that
    the rollout began with, which training has changed since the last one."""
    env = make_vec_env(lambda: Toy(), n_envs=2, seed=0)
    model = algorithm("MlpPolicy", env, n_steps=8, device="cpu", seed=0, learning_rate=0.01)
    accelerated = sb3.accelerate(model)
    for _ in range(3):
        weights = copy.deepcopy(model.policy.state_dict())
        model.learn(16, reset_num_timesteps=False)
        now = copy.deepcopy(model.policy.state_dict())
        assert any(not torch.equal(now[name], weights[name]) for name in now)
        model.policy.load_state_dict(weights)
        buffer = model.rollout_buffer
        obs = torch.as_tensor(buffer.observations.reshape(16, -1))
        actions = torch.as_tensor(buffer.actions.reshape(16))
        with torch.no_grad():
            values, log_probs, _ = model.policy.evaluate_actions(obs, actions)
        np.testing.assert_allclose(log_probs, buffer.log_probs.reshape(16), atol=TOLERANCE)
        np.testing.assert_allclose(values[:, 0], buffer.values.reshape(16), atol=TOLERANCE)
        model.policy.load_state_dict(now)
    assert accelerated.version >= 2


def test_new_weights_are_noticed_however_they_come() -> None:
    model = ppo()
    accelerated = sb3.accelerate(model)
    policy = model.policy
    policy.set_training_mode(False)
    changes = [
        lambda: spread(policy),
        lambda: policy.load_state_dict({k: v + 0.1 for k, v in policy.state_dict().items()}),
        lambda: policy.load_state_dict({k: v + 0.1 for k, v in policy.state_dict().items()}, assign=True),
        lambda: model.train_step(),
        lambda: accelerated.refresh(),
    ]

    def train_step() -> None:
        policy.set_training_mode(True)
        for parameter in policy.parameters():
            parameter.data = parameter.data * 1.1  # after the version counters, as some trainers do
        policy.set_training_mode(False)

    model.train_step = train_step
    for change in changes:
        change()
        check_forward(model, (4,))


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
def test_steps_of_every_kind_of_optimizer_are_noticed(how: dict[str, bool], store: str) -> None:
    """Fused ones move no version counters."""
    model = ppo(policy_kwargs={"optimizer_kwargs": how})
    policy = model.policy
    with sb3.accelerate(model), sb3.publish(model, store) as published, tw.attach(store) as actor:
        for _ in range(2):
            policy.optimizer.zero_grad()
            policy.evaluate_actions(observations(model, 4), torch.zeros(4))[1].sum().backward()
            policy.optimizer.step()
            check_forward(model, (4,))
            published.publish_if_changed()
            obs = observations(model, 4)
            values = eager(policy, "predict_values", obs)
            np.testing.assert_allclose(actor.run({"obs": obs.numpy()})["values"], values, atol=TOLERANCE)
        before = published.version
        published.publish_if_changed()
        assert published.version == before == 2


def test_training_is_eager() -> None:
    model = ppo()
    sb3.accelerate(model)
    obs = observations(model, 4)
    model.policy.set_training_mode(False)
    values = model.policy(obs)[1]
    assert values.requires_grad
    with torch.no_grad():
        assert not model.policy(obs)[1].requires_grad


def test_diverged_weights_go_through_as_in_pytorch() -> None:
    model = ppo(action="box")
    sb3.accelerate(model)
    model.policy.set_training_mode(False)
    with torch.no_grad():
        model.policy.value_net.bias.fill_(float("nan"))
        assert model.policy.predict_values(observations(model, 2)).isnan().all()


def test_restore_copies_and_files(tmp_path: Path) -> None:
    model = ppo()
    with sb3.accelerate(model) as accelerated:
        assert "forward" in model.policy.__dict__
        twin = copy.deepcopy(model.policy)
        spread(twin)
        obs = observations(model, 3)
        with torch.no_grad():
            torch.testing.assert_close(twin.predict_values(obs), eager(twin, "predict_values", obs))
            assert not torch.allclose(twin.predict_values(obs), model.policy.predict_values(obs))
        reloaded = pickle.loads(pickle.dumps(model.policy))
        with torch.no_grad():
            torch.testing.assert_close(reloaded.predict_values(obs), eager(model.policy, "predict_values", obs))
        model.save(tmp_path / "model.zip")
        with pytest.raises(UnsupportedError, match="accelerated already"):
            sb3.accelerate(model)
    assert "forward" not in model.policy.__dict__ and accelerated.version == 0
    loaded = PPO.load(tmp_path / "model.zip", device="cpu")
    sb3.accelerate(loaded)
    check_forward(loaded, (2,))


@pytest.mark.parametrize(
    ("algorithm", "observation", "action"),
    [
        (DQN, "vector", "discrete"),
        (DQN, "image", "discrete"),
        (SAC, "vector", "box"),
        (TD3, "vector", "box"),
        (DDPG, "dict", "box"),
    ],
)
def test_predict_off_policy(algorithm: Any, observation: str, action: str) -> None:
    env = make_vec_env(lambda: Toy(observation, action), n_envs=2, seed=0)
    kind = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}.get(observation, "MlpPolicy")
    model = algorithm(kind, env, device="cpu", seed=0, learning_starts=8, buffer_size=100, batch_size=8)
    sb3.accelerate(model)
    for steps in (0, 12):
        if steps:
            model.learn(steps)
        policy = model.policy
        policy.set_training_mode(False)
        for count in (1, 5):
            obs = observations(model, count)
            for deterministic in (True, False):
                torch.manual_seed(2)
                expected = eager(policy, "_predict", obs, deterministic)
                torch.manual_seed(2)
                with torch.no_grad():
                    result = policy._predict(obs, deterministic)
                torch.testing.assert_close(result, expected, rtol=TOLERANCE, atol=TOLERANCE)
    actions, _ = model.predict(env.reset(), deterministic=True)
    assert len(actions) == 2


def test_predict_keeps_its_protocol() -> None:
    model = ppo(action="box")
    one = np.zeros(17, np.float32)
    expected = [model.predict(obs, deterministic=True)[0] for obs in (one, one[None], np.zeros((3, 17)))]
    sb3.accelerate(model)
    for obs, before in zip((one, one[None], np.zeros((3, 17))), expected, strict=True):
        actions, state = model.predict(obs, deterministic=True)
        assert state is None and actions.shape == before.shape
        np.testing.assert_allclose(actions, before, atol=TOLERANCE)


def test_what_is_not_supported_is_one_error() -> None:
    class Mine(ActorCriticPolicy):
        def forward(self, obs: Any, deterministic: bool = False) -> Any:
            return super().forward(obs, deterministic)

        def predict_values(self, obs: Any) -> Any:
            return super().predict_values(obs)

    with pytest.raises(UnsupportedError, match=r"(?s)overrides forward.*overrides predict_values"):
        sb3.accelerate(ppo(policy=Mine))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="ActorCriticPolicy"):
        sb3.accelerate(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("action", ACTIONS)
def test_published_policies(action: str, store: str) -> None:
    """Actors without PyTorch draw from the distribution that the policy has, and get new weights after each train()."""
    model = ppo(action=action)
    spread(model.policy)
    with sb3.publish(model, store) as published:
        actor = tw.attach(store)
        before = published.version
        model.learn(2 * 64, callback=published.callback())
        assert published.version >= before + 2 and actor.version == published.version
        obs = observations(model, 500)
        outputs = actor.run({"obs": obs.numpy()})
        rng = np.random.default_rng(0)
        for deterministic in (True, False):
            actions, log_probs = sampling.sample(outputs, rng, deterministic)
            with torch.no_grad():
                values, expected, _ = model.policy.evaluate_actions(obs, torch.as_tensor(actions))
                likeliest = eager(model.policy, "_predict", obs, True).numpy()
            np.testing.assert_allclose(log_probs, expected, atol=5e-5)
            np.testing.assert_allclose(outputs["values"], values, atol=TOLERANCE)
            if deterministic:
                np.testing.assert_allclose(actions, likeliest, atol=TOLERANCE)
        with torch.no_grad():
            model.policy.action_net.weight[0, 0] = float("nan")
        with pytest.raises(WeightError, match=r"action_net\.weight"):
            published.publish()
        actor.close()


def test_publishing_takes_over_what_an_earlier_run_left(store: str) -> None:
    obs = np.ones((3, 17), np.float32)
    versions = []
    for _ in range(2):
        model = ppo()
        spread(model.policy)
        with torch.no_grad():
            model.policy.value_net.bias.add_(len(versions))
        with sb3.publish(model, store) as published, tw.attach(store) as actor:
            versions.append(published.version)
            expected = eager(model.policy, "predict_values", torch.as_tensor(obs))
            np.testing.assert_allclose(actor.run({"obs": obs})["values"], expected, atol=TOLERANCE)
    assert versions == [0, 1]


@pytest.mark.parametrize("precision", ["int8", "int8w"])
def test_acting_in_fewer_bits_follows_new_weights(precision: Any) -> None:
    """Values in 8 bits are close to the eager ones, and are those of new weights after these changed."""
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2), n_steps=16, batch_size=16, seed=0, device="cpu")
    obs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    model.policy.set_training_mode(False)
    with sb3.accelerate(model, precision=precision):
        for _ in range(2):
            with torch.no_grad():
                for weight in model.policy.parameters():
                    weight.mul_(1.5)
                wanted = ActorCriticPolicy.predict_values(model.policy, obs)
                got = model.policy.predict_values(obs)
            difference = float((got - wanted).abs().max())
            assert 0 < difference < 0.05 * float(wanted.abs().max())
