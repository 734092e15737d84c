"""`recurrence`: the steps of an LSTM, GRU or simple RNN in a loop over time.

The inputs' share of the gates is computed outside by one matrix product. What is left is, for every step, a product of
the state with the recurrent weights and the cell's arithmetic. Batch entries are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Buffer, Expr, const, maximum, minimum
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import check_kind, present, same_dim, same_dtype, scalar
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.pointwise import Functions
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@dataclass(frozen=True, slots=True)
class RecurrenceAttrs(Attrs):
    """`activations` has operator and attributes of each of the cell's functions; what they take is clipped to +-`clip`.
    `linear_before_reset` is a GRU's."""

    cell: Literal["lstm", "gru", "rnn"]
    activations: Functions
    reverse: bool = False
    clip: float | None = None
    linear_before_reset: bool = False


def _infer(types: Types, attrs: RecurrenceAttrs) -> Out:
    """Inputs gates_x [T, B, G*H], weights [H, G*H], h0 [B, H], c0 [B, H]?, lengths [B]?, peephole [3*H]?,
    late_bias [H]? (GRU with linear_before_reset). Attributes `cell`, `reverse`, `clip`, `activations` (operator and
    attributes of each function), `linear_before_reset`. Gives all states [T, B, H], the last h, and for LSTM c."""
    gates, weights, h0 = (present(types[k]) for k in range(3))
    check_kind(gates.dtype, ("float",))
    same_dtype([t for k, t in enumerate(types) if t is not None and k != 4])
    time, batch, width = gates.shape
    hidden = weights.shape[0]
    if not (same_dim(weights.shape[1], width) and same_dim(hidden * GATES[attrs.cell], width)):
        raise ShapeError("the recurrent weights do not fit the gates", expected=gates, got=weights)
    if not (same_dim(h0.shape[0], batch) and same_dim(h0.shape[1], hidden)):
        raise ShapeError("the initial state does not fit the gates", expected=gates, got=h0)
    state = TensorType(gates.dtype, (batch, hidden))
    states = (state, state) if attrs.cell == "lstm" else (state,)
    return (TensorType(gates.dtype, (time, batch, hidden)), *states)


def _function(attrs: RecurrenceAttrs, k: int, x: Expr) -> Expr:
    """The k-th activation of an element, after clipping."""
    from tilewright.ops.pointwise import BODIES

    if attrs.clip is not None:
        x = minimum(maximum(x, scalar(-attrs.clip, x.dtype)), scalar(attrs.clip, x.dtype))
    return _plain(attrs, k, x, BODIES)


def _plain(attrs: RecurrenceAttrs, k: int, x: Expr, bodies: Any) -> Expr:
    name, values = attrs.activations[k]
    body: Expr = bodies[name]((x,), ops.attributes(name, dict(values)))
    return body


def _loops(types: Types, attrs: RecurrenceAttrs, out: Out) -> PrimFunc:
    given, results = buffers(types, out)
    x, weights, h0, c0, lengths, peephole, late = (*given, *[None] * 4)[:7]
    assert x is not None and weights is not None and h0 is not None
    return _Steps(attrs, x, weights, h0, c0, lengths, peephole, late, results, [b for b in given if b]).build()


class _Steps:
    """Emits the loop program; one method a cell."""

    def __init__(
        self,
        attrs: RecurrenceAttrs,
        x: Buffer,
        weights: Buffer,
        h0: Buffer,
        c0: Buffer | None,
        lengths: Buffer | None,
        peephole: Buffer | None,
        late: Buffer | None,
        results: list[Buffer],
        params: list[Buffer],
    ) -> None:
        self.attrs, self.x, self.weights, self.h0, self.c0 = attrs, x, weights, h0, c0
        self.lengths, self.peephole, self.late, self.results = lengths, peephole, late, results
        self.time, self.batch, self.width = x.shape
        self.hidden = weights.shape[0]
        self.nest = Nest("recurrence", [*params, *results])
        self.cell: str = attrs.cell

    def build(self) -> PrimFunc:
        nest, t, hidden = self.nest, self.x.dtype, self.hidden
        with (
            nest.loop("b", self.batch, parallel=True) as b,
            nest.allocate("h", t, (hidden,)) as h,
            nest.allocate("c", t, (hidden,)) as c,
            nest.allocate("gates", t, (self.width,)) as gates,
            nest.allocate("scaled", t, (hidden,)) as scaled,
        ):
            with nest.loop("j", hidden) as j:
                nest.store(h, (j,), self.h0[b, j])
                nest.store(c, (j,), scalar(0, t) if self.c0 is None else self.c0[b, j])
            with nest.loop("s", self.time) as s:
                time = self.time - 1 - s if self.attrs.reverse else s
                if self.lengths is None:
                    self.step(b, time, h, c, gates, scaled)
                else:
                    with nest.when(time < self.lengths[b]):
                        self.step(b, time, h, c, gates, scaled)
                    with nest.when(time >= self.lengths[b]), nest.loop("j", hidden) as j:
                        nest.store(self.results[0], (time, b, j), scalar(0, t))
            with nest.loop("j", hidden) as j:
                nest.store(self.results[1], (b, j), h[j])
                if self.cell == "lstm":
                    nest.store(self.results[2], (b, j), c[j])
        return nest.finish()

    def step(self, b: Expr, time: Expr, h: Buffer, c: Buffer, gates: Buffer, scaled: Buffer) -> None:
        nest, hidden = self.nest, self.hidden
        linear_first = bool(self.attrs.linear_before_reset)
        with nest.loop("g", self.width) as g:
            nest.store(gates, (g,), self.x[time, b, g])
        # The GRU's candidate sees the state after the reset gate: its share comes later.
        early = self.width if self.cell != "gru" else hidden * 2
        with nest.loop("k", hidden) as k, nest.loop("g", early) as g:
            nest.store(gates, (g,), gates[g] + self.weights[k, g] * h[k])
        if self.cell == "gru":
            self.candidate(gates, h, scaled, linear_first)
        with nest.loop("j", hidden) as j:
            {"lstm": self.lstm, "gru": self.gru, "rnn": self.rnn}[self.cell](j, h, c, gates)
            nest.store(self.results[0], (time, b, j), h[j])

    def candidate(self, gates: Buffer, h: Buffer, scaled: Buffer, linear_first: bool) -> None:
        """Adds the recurrent share of the GRU's candidate: r * (h R + bias), or (r * h) R."""
        nest, hidden, t = self.nest, self.hidden, self.x.dtype
        with nest.loop("j", hidden) as j:
            if linear_first:
                nest.store(scaled, (j,), scalar(0, t) if self.late is None else self.late[j])
            else:
                nest.store(scaled, (j,), _function(self.attrs, 0, gates[hidden + j]) * h[j])
        target, offset = (scaled, const(0)) if linear_first else (gates, hidden * 2)
        source = h if linear_first else scaled
        with nest.loop("k", hidden) as k, nest.loop("j", hidden) as j:
            value = target[offset + j] + self.weights[k, hidden * 2 + j] * source[k]
            nest.store(target, (offset + j,), value)
        if linear_first:
            with nest.loop("j", hidden) as j:
                reset = _function(self.attrs, 0, gates[hidden + j])
                nest.store(gates, (hidden * 2 + j,), gates[hidden * 2 + j] + reset * scaled[j])

    def lstm(self, j: Expr, h: Buffer, c: Buffer, gates: Buffer) -> None:
        hidden = self.hidden

        def peep(gate: Expr, k: int) -> Expr:
            return gate if self.peephole is None else gate + self.peephole[hidden * k + j] * c[j]

        i = _function(self.attrs, 0, peep(gates[j], 0))
        f = _function(self.attrs, 0, peep(gates[hidden * 2 + j], 2))
        g = _function(self.attrs, 1, gates[hidden * 3 + j])
        self.nest.store(c, (j,), f * c[j] + i * g)
        from tilewright.ops.pointwise import BODIES

        o = _function(self.attrs, 0, peep(gates[hidden + j], 1))
        self.nest.store(h, (j,), o * _plain(self.attrs, 2, c[j], BODIES))

    def gru(self, j: Expr, h: Buffer, c: Buffer, gates: Buffer) -> None:
        z = _function(self.attrs, 0, gates[j])
        g = _function(self.attrs, 1, gates[self.hidden * 2 + j])
        self.nest.store(h, (j,), (scalar(1, z.dtype) - z) * g + z * h[j])

    def rnn(self, j: Expr, h: Buffer, c: Buffer, gates: Buffer) -> None:
        self.nest.store(h, (j,), _function(self.attrs, 0, gates[j]))


# --- reference ------------------------------------------------------------------------------------------------------


def _numpy(arrays: Sequence[Any], attrs: RecurrenceAttrs) -> tuple[Any, ...]:
    x, weights, h, c, lengths, peephole, late = (*arrays, *[None] * 4)[:7]
    x, weights, h = np.asarray(x), np.asarray(weights), np.asarray(h)
    c = np.zeros_like(h) if c is None else np.asarray(c)
    hidden = weights.shape[0]
    y = np.zeros((x.shape[0], *h.shape), x.dtype)

    def f(k: int, v: Any, clip: bool = True) -> Any:
        if clip and attrs.clip is not None:
            v = np.clip(v, -attrs.clip, attrs.clip)
        name, values = attrs.activations[k]
        return ops.get(name).reference([v], ops.attributes(name, dict(values)))[0]

    def part(v: Any, k: int) -> Any:
        return v[..., k * hidden : (k + 1) * hidden]

    for t in range(x.shape[0])[:: -1 if attrs.reverse else 1]:
        if attrs.cell == "lstm":
            gates = x[t] + h @ weights
            p = np.zeros(3 * hidden, x.dtype) if peephole is None else np.asarray(peephole)
            i, forget = f(0, part(gates, 0) + part(p, 0) * c), f(0, part(gates, 2) + part(p, 2) * c)
            new_c = forget * c + i * f(1, part(gates, 3))
            new_h = f(0, part(gates, 1) + part(p, 1) * new_c) * f(2, new_c, clip=False)
        elif attrs.cell == "gru":
            gates = x[t] + np.concatenate([h @ weights[:, : 2 * hidden], np.zeros_like(h)], axis=-1)
            z, r = f(0, part(gates, 0)), f(0, part(gates, 1))
            last = weights[:, 2 * hidden :]
            if attrs.linear_before_reset:
                inner = r * (h @ last + (0 if late is None else np.asarray(late)))
            else:
                inner = (r * h) @ last
            new_c, new_h = c, (1 - z) * f(1, part(gates, 2) + inner) + z * h
        else:
            new_c, new_h = c, f(0, x[t] + h @ weights)
        alive = np.ones((h.shape[0], 1), bool) if lengths is None else (t < np.asarray(lengths))[:, None]
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        y[t] = np.where(alive, new_h, 0)
    h, c = h.astype(x.dtype), c.astype(x.dtype)
    return (y, h, c) if attrs.cell == "lstm" else (y, h)


register(OpDef("recurrence", "opaque", RecurrenceAttrs, _infer, _numpy, loops=_loops))
