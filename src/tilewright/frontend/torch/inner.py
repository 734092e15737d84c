"""Gradients that a module computes in its forward pass, as gradient penalties and forces do.

PyTorch's exporter traces some of them. What it does not trace is refused by name, and so is `backward`, which writes to
parameters, before it does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tilewright.support.errors import UnsupportedError

_HINT = "leave such a loss to eager PyTorch, or compile the part without gradients alone (tw.differentiable)"


class InnerGradientsError(UnsupportedError):
    """A module computes gradients in its forward pass, in a way that is not traced."""

    def __init__(self) -> None:
        what = (
            "gradients within what is traced (torch.autograd.grad, backward, torch.func's grad, grad_and_value, vjp, "
            "jacrev, hessian) are not supported"
        )
        super().__init__(what, hint=_HINT)


class InnerGradients(TorchFunctionMode):  # type: ignore[misc]
    """While the mode is active `Tensor.backward` raises InnerGradientsError. `computed`: whether `torch.autograd.grad`
    was called, which other functions for gradients call, too."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.backward:
            raise InnerGradientsError
        self.computed |= func is torch.autograd.grad
        return func(*args, **(kwargs or {}))


__all__ = ["InnerGradients", "InnerGradientsError"]
