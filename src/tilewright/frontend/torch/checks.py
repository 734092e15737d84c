"""Replacements, while a module is traced, of functions of PyTorch that look at a tensor's numbers in Python.

    loss = gaussian_nll_loss(mean, y, var)      raises where any(var < 0)
    loss = where(any(var < 0), nan, loss)       as it is traced

So where eager PyTorch raises an error for a loss that is undefined, a training step gets NaN for it and gradients of 0.
Distributions do not check their arguments, as under `torch.compile`. `nn.Transformer` asks whether a mask is
causal, which a program need not know: the answer is False. An assignment at a position that is a tensor of one integer
becomes one at a position that an operator selects:

    cache[:, place] = x                         PyTorch asks for the number `place`
    cache.select(1, place.item()).copy_(x)      as it is traced
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

_CAUSAL_MASK = transformer._detect_is_causal_mask.__code__


class ChecksAsNumbers(TorchFunctionMode):  # type: ignore[misc]
    """While the mode is active `gaussian_nll_loss` returns NaN for negative variances, instead of raising an error,
    which depends on data; places to write to may be tensors of one integer; and `nn.Transformer` takes each mask as it
    is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__setitem__ and (part := _selected(*args[:2])) is not None:
            part[...] = args[2]
            return None
        if func is torch.Tensor.__bool__ and _asks_for_causal_mask():
            return False
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
    """The module `torch` with `any` replaced by the function `answer`."""

    def __init__(self, answer: Callable[[torch.Tensor], bool]) -> None:
        self.any = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _reading(function: Any, names: dict[str, Any]) -> Any:
    """A copy of `function` whose code reads the global variables in `names` from there; the original, which other
    threads may call, is unchanged."""
    defaults = function.__defaults__
    result = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, defaults)
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def _selected(x: torch.Tensor, index: Any) -> torch.Tensor | None:
    """The view `x[index]` for an index with tensors that hold one integer each; None if it has no such tensor, or other
    entries than numbers, ranges, None and "..."."""
    places = list(index) if isinstance(index, tuple) else [index]
    tensors = [p for p in places if isinstance(p, torch.Tensor)]
    if not tensors or any(p.dim() or p.dtype in (torch.bool, torch.uint8) or p.is_floating_point() for p in tensors):
        return None
    if not all(p is None or p is ... or isinstance(p, torch.Tensor | slice | int) for p in places):
        return None
    if any(isinstance(p, bool) for p in places):
        return None
    before = next((k for k, p in enumerate(places) if p is ...), len(places))
    view = x[tuple(slice(None) if isinstance(p, torch.Tensor) else p for p in places)]
    # From the last place on, so that an axis that goes moves none that is still to go.
    for k in reversed([k for k, p in enumerate(places) if isinstance(p, torch.Tensor)]):
        if k < before:
            axis = sum(p is None or isinstance(p, slice | torch.Tensor) for p in places[:k])
        else:
            axis = -1 - sum(p is None or isinstance(p, slice) for p in places[k + 1 :])
        view = view.select(axis, places[k].item())
    return view


def _asks_for_causal_mask() -> bool:
    """Whether a tensor's truth value is requested by `nn.Transformer` to find out if a mask is causal."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _CAUSAL_MASK:
        frame = frame.f_back if frame.f_code.co_name == "__torch_function__" else None
    return frame is not None


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
