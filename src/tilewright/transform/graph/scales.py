"""Scales move into the weights of convolutions.

    y = conv(x, w) * a + b        ->      y = conv(x, w * a) + b          (a, b depend on weights alone)
    y = conv(x / 255, w)          ->      y = conv(x, w / 255)

The new weight-only nodes move to `prepare` later, so batch normalisation costs nothing in `run`.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.expr import const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite


def fold_scales(graph: Graph) -> Graph:
    """The graph in which factors before and after convolutions are multiplied into their weights, where these factors
    depend on weights alone."""
    return rewrite(graph, RULES)


def _scaled_weights(m: Match) -> Value | None:
    """Emit `conv(x, w / 255)` for `conv(x / 255, w)`; None if the factor is not one for all of the data, or depends on
    more than weights."""
    x, w, fixed, scale = m["x"], m["w"], m.rewriter.fixed, m.producer("x")
    if w not in fixed or not w.dtype.is_float or m.rewriter.only_reader(x) is None:
        return None
    data, factor = scale.inputs
    if scale.op == "mul" and data in fixed:
        data, factor = factor, data
    if data is None or factor not in fixed or factor is None or data in fixed or factor.type.rank > w.type.rank:
        return None
    uniform = all(is_const(d, 1) for d in factor.shape)
    if not uniform or data.shape != x.shape or x.dtype is not w.dtype:
        return None
    scaled = m.emit(scale.op, w, factor, name=f"{w.name}_scaled")
    return m.emit("conv", data, scaled, attrs=m.node.attrs)


def _negated(m: Match) -> Value | None:
    """Emit (conv + -m) * a for (conv - m) * a, so that the other rules apply to a normalisation written this way."""
    offset, readers = m["offset"], m.rewriter.readers.get(m.node.output, ())
    if m.is_output or _operands(m.node, m.rewriter.fixed) != (m["conv"], offset) or [u.op for u in readers] != ["mul"]:
        return None
    return m.emit("add", m["conv"], m.emit("neg", offset, name=offset.name))


def _scaled(m: Match) -> Value | None:
    """Emit a factor after a convolution as a part of its weights, and sums of two terms as one term. conv(x, w) * a
    becomes conv(x, w * a), (conv + c) * a becomes conv * a + c * a, and (y + b) + c becomes y + (b + c). None for other
    nodes."""
    split = None if m.is_output else _operands(m.node, m.rewriter.fixed)
    if split is None or m.rewriter.only_reader(split[0]) is None:
        return None
    data, factor = split
    producer = m.rewriter.producer(data, "conv", "add")
    if producer is None or (m.node.op == "mul" and producer.op == "conv"):
        return None if producer is None else _scaled_conv(m, producer, factor)
    parts = _operands(producer, m.rewriter.fixed) if producer.op == "add" else None
    if parts is None:
        return None
    first, offset = parts
    if m.node.op == "add":  # (y + b) + c -> y + (b + c)
        return m.emit("add", first, m.emit("add", offset, factor, name="offset"))
    conv = m.rewriter.producer(first, "conv")  # (conv + c) * a -> conv * a + c * a
    if conv is None or first in m.rewriter.outputs or len(m.rewriter.readers.get(first, ())) > 1:
        return None
    scaled = _scaled_conv(m, conv, factor)
    return None if scaled is None else m.emit("add", scaled, m.emit("mul", offset, factor, name="offset"))


RULES = (
    Rule(op("conv", op(("mul", "div"), name="x"), "w"), _scaled_weights),
    Rule(op("sub", op("conv", name="conv"), "offset"), _negated),
    Rule(op(("mul", "add")), _scaled),
)


def _operands(node: Node, fixed: Collection[Value]) -> tuple[Value, Value] | None:
    """(full-size operand, per-channel operand that depends on weights alone) of a node; None if its operands are
    others."""
    a, b = node.operands(2)
    for data, factor in ((a, b), (b, a)):
        if factor in fixed and data not in fixed and _per_channel(factor, data):
            return data, factor
    return None


def _scaled_conv(m: Match, conv: Node, factor: Value) -> Value | None:
    weights = conv.inputs[1]
    # Sums of integers are wider than weights, which a factor would not fit into.
    if weights is None or weights not in m.rewriter.fixed or weights.dtype is not factor.dtype:
        return None
    if all(is_const(d, 1) for d in factor.shape):  # one value a channel
        single = m.emit("reshape", factor, name="scale", shape=(const(1),))
        factor = m.emit("broadcast", single, name="scale", shape=(conv.output.shape[1],))
    shape = (weights.shape[0], *(const(1) for _ in weights.shape[1:]))
    column = m.emit("reshape", factor, name="scale", shape=shape)
    scaled = m.emit("mul", weights, column, name=f"{weights.name}_scaled")
    return m.emit("conv", conv.inputs[0], scaled, attrs=conv.attrs)


def _per_channel(factor: Value, data: Value) -> bool:
    """Whether `factor` has one element per channel of `data` [N, C, ...], as [1, C, 1, ...] or [C, 1, ...], or one in
    all."""
    rank = data.type.rank
    if rank < 3 or factor.type.rank > rank or factor.dtype is not data.dtype:
        return False
    lead = rank - factor.type.rank
    for i, dim in enumerate(factor.shape):
        if lead + i == 1 and dim is data.shape[1]:
            continue
        if not is_const(dim, 1):
            return False
    return True
