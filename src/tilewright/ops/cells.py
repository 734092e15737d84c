"""`lstm_cell`: the arithmetic of one LSTM step, after the products.

Both products of a step are matrix products of their own, that of the inputs for all steps at once; this operator adds
their rows, applies the gates and gives the new states in one kernel (Hochreiter and Schmidhuber 1997; the gates in the
order of ONNX: input, output, forget, cell).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import ops, te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.expr import Expr, maximum, minimum
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import check_kind, dim, need, number, present, same_dim, same_dtype, scalar
from tilewright.ops.pointwise import Functions
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class LstmCellAttrs(Attrs):
    """`batch` rows of step `step`; `activations` has operator and attributes of the gates', the cell's and the output's
    function; gates are clipped to +-`clip`."""

    batch: Dim
    step: int
    activations: Functions
    clip: float | None = None


def _infer(types: Types, attrs: LstmCellAttrs) -> Out:
    """Inputs gates_x [steps * B, 4 H], the state's product [B, 4 H]?, the cell's state [B, H]?. Attributes `batch` (B),
    `step`, `clip`, `activations` (operator and attributes of the gates', the cell's and the output's function). Gives
    h and c, [B, H]."""
    gates = present(types[0])
    check_kind(gates.dtype, ("float",))
    same_dtype([t for t in types if t is not None])
    batch, hidden = dim(attrs.batch), dim(gates.shape[1] // 4)
    state = TensorType(gates.dtype, (batch, hidden))
    for t, expected in zip(types[1:], (TensorType(gates.dtype, (batch, gates.shape[1])), state), strict=False):
        if t is not None and not all(same_dim(a, b) for a, b in zip(t.shape, expected.shape, strict=True)):
            raise ShapeError("an operand does not fit the cell", expected=expected, got=t)
    return state, state


def _compute(inputs: Sequence[Tensor | None], attrs: LstmCellAttrs, out: Out) -> tuple[Tensor, ...]:
    x, product, c = need(inputs[0]), inputs[1], inputs[2]
    batch, hidden = out[0].shape
    first = batch * attrs.step

    def gate(k: int, b: Expr, j: Expr) -> Expr:
        value = x[first + b, hidden * k + j]
        value = value if product is None else value + product[b, hidden * k + j]
        if attrs.clip is not None:
            limit = attrs.clip
            value = minimum(maximum(value, scalar(-limit, x.dtype)), scalar(limit, x.dtype))
        return activation(attrs, 1 if k == 3 else 0, value)

    def cell(b: Expr, j: Expr) -> Expr:
        value = gate(0, b, j) * gate(3, b, j)
        return value if c is None else gate(2, b, j) * c[b, j] + value

    new_c: Tensor = te.compute(out[1].shape, cell, name="cell")
    new_h: Tensor = te.compute(
        out[0].shape, lambda b, j: gate(1, b, j) * activation(attrs, 2, new_c[b, j]), name="state"
    )
    return new_h, new_c


def activation(attrs: LstmCellAttrs, k: int, x: Expr) -> Expr:
    """The gates' function of an element, the cell's or the output's: 0, 1, 2."""
    from tilewright.ops.pointwise import BODIES

    name, values = attrs.activations[k]
    body: Expr = BODIES[name]((x,), ops.attributes(name, dict(values)))
    return body


def _numpy(arrays: Sequence[Any], attrs: LstmCellAttrs) -> tuple[Any, ...]:
    x, product, c = (None if v is None else np.asarray(v) for v in arrays)
    assert x is not None
    hidden = x.shape[1] // 4
    batch = number(attrs.batch)
    gates = x[batch * attrs.step : batch * (attrs.step + 1)]
    gates = gates if product is None else gates + product
    if attrs.clip is not None:
        gates = np.clip(gates, -attrs.clip, attrs.clip)

    def f(k: int, v: Any) -> Any:
        name, values = attrs.activations[k]
        return ops.get(name).reference([v], ops.attributes(name, dict(values)))[0]

    i, o, forget, g = (f(1 if k == 3 else 0, gates[:, k * hidden : (k + 1) * hidden]) for k in range(4))
    new_c = i * g if c is None else forget * c + i * g
    return (o * f(2, new_c)).astype(x.dtype), new_c.astype(x.dtype)


register(OpDef("lstm_cell", "opaque", LstmCellAttrs, _infer, _numpy, compute=_compute))
