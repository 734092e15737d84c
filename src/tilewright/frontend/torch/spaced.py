"""`torch.linspace` of an open number of steps.

PyTorch's operator takes the number of steps as a constant of the program. While a module is traced, one of ours stands
in its place whose steps may be a size: `tilewright::linspace(start, end, steps)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_linspace = torch.linspace


def _computed(start: Any, end: Any, steps: Any, *, dtype: Any = None) -> Any:
    return _linspace(start, end, steps, dtype=dtype)


def _sized(start: Any, end: Any, steps: Any, *, dtype: Any = None) -> Any:
    return torch.empty(steps, dtype=torch.get_default_dtype() if dtype is None else dtype)


torch.library.define(
    "tilewright::linspace", "(Scalar start, Scalar end, SymInt steps, *, ScalarType? dtype=None) -> Tensor"
)
torch.library.impl("tilewright::linspace", "CompositeExplicitAutograd", _computed)
torch.library.register_fake("tilewright::linspace", _sized)


def _replaced(start: Any, end: Any, steps: Any, **rest: Any) -> Any:
    """`torch.linspace` as users call it. Of tensors, or with memory that is given, it is PyTorch's own."""
    dtype = rest.pop("dtype", None)
    rest.pop("device", None)
    if isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor) or any(rest.values()):
        return _linspace(start, end, steps, dtype=dtype, **rest)
    return torch.ops.tilewright.linspace(start, end, steps, dtype=dtype)


@contextlib.contextmanager
def open_steps() -> Iterator[None]:
    """While this lasts `torch.linspace` takes any number of steps."""
    torch.linspace = _replaced
    try:
        yield
    finally:
        torch.linspace = _linspace


__all__ = ["open_steps"]
