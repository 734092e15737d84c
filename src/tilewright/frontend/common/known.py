"""Arrays that are known when compiling: of numbers, or of numbers and expressions of symbolic dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


MAX_FOLDED = 4096
"""Elements of the largest array that is folded when compiling; larger ones are left to run time, or to `prepare`."""


def elementwise(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a node and known arrays, from one of their elements; None where `f` gives None, or for too many."""

    def run(call: object, *arrays: Any) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        if math.prod(shape) > MAX_FOLDED:
            return None
        flat = [np.broadcast_to(a, shape).reshape(-1).tolist() for a in arrays]
        values = [f(*args) for args in zip(*flat, strict=True)]
        return None if any(v is None for v in values) else object_array(values, shape)

    return run
