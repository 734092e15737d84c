"""`recurrence`: the steps of an LSTM, GRU or simple RNN, or of a cell that the user wrote, in a loop over time.

The inputs' share of the gates is computed outside by one matrix product. What is left is, for every step, a product of
the state with the recurrent weights and the cell's arithmetic. Batch entries are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Buffer, Expr, as_int, const, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import check_kind, present, same_dim, same_dtype, scalar
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.pointwise import Functions
from tilewright.ops.registry import OpDef, Types, register
from tilewright.ops.rnn_loops import GATES, Operands, RecurrentLoops, Tile, Weight
from tilewright.ops.steps import Steps, check_steps
from tilewright.ops.steps import arrays as step_arrays
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class RecurrenceAttrs(Attrs):
    """`activations` has operator and attributes of each of the cell's functions; what they take is clipped to +-`clip`.
    `linear_before_reset` is a GRU's. `keeps` gives, as a last output, what the way back needs of each step.

    The cell "steps" is what `steps` say, of values [B, H]: the state's products (as many as the weights have columns of
    H), the parts of gates_x, h, c if there is one, the parts of `deferred_bias`. The last steps give the new h (and c).
    """

    cell: Literal["lstm", "gru", "rnn", "steps"]
    activations: Functions = ()
    reverse: bool = False
    clip: float | None = None
    linear_before_reset: bool = False
    steps: Steps = ()
    keeps: bool = False


def parts(width: Expr, hidden: Expr) -> int:
    """How many parts of the state's width something has. Raises ShapeError where that is no whole number."""
    whole, part = as_int(width), as_int(hidden)
    if whole is None or not part or whole % part:
        raise ShapeError("the gates of a cell of steps are no multiples of its state", got=f"{width} of {hidden}")
    return whole // part


def has_cell(attrs: RecurrenceAttrs, types: Sequence[object | None]) -> bool:
    """Whether there is a second state beside h."""
    return attrs.cell == "lstm" or (attrs.cell == "steps" and len(types) > 3 and types[3] is not None)


def results(types: Types, hidden: Expr, attrs: RecurrenceAttrs) -> Out:
    """All states [T, B, H], the last h, the last c if there is one, and what is kept [T, n, B, H]; the gates
    [T, B, G*H] are the first of `types`."""
    like = present(types[0])
    time, batch, _ = like.shape
    state = TensorType(like.dtype, (batch, hidden))
    matches = [TensorType(like.dtype, (time, batch, hidden)), state, *([state] if has_cell(attrs, types) else [])]
    if attrs.keeps:
        matches.append(TensorType(like.dtype, (time, const(retained_parts(attrs)), batch, hidden)))
    return tuple(matches)


def retained_parts(attrs: RecurrenceAttrs) -> int:
    """How many values of each element of the state the way back needs: of an LSTM the gates input, output, forget and
    cell after their functions, c before the step and its last function after it; of a GRU update, reset, candidate
    and what reset scales."""
    parts = {"lstm": 6, "gru": 4 if attrs.linear_before_reset else 0, "rnn": 0, "steps": 0}[attrs.cell]
    if not parts:
        raise ShapeError("only an LSTM and a GRU with linear_before_reset keep more than their states", got=attrs.cell)
    return parts


def _infer(types: Types, attrs: RecurrenceAttrs) -> Out:
    """Inputs gates_x [T, B, G*H], weights [H, G*H], h0 [B, H], c0 [B, H]?, lengths [B]?, peephole [3*H]?,
    deferred_bias [H]? (GRU with linear_before_reset; a cell of steps has any number of parts of H in gates_x, weights
    and deferred_bias). Attributes `cell`, `reverse`, `clip`, `activations` (operator and attributes of each
    function), `linear_before_reset`, `steps`, `keeps`. Gives what `results` says."""
    gates, weights, h0 = (present(types[k]) for k in range(3))
    check_kind(gates.dtype, ("float",))
    same_dtype([t for k, t in enumerate(types) if t is not None and k != 4])
    _, batch, width = gates.shape
    hidden = weights.shape[0]
    if attrs.cell == "steps":
        _check_steps(types, attrs)
    elif not (same_dim(weights.shape[1], width) and same_dim(hidden * GATES[attrs.cell], width)):
        raise ShapeError("the recurrent weights do not fit the gates", expected=gates, got=weights)
    if not (same_dim(h0.shape[0], batch) and same_dim(h0.shape[1], hidden)):
        raise ShapeError("the initial state does not fit the gates", expected=gates, got=h0)
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
    """How many gates the state is multiplied for."""
    return parts(weights.shape[1], hidden) if attrs.cell == "steps" else GATES[attrs.cell]


UNPACKED = Tile(rows=1, width=16, tiles=1, steps=1)
"""The tile where weights are read as they lie."""


def recurrent_loops(
    types: Types,
    attrs: RecurrenceAttrs,
    out: Out,
    tile: Tile,
    weight: Callable[[Buffer], Weight],
    hidden: Expr,
    gates: int,
) -> PrimFunc:
    """The loops of a recurrence with so many gates, whose weights lie as `weight` says. An eighth input scales products
    with weights that are codes."""
    inputs, outputs = buffers(types, out)
    x, weights, h0, c0, lengths, peephole, deferred, scale = (*inputs, *[None] * 5)[:8]
    assert x is not None and weights is not None and h0 is not None
    leading_outputs = outputs[:-1] if attrs.keeps else outputs
    operands = Operands(
        x, h0, c0, lengths, peephole, deferred, leading_outputs, outputs[-1] if attrs.keeps else None, scale
    )
    cell = (attrs.cell, attrs.activations, attrs.steps, attrs.clip, attrs.reverse, attrs.linear_before_reset)
    nest = Nest("recurrence", [*(b for b in inputs if b is not None), *outputs])
    return RecurrentLoops(*cell, operands, weight(weights), hidden, gates, tile, nest).build()


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
    x, weights, h, c, lengths, peephole, deferred = (*arrays, *[None] * 4)[:7]
    second = has_cell(attrs, arrays)
    x, weights, h = np.asarray(x), np.asarray(weights), np.asarray(h)
    c = np.zeros_like(h) if c is None else np.asarray(c)
    hidden = weights.shape[0]
    y = np.zeros((x.shape[0], *h.shape), x.dtype)
    retained = np.zeros((x.shape[0], retained_parts(attrs) if attrs.keeps else 0, *h.shape), x.dtype)

    def f(k: int, v: Any, clip: bool = True) -> Any:
        if clip and attrs.clip is not None:
            v = np.clip(v, -attrs.clip, attrs.clip)
        name, values = attrs.activations[k]
        return ops.get(name).reference([v], ops.attributes(name, dict(values)))[0]

    def part(v: Any, k: int) -> Any:
        return v[..., k * hidden : (k + 1) * hidden]

    parts: tuple[Any, ...]
    for t in range(x.shape[0])[:: -1 if attrs.reverse else 1]:
        if attrs.cell == "lstm":
            gates = x[t] + h @ weights
            p = np.zeros(3 * hidden, x.dtype) if peephole is None else np.asarray(peephole)
            i, forget = f(0, part(gates, 0) + part(p, 0) * c), f(0, part(gates, 2) + part(p, 2) * c)
            g = f(1, part(gates, 3))
            new_c = forget * c + i * g
            o, seen = f(0, part(gates, 1) + part(p, 1) * new_c), f(2, new_c, clip=False)
            new_h, parts = o * seen, (i, o, forget, g, c, seen)
        elif attrs.cell == "gru":
            gates = x[t] + np.concatenate([h @ weights[:, : 2 * hidden], np.zeros_like(h)], axis=-1)
            z, r = f(0, part(gates, 0)), f(0, part(gates, 1))
            last = weights[:, 2 * hidden :]
            scaled = h @ last + (0 if deferred is None else np.asarray(deferred))
            inner = r * scaled if attrs.linear_before_reset else (r * h) @ last
            candidate = f(1, part(gates, 2) + inner)
            new_c, new_h, parts = c, (1 - z) * candidate + z * h, (z, r, candidate, scaled)
        elif attrs.cell == "steps":
            rows = [
                h @ weights,
                x[t],
                h,
                *([c] if second else []),
                *([] if deferred is None else [np.asarray(deferred)]),
            ]
            arguments = [part(row, k) for row in rows for k in range(row.shape[-1] // hidden)]
            created = [np.broadcast_to(v, h.shape) for v in step_arrays(attrs.steps, arguments, dtype(x.dtype))]
            new_h, new_c, parts = (created[-2], created[-1], ()) if second else (created[-1], c, ())
        else:
            new_c, new_h, parts = c, f(0, x[t] + h @ weights), ()
        alive = np.ones((h.shape[0], 1), bool) if lengths is None else (t < np.asarray(lengths))[:, None]
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        y[t] = np.where(alive, new_h, 0)
        if attrs.keeps:
            retained[t] = parts
    ends = (h.astype(x.dtype), c.astype(x.dtype)) if second else (h.astype(x.dtype),)
    return (y, *ends, *((retained,) if attrs.keeps else ()))


register(OpDef("recurrence", "opaque", RecurrenceAttrs, _infer, reference, loops=_loops))
