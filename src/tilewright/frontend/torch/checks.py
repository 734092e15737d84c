"""Functions of PyTorch that ask in Python whether numbers make sense, as a trace cannot.

    loss = gaussian_nll_loss(mean, y, var)      raises where any(var < 0)
    loss = where(any(var < 0), nan, loss)       as it is traced

So a step of training gets NaN for a loss that has none, and gradients of 0, where eager PyTorch raises. Distributions
are not asked at all, as under `torch.compile`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class ChecksAsNumbers(TorchFunctionMode):  # type: ignore[misc]
    """While the mode is active `gaussian_nll_loss` returns NaN for negative variances, instead of raising an error,
    which depends on data."""

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


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """While the context is active, distributions do not check their arguments, unless their own `validate_args` says
    so."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


__all__ = ["ChecksAsNumbers", "unchecked_distributions"]
