"""Arrays that are known when compiling: of numbers, or of numbers and expressions of symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr
from tilewright.ops.dims import dim


def canonical(array: Any, t: DType) -> Any:
    """A numeric array when all elements are numbers, else an object array of ints and expressions."""
    array = np.asarray(array)
    if array.dtype != object:
        return array.astype(t.numpy, copy=False)
    flat = [_number(v) for v in array.reshape(-1).tolist()]
    if not any(isinstance(v, Expr) for v in flat):
        return np.array(flat, t.numpy).reshape(array.shape) if flat else np.zeros(array.shape, t.numpy)
    return object_array(flat, array.shape)


def _number(value: Any) -> Any:
    if isinstance(value, Expr):
        value = dim(value)
        return value.value if isinstance(value, Const) else value
    return value


def object_array(values: Sequence[Any], shape: Sequence[int] | None = None) -> Any:
    """An object array of numbers and expressions (NumPy must not look into the expressions)."""
    result = np.empty(len(values), object)
    result[:] = list(values)
    return result.reshape(shape if shape is not None else (len(values),))
