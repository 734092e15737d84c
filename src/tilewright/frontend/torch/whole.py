"""Operators that PyTorch traces as a whole: it computes the shapes of their results without decomposing them.

    y[T, B, H], h[1, B, H], c[1, B, H] = lstm(x[T, B, I], (h0, c0), ...)      T a number or a symbol
    y[B, C, 3] = adaptive_avg_pool1d(x[B, C, T], 3)

PyTorch implements recurrent layers as Python loops over the steps of a sequence, so that tracing fixes the number of
steps and takes time for each. One-dimensional pooling is C++ code that reads sizes as numbers, and adaptive pooling
tests whether sizes divide, so that a program only serves sizes that do, or that do not (PyTorch 2.13). Covariances
compare a tensor with a number, and the CTC loss reads lengths, although no result's size depends on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
"""Dispatch keys under which PyTorch implements recurrent layers as Python loops."""


def _sequence(x: Any, state: Any, bidirectional: bool, batch_first: bool) -> Any:
    """A recurrent layer's result for tracing: an uninitialised tensor with the shape and strides of the states at all
    steps of `x`, in both directions if `bidirectional`; the batch comes first if `batch_first`, else the time."""
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    y = x.new_empty(steps, batch, state.shape[-1] * (2 if bidirectional else 1))
    return y.transpose(0, 1) if batch_first else y


def _lstm(x: Any, states: Sequence[Any], params: Any, biases: bool, *rest: Any) -> tuple[Any, ...]:
    _layers, _dropout, _training, bidirectional, batch_first = rest
    h, c = states
    return _sequence(x, h, bidirectional, batch_first), x.new_empty(h.shape), x.new_empty(c.shape)


def _single(x: Any, state: Any, params: Any, biases: bool, *rest: Any) -> tuple[Any, ...]:
    _layers, _dropout, _training, bidirectional, batch_first = rest
    return _sequence(x, state, bidirectional, batch_first), x.new_empty(state.shape)


def _pooled(x: Any, kernel: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False) -> Any:
    """For tracing only: an uninitialised tensor of the shape and dtype of max pooling along the last dimension by
    windows of `kernel` elements, with `strides` (by default `kernel`), `padding` at both ends and `dilation`. With
    `ceil`, a last window may reach past the end, but begins before it."""
    window, step, pad, spacing = (_number(v) for v in (kernel, strides or kernel, padding, dilation))
    before = x.shape[-1] + 2 * pad - spacing * (window - 1) - 1
    steps = -(-before // step) if ceil else before // step
    if ceil:
        steps = torch.sym_min(steps, (x.shape[-1] + pad - 1) // step)
    return x.new_empty(*x.shape[:-1], steps + 1)


def _number(v: Any) -> Any:
    return v[0] if isinstance(v, list | tuple) else v


def _adaptive(x: Any, size: Any) -> Any:
    return x.new_empty(*x.shape[: -len(size)], *size)


def _adaptive_maximum(x: Any, size: Any) -> Any:
    result = _adaptive(x, size)
    return result, result.new_empty(result.shape, dtype=torch.int64)


def _covariance(x: Any, **_: Any) -> Any:
    """The result of `cov` for tracing: an uninitialised square matrix, or a scalar for one row. Raises RuntimeError for
    booleans."""
    if x.dtype is torch.bool:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    rows = x.shape[0] if x.dim() > 1 else 1
    number = x if x.dtype.is_floating_point or x.dtype.is_complex else x.new_empty((), dtype=torch.get_default_dtype())
    return number.new_empty(() if isinstance(rows, int) and rows == 1 else (rows, rows))


def _loss(scores: Any, targets: Any, steps: Any, lengths: Any, blank: Any = 0, reduction: int = 1, *_: Any) -> Any:
    """For tracing only: an uninitialised tensor of the shape and dtype of the CTC loss of `scores`, which is one loss
    per sequence (`reduction` 0), or a scalar; the other arguments do not matter."""
    return scores.new_empty(scores.shape[1:2] if reduction == 0 and scores.dim() == 3 else ())


_SIZES = {
    torch.ops.aten.cov.default: _covariance,
    torch.ops.aten.corrcoef.default: _covariance,
    torch.ops.aten.ctc_loss.IntList: _loss,
    torch.ops.aten.ctc_loss.Tensor: _loss,
    torch.ops.aten.max_pool1d.default: _pooled,
    torch.ops.aten.adaptive_avg_pool1d.default: _adaptive,
    torch.ops.aten.adaptive_avg_pool2d.default: _adaptive,
    torch.ops.aten.adaptive_avg_pool3d.default: _adaptive,
    torch.ops.aten.adaptive_max_pool1d.default: _adaptive_maximum,
    torch.ops.aten.lstm.input: _lstm,
    torch.ops.aten.gru.input: _single,
    torch.ops.aten.rnn_tanh.input: _single,
    torch.ops.aten.rnn_relu.input: _single,
}


@contextlib.contextmanager
def opaque_operators(separate: Collection[Any] = ()) -> Iterator[None]:
    """Within the context, the operators of this module, except `separate`, are traced by the shapes of their results
    only: values are meaningless, and the graph keeps each operator whole."""
    whole = {operator: sizes for operator, sizes in _SIZES.items() if operator not in separate}
    before = {operator: dict(operator.py_kernels) for operator in whole}
    try:
        for operator, sizes in whole.items():
            operator.py_kernels.update(dict.fromkeys(_KEYS, sizes))
            operator._dispatch_cache.clear()
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


__all__ = ["opaque_operators"]
