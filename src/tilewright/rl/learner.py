"""`Learner`: the updates of a library's model on a compiled learning step.

The model's own tensors stay what the world sees: they get the step's parameters after each round of updates, and what
its optimizers keep when it is asked for (`state_dict`, `save`). What others put into them is taken over before the
next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tilewright.support.errors import Problems, UnsupportedError
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import SGD, Adam, Optimizer, RMSprop
from tilewright.train.step import Step

Array = np.ndarray[Any, Any]


class Learner:
    """The compiled step of a model, and the way between its parameters and the model's tensors.

    Args:
        where: what the model is called in errors.
        policy: the networks, which are traced in training mode.
        module: what the step is traced of.
        tensors: the model's own tensors by the names that they have in `module`.
        optimizers: of the model, those that the step stands for.
        arguments: of `compile_step`, beside the module.
    """

    def __init__(
        self,
        where: str,
        policy: torch.nn.Module,
        module: torch.nn.Module,
        tensors: Mapping[str, torch.Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        arguments: Mapping[str, Any],
    ) -> None:
        modes = [(part, part.training) for part in policy.modules()]
        self._train_mode(policy)
        try:
            # Diverged weights go through, as they do in PyTorch.
            self.step: Step = compile_step(module, **{"on_nonfinite": "keep", **arguments})
        finally:
            for part, training in modes:
                part.training = training
        held = {**self.step.parameters, **self.step.buffers}
        unknown = sorted(name for name, array in held.items() if name not in tensors or array.dtype != np.float32)
        if unknown:
            raise UnsupportedError("learns what a step does not hold", where=where, got=unknown)
        self._tensors = {name: tensors[name].detach() for name in held}
        self._owners = {name: tensors[name] for name in held}
        self._optimizers = list(optimizers)
        self._versions = -1
        self._states = True
        self._handles: list[Any] = []
        for optimizer in optimizers:
            self._handles += [
                optimizer.register_state_dict_pre_hook(self._asked),
                optimizer.register_load_state_dict_post_hook(self._loaded),
            ]
        self._parts: dict[int, dict[str, Array]] = {}
        self._views: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self.pull()

    def _train_mode(self, policy: torch.nn.Module) -> None:
        policy.train()

    def pull(self) -> None:
        """Take over what others have put into the model's tensors and optimizers since the last `push`."""
        if self._versions != self._now():
            for name, view in {**self.step.parameters, **self.step.buffers}.items():
                view[...] = self._owners[name].detach().numpy()
            self._versions = self._now()
        if self._states:
            self._states = False
            self._take_states()

    def doubt(self) -> None:
        """Take the model's tensors for written to, whatever their counters say."""
        self._versions = -1

    def push(self) -> None:
        """Give the model's tensors the step's parameters."""
        turn = self.step.turn
        if turn not in self._views:
            held = {**self.step.parameters, **self.step.buffers}
            self._views[turn] = list(self._tensors.values()), [torch.from_numpy(held[name]) for name in self._tensors]
        into, out = self._views[turn]
        torch._foreach_copy_(into, out)
        self._versions = self._now()

    def give(self) -> None:
        """Give the model's tensors and its optimizers all that eager training goes on from."""
        self.push()
        self._give_states()

    def take(self) -> None:
        """Take over all that eager training has come to since `give`."""
        self.doubt()
        self._states = True
        self.pull()

    def weights(self, prefix: str, names: Sequence[str]) -> dict[str, Array] | None:
        """The step's parameters by the names that they have in a part of the policy, without a copy. They hold until
        the next step. None if the step does not hold all of them, or others have written to the policy.

        Args:
            prefix: how the part's names begin in the policy.
            names: in the part.
        """
        if self._versions != self._now():
            return None
        turn = self.step.turn
        if turn not in self._parts:
            held = {**self.step.parameters, **self.step.buffers}
            self._parts[turn] = {name: held[prefix + name] for name in names if prefix + name in held}
        result = self._parts[turn]
        return result if len(result) == len(names) else None

    def close(self) -> None:
        """Leave the model with all that eager training goes on from."""
        self.pull()
        self._give_states()
        for handle in self._handles:
            handle.remove()

    def _now(self) -> int:
        return sum(tensor._version for tensor in self._owners.values())

    def _asked(self, *_: Any) -> None:
        if not self._states:  # what was loaded last is newer
            self._give_states()

    def _loaded(self, *_: Any) -> None:
        self._states = True

    def _states_of(self) -> list[tuple[Any, Any, dict[str, Array]]]:
        """The state of each parameter that an optimizer moves: the optimizer, the parameter, what is kept of it."""
        owner = {
            id(p): optimizer for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]
        }
        states = self.step.states
        results = []
        for name in self.step.parameters:
            tensor = self._owners[name]
            results.append((owner[id(tensor)], tensor, {key: views[name] for key, views in states.items()}))
        return results

    def _take_states(self) -> None:
        counts = set()
        for optimizer, tensor, retained in self._states_of():
            state = optimizer.state.get(tensor, {})
            for key, view in retained.items():
                view[...] = state[key].detach().numpy() if key in state else 0
            counts.add((id(optimizer), int(state.get("step", 0))))
        self.step.count = self.count_of([count for _, count in sorted(counts)])

    def count_of(self, counts: Sequence[int]) -> int:
        """The step's count from those of the optimizers."""
        return max(counts, default=0)

    def _give_states(self) -> None:
        for optimizer, tensor, retained in self._states_of():
            if not retained:  # PyTorch's gradient descent does not count either
                continue
            state = optimizer.state[tensor]
            every = self._every(optimizer)
            state["step"] = torch.tensor(float(self.step.count // every))
            for key, view in retained.items():
                state[key] = torch.from_numpy(view.copy())

    def _every(self, optimizer: Any) -> int:
        """In which updates an optimizer moves: each so many-th."""
        return 1


def optimizer_of(optimizer: Any, problems: Problems) -> Optimizer:
    """Ours with the settings of PyTorch's; what it has no counterpart for is noted."""
    where = f"optimizer {type(optimizer).__name__}"
    groups = optimizer.param_groups
    if len(groups) != 1:
        problems.add(UnsupportedError("has several groups of parameters", where=where))
    group = groups[0]
    for flag in ("maximize", "amsgrad", "centered", "nesterov", "differentiable"):
        if group.get(flag):
            problems.add(UnsupportedError(f"{flag} is not supported", where=where))
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        return Adam(float(group["lr"]), tuple(group["betas"]), group["eps"], group["weight_decay"], decoupled=decoupled)
    if type(optimizer) is torch.optim.RMSprop and not group["momentum"]:
        return RMSprop(float(group["lr"]), group["alpha"], group["eps"], group["weight_decay"])
    if type(optimizer) is torch.optim.SGD and not group["momentum"]:
        return SGD(float(group["lr"]), weight_decay=group["weight_decay"])
    expected = "torch.optim's Adam or AdamW, or RMSprop or SGD without momentum"
    problems.add(UnsupportedError("has no compiled counterpart", where=where, expected=expected))
    return Adam()
