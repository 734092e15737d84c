"""Updates of DQN, SAC, TD3 and DDPG on a compiled step: what `train` of Stable-Baselines3 computes, in its order and
from the same random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.sac.sac import SAC
from torch.nn import functional as F

from tilewright.rl.learner import optimizer_of
from tilewright.rl.sb3_learner import Learner
from tilewright.support.errors import Problems, UnsupportedError
from tilewright.train import off_policy
from tilewright.train.optimizers import Optimizer
from tilewright.train.stages import Average, Stage


class OffPolicy(Learner):
    """The common part of algorithms with a replay buffer: batches and their checks.

    Args:
        model: the algorithm.
        module: the module from which the step is traced.
        arguments: of `compile_step`, beside the module, the example and threads.
        optimizers: of the model, in the order of the step's groups.
        noises: how many normal random numbers a batch has for each action.
        threads: of a step.
        others: further tensors of the model that the step needs, by their names in the module.
    """

    def __init__(
        self,
        model: Any,
        module: torch.nn.Module,
        arguments: Mapping[str, Any],
        optimizers: Sequence[torch.optim.Optimizer],
        noises: int,
        threads: int,
        others: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._noises = noises
        self._discounted = discounts_of(model) is None
        rows = model.batch_size
        space, actions = model.observation_space, model.action_space
        obs = torch.as_tensor(np.zeros((rows, *space.shape), space.dtype))
        selected = (
            torch.zeros(rows, 1, dtype=torch.int64) if self._discrete(model) else torch.zeros(rows, *actions.shape)
        )
        column = torch.zeros(rows, 1)
        example = [obs, selected, column, obs, column, *([column] if self._discounted else [])]
        example += [torch.zeros(rows, *actions.shape)] * noises
        tensors = {**dict(module.named_parameters()), **(others or {})}
        super().__init__(model, module, tensors, optimizers, {**arguments, "example": example, "threads": threads})

    @staticmethod
    def _discrete(model: Any) -> bool:
        return isinstance(model.action_space, spaces.Discrete)

    def updates(self, count: int, rows: int) -> list[dict[str, float]]:
        """Take `count` steps on batches of `rows` rows of the replay buffer, and return their metrics. The policy stays
        in its present mode: no step depends on it, and setting it would take longer than a small step."""
        model, step = self.model, self.step
        model._update_learning_rate(self._optimizers)
        self.pull()
        for k, optimizer in enumerate(self._optimizers[: len(step.rates)]):
            step.rates[k] = optimizer.param_groups[0]["lr"]
        results = []
        for _ in range(count):
            data = model.replay_buffer.sample(rows, env=model._vec_normalize_env)
            batch = [data.observations, data.actions, data.rewards, data.next_observations, data.dones]
            batch += [data.discounts] if self._discounted else []
            batch += [torch.empty(data.actions.shape).normal_() for _ in range(self._noises)]
            results.append(step(*batch))
        self.push()
        return results

    def mean(self, result: Sequence[Mapping[str, float]], metric: str, name: str | None = None) -> None:
        """Log the mean of `metric` over those results of updates that have it, as `name`."""
        values = [f[metric] for f in result if metric in f]
        if values:
            self.model.logger.record(f"train/{name or metric}", np.mean(values))


def discounts_of(model: Any) -> float | None:
    """The discount factor of `model`; None if its replay buffer is one of n-step returns, each row of whose batches has
    its own."""
    return None if isinstance(model.replay_buffer, NStepReplayBuffer) else float(model.gamma)


def checked(model: Any, optimizers: Sequence[Any]) -> list[Optimizer]:
    """The `tw.train` optimizers for the model's; raises UnsupportedError listing all obstacles to compiled updates."""
    problems = Problems()
    results = [optimizer_of(optimizer, problems) for optimizer in optimizers]
    space = model.observation_space
    if not isinstance(space, spaces.Box):
        problems.add(UnsupportedError("observations are no tensor", got=type(space).__name__, expected="Box"))
    if getattr(model, "use_sde", False):
        problems.add(UnsupportedError("state-dependent exploration (gSDE) is not trained on a compiled step"))
    if any(name.endswith("running_mean") for name in model.policy.state_dict()):
        problems.add(UnsupportedError("batch norm is not trained on a compiled step"))
    if getattr(model.policy, "share_features_extractor", False) and list(model.actor.features_extractor.parameters()):
        problems.add(UnsupportedError("a shared features extractor is not trained on a compiled step"))
    if isinstance(model, SAC) and model.target_update_interval != 1 and model.gradient_steps != 1:
        problems.add(UnsupportedError("target_update_interval must be 1", got=model.target_update_interval))
    problems.raise_if_any(f"the updates of {type(model).__name__} are not supported", kind=UnsupportedError)
    return results


class Soft(OffPolicy):
    """The updates of the algorithm SAC on a compiled learning step: critics, actor and, where it is learned, the
    temperature."""

    def __init__(self, model: Any, threads: int) -> None:
        learns = model.ent_coef_optimizer is not None
        optimizers = [model.critic.optimizer, model.actor.optimizer, *([model.ent_coef_optimizer] if learns else [])]
        critic, actor, *temperature = checked(model, optimizers)
        module = _Entropic(model, learns)
        arguments = off_policy.sac(
            actor,
            gamma=discounts_of(model),
            tau=model.tau,
            alpha=None if learns else float(model.ent_coef_tensor),
            target_entropy=float(model.target_entropy),
            target="critic_target",
            temperature="log_ent_coef",
            policy=lambda module, obs: module.actor.get_action_dist_params(obs)[:2],
            noise=True,
            critic_optimizer=critic,
            temperature_optimizer=temperature[0] if temperature else None,
        )
        others = {"log_ent_coef": model.log_ent_coef} if learns else {}
        super().__init__(model, module, arguments, optimizers, 2, threads, others)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        model = self.model
        result = self.updates(gradient_steps, batch_size)
        model._n_updates += gradient_steps
        model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
        fixed = [] if model.ent_coef_optimizer is not None else [float(model.ent_coef_tensor)]
        model.logger.record("train/ent_coef", np.mean(fixed or [f["alpha"] for f in result]))
        self.mean(result, "actor_objective", "actor_loss")
        self.mean(result, "critic_loss")
        self.mean(result, "alpha_loss", "ent_coef_loss")


class _Entropic(torch.nn.Module):
    """One module with SAC's actor, critics, target critics and, if it is learned, the logarithm of the temperature, so
    that one step has them all."""

    def __init__(self, model: Any, learns: bool) -> None:
        super().__init__()
        self.actor, self.critic, self.critic_target = model.actor, model.critic, model.critic_target
        if learns:
            self.log_ent_coef = torch.nn.Parameter(model.log_ent_coef.detach())  # shares its memory


class Delayed(OffPolicy):
    """The updates of the algorithms TD3 and DDPG on a compiled learning step: critics at each update, the actor at
    every `policy_delay`-th."""

    def __init__(self, model: Any, threads: int) -> None:
        optimizers = [model.critic.optimizer, model.actor.optimizer]
        critic, actor = checked(model, optimizers)
        self._delay = model.policy_delay
        # Without noise eager training draws it all the same.
        self._spread, self._most = model.target_policy_noise, model.target_noise_clip
        arguments = off_policy.td3(
            actor,
            gamma=discounts_of(model),
            tau=model.tau,
            delay=model.policy_delay,
            target_noise=self._spread,
            largest_noise=self._most,
            target="critic_target",
            noise=True,
            critic_optimizer=critic,
        )
        super().__init__(model, model.policy, arguments, optimizers, 1, threads)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        model = self.model
        result = self.updates(gradient_steps, batch_size)
        model._n_updates += gradient_steps
        model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
        self.mean(result, "actor_loss")
        self.mean(result, "critic_loss")

    def count_of(self, counts: Sequence[int]) -> int:
        """The step's count, from the model's own count of updates, which decides at which of them the actor is
        updated."""
        count: int = self.model._n_updates
        if (max(counts, default=0) - count) % self._delay == 0:
            return max(counts, default=0)
        return count

    def _every(self, optimizer: Any) -> int:
        return self._delay if optimizer is self.model.actor.optimizer else 1


class Values(OffPolicy):
    """The updates of the algorithm DQN on a compiled learning step. PyTorch still updates the target network
    (`_on_step`)."""

    def __init__(self, model: Any, threads: int) -> None:
        (optimizer,) = checked(model, [model.policy.optimizer])
        gamma = discounts_of(model)

        def loss(policy: Any, obs: Any, actions: Any, rewards: Any, following: Any, done: Any, *rest: Any) -> Any:
            then = policy.q_net_target(following).max(1).values.reshape(-1, 1)
            target = (rewards + (1 - done) * (rest[0] if gamma is None else gamma) * then).detach()
            return F.smooth_l1_loss(policy.q_net(obs).gather(1, actions), target)

        stage = Stage("value", loss, ["q_net.*"], optimizer, model.max_grad_norm)
        arguments = {"loss": [stage], "averages": [Average("q_net_target.", "q_net.", every=0)]}
        super().__init__(model, model.policy, arguments, [model.policy.optimizer], 0, threads)

    def pull(self) -> None:
        self.doubt()  # the target network is written through `.data`, which no counter tells of
        super().pull()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        model = self.model
        result = self.updates(gradient_steps, batch_size)
        model._n_updates += gradient_steps
        model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
        self.mean(result, "value_loss", "loss")


__all__ = ["Delayed", "OffPolicy", "Soft", "Values"]
