"""`torch.linspace` and `torch.logspace` of an open number of steps.

PyTorch's operators take the number of steps as a constant of the program. While a module is traced, they are replaced
by operators whose number of steps may be a symbolic size: `tilewright::linspace(start, end, steps)`,
`tilewright::logspace(start, end, steps, base)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _linear(start: Any, end: Any, steps: Any, *, dtype: Any = None) -> Any:
    return torch.linspace(start, end, steps, dtype=dtype)


def _powers(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None) -> Any:
    return torch.logspace(start, end, steps, base, dtype=dtype)


def _sized(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None) -> Any:
    return torch.empty(steps, dtype=torch.get_default_dtype() if dtype is None else dtype)


for _name, _more, _function in (("linspace", "", _linear), ("logspace", "float base=10.0, ", _powers)):
    torch.library.define(
        f"tilewright::{_name}", f"(Scalar start, Scalar end, SymInt steps, {_more}*, ScalarType? dtype=None) -> Tensor"
    )
    torch.library.impl(f"tilewright::{_name}", "CompositeExplicitAutograd", _function)
    torch.library.register_fake(f"tilewright::{_name}", _sized)


class OpenSteps(TorchFunctionMode):  # type: ignore[misc]
    """While the mode is active, `torch.linspace` and `torch.logspace` accept a symbolic number of steps in this thread.
    With tensors as ends, or with `out`, PyTorch's own are called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own = _OPERATORS.get(func)
        if own is None or not _is_of_numbers(*args, **kwargs):
            return func(*args, **kwargs)
        return own(*args, **{name: value for name, value in kwargs.items() if name in _ARGUMENTS})


def _is_of_numbers(*args: Any, **kwargs: Any) -> bool:
    ends = [*args[:2], kwargs.get("start"), kwargs.get("end")]
    rest = [value for name, value in kwargs.items() if name not in (*_ARGUMENTS, "device")]
    return not any(rest) and not any(isinstance(x, torch.Tensor) for x in ends)


_OPERATORS = {torch.linspace: torch.ops.tilewright.linspace, torch.logspace: torch.ops.tilewright.logspace}
_ARGUMENTS = ("start", "end", "steps", "base", "dtype")


__all__ = ["OpenSteps"]
