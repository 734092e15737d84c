"""Rules for LSTM, GRU and RNN.

The inputs' share of all gates is one matrix product over the whole sequence. Short sequences of known length are then
unrolled into matrix products and pointwise operators; longer ones are one operator that loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import same_dim, static
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

MAX_UNROLLED = 16
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}

# Name of an activation -> our operator, names of its attributes with defaults.
_OPS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "sigmoid": ("sigmoid", ()),
    "tanh": ("tanh", ()),
    "relu": ("relu", ()),
    "softsign": ("softsign", ()),
    "softplus": ("softplus", ()),
    "leakyrelu": ("leaky_relu", (("alpha", 0.01),)),
    "thresholdedrelu": ("thresholded_relu", (("alpha", 1.0),)),
    "elu": ("elu", (("alpha", 1.0),)),
    "hardsigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
}


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction's weights, transposed and joined as the steps want them, and its initial states."""

    time: Expr
    batch: Expr
    gates_x: Value
    """[time * batch, gates * hidden]: x W^T plus the biases that may be added early."""
    recurrence: Value
    """[gates * hidden, hidden]"""
    state: Value | None
    cell: Value | None
    peephole: Value | None
    late_bias: Value | None
    """GRU with linear_before_reset: the candidate's recurrent bias, which the reset gate scales."""
    reverse: bool
    activations: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


@rule("LSTM", "GRU", "RNN")
def recurrent(n: Call) -> list[Value]:
    kind = n.node.op_type
    hidden = static(n.shape(2)[-1], "the hidden size")
    if n.integer("hidden_size", hidden) != hidden:
        raise ShapeError("hidden_size is not the weights'", expected=hidden, got=n.integer("hidden_size", hidden))
    direction = n.text("direction", "forward").lower()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ModelError("unknown direction", got=direction)
    count = 2 if direction == "bidirectional" else 1
    batch_first = bool(n.integer("layout", 0))
    x = n.value(0)
    if x.type.rank != 3 or not same_dim(n.shape(1)[0], const(count)):
        raise ShapeError("the input or the weights do not fit the direction", got=f"{x.type} and {n.type(1)}")
    if batch_first:
        x = n.transpose(x, (1, 0, 2))
    lengths = n.optional(4)
    parts = [
        _run(n, kind, _direction(n, kind, x, d, hidden, direction == "reverse" or d == 1, batch_first), lengths, hidden)
        for d in range(count)
    ]
    return _results(n, parts, batch_first)


def _results(n: Call, parts: list[tuple[Value, list[Value]]], batch_first: bool) -> list[Value]:
    """Y [time, directions, batch, hidden] and the last states [directions, batch, hidden]."""
    time, batch, hidden = parts[0][0].shape
    sequences = [n.reshape(y, (time, 1, batch, hidden)) for y, _ in parts]
    y = sequences[0] if len(parts) == 1 else n.emit("concat", *sequences, axis=1)
    results = [n.transpose(y, (2, 0, 1, 3)) if batch_first else y]
    for k in range(len(parts[0][1])):
        lasts = [n.reshape(states[k], (1, batch, hidden)) for _, states in parts]
        last = lasts[0] if len(parts) == 1 else n.emit("concat", *lasts, axis=0)
        results.append(n.transpose(last, (1, 0, 2)) if batch_first else last)
    return results


def _direction(n: Call, kind: str, x: Value, d: int, hidden: int, reverse: bool, batch_first: bool) -> Direction:
    gates = GATES[kind]
    time, batch, features = x.shape
    w = _part(n, n.value(1), d)
    r = _part(n, n.value(2), d)
    flat = n.reshape(x, (time * batch, features))
    gates_x = n.emit("matmul", flat, w, transpose_b=True)
    late = None
    if n.has(3):
        bias = _part(n, n.value(3), d)
        early = n.slice(bias, 0, 0, gates * hidden)
        second = n.slice(bias, 0, gates * hidden, gates * hidden)
        if kind == "GRU" and n.integer("linear_before_reset", 0):
            late = n.slice(second, 0, 2 * hidden, hidden)
            zeros = n.emit("broadcast", n.like(0.0, second), shape=(const(hidden),))
            second = n.emit("concat", n.slice(second, 0, 0, 2 * hidden), zeros, axis=0)
        gates_x = n.emit("add", gates_x, n.emit("add", early, second))
    peephole = _part(n, n.value(7), d) if kind == "LSTM" and n.has(7) else None
    return Direction(
        time,
        batch,
        gates_x,
        r,
        _initial(n, 5, d, batch_first),
        _initial(n, 6, d, batch_first) if kind == "LSTM" else None,
        peephole,
        late,
        reverse,
        _activations(n, kind, d),
    )


def _part(n: Call, x: Value, d: int) -> Value:
    """Entry `d` of the first dimension."""
    return n.reshape(n.slice(x, 0, d, 1), x.shape[1:])


def _initial(n: Call, i: int, d: int, batch_first: bool) -> Value | None:
    if not n.has(i):
        return None
    x = n.value(i)
    if batch_first:
        x = n.transpose(x, (1, 0, 2))
    return _part(n, x, d)


def _activations(n: Call, kind: str, d: int) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
    """Our operators with their attributes, one for each of the cell's functions."""
    given = n.attr("activations")
    names = [v.decode() if isinstance(v, bytes) else v for v in given] if given else ACTIVATIONS[kind] * 2
    per = len(ACTIVATIONS[kind])
    if len(names) < per * (d + 1):
        raise ModelError("activations has too few entries", expected=per * (d + 1), got=len(names))
    alphas, betas = list(n.attr("activation_alpha") or []), list(n.attr("activation_beta") or [])
    found = []
    for position, name in enumerate(names):
        if name.lower() not in _OPS:
            raise UnsupportedError(f"the activation {name} is not supported")
        op, attrs = _OPS[name.lower()]
        # alpha and beta are lists over the activations that have them, in order.
        values = tuple(
            (a, (alphas if a == "alpha" else betas).pop(0) if (alphas if a == "alpha" else betas) else v)
            for a, v in attrs
        )
        if per * d <= position < per * (d + 1):
            found.append((op, values))
    return tuple(found)


def _run(n: Call, kind: str, d: Direction, lengths: Value | None, hidden: int) -> tuple[Value, list[Value]]:
    """The states at every step [time, batch, hidden], and the last states."""
    clip = n.real("clip", None)
    time = as_int(d.time)
    if kind == "LSTM":
        coupled = bool(n.integer("input_forget", 0))
        if coupled:
            raise UnsupportedError("coupled input and forget gates are not supported")
    if time is None or time > MAX_UNROLLED:
        return _loop(n, kind, d, lengths, hidden, clip)
    return _unrolled(n, kind, d, lengths, hidden, clip, time)


def _unrolled(
    n: Call, kind: str, d: Direction, lengths: Value | None, hidden: int, clip: float | None, time: int
) -> tuple[Value, list[Value]]:
    batch = d.batch
    step = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}[kind]
    h, c = d.state, d.cell
    outputs: dict[int, Value] = {}
    mask = None if lengths is None else n.reshape(n.cast(lengths, i64), (batch, 1))
    for t in range(time)[:: -1 if d.reverse else 1]:
        if kind == "LSTM" and d.peephole is None and d.gates_x.dtype in (f32, f64):
            new_h, new_c = _lstm_cell(n, d, t, h, c, clip)
        else:
            gates = n.slice(d.gates_x, 0, batch * t, batch)
            new_h, new_c = step(n, d, gates, h, c, hidden, clip)
        outputs[t] = new_h
        if mask is not None:
            alive = n.emit("gt", mask, n.constant(t, i64))
            outputs[t] = n.emit("select", alive, new_h, _zeros(n, new_h))
            new_h = n.emit("select", alive, new_h, h if h is not None else _zeros(n, new_h))
            if new_c is not None:
                new_c = n.emit("select", alive, new_c, c if c is not None else _zeros(n, new_c))
        h, c = new_h, new_c
    assert h is not None
    rows = [n.reshape(outputs[t], (1, batch, hidden)) for t in range(time)]
    y = rows[0] if time == 1 else n.emit("concat", *rows, axis=0)
    return y, [h] if c is None else [h, c]


def _zeros(n: Call, like: Value) -> Value:
    return n.emit("broadcast", n.like(0.0, like), shape=like.shape)


def _gate(n: Call, gates: Value, k: int, hidden: int) -> Value:
    return n.slice(gates, 1, k * hidden, hidden)


def _activate(n: Call, d: Direction, k: int, x: Value, clip: float | None) -> Value:
    if clip is not None:
        x = n.emit("clip", x, min=-clip, max=clip)
    op, attrs = d.activations[k]
    return n.emit(op, x, **dict(attrs))


def _recur(n: Call, d: Direction, gates: Value, h: Value | None) -> Value:
    return gates if h is None else n.emit("add", n.emit("matmul", h, d.recurrence, transpose_b=True), gates)


Step = Callable[[Call, Direction, Value, Value | None, Value | None, int, Any], tuple[Value, Value | None]]


def _lstm_cell(
    n: Call, d: Direction, step: int, h: Value | None, c: Value | None, clip: float | None
) -> tuple[Value, Value | None]:
    """One step as a product and the operator `lstm_cell`."""
    product = None if h is None else n.emit("matmul", h, d.recurrence, transpose_b=True)
    batch = as_int(d.batch)
    attrs = {"batch": d.batch if batch is None else batch, "step": step, "clip": clip, "activations": d.activations}
    new_h, new_c = n.emit_all("lstm_cell", d.gates_x, product, c, **attrs)
    return new_h, new_c


def _lstm_step(
    n: Call, d: Direction, gates: Value, h: Value | None, c: Value | None, hidden: int, clip: float | None
) -> tuple[Value, Value | None]:
    """Gates i, o, f, c; a peephole lets i and f see the old cell and o the new one."""
    gates = _recur(n, d, gates, h)
    i, o, f, g = (_gate(n, gates, k, hidden) for k in range(4))

    def peep(gate: Value, k: int, cell: Value | None) -> Value:
        if d.peephole is None or cell is None:
            return gate
        return n.emit("add", gate, n.emit("mul", n.slice(d.peephole, 0, k * hidden, hidden), cell))

    i = _activate(n, d, 0, peep(i, 0, c), clip)
    g = _activate(n, d, 1, g, clip)
    new_c = n.emit("mul", i, g)
    if c is not None:
        f = _activate(n, d, 0, peep(f, 2, c), clip)
        new_c = n.emit("add", n.emit("mul", f, c), new_c)
    o = _activate(n, d, 0, peep(o, 1, new_c), clip)
    op, attrs = d.activations[2]
    return n.emit("mul", o, n.emit(op, new_c, **dict(attrs))), new_c


def _gru_step(
    n: Call, d: Direction, gates: Value, h: Value | None, c: Value | None, hidden: int, clip: float | None
) -> tuple[Value, Value | None]:
    """Gates z, r, h."""
    z, r, g = (_gate(n, gates, k, hidden) for k in range(3))
    linear_first = bool(n.integer("linear_before_reset", 0))
    if h is not None:
        weights = n.slice(d.recurrence, 0, 0, 3 * hidden if linear_first else 2 * hidden)
        products = n.emit("matmul", h, weights, transpose_b=True)
        z = n.emit("add", z, _gate(n, products, 0, hidden))
        r = n.emit("add", r, _gate(n, products, 1, hidden))
    z, r = _activate(n, d, 0, z, clip), _activate(n, d, 0, r, clip)
    if linear_first:
        inner = None if h is None else _gate(n, products, 2, hidden)
        if d.late_bias is not None:
            inner = d.late_bias if inner is None else n.emit("add", inner, d.late_bias)
        if inner is not None:
            g = n.emit("add", g, n.emit("mul", r, inner))
    elif h is not None:
        candidate = n.slice(d.recurrence, 0, 2 * hidden, hidden)
        g = n.emit("add", g, n.emit("matmul", n.emit("mul", r, h), candidate, transpose_b=True))
    g = _activate(n, d, 1, g, clip)
    kept = n.emit("sub", n.like(1.0, z), z)
    new = n.emit("mul", kept, g)
    return (new if h is None else n.emit("add", new, n.emit("mul", z, h))), None


def _rnn_step(
    n: Call, d: Direction, gates: Value, h: Value | None, c: Value | None, hidden: int, clip: float | None
) -> tuple[Value, Value | None]:
    return _activate(n, d, 0, _recur(n, d, gates, h), clip), None


def _loop(
    n: Call, kind: str, d: Direction, lengths: Value | None, hidden: int, clip: float | None
) -> tuple[Value, list[Value]]:
    """The operator `recurrence`, which runs the steps in a loop."""
    zeros = n.emit("broadcast", n.like(0.0, d.gates_x), shape=(d.batch, const(hidden)))
    results = n.emit_all(
        "recurrence",
        n.reshape(d.gates_x, (d.time, d.batch, d.gates_x.shape[1])),
        n.transpose(d.recurrence, (1, 0)),
        d.state or zeros,
        (d.cell or zeros) if kind == "LSTM" else None,
        None if lengths is None else n.cast(lengths, i64),
        d.peephole,
        d.late_bias,
        cell=kind.lower(),
        reverse=d.reverse,
        clip=clip,
        activations=d.activations,
        linear_before_reset=kind == "GRU" and bool(n.integer("linear_before_reset", 0)),
    )
    return results[0], list(results[1:])
