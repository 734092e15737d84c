"""Recurrent layers as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.codegen.onnx.layers import several
from tilewright.codegen.onnx.pointwise import DIRECT
from tilewright.codegen.onnx.shapes import operand
from tilewright.codegen.onnx.writer import Writer
from tilewright.ir.dtype import i32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.rnn import RecurrenceAttrs
from tilewright.support.errors import UnsupportedError


@several("recurrence")
def recurrence(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    """The rule of `recurrence`. The input's share of the gates is computed before, so that the node's input weights are
    the identity."""
    a, t = node.of(RecurrenceAttrs), node.outputs[0].dtype
    hidden, width = (as_int(d) for d in operand(node, 1).shape)
    if hidden is None or width is None:
        raise UnsupportedError("a recurrent layer of open width cannot be said in ONNX")
    if a.keeps:
        raise UnsupportedError("what a recurrent layer keeps for its gradient cannot be said in ONNX")
    gates, weights, h0, c0, lengths, peephole, deferred = (*x, *[None] * 4)[:7]
    unit = w.constant(np.eye(width)[None], t, "unit")
    recurrent = w.op("Unsqueeze", [w.op("Transpose", [weights], perm=[1, 0]), w.ints([0])])
    inputs = [gates, unit, recurrent, _deferred_bias(w, deferred, hidden, width, node), _i32(w, lengths, node)]
    states = [None if s is None else w.op("Unsqueeze", [s, w.ints([0])]) for s in (h0, c0)]
    rows = None if peephole is None else w.op("Unsqueeze", [peephole, w.ints([0])])
    inputs += [states[0], *([states[1], rows] if a.cell == "lstm" else [])]
    values = [v for _, item in a.activations for v in dict(item).values()]
    if len(values) > len([1 for _, item in a.activations if item]):
        raise UnsupportedError("an activation with two numbers cannot be said in ONNX's recurrent layers")
    names = [w.shared.fresh(v.name) for v in node.outputs]
    results = w.several(
        {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}[a.cell],
        inputs,
        names,
        hidden_size=hidden,
        direction="reverse" if a.reverse else "forward",
        activations=[DIRECT[name] for name, _ in a.activations],
        activation_alpha=values or None,
        clip=a.clip,
        linear_before_reset=int(a.linear_before_reset) if a.cell == "gru" else None,
    )
    axes = [1, *[0] * (len(results) - 1)]
    return [w.op("Squeeze", [y, w.ints([axis])]) for y, axis in zip(results, axes, strict=True)]


def _deferred_bias(w: Writer, deferred: str | None, hidden: int, width: int, node: Node) -> str | None:
    """The operand B of an ONNX GRU with `hidden` units, whose reset gate scales the candidate's bias `deferred`: zeros,
    then that bias. `width` is the width of all gates. None without a deferred bias."""
    if deferred is None:
        return None
    zeros = w.constant(np.zeros(2 * width - hidden), node.outputs[0].dtype)
    return w.op("Unsqueeze", [w.op("Concat", [zeros, deferred], axis=0), w.ints([0])])


def _i32(w: Writer, lengths: str | None, node: Node) -> str | None:
    return None if lengths is None else w.cast(lengths, operand(node, 4).dtype, i32)
