"""Rules for softmax and the normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.common.contraction import channels
from tilewright.frontend.common.norm import batch_norm as common_batch_norm
from tilewright.frontend.common.norm import group_norm as common_group_norm
from tilewright.frontend.common.norm import stable_root, variance
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.frontend.torch.rules.casts import detach
from tilewright.frontend.torch.rules.reduce import root
from tilewright.ir.expr import is_const, product
from tilewright.ir.graph import Value


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "special_softmax", "special_log_softmax", "softmin")
def softmax(n: Call, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    x = n.cast(x, n.dtype)
    if x.type.rank == 0:
        return n.filled(0 if "log" in n.name else 1, x.dtype, ())
    return n.emit("log_softmax" if "log" in n.name else "softmax", x, axis=n.axis(dim, x))


@rule("_safe_softmax", single=True)
def safe_softmax(n: Call, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    """Softmax that is 0 where all inputs are -inf; these are replaced beforehand, since the gradient would be NaN."""
    x = n.cast(x, n.dtype)
    if x.type.rank == 0:
        return n.emit("select", n.emit("eq", x, n.like(float("-inf"), x)), n.like(0.0, x), n.like(1.0, x))
    axis = n.axis(dim, x)
    if is_const(x.shape[axis], 0):
        return n.emit("softmax", x, axis=axis)
    highest = n.emit("reduce_max", x, axes=(axis,), keepdims=True)
    empty = n.emit("eq", highest, n.like(float("-inf"), highest))
    result = n.emit("softmax", n.emit("select", empty, n.like(0.0, x), x), axis=axis)
    return n.emit("select", empty, n.like(0.0, x), result)


@rule("batch_norm")
def batch_norm(
    n: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: float,
    epsilon: float,
    cudnn: bool = False,
) -> Value:
    _refuse_statistics(n, mean, var, training)
    if training or mean is None or var is None:
        return _statistics_of_batch(n, x, weight, bias, epsilon)
    return common_batch_norm(n, x, weight, bias, mean, var, epsilon)


def _refuse_statistics(n: Call, mean: Value | None, var: Value | None, by_batch: bool) -> None:
    """Raise UnsupportedError for a norm that changes its running statistics `mean` and `var`, because it normalises by
    the batch (`by_batch`); where PyTorch makes a graph functional, other operators change them."""
    if by_batch and (mean is not None or var is not None):
        raise n.unsupported("with running statistics that it changes")


@rule("_native_batch_norm_legit_no_training")
def native_batch_norm_without_training(
    n: Call, x: Value, weight: Any, bias: Any, mean: Value, var: Value, momentum: float, epsilon: float
) -> list[Value]:
    """Batch norm in evaluation mode, by the running `mean` and `var` (plus `epsilon`), then `weight` and `bias`;
    returns [result, empty, empty], as there are no statistics of a batch. `momentum` is not used."""
    empty = n.filled(0, x.dtype, (0,))
    return [common_batch_norm(n, x, weight, bias, mean, var, epsilon), empty, empty]


@rule("_native_batch_norm_legit_functional", single=True)
def native_batch_norm_in_training(
    n: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    training: bool,
    momentum: float,
    epsilon: float,
) -> list[Value]:
    """Batch norm in training, then `weight` and `bias`; `epsilon` is added to the variance. Returns the output, the
    batch's means and reciprocal standard deviations, and the new running statistics: `mean` and `var`, moved by
    `momentum` towards the batch's, whose variance is unbiased. Only the output has gradients."""
    if not training:
        empty = n.filled(0, x.dtype, (0,))
        return [common_batch_norm(n, x, weight, bias, mean, var, epsilon), empty, empty, mean, var]
    axes = tuple(k for k in range(x.type.rank) if k != 1)
    middle, deviation, spread = variance(n, x, axes)
    root = stable_root(n, spread, epsilon)
    y = _affine(n, n.emit("div", deviation, root), weight, bias)
    size = product([x.shape[k] for k in axes])
    count = n.number(size, spread.dtype)
    unbiased = n.emit("mul", spread, n.emit("div", count, n.number(size - 1, spread.dtype)))

    def moved(old: Value, new: Value) -> Value:
        retained = n.emit("mul", old, n.like(1 - momentum, old))
        step = n.emit("mul", n.cast(n.reshape(new, old.shape), old.dtype), n.like(momentum, old))
        return n.emit("add", retained, step)

    flat = (n.reshape(v, (x.shape[1],)) for v in (middle, n.emit("reciprocal", root)))
    return [y, *(detach(n, v) for v in (*flat, moved(mean, middle), moved(var, unbiased)))]


@rule("_native_batch_norm_legit.no_stats", single=True)
def native_batch_norm_of_batch(
    n: Call, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, epsilon: float
) -> list[Value]:
    y, mean, rstd = _normalised_and_how(n, x, tuple(k for k in range(x.type.rank) if k != 1), epsilon)
    return [_affine(n, y, weight, bias), *(n.reshape(v, (x.shape[1],)) for v in (mean, rstd))]


def _statistics_of_batch(n: Call, x: Value, weight: Value | None, bias: Value | None, epsilon: float) -> Value:
    """Batch norm of x [N, C, ...] by the statistics of the batch alone, without running ones, then `weight` and `bias`;
    `epsilon` is added to variances."""
    axes = tuple(k for k in range(x.type.rank) if k != 1)
    return n.single(_normalised_by_itself, x, weight, bias, axes, epsilon)  # type: ignore[no-any-return]


def _normalised_by_itself(
    n: Call, x: Value, weight: Value | None, bias: Value | None, axes: Sequence[int], epsilon: float
) -> Value:
    return _affine(n, _normalised(n, x, axes, epsilon), weight, bias)


def _normalised(n: Call, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    _, deviation, root = _moments(n, x, axes, epsilon)
    return n.emit("div", deviation, root)


def _normalised_and_how(n: Call, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """(`x` normalised over `axes`, with `epsilon` added to variances; its means; its reciprocal standard deviations);
    PyTorch gives the latter two no gradients."""
    mean, deviation, root = _moments(n, x, axes, epsilon)
    return n.emit("div", deviation, root), detach(n, mean), detach(n, n.emit("reciprocal", root))


def _moments(n: Call, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """(means of `x` over `axes`, deviations from them, roots of mean square deviation plus `epsilon`)."""
    mean, deviation, spread = variance(n, x, axes)
    return mean, deviation, stable_root(n, spread, epsilon)


def _affine(n: Call, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = n.emit("mul", x, channels(n, n.cast(weight, x.dtype), x.type.rank))
    return x if bias is None else n.emit("add", x, channels(n, n.cast(bias, x.dtype), x.type.rank))


@rule("instance_norm", single=True)
def instance_norm(
    n: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    use_input_stats: bool,
    momentum: float,
    epsilon: float,
    cudnn: bool = False,
) -> Value:
    _refuse_statistics(n, mean, var, use_input_stats)
    if not use_input_stats and mean is not None and var is not None:
        return common_batch_norm(n, x, weight, bias, mean, var, epsilon)
    return _affine(n, _normalised(n, x, range(2, x.type.rank), epsilon), weight, bias)


@rule("layer_norm")
def layer_norm(
    n: Call,
    x: Value,
    shape: Sequence[Any],
    weight: Value | None = None,
    bias: Value | None = None,
    epsilon: float = 1e-5,
    cudnn: bool = False,
) -> Value:
    axis = x.type.rank - len(shape)
    weight, bias = (None if v is None else n.cast(v, x.dtype) for v in (weight, bias))
    return n.emit("layer_norm", x, weight, bias, axis=axis, epsilon=float(epsilon))


@rule("native_layer_norm", single=True)
def native_layer_norm(n: Call, x: Value, shape: Any, weight: Any, bias: Any, epsilon: float) -> list[Value]:
    """Layer norm over the last dimensions, which have the extents `shape`, then `weight` and `bias`; `epsilon` is added
    to variances. Returns [result, means, reciprocal standard deviations], of which the last two are dropped if
    unused."""
    axes = tuple(range(x.type.rank - len(shape), x.type.rank))
    _, mean, rstd = _normalised_and_how(n, x, axes, epsilon)
    return [layer_norm(n, x, shape, weight, bias, epsilon), mean, rstd]


@rule("rms_norm")
def rms_norm(
    n: Call, x: Value, shape: Sequence[Any], weight: Value | None = None, epsilon: float | None = None
) -> Value:
    if epsilon is None:
        import torch

        from tilewright.frontend.torch.dtypes import TORCH

        # That of the type that PyTorch computes in, which is f32 for narrower ones, whatever its documentation says.
        epsilon = torch.finfo(torch.promote_types(TORCH[x.dtype], torch.float32)).eps
    weight = None if weight is None else n.cast(weight, x.dtype)
    return n.emit("rms_norm", x, weight, axis=x.type.rank - len(shape), epsilon=float(epsilon))


@rule("group_norm", single=True)
def group_norm(
    n: Call,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    epsilon: float = 1e-5,
    cudnn: bool = False,
) -> Value:
    return common_group_norm(n, x, groups, x.shape[1] // groups, weight, bias, float(epsilon))


@rule("native_group_norm", single=True)
def native_group_norm(
    n: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Any,
    c: Any,
    size: Any,
    groups: int,
    epsilon: Any,
) -> list[Value]:
    """Norm of `x` [N, C, ...] over each of `groups` groups of channels, then `weight` and `bias`; `epsilon` is added to
    variances. Returns [result, the groups' means, their reciprocal standard deviations], the last two [N, groups]; they
    are dropped if unused."""
    flat = n.reshape(x, (x.shape[0], groups, product(x.shape[2:]) * (x.shape[1] // groups)))
    _, mean, rstd = _normalised_and_how(n, flat, (2,), epsilon)
    moments = (n.reshape(v, (x.shape[0], groups)) for v in (mean, rstd))
    return [group_norm(n, x, groups, weight, bias, epsilon), *moments]


@rule("local_response_norm", single=True)
def local_response_norm(n: Call, x: Value, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Value:
    return n.emit("lrn", x, size=size, alpha=alpha, beta=beta, bias=k)


@rule("weight_norm", "_weight_norm", single=True)
def weight_norm(n: Call, v: Value, g: Value, dim: int = 0) -> Value:
    """g v / |v|, where the norm is over all dimensions except `dim`."""
    axes = tuple(k for k in range(v.type.rank) if k != dim % max(v.type.rank, 1))
    norm = root(n, n.emit("reduce_sum", n.emit("mul", v, v), axes=axes, keepdims=True))
    return n.emit("mul", v, n.emit("div", g, norm))
