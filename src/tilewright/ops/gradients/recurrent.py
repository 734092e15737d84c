"""Gradients of recurrent layers, through time.

What a step needs of the forward pass follows from the states that it gave: gates are computed once more for all steps
in one product, and an LSTM's cells in a loop of one line. The way back is a loop from the last step to the first with
the one product that cannot wait; the gradient of the weights is a single product over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Expr
from tilewright.ir.graph import Value
from tilewright.ops.cells import LstmCellAttrs
from tilewright.ops.dims import dims
from tilewright.ops.gradients.loops import Steps, loop
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.rnn import RecurrenceAttrs
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]
STANDARD = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}


@dataclass(slots=True)
class Layer:
    """A recurrence on the way back, its first step first."""

    b: Backward
    hidden: Expr

    def gate(self, gates: Value, k: int, count: int = 1) -> Value:
        """Gates from `k` on of [..., G H]."""
        rank = gates.type.rank
        begin = (*[0] * (rank - 1), self.hidden * k)
        size = (*gates.shape[:-1], self.hidden * count)
        return self.b.emit("slice", gates, begin=dims(begin), size=dims(size), step=(1,) * rank)

    def before(self, first: Value, states: Value) -> Value:
        """The states [T, B, H] that steps begin with: of each the one before."""
        time, *rest = states.shape
        head = self.b.reshape(first, dims((1, *rest)))
        size = dims((time - 1, *rest))
        earlier = self.b.emit("slice", states, begin=(0, 0, 0), size=size, step=(1, 1, 1))
        return self.b.emit("concat", head, earlier, axis=0)

    def rows(self, x: Value) -> Value:
        """Steps and batch as one dimension."""
        return self.b.reshape(x, dims((x.shape[0] * x.shape[1], x.shape[2])))

    def product(self, states: Value, weights: Value) -> Value:
        """[T, B, H] by [H, n]."""
        found = self.b.emit("matmul", self.rows(states), weights, transpose_a=False, transpose_b=False)
        return self.b.reshape(found, dims((*states.shape[:2], weights.shape[1])))

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
    plain = names == STANDARD.get(attrs.cell) and attrs.clip is None
    if not plain or b.has(4) or b.has(5) or (attrs.cell == "gru" and not attrs.linear_before_reset):
        what = "a recurrent layer with lengths, peepholes, bounds or unusual functions has no gradient yet"
        raise UnsupportedError(what, where=b.y.name, got=attrs.cell)
    layer = Layer(b, b.x(2).shape[1])
    x, states = (b.flip(v) if attrs.reverse else v for v in (b.x(0), b.y))
    flows = [b.zeros(v.shape, v) if g is None else g for g, v in zip(b.given, b.node.outputs, strict=True)]
    if attrs.reverse and b.given[0] is not None:
        flows[0] = b.flip(flows[0])
    begun = layer.before(b.x(2), states)
    way = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}[attrs.cell]
    by_x, by_weights, by_h, by_c, by_late = way(layer, x, begun, flows)
    found = [b.flip(by_x) if attrs.reverse else by_x, by_weights, by_h]
    return [*found, by_c if b.has(3) else None, None, None, by_late if b.has(6) else None]


Parts = tuple[Value, Value, Value, Value | None, Value | None]


def _lstm(layer: Layer, x: Value, begun: Value, flows: Sequence[Value]) -> Parts:
    """Gates: input, output, forget, cell."""
    b, weights = layer.b, layer.b.x(1)
    z = b.add(x, layer.product(begun, weights))
    i, o, f = (b.emit("sigmoid", layer.gate(z, k)) for k in range(3))
    g = b.emit("tanh", layer.gate(z, 3))
    c0 = b.x(3) if b.has(3) else b.zeros(b.x(2).shape, x)

    def cell(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        now = s.add(s.mul(held[0], parts[0]), parts[1])
        return [now], [s.emit("identity", now)]

    _, cells = loop(b, [c0], [f, b.mul(i, g)], cell)
    seen = b.emit("tanh", cells)
    through = b.mul(o, layer.tanh_slope(seen))
    slopes = (
        b.mul(g, layer.sigmoid_slope(i)),
        b.mul(seen, layer.sigmoid_slope(o)),
        b.mul(layer.before(c0, cells), layer.sigmoid_slope(f)),
        b.mul(i, layer.tanh_slope(g)),
    )

    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        flow, through, f, i_slope, o_slope, f_slope, g_slope = parts
        dh = s.add(held[0], flow)
        dc = s.add(held[1], s.mul(dh, through))
        pieces = (s.mul(dc, i_slope), s.mul(dh, o_slope), s.mul(dc, f_slope), s.mul(dc, g_slope))
        gates = s.emit("concat", *pieces, axis=1)
        return [s.back(gates), s.mul(dc, f)], [s.emit("identity", gates)]

    sequences = [b.flip(v) for v in (flows[0], through, f, *slopes)]
    by_h, by_c, gates = loop(b, [flows[1], flows[2]], sequences, back, weights)
    gates = b.flip(gates)
    return gates, layer.by_weights(begun, gates), by_h, by_c, None


def _gru(layer: Layer, x: Value, begun: Value, flows: Sequence[Value]) -> Parts:
    """Gates: update, reset, candidate; the reset gate scales the candidate's product."""
    b, weights = layer.b, layer.b.x(1)
    p = layer.product(begun, weights)
    z, r = (b.emit("sigmoid", b.add(layer.gate(x, k), layer.gate(p, k))) for k in range(2))
    inner = layer.gate(p, 2)
    inner = b.add(inner, b.x(6)) if b.has(6) else inner
    new = b.emit("tanh", b.add(layer.gate(x, 2), b.mul(r, inner)))
    by_new = b.mul(b.sub(b.like(1, z), z), layer.tanh_slope(new))
    by_z = b.mul(b.sub(begun, new), layer.sigmoid_slope(z))
    by_r = b.mul(by_new, b.mul(inner, layer.sigmoid_slope(r)))
    slopes = layer.joined(by_z, by_r, b.mul(by_new, r))

    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        flow, keep, slopes = parts
        dh = s.add(held[0], flow)
        gates = s.mul(s.emit("concat", dh, dh, dh, axis=1), slopes)
        return [s.add(s.mul(dh, keep), s.back(gates))], [s.emit("identity", dh)]

    by_h, dh = loop(b, [flows[1]], [b.flip(v) for v in (flows[0], z, slopes)], back, weights)
    dh = b.flip(dh)
    recurrent = b.mul(layer.joined(dh, dh, dh), slopes)
    by_x = layer.joined(layer.gate(recurrent, 0, 2), b.mul(dh, by_new))
    by_late = b.sum(layer.gate(recurrent, 2), [0, 1], keepdims=False)
    return by_x, layer.by_weights(begun, recurrent), by_h, None, by_late


def _rnn(layer: Layer, x: Value, begun: Value, flows: Sequence[Value]) -> Parts:
    b, weights = layer.b, layer.b.x(1)
    slope = layer.tanh_slope(b.emit("tanh", b.add(x, layer.product(begun, weights))))

    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        gates = s.mul(s.add(held[0], parts[0]), parts[1])
        return [s.back(gates)], [s.emit("identity", gates)]

    by_h, gates = loop(b, [flows[1]], [b.flip(v) for v in (flows[0], slope)], back, weights)
    gates = b.flip(gates)
    return gates, layer.by_weights(begun, gates), by_h, None, None


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
    dh, dc = b.given
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
