"""The learner: the networks and PPO (Schulman et al. 2017) in ordinary PyTorch, in the manner of CleanRL.

Nothing here knows where experience comes from or where weights go.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from examples.ppo_actors import environments
from examples.ppo_actors.config import Config
from examples.ppo_actors.trajectories import advantages


class Vectors(nn.Module):
    """Policy and value of flat observations, in two towers: logits [n, actions] and values [n] of float32 [n, size]."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(tanh_tower(size), orthogonal(nn.Linear(64, actions), gain=0.01))
        self.critic = nn.Sequential(tanh_tower(size), orthogonal(nn.Linear(64, 1), gain=1.0))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs).squeeze(1)


class Pixels(nn.Module):
    """Policy and value of small images, with common convolutions: the same of uint8 [n, channels, 14, 14]."""

    def __init__(self, channels: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            orthogonal(nn.Conv2d(channels, 16, 4, stride=2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(16, 32, 3)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(32 * 4 * 4, 128)),
            nn.ReLU(),
        )
        self.actor = orthogonal(nn.Linear(128, actions), gain=0.01)
        self.critic = orthogonal(nn.Linear(128, 1), gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(obs.float() / 255.0)
        return self.actor(hidden), self.critic(hidden).squeeze(1)


def agent_for(env: str) -> nn.Module:
    """The network for an environment."""
    shape, _, actions = environments.spaces(env)
    return Pixels(shape[0], actions) if len(shape) == 3 else Vectors(shape[0], actions)


def example_for(config: Config) -> Tensor:
    """Observations as an actor hands them to the network, all zero."""
    shape, dtype, _ = environments.spaces(config.env)
    return torch.from_numpy(np.zeros((config.envs, *shape), dtype))


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2)) -> nn.Module:
    """The layer with orthogonal weights and no bias to begin with."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def tanh_tower(inputs: int) -> nn.Sequential:
    """Two layers of 64."""
    return nn.Sequential(orthogonal(nn.Linear(inputs, 64)), nn.Tanh(), orthogonal(nn.Linear(64, 64)), nn.Tanh())


class Learner:
    """PPO on segments of experience."""

    def __init__(self, config: Config) -> None:
        torch.manual_seed(config.seed)
        torch.set_num_threads(1)  # the networks are small, and the actors want the other cores
        self.config = config
        self.agent = agent_for(config.env)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=config.learning_rate, eps=1e-5)
        self._updates = 0

    def update(self, segments: list[Any]) -> None:
        """One update of the weights from some segments (records of `slot_type`), which are not needed afterwards."""
        config = self.config
        left = max(1.0 - self._updates / config.updates, 0.02)
        self.optimizer.param_groups[0]["lr"] = config.learning_rate * left
        self._updates += 1
        batch = self._batch(segments)
        for _ in range(config.epochs):
            count = len(batch["obs"])
            for rows in torch.randperm(count).tensor_split(max(1, count // config.minibatch)):
                loss = self._loss({name: tensor[rows] for name, tensor in batch.items()}, config.clip * left)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), config.max_grad_norm)
                self.optimizer.step()

    def _batch(self, segments: list[Any]) -> dict[str, Tensor]:
        """The steps of all segments in a row, without those that only reset an environment."""
        config = self.config
        parts: dict[str, list[Any]] = {"obs": [], "action": [], "logprob": [], "advantage": [], "target": []}
        for segment in segments:
            following = advantages(segment, config.gamma, config.gae_lambda)
            retained = ~segment["new"]
            for name in ("obs", "action", "logprob"):
                parts[name].append(segment[name][retained])
            parts["advantage"].append(following[retained])
            parts["target"].append((following + segment["value"])[retained])
        return {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in parts.items()}

    def _loss(self, batch: dict[str, Tensor], clip: float) -> Tensor:
        """The clipped surrogate; ratios are to the very weights that acted, whichever version that was."""
        config = self.config
        logits, value = self.agent(batch["obs"])
        logprobs = torch.log_softmax(logits, dim=1)
        logprob = logprobs.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        advantage = batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (logprob - batch["logprob"]).exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (value - batch["target"]).square().mean()
        entropy = -(logprobs.exp() * logprobs).sum(1).mean()
        return policy_loss + config.value_weight * value_loss - config.entropy * entropy
