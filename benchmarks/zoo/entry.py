"""One architecture of the zoo: a module with random weights, and an example of what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Entry:
    """A module in evaluation mode and its arguments: a tuple of them, or a dict by name."""

    module: nn.Module
    example: tuple[Any, ...] | dict[str, Any]

    def call(self, function: Callable[..., Any]) -> Any:
        """The result of a function, the module or its compiled form, for the example."""
        if isinstance(self.example, dict):
            return function(**self.example)
        return function(*self.example)

    def tensors(self) -> list[torch.Tensor]:
        """The example's tensors, in order."""
        values = self.example.values() if isinstance(self.example, dict) else self.example
        return [leaf for leaf in torch.utils._pytree.tree_leaves(list(values)) if isinstance(leaf, torch.Tensor)]


SMALL = 1e-2
"""Parameters whose largest magnitude is below it say nothing; the usual random weights are of 0.02 and more."""


def awaken(module: nn.Module) -> None:
    """Random numbers for the parameters that a library starts at nearly nothing.

    Heads of zeros and scales of 1e-6 would hide what the layers before them compute.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and parameter.abs().max() < SMALL:
                parameter.normal_(std=0.1)


Builder = Callable[[], Entry]
"""Makes an entry; the libraries are imported when it is called."""


def tokens(vocabulary: int, length: int, batch: int = 1) -> torch.Tensor:
    """Random token numbers, i64[batch, length]. The first three stay out: models treat padding and ends differently."""
    return torch.randint(3, vocabulary, (batch, length))
