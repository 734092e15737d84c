"""Recurrent layers: LSTM, GRU and simple RNN, one direction of one layer at a time.

The inputs' share of all gates is one matrix product over the whole sequence. Short sequences of known length are then
unrolled into matrix products and pointwise operators; longer ones become one operator that loops, or a loop of the
graph where the caller computes the matrix products in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.loops import cut, loop
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.control import NUMBER
from tilewright.ops.recurrent import cell, program
from tilewright.ops.steps import Program, run
from tilewright.support.classes import dataclass

MAX_UNROLLED = 16
"""Steps of a recurrent layer up to which each is nodes of its own; longer sequences are a scan."""

Activation = tuple[str, tuple[tuple[str, float], ...]]
"""An operator's name with its attributes."""

Product = Callable[[Value], Value]
"""A function from rows to their product with the transpose of weights."""

SIGMOID: Activation = ("sigmoid", ())


@dataclass(frozen=True, slots=True)
class Cell:
    """The kind of a recurrent layer's cell, with all that determines the formula of a step.

    kind          "lstm", "gru" or "rnn", with the gates in the order of `ops/recurrent.py`
    activations   the functions of the gates, the cell and the output
    clip          bound of the activations' inputs
    linear_first  GRU: the reset gate scales the candidate's product instead of the state before it
    reverse       whether steps run from the last to the first
    """

    kind: str
    activations: tuple[Activation, ...]
    clip: float | None = None
    linear_first: bool = False
    reverse: bool = False

    @property
    def program(self) -> Program:
        return program(cell(self.kind, self.linear_first), self.activations, self.clip)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one direction of a recurrent layer: inputs [gates * H, features], recurrence [gates * H, H], both
    biases [gates * H], peephole [3 * H]. For an LSTM whose products are not ordinary (quantised ones), `products` has
    the functions that compute them."""

    inputs: Value
    recurrence: Value
    input_bias: Value | None = None
    recurrent_bias: Value | None = None
    peephole: Value | None = None
    products: tuple[Product, Product] | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer for which the product of inputs and weights is computed already: gates_x [time * batch, gates * H].

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
    """The layer of `hidden` (H) units of type `cell` on x [time, batch, features], from the initial `state` and, of an
    LSTM, `memory`, [batch, H] (None: zeros). Returns (the states h at every step [time, batch, H], the last states: h,
    and c of an LSTM). Steps past `lengths` [batch] give zeros and change no state."""
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
    h, c = d.state, d.memory
    outputs: dict[int, Value] = {}
    mask = None if lengths is None else n.reshape(n.cast(lengths, i64), (batch, 1))
    for t in range(time)[:: -1 if d.cell.reverse else 1]:
        if d.cell.kind == "lstm" and d.peephole is None and d.gates_x.dtype in (f32, f64):
            new_h, new_c = _lstm_cell(n, d, t, h, c)
        else:
            gates = n.slice(d.gates_x, 0, batch * t, batch)
            new_h, new_c = _step(n, d, gates, h, c)
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


def _multiplied(n: Emitter, d: Layer, h: Value) -> Value:
    return n.emit("matmul", h, d.recurrence, transpose_b=True) if d.product is None else d.product(h)


def _lstm_cell(n: Emitter, d: Layer, step: int, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    """One LSTM step: the product of state `h` with the recurrent weights, then the operator `lstm_cell`. Returns the
    new h and c."""
    product = None if h is None else _multiplied(n, d, h)
    batch = as_int(d.batch)
    attrs = {"batch": d.batch if batch is None else batch, "step": step}
    cell = {"clip": d.cell.clip, "activations": d.cell.activations}
    new_h, new_c = n.emit_all("lstm_cell", d.gates_x, product, c, **attrs, **cell)
    return new_h, new_c


def _step(n: Emitter, d: Layer, gates_x: Value, h: Value | None, c: Value | None) -> tuple[Value, Value | None]:
    """One step of any cell in ordinary operators, with one product of `h` for all gates. Returns the new h, and c if
    there is one; states that are None count as zeros."""
    steps = d.cell.program
    shares, vector = steps.shares, d.peephole if d.peephole is not None else d.deferred_bias
    of_h = [p for p in steps.products if p.state == shares]
    joined = h is not None and all(p.addend == p.gate for p in of_h) and len(of_h) == shares
    products = None
    if joined:
        assert h is not None
        gates_x = n.emit("add", _multiplied(n, d, h), gates_x)
    elif h is not None:
        products = n.emit("matmul", h, n.slice(d.recurrence, 0, 0, len(of_h) * d.hidden), transpose_b=True)

    def gate(x: Value, k: int, axis: int = 1) -> Value:
        return n.slice(x, axis, k * d.hidden, d.hidden)

    def multiply(addend: Value | None, state: Value, k: int) -> Value:
        if joined and addend is not None:
            return addend
        if state is h and products is not None:
            product = gate(products, k)
        else:
            product = n.emit("matmul", state, gate(d.recurrence, k, 0), transpose_b=True)
        return product if addend is None else n.emit("add", addend, product)

    def apply(op: str, x: Sequence[Value], attrs: dict[str, Any]) -> Value:
        return n.like(attrs["value"], gates_x) if op == "constant" else n.emit(op, *x, **attrs)

    vectors = [None if vector is None else gate(vector, k, 0) for k in range(steps.vectors)]
    parts = [gate(gates_x, k) for k in range(shares)]
    values = run(steps, [*parts, h, c, *vectors] if len(steps.results) > 1 else [*parts, h, *vectors], apply, multiply)
    new_h, *new_c = (values[k] for k in steps.results)
    assert new_h is not None
    return new_h, new_c[0] if new_c else None


def _loop(n: Emitter, d: Layer, lengths: Value | None) -> tuple[Value, list[Value]]:
    """(the states of all steps, a list of the last ones): the results of the operator `recurrence`, which runs the
    steps of direction `d` in a loop, as many as `lengths` has for each sequence (None: all)."""
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
    """The steps of an LSTM as a loop of the graph, for products that the caller computes. Returns h of all steps, and
    the last h and c. Backward sequences of different lengths are reversed first, so that all begin at one step."""
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
        # The product of a sequence that ended before the last step is that of zeros, as ONNX Runtime has it.
        read = carried[0] if seen is None else n.emit("select", seen, carried[0], _zeros(n, carried[0]))
        h, c = _step(n, d, gates, read, carried[1])
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
    """`x` [time, batch, features] with the first `lengths[b]` steps of each sequence b in reverse order; later steps
    stay."""
    assert lengths is not None
    return n.emit("reverse_sequence", x, n.cast(lengths, i64), batch_axis=1, time_axis=0)
