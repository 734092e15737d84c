"""Gradients of softmax and the normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Value
from tilewright.ops.gradients.reduce import count
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.norm import NormAttrs, SoftmaxAttrs

Result = Sequence[Value | None]


@gradient("softmax")
def softmax(b: Backward) -> Result:
    axis = b.of(SoftmaxAttrs).axis % b.y.type.rank
    flow = b.mul(b.g, b.y)
    return [b.sub(flow, b.mul(b.y, b.sum(flow, [axis])))]


@gradient("log_softmax")
def log_softmax(b: Backward) -> Result:
    axis = b.of(SoftmaxAttrs).axis % b.y.type.rank
    return [b.sub(b.g, b.mul(b.emit("exp", b.y), b.sum(b.g, [axis])))]


@gradient("layer_norm", "rms_norm")
def norm(b: Backward) -> Result:
    """With n the normalised rows and h the gradient of n: (h - mean(h) - n mean(h n)) / deviation; without the first
    mean for rms_norm, which subtracts none. The rows are computed once more rather than kept."""
    x, attrs = b.x(), b.of(NormAttrs)
    axes = tuple(range(attrs.axis % x.type.rank, x.type.rank))
    size = count(b, [x.shape[k] for k in axes], x)
    centred = b.node.op == "layer_norm"

    def mean(value: Value) -> Value:
        return b.div(b.sum(value, axes), size)

    middle = b.sub(x, mean(x)) if centred else x
    variance = b.add(mean(b.mul(middle, middle)), b.like(attrs.epsilon, x))
    inverse = b.div(b.like(1, x), b.emit("sqrt", variance))
    rows = b.mul(middle, inverse)
    h = b.mul(b.g, b.x(1)) if b.has(1) else b.g
    inner = b.sub(h, mean(h)) if centred else h
    found: list[Value | None] = [b.mul(inverse, b.sub(inner, b.mul(rows, mean(b.mul(h, rows)))))]
    if b.has(1):
        found.append(b.reduced_to(b.mul(b.g, rows), b.x(1).shape))
    if b.has(2):
        found += [None] * (2 - len(found))
        found.append(b.reduced_to(b.g, b.x(2).shape))
    return found
