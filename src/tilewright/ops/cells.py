"""`lstm_cell`: the arithmetic of one LSTM step, after the products.

Inputs and state are multiplied by their weights outside of it, the inputs for all steps at once; this operator adds
both products, applies the gates and gives the new states in one kernel (Hochreiter and Schmidhuber 1997; the gates in
the order of ONNX: input, output, forget, cell).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ops.dims import check_kind, dim, dims, need, number, present, same_dim, same_dtype
from tilewright.ops.pointwise import Functions
from tilewright.ops.recurrent import LSTM, program
from tilewright.ops.registry import OpDef, Types, emit1, register
from tilewright.ops.steps import Apply, Program, of_arrays, of_expressions, run
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Out = tuple[TensorType, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LstmCellAttrs(Attrs):
    """Attributes of one step of an LSTM. `batch`: the number of rows. `step`: the number of the step in the sequence.
    `activations`: the (operator, attributes) that are applied to gates, cell and output, in this order. `clip`: the
    arguments of these are clipped to +-`clip`; None: not at all."""

    batch: Dim
    step: int
    activations: Functions
    clip: float | None = None


def _infer(types: Types, attrs: LstmCellAttrs) -> Out:
    """The type rule of `lstm_cell`: gates_x [steps * B, 4 H], the state's product [B, 4 H]?, the cell's state [B, H]?
    to h and c, [B, H]. Attributes `batch` (B), `step`, `clip`, `activations` (operator and attributes of the gates',
    the cell's and the output's function)."""
    gates = present(types[0])
    check_kind(gates.dtype, ("float",))
    same_dtype([t for t in types if t is not None])
    batch, hidden = dim(attrs.batch), dim(gates.shape[1] // 4)
    state = TensorType(gates.dtype, (batch, hidden))
    for t, expected in zip(types[1:], (TensorType(gates.dtype, (batch, gates.shape[1])), state), strict=False):
        if t is not None and not all(same_dim(a, b) for a, b in zip(t.shape, expected.shape, strict=True)):
            raise ShapeError("an operand does not fit the cell", expected=expected, got=t)
    return state, state


def steps_of(attrs: LstmCellAttrs) -> Program:
    """The step of an LSTM cell as a list of pointwise steps; the results of its matrix products are arguments."""
    return program(LSTM, attrs.activations, attrs.clip)


def lstm_states(
    attrs: LstmCellAttrs,
    gates: Sequence[T],
    c: T | None,
    apply: Apply[T],
    memory: Callable[[T], T] = lambda value: value,
) -> tuple[T, T]:
    """The states (h, c) after a step, where `gates` are the arguments of the four gates' functions and `c` is the old
    state (None: zeros). `memory` is applied to the new c before h reads it."""
    steps = steps_of(attrs)
    cell = steps.results[1]

    def then(number: int, value: T) -> T:
        return memory(value) if number == cell else value

    arguments = [*gates, None, c, *[None] * steps.vectors]
    values = run(steps, arguments, apply, lambda _, state, __: state, then=then)
    new_h, new_c = (values[k] for k in steps.results)
    assert new_h is not None and new_c is not None
    return new_h, new_c


def _compute(inputs: Sequence[Tensor | None], attrs: LstmCellAttrs, out: Out) -> tuple[Tensor, ...]:
    x, product, c = need(inputs[0]), inputs[1], inputs[2]
    batch, hidden = out[0].shape
    first = batch * attrs.step

    def states(b: Expr, j: Expr, memory: Callable[[Expr], Expr] = lambda value: value) -> tuple[Expr, Expr]:
        gates: list[Expr] = [x[first + b, hidden * k + j] for k in range(4)]
        if product is not None:
            gates = [gate + product[b, hidden * k + j] for k, gate in enumerate(gates)]
        return lstm_states(attrs, gates, None if c is None else c[b, j], of_expressions(x.dtype), memory)

    new_c: Tensor = te.compute(out[1].shape, lambda b, j: states(b, j)[1], name="cell")
    new_h: Tensor = te.compute(out[0].shape, lambda b, j: states(b, j, lambda _: new_c[b, j])[0], name="state")
    return new_h, new_c


def _numpy(arrays: Sequence[Any], attrs: LstmCellAttrs) -> tuple[Any, ...]:
    x, product, c = (None if v is None else np.asarray(v) for v in arrays)
    assert x is not None
    batch = number(attrs.batch)
    gates = x[batch * attrs.step : batch * (attrs.step + 1)]
    gates = gates if product is None else gates + product
    states = lstm_states(attrs, np.split(gates, 4, axis=1), c, of_arrays(dtype(x.dtype)))
    return tuple(state.astype(x.dtype) for state in states)


def without_cells(graph: Graph) -> Graph:
    """The graph in which each `lstm_cell` is replaced by slices of its gates and pointwise operators."""
    used = {v.name for v in (*graph.inputs, *graph.params, *(v for n in graph.nodes for v in n.outputs))}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op != "lstm_cell":
            nodes.append(node)
            continue
        builder = GraphBuilder(reserved=used)
        own = dict(zip(_emit(builder, node), node.outputs, strict=True))
        for n in builder.nodes:
            inputs = tuple(None if v is None else own.get(v, v) for v in n.inputs)
            nodes.append(replace(n, inputs=inputs, outputs=tuple(own.get(v, v) for v in n.outputs)))
    return replace(graph, nodes=tuple(nodes))


def _emit(builder: GraphBuilder, node: Node) -> tuple[Value, Value]:
    attrs = node.of(LstmCellAttrs)
    x, product, c = (*node.inputs, None, None)[:3]
    batch, hidden = node.outputs[0].shape

    def part(v: Value | None, begin: tuple[Dim, Dim], width: Expr) -> Value:
        return emit1(builder, "slice", v, begin=dims(begin), size=dims((batch, width)), step=(1, 1))

    row = part(x, (batch * attrs.step, 0), hidden * 4)
    row = row if product is None else emit1(builder, "add", row, product)
    gates = [part(row, (0, hidden * k), hidden) for k in range(4)]
    return lstm_states(attrs, gates, c, lambda op, operands, how: emit1(builder, op, *operands, **how))


register(OpDef("lstm_cell", "opaque", LstmCellAttrs, _infer, _numpy, compute=_compute))
