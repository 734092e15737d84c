"""RLlib: algorithms train with Tilewright's runners, and every version reaches every one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="RLlib is an extra: `make rl` runs this")

import itertools

import gymnasium as gym
import ray
import torch
import tree
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from tests.rl.environments import Memory, Toy
from tilewright.live import store as weights
from tilewright.rl.rllib import PREFIX, TilewrightEnvRunner
from tilewright.support.errors import UnsupportedError

TOLERANCE = 1e-5
RUNNERS = 2


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="tilewright-rl-", dir="/dev/shm") as folder:
        before = os.environ.get("TILEWRIGHT_STORE_DIR")
        os.environ["TILEWRIGHT_STORE_DIR"] = folder
        here = str(Path(__file__).parents[2])
        env = {"PYTHONPATH": f"{here}/src:{here}", "TILEWRIGHT_STORE_DIR": folder, "CUDA_VISIBLE_DEVICES": ""}
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 200 << 20}
        for attempt in range(3):
            try:
                ray.init(num_cpus=6, runtime_env={"env_vars": env}, **options)
                break
            except Exception:  # Ray gives its processes 30 seconds to start, which a busy machine may not
                ray.shutdown()
                if attempt == 2:
                    raise
        yield
        ray.shutdown()
        os.environ.pop("TILEWRIGHT_STORE_DIR")
        if before is not None:
            os.environ["TILEWRIGHT_STORE_DIR"] = before


def config(base: Any, env: Any = Memory, runners: int = RUNNERS, **training: Any) -> Any:
    return (
        base.environment(env)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=2,
            env_runner_cls=TilewrightEnvRunner,
            rollout_fragment_length=50,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32, 32]))
        .training(lr=0.01, **training)
        .debugging(seed=1)
    )


def learner_outputs(algorithm: Any, obs: Any) -> Any:
    """The outputs of the learner's module, in eager PyTorch."""
    module = algorithm.learner_group._learner.module[DEFAULT_MODULE_ID]
    with torch.no_grad():
        return module._forward({"obs": torch.as_tensor(obs)})["action_dist_inputs"].numpy()


def on_runners(algorithm: Any, function: Callable[[Any], Any]) -> list[Any]:
    results: list[Any] = algorithm.env_runner_group.foreach_env_runner(function, local_env_runner=False)
    return results


def acting(obs: Any) -> Callable[[Any], Any]:
    """On a runner: what it would act on, and the version of that."""

    def call(runner: Any) -> tuple[Any, int, int]:
        result = runner.module.forward_exploration({"obs": torch.as_tensor(obs)}, t=0)["action_dist_inputs"]
        return result.numpy(), runner._weights_seq_no, runner._forward._store.published

    return call


def sync(algorithm: Any) -> None:
    algorithm.env_runner_group.sync_weights(
        from_worker_or_learner_group=algorithm.learner_group, timeout_seconds=None, inference_only=True
    )


def check_in_step(algorithm: Any) -> list[int]:
    """Every runner acts as the learner's present weights say; gives the versions that they report."""
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    expected = learner_outputs(algorithm, obs)
    result = on_runners(algorithm, acting(obs))
    assert len(result) == RUNNERS
    for outputs, _, _ in result:
        np.testing.assert_allclose(outputs, expected, atol=TOLERANCE, rtol=TOLERANCE)
    return [version for _, version, _ in result]


def test_ppo_trains_and_every_version_reaches_every_runner() -> None:
    algorithm = config(PPOConfig(), train_batch_size=200, minibatch_size=50, num_epochs=2).build_algo()
    try:
        returns, versions = [], []
        for _ in range(6):
            result = algorithm.train()
            returns.append(result["env_runners"]["episode_return_mean"])
            versions.append(check_in_step(algorithm))
        # The same for all runners, new after every iteration, and what the learner counts.
        assert all(len(set(v)) == 1 for v in versions)
        assert all(b > a for (a, *_), (b, *_) in itertools.pairwise(versions))
        assert versions[-1][0] == algorithm.learner_group._learner._weights_seq_no
        assert returns[-1] > 8 > returns[0]  # of 10; a policy that stays the first one has 5
        published = [p for _, _, p in on_runners(algorithm, acting(np.zeros((1, 4), np.float32)))]
        assert sum(published) == len(versions) + 1  # once per node and version, and the first one
        assert len([s for s in weights.stores() if s.name.startswith(PREFIX)]) == 1
    finally:
        algorithm.stop()
    assert not [s for s in weights.stores() if s.name.startswith(PREFIX)]


def test_impala_trains_and_versions_reach_every_runner() -> None:
    base = config(IMPALAConfig(), train_batch_size=200, num_epochs=1, broadcast_interval=1)
    algorithm = base.learners(num_learners=0).reporting(min_time_s_per_iteration=1).build_algo()
    try:
        seen: list[list[int]] = []
        best = 0.0
        for _ in range(15):
            result = algorithm.train()
            best = max(best, result["env_runners"].get("episode_return_mean", 0.0))
            got = on_runners(algorithm, acting(np.zeros((1, 4), np.float32)))
            seen.append([version for _, version, _ in got])
        assert all(later > first > 0 or later > 1 for first, later in zip(seen[0], seen[-1], strict=True))
        assert all(b >= a for one, other in itertools.pairwise(seen) for a, b in zip(one, other, strict=True))
        assert best > 7
        sync(algorithm)
        assert set(check_in_step(algorithm)) == {algorithm.learner_group._learner._weights_seq_no}
    finally:
        algorithm.stop()


def test_episodes_carry_the_version_that_acted() -> None:
    algorithm = config(PPOConfig(), runners=0, train_batch_size=100, minibatch_size=50, num_epochs=1).build_algo()
    try:
        runner = algorithm.env_runner
        for _ in range(2):
            algorithm.train()
            episodes = runner.sample(num_timesteps=20)
            version = algorithm.learner_group._learner._weights_seq_no
            for episode in episodes:
                assert set(episode.get_extra_model_outputs(WEIGHTS_SEQ_NO)) == {version}
                obs = np.stack(episode.get_observations()[:-1])
                logits = torch.as_tensor(learner_outputs(algorithm, obs))
                expected = torch.distributions.Categorical(logits=logits).log_prob(
                    torch.as_tensor(episode.get_actions())
                )
                np.testing.assert_allclose(
                    episode.get_extra_model_outputs("action_logp"), expected, atol=TOLERANCE, rtol=TOLERANCE
                )
        # What a checkpoint holds are the weights that were sent, though nothing of the module was filled till now.
        state = runner.get_state()[COMPONENT_RL_MODULE]
        learner = algorithm.learner_group.get_state(components=COMPONENT_LEARNER)[COMPONENT_LEARNER]
        for name, value in state.items():
            np.testing.assert_array_equal(value, learner[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID][name])
    finally:
        algorithm.stop()


class Continuous(Toy):
    def __init__(self, config: Any) -> None:
        super().__init__("vector", "box")


class Several(Toy):
    def __init__(self, config: Any) -> None:
        super().__init__("vector", "multidiscrete")


class Pixels(Toy):
    """Channels last and float, as RLlib's convolutions want them."""

    def __init__(self, config: Any) -> None:
        super().__init__("vector", "discrete")
        self.observation_space = gym.spaces.Box(-1, 1, (42, 42, 4), np.float32)


@pytest.mark.parametrize(
    ("env", "model"),
    [
        (Continuous, DefaultModelConfig(fcnet_hiddens=[64], fcnet_activation="relu")),
        (Continuous, DefaultModelConfig(fcnet_hiddens=[64], free_log_std=True)),
        (Several, DefaultModelConfig(fcnet_activation="swish", vf_share_layers=True)),
        (Pixels, DefaultModelConfig(conv_filters=[[16, 4, 2], [32, 4, 2], [64, 4, 2]], conv_activation="relu")),
    ],
)
def test_models(env: Any, model: Any) -> None:
    """Outputs of runners equal those of the learner's module, for models of several kinds."""
    base = config(PPOConfig(), env, 0, train_batch_size=100, minibatch_size=50, num_epochs=1)
    algorithm = base.rl_module(model_config=model).build_algo()
    try:
        algorithm.train()
        runner = algorithm.env_runner
        space = runner.env.single_observation_space
        space.seed(3)
        for count in (1, 2, 7):
            obs = np.stack([space.sample() for _ in range(count)])
            result = runner.module.forward_inference({"obs": torch.as_tensor(obs)})["action_dist_inputs"]
            np.testing.assert_allclose(result, learner_outputs(algorithm, obs), atol=TOLERANCE, rtol=TOLERANCE)
    finally:
        algorithm.stop()


def test_recurrent_modules() -> None:
    """States go in and out; a policy with memory trains, and acts as the learner's module does step by step."""
    base = config(PPOConfig(), train_batch_size=200, minibatch_size=50, num_epochs=1, runners=0)
    model = DefaultModelConfig(fcnet_hiddens=[16], use_lstm=True, lstm_cell_size=32, max_seq_len=5)
    algorithm = base.rl_module(model_config=model).build_algo()
    try:
        for _ in range(2):
            algorithm.train()
        runner = algorithm.env_runner
        module = algorithm.learner_group._learner.module[DEFAULT_MODULE_ID]
        batch = {
            "obs": torch.randn(3, 1, 4),
            "state_in": tree.map_structure(lambda s: s.expand(3, *s.shape), module.get_initial_state()),
        }
        for _ in range(4):
            result = runner.module.forward_exploration(batch, t=0)
            with torch.no_grad():
                expected = module._forward(batch)
            tree.assert_same_structure(result, expected)
            for one, other in zip(tree.flatten(result), tree.flatten(expected), strict=True):
                torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=TOLERANCE)
            batch = {"obs": torch.randn(3, 1, 4), "state_in": result["state_out"]}
    finally:
        algorithm.stop()


def test_evaluation_has_a_store_of_its_own() -> None:
    base = config(PPOConfig(), runners=1, train_batch_size=100, minibatch_size=50, num_epochs=1)
    algorithm = base.evaluation(evaluation_interval=1, evaluation_num_env_runners=1, evaluation_duration=2).build_algo()
    try:
        result = algorithm.train()
        assert result["evaluation"]["env_runners"]["num_episodes"] >= 2
        assert len([s for s in weights.stores() if s.name.startswith(PREFIX)]) == 2
    finally:
        algorithm.stop()


def test_forced_and_old_states() -> None:
    algorithm = config(PPOConfig(), runners=0, train_batch_size=100, minibatch_size=50, num_epochs=1).build_algo()
    try:
        algorithm.train()
        runner = algorithm.env_runner
        obs = torch.zeros(3, 4)
        before = runner.module.forward_inference({"obs": obs})["action_dist_inputs"].clone()
        version = runner._weights_seq_no
        state = runner.get_state()[COMPONENT_RL_MODULE]
        other = {name: value + 0.1 for name, value in state.items()}
        runner.set_state({COMPONENT_RL_MODULE: other, WEIGHTS_SEQ_NO: version})  # known already
        assert torch.equal(runner.module.forward_inference({"obs": obs})["action_dist_inputs"], before)
        retained = runner.get_state()[COMPONENT_RL_MODULE]
        assert all(np.array_equal(retained[name], state[name]) for name in state)
        runner.set_state({COMPONENT_RL_MODULE: other})  # no number: forced
        changed = runner.module.forward_inference({"obs": obs})["action_dist_inputs"]
        assert not torch.allclose(changed, before) and runner._weights_seq_no == version
        runner.set_state({COMPONENT_RL_MODULE: state, WEIGHTS_SEQ_NO: version + 1})  # the learner goes on
        assert torch.equal(runner.module.forward_inference({"obs": obs})["action_dist_inputs"], before)
        assert runner._weights_seq_no == version + 1
    finally:
        algorithm.stop()


def test_what_is_not_supported_is_one_error() -> None:
    greedy = config(DQNConfig(), runners=0).build_algo()
    with pytest.raises(UnsupportedError, match="_forward_exploration gives something else"):
        greedy.train()
    greedy.stop()
