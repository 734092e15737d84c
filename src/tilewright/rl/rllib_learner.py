"""RLlib's new API stack: a learner of PPO whose updates are a compiled learning step.

    learner = tilewright.rl.rllib_learner.TilewrightPPOLearner
    algorithm = PPOConfig().environment("CartPole-v1").learners(learner_class=learner).build_algo()

It stands for what `PPOTorchLearner` does with a minibatch: forward, loss, gradients, clipping by the global norm, Adam.
Episodes, advantages, minibatches, schedules and metrics stay RLlib's, and so do the tensors of the module, which have
the step's parameters after each `update`. With `TilewrightEnvRunner` acting and learning are both compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_KL_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.torch_utils import explained_variance

from tilewright.frontend.torch.checks import unchecked_distributions
from tilewright.rl.learner import Learner, optimizer_of
from tilewright.rl.rllib_batch import Path, flat, nested, traceable
from tilewright.support.errors import Problems, UnsupportedError

__all__ = ["TilewrightPPOLearner"]

READ = (
    Columns.ACTIONS,
    Columns.ACTION_LOGP,
    Columns.ACTION_DIST_INPUTS,
    Postprocessing.ADVANTAGES,
    Postprocessing.VALUE_TARGETS,
)
"""The keys of a minibatch that the loss reads beside observations and, where there is one, the mask of the rows that
count."""
ADAM = "an optimizer of Adam alone, which configure_optimizers_for_module registers"


class TilewrightPPOLearner(PPOTorchLearner):
    """A PPOTorchLearner whose updates are native calls.

    Each uses one thread; `threads` in a subclass changes that. The first minibatch compiles the step, for its sizes;
    one of other sizes is learned from as RLlib does it. A batch whose loss or gradients are not finite moves nothing.
    Raises UnsupportedError, when the learner is built or at the first minibatch, listing all obstacles: several
    modules, learners or optimizers, recurrent modules, losses of one's own, gradients clipped otherwise.
    """

    threads = 1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._compiled: _Updates | None = None

    def build(self) -> None:
        """RLlib's method; also checks that the updates can be compiled."""
        super().build()
        _check(self)

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """RLlib's method; also copies to the step what other code has written to the module's tensors."""
        super().before_gradient_based_update(timesteps=timesteps)
        if self._compiled is not None:
            self._compiled.pull()

    def _update(self, batch: dict[str, Any]) -> tuple[Any, Any, Any]:
        ((module_id, rows),) = batch.items()
        if self._compiled is None:
            self._compiled = _Updates(self, module_id, rows)
        if not self._compiled.takes(rows):
            self._compiled.give()
            result: tuple[Any, Any, Any] = super()._update(batch)
            self._compiled.take()
            return result
        self._compute_off_policyness(batch)
        loss, metrics = self._compiled(rows)
        self.metrics.log_dict(metrics, key=module_id, window=1)
        return {}, {module_id: loss}, {}

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """RLlib's method; first copies the step's parameters to the module's tensors."""
        if self._compiled is not None:
            self._compiled.push()
        super().after_gradient_based_update(timesteps=timesteps)


def _check(learner: Any) -> None:
    """Raise UnsupportedError listing all obstacles that show before there is a batch."""
    config, modules = learner.config, dict(learner.module.items())
    problems = Problems()
    if type(learner).compute_loss_for_module is not PPOTorchLearner.compute_loss_for_module:
        problems.add(UnsupportedError("has a loss of its own", expected="that of PPOTorchLearner"))
    if len(modules) != 1:
        problems.add(UnsupportedError("has several modules", got=sorted(modules)))
    if config.num_learners > 1:
        problems.add(UnsupportedError("is one of several learners", got=f"num_learners={config.num_learners}"))
    if str(learner.device) != "cpu":
        problems.add(UnsupportedError("is not on the CPU", got=learner.device))
    if config.grad_clip and config.grad_clip_by != "global_norm":
        got = f"grad_clip_by={config.grad_clip_by!r}"
        problems.add(UnsupportedError("clips gradients otherwise", expected="'global_norm'", got=got))
    for name in ("_torch_grad_scaler_class", "_torch_lr_scheduler_classes"):
        if getattr(config, name):
            problems.add(UnsupportedError(f"has a {name}"))
    for name, module in modules.items():
        if module.unwrapped().is_stateful():
            problems.add(UnsupportedError("recurrent modules are not trained on a compiled step", where=name))
        if len(learner.get_optimizers_for_module(name)) != 1:
            problems.add(UnsupportedError("has several optimizers", where=name, expected=ADAM))
    problems.raise_if_any(f"{type(learner).__name__} cannot be compiled", kind=UnsupportedError)


class _Updates(Learner):
    """The compiled step of a module.

    Args:
        learner: RLlib's learner, which owns the module.
        name: the module's name.
        rows: a minibatch.
    """

    def __init__(self, learner: Any, name: str, rows: Mapping[str, Any]) -> None:
        self._owner, self._name = learner, name
        module = learner.module[name].unwrapped()
        ((optimizer_name, optimizer),) = learner.get_optimizers_for_module(name)
        problems = Problems()
        compiled = optimizer_of(optimizer, problems)
        problems.raise_if_any(f"{type(learner).__name__} cannot be compiled", kind=UnsupportedError)
        self._ways: list[Path] = list(flat({Columns.OBS: rows[Columns.OBS]}))
        self._masked = Columns.LOSS_MASK in rows
        self._ways += [(key,) for key in (*READ, *([Columns.LOSS_MASK] if self._masked else []))]
        batch = self._read(rows)
        self._sizes = [(t.shape, t.dtype) for t in batch]
        config = learner.config.get_config_for_module(name)
        arguments = {
            "loss": ppo_loss(config, self._ways),
            "optimizer": compiled,
            "clip": config.grad_clip or None,
            "example": [*batch, *self._coefficients()],
            "threads": learner.threads,
            "on_nonfinite": "skip",
        }
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        self._optimizer, self._optimizer_name = optimizer, optimizer_name
        with traceable(module), unchecked_distributions():
            super().__init__(type(learner).__name__, module, module, tensors, [optimizer], arguments)

    def takes(self, rows: Mapping[str, Any]) -> bool:
        """Whether a minibatch has the sizes and types that the step was compiled for."""
        if (Columns.LOSS_MASK in rows) is not self._masked:
            return False
        return [(t.shape, t.dtype) for t in self._read(rows)] == self._sizes

    def __call__(self, rows: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        """Learn from a minibatch. Returns the loss, and metrics by RLlib's names."""
        self.step.lr = float(self._optimizer.param_groups[0]["lr"])
        result = self.step(*self._read(rows), *self._coefficients())
        norm = result.pop("gradient_norm", None)
        config = self._owner.config
        if norm is not None and (config.grad_clip or config.log_gradients):
            result[f"gradients_{self._optimizer_name}_global_norm"] = norm
        return result.pop("loss"), result

    def _read(self, rows: Mapping[str, Any]) -> list[Any]:
        return [functools.reduce(getitem, way, rows) for way in self._ways]

    def _coefficients(self) -> list[Any]:
        """The coefficients of the KL divergence and of the entropy, which RLlib changes between updates."""
        kl = self._owner.curr_kl_coeffs_per_module[self._name]
        entropy = self._owner.entropy_coeff_schedulers_per_module[self._name].get_current_value()
        return [np.array(float(each), np.float32) for each in (kl, entropy)]


def ppo_loss(config: Any, ways: list[Path]) -> Callable[..., dict[str, Any]]:
    """The loss of `PPOTorchLearner.compute_loss_for_module`, with its metrics. Masked rows are left out of sums rather
    than of tensors, so that tensor sizes are static.

    Args:
        config: of the module.
        ways: the key paths of the minibatch's tensors that the loss takes, followed by those of the coefficients of
            divergence and entropy.
    """

    def loss(module: Any, *tensors: Any) -> dict[str, Any]:
        *read, kl_coefficient, entropy_coefficient = tensors
        batch = nested(zip(ways, read, strict=True))
        mask = batch.get(Columns.LOSS_MASK)

        def mean(values: Any) -> Any:
            if mask is None:
                return values.mean()
            return torch.where(mask, values, 0.0).sum() / mask.sum()

        outputs = module._forward_train(batch)
        now = module.get_train_action_dist_cls().from_logits(outputs[Columns.ACTION_DIST_INPUTS])
        then = module.get_exploration_action_dist_cls().from_logits(batch[Columns.ACTION_DIST_INPUTS])
        ratio = torch.exp(now.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP])
        advantages, targets = batch[Postprocessing.ADVANTAGES], batch[Postprocessing.VALUE_TARGETS]
        clipped = torch.clamp(ratio, 1 - config.clip_param, 1 + config.clip_param)
        surrogate = torch.min(advantages * ratio, advantages * clipped)
        entropy = now.entropy()
        divergence = mean(then.kl(now)) if config.use_kl_loss else torch.zeros(())
        each = -surrogate - entropy_coefficient * entropy
        result = {ENTROPY_KEY: mean(entropy), POLICY_LOSS_KEY: -mean(surrogate), LEARNER_RESULTS_KL_KEY: divergence}
        values = torch.zeros(())
        if config.use_critic:
            values = module.compute_values(batch, embeddings=outputs.get(Columns.EMBEDDINGS))
            squares = torch.pow(values - targets, 2.0)
            bounded = torch.clamp(squares, 0, config.vf_clip_param)
            each = each + config.vf_loss_coeff * bounded
            result |= {VF_LOSS_KEY: mean(bounded), LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: mean(squares)}
        else:
            result |= {VF_LOSS_KEY: values, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: values}
        total = mean(each)
        if config.use_kl_loss:
            total = total + kl_coefficient * divergence
        result[LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY] = explained_variance(targets, values)
        return {"loss": total, **{name: value.detach() for name, value in result.items()}}

    return loss
