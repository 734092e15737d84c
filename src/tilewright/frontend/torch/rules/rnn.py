"""Rules for recurrent layers and cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.frontend.common.recurrent import Cell, Weights, recurrent_layer
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.frontend.torch.rules.random import dropout as dropped
from tilewright.ir.graph import Value
from tilewright.ops.dims import static
from tilewright.ops.recurrent import cell as formula
from tilewright.ops.recurrent import standard
from tilewright.ops.shape import ConstantAttrs

_GATES = {"lstm": "ifgo", "gru": "rzn", "rnn": "x"}
"""PyTorch's order of the gates in weights, one letter each."""
_RELU = Cell("rnn", (("relu", ()),))


def _cell(name: str) -> Cell:
    kind = name.removeprefix("aten.").split(".")[0].split("_")[0]
    if "relu" in name:
        return _RELU
    return Cell(kind, standard(kind), linear_first=kind == "gru")


@rule("lstm.input")
def lstm(
    n: Call,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    """`layers` LSTM layers from initial `states` [h, c] and their weights `params`, with `biases` or without, in both
    directions if `bidirectional`; `x` is [batch, time, features] if `batch_first`, else [time, batch, features].
    `dropout` between layers acts in `training` alone. Returns [h of all steps of the last layer, last h, last c]."""
    return _layers(n, x, states, params, biases, layers, dropout if training else 0.0, bidirectional, batch_first)


@rule("gru.input", "rnn_tanh.input", "rnn_relu.input")
def gru(
    n: Call,
    x: Value,
    state: Value,
    params: Sequence[Value],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    return _layers(n, x, [state], params, biases, layers, dropout if training else 0.0, bidirectional, batch_first)


def _layers(
    n: Call,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    biases: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    """[states at all steps, last states ...] of `layers` recurrent layers one after another, each in one direction or,
    if `bidirectional`, in two. `params` has all layers' weights and, if there are `biases`, these; `dropout` is the
    rate between layers. `x` has the batch first if `batch_first`, else the time."""
    cell = _cell(n.name)
    directions, each = (2 if bidirectional else 1), (4 if biases else 2)
    if len(params) != layers * directions * each:
        raise n.unsupported("with projections")
    if batch_first:
        x = n.transpose(x, (1, 0, 2))
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        x = dropped(n, x, dropout, True) if layer else x
        outputs: list[Value] = []
        for d in range(directions):
            k = layer * directions + d
            weights = params[k * each : (k + 1) * each]
            initial = [_entry(n, s, k) for s in states]
            y, ends = _direction(n, replace(cell, reverse=d == 1), x, weights, initial)
            outputs.append(y)
            for candidate, end in zip(last, ends, strict=True):
                candidate.append(n.reshape(end, (1, *end.shape)))
        x = outputs[0] if directions == 1 else n.emit("concat", *outputs, axis=2)
    ends = [candidate[0] if len(candidate) == 1 else n.emit("concat", *candidate, axis=0) for candidate in last]
    return [n.transpose(x, (1, 0, 2)) if batch_first else x, *ends]


def _direction(
    n: Call, cell: Cell, x: Value, params: Sequence[Value], initial: Sequence[Value | None]
) -> tuple[Value, list[Value]]:
    """(states at all steps, last states) of one direction of one layer, from its weights and biases `params` and the
    initial states."""
    hidden = static(params[1].shape[1], "the hidden size")
    order = [_GATES[cell.kind].index(gate) for gate in formula(cell.kind).gates]
    inputs, recurrence, *biases = (_reordered(n, p, order, hidden) for p in params)
    first, second = (*biases, None, None)[:2]
    weights = Weights(inputs, recurrence, first, second)
    memory = initial[1] if len(initial) > 1 else None
    return recurrent_layer(n, cell, x, weights, hidden, initial[0], memory)


def _entry(n: Call, x: Value, k: int) -> Value | None:
    """Initial state number `k` of `x` [layers * directions, ...]; None if they are all zero."""
    return None if _is_zero(n, x) else n.reshape(n.slice(x, 0, k, 1), x.shape[1:])


def _is_zero(n: Call, x: Value) -> bool:
    while True:
        node = next((node for node in reversed(n.builder.nodes) if x in node.outputs), None)
        if node is None:
            return False
        if node.op == "constant":
            return not node.of(ConstantAttrs).value.array.any()
        if node.op not in ("broadcast", "reshape", "slice") or node.inputs[0] is None:
            return False
        x = node.inputs[0]


def _reordered(n: Call, x: Value, order: Sequence[int], hidden: int) -> Value:
    """The blocks of `hidden` rows of `x`, one for each gate, in `order`; neighbouring blocks are copied together."""
    runs: list[list[int]] = []
    for k in order:
        if runs and runs[-1][-1] == k - 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    parts = [n.slice(x, 0, run[0] * hidden, len(run) * hidden) for run in runs]
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=0)


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(
    n: Call,
    x: Value,
    state: Value | Sequence[Value],
    inputs: Value,
    recurrence: Value,
    input_bias: Value | None = None,
    recurrent_bias: Value | None = None,
) -> list[Value] | Value:
    """One step of a recurrent cell on `x`, with the weights `inputs` and `recurrence` and the two biases: the new
    state, and for LSTM also the new cell."""
    initial = [None if _is_zero(n, s) else s for s in ([state] if isinstance(state, Value) else state)]
    params = [inputs, recurrence, *(b for b in (input_bias, recurrent_bias) if b is not None)]
    _, ends = _direction(n, _cell(n.name), n.reshape(x, (1, *x.shape)), params, initial)
    return ends if len(ends) > 1 else ends[0]
