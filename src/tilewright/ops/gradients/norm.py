"""Gradients of softmax and the normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Value
from tilewright.ops.gradients.reduce import count
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.norm import NormAttrs, SoftmaxAttrs
from tilewright.ops.shape import ConstantAttrs

Result = Sequence[Value | None]


@gradient("softmax")
def softmax(b: Backward) -> Result:
    axis = b.of(SoftmaxAttrs).axis % b.y.type.rank
    y = _without_nan(b)
    flow = b.mul(b.g, y)
    return [b.sub(flow, b.mul(y, b.sum(flow, [axis])))]


def _without_nan(b: Backward) -> Value:
    """The result y of a softmax; or `select(isnan(y), 0, y)` if only that is read, as in attention, where rows without
    any key give zeros: NaN times their gradient, which is zero, would be NaN."""
    readers = [n for n in b.builder.nodes if b.y in n.inputs]
    chosen = [n for n in readers if n.op == "select" and n.inputs[2] == b.y and n.inputs[0] is not None]
    tests = [n for n in readers if n.op == "isnan"]
    if len(readers) != 2 or not chosen or not tests or chosen[0].inputs[0] != tests[0].output:
        return b.y
    other = next((n for n in b.builder.nodes if chosen[0].inputs[1] in n.outputs), None)
    zero = other is not None and other.op == "constant" and not other.of(ConstantAttrs).value.array.any()
    return chosen[0].output if zero else b.y


@gradient("log_softmax")
def log_softmax(b: Backward) -> Result:
    axis = b.of(SoftmaxAttrs).axis % b.y.type.rank
    return [b.sub(b.g, b.mul(b.emit("exp", b.y), b.sum(b.g, [axis])))]


@gradient("layer_norm", "rms_norm")
def norm(b: Backward) -> Result:
    """The gradient of a normalisation. With n the normalised rows and h the gradient of n it is (h - mean(h) - n mean(h
    n)) / deviation, without mean(h) for rms_norm. The normalised rows are recomputed rather than stored."""
    x, attrs = b.x(), b.of(NormAttrs)
    centred = b.node.op == "layer_norm"
    rows, inverse = normalised(b, x, attrs, centred)

    def mean(value: Value) -> Value:
        return _mean(b, value, attrs)

    h = b.mul(b.g, b.x(1)) if b.has(1) else b.g
    inner = b.sub(h, mean(h)) if centred else h
    results: list[Value | None] = [b.mul(inverse, b.sub(inner, b.mul(rows, mean(b.mul(h, rows)))))]
    if b.has(1):
        results.append(b.reduced_to(b.mul(b.g, rows), b.x(1).shape))
    if b.has(2):
        results += [None] * (2 - len(results))
        results.append(b.reduced_to(b.g, b.x(2).shape))
    return results


def normalised(b: Backward, x: Value, attrs: NormAttrs, centred: bool) -> tuple[Value, Value]:
    """The normalised rows without scale and shift, and the reciprocal of their deviations; `centred`: whether the mean
    is subtracted."""
    middle = b.sub(x, _mean(b, x, attrs)) if centred else x
    variance = b.add(_mean(b, b.mul(middle, middle), attrs), b.like(attrs.epsilon, x))
    inverse = b.div(b.like(1, x), b.emit("sqrt", variance))
    return b.mul(middle, inverse), inverse


def _mean(b: Backward, value: Value, attrs: NormAttrs) -> Value:
    axes = tuple(range(attrs.axis % value.type.rank, value.type.rank))
    return b.div(b.sum(value, axes), count(b, [value.shape[k] for k in axes], value))
