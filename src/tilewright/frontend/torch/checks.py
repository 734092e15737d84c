"""Functions of PyTorch that ask in Python whether numbers make sense, as a trace cannot.

    loss = gaussian_nll_loss(mean, y, var)      raises where any(var < 0)
    loss = where(any(var < 0), nan, loss)       as it is traced

So a step of training gets NaN for a loss that has none, and gradients of 0, where eager PyTorch raises. Distributions
are not asked at all, as under `torch.compile`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

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

        # Modes below this one would call PyTorch's own function instead.
        own = _reading(func, {"torch": _Torch(answer), "has_torch_function_variadic": lambda *_: False})
        result = own(*args, **kwargs)
        for condition in asked:
            result = torch.where(condition, torch.nan, result)
        return result


class _Torch:
    """PyTorch's module, but for its function `any`."""

    def __init__(self, answer: Callable[[torch.Tensor], bool]) -> None:
        self.any = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _reading(function: Any, names: dict[str, Any]) -> Any:
    """The function, for whose code these global names mean something else: no other thread sees that."""
    defaults = function.__defaults__
    result = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, defaults)
    result.__kwdefaults__ = function.__kwdefaults__
    return result


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """While the context is active, distributions do not check their arguments, unless their own `validate_args` says
    so. This is PyTorch's switch of the whole process, which TorchDynamo turns off too."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


__all__ = ["ChecksAsNumbers", "unchecked_distributions"]
