"""Gradients of recurrent layers, through time.

The way forward keeps the gates of all steps. The way back is a loop from the last step to the first with the one
product that cannot wait; the gradient of the weights is a single product over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.expr import Expr
from tilewright.ir.graph import Value
from tilewright.ops.cells import LstmCellAttrs
from tilewright.ops.dims import dims
from tilewright.ops.gradients.loops import Body, Steps, loop
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.rnn import RecurrenceAttrs, results
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]
STANDARD = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}


@dataclass(slots=True)
class Layer:
    """A recurrence on the way back. Its sequences stay in the order of the way forward, and are walked through the
    other way."""

    b: Backward
    hidden: Expr

    @property
    def attrs(self) -> RecurrenceAttrs:
        return self.b.of(RecurrenceAttrs)

    def gate(self, gates: Value, k: int, count: int = 1) -> Value:
        """Gates from `k` on of [..., G H]."""
        rank = gates.type.rank
        begin = (*[0] * (rank - 1), self.hidden * k)
        size = (*gates.shape[:-1], self.hidden * count)
        return self.b.emit("slice", gates, begin=dims(begin), size=dims(size), step=(1,) * rank)

    def begun(self) -> Value:
        """The states [T, B, H] that steps begin with: of each the one before."""
        time, *rest = self.b.y.shape
        first = self.b.reshape(self.b.x(2), dims((1, *rest)))
        begin = (1, 0, 0) if self.attrs.reverse else (0, 0, 0)
        others = self.b.emit("slice", self.b.y, begin=begin, size=dims((time - 1, *rest)), step=(1, 1, 1))
        return self.b.emit("concat", *((others, first) if self.attrs.reverse else (first, others)), axis=0)

    def rows(self, x: Value) -> Value:
        """Steps and batch as one dimension."""
        return self.b.reshape(x, dims((x.shape[0] * x.shape[1], x.shape[2])))

    def stored(self) -> Value:
        """The values that the forward pass stores, [T, n, B, H]."""
        b, at = self.b, self.b.place
        node = b.builder.nodes[at]
        if not node.of(RecurrenceAttrs).keeps:
            attrs = replace(self.attrs, keeps=True)
            more = Value(b.builder.fresh(f"{b.y.name}.kept"), results((b.x(0).type,), self.hidden, attrs)[-1])
            node = b.builder.nodes[at] = replace(node, attrs=attrs, outputs=(*node.outputs, more))
        return node.outputs[-1]

    def back(self, carried: list[Value], sequences: list[Value], body: Body) -> list[Value]:
        """A loop from the last step to the first, whose steps multiply by the recurrent weights."""
        return loop(self.b, carried, sequences, body, self.b.x(1), not self.attrs.reverse)

    def by_weights(self, states: Value, gates: Value) -> Value:
        return self.b.emit("matmul", self.rows(states), self.rows(gates), transpose_a=True, transpose_b=False)

    def sigmoid_slope(self, y: Value) -> Value:
        return self.b.mul(y, self.b.sub(self.b.like(1, y), y))

    def tanh_slope(self, y: Value) -> Value:
        return self.b.sub(self.b.like(1, y), self.b.mul(y, y))

    def joined(self, *parts: Value) -> Value:
        return self.b.emit("concat", *parts, axis=parts[0].type.rank - 1)


@gradient("recurrence")
def recurrence(b: Backward) -> Result:
    attrs = b.of(RecurrenceAttrs)
    names = tuple(name for name, _ in attrs.activations)
    ordinary = names == STANDARD.get(attrs.cell) and attrs.clip is None
    if not ordinary or b.has(4) or b.has(5) or (attrs.cell == "gru" and not attrs.linear_before_reset):
        what = "a recurrent layer with lengths, peepholes, bounds or unusual functions has no gradient yet"
        raise UnsupportedError(what, where=b.y.name, got=attrs.cell)
    ends = len(b.node.outputs) - attrs.keeps
    flows = [
        b.zeros(v.shape, v) if g is None else g for g, v in zip(b.output_gradients[:ends], b.node.outputs, strict=False)
    ]
    by_retained = [g for g in b.output_gradients[ends:] if g is not None]
    way = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}[attrs.cell]
    by_x, by_weights, by_h, by_c, by_deferred = way(Layer(b, b.x(2).shape[1]), flows, by_retained)
    return [by_x, by_weights, by_h, by_c if b.has(3) else None, None, None, by_deferred if b.has(6) else None]


Parts = tuple[Value, Value, Value, Value | None, Value | None]


def _lstm(layer: Layer, flows: Sequence[Value], by_retained: Sequence[Value]) -> Parts:
    """Gates: input, output, forget, cell. Kept are those, c before the step, and tanh(c) after it."""

    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        i, o, f, g, before, seen = s.split(parts[1])
        dh = s.add(held[0], parts[0])
        by_i, by_o, by_f, by_g, by_c, by_seen = s.split(parts[2]) if by_retained else [None] * 6
        dc = s.add(held[1], s.mul(s.sum(s.mul(dh, o), by_seen), s.tanh_slope(seen)))
        gates = s.emit(
            "concat",
            s.mul(s.sum(s.mul(dc, g), by_i), s.sigmoid_slope(i)),
            s.mul(s.sum(s.mul(dh, seen), by_o), s.sigmoid_slope(o)),
            s.mul(s.sum(s.mul(dc, before), by_f), s.sigmoid_slope(f)),
            s.mul(s.sum(s.mul(dc, i), by_g), s.tanh_slope(g)),
            axis=1,
        )
        return [s.back(gates), s.sum(s.mul(dc, f), by_c)], [s.emit("identity", gates)]

    by_h, by_c, gates = layer.back([flows[1], flows[2]], [flows[0], layer.stored(), *by_retained], back)
    return gates, layer.by_weights(layer.begun(), gates), by_h, by_c, None


def _gru(layer: Layer, flows: Sequence[Value], by_retained: Sequence[Value]) -> Parts:
    """Gates: update, reset, candidate; the reset gate scales the candidate's product. Kept are those four."""
    b, begun = layer.b, layer.begun()

    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        z, r, new, inner = s.split(parts[1])
        dh = s.add(held[0], parts[0])
        by_z, by_r, by_new, by_inner = s.split(parts[3]) if by_retained else [None] * 4
        dn = s.mul(s.sum(s.mul(dh, s.rest(z)), by_new), s.tanh_slope(new))
        dz = s.mul(s.sum(s.mul(dh, s.sub(parts[2], new)), by_z), s.sigmoid_slope(z))
        dr = s.mul(s.sum(s.mul(dn, inner), by_r), s.sigmoid_slope(r))
        gates = s.emit("concat", dz, dr, s.sum(s.mul(dn, r), by_inner), axis=1)
        on = s.add(s.mul(dh, z), s.back(gates))
        return [on], [s.emit("identity", gates), s.emit("identity", dn)]

    by_h, gates, dn = layer.back([flows[1]], [flows[0], layer.stored(), begun, *by_retained], back)
    by_x = layer.joined(layer.gate(gates, 0, 2), dn)
    by_deferred = b.sum(layer.gate(gates, 2), [0, 1], keepdims=False)
    return by_x, layer.by_weights(begun, gates), by_h, None, by_deferred


def _rnn(layer: Layer, flows: Sequence[Value], by_retained: Sequence[Value]) -> Parts:
    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        gates = s.mul(s.add(held[0], parts[0]), s.tanh_slope(parts[1]))
        return [s.back(gates)], [s.emit("identity", gates)]

    by_h, gates = layer.back([flows[1]], [flows[0], layer.b.y], back)
    return gates, layer.by_weights(layer.begun(), gates), by_h, None, None


@gradient("lstm_cell")
def lstm_cell(b: Backward) -> Result:
    """One step: gates of rows of gates_x and the state's product, computed once more."""
    attrs, x = b.of(LstmCellAttrs), b.x()
    if tuple(name for name, _ in attrs.activations) != STANDARD["lstm"] or attrs.clip is not None:
        raise UnsupportedError("an LSTM's step with bounds or other functions has no gradient yet", where=b.y.name)
    h, c = b.node.outputs
    layer = Layer(b, h.shape[1])
    batch, wide = h.shape[0], x.shape[1]
    first = batch * attrs.step
    z = b.emit("slice", x, begin=dims((first, 0)), size=dims((batch, wide)), step=(1, 1))
    z = b.add(z, b.x(1)) if b.has(1) else z
    i, o, f = (b.emit("sigmoid", layer.gate(z, k)) for k in range(3))
    g, seen = b.emit("tanh", layer.gate(z, 3)), b.emit("tanh", c)
    dh, dc = b.output_gradients
    if dh is not None:
        through = b.mul(b.mul(dh, o), layer.tanh_slope(seen))
        dc = through if dc is None else b.add(dc, through)
    assert dc is not None
    of_o = b.zeros(h.shape, x) if dh is None else b.mul(b.mul(dh, seen), layer.sigmoid_slope(o))
    of_f = b.mul(b.mul(dc, b.x(2)), layer.sigmoid_slope(f)) if b.has(2) else b.zeros(h.shape, x)
    pieces = [b.mul(b.mul(dc, g), layer.sigmoid_slope(i)), of_o, of_f, b.mul(b.mul(dc, i), layer.tanh_slope(g))]
    gates = layer.joined(*pieces)
    after = (x.shape[0] - first - batch, 0)
    by_x = b.emit("pad", gates, before=dims((first, 0)), after=dims(after), mode="constant")
    return [by_x, gates if b.has(1) else None, b.mul(dc, f) if b.has(2) else None]
