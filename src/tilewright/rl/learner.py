"""`Learner`: the updates of a library's model on a compiled learning step.

Other code sees the model's own tensors only: the step's parameters are copied to them after each round of updates, and
optimizer states when they are asked for (`state_dict`, `save`). Changes that other code makes to them are copied to the
step before the next round.
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
    """The compiled learning step of a model, and the transfer between the step's parameters and the model's tensors.

    Args:
        where: the name of the model in errors.
        policy: the networks, which are traced in training mode.
        module: the module from which the step is traced.
        tensors: the model's own tensors by their names in `module`.
        optimizers: the model's optimizers that the step replaces.
        arguments: further arguments of `compile_step`.
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
        """Copy to the step what other code has written to the model's tensors and optimizers since the last `push`."""
        if self._versions != self._now():
            for name, view in {**self.step.parameters, **self.step.buffers}.items():
                view[...] = self._owners[name].detach().numpy()
            self._versions = self._now()
        if self._states:
            self._states = False
            self._take_states()

    def doubt(self) -> None:
        """Treat the model's tensors as written to, whatever their version counters say."""
        self._versions = -1

    def push(self) -> None:
        """Copy the step's parameters and buffers to the model's tensors, so that other code sees what has been learned;
        the optimizers' states are copied by `give` alone."""
        turn = self.step.turn
        if turn not in self._views:
            held = {**self.step.parameters, **self.step.buffers}
            self._views[turn] = list(self._tensors.values()), [torch.from_numpy(held[name]) for name in self._tensors]
        into, out = self._views[turn]
        torch._foreach_copy_(into, out)
        self._versions = self._now()

    def give(self) -> None:
        """Copy the step's parameters, buffers and optimizer states to the model's tensors and optimizers, so that eager
        training can continue from there."""
        self.push()
        self._give_states()

    def take(self) -> None:
        """Copy the model's tensors and the optimizers' states to the step, also where version counters show no write:
        for the end of eager training that began with `give`."""
        self.doubt()
        self._states = True
        self.pull()

    def weights(self, prefix: str, names: Sequence[str]) -> dict[str, Array] | None:
        """Views of the step's parameters, by their names in a part of the policy, valid until the next step. None if
        the step lacks some of them, or other code has written to the policy.

        Args:
            prefix: the prefix of the part's names in the policy.
            names: the names in the part.
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
        """End compiled updates: the model gets the whole state from which eager training can continue."""
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
        """A tuple for each trained parameter: its PyTorch optimizer, the model's tensor, and the compiled step's arrays
        of optimizer state for it, by the names that PyTorch's state has."""
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
        """The number of updates that the step is to have done, from the numbers `counts` that the optimizers have done:
        the largest, 0 if there are none. Subclasses override it."""
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
        """The number of updates between two runs of an optimizer: 1 if it runs at each."""
        return 1


def optimizer_of(optimizer: Any, problems: Problems) -> Optimizer:
    """The `tw.train` optimizer with the settings of a PyTorch optimizer; settings without a counterpart are added to
    `problems`."""
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
