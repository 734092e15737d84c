"""`recurrence`: the steps of an LSTM, GRU or simple RNN, or of a cell that the user wrote, in a loop over time.

The inputs' share of the gates is computed outside by one matrix product. What is left is, for every step, a product of
the state with the recurrent weights and the cell's arithmetic. Batch entries are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Buffer, Expr, as_int, const, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import check_kind, present, same_dim, same_dtype, same_shape, scalar
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.pointwise import Functions
from tilewright.ops.recurrent import cell, program
from tilewright.ops.registry import OpDef, Types, register
from tilewright.ops.rnn_loops import Operands, RecurrentLoops, Tile, Weight
from tilewright.ops.steps import Program, Steps, check_steps, multiplying, of_arrays, run
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class RecurrenceAttrs(Attrs):
    """Attributes of `recurrence`. `activations`: operator and attributes of each of the cell's functions; their
    arguments are clipped to +-`clip`. `linear_before_reset`: as of ONNX's GRU. `keeps` adds a last output with the
    values that the backward pass needs.

    The cell "steps" is the program `steps` on values [B, H]: the state's products (as many as the weights have columns
    of H), the parts of gates_x, h, c if there is one, the parts of `deferred_bias`. The last steps give the new h (and
    c).
    """

    cell: Literal["lstm", "gru", "rnn", "steps"]
    activations: Functions = ()
    reverse: bool = False
    clip: float | None = None
    linear_before_reset: bool = False
    steps: Steps = ()
    keeps: bool = False


def parts(width: Expr, hidden: Expr) -> int:
    """The number of parts, each as wide as the state (`hidden`), of a row of `width` elements. Raises ShapeError if it
    is not whole."""
    whole, part = as_int(width), as_int(hidden)
    if whole is None or not part or whole % part:
        raise ShapeError("the gates of a cell of steps are no multiples of its state", got=f"{width} of {hidden}")
    return whole // part


def has_cell(attrs: RecurrenceAttrs, types: Sequence[object | None]) -> bool:
    """Whether the recurrence's cell has a second state, c, besides h: an LSTM, or a cell of steps where the operand of
    its initial c is present in `types`."""
    return attrs.cell == "lstm" or (attrs.cell == "steps" and len(types) > 3 and types[3] is not None)


def results(types: Types, hidden: Expr, attrs: RecurrenceAttrs) -> Out:
    """The types of the results: all states [T, B, H], the last h, the last c if there is one, and the stored values [T,
    n, B, H] if `attrs.keeps`. The first of `types` is that of the gates [T, B, G*H]."""
    like = present(types[0])
    time, batch, _ = like.shape
    state = TensorType(like.dtype, (batch, hidden))
    matches = [TensorType(like.dtype, (time, batch, hidden)), state, *([state] if has_cell(attrs, types) else [])]
    if attrs.keeps:
        matches.append(TensorType(like.dtype, (time, const(retained_parts(attrs)), batch, hidden)))
    return tuple(matches)


def retained_parts(attrs: RecurrenceAttrs) -> int:
    """The number of stored values for each element of the state that the backward pass reads, beside the states."""
    parts = 0 if attrs.cell == "steps" else len(cell(attrs.cell, attrs.linear_before_reset).retained)
    if not parts:
        raise ShapeError("only an LSTM and a GRU with linear_before_reset keep more than their states", got=attrs.cell)
    return parts


def program_of(attrs: RecurrenceAttrs, products: int, shares: int, vectors: int, states: int) -> Program:
    """The steps of the cell. A cell that the user wrote has `products` products, `shares` parts of gates_x, `vectors`
    vectors and `states` states."""
    if attrs.cell == "steps":
        return multiplying(attrs.steps, products, shares, shares + states + vectors, states)
    return program(cell(attrs.cell, attrs.linear_before_reset), attrs.activations, attrs.clip)


def _infer(types: Types, attrs: RecurrenceAttrs) -> Out:
    """The type rule of `recurrence`. Inputs gates_x [T, B, G*H], weights [H, G*H], h0 [B, H], c0 [B, H]?, lengths [B]?,
    peephole [3*H]?, deferred_bias [H]? (GRU with linear_before_reset; a cell of steps has any number of parts of H in
    gates_x, weights and deferred_bias). Attributes `cell`, `reverse`, `clip`, `activations` (operator and attributes of
    each function), `linear_before_reset`, `steps`, `keeps`. Outputs: see `results`."""
    gates, weights, h0 = (present(types[k]) for k in range(3))
    check_kind(gates.dtype, ("float",))
    same_dtype([t for k, t in enumerate(types) if t is not None and k != 4])
    _, batch, width = gates.shape
    hidden = weights.shape[0]
    if attrs.cell == "steps":
        _check_steps(types, attrs)
    elif not (same_dim(weights.shape[1], width) and same_dim(hidden * len(cell(attrs.cell).gates), width)):
        raise ShapeError("the recurrent weights do not fit the gates", expected=gates, got=weights)
    if not (same_dim(h0.shape[0], batch) and same_dim(h0.shape[1], hidden)):
        raise ShapeError("the initial state does not fit the gates", expected=gates, got=h0)
    expected: dict[int, tuple[Expr, ...]] = {3: (batch, hidden), 4: (batch,)}
    if attrs.cell != "steps":
        expected |= {5: (hidden * 3,), 6: (hidden,)}
    for k, sizes in expected.items():
        t = types[k] if k < len(types) else None
        if t is not None and not same_shape(t.shape, sizes):
            raise ShapeError("a cell, lengths or vectors do not fit the gates", expected=list(sizes), got=t)
    return results(types, hidden, attrs)


def _check_steps(types: Types, attrs: RecurrenceAttrs) -> None:
    hidden = present(types[2]).shape[1]
    deferred = types[6] if len(types) > 6 else None
    count = sum(parts(present(types[k]).shape[-1], hidden) for k in (0, 1)) + 1 + has_cell(attrs, types)
    count += 0 if deferred is None else parts(deferred.shape[0], hidden)
    if any(t is not None for t in types[4:6]) or len(attrs.steps) < 1 + has_cell(attrs, types):
        raise ShapeError("a cell of steps has other operands", got=f"{len(attrs.steps)} steps")
    check_steps(attrs.steps, count)


def gates_of(attrs: RecurrenceAttrs, weights: TensorType, hidden: Expr) -> int:
    """The number of gates whose products with the state have recurrent weights; for a cell of steps, the number of
    times that `hidden` columns fit in `weights`."""
    return parts(weights.shape[1], hidden) if attrs.cell == "steps" else len(cell(attrs.cell).gates)


UNPACKED = Tile(rows=1, width=16, tiles=1, steps=1)
"""The register tile for weights that are not packed."""


def recurrent_loops(
    types: Types,
    attrs: RecurrenceAttrs,
    out: Out,
    tile: Tile,
    weight: Callable[[Buffer], Weight],
    hidden: Expr,
    gates: int,
) -> PrimFunc:
    """The loop program of a recurrence with `gates` gates and a state of `hidden` elements; `weight` says how the
    weights are read from their buffer. An eighth input scales products with weights that are codes."""
    inputs, outputs = buffers(types, out)
    x, weights, h0, c0, lengths, peephole, deferred, scale = (*inputs, *[None] * 5)[:8]
    assert x is not None and weights is not None and h0 is not None
    vectors = peephole if peephole is not None else deferred
    shares, count = gates, 0
    if attrs.cell == "steps":
        shares, count = parts(x.shape[-1], hidden), 0 if vectors is None else parts(vectors.shape[0], hidden)
    steps = program_of(attrs, gates, shares, count, 1 + has_cell(attrs, types))
    leading_outputs = outputs[:-1] if attrs.keeps else outputs
    operands = Operands(x, h0, c0, lengths, vectors, leading_outputs, outputs[-1] if attrs.keeps else None, scale)
    nest = Nest("recurrence", [*(b for b in inputs if b is not None), *outputs])
    return RecurrentLoops(steps, attrs.reverse, operands, weight(weights), hidden, gates, tile, nest).build()


def _loops(types: Types, attrs: RecurrenceAttrs, out: Out) -> PrimFunc:
    hidden = present(types[1]).shape[0]

    def weight(weights: Buffer) -> Weight:
        def at(panel: Expr, k: Expr, gate: int, lane: Expr) -> Expr:
            j = panel * UNPACKED.width + lane
            return select(j < hidden, weights[k, hidden * gate + j], scalar(0, weights.dtype))

        return at

    return recurrent_loops(types, attrs, out, UNPACKED, weight, hidden, gates_of(attrs, present(types[1]), hidden))


# --- reference ------------------------------------------------------------------------------------------------------


def reference(arrays: Sequence[Any], attrs: RecurrenceAttrs) -> tuple[Any, ...]:
    x, weights, h, c, lengths, peephole, deferred = (
        None if a is None else np.asarray(a) for a in (*arrays, *[None] * 4)[:7]
    )
    assert x is not None and weights is not None and h is not None
    hidden, states = weights.shape[0], [h]
    if has_cell(attrs, arrays):
        states.append(np.zeros_like(h) if c is None else c)
    y = np.zeros((x.shape[0], *h.shape), x.dtype)
    retained = np.zeros((x.shape[0], retained_parts(attrs) if attrs.keeps else 0, *h.shape), x.dtype)

    def split(v: Any) -> list[Any]:
        return [v[..., k * hidden : (k + 1) * hidden] for k in range(v.shape[-1] // hidden if hidden else 0)]

    columns, vectors = split(weights), peephole if peephole is not None else deferred
    shares = split(x)
    own = [] if vectors is None else split(vectors)
    steps = program_of(attrs, len(columns), len(shares), len(own), len(states))
    own = own or [None] * steps.vectors

    def multiply(addend: Any, state: Any, gate: int) -> Any:
        return state @ columns[gate] if addend is None else addend + state @ columns[gate]

    for t in range(x.shape[0])[:: -1 if attrs.reverse else 1]:
        arguments = [*(share[t] for share in shares), *states, *own]
        values = run(steps, arguments, of_arrays(dtype(x.dtype)), multiply, (*steps.results, *steps.retained))
        new = [np.broadcast_to(np.asarray(values[k]), h.shape) for k in steps.results]
        alive = np.ones((h.shape[0], 1), bool) if lengths is None else (t < lengths)[:, None]
        states = [np.where(alive, value, old).astype(x.dtype) for value, old in zip(new, states, strict=True)]
        y[t] = np.where(alive, new[0], 0)
        if attrs.keeps:
            retained[t] = [values[k] for k in steps.retained]
    return (y, *states, *((retained,) if attrs.keeps else ()))


register(OpDef("recurrence", "opaque", RecurrenceAttrs, _infer, reference, loops=_loops))
