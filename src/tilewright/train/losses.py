"""Losses of supervised and of reinforcement learning, in PyTorch, for `tw.compile_step` and eager use alike.

Each takes tensors and returns one number, the mean over the batch, so that they can be added to a custom loss. Targets
(advantages, returns, values of a target network) get no gradient.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F

Tensor: TypeAlias = Any
"""A `torch.Tensor`."""

cross_entropy = F.cross_entropy
mse = F.mse_loss
huber = F.huber_loss


def normal_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """The log density of actions [batch, n] under independent normals, summed over them: [batch]."""
    z = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def squashed_normal(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions [batch, n] of independent normals through tanh, and their log density: [batch].

    Args:
        noise: standard normal numbers, from which actions are computed so that gradients flow to mean and deviation;
            all of shape [batch, n].
    """
    actions = torch.tanh(mean + torch.exp(log_std) * noise)
    log_prob = (-0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    return actions, log_prob - torch.log(1 - actions * actions + 1e-6).sum(-1)


def categorical_log_prob(actions: Tensor, logits: Tensor) -> Tensor:
    """The log probability of actions [batch] under logits [batch, n]: [batch]."""
    return F.log_softmax(logits, -1).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


def normal_entropy(log_std: Tensor) -> Tensor:
    """The entropy of independent normals, summed over the last dimension."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """The entropy of each row of logits."""
    logs = F.log_softmax(logits, -1)
    return -(logs.exp() * logs).sum(-1)


def ppo(log_prob: Tensor, old: Tensor, advantages: Tensor, clip: float = 0.2, normalize: bool = True) -> Tensor:
    """The clipped surrogate (Schulman et al., 2017, equation 7), all of shape [batch].

    Args:
        log_prob: of the actions taken, under the policy that learns.
        old: the same when they were taken.
        advantages: scaled to mean 0 and deviation 1 over the batch if `normalize`, as Stable-Baselines3 does.
    """
    if normalize:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    advantages = advantages.detach()
    ratio = torch.exp(log_prob - old)
    return -torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)).mean()


def a2c(log_prob: Tensor, advantages: Tensor) -> Tensor:
    """The policy gradient loss of A2C; all tensors of shape [batch]."""
    return -(advantages.detach() * log_prob).mean()


def dqn(
    values: Tensor, actions: Tensor, rewards: Tensor, next_values: Tensor, done: Tensor, gamma: float = 0.99
) -> Tensor:
    """Huber's loss of the temporal difference (Mnih et al., 2015).

    Args:
        values: of all actions in the states, [batch, n]; `actions`, `rewards` and `done` are [batch].
        next_values: of the target network in the next states, [batch, n]; the largest counts.
    """
    target = rewards + (1 - done) * gamma * next_values.max(-1).values
    chosen = values.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
    return F.smooth_l1_loss(chosen, target.detach())


def sac_critics(
    critics: list[Tensor],
    rewards: Tensor,
    done: Tensor,
    next_critics: list[Tensor],
    next_log_prob: Tensor,
    alpha: float | Tensor,
    gamma: float = 0.99,
) -> Tensor:
    """Half the mean squares of the soft Bellman errors of all critics (Haarnoja et al., 2018), summed as
    Stable-Baselines3 does; all of shape [batch]. `next_critics`: the target networks' values of new actions; `alpha`:
    the weight of entropy; `gamma`: the discount."""
    least = torch.stack(next_critics).min(0).values - alpha * next_log_prob
    target = (rewards + (1 - done) * gamma * least).detach()
    losses = [F.mse_loss(values, target) for values in critics]
    return 0.5 * torch.stack(losses).sum()


def sac_actor(critics: list[Tensor], log_prob: Tensor, alpha: float | Tensor) -> Tensor:
    """The loss of SAC's actor: the mean of alpha * log_prob - the least of the critics' values, for its new actions
    [batch]."""
    return (alpha * log_prob - torch.stack(critics).min(0).values).mean()


def vtrace(
    log_prob: Tensor,
    old: Tensor,
    rewards: Tensor,
    values: Tensor,
    last: Tensor,
    done: Tensor,
    gamma: float = 0.99,
    largest: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace targets for the values, and advantages for the policy (IMPALA, Espeholt et al., 2018, equation 1), both
    [time, batch] and without gradients.

    Args:
        log_prob, old, rewards, values, done: [time, batch]; `done` is 1 where an episode ends with the step.
        last: values after the last step, [batch].
        largest: the bound at which importance weights are clipped.
    """
    with torch.no_grad():
        weights = torch.exp(log_prob - old).clamp(max=largest)
        discounts = gamma * (1 - done)
        following = torch.cat([values[1:], last[None]])
        deltas = weights * (rewards + discounts * following - values)
        carried = torch.zeros_like(last)
        results = []
        for t in reversed(range(len(rewards))):
            carried = deltas[t] + discounts[t] * weights[t] * carried
            results.append(carried)
        targets = torch.stack(results[::-1]) + values
        after = torch.cat([targets[1:], last[None]])
        return targets, weights * (rewards + discounts * after - values)
