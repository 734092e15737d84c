"""Conversions between tensors and arrays, and their types. Imports no slow part of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilewright.frontend.torch.dtypes import element_type
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import TensorType
from tilewright.runtime.interop import as_numpy, describe, in_kind_of
from tilewright.support.errors import CallError, UnsupportedError


def tensor_type(tensor: torch.Tensor) -> TensorType:
    return TensorType(element_type(tensor.dtype), tuple(as_expr(int(d)) for d in tensor.shape))


def to_tensor(array: Any) -> torch.Tensor:
    """A tensor of a NumPy array's numbers, in memory of its own. Raises CallError for elements that PyTorch lacks."""
    try:
        return in_kind_of(torch.empty(0), np.array(array, order="C"))
    except (TypeError, ValueError) as error:
        raise CallError("PyTorch has no tensors of such an array", got=f"{describe(array)}: {error}") from None


def to_array(tensor: torch.Tensor, where: str) -> Any:
    """A dense copy of a tensor's numbers. Raises UnsupportedError, about `where`, for tensors without data, such as
    fake ones."""
    if tensor.device.type == "meta":
        raise UnsupportedError("the tensor is on the meta device and has no numbers", where=where)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedError("sparse and quantized tensors are not supported", where=where, got=tensor.layout)
    return np.array(as_numpy(tensor.detach().cpu(), where), order="C")
