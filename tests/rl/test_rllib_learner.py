"""RLlib's PPO learns on a compiled step as it does in PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="RLlib is an extra: `make rl` runs this")

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from tests.rl.environments import Memory, Toy
from tilewright.rl.rllib import TilewrightEnvRunner
from tilewright.rl.rllib_learner import TilewrightPPOLearner
from tilewright.support.errors import UnsupportedError

TOLERANCE = 1e-5


class Room(Toy):
    """`Toy` for RLlib."""

    def __init__(self, settings: Any) -> None:
        super().__init__("vector", "discrete" if settings["discrete"] else "box")


TIMES = {"num_env_steps_sampled_lifetime": 0}


def config(model: Any = None, discrete: bool = True, **training: Any) -> Any:
    created = PPOConfig().environment(Room, env_config={"discrete": discrete}).debugging(seed=1)
    created = created.rl_module(model_config=model or DefaultModelConfig(fcnet_hiddens=[32, 16]))
    return created.training(lr=3e-3, **training).learners(num_learners=0)


def learners(created: Any, kind: Any = TilewrightPPOLearner) -> tuple[Any, Any]:
    """An eager learner and a compiled one with the same weights."""
    env = Room(created.env_config)
    results = []
    for each in (PPOTorchLearner, kind):
        settings = created.copy(copy_frozen=False).learners(learner_class=each)
        learner = settings.build_learner(env=env)
        results.append(learner)
    eager, compiled = results
    compiled.module.set_state(copy.deepcopy(eager.module.get_state()))
    return eager, compiled


def episodes(created: Any, learner: Any, seed: int, lengths: tuple[int, ...] = (40, 17, 31)) -> list[Any]:
    """Played by chance, with what runners note of actions."""
    env, rng = Room(created.env_config), np.random.default_rng(seed)
    module = learner.module[DEFAULT_MODULE_ID]
    results = []
    for length in lengths:
        obs, _ = env.reset(seed=int(rng.integers(1000)))
        episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
        episode.add_env_reset(observation=obs)
        for t in range(length):
            with torch.no_grad():
                inputs = module._forward({"obs": torch.as_tensor(obs)[None]})["action_dist_inputs"]
            distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
            torch.manual_seed(int(rng.integers(1 << 30)))
            action = distribution.sample()
            extra = {"action_dist_inputs": inputs[0].numpy(), "action_logp": distribution.logp(action)[0].numpy()}
            obs, reward, _, _, _ = env.step(action[0].numpy())
            episode.add_env_step(obs, action[0].numpy(), reward, truncated=t == length - 1, extra_model_outputs=extra)
        episode.validate()
        results.append(episode)
    return results


def update(learner: Any, played: list[Any], minibatch: int = 24, epochs: int = 3) -> dict[str, float]:
    np.random.seed(5)  # RLlib shuffles by NumPy's global state
    torch.manual_seed(5)
    result = learner.update(
        episodes=copy.deepcopy(played),
        timesteps=dict(TIMES),
        num_epochs=epochs,
        minibatch_size=minibatch,
        shuffle_batch_per_epoch=True,
    )
    metrics = result[DEFAULT_MODULE_ID]
    return {name: float(np.mean(stat.peek())) for name, stat in metrics.items()}


def weights(learner: Any) -> dict[str, Any]:
    return {name: p.detach().numpy().copy() for name, p in learner.module[DEFAULT_MODULE_ID].named_parameters()}


def check_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    assert sorted(one) == sorted(other)
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "numbers as actions": {"discrete": False},
    "clipped": {"grad_clip": 0.3, "grad_clip_by": "global_norm"},
    "without divergence": {"use_kl_loss": False, "entropy_coeff": 0.01},
    "without a critic": {"use_critic": False, "use_gae": False},
    "schedules": {"entropy_coeff": [[0, 0.1], [10000, 0.0]]},
    "one network": {"model": DefaultModelConfig(fcnet_hiddens=[16], vf_share_layers=True)},
    "free deviations": {
        "discrete": False,
        "model": DefaultModelConfig(fcnet_hiddens=[16], free_log_std=True),
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_updates_are_those_of_pytorch(name: str) -> None:
    created = config(**SETTINGS[name])
    eager, compiled = learners(created)
    for seed in range(2):
        played = episodes(created, eager, seed)
        TIMES["num_env_steps_sampled_lifetime"] = 5000 * seed
        check_equal(update(eager, played), update(compiled, played), 1e-4)
        check_equal(weights(eager), weights(compiled))
    assert compiled._compiled is not None and compiled._compiled.step.count > 0


def test_minibatches_of_other_sizes_are_learned_from() -> None:
    created = config()
    eager, compiled = learners(created)
    played = episodes(created, eager, 3)
    for minibatch in (24, 30, 24):
        check_equal(update(eager, played, minibatch), update(compiled, played, minibatch), 1e-4)
        check_equal(weights(eager), weights(compiled))
    steps = len([1 for _ in range(0, 91 * 3, 24)])
    assert compiled._compiled.step.count > 2 * steps  # those of the second size count too


def test_what_is_retained_goes_on_elsewhere() -> None:
    created = config(grad_clip=0.5, grad_clip_by="global_norm", use_kl_loss=False)  # RLlib keeps no coefficient of it
    eager, compiled = learners(created)
    played = episodes(created, eager, 4)
    update(compiled, played)
    states = {kind: learners(created, kind)[1] for kind in (PPOTorchLearner, TilewrightPPOLearner)}
    for learner in states.values():
        learner.set_state(copy.deepcopy(compiled.get_state()))
        check_equal(weights(compiled), weights(learner), 0)
    update(compiled, played)
    for learner in states.values():
        update(learner, played)
        check_equal(weights(compiled), weights(learner))


def test_weights_that_others_set_are_learned_from() -> None:
    created = config()
    eager, compiled = learners(created)
    played = episodes(created, eager, 6)
    update(eager, played), update(compiled, played)
    for learner in (eager, compiled):
        with torch.no_grad():
            for p in learner.module[DEFAULT_MODULE_ID].parameters():
                p.mul_(0.5)
    check_equal(update(eager, played), update(compiled, played), 1e-4)
    check_equal(weights(eager), weights(compiled))


def test_what_is_not_finite_moves_nothing() -> None:
    created = config()
    _, compiled = learners(created)
    played = episodes(created, compiled, 7)
    update(compiled, played)
    before = weights(compiled)
    step = compiled._compiled.step
    rows = [np.zeros(tuple(size), str(dtype).removeprefix("torch.")) for size, dtype in compiled._compiled._sizes]
    step(*(np.full_like(each, np.nan) if each.dtype.kind == "f" else each for each in rows), *np.ones((2,), "f4"))
    compiled._compiled.push()
    check_equal(before, weights(compiled), 0)


class OwnLoss(TilewrightPPOLearner):
    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        return 2 * super().compute_loss_for_module(**kwargs)


class OwnOptimizer(TilewrightPPOLearner):
    def configure_optimizers_for_module(self, module_id: Any, config: Any = None) -> None:
        params = list(self.module[module_id].parameters())
        self.register_optimizer(
            module_id=module_id, optimizer=torch.optim.Adagrad(params), params=params, lr_or_lr_schedule=1e-3
        )


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (OwnLoss, {}, "has a loss of its own: expected that of PPOTorchLearner"),
        (TilewrightPPOLearner, {"grad_clip": 1.0, "grad_clip_by": "value"}, "grad_clip_by='value'"),
        (TilewrightPPOLearner, {"model": DefaultModelConfig(use_lstm=True)}, "recurrent modules"),
    ],
)
def test_what_cannot_be_compiled_is_told_when_built(kind: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        learners(config(**settings), kind)


def test_an_optimizer_without_a_counterpart_is_told() -> None:
    created = config()
    eager, compiled = learners(created, OwnOptimizer)
    with pytest.raises(UnsupportedError, match="Adagrad: has no compiled counterpart"):
        update(compiled, episodes(created, eager, 8))


def test_an_algorithm_learns(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(tmp_path))
    created = PPOConfig().environment(Memory).debugging(seed=1).learners(learner_class=TilewrightPPOLearner)
    created = created.env_runners(num_env_runners=0, num_envs_per_env_runner=2, env_runner_cls=TilewrightEnvRunner)
    created = created.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32, 32]))
    algorithm = created.training(lr=0.01, train_batch_size=200, minibatch_size=50, num_epochs=2).build_algo()
    try:
        returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(6)]
        assert returns[-1] > 8 > returns[0]  # of 10; a policy that stays the first one has 5
        learner = algorithm.learner_group._learner
        assert learner._compiled.step.count >= 6 * 8
        for name, tensor in weights(learner).items():
            np.testing.assert_array_equal(tensor, learner._compiled.step.parameters[name])
    finally:
        algorithm.stop()
        ray.shutdown()  # what the algorithm started
