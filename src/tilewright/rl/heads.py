"""From a policy's outputs to actions and their log-probabilities, as Stable-Baselines3's distributions do it.

A head states which outputs are compiled (`trace`) and draws actions from them (`sample`). The arithmetic and the order
of random numbers are those of the library and of `torch.distributions`, without the objects in between, which cost ten
times the policy itself: the same seed gives the same actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

_LOG_SQRT_2PI = math.log(math.sqrt(2 * math.pi))


class Head(Protocol):
    """The head of a policy: how its action distribution is computed, and how actions are drawn from it."""

    count: int
    """The number of output tensors of `trace`."""

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        """The distribution's parameters for the policy's last hidden layer (batch, features), by name."""

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        """(actions (batch, ...), their log-probabilities (batch,) or None) from the outputs that `trace` named: random
        ones, or the likeliest ones if `deterministic`."""


class Trained(Head, Protocol):
    """The interface of a head whose policy is trained by a policy gradient, which needs probabilities and entropies."""

    def evaluate(self, outputs: Sequence[Tensor], actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (batch,) of given actions, and entropies (batch,), or one entropy for all rows."""


class Categorical:
    """The head for a discrete action: outputs are log-probabilities and probabilities, (batch, actions) each."""

    count = 2

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        logits = self._policy.action_net(latent)
        return {"log_probs": F.log_softmax(logits, -1), "probs": F.softmax(logits, -1)}

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        log_probs, probs = outputs
        chosen = probs.argmax(1, True) if deterministic else torch.multinomial(probs, 1, True)
        return chosen.squeeze(1), log_probs.gather(1, chosen).squeeze(1)

    def evaluate(self, outputs: Sequence[Tensor], actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, probs = outputs
        return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1), -(log_probs * probs).sum(1)


class MultiCategorical:
    """The head for several discrete actions: the outputs alternate between log-probabilities and probabilities, one
    pair for each action."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._sizes = [int(n) for n in policy.action_dist.action_dims]
        self.count = 2 * len(self._sizes)

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        outputs = {}
        for i, logits in enumerate(torch.split(self._policy.action_net(latent), self._sizes, dim=1)):
            outputs[f"log_probs_{i}"] = F.log_softmax(logits, -1)
            outputs[f"probs_{i}"] = F.softmax(logits, -1)
        return outputs

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        actions, log_probs = [], []
        for log_prob, probs in zip(outputs[::2], outputs[1::2], strict=True):
            chosen = probs.argmax(1, True) if deterministic else torch.multinomial(probs, 1, True)
            actions.append(chosen)
            log_probs.append(log_prob.gather(1, chosen))
        return torch.cat(actions, 1), torch.cat(log_probs, 1).sum(1)

    def evaluate(self, outputs: Sequence[Tensor], actions: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(outputs[::2], outputs[1::2], strict=True)
        chosen = [log_probs.gather(1, actions[:, k : k + 1].long()) for k, log_probs in enumerate(outputs[::2])]
        entropies = [-(log_probs * probs).sum(1) for log_probs, probs in pairs]
        return torch.cat(chosen, 1).sum(1), torch.stack(entropies, 1).sum(1)


class Bernoulli:
    """The head for binary actions: outputs are the probabilities of one, and the log-probabilities of zero and of
    one."""

    count = 3

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        logits = self._policy.action_net(latent)
        return {
            "flip_probs": torch.sigmoid(logits),
            "log_probs_zero": -F.softplus(logits),
            "log_probs_one": -F.softplus(-logits),
        }

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        probs, zero, one = outputs
        actions = torch.round(probs) if deterministic else torch.bernoulli(probs)
        return actions, torch.where(actions > 0, one, zero).sum(1)

    def evaluate(self, outputs: Sequence[Tensor], actions: Tensor) -> tuple[Tensor, Tensor]:
        probs, zero, one = outputs
        return (actions * one + (1 - actions) * zero).sum(1), -(probs * one + (1 - probs) * zero).sum(1)


class Gaussian:
    """The head for continuous actions: outputs are the mean and the log of the standard deviation, (batch, actions)
    each."""

    count = 2

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        mean = self._policy.action_net(latent)
        return {"mean": mean, "log_std": self._policy.log_std.expand_as(mean)}

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        mean, log_std = outputs
        if deterministic:
            return mean, -(log_std + _LOG_SQRT_2PI).sum(1)
        noise = torch.randn(mean.shape, dtype=mean.dtype)
        actions = torch.addcmul(mean, noise, log_std.exp())
        return actions, -(noise.square().mul_(0.5).add_(log_std).add_(_LOG_SQRT_2PI)).sum(1)

    def evaluate(self, outputs: Sequence[Tensor], actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs
        z = (actions - mean) * torch.exp(-log_std)
        log_prob = -(0.5 * z * z + log_std + _LOG_SQRT_2PI).sum(1)
        return log_prob, (log_std + 0.5 + _LOG_SQRT_2PI).sum(1)


class StateDependentNoise:
    """The head for state-dependent exploration (gSDE): outputs are the mean and the latent features; the library's own
    distribution holds the noise and draws from it."""

    count = 2

    def __init__(self, policy: Any, mean: Any) -> None:
        self._policy = policy
        self._mean = mean

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        return {"mean": self._mean(latent), "latent": latent * 1.0}

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        mean, latent = outputs
        distribution = self._policy.action_dist.proba_distribution(mean, self._policy.log_std, latent)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, distribution.log_prob(actions)


class Squashed:
    """The head of SAC's actor: a Gaussian through tanh; without log-probabilities, which `predict` does not need."""

    count = 2

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        log_std = self._actor.log_std(latent).clamp(-20, 2)  # the library's bounds
        return {"squashed_mean": self._actor.mu(latent), "log_std": log_std}

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        mean, log_std = outputs
        if deterministic:
            return mean.tanh(), None
        noise = torch.randn(mean.shape, dtype=mean.dtype)
        return torch.addcmul(mean, noise, log_std.exp()).tanh_(), None


class Greedy:
    """The head of DQN: values of the actions; the action of the largest value is taken."""

    count = 1

    def __init__(self, network: Any) -> None:
        self._network = network

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        return {"q_values": self._network.q_net(latent)}

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        return outputs[0].argmax(1), None


class Deterministic:
    """The head of TD3 and DDPG, which have no distribution: the only output is the action itself, (batch, ...)."""

    count = 1

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def trace(self, latent: Tensor) -> dict[str, Tensor]:
        return {"actions": self._actor.mu(latent)}

    def sample(self, outputs: Sequence[Tensor], deterministic: bool) -> tuple[Tensor, Tensor | None]:
        return outputs[0], None
