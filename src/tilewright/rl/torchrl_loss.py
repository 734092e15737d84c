"""TorchRL: a loss module's updates on a compiled learning step.

    learner = tilewright.rl.torchrl_loss.learner(loss, tw.train.Adam(3e-4), data, clip=0.5)
    for _ in range(epochs):
        for batch in replay_buffer:
            found = learner(batch)                  # {"loss": ..., "loss_objective": ..., "gradient_norm": ...}
        learner.push()                              # what collectors publish: the loss module's own tensors

It replaces `loss(batch)`, the sum of the entries called `loss_...`, `backward`, clipping and the optimizer's step. For
a `ClipPPOLoss`, the caller computes advantages beforehand, as usual. Coefficients have their values at compile time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.objectives import LossModule

from tilewright.frontend.torch.alone import tracing_alone
from tilewright.support.errors import CallError, UnsupportedError
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import Optimizer
from tilewright.train.step import Step

__all__ = ["Learner", "learner"]

Key = str | tuple[str, ...]
READ_BESIDE = ("advantage", "value_target")
"""Entries that a loss module reads but does not list among its keys, since it may compute them itself."""


def learner(
    loss: LossModule,
    optimizer: Optimizer,
    example: TensorDictBase,
    *,
    keys: Sequence[Key] | None = None,
    **arguments: Any,
) -> Learner:
    """Compile the update of a loss module.

    Args:
        loss: the loss module whose parameters are updated; it must not have target networks, which other code changes
            between updates.
        optimizer: an optimizer of `tw.train`.
        example: a batch, whose size and types every batch has.
        keys: the entries that the loss reads; None: those that it lists, advantages and value targets, if the example
            has them.
        arguments: further arguments of `tw.compile_step`: `clip`, `threads`, `on_nonfinite`, ...

    Raises UnsupportedError for a loss with target networks, ModelError for one that cannot be traced.
    """
    targets = sorted({name.partition(".")[0] for name in loss.state_dict() if name.startswith("target_")})
    if targets:
        hint = "tw.train.off_policy.sac() and .td3() are whole updates with their targets"
        raise UnsupportedError("its target networks would stay as they are", where=_name(loss), got=targets, hint=hint)
    chosen = _chosen(loss, example) if keys is None else list(keys)
    size = example.batch_size

    def total(module: LossModule, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        with _traceable():
            out = module(TensorDict(dict(zip(chosen, tensors, strict=True)), size))
        result = {str(name): value for name, value in out.items() if isinstance(value, torch.Tensor)}
        losses = [value for name, value in result.items() if name.startswith("loss_")]
        return {"loss": torch.stack(losses).sum(), **{n: v.detach() for n, v in result.items() if v.numel() == 1}}

    step = compile_step(loss, total, optimizer, tuple(example.get(key) for key in chosen), **arguments)
    return Learner(loss, step, chosen)


class Learner:
    """A loss module whose updates are compiled.

    Attributes:
        step: the `Step`.
        keys: the entries of a batch that it reads.
    """

    def __init__(self, loss: LossModule, step: Step, keys: Sequence[Key]) -> None:
        self.step = step
        self.keys = tuple(keys)
        self._tensors = {name: p for name, p in loss.named_parameters() if name in step.parameters}

    def __call__(self, batch: TensorDictBase) -> dict[str, float]:
        """Update the parameters from a batch. Returns the loss, all outputs of the loss module, and the norm of the
        gradients. Raises CallError listing entries that the batch lacks, and the errors of `Step`."""
        tensors = [batch.get(key, None) for key in self.keys]
        missing = [str(key) for key, tensor in zip(self.keys, tensors, strict=True) if tensor is None]
        if missing:
            raise CallError("the batch lacks entries", got=", ".join(missing))
        return self.step(*tensors)

    def push(self) -> None:
        """Copy the step's parameters to the loss module's own tensors, which its networks share."""
        with torch.no_grad():
            for name, view in self.step.parameters.items():
                self._tensors[name].copy_(torch.from_numpy(view))

    def pull(self) -> None:
        """Copy the loss module's own tensors to the step's parameters, after other code has written to them."""
        for name, view in self.step.parameters.items():
            view[...] = self._tensors[name].detach().numpy()


def _chosen(loss: LossModule, example: TensorDictBase) -> list[Key]:
    """The entries of the example that the loss reads."""
    named = [*loss.in_keys, *(getattr(loss.tensor_keys, name, name) for name in READ_BESIDE)]
    there = set(example.keys(include_nested=True, leaves_only=True))
    return [key for key in dict.fromkeys(named) if key in there]


def _name(loss: LossModule) -> str:
    return f"loss {type(loss).__name__}"


class _AllFinite:
    def all(self) -> bool:
        return True


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Make losses traceable: TorchRL samples if an entropy is not finite, which a program cannot test; a step with such
    a loss is skipped."""
    with tracing_alone():  # the function is the whole process's
        before = torch.Tensor.isfinite
        torch.Tensor.isfinite = lambda _tensor: _AllFinite()
        try:
            yield
        finally:
            torch.Tensor.isfinite = before
