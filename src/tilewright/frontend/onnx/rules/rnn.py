"""Rules for LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.frontend.common.recurrent import SIGMOID, Activation, Cell, Weights, recurrent_layer
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import is_size, static
from tilewright.ops.recurrent import cell as formula
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

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
    "affine": ("affine", (("alpha", 1.0), ("beta", 0.0))),
    "scaledtanh": ("scaled_tanh", (("alpha", 1.0), ("beta", 1.0))),
    "hardsigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
}


@rule("LSTM", "GRU", "RNN")
def recurrent(n: Call) -> list[Value]:
    kind = n.node.op_type
    n.attr("output_sequence")  # before operator set 7: whether the first output is wanted
    hidden = _hidden_size(n)
    _check_sizes(n, kind, hidden)
    return layer(n, kind, hidden, lambda d, cell: _weights(n, kind, d, hidden, cell.activations[0]))


def _hidden_size(n: Call) -> int:
    """The number of units of the layer: from the attribute where the weights' sizes are symbolic."""
    size, specified = n.shape(2)[-1], n.attr("hidden_size")
    if specified is not None and as_int(size) is None and is_size(size, const(int(specified))):
        return int(specified)
    return static(size, "the hidden size")


def _check_sizes(n: Call, kind: str, hidden: int) -> None:
    """Raise ShapeError where weights and states, whose sizes may be open, do not have the sizes of a layer of `hidden`
    units of the kind `kind` ("RNN", "GRU" or "LSTM")."""
    count = 2 if n.text("direction", "forward").lower() == "bidirectional" else 1
    wide = len(formula(kind.lower()).gates) * hidden
    state = (None, count, hidden) if n.integer("layout", 0) else (count, None, hidden)
    expected = {1: (count, wide, None), 2: (count, wide, hidden), 3: (count, 2 * wide), 5: state}
    if kind == "LSTM":
        expected |= {6: state, 7: (count, 3 * hidden)}
    for i, sizes in expected.items():
        if n.has(i) and not _fits(n.shape(i), sizes):
            raise ShapeError(
                "the weights or states do not fit the direction and the hidden size", expected=sizes, got=n.type(i)
            )


def _fits(shape: Sequence[Expr], sizes: Sequence[int | None]) -> bool:
    """Whether `shape` has the extents `sizes`, of which None allows any."""
    return len(shape) == len(sizes) and all(
        s is None or is_size(d, const(s)) for d, s in zip(shape, sizes, strict=True)
    )


def layer(n: Call, kind: str, hidden: int, weights: Callable[[int, Cell], Weights]) -> list[Value]:
    """The outputs of a node RNN, GRU or LSTM (`kind`) of `hidden` units, whose inputs other than weights are as LSTM's.
    `weights(d, cell)` returns the weights of direction d."""
    if n.integer("hidden_size", hidden) != hidden:
        raise ShapeError("hidden_size is not the weights'", expected=hidden, got=n.integer("hidden_size", hidden))
    direction = n.text("direction", "forward").lower()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ModelError("unknown direction", got=direction)
    count = 2 if direction == "bidirectional" else 1
    batch_first = bool(n.integer("layout", 0))
    x = n.value(0)
    if x.type.rank != 3 or not is_size(n.shape(1)[0], const(count)):
        raise ShapeError("the input or the weights do not fit the direction", got=f"{x.type} and {n.type(1)}")
    if batch_first:
        x = n.transpose(x, (1, 0, 2))
    lengths = n.limited(4, 0, x.shape[0], "a length is outside the sequence") if n.has(4) else None
    states = n.optional(5), n.optional(6) if kind == "LSTM" else None
    if batch_first:
        states = (_steps_first(n, states[0]), _steps_first(n, states[1]))
    parts = []
    for d in range(count):
        cell = _cell(n, kind, d, direction == "reverse" or d == 1)
        initial = [None if s is None else part(n, s, d) for s in states]
        parts.append(recurrent_layer(n, cell, x, weights(d, cell), hidden, initial[0], initial[1], lengths))
    return _results(n, parts, batch_first)


def _steps_first(n: Call, state: Value | None) -> Value | None:
    return None if state is None else n.transpose(state, (1, 0, 2))


def _results(n: Call, parts: list[tuple[Value, list[Value]]], batch_first: bool) -> list[Value]:
    """The node's outputs, from `parts`, (states of all steps, last states) of each direction: Y [time, directions,
    batch, hidden], then each last state [directions, batch, hidden]; with `batch_first` the batch comes first."""
    time, batch, hidden = parts[0][0].shape
    sequences = [n.reshape(y, (time, 1, batch, hidden)) for y, _ in parts]
    y = sequences[0] if len(parts) == 1 else n.emit("concat", *sequences, axis=1)
    results = [n.transpose(y, (2, 0, 1, 3)) if batch_first else y]
    for k in range(len(parts[0][1])):
        lasts = [n.reshape(states[k], (1, batch, hidden)) for _, states in parts]
        last = lasts[0] if len(parts) == 1 else n.emit("concat", *lasts, axis=0)
        results.append(n.transpose(last, (1, 0, 2)) if batch_first else last)
    return results


def _cell(n: Call, kind: str, d: int, reverse: bool) -> Cell:
    linear_first = kind == "GRU" and bool(n.integer("linear_before_reset", 0))
    return Cell(kind.lower(), _activations(n, kind, d), n.real("clip", None), linear_first, reverse)


def _weights(n: Call, kind: str, d: int, hidden: int, first: Activation) -> Weights:
    """The weights of direction `d` of a layer of `hidden` units of the kind `kind` ("LSTM", "GRU" or "RNN"), from the
    node's inputs. `first` is the activation of the gates, on which coupled gates (`input_forget`) depend. Raises
    UnsupportedError for coupled gates without a sigmoid."""
    inputs, recurrence = part(n, n.value(1), d), part(n, n.value(2), d)
    peephole = part(n, n.value(7), d) if kind == "LSTM" and n.has(7) else None
    biases: list[Value | None] = [None, None]
    if n.has(3):
        bias, width = part(n, n.value(3), d), len(formula(kind.lower()).gates) * hidden
        biases = [n.slice(bias, 0, 0, width), n.slice(bias, 0, width, width)]
    if kind == "LSTM" and n.integer("input_forget", 0):
        if first not in (SIGMOID, ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5)))):
            raise UnsupportedError("coupled input and forget gates need a sigmoid", got=first[0])
        inputs, recurrence = _coupled(n, inputs, hidden, 4), _coupled(n, recurrence, hidden, 4)
        peephole = None if peephole is None else _coupled(n, peephole, hidden, 3)
        biases = [None if b is None else _coupled(n, b, hidden, 4) for b in biases]
    return Weights(inputs, recurrence, biases[0], biases[1], peephole)


def _coupled(n: Call, weights: Value, hidden: int, gates: int) -> Value:
    """Weights of an LSTM in which the forget gate is 1 - the input gate: since 1 - sigmoid(x) is sigmoid(-x), its rows
    are the negated rows of the input gate."""
    parts = [n.slice(weights, 0, k * hidden, hidden) for k in range(gates)]
    parts[2] = n.emit("neg", parts[0])
    return n.emit("concat", *parts, axis=0)


def part(n: Call, x: Value, d: int) -> Value:
    """Entry `d` of the first dimension of `x`."""
    return n.reshape(n.slice(x, 0, d, 1), x.shape[1:])


def _activations(n: Call, kind: str, d: int) -> tuple[Activation, ...]:
    """The activations of direction `d` of a layer of the kind `kind` ("RNN", "GRU" or "LSTM") as (operator,
    attributes), from the attributes `activations`, `activation_alpha` and `activation_beta`."""
    specified = n.attr("activations")
    functions = formula(kind.lower()).functions
    names = [v.decode() if isinstance(v, bytes) else v for v in specified] if specified else [*functions] * 2
    per = len(functions)
    if len(names) < per * (d + 1):
        raise ModelError("activations has too few entries", expected=per * (d + 1), got=len(names))
    alphas, betas = list(n.attr("activation_alpha") or []), list(n.attr("activation_beta") or [])
    results = []
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
            results.append((op, values))
    return tuple(results)
