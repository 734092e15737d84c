"""Functions of PyTorch that ask in Python whether numbers make sense, as a trace cannot.

    loss = gaussian_nll_loss(mean, y, var)      raises where any(var < 0)
    loss = where(any(var < 0), nan, loss)       as it is traced

So a step of training gets NaN for a loss that has none, and gradients of 0, where eager PyTorch raises.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class ChecksAsNumbers(TorchFunctionMode):  # type: ignore[misc]
    """While this lasts `gaussian_nll_loss` is NaN for negative variances."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.gaussian_nll_loss:
            return func(*args, **kwargs)
        asked: list[torch.Tensor] = []

        def answer(condition: torch.Tensor) -> bool:
            asked.append(condition.any())
            return False

        with mock.patch.object(torch, "any", answer):
            result = func(*args, **kwargs)
        for condition in asked:
            result = torch.where(condition, torch.nan, result)
        return result


__all__ = ["ChecksAsNumbers"]
