"""Soft clipping, `limit * tanh(x / limit)`: almost x where x is small, never beyond the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import te
from tilewright.frontend.onnx.call import Call
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Expr
from tilewright.ir.graph import TensorType, Value
from tilewright.ops import OpDef, Operators
from tilewright.support.errors import DTypeError

NAME = "example.soft_clip"


@dataclass(frozen=True, slots=True)
class SoftClipAttrs(Attrs):
    limit: float = 1.0


def infer(types: Sequence[TensorType | None], attrs: SoftClipAttrs) -> tuple[TensorType, ...]:
    (x,) = types
    if x is None or not x.dtype.is_float:
        raise DTypeError("soft clipping is for floats", got=x)
    return (x,)


def compute(
    inputs: Sequence[te.Tensor | None], attrs: SoftClipAttrs, outputs: tuple[TensorType, ...]
) -> tuple[te.Tensor, ...]:
    (x,) = inputs
    assert x is not None

    def element(*point: Expr) -> Expr:
        return te.tanh(x[point] * (1.0 / attrs.limit)) * attrs.limit

    return (te.compute(x.shape, element, name="soft_clip"),)


def reference(arrays: Sequence[Any], attrs: SoftClipAttrs) -> tuple[Any, ...]:
    (x,) = arrays
    return ((np.tanh(x.astype(np.float64) / attrs.limit) * attrs.limit).astype(x.dtype),)


def from_onnx(call: Call) -> Value:
    return call.emit(NAME, call.value(0), limit=call.attr("limit", 1.0))


OPERATORS = Operators(
    (OpDef(NAME, "pointwise", SoftClipAttrs, infer, reference, compute=compute),),
    onnx={"com.example.SoftClip": from_onnx},
)
