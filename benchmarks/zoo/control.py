"""Policies and value functions of reinforcement learning."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from benchmarks.zoo.entry import Builder, Entry


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with Tanh between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class ActorCritic(nn.Module):
    """PPO's two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(17, 64, 64, 6), mlp(17, 64, 64, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(obs), self.critic(obs).squeeze(-1)


class Dueling(nn.Module):
    """DQN over frames, with value and advantages in separate heads."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
        self.body = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU())
        self.value, self.advantage = nn.Linear(128, 1), nn.Linear(128, 6)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        y = self.body(frames.to(torch.float32) / 255)
        advantage = self.advantage(y)
        return self.value(y) + advantage - advantage.mean(-1, keepdim=True)


class SquashedGaussian(nn.Module):
    """SAC's actor without sampling, and two critics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.log_std = mlp(11, 128, 128), nn.Linear(128, 3), nn.Linear(128, 3)
        self.critics = nn.ModuleList(mlp(14, 128, 128, 1) for _ in range(2))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.body(obs))
        action = torch.tanh(self.mean(y))
        values = [critic(torch.cat([obs, action], -1)) for critic in self.critics]
        return action, self.log_std(y).clamp(-20, 2), torch.minimum(*values)


class Recurrent(nn.Module):
    """IMPALA's recurrent policy, one step."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.cell = nn.Linear(24, 64), nn.LSTMCell(64, 64)
        self.policy, self.value = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, obs: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, c = self.cell(torch.relu(self.enter(obs)), (h, c))
        return self.policy(h), self.value(h), h, c


class Residual(nn.Module):
    """A board's policy and value, as AlphaZero's."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(8, 32, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))
        self.policy, self.value = nn.Linear(32 * 64, 73), nn.Linear(32, 1)

    def forward(self, board: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.enter(board))
        for block in self.blocks:
            y = torch.relu(y + block(y))
        return self.policy(y.flatten(1)).softmax(-1), torch.tanh(self.value(y.mean((2, 3))))


class Decision(nn.Module):
    """A decision transformer: returns, states and actions in turns through a causal encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.returns, self.states, self.actions = nn.Linear(1, 64), nn.Linear(11, 64), nn.Linear(3, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 3)

    def forward(self, returns: torch.Tensor, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        steps = torch.stack([self.returns(returns), self.states(states), self.actions(actions)], 2).flatten(1, 2)
        mask = nn.Transformer.generate_square_subsequent_mask(steps.shape[1])
        return torch.tanh(self.head(self.body(steps, mask=mask, is_causal=True)[:, 1::3]))


def decision() -> Entry:
    return Entry(Decision().eval(), (torch.randn(2, 8, 1), torch.randn(2, 8, 11), torch.randn(2, 8, 3)))


def frames() -> Entry:
    return Entry(Dueling().eval(), (torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8),))


MODELS: dict[str, Builder] = {
    "control-PPO": lambda: Entry(ActorCritic().eval(), (torch.randn(8, 17),)),
    "control-dueling-DQN": frames,
    "control-SAC": lambda: Entry(SquashedGaussian().eval(), (torch.randn(4, 11),)),
    "control-recurrent": lambda: Entry(
        Recurrent().eval(), (torch.randn(4, 24), torch.zeros(4, 64), torch.zeros(4, 64))
    ),
    "control-AlphaZero": lambda: Entry(Residual().eval(), (torch.randn(2, 8, 8, 8),)),
    "control-decision-transformer": decision,
}
