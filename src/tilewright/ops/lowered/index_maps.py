"""References of operators that move elements, evaluated from the index maps in their tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Const, Expr, Load, Op, Var, as_int
from tilewright.ir.graph import TensorType
from tilewright.ir.scalar_ops import OPS
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
    """Register an operator of one input and one output without sums; its reference is its expression at all places."""

    def reference(arrays: Sequence[Any], attrs: A) -> tuple[Any, ...]:
        x = np.asarray(arrays[0])
        type = TensorType(dtype(x.dtype), dims(x.shape))
        source = te.placeholder(type.shape, type.dtype, "x")
        (result,) = compute([source], attrs, infer([type], attrs))
        return (_elements(result, {source: x}),)

    return register(OpDef(name, "injective", attrs, infer, reference, compute, **more))


def _elements(tensor: Tensor, arrays: Mapping[Tensor, Array]) -> Array:
    """All elements of a tensor, each axis of which is one of a grid."""
    if tensor in arrays:
        return arrays[tensor]
    stage = tensor.op
    assert isinstance(stage, ComputeOp) and not stage.reduce_axis
    shape = [as_int(d) or 0 for d in stage.shape]
    point = dict(zip((axis.var for axis in stage.axis), np.ogrid[tuple(map(slice, shape))], strict=True))
    value = _value(stage.bodies[tensor.index], point, arrays)
    return np.array(np.broadcast_to(value, shape), tensor.dtype.numpy)


def _value(e: Expr, point: Mapping[Var, Array], arrays: Mapping[Tensor, Array]) -> Array:
    """An expression at all points; a load outside of its tensor, which a condition leaves out, gives some element."""
    match e:
        case Var():
            return point[e]
        case Const(number):
            return np.asarray(number, e.dtype.numpy)
        case Load(buffer, indices) if isinstance(buffer, Tensor):
            source = _elements(buffer, arrays)
            places = [_value(i, point, arrays) for i in indices]
            if not source.size:
                return np.zeros(np.broadcast_shapes(*(p.shape for p in places)), source.dtype)
            return source[tuple(np.clip(p, 0, d - 1) for p, d in zip(places, source.shape, strict=True))]
        case Op(name, args):
            return np.asarray(OPS[name].numpy(*(_value(a, point, arrays) for a in args)))
    raise TypeError(f"{e} is no index map")
