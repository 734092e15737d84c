"""Stable-Baselines3: rollouts, `predict` and updates of a model that is being trained run on Tilewright.

    model = PPO("MlpPolicy", "CartPole-v1")
    tilewright.rl.sb3.accelerate(model, updates=True)
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
from typing import TYPE_CHECKING, Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback

from tilewright.live.store import Publisher
from tilewright.rl import heads
from tilewright.rl.node import publisher_of
from tilewright.rl.part import weights_of
from tilewright.rl.sb3_policy import Parts, parts_of
from tilewright.runtime.model import Model
from tilewright.support.errors import UnsupportedError

if TYPE_CHECKING:
    from tilewright.ir.selection import Precision
    from tilewright.rl.sb3_learner import Learner
    from tilewright.train.step import Step

__all__ = ["Accelerated", "Published", "accelerate", "publish"]


def accelerate(model: Any, *, threads: int = 1, updates: bool = False, precision: Precision = "fp32") -> Accelerated:
    """Let rollouts and `predict` of a model run on Tilewright, and if asked for, its updates, from now on.

        model = PPO("CnnPolicy", env)
        accelerated = tilewright.rl.sb3.accelerate(model)
        model.learn(1_000_000)
        accelerated.restore()                            # eager again; also at the end of a `with` block

    The policy's `forward` (actions, values, log-probabilities), `predict_values` and `_predict` are replaced on this
    object; anything with gradients, and in training mode, goes on in PyTorch. New
    weights are noticed by PyTorch's own version counters and by the optimizer's steps, at the next call after
    `train()`, `load_state_dict` or an optimizer's step; after writing through `.data` outside `train()`, call
    `refresh()`. Actions come from PyTorch's generator in the order of the eager policy: the same seed gives the same
    actions, as far as probabilities that differ by 1e-7 allow. A copy of the model, or one that was saved and loaded,
    is eager until it is accelerated itself.

    With `updates=True`, `train()` takes compiled learning steps (PPO, A2C, DQN, SAC, TD3, DDPG): the same batches,
    random numbers, losses, schedules and log, equal to rounding. The policy has its new weights after each `train()`,
    its optimizers' states are updated when they are asked for, by `save` for example, and what others write
    to either is taken over before the next `train()`.

    Args:
        model: an algorithm (PPO, A2C, DQN, SAC, TD3, DDPG), or one of their policies. If it lives on a GPU,
            observations and weights are copied to the CPU, and actions are drawn from the CPU's generator.
        threads: how many threads a call uses, the caller included.
        updates: whether to compile what `train()` does, too.
        precision: of the products of acting, as for `tw.compile`: "bf16", "fp16", "int8", "int8w" or "int4w".

    Raises:
        UnsupportedError: it holds something that is not compiled; all that stands in the way is listed.
    """
    policy = getattr(model, "policy", model)
    parts = parts_of(policy)
    if "_predict" in policy.__dict__:
        raise UnsupportedError("is accelerated already", where=f"policy {type(policy).__name__}")
    if not updates:
        return Accelerated(policy, parts, threads, None, precision)
    from tilewright.rl.sb3_updates import learner_of  # actors that only read a store do without the compiler

    return Accelerated(policy, parts, threads, learner_of(model, parts, threads), precision)


def publish(
    model: Any, name: str, *, directory: str | None = None, wait: float = 0.0, precision: Precision = "fp32"
) -> Published:
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
        precision: of the products, as for `accelerate`.
    """
    policy = getattr(model, "policy", model)
    parts = parts_of(policy)
    if isinstance(parts.head, heads.StateDependentNoise):
        raise UnsupportedError("state-dependent exploration (gSDE) is not published", where=type(policy).__name__)
    return Published(parts, publisher_of(name, parts.compile(1, name, precision), directory=directory, wait=wait))


class Accelerated:
    """The result of `accelerate`: a policy with compiled programs in place of its methods. A context manager that
    restores the policy.

    Args:
        policy: the policy that is hooked.
        parts: the parts of it that are compiled.
        threads: the number of threads of a call.
        learner: the compiled updates of the model; None if updates are not compiled.
        precision: of products.
    """

    def __init__(
        self,
        policy: Any,
        parts: Parts,
        threads: int,
        learner: Learner | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self._policy = policy
        self._learner = learner
        self._parts = parts
        self._head = parts.head
        self._action_shape = (-1, *policy.action_space.shape)
        self._hooked: list[tuple[Any, str]] = []
        self.model: Model = parts.compile(threads, type(policy).__name__, precision)
        self._names = [p.name for p in self.model.params]
        self._prefix = parts.prefix
        self._watch = parts.watch()
        self._dirty = False
        if parts.value is not None:
            self._hook("forward", self._forward)
            self._hook("predict_values", self._predict_values)
        self._hook("_predict", self._predict)
        self._hook("set_training_mode", self._set_training_mode)
        if learner is not None:
            self._hook("train", learner.train, learner.model)
            self._hook("_excluded_save_params", self._excluded_save_params, learner.model)

    @property
    def version(self) -> int:
        """The number of times that new weights were taken over since `accelerate`."""
        return self.model.version

    def refresh(self) -> None:
        """Copy the policy's present weights to the compiled programs now: after writing to them in a way that is not
        noticed."""
        if self._learner is not None:
            self._learner.doubt()
        self._follow()

    def _follow(self) -> None:
        weights = None if self._learner is None else self._learner.weights(self._prefix, self._names)
        if weights is None:
            self._watch.look()
        else:
            self._watch.recheck()
        self._dirty = False
        # Diverged weights go through, as they do in PyTorch.
        self.model.update(self._parts.weights(self.model) if weights is None else weights, finite=False)

    def restore(self) -> None:
        """End the acceleration: the policy, and the model's `train`, have their own methods again, and the optimizers
        get the states of compiled updates. May be called several times."""
        for owner, name in self._hooked:
            owner.__dict__.pop(name, None)
        self._hooked.clear()
        if self._learner is not None:
            self._learner.close()
            self._learner = None
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()

    @property
    def step(self) -> Step | None:
        """The compiled learning step; None if updates are not compiled, or after `restore`."""
        return None if self._learner is None else self._learner.step

    def _hook(self, name: str, function: Callable[..., Any], owner: Any = None) -> None:
        owner = self._policy if owner is None else owner
        owner.__dict__[name] = _Hook(owner, name, function)
        self._hooked.append((owner, name))

    # -- what replaces the policy's methods ----------------------------------------------------------------------------

    def _outputs(self, obs: Any) -> tuple[torch.Tensor, ...] | None:
        """The program's outputs as tensors, or None if PyTorch has to compute them (in training mode or with
        gradients)."""
        if torch.is_grad_enabled() or self._policy.training:
            return None
        inputs = self._parts.inputs(obs)
        if inputs is None:
            return None
        if self._dirty or self._watch.changed():
            self._follow()
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

    def _excluded_save_params(self) -> list[str]:
        """SB3's method: the names that are not saved. A saved model keeps its own methods."""
        assert self._learner is not None
        model = self._learner.model
        return [*type(model)._excluded_save_params(model), "train", "_excluded_save_params"]

    def _set_training_mode(self, mode: bool) -> None:
        if mode:
            self._dirty = True  # train() begins so, whatever it does to the weights
        if mode != self._policy.training:  # walking the whole tree costs more than a call
            type(self._policy).set_training_mode(self._policy, mode)


class Published:
    """The result of `publish`: a policy and the store to which its weights are published. A context manager."""

    def __init__(self, parts: Parts, publisher: Publisher) -> None:
        self._parts = parts
        self.publisher = publisher
        self._watch = parts.watch()

    @property
    def version(self) -> int:
        """The number of the newest version in the store, to which this object publishes."""
        return self.publisher.version

    def publish(self, version: int | None = None) -> int:
        """Publish the policy's present weights. Returns their version.

        Raises:
            WeightError: they hold NaN or infinity, or the version does not grow; nothing is changed then.
        """
        self._watch.look()
        return self.publisher.publish(weights_of(self._parts.owner), version=version)

    def publish_if_changed(self) -> None:
        """Publish the policy's weights as the next version if they have changed since this object published last or was
        created."""
        if self._watch.changed():
            self.publish()

    def callback(self) -> BaseCallback:
        """A callback for `learn` that publishes whenever weights are new: before each rollout, and at the end."""
        return _PublishCallback(self)

    def close(self) -> None:
        """Close the publisher, so that nothing more can be published. The store and its last version stay for the
        actors."""
        self._watch.close()
        self.publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _PublishCallback(BaseCallback):
    """A callback that publishes the policy's weights, if they have changed, when a rollout begins and when training
    ends."""

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
    """Replaces a method of one object; copies and pickles of the object have the method of its class."""

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
