"""SAC and TD3: one learning step updates critics, actor, temperature and target networks.

    class Agent(nn.Module):      # actor(obs) gives mean and log_std, critic(obs, actions) values [n, 1] of each critic
        def __init__(self):
            super().__init__()
            self.actor, self.critic, self.target = Actor(), Critics(), Critics()
            self.log_alpha = nn.Parameter(torch.zeros(1))

    step = tw.compile_step(agent, **off_policy.sac(), example=(obs, actions, rewards, next_obs, done))

The order is Stable-Baselines3's: the critics are updated first, with targets from the old actor and temperature; then
the actor, with the updated critics, and the temperature; at last the target networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tilewright.support.classes import dataclass
from tilewright.train import losses
from tilewright.train.optimizers import Adam, Optimizer
from tilewright.train.stages import Average, Stage

Tensor = Any
Policy = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def sac(
    optimizer: Optimizer | None = None,
    *,
    gamma: float | None = 0.99,
    tau: float = 0.005,
    alpha: float | None = None,
    target_entropy: float | None = None,
    target: str = "target",
    temperature: str = "log_alpha",
    policy: Policy | None = None,
    noise: bool = False,
    critic_optimizer: Optimizer | None = None,
    temperature_optimizer: Optimizer | None = None,
) -> dict[str, Any]:
    """The stages and averages of SAC (Haarnoja et al., 2018), as arguments of `compile_step`.

    A batch is obs, actions [n, k], rewards [n, 1], next obs, done [n, 1], and further arrays as the arguments say.
    Metrics are `critic_loss`, `actor_objective`, norms of gradients, and if it learns, `alpha` (as it was) and
    `alpha_loss`.

    Args:
        optimizer: of the actor, and of the critics and the temperature where they have none of their own; Adam(3e-4).
        gamma: the discount; None: each batch contains discounts, [n, 1], after `done`.
        tau: the share of the critics that the target networks take over in each update.
        alpha: a constant temperature; None: exp of the model's parameter `temperature` (one element), which is trained.
        target_entropy: minus the number of actions if None.
        target, temperature: what the model's target network and the logarithm of its temperature are called.
        policy: `policy(model, obs)` gives mean and log_std; `model.actor(obs)` if None.
        noise: whether batches end with the actor's standard normal numbers, [n, k] for obs and for next obs. If not,
            the step draws them.
    """
    act: Policy = policy or (lambda model, obs: model.actor(obs))

    def split(batch: tuple[Tensor, ...]) -> _Batch:
        return _Batch.of(batch, gamma, 2 if noise else 0)

    def temperature_of(model: Any) -> Any:
        return alpha if alpha is not None else torch.exp(getattr(model, temperature).detach())

    def critics(model: Any, *arrays: Tensor) -> Tensor:
        batch = split(arrays)
        mean, log_std = act(model, batch.next_obs)
        drawn = batch.noise[1] if noise else torch.randn_like(mean)
        actions, log_prob = losses.squashed_normal(mean, log_std, drawn)
        following = torch.cat(list(getattr(model, target)(batch.next_obs, actions)), 1).min(1, keepdim=True).values
        wanted = batch.wanted(following - temperature_of(model) * log_prob.unsqueeze(1))
        return 0.5 * sum(F.mse_loss(values, wanted) for values in model.critic(batch.obs, batch.actions))

    def actor(model: Any, *arrays: Tensor) -> dict[str, Tensor]:
        batch = split(arrays)
        mean, log_std = act(model, batch.obs)
        actions, log_prob = losses.squashed_normal(mean, log_std, batch.noise[0] if noise else torch.randn_like(mean))
        least = torch.cat(list(model.critic(batch.obs, actions)), 1).min(1, keepdim=True).values
        weight = temperature_of(model)
        loss = (weight * log_prob.unsqueeze(1) - least).mean()
        if alpha is not None:
            return {"loss": loss, "actor_objective": loss * 1.0}
        log = getattr(model, temperature)
        entropy = -float(mean.shape[1]) if target_entropy is None else target_entropy
        other = -(log * (log_prob + entropy).detach().unsqueeze(1)).mean()
        # The actor's loss holds no gradient of the temperature, and this one none of the actor.
        return {"loss": loss + other, "actor_objective": loss, "alpha": weight.sum(), "alpha_loss": other}

    moved = optimizer or Adam(3e-4)
    own = ["actor.*"] if alpha is not None else ["actor.*", temperature]
    others = {} if temperature_optimizer is None or alpha is not None else {temperature: temperature_optimizer}
    stages = [
        Stage("critic", critics, ["critic.*"], critic_optimizer or moved),
        Stage("actor", actor, own, moved, groups=others),
    ]
    return {"loss": stages, "averages": [Average(f"{target}.", "critic.", tau)]}


def td3(
    optimizer: Optimizer | None = None,
    *,
    gamma: float | None = 0.99,
    tau: float = 0.005,
    delay: int = 2,
    target_noise: float = 0.2,
    largest_noise: float = 0.5,
    target: str = "target",
    actor_target: str = "actor_target",
    noise: bool = False,
    critic_optimizer: Optimizer | None = None,
) -> dict[str, Any]:
    """The stages and averages of TD3 (Fujimoto et al., 2018), as arguments of `compile_step`; of DDPG (Lillicrap et
    al., 2016) with one critic, a delay of 1 and no noise.

    A batch is as for `sac`, with one noise. The model's `actor(obs)` gives actions in [-1, 1]; the actor's loss
    uses the first critic. Metrics are `critic_loss`, and `actor_loss` of steps that update the actor.

    Args:
        optimizer, gamma, tau, target, noise, critic_optimizer: as for `sac`.
        delay: the actor and the target networks are updated in every so many updates of the critics.
        target_noise, largest_noise: deviation and bounds of the noise on the target's actions; no noise if it is 0.
        actor_target: what the model's target network of the actor is called.
    """

    def split(batch: tuple[Tensor, ...]) -> _Batch:
        return _Batch.of(batch, gamma, 1 if noise else 0)

    def critics(model: Any, *arrays: Tensor) -> Tensor:
        batch = split(arrays)
        actions = getattr(model, actor_target)(batch.next_obs)
        if target_noise:
            drawn = target_noise * (batch.noise[0] if noise else torch.randn_like(actions))
            actions = (actions + drawn.clamp(-largest_noise, largest_noise)).clamp(-1, 1)
        following = torch.cat(list(getattr(model, target)(batch.next_obs, actions)), 1).min(1, keepdim=True).values
        wanted = batch.wanted(following)
        return sum(F.mse_loss(values, wanted) for values in model.critic(batch.obs, batch.actions))

    def actor(model: Any, *arrays: Tensor) -> Tensor:
        batch = split(arrays)
        return -model.critic(batch.obs, model.actor(batch.obs))[0].mean()

    moved = optimizer or Adam(1e-3)
    stages = [
        Stage("critic", critics, ["critic.*"], critic_optimizer or moved),
        Stage("actor", actor, ["actor.*"], moved, every=delay),
    ]
    pairs = [(target, "critic"), (actor_target, "actor")]
    return {"loss": stages, "averages": [Average(f"{a}.", f"{b}.", tau, delay) for a, b in pairs]}


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch's transitions by name."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    done: Tensor
    discount: Tensor
    noise: tuple[Tensor, ...]

    @classmethod
    def of(cls, arrays: tuple[Tensor, ...], gamma: float | None, noises: int) -> _Batch:
        ends = len(arrays) - noises
        discount = arrays[5] if gamma is None else gamma
        obs, actions, rewards, next_obs, done = arrays[:5]
        return cls(obs, actions, rewards, next_obs, done, discount, arrays[ends:])

    def wanted(self, following: Tensor) -> Tensor:
        """The critics' targets, through which no gradient flows."""
        return (self.rewards + (1 - self.done) * self.discount * following).detach()


__all__ = ["sac", "td3"]
