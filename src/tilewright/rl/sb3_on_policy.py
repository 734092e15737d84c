"""Updates of PPO and A2C on a compiled step: what `train` of Stable-Baselines3 computes, in its order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.ppo.ppo import PPO
from torch.nn import functional as F

from tilewright.rl import heads
from tilewright.rl.learner import Array, optimizer_of
from tilewright.rl.sb3_learner import Learner
from tilewright.rl.sb3_policy import Parts
from tilewright.support.errors import Problems, UnsupportedError
from tilewright.train import losses

Samples = tuple[Any, ...]
"""A minibatch: observations, actions, old values, old log-probabilities, advantages, returns, each with one row for
each step."""


class OnPolicy(Learner):
    """The updates of PPO or A2C.

    Args:
        model: the algorithm.
        parts: the compiled parts of its policy.
        threads: the number of threads of a step.
    """

    def __init__(self, model: Any, parts: Parts, threads: int) -> None:
        self.model = model
        policy = model.policy
        problems = Problems()
        buffer = model.rollout_buffer
        if type(buffer) is not RolloutBuffer:
            problems.add(UnsupportedError(f"has a {type(buffer).__name__}", expected="RolloutBuffer"))
        if isinstance(parts.head, heads.StateDependentNoise):
            problems.add(UnsupportedError("state-dependent exploration (gSDE) is not trained on a compiled step"))
        optimizer = optimizer_of(policy.optimizer, problems)
        rows = buffer.buffer_size * buffer.n_envs
        self._rows = model.batch_size if isinstance(model, PPO) else rows
        self._rows = min(self._rows, rows)
        rest = rows % self._rows
        if rest == 1 or self._rows == 1:
            problems.add(UnsupportedError("trains on batches of one row"))
        problems.raise_if_any(f"the updates of {type(model).__name__} are not supported", kind=UnsupportedError)
        arguments = {
            "loss": self._loss_of(model, parts),
            "optimizer": optimizer,
            "clip": model.max_grad_norm,
            "example": self._example(buffer, self._rows),
            "symbolic": rest > 0,
            "threads": threads,
        }
        tensors = dict(policy.named_parameters()) | dict(policy.named_buffers())
        super().__init__(model, policy, tensors, [policy.optimizer], arguments)

    def _loss_of(self, model: Any, parts: Parts) -> Any:
        if isinstance(model, PPO):
            return ppo_loss(model, parts)
        return a2c_loss(model, parts)

    def _example(self, buffer: Any, rows: int) -> list[Any]:
        obs = np.zeros((rows, *buffer.obs_shape), buffer.observations.dtype)
        actions = np.zeros((rows, buffer.action_dim), np.float32)
        example = [obs, self._actions(actions), *np.zeros((4, rows), np.float32)]
        ranges = 0 if not isinstance(self.model, PPO) else 1 if self.model.clip_range_vf is None else 2
        return [*example, *(torch.tensor(0.2) for _ in range(ranges))]

    def _actions(self, selected: Array) -> Array:
        """Actions as the policy takes them: integers [rows] if discrete, else unchanged."""
        return (
            selected.astype(np.int64).reshape(-1) if isinstance(self.model.action_space, spaces.Discrete) else selected
        )

    def _samples(self, rows: int) -> Iterator[Samples]:
        """The minibatches of a rollout, in the order of `RolloutBuffer.get`."""
        buffer = self.model.rollout_buffer
        assert buffer.full
        order = np.random.permutation(buffer.buffer_size * buffer.n_envs)
        if not buffer.generator_ready:
            for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
                setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))
            buffer.generator_ready = True
        actions = self._actions(buffer.actions.astype(np.float32, copy=False))
        flat = [x.reshape(-1) for x in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)]
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            yield buffer.observations[chosen], actions[chosen], *(x[chosen] for x in flat)

    def _begin(self) -> None:
        model = self.model
        model.policy.set_training_mode(True)
        model._update_learning_rate(model.policy.optimizer)
        self.pull()
        self.step.lr = model.policy.optimizer.param_groups[0]["lr"]

    def train(self, *_: Any, **__: Any) -> None:
        if isinstance(self.model, PPO):
            self._train_ppo()
        else:
            self._train_a2c()

    def _train_ppo(self) -> None:
        model, step = self.model, self.step
        self._begin()
        clip_range = model.clip_range(model._current_progress_remaining)
        ranges = [clip_range]
        if model.clip_range_vf is not None:
            ranges.append(model.clip_range_vf(model._current_progress_remaining))
        scalars = [np.array(r, np.float32) for r in ranges]
        limit = None if model.target_kl is None else 1.5 * model.target_kl
        step.refuse = None if limit is None else lambda result: result["approx_kl"] > limit
        seen: list[dict[str, float]] = []
        divergences: list[float] = []
        stopped = False
        for epoch in range(model.n_epochs):
            divergences = []
            for samples in self._samples(model.batch_size):
                result = step(*samples, *scalars)
                seen.append(result)
                divergences.append(result["approx_kl"])
                stopped = limit is not None and result["approx_kl"] > limit
                if stopped:
                    if model.verbose >= 1:
                        kl = result["approx_kl"]
                        print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")
                    break
            model._n_updates += 1
            if stopped:
                break
        self.push()
        record = model.logger.record
        for name in ("entropy_loss", "policy_gradient_loss", "value_loss"):
            record(f"train/{name}", np.mean([result[name] for result in seen]))
        record("train/approx_kl", np.mean(divergences))
        record("train/clip_fraction", np.mean([result["clip_fraction"] for result in seen]))
        record("train/loss", seen[-1]["loss"])
        self._end()
        record("train/clip_range", clip_range)
        if model.clip_range_vf is not None:
            record("train/clip_range_vf", ranges[1])

    def _train_a2c(self) -> None:
        model = self.model
        self._begin()
        result: Mapping[str, float] = {}
        for samples in self._samples(self._rows):
            result = self.step(*samples)
        model._n_updates += 1
        self.push()
        self._end()
        for name in ("entropy_loss", "policy_loss", "value_loss"):
            model.logger.record(f"train/{name}", result[name])

    def _end(self) -> None:
        model, record = self.model, self.model.logger.record
        buffer = model.rollout_buffer
        record("train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
        if hasattr(model.policy, "log_std"):
            record("train/std", torch.exp(model.policy.log_std).mean().item())
        record("train/n_updates", model._n_updates, exclude="tensorboard")


def evaluated(parts: Parts, obs: Any, actions: Any) -> tuple[Any, Any, Any]:
    """(values, log-probabilities of `actions`, entropies) of the policy for the observations, [rows] each."""
    outputs = parts.outputs(obs)
    head: Any = parts.head  # one that is `heads.Trained`
    log_prob, entropy = head.evaluate(list(outputs.values())[:-1], actions)
    return outputs["values"].flatten(), log_prob, entropy


def ppo_loss(model: Any, parts: Parts) -> Any:
    """A function that computes the loss of SB3's `PPO.train` and its metrics for a minibatch, for the algorithm `model`
    and the compiled `parts` of its policy."""

    def loss(
        _: Any, obs: Any, actions: Any, old_values: Any, old: Any, advantages: Any, returns: Any, *ranges: Any
    ) -> Any:
        values, log_prob, entropy = evaluated(parts, obs, actions)
        if model.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_prob - old
        ratio = torch.exp(log_ratio)
        least, most = 1 - ranges[0], 1 + ranges[0]
        policy = -torch.min(advantages * ratio, advantages * torch.clamp(ratio, least, most)).mean()
        if model.clip_range_vf is not None:
            values = old_values + torch.clamp(values - old_values, -ranges[1], ranges[1])
        value = F.mse_loss(returns, values)
        chaos = -entropy.mean()
        return {
            "loss": policy + model.ent_coef * chaos + model.vf_coef * value,
            "entropy_loss": chaos.detach(),
            "policy_gradient_loss": policy.detach(),
            "value_loss": value.detach(),
            "clip_fraction": (torch.abs(ratio - 1) > ranges[0]).float().mean(),
            "approx_kl": ((ratio - 1) - log_ratio).mean().detach(),
        }

    return loss


def a2c_loss(model: Any, parts: Parts) -> Any:
    """A function that computes the loss of SB3's `A2C.train` and its metrics for a minibatch, for the algorithm `model`
    and the compiled `parts` of its policy."""

    def loss(_: Any, obs: Any, actions: Any, old_values: Any, old: Any, advantages: Any, returns: Any) -> Any:
        values, log_prob, entropy = evaluated(parts, obs, actions)
        if model.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = losses.a2c(log_prob, advantages)
        value = F.mse_loss(returns, values)
        chaos = -entropy.mean()
        return {
            "loss": policy + model.ent_coef * chaos + model.vf_coef * value,
            "entropy_loss": chaos.detach(),
            "policy_loss": policy.detach(),
            "value_loss": value.detach(),
        }

    return loss
