"""Softmax and the normalisations: several stages over rows, so that one kernel can keep each row in cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, call, cast, const, is_const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import (
    accumulator,
    axes_of,
    axis_of,
    broadcast_index,
    broadcast_shapes,
    check_kind,
    check_window,
    need,
    present,
    rank_at_least,
    same_dtype,
    same_shape,
    scalar,
    wide,
)
from tilewright.ops.reduce import count, reduce_stage
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


def _reduced_point(axes: Sequence[int], point: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index of the element to which `point` contributes, in a tensor reduced over `axes`, which stay with size
    1."""
    return tuple(const(0) if k in axes else p for k, p in enumerate(point))


# --- softmax --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SoftmaxAttrs(Attrs):
    """Attributes of `softmax` and `log_softmax`: the results are normalised along the dimension `axis`."""

    axis: int


def _softmax_infer(types: Types, attrs: SoftmaxAttrs) -> Out:
    t = present(types[0])
    check_kind(t.dtype, ("float",))
    axis_of(attrs.axis, t.rank)
    return (t,)


def _softmax_compute(inputs: Tensors, attrs: SoftmaxAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    axes, acc = (attrs.axis % x.ndim,), accumulator(x.dtype)
    _, e, total = _exponentials(x, axes, acc)
    # One division a row: the products differ from quotients by half a unit in the last place at most.
    inverse = te.compute(total.shape, lambda *i: _one(acc) / total[i], name="inverse")
    return (te.compute(x.shape, lambda *i: cast(e[i] * inverse[_reduced_point(axes, i)], type.dtype), name="softmax"),)


def _exponentials(x: Tensor, axes: tuple[int, ...], acc: DType) -> tuple[Tensor, Tensor, Tensor]:
    """The stages (maximum over the axes, exponentials of each element minus that maximum, sums of the exponentials).

    The maximum ignores NaN; the exponential of a NaN element is NaN, and so are the sum and the whole row.
    """
    top = reduce_stage(x, axes, True, te.largest, lambda e: cast(e, acc), "top")
    e = te.compute(
        x.shape, lambda *i: te.exp_nonpositive(cast(x[i], acc) - top[_reduced_point(axes, i)]), name="exponent"
    )
    total = reduce_stage(e, axes, True, te.sum, lambda v: v, "total")
    return top, e, total


def _log_softmax_compute(inputs: Tensors, attrs: SoftmaxAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    axes, acc = (attrs.axis % x.ndim,), accumulator(x.dtype)
    top, _, total = _exponentials(x, axes, acc)
    shift = te.compute(total.shape, lambda *i: te.log(total[i]), name="shift")

    def element(*i: Expr) -> Expr:
        row = _reduced_point(axes, i)
        return cast(cast(x[i], acc) - top[row] - shift[row], type.dtype)

    return (te.compute(x.shape, element, name="log_softmax"),)


def _softmax_numpy(arrays: Sequence[Any], attrs: SoftmaxAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    with np.errstate(all="ignore"):
        e = np.exp(x - np.max(x, axis=attrs.axis, keepdims=True, initial=-np.inf))
        return ((e / np.sum(e, axis=attrs.axis, keepdims=True)).astype(np.asarray(arrays[0]).dtype),)


def _log_softmax_numpy(arrays: Sequence[Any], attrs: SoftmaxAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    with np.errstate(all="ignore"):
        shifted = x - np.max(x, axis=attrs.axis, keepdims=True, initial=-np.inf)
        total = np.sum(np.exp(shifted), axis=attrs.axis, keepdims=True)
        return ((shifted - np.log(total)).astype(np.asarray(arrays[0]).dtype),)


register(OpDef("softmax", "reduction", SoftmaxAttrs, _softmax_infer, _softmax_numpy, compute=_softmax_compute))
register(
    OpDef("log_softmax", "reduction", SoftmaxAttrs, _softmax_infer, _log_softmax_numpy, compute=_log_softmax_compute)
)


# --- layer norm and RMS norm ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NormAttrs(Attrs):
    """Attributes of a normalisation over the axes from `axis` on; `epsilon` is added to the variance."""

    axis: int
    epsilon: float


def _layer_norm_infer(types: Types, attrs: NormAttrs) -> Out:
    """The type rule of `layer_norm` and `rms_norm`: x, scale?, bias? (broadcasting to x) to x's type. It normalises
    over the axes from `axis` on, with `epsilon`."""
    x = present(types[0])
    check_kind(x.dtype, ("float",))
    axis_of(attrs.axis, x.rank)
    operands = [t for t in types if t is not None]
    same_dtype(operands)
    for t in operands[1:]:
        if not same_shape(broadcast_shapes(x.shape, t.shape), x.shape):
            raise ShapeError("scale and bias must broadcast to the input", expected=x, got=t)
    return (x,)


def _affine(e: Expr, inputs: Tensors, point: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """`e * scale + bias`; inputs 1 and 2 are scale and bias, which may be absent. `e` is the element at `point` of a
    tensor of `shape`."""
    for k, combine in ((1, "mul"), (2, "add")):
        t = inputs[k] if len(inputs) > k else None
        if t is not None:
            e = call(combine, e, cast(t[broadcast_index(t, point, shape)], e.dtype))
    return e


def _layer_norm_compute(inputs: Tensors, attrs: NormAttrs, out: Out) -> tuple[Tensor, ...]:
    """The stages of layer normalisation, in two passes over the row: the mean, then the mean square deviation from
    it."""
    x, (type,) = need(inputs[0]), out
    axes = tuple(range(attrs.axis % x.ndim, x.ndim))
    acc = accumulator(x.dtype)
    scale = scalar(1.0, acc) / cast(count(x, axes), acc)
    total = reduce_stage(x, axes, True, te.sum, lambda e: cast(e, acc), "total")
    mean = te.compute(total.shape, lambda *i: total[i] * scale, name="mean")
    centered = te.compute(x.shape, lambda *i: cast(x[i], acc) - mean[_reduced_point(axes, i)], name="centered")
    squares = reduce_stage(centered, axes, True, te.sum, lambda e: e * e, "squares")
    epsilon = scalar(attrs.epsilon, acc)
    inverse = te.compute(total.shape, lambda *i: _one(acc) / te.sqrt(squares[i] * scale + epsilon), name="inverse")

    def element(*i: Expr) -> Expr:
        return cast(_affine(centered[i] * inverse[_reduced_point(axes, i)], inputs, i, x.shape), type.dtype)

    return (te.compute(x.shape, element, name="layer_norm"),)


def _one(t: Any) -> Expr:
    return scalar(1.0, t)


def _layer_norm_numpy(arrays: Sequence[Any], attrs: NormAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    axes = tuple(range(attrs.axis % x.ndim, x.ndim))
    centered = x - np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(centered * centered, axis=axes, keepdims=True)
    return (_affine_numpy(centered / np.sqrt(variance + np.asarray(attrs.epsilon, x.dtype)), arrays),)


def _affine_numpy(y: Any, arrays: Sequence[Any]) -> Any:
    if len(arrays) > 1 and arrays[1] is not None:
        y = y * wide(arrays[1])
    if len(arrays) > 2 and arrays[2] is not None:
        y = y + wide(arrays[2])
    return y.astype(np.asarray(arrays[0]).dtype)


def _rms_norm_compute(inputs: Tensors, attrs: NormAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    axes = tuple(range(attrs.axis % x.ndim, x.ndim))
    acc = accumulator(x.dtype)
    scale = scalar(1.0, acc) / cast(count(x, axes), acc)
    epsilon = scalar(attrs.epsilon, acc)
    squares = reduce_stage(x, axes, True, te.sum, lambda e: cast(e, acc) * cast(e, acc), "squares")
    inverse = te.compute(squares.shape, lambda *i: _one(acc) / te.sqrt(squares[i] * scale + epsilon), name="inverse")

    def element(*i: Expr) -> Expr:
        return cast(_affine(cast(x[i], acc) * inverse[_reduced_point(axes, i)], inputs, i, x.shape), type.dtype)

    return (te.compute(x.shape, element, name="rms_norm"),)


def _rms_norm_numpy(arrays: Sequence[Any], attrs: NormAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    axes = tuple(range(attrs.axis % x.ndim, x.ndim))
    square = np.mean(x * x, axis=axes, keepdims=True)
    return (_affine_numpy(x / np.sqrt(square + np.asarray(attrs.epsilon, x.dtype)), arrays),)


register(OpDef("layer_norm", "reduction", NormAttrs, _layer_norm_infer, _layer_norm_numpy, compute=_layer_norm_compute))
register(OpDef("rms_norm", "reduction", NormAttrs, _layer_norm_infer, _rms_norm_numpy, compute=_rms_norm_compute))


# --- local response normalisation -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LrnAttrs(Attrs):
    """Attributes of local response normalisation, x / (bias + alpha / size * s) ** beta, where s is the sum of the
    squares of `size` adjacent channels: that of x, (size - 1) // 2 before it, and the rest after it."""

    size: int
    alpha: float
    beta: float
    bias: float


def _lrn_infer(types: Types, attrs: LrnAttrs) -> Out:
    """The type rule of `lrn`: x to x's type. The result is x / (bias + alpha / size * sum of squares over `size`
    channels) ** beta."""
    x = present(types[0])
    check_kind(x.dtype, ("float",))
    rank_at_least(x, 2)
    check_window((attrs.size,))
    return (x,)


def _lrn_compute(inputs: Tensors, attrs: LrnAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    acc = accumulator(x.dtype)
    size = attrs.size
    before = (size - 1) // 2
    channels = x.shape[1]
    k = te.reduce_axis(size, "k")

    def window(n: Expr, c: Expr, *rest: Expr) -> Any:
        at = c + k.var - before
        inside = (at >= 0) & (at < channels)
        value = cast(x[(n, minimum(maximum(at, 0), channels - 1), *rest)], acc)
        return te.sum(select(inside, value * value, scalar(0, acc)), axis=k)

    squares = te.compute(x.shape, lambda *i: window(*i), name="squares")
    alpha, beta, bias = (scalar(v, acc) for v in (attrs.alpha, attrs.beta, attrs.bias))
    ratio = alpha / scalar(size, acc)

    def element(*i: Expr) -> Expr:
        base = bias + ratio * squares[i]
        # x ** -0.75 is two square roots; the general power is a logarithm and an exponential.
        if is_const(beta, 0.75):
            root = te.sqrt(base)
            return cast(cast(x[i], acc) / (root * te.sqrt(root)), type.dtype)
        return cast(cast(x[i], acc) / te.power(base, beta), type.dtype)

    return (te.compute(x.shape, element, name="lrn"),)


def _lrn_numpy(arrays: Sequence[Any], attrs: LrnAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    size = attrs.size
    before = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[1] = (before, size - 1 - before)
    padded = np.pad(x * x, widths)
    total = sum(np.take(padded, np.arange(x.shape[1]) + k, axis=1) for k in range(size))
    y = x / (attrs.bias + attrs.alpha / size * total) ** attrs.beta
    return (y.astype(np.asarray(arrays[0]).dtype),)


register(OpDef("lrn", "reduction", LrnAttrs, _lrn_infer, _lrn_numpy, compute=_lrn_compute))


# --- rows of norm one -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LpNormalizeAttrs(Attrs):
    """Attributes of `lp_normalize`: the norm's exponent `p` (2: Euclidean); the axes that it is over; `epsilon`: a
    lower bound of the norm."""

    axes: Ints
    p: float = 2.0
    epsilon: float = 0.0


def _lp_infer(types: Types, attrs: LpNormalizeAttrs) -> Out:
    """The type rule of `lp_normalize`: x to x's type. The result is x / max((sum of |x| ** p) ** (1 / p), epsilon); 0 /
    0 is NaN where epsilon is 0."""
    x = present(types[0])
    check_kind(x.dtype, ("float",))
    axes_of(attrs.axes, x.rank)
    if not attrs.p > 0 or attrs.epsilon < 0:
        raise ShapeError("p must be positive and epsilon not negative", got=f"p = {attrs.p}, epsilon = {attrs.epsilon}")
    return (x,)


def _lp_compute(inputs: Tensors, attrs: LpNormalizeAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,), p = need(inputs[0]), out, attrs.p
    axes, acc = axes_of(attrs.axes, x.ndim), accumulator(x.dtype)
    zero, one = scalar(0, acc), scalar(1, acc)
    with np.errstate(all="ignore"):
        least = acc.numpy.type(np.float64(attrs.epsilon) ** p)

    def power(e: Expr) -> Expr:
        e = te.abs(cast(e, acc))
        if p < 1:  # no gradient flows back through the power of a zero, whose slope is infinite
            return select(call("eq", e, zero), zero, te.power(select(call("eq", e, zero), one, e), scalar(p, acc)))
        return e if p == 1 else e * e if p == 2 else te.power(e, scalar(p, acc))

    def root(e: Expr) -> Expr:
        return e if p == 1 else te.sqrt(e) if p == 2 else te.power(e, scalar(1 / p, acc))

    def bounded(total: Expr) -> Expr:
        if not attrs.epsilon:
            return root(total)
        # Nor through the root of a small sum.
        small = total < scalar(least, acc) if least >= np.finfo(acc.numpy).tiny else total <= zero
        return select(small, scalar(attrs.epsilon, acc), root(select(small, one, total)))

    total = reduce_stage(x, axes, True, te.sum, power, "total")
    norm = te.compute(total.shape, lambda *i: bounded(total[i]), name="norm")
    return (
        te.compute(
            x.shape, lambda *i: cast(cast(x[i], acc) / norm[_reduced_point(axes, i)], type.dtype), name="lp_normalize"
        ),
    )


def _lp_numpy(arrays: Sequence[Any], attrs: LpNormalizeAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    axes = axes_of(attrs.axes, x.ndim)
    with np.errstate(all="ignore"):
        total = np.sum(np.abs(x) ** x.dtype.type(attrs.p), axis=axes, keepdims=True)
        norm = np.maximum(total ** x.dtype.type(1 / attrs.p), x.dtype.type(attrs.epsilon))
        return ((x / norm).astype(np.asarray(arrays[0]).dtype),)


register(OpDef("lp_normalize", "reduction", LpNormalizeAttrs, _lp_infer, _lp_numpy, compute=_lp_compute))
