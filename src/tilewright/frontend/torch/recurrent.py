"""What PyTorch is told of recurrent layers while it traces them: sizes, not steps.

    y[T, B, H], h[1, B, H], c[1, B, H] = lstm(x[T, B, I], (h0, c0), ...)      T a number or a symbol

PyTorch has these operators as Python loops over the steps of a sequence, which run even where only sizes are wanted.
That makes the number of steps a constant, and takes the longer the more there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
"""Under which PyTorch has its loops in Python."""


def _sequence(x: Any, state: Any, bidirectional: bool, batch_first: bool) -> Any:
    """Memory of the size and strides of all steps' states."""
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


_SIZES = {
    torch.ops.aten.lstm.input: _lstm,
    torch.ops.aten.gru.input: _single,
    torch.ops.aten.rnn_tanh.input: _single,
    torch.ops.aten.rnn_relu.input: _single,
}


@contextlib.contextmanager
def recurrences_whole(separate: Collection[Any] = ()) -> Iterator[None]:
    """While this lasts PyTorch's recurrent operators, but for `separate` ones, are traced by the sizes of
    their results alone: nothing that is computed with them means anything, and graphs keep them whole."""
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


__all__ = ["recurrences_whole"]
