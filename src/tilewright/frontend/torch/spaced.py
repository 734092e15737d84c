"""`torch.linspace` and `torch.logspace` of an open number of steps.

PyTorch's operators take the number of steps as a constant of the program. While a module is traced, they are replaced
by operators whose number of steps may be a symbolic size: `tilewright::linspace(start, end, steps)`,
`tilewright::logspace(start, end, steps, base)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_linspace, _logspace = torch.linspace, torch.logspace


def _linear(start: Any, end: Any, steps: Any, *, dtype: Any = None) -> Any:
    return _linspace(start, end, steps, dtype=dtype)


def _powers(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None) -> Any:
    return _logspace(start, end, steps, base, dtype=dtype)


def _sized(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None) -> Any:
    return torch.empty(steps, dtype=torch.get_default_dtype() if dtype is None else dtype)


for _name, _more, _function in (("linspace", "", _linear), ("logspace", "float base=10.0, ", _powers)):
    torch.library.define(
        f"tilewright::{_name}", f"(Scalar start, Scalar end, SymInt steps, {_more}*, ScalarType? dtype=None) -> Tensor"
    )
    torch.library.impl(f"tilewright::{_name}", "CompositeExplicitAutograd", _function)
    torch.library.register_fake(f"tilewright::{_name}", _sized)


def _replaced(start: Any, end: Any, steps: Any, **rest: Any) -> Any:
    """The replacement of `torch.linspace`. With tensors as ends, or with `out`, PyTorch's own is called."""
    dtype = rest.pop("dtype", None)
    rest.pop("device", None)
    if isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor) or any(rest.values()):
        return _linspace(start, end, steps, dtype=dtype, **rest)
    return torch.ops.tilewright.linspace(start, end, steps, dtype=dtype)


def _replaced_powers(start: Any, end: Any, steps: Any, base: Any = 10.0, **rest: Any) -> Any:
    """The replacement of `torch.logspace`, with the same exceptions as for `torch.linspace`."""
    dtype = rest.pop("dtype", None)
    rest.pop("device", None)
    if isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor) or any(rest.values()):
        return _logspace(start, end, steps, base, dtype=dtype, **rest)
    return torch.ops.tilewright.logspace(start, end, steps, base, dtype=dtype)


@contextlib.contextmanager
def open_steps() -> Iterator[None]:
    """Within the context, `torch.linspace` and `torch.logspace` accept a symbolic number of steps."""
    torch.linspace, torch.logspace = _replaced, _replaced_powers
    try:
        yield
    finally:
        torch.linspace, torch.logspace = _linspace, _logspace


__all__ = ["open_steps"]
