"""The parts of a Stable-Baselines3 policy that are compiled, for each kind of policy and of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from tilewright.rl import heads
from tilewright.rl.part import Part, Tensors, Watch, compile_part, weights_of
from tilewright.runtime.model import Model
from tilewright.support.errors import Problems, UnsupportedError

if TYPE_CHECKING:
    from tilewright.ir.selection import Precision

_HEADS: dict[type, Callable[[Any], heads.Head]] = {
    CategoricalDistribution: heads.Categorical,
    MultiCategoricalDistribution: heads.MultiCategorical,
    BernoulliDistribution: heads.Bernoulli,
    DiagGaussianDistribution: heads.Gaussian,
    StateDependentNoiseDistribution: lambda policy: heads.StateDependentNoise(policy, policy.action_net),
}
# What the compiled program stands for; a subclass that overrides one of these computes something else.
_FIXED = ("forward", "_predict", "predict_values", "get_distribution", "_get_action_dist_from_latent")


class Parts:
    """The parts of a policy that are compiled, and what is needed to compile and call them.

    Args:
        policy: the policy, which knows how to preprocess observations.
        owner: the module that has the weights: the policy, or its actor or Q network.
        head: the action distribution.
        latent: the function from observations to the features that the head takes.
        value: the function from observations to values, computed together with the latent; None if the policy has no
            values.
    """

    def __init__(self, policy: Any, owner: Any, head: heads.Head, latent: Callable[[Any], Any], value: Any) -> None:
        self.policy = policy
        self.owner = owner
        self.head = head
        self.value = value
        self._latent = latent
        space = policy.observation_space
        self._keys = list(space.spaces) if isinstance(space, spaces.Dict) else None
        self._examples = _example(policy)
        self._dtypes = [example.dtype for example in self._examples]
        self._dtype = self._dtypes[0]
        self._on_cpu = self._examples[0].device.type == "cpu"

    def compile(self, threads: int, name: str, precision: Precision = "fp32") -> Model:
        """Compile the program, called `name`, from observations to the head's outputs and values, for `threads` threads
        in `precision`; returns the model."""
        examples = dict(zip(self._keys or ["obs"], self._examples, strict=True))
        training = self.policy.training
        self.policy.set_training_mode(False)
        try:
            part = Part(self.owner, examples, self._function)
            return compile_part(part, examples, name=name, threads=threads, precision=precision)
        finally:
            self.policy.set_training_mode(training)

    def _function(self, inputs: Tensors) -> Tensors:
        obs = inputs["obs"] if self._keys is None else inputs
        latent = self._latent(obs)
        if self.value is None:
            return self.head.trace(latent)
        return {**self.head.trace(latent[0]), "values": self.value(latent[1])}

    def outputs(self, obs: Any) -> Tensors:
        """The outputs of the compiled program by name, computed by PyTorch from the observations `obs`: a tensor, or a
        dict of them for a Dict space."""
        return self._function({"obs": obs} if self._keys is None else obs)

    def inputs(self, obs: Any) -> list[torch.Tensor] | None:
        """Observations as the program takes them, one tensor for each key of a Dict space; None if the program cannot
        take them."""
        if self._keys is None:
            if obs.dtype is self._dtype and self._on_cpu:
                return [obs]
            results = [obs]
        else:
            results = [obs[key] for key in self._keys]
        selected = []
        for tensor, dtype in zip(results, self._dtypes, strict=True):
            if tensor.dtype is not dtype:
                if dtype is not torch.float32:
                    return None  # only conversions to the network's own type change nothing
                tensor = tensor.float()
            selected.append(tensor if self._on_cpu else tensor.cpu())
        return selected

    @property
    def prefix(self) -> str:
        """The prefix that the names of the owner's weights have in the policy's `state_dict()`; "" if the owner is the
        policy."""
        name = next(name for name, part in self.policy.named_modules() if part is self.owner)
        return f"{name}." if name else ""

    def watch(self) -> Watch:
        """A new object that notices when the owner's weights change, by writing to them or by a step of the owner's or
        policy's optimizer."""
        results = [getattr(module, "optimizer", None) for module in (self.owner, self.policy)]
        return Watch(self.owner, {id(o): o for o in results if o is not None}.values())

    def weights(self, model: Model) -> dict[str, torch.Tensor]:
        """The owner's present weights, by name: those that the program of `model` reads."""
        return weights_of(self.owner, [p.name for p in model.params])


def _example(policy: Any) -> list[torch.Tensor]:
    """Zero observations, (2, ...), in the form in which `collect_rollouts` passes them to the policy."""
    space = policy.observation_space
    if isinstance(space, spaces.Dict):
        zeros: Any = {key: np.zeros((2, *s.shape), s.dtype) for key, s in space.spaces.items()}
        tensors, _ = policy.obs_to_tensor(zeros)
        return [tensors[key] for key in space.spaces]
    return [policy.obs_to_tensor(np.zeros((2, *space.shape), space.dtype))[0]]


def parts_of(policy: Any) -> Parts:
    """The parts of a Stable-Baselines3 policy that are compiled. Raises UnsupportedError listing all obstacles."""
    problems = Problems()
    kind = next((k for k in (ActorCriticPolicy, DQNPolicy, SACPolicy, TD3Policy) if isinstance(policy, k)), None)
    where = f"policy {type(policy).__name__}"
    if kind is None:
        raise UnsupportedError(
            "is not a policy that can be compiled",
            where=where,
            expected="ActorCriticPolicy (PPO, A2C), or the policy of DQN, SAC, TD3 or DDPG",
        )
    for name in _FIXED:
        if getattr(type(policy), name, None) is not getattr(kind, name, None):
            problems.add(UnsupportedError(f"overrides {name}", where=where, expected=f"that of {kind.__name__}"))
    if kind is ActorCriticPolicy and type(policy.action_dist) not in _HEADS:
        problems.add(UnsupportedError(f"has actions from {type(policy.action_dist).__name__}", where=where))
    problems.raise_if_any("the policy is not supported", kind=UnsupportedError)
    if kind is ActorCriticPolicy:
        return _actor_critic(policy)
    if kind is DQNPolicy:
        network = policy.q_net
        return Parts(policy, network, heads.Greedy(network), _features(network), None)
    actor = policy.actor
    if kind is TD3Policy:
        return Parts(policy, actor, heads.Deterministic(actor), _features(actor), None)
    features = _features(actor)
    head: heads.Head = heads.StateDependentNoise(actor, actor.mu) if actor.use_sde else heads.Squashed(actor)
    return Parts(policy, actor, head, lambda obs: actor.latent_pi(features(obs)), None)


def _features(network: Any) -> Callable[[Any], Any]:
    return lambda obs: network.extract_features(obs, network.features_extractor)


def _actor_critic(policy: Any) -> Parts:
    def latent(obs: Any) -> tuple[Any, Any]:
        features = policy.extract_features(obs)
        pi, vf = (features, features) if policy.share_features_extractor else features
        return policy.mlp_extractor.forward_actor(pi), policy.mlp_extractor.forward_critic(vf)

    return Parts(policy, policy, _HEADS[type(policy.action_dist)](policy), latent, policy.value_net)
