"""Rules for softmax and the normalisations."""

from __future__ import annotations

from tilewright.frontend.common.contraction import channels
from tilewright.frontend.common.norm import batch_norm as _batch_norm
from tilewright.frontend.common.norm import group_norm as _group_norm
from tilewright.frontend.common.norm import root_of_squares, stable_root, variance
from tilewright.frontend.common.shapes import divide
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.tensors import element_type
from tilewright.ir.expr import const, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of
from tilewright.support.errors import ShapeError, UnsupportedError


@rule("Softmax", "LogSoftmax")
def softmax(n: Call) -> Value:
    """Softmax along `axis`; before operator set 13 over all dimensions from `axis` on."""
    op = "softmax" if n.node.op_type == "Softmax" else "log_softmax"
    x = n.value(0)
    rank = x.type.rank
    axis = axis_of(n.integer("axis", -1 if n.opset >= 13 else 1), rank)
    if n.opset >= 13 or axis == rank - 1:
        return n.emit(op, x, axis=axis)
    flat = n.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return n.reshape(n.emit(op, flat, axis=1), x.shape)


@rule("BatchNormalization")
def batch_norm(n: Call) -> list[Value]:
    """x * a + b with a = scale / sqrt(var + epsilon), b = bias - mean * a: both depend on weights alone."""
    x, scale, bias, mean, var = (n.value(i) for i in range(5))
    epsilon = n.real("epsilon", 1e-5)
    momentum = n.real("momentum", 0.9)
    n.attr("is_test")  # before operator set 7; who asks for one output means inference
    if n.integer("training_mode", 0):
        return _training(n, x, scale, bias, mean, var, epsilon, momentum)
    if n.outputs > 1 and any(n.node.output[1:]):
        raise UnsupportedError("the statistics of BatchNormalization are not supported")
    if not n.integer("spatial", 1):  # before operator set 9: statistics of each element
        scale, bias, mean, var = (n.reshape(v, (1, *v.shape)) for v in (scale, bias, mean, var))
        factor = n.emit("div", scale, stable_root(n, var, epsilon))
        return [n.emit("add", n.emit("mul", n.emit("sub", x, mean), factor), bias)]
    return [_batch_norm(n, x, scale, bias, mean, var, epsilon)]


def _training(
    n: Call, x: Value, scale: Value, bias: Value, mean: Value, var: Value, epsilon: float, momentum: float
) -> list[Value]:
    """BatchNormalization in training: [the result, normalised by the batch's statistics, then multiplied by `scale` and
    shifted by `bias`; the new running mean; the new running variance]. The old statistics, `mean` and `var`, have the
    weight `momentum`; `epsilon` is added to variances."""
    axes = tuple(k for k in range(x.type.rank) if k != 1)
    centre, _, spread = variance(n, x, axes)
    vector = (x.shape[1],)
    centre, spread = n.cast(n.reshape(centre, vector), mean.dtype), n.cast(n.reshape(spread, vector), var.dtype)

    def moved(running: Value, now: Value) -> Value:
        old = n.emit("mul", running, n.like(momentum, running))
        return n.emit("add", old, n.emit("mul", now, n.like(1 - momentum, now)))

    y = _batch_norm(n, x, scale, bias, centre, spread, epsilon)
    return [y, moved(mean, centre), moved(var, spread)]


@rule("LayerNormalization")
def layer_norm(n: Call) -> list[Value]:
    x, scale, bias = n.value(0), n.optional(1), n.optional(2)
    axis = axis_of(n.integer("axis", -1), x.type.rank)
    epsilon = n.real("epsilon", 1e-5)
    work = element_type(n.integer("stash_type", 1))
    results = [n.emit("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)]
    if n.outputs > 1:
        axes = tuple(range(axis, x.type.rank))
        wide = n.cast(x, work)
        mean, _, spread = variance(n, wide, axes)
        results += [mean, n.emit("reciprocal", stable_root(n, spread, epsilon))]
    return results


@rule("RMSNormalization")
def rms_norm(n: Call) -> Value:
    n.integer("stash_type", 1)
    axis = axis_of(n.integer("axis", -1), n.rank(0))
    x, scale = n.value(0), n.value(1)
    if scale.dtype is not x.dtype:
        y = n.emit("rms_norm", x, axis=axis, epsilon=n.real("epsilon", 1e-5))
        return n.emit("mul", n.cast(y, scale.dtype), scale)
    return n.emit("rms_norm", x, scale, axis=axis, epsilon=n.real("epsilon", 1e-5))


@rule("InstanceNormalization")
def instance_norm(n: Call) -> Value:
    x, scale, bias = n.value(0), n.value(1), n.value(2)
    if x.type.rank < 3:
        raise ShapeError("instance normalisation needs spatial dimensions", got=x.type)
    y = n.emit("layer_norm", x, axis=2, epsilon=n.real("epsilon", 1e-5))
    return n.emit("add", n.emit("mul", y, channels(n, scale, x.type.rank)), channels(n, bias, x.type.rank))


@rule("GroupNormalization")
def group_norm(n: Call) -> Value:
    """`GroupNormalization`. Before operator set 21, scale and bias have one entry for each group, from then on one for
    each channel."""
    x, scale, bias = n.value(0), n.value(1), n.value(2)
    groups = n.integer("num_groups", 0)
    n.integer("stash_type", 1)
    per = divide([x.shape[1]], [const(groups)]) if groups > 0 and x.type.rank >= 3 else None
    if per is None:
        raise ShapeError("the channels do not divide into groups", expected=groups, got=x.type)
    epsilon = n.real("epsilon", 1e-5)
    if n.opset >= 21:
        return _group_norm(n, x, groups, per, scale, bias, epsilon)
    y = n.emit("layer_norm", n.reshape(x, (x.shape[0], groups, per, *x.shape[2:])), axis=2, epsilon=epsilon)
    y = n.emit("add", n.emit("mul", y, channels(n, scale, y.type.rank)), channels(n, bias, y.type.rank))
    return n.reshape(y, x.shape)


@rule("LRN")
def lrn(n: Call) -> Value:
    return n.emit(
        "lrn",
        n.value(0),
        size=n.integer("size", 1),
        alpha=n.real("alpha", 1e-4),
        beta=n.real("beta", 0.75),
        bias=n.real("bias", 1.0),
    )


@rule("MeanVarianceNormalization")
def mean_variance(n: Call) -> Value:
    x = n.value(0)
    axes = tuple(sorted(axis_of(a, x.type.rank) for a in n.ints("axes", [0, 2, 3]) or []))
    _, deviation, square = variance(n, x, axes)
    spread = n.emit("add", n.emit("sqrt", square), n.like(1e-9, square))
    return n.emit("div", deviation, spread)


@rule("LpNormalization")
def lp_normalization(n: Call) -> Value:
    """x divided by its norm along an axis; zero where the norm is zero."""
    x = n.value(0)
    axis, p = axis_of(n.integer("axis", -1), x.type.rank), n.integer("p", 2)
    powered = n.emit("abs", x) if p == 1 else n.emit("mul", x, x)
    norm = n.emit("reduce_sum", powered, axes=(axis,), keepdims=True)
    if p == 2:
        norm = root_of_squares(n, norm)
    empty = n.emit("eq", norm, n.like(0.0, norm))
    divisor = n.emit("select", empty, n.like(1.0, norm), norm)  # nothing flows back through 0 / 0
    return n.emit("select", empty, n.like(0.0, x), n.emit("div", x, divisor))
