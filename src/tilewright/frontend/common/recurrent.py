"""Recurrent layers: LSTM, GRU and simple RNN, one direction of one layer at a time.

The inputs' share of all gates is one matrix product over the whole sequence. Short sequences of known length are then
unrolled into matrix products and pointwise operators; longer ones are one operator that loops.
"""

from __future__ import annotations

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass

MAX_UNROLLED = 16
"""Steps of a recurrent layer up to which each is nodes of its own; longer sequences are a scan."""
GATES = {"lstm": 4, "gru": 3, "rnn": 1}

Activation = tuple[str, tuple[tuple[str, float], ...]]
"""One of our operators with its attributes."""

SIGMOID: Activation = ("sigmoid", ())
TANH: Activation = ("tanh", ())
STANDARD = {"lstm": (SIGMOID, TANH, TANH), "gru": (SIGMOID, TANH), "rnn": (TANH,)}


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell that a step computes.

    kind          "lstm" (gates in the order input, output, forget, cell), "gru" (update, reset, candidate), "rnn"
    activations   of the gates, the cell and the output
    clip          bound of what goes into the activations
    linear_first  GRU: the reset gate scales the candidate's product instead of the state before it
    reverse       from the last step to the first
    """

    kind: str
    activations: tuple[Activation, ...]
    clip: float | None = None
    linear_first: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """inputs [gates * H, features], recurrence [gates * H, H], biases [gates * H] of both, peephole [3 * H]."""

    inputs: Value
    recurrence: Value
    input_bias: Value | None = None
    recurrent_bias: Value | None = None
    peephole: Value | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with the inputs' share computed: gates_x [time * batch, gates * H].

    late_bias  GRU with `linear_first`: the candidate's recurrent bias, which the reset gate scales
    """

    cell: Cell
    time: Expr
    batch: Expr
    hidden: int
    gates_x: Value
    recurrence: Value
    state: Value | None
    memory: Value | None
    peephole: Value | None
    late_bias: Value | None


def recurrent_layer(
    n: Emitter,
    cell: Cell,
    x: Value,
    weights: Weights,
    hidden: int,
    state: Value | None,
    memory: Value | None,
    lengths: Value | None = None,
) -> tuple[Value, list[Value]]:
    """x [time, batch, features] with initial states [batch, H] (None: zeros) to the states at every step [time, batch,
    H] and the last ones: h, and for LSTM c. Steps past `lengths` [batch] give zeros and change no state."""
    time, batch, features = x.shape
    gates_x = n.emit("matmul", n.reshape(x, (time * batch, features)), weights.inputs, transpose_b=True)
    deferred, bias = None, weights.input_bias
    second = weights.recurrent_bias
    if second is not None:
        if cell.linear_first:
            deferred = n.slice(second, 0, 2 * hidden, hidden)
            zeros = n.emit("broadcast", n.like(0.0, second), shape=(const(hidden),))
            second = n.emit("concat", n.slice(second, 0, 0, 2 * hidden), zeros, axis=0)
        bias = second if bias is None else n.emit("add", bias, second)
    if bias is not None:
        gates_x = n.emit("add", gates_x, bias)
    layer = Layer(cell, time, batch, hidden, gates_x, weights.recurrence, state, memory, weights.peephole, deferred)
    steps = as_int(time)
    if steps is None or steps > MAX_UNROLLED:
        return _loop(n, layer, lengths)
    return _unrolled(n, layer, lengths, steps)


def _unrolled(n: Emitter, d: Layer, lengths: Value | None, time: int) -> tuple[Value, list[Value]]:
    batch = d.batch
    step = {"lstm": _lstm_step, "gru": _gru_step, "rnn": _rnn_step}[d.cell.kind]
    h, c = d.state, d.memory
    outputs: dict[int, Value] = {}
    mask = None if lengths is None else n.reshape(n.cast(lengths, i64), (batch, 1))
    for t in range(time)[:: -1 if d.cell.reverse else 1]:
        if d.cell.kind == "lstm" and d.peephole is None and d.gates_x.dtype in (f32, f64):
            new_h, new_c = _lstm_cell(n, d, t, h, c)
        else:
            gates = n.slice(d.gates_x, 0, batch * t, batch)
            new_h, new_c = step(n, d, gates, h, c)
        outputs[t] = new_h
        if mask is not None:
            alive = n.emit("gt", mask, n.constant(t, i64))
            outputs[t] = n.emit("select", alive, new_h, _zeros(n, new_h))
            new_h = n.emit("select", alive, new_h, h if h is not None else _zeros(n, new_h))
            if new_c is not None:
                new_c = n.emit("select", alive, new_c, c if c is not None else _zeros(n, new_c))
        h, c = new_h, new_c
    assert h is not None
    rows = [n.reshape(outputs[t], (1, batch, d.hidden)) for t in range(time)]
    y = rows[0] if time == 1 else n.emit("concat", *rows, axis=0)
    return y, [h] if c is None else [h, c]


def _zeros(n: Emitter, like: Value) -> Value:
    return n.emit("broadcast", n.like(0.0, like), shape=like.shape)


def _gate(n: Emitter, gates: Value, k: int, hidden: int) -> Value:
    return n.slice(gates, 1, k * hidden, hidden)


def _activate(n: Emitter, d: Layer, k: int, x: Value) -> Value:
    if d.cell.clip is not None:
        x = n.emit("clip", x, min=-d.cell.clip, max=d.cell.clip)
    op, attrs = d.cell.activations[k]
    return n.emit(op, x, **dict(attrs))


def _recur(n: Emitter, d: Layer, gates: Value, h: Value | None) -> Value:
    return gates if h is None else n.emit("add", n.emit("matmul", h, d.recurrence, transpose_b=True), gates)


def _lstm_cell(n: Emitter, d: Layer, step: int, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    """One step as a product and the operator `lstm_cell`."""
    product = None if h is None else n.emit("matmul", h, d.recurrence, transpose_b=True)
    batch = as_int(d.batch)
    attrs = {"batch": d.batch if batch is None else batch, "step": step}
    cell = {"clip": d.cell.clip, "activations": d.cell.activations}
    new_h, new_c = n.emit_all("lstm_cell", d.gates_x, product, c, **attrs, **cell)
    return new_h, new_c


def _lstm_step(n: Emitter, d: Layer, gates: Value, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    """Gates i, o, f, c; a peephole lets i and f see the old cell and o the new one."""
    gates = _recur(n, d, gates, h)
    i, o, f, g = (_gate(n, gates, k, d.hidden) for k in range(4))

    def peep(gate: Value, k: int, cell: Value | None) -> Value:
        if d.peephole is None or cell is None:
            return gate
        return n.emit("add", gate, n.emit("mul", n.slice(d.peephole, 0, k * d.hidden, d.hidden), cell))

    i = _activate(n, d, 0, peep(i, 0, c))
    g = _activate(n, d, 1, g)
    new_c = n.emit("mul", i, g)
    if c is not None:
        f = _activate(n, d, 0, peep(f, 2, c))
        new_c = n.emit("add", n.emit("mul", f, c), new_c)
    o = _activate(n, d, 0, peep(o, 1, new_c))
    op, attrs = d.cell.activations[2]
    return n.emit("mul", o, n.emit(op, new_c, **dict(attrs))), new_c


def _gru_step(n: Emitter, d: Layer, gates: Value, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    """Gates z, r, h."""
    z, r, g = (_gate(n, gates, k, d.hidden) for k in range(3))
    hidden, linear_first = d.hidden, d.cell.linear_first
    if h is not None:
        weights = n.slice(d.recurrence, 0, 0, 3 * hidden if linear_first else 2 * hidden)
        products = n.emit("matmul", h, weights, transpose_b=True)
        z = n.emit("add", z, _gate(n, products, 0, d.hidden))
        r = n.emit("add", r, _gate(n, products, 1, d.hidden))
    z, r = _activate(n, d, 0, z), _activate(n, d, 0, r)
    if linear_first:
        inner = None if h is None else _gate(n, products, 2, d.hidden)
        if d.late_bias is not None:
            inner = d.late_bias if inner is None else n.emit("add", inner, d.late_bias)
        if inner is not None:
            g = n.emit("add", g, n.emit("mul", r, inner))
    elif h is not None:
        candidate = n.slice(d.recurrence, 0, 2 * hidden, hidden)
        g = n.emit("add", g, n.emit("matmul", n.emit("mul", r, h), candidate, transpose_b=True))
    g = _activate(n, d, 1, g)
    kept = n.emit("sub", n.like(1.0, z), z)
    new = n.emit("mul", kept, g)
    return (new if h is None else n.emit("add", new, n.emit("mul", z, h))), None


def _rnn_step(n: Emitter, d: Layer, gates: Value, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    return _activate(n, d, 0, _recur(n, d, gates, h)), None


def _loop(n: Emitter, d: Layer, lengths: Value | None) -> tuple[Value, list[Value]]:
    """The operator `recurrence`, which runs the steps in a loop."""
    zeros = n.emit("broadcast", n.like(0.0, d.gates_x), shape=(d.batch, const(d.hidden)))
    results = n.emit_all(
        "recurrence",
        n.reshape(d.gates_x, (d.time, d.batch, d.gates_x.shape[1])),
        n.transpose(d.recurrence, (1, 0)),
        d.state or zeros,
        (d.memory or zeros) if d.cell.kind == "lstm" else None,
        None if lengths is None else n.cast(lengths, i64),
        d.peephole,
        d.late_bias,
        cell=d.cell.kind,
        reverse=d.cell.reverse,
        clip=d.cell.clip,
        activations=d.cell.activations,
        linear_before_reset=d.cell.linear_first,
    )
    return results[0], list(results[1:])
