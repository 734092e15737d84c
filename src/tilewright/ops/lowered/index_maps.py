"""References of operators that move elements, evaluated from the index maps in their tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import dtype
from tilewright.ir.evaluate import values_of
from tilewright.ir.expr import Expr, Load, Var, as_int
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dims
from tilewright.ops.registry import OpDef, Types, register
from tilewright.te import Tensor
from tilewright.te.tensors import ComputeOp

Array = np.ndarray[Any, Any]
Out = tuple[TensorType, ...]
A = TypeVar("A", bound=Attrs)


def register_map(
    name: str,
    attrs: type[A],
    infer: Callable[[Types, A], Out],
    compute: Callable[[Sequence[Tensor | None], A, Out], tuple[Tensor, ...]],
    **more: Any,
) -> OpDef[A]:
    """Register, and return, the operator `name`, which only moves elements from one input to one output. `attrs`,
    `infer` and `compute` are its class of attributes, type rule and tensor expression; its reference evaluates the
    expression at all positions."""

    def reference(arrays: Sequence[Any], attrs: A) -> tuple[Any, ...]:
        x = np.asarray(arrays[0])
        type = TensorType(dtype(x.dtype), dims(x.shape))
        source = te.placeholder(type.shape, type.dtype, "x")
        (result,) = compute([source], attrs, infer([type], attrs))
        return (_elements(result, {source: x}),)

    return register(OpDef(name, "injective", attrs, infer, reference, compute, **more))


def _elements(tensor: Tensor, arrays: Mapping[Tensor, Array]) -> Array:
    """The array of all elements of a tensor expression, from the arrays of the tensors that it reads."""
    if tensor in arrays:
        return arrays[tensor]
    stage = tensor.op
    assert isinstance(stage, ComputeOp) and not stage.reduce_axis
    shape = [as_int(d) or 0 for d in stage.shape]
    point = dict(zip((axis.var for axis in stage.axis), np.ogrid[tuple(map(slice, shape))], strict=True))

    def leaf(e: Expr) -> Array:
        """The array of a variable's or a load's values. An index outside of the tensor, which a condition masks out,
        gives some element."""
        match e:
            case Var():
                return point[e]
            case Load(buffer, indices) if isinstance(buffer, Tensor):
                source = _elements(buffer, arrays)
                places = [values_of(i, leaf) for i in indices]
                if not source.size:
                    return np.zeros(np.broadcast_shapes(*(p.shape for p in places)), source.dtype)
                return source[tuple(np.clip(p, 0, d - 1) for p, d in zip(places, source.shape, strict=True))]
        raise TypeError(f"{e} is no index map")

    value = values_of(stage.bodies[tensor.index], leaf)
    return np.array(np.broadcast_to(value, shape), tensor.dtype.numpy)
