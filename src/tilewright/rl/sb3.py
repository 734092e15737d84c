"""Stable-Baselines3: rollouts and `predict` of a model that is being trained run on Tilewright.

    model = PPO("MlpPolicy", "CartPole-v1")
    tilewright.rl.sb3.accelerate(model)
    model.learn(100_000)

and for actors in other processes, which need neither PyTorch nor Stable-Baselines3 nor a compiler:

    published = tilewright.rl.sb3.publish(model, "policy")
    model.learn(100_000, callback=published.callback())         # each train() is followed by a publish

    actor = tw.attach("policy")                                  # elsewhere on this machine
    actions, log_probs = tilewright.rl.sampling.sample(actor.run({"obs": obs}), rng)

Supported are ActorCriticPolicy (PPO, A2C and their kin; Mlp, Cnn, MultiInput, own feature extractors) with Discrete,
MultiDiscrete, MultiBinary and Box actions, gSDE included, and `predict` of DQN, SAC, TD3 and DDPG. Anything else is one
UnsupportedError. Off-policy algorithms that train after every step have new weights for every call; for them this
pays in evaluation and where they train seldom.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
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

from tilewright.compiler import compile as compile_module
from tilewright.rl import heads
from tilewright.rl.node import publisher_of
from tilewright.rl.part import Part, Tensors, Watch, weights_of
from tilewright.runtime.model import Model
from tilewright.runtime.weights import Publisher
from tilewright.support.errors import Problems, UnsupportedError

__all__ = ["Accelerated", "Published", "accelerate", "publish"]

_HEADS: dict[type, Callable[[Any], heads.Head]] = {
    CategoricalDistribution: heads.Categorical,
    MultiCategoricalDistribution: heads.MultiCategorical,
    BernoulliDistribution: heads.Bernoulli,
    DiagGaussianDistribution: heads.Gaussian,
    StateDependentNoiseDistribution: lambda policy: heads.StateDependentNoise(policy, policy.action_net),
}
# What the compiled program stands for; a subclass that overrides one of these computes something else.
_FIXED = ("forward", "_predict", "predict_values", "get_distribution", "_get_action_dist_from_latent")


def accelerate(model: Any, *, threads: int = 1) -> Accelerated:
    """Let rollouts and `predict` of a model run on Tilewright, from now on.

        model = PPO("CnnPolicy", env)
        accelerated = tilewright.rl.sb3.accelerate(model)
        model.learn(1_000_000)
        accelerated.restore()                            # eager again; also at the end of a `with` block

    The policy's `forward` (actions, values, log-probabilities), `predict_values` and `_predict` are replaced on this
    object; training (`evaluate_actions`, anything with gradients, anything in training mode) goes on in PyTorch. New
    weights are noticed by PyTorch's own version counters and by the optimizer's steps, at the next call after
    `train()`, `load_state_dict` or an optimizer's step; after writing through `.data` outside `train()`, call
    `refresh()`. Actions come from PyTorch's generator in the order of the eager policy: the same seed gives the same
    actions, as far as probabilities that differ by 1e-7 allow. A copy of the model, or one that was saved and loaded,
    is eager until it is accelerated itself.

    Args:
        model: an algorithm (PPO, A2C, DQN, SAC, TD3, DDPG), or one of their policies. If it lives on a GPU,
        observations
            and weights are brought to the CPU, and actions are drawn from the CPU's generator.
        threads: how many threads a call uses, the caller included.

    Raises:
        UnsupportedError: it holds something that is not compiled; all that stands in the way is listed.
    """
    policy = getattr(model, "policy", model)
    parts = _parts(policy)
    if "_predict" in policy.__dict__:
        raise UnsupportedError("is accelerated already", where=f"policy {type(policy).__name__}")
    return Accelerated(policy, parts, threads)


def publish(model: Any, name: str, *, directory: str | None = None, wait: float = 0.0) -> Published:
    """Compile a model's policy and open the weight store `name` for actors on this machine.

    Outputs have names that `tilewright.rl.sampling` knows: `log_probs` and `probs` (Discrete), `log_probs_0`,
    `probs_0`, ... (MultiDiscrete), `flip_probs`, ... (MultiBinary), `mean` and `log_std` (Box), `squashed_mean` and
    `log_std` (SAC), `q_values` (DQN), `actions` (TD3), and `values` (batch, 1) for actor-critics. Inputs are `obs`,
    or the keys of a Dict space. Weights are those of the policy's `state_dict()` (of `policy.actor` for SAC and TD3,
    `policy.q_net` for DQN).

    Args:
        model: an algorithm or a policy, as for `accelerate`. gSDE is refused: its noise belongs to one process.
        name: of the store.
        directory, wait: as for `tw.Publisher`.
    """
    policy = getattr(model, "policy", model)
    parts = _parts(policy)
    if isinstance(parts.head, heads.StateDependentNoise):
        raise UnsupportedError("state-dependent exploration (gSDE) is not published", where=type(policy).__name__)
    return Published(parts, publisher_of(name, parts.compile(1, name), directory=directory, wait=wait))


class Accelerated:
    """What `accelerate` gives: the compiled program behind a policy. A context manager that restores the policy.

    Args:
        policy: the policy that is hooked.
        parts: what is compiled of it.
        threads: of a call.
    """

    def __init__(self, policy: Any, parts: _Parts, threads: int) -> None:
        self._policy = policy
        self._parts = parts
        self._head = parts.head
        self._action_shape = (-1, *policy.action_space.shape)
        self._hooked: list[str] = []
        self.model: Model = parts.compile(threads, type(policy).__name__)
        self._watch = parts.watch()
        self._dirty = False
        if parts.value is not None:
            self._hook("forward", self._forward)
            self._hook("predict_values", self._predict_values)
        self._hook("_predict", self._predict)
        self._hook("set_training_mode", self._set_training_mode)

    @property
    def version(self) -> int:
        """How often weights were taken over since `accelerate`."""
        return self.model.version

    def refresh(self) -> None:
        """Take the policy's present weights over now."""
        self._watch.look()
        self._dirty = False
        # Diverged weights go through, as they do in PyTorch.
        self.model.update(self._parts.weights(self.model), finite=False)

    def restore(self) -> None:
        """Make the policy eager again."""
        for name in self._hooked:
            self._policy.__dict__.pop(name, None)
        self._hooked.clear()
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()

    def _hook(self, name: str, function: Callable[..., Any]) -> None:
        self._policy.__dict__[name] = _Hook(self._policy, name, function)
        self._hooked.append(name)

    # -- what replaces the policy's methods ----------------------------------------------------------------------------

    def _outputs(self, obs: Any) -> tuple[torch.Tensor, ...] | None:
        """The program's outputs for tensors, or None if it is PyTorch's turn."""
        if torch.is_grad_enabled() or self._policy.training:
            return None
        inputs = self._parts.inputs(obs)
        if inputs is None:
            return None
        if self._dirty or self._watch.changed():
            self.refresh()
        outputs = self.model(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _forward(self, obs: Any, deterministic: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs = self._outputs(obs)
        if outputs is None:
            policy = self._policy
            actions, values, log_prob = type(policy).forward(policy, obs, deterministic)
            return actions, values, log_prob
        actions, log_prob = self._head.sample(outputs[:-1], deterministic)
        assert log_prob is not None, "actor-critics know the probabilities of their actions"
        return actions.reshape(self._action_shape), outputs[-1], log_prob

    def _predict_values(self, obs: Any) -> Any:
        outputs = self._outputs(obs)
        return type(self._policy).predict_values(self._policy, obs) if outputs is None else outputs[-1]

    def _predict(self, observation: Any, deterministic: bool = False) -> Any:
        outputs = self._outputs(observation)
        if outputs is None:
            return type(self._policy)._predict(self._policy, observation, deterministic)
        return self._head.sample(outputs[: self._head.count], deterministic)[0]

    def _set_training_mode(self, mode: bool) -> None:
        if mode:
            self._dirty = True  # train() begins so, whatever it does to the weights
        if mode != self._policy.training:  # walking the whole tree costs more than a call
            type(self._policy).set_training_mode(self._policy, mode)


class Published:
    """What `publish` gives: a policy and the store that it is published to. A context manager."""

    def __init__(self, parts: _Parts, publisher: Publisher) -> None:
        self._parts = parts
        self.publisher = publisher
        self._watch = parts.watch()

    @property
    def version(self) -> int:
        """The newest version in the store."""
        return self.publisher.version

    def publish(self, version: int | None = None) -> int:
        """Publish the policy's present weights. Gives their version.

        Raises:
            WeightError: they hold NaN or infinity, or the version does not grow; nothing is changed then.
        """
        self._watch.look()
        return self.publisher.publish(weights_of(self._parts.owner), version=version)

    def publish_if_changed(self) -> None:
        """Publish the policy's weights if they are others than those last published."""
        if self._watch.changed():
            self.publish()

    def callback(self) -> BaseCallback:
        """A callback for `learn` that publishes whenever weights are new: before each rollout, and at the end."""
        return _PublishCallback(self)

    def close(self) -> None:
        """Close the publisher. The last version stays for the actors."""
        self._watch.close()
        self.publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _PublishCallback(BaseCallback):
    """Publishes new weights between training and the next rollout."""

    def __init__(self, published: Published) -> None:
        super().__init__()
        self._published = published

    def _on_rollout_start(self) -> None:
        self._published.publish_if_changed()

    def _on_training_end(self) -> None:
        self._published.publish_if_changed()

    def _on_step(self) -> bool:
        return True


class _Hook:
    """A method of one object. Copies of the object and pickles of it get the class's own method."""

    def __init__(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _own_method, (self._owner, self._name)


def _own_method(owner: Any, name: str) -> Any:
    return getattr(type(owner), name).__get__(owner)


# -- what of a policy is compiled
# ---------------------------------------------------------------------------------------


class _Parts:
    """The compiled part of a policy.

    Args:
        policy: the policy, which knows how to preprocess observations.
        owner: the module whose weights are read: the policy, or its actor or network.
        head: the action distribution.
        latent: observations to the features that the head takes.
        value: observations to values, None if the policy has none; computed together with the latent.
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

    def compile(self, threads: int, name: str) -> Model:
        """The program: observations in, the head's outputs and values out."""
        examples = dict(zip(self._keys or ["obs"], self._examples, strict=True))
        training = self.policy.training
        self.policy.set_training_mode(False)
        try:
            with torch.no_grad():
                return compile_module(Part(self.owner, examples, self._function), examples, threads=threads, name=name)
        finally:
            self.policy.set_training_mode(training)

    def _function(self, inputs: Tensors) -> Tensors:
        obs = inputs["obs"] if self._keys is None else inputs
        latent = self._latent(obs)
        if self.value is None:
            return self.head.trace(latent)
        return {**self.head.trace(latent[0]), "values": self.value(latent[1])}

    def inputs(self, obs: Any) -> list[torch.Tensor] | None:
        """Observations as the program takes them; None if it does not take them."""
        if self._keys is None:
            if obs.dtype is self._dtype and self._on_cpu:
                return [obs]
            found = [obs]
        else:
            found = [obs[key] for key in self._keys]
        taken = []
        for tensor, dtype in zip(found, self._dtypes, strict=True):
            if tensor.dtype is not dtype:
                if dtype is not torch.float32:
                    return None  # only conversions to the network's own type change nothing
                tensor = tensor.float()
            taken.append(tensor if self._on_cpu else tensor.cpu())
        return taken

    def watch(self) -> Watch:
        """What tells of new weights."""
        found = [getattr(module, "optimizer", None) for module in (self.owner, self.policy)]
        return Watch(self.owner, {id(o): o for o in found if o is not None}.values())

    def weights(self, model: Model) -> dict[str, torch.Tensor]:
        """The present weights that the program reads."""
        return weights_of(self.owner, [p.name for p in model.params])


def _example(policy: Any) -> list[torch.Tensor]:
    """Observations of zeros, (2, ...), as `collect_rollouts` hands them to the policy."""
    space = policy.observation_space
    if isinstance(space, spaces.Dict):
        zeros: Any = {key: np.zeros((2, *s.shape), s.dtype) for key, s in space.spaces.items()}
        tensors, _ = policy.obs_to_tensor(zeros)
        return [tensors[key] for key in space.spaces]
    return [policy.obs_to_tensor(np.zeros((2, *space.shape), space.dtype))[0]]


def _parts(policy: Any) -> _Parts:
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
        return _Parts(policy, network, heads.Greedy(network), _features(network), None)
    actor = policy.actor
    if kind is TD3Policy:
        return _Parts(policy, actor, heads.Deterministic(actor), _features(actor), None)
    features = _features(actor)
    head: heads.Head = heads.StateDependentNoise(actor, actor.mu) if actor.use_sde else heads.Squashed(actor)
    return _Parts(policy, actor, head, lambda obs: actor.latent_pi(features(obs)), None)


def _features(network: Any) -> Callable[[Any], Any]:
    return lambda obs: network.extract_features(obs, network.features_extractor)


def _actor_critic(policy: Any) -> _Parts:
    def latent(obs: Any) -> tuple[Any, Any]:
        features = policy.extract_features(obs)
        pi, vf = (features, features) if policy.share_features_extractor else features
        return policy.mlp_extractor.forward_actor(pi), policy.mlp_extractor.forward_critic(vf)

    return _Parts(policy, policy, _HEADS[type(policy.action_dist)](policy), latent, policy.value_net)
