"""Recurrent layers: LSTM, GRU and simple RNN, one direction of one layer at a time.

The inputs' share of all gates is one matrix product over the whole sequence. Short sequences of known length are then
unrolled into matrix products and pointwise operators; longer ones are one operator that loops, or a loop of the graph
where the products are the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.loops import cut, loop
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.control import NUMBER
from tilewright.support.classes import dataclass

MAX_UNROLLED = 16
"""Steps of a recurrent layer up to which each is nodes of its own; longer sequences are a scan."""
GATES = {"lstm": 4, "gru": 3, "rnn": 1}

Activation = tuple[str, tuple[tuple[str, float], ...]]
"""One of our operators with its attributes."""

Product = Callable[[Value], Value]
"""Rows times the transpose of weights."""

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
    """inputs [gates * H, features], recurrence [gates * H, H], biases [gates * H] of both, peephole [3 * H]; products
    with both, of an LSTM, where they are not those of matrices of one type."""

    inputs: Value
    recurrence: Value
    input_bias: Value | None = None
    recurrent_bias: Value | None = None
    peephole: Value | None = None
    products: tuple[Product, Product] | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with the inputs' share computed: gates_x [time * batch, gates * H].

    deferred_bias  GRU with `linear_first`: the candidate's recurrent bias, which the reset gate scales
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
    deferred_bias: Value | None
    product: Product | None = None


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
    rows = n.reshape(x, (time * batch, features))
    own = weights.products
    gates_x = own[0](rows) if own else n.emit("matmul", rows, weights.inputs, transpose_b=True)
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
    operands = gates_x, weights.recurrence, state, memory, weights.peephole, deferred
    layer = Layer(cell, time, batch, hidden, *operands, None if own is None else own[1])
    steps = as_int(time)
    if own is not None and (lengths is not None or steps is None or steps > MAX_UNROLLED):
        return _own_loop(n, layer, lengths)
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
    return gates if h is None else n.emit("add", _multiplied(n, d, h), gates)


def _multiplied(n: Emitter, d: Layer, h: Value) -> Value:
    return n.emit("matmul", h, d.recurrence, transpose_b=True) if d.product is None else d.product(h)


def _lstm_cell(n: Emitter, d: Layer, step: int, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    """One step as a product and the operator `lstm_cell`."""
    product = None if h is None else _multiplied(n, d, h)
    batch = as_int(d.batch)
    attrs = {"batch": d.batch if batch is None else batch, "step": step}
    cell = {"clip": d.cell.clip, "activations": d.cell.activations}
    new_h, new_c = n.emit_all("lstm_cell", d.gates_x, product, c, **attrs, **cell)
    return new_h, new_c


def _lstm_step(
    n: Emitter, d: Layer, gates: Value, h: Value | None, c: Value | None, seen: Value | None = None
) -> tuple[Value, Value | None]:
    """Gates i, o, f, c; a peephole lets i and f see the old cell and o the new one. States of sequences that are not
    `seen` are zeros in the product: of those that ended before the last step, as ONNX Runtime has them."""
    if seen is not None and h is not None:
        h = n.emit("select", seen, h, _zeros(n, h))
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
        if d.deferred_bias is not None:
            inner = d.deferred_bias if inner is None else n.emit("add", inner, d.deferred_bias)
        if inner is not None:
            g = n.emit("add", g, n.emit("mul", r, inner))
    elif h is not None:
        candidate = n.slice(d.recurrence, 0, 2 * hidden, hidden)
        g = n.emit("add", g, n.emit("matmul", n.emit("mul", r, h), candidate, transpose_b=True))
    g = _activate(n, d, 1, g)
    retained = n.emit("sub", n.like(1.0, z), z)
    new = n.emit("mul", retained, g)
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
        d.deferred_bias,
        cell=d.cell.kind,
        reverse=d.cell.reverse,
        clip=d.cell.clip,
        activations=d.cell.activations,
        linear_before_reset=d.cell.linear_first,
    )
    return results[0], list(results[1:])


def _own_loop(n: Emitter, d: Layer, lengths: Value | None) -> tuple[Value, list[Value]]:
    """A loop of the graph over the steps of an LSTM whose product is the caller's own. Sequences of several lengths
    are reversed first where the last step comes first, so that they begin together."""
    zeros = n.emit("broadcast", n.like(0.0, d.gates_x), shape=(d.batch, const(d.hidden)))
    start = [d.state or zeros, d.memory or zeros]
    sequence = n.reshape(d.gates_x, (d.time, d.batch, d.gates_x.shape[1]))
    mask = None if lengths is None else n.reshape(n.cast(lengths, i64), (d.batch, 1))
    turns = d.cell.reverse and mask is not None
    sequence = _reversed(n, sequence, lengths) if turns else sequence

    def own(name: str, t: TensorType) -> Value:
        return Value(n.builder.fresh(f"{n.hint}.{name}"), t)

    number, carried = own("step", NUMBER), [own(name, v.type) for name, v in zip("hc", start, strict=True)]
    gates = own("gates", TensorType(sequence.dtype, sequence.shape[1:]))
    with cut(n.builder) as nodes:
        alive = seen = None
        if mask is not None:
            alive, seen = n.emit("gt", mask, number), n.emit("ge", mask, number)
        h, c = _lstm_step(n, d, gates, carried[0], carried[1], seen)
        assert c is not None
        results = [h, c, h]
        if alive is not None:
            results = [n.emit("select", alive, v, old) for v, old in zip((h, c), carried, strict=True)]
            results.append(n.emit("select", alive, h, _zeros(n, h)))
    values = loop(
        *(n.builder, n.hint, None, start, carried, [sequence], [gates], nodes, results),
        number=number,
        backward=d.cell.reverse and not turns,
    )
    return (_reversed(n, values[2], lengths) if turns else values[2]), values[:2]


def _reversed(n: Emitter, x: Value, lengths: Value | None) -> Value:
    """Sequences [time, batch, features] from their last step to their first."""
    assert lengths is not None
    return n.emit("reverse_sequence", x, n.cast(lengths, i64), batch_axis=1, time_axis=0)
