"""Gradients of cumulative operators: products, maxima and minima, log-sum-exps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.ops.gradients.loops import Steps, loop
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.running import CumulativeLogsumexpAttrs, RunningExtremeAttrs
from tilewright.ops.scan import CumulativeAttrs

Result = Sequence[Value | None]


def _to_front(b: Backward, x: Value, axis: int) -> Value:
    return b.transpose(x, [axis, *(k for k in range(x.type.rank) if k != axis)])


def _from_front(b: Backward, x: Value, axis: int) -> Value:
    return b.transpose(x, [*range(1, axis + 1), 0, *range(axis + 1, x.type.rank)])


@gradient("cumprod")
def cumprod(b: Backward) -> Result:
    """dx[j] is the product of all elements before j times s[j], with s[j] = g[j] + x[j + 1] s[j + 1]. Nothing is
    divided, so that this is right for zeros too."""
    attrs, x = b.of(CumulativeAttrs), b.x()
    axis = axis_of(attrs.axis, x.type.rank)
    before = b.emit("cumprod", x, axis=axis, exclusive=True, reverse=attrs.reverse)
    sequences = [_to_front(b, v, axis) for v in (x, b.g)]

    def step(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        (after,), (element, flow) = held, parts
        if attrs.exclusive:
            return [s.add(flow, s.mul(element, after))], [s.emit("identity", after)]
        here = s.add(flow, after)
        return [s.mul(element, here)], [s.emit("identity", here)]

    start = b.zeros(sequences[0].shape[1:], x)
    _, sums = loop(b, [start], sequences, step, backward=not attrs.reverse)
    return [b.mul(before, _from_front(b, sums, axis))]


@gradient("running_extreme")
def running_extreme(b: Backward) -> Result:
    if b.output_gradients[0] is None:
        return [None]
    axis = b.of(RunningExtremeAttrs).axis
    zeros = b.zeros(b.x().shape, b.g)
    return [b.emit("scatter_elements", zeros, b.node.outputs[1], b.g, axis=axis, reduction="add")]


@gradient("cumulative_logsumexp")
def cumulative_logsumexp(b: Backward) -> Result:
    """dx[j] = e^(x[j] - y[j]) s[j], s[j] = g[j] + e^(y[j] - y[j + 1]) s[j + 1]. No exponent is positive."""
    x = b.x()
    axis = axis_of(b.of(CumulativeLogsumexpAttrs).axis, x.type.rank)

    def step(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        (after, following), (here, flow) = held, parts
        zero = s.emit("constant", value=np.zeros((), x.dtype.numpy))
        same = s.emit("eq", here, following)
        gap = s.emit("select", same, zero, s.emit("sub", here, following))
        total = s.add(flow, s.mul(after, s.emit("exp", gap)))
        return [total, s.emit("identity", here)], [s.emit("identity", total)]

    sequences = [_to_front(b, v, axis) for v in (b.y, b.g)]
    shape = sequences[0].shape[1:]
    start = [b.zeros(shape, x), b.broadcast(b.like(np.inf, x), shape)]
    *_, sums = loop(b, start, sequences, step, backward=True)
    return [b.mul(_from_front(b, sums, axis), b.emit("exp", b.sub(x, b.y)))]
