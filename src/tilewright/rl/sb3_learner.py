"""`Learner`: the updates of a Stable-Baselines3 model on a compiled learning step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.rl import learner


class Learner(learner.Learner, ABC):
    """The compiled updates of a Stable-Baselines3 model; a subclass for each algorithm defines `train`.

    Args:
        model: the algorithm, such as a `PPO`, whose policy is trained.
        module, tensors, optimizers, arguments: as for `tilewright.rl.learner.Learner`.
    """

    def __init__(
        self,
        model: Any,
        module: torch.nn.Module,
        tensors: Mapping[str, torch.Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        arguments: Mapping[str, Any],
    ) -> None:
        self.model = model
        super().__init__(type(model).__name__, model.policy, module, tensors, optimizers, arguments)

    def _train_mode(self, policy: Any) -> None:
        policy.set_training_mode(True)  # target networks stay as they are

    @abstractmethod
    def train(self, *args: Any, **kwargs: Any) -> None:
        """The method in the place of the model's own `train`."""
