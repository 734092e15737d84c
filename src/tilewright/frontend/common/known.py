"""Arrays that are known when compiling, whose elements are numbers or expressions of symbolic dimensions, and their
evaluation through nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.dims import dim, known
from tilewright.ops.interpret import evaluate_attr
from tilewright.ops.registry import get


def canonical(array: Any, t: DType) -> Any:
    """A numeric array of type `t` if all elements are numbers, else an object array of integers and expressions."""
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
    """The numbers and expressions `values` as an object array (NumPy must not look into the expressions)."""
    result = np.empty(len(values), object)
    result[:] = list(values)
    return result.reshape(shape if shape is not None else (len(values),))


MAX_FOLDED = 4096
"""Elements of the largest array that is folded when compiling; larger ones are left to run time, or to `prepare`."""


def elementwise(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, a function of a node and single elements, as function of a node and broadcast arrays. It returns None if `f`
    does for some element, or for more than MAX_FOLDED elements."""

    def run(call: object, *arrays: Any) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        if math.prod(shape) > MAX_FOLDED:
            return None
        flat = [np.broadcast_to(a, shape).reshape(-1).tolist() for a in arrays]
        values = [f(*args) for args in zip(*flat, strict=True)]
        return None if any(v is None for v in values) else object_array(values, shape)

    return run


def as_objects(array: Any) -> Any:
    """A numeric array as an object array of Python numbers; object arrays unchanged."""
    return array if array.dtype == object else object_array(array.reshape(-1).tolist(), array.shape)


def decide(condition: Any) -> bool | None:
    """True or False where the condition is proven or disproven, else None."""
    if not isinstance(condition, Expr):
        return bool(condition)
    if known(condition):
        return True
    return False if known(~condition) else None


def evaluated(nodes: Sequence[Node], arrays: Mapping[Value, Any]) -> dict[Value, Any] | None:
    """The arrays of all outputs of the nodes, computed by the operators' NumPy references; None where one has more than
    MAX_FOLDED elements, or depends on a symbol or on a value without an array."""
    sizes = [as_int(v.type.size) for node in nodes for v in node.outputs]
    if any(size is None or size > MAX_FOLDED for size in sizes):
        return None
    results = dict(arrays)
    try:
        for node in nodes:
            operands = [None if v is None else results[v] for v in node.inputs]
            attrs = node.attrs.mapped(lambda v: evaluate_attr(v, {}))
            with np.errstate(all="ignore"):
                results.update(zip(node.outputs, get(node.op).reference(operands, attrs), strict=True))
    except KeyError:
        return None
    return results
