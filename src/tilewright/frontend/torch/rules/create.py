"""Rules for tensors that are created from sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, maximum
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim


@rule(
    "zeros",
    "zeros_like",
    "new_zeros",
    "empty",
    "empty_like",
    "new_empty",
    "empty_permuted",
    "new_empty_strided",
    "empty_strided",
    "zero",
)
def zeros(n: Call, *_: Any, **__: Any) -> Value:
    """A tensor of zeros; also for `empty`, whose contents are unspecified."""
    return n.filled(0, n.dtype, n.shape)


@rule("ones", "ones_like", "new_ones")
def ones(n: Call, *_: Any, **__: Any) -> Value:
    return n.filled(1, n.dtype, n.shape)


@rule("full", "full_like", "new_full", "fill")
def full(n: Call, _: Any, value: Operand, *__: Any, **___: Any) -> Value:
    """A tensor filled with a number: `full`, and also `new_full` and `fill`."""
    if n.name.startswith("aten.new_full"):
        value = __[0]
    return n.filled(value, n.dtype, n.shape)


@rule("copy")
def copy(n: Call, x: Value, source: Value, *_: Any) -> Value:
    """`copy_`: the numbers of `source`, cast and broadcast to the type of `x`."""
    return n.broadcast(n.cast(source, x.dtype), x.shape)


@rule("scalar_tensor")
def scalar_tensor(n: Call, value: Operand, **_: Any) -> Value:
    return n.operand(value, n.dtype)


@rule("arange.default", "arange.start", "arange.start_step")
def arange(n: Call, *numbers: Any, **_: Any) -> Value:
    start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
    return n.emit("range", start=start, step=step, size=n.shape[0], dtype=n.dtype)


@rule("linspace", "tilewright::linspace", single=True)
def linspace(n: Call, start: Any, end: Any, steps: Any, **_: Any) -> Value:
    """`steps` evenly spaced numbers from `start` to `end`, each computed from the nearer end, as PyTorch does."""
    return _spaced_numbers(n, start, end, steps) or _spaced(n, start, end)


@rule("logspace", "tilewright::logspace", single=True)
def logspace(n: Call, start: Any, end: Any, steps: Any, base: float = 10.0, **_: Any) -> Value:
    """Powers of `base`, whose exponents are evenly spaced from `start` to `end`, as those of `linspace`."""
    numbers = _spaced_numbers(n, start, end, steps, base)
    return numbers or n.emit("pow", n.operand(base, n.dtype), _spaced(n, start, end))


def _spaced_numbers(n: Call, start: Any, end: Any, steps: Any, *base: float) -> Value | None:
    """The numbers as PyTorch itself computes them, where start, end and steps are known."""
    if not isinstance(steps, int) or isinstance(start, Value | Expr) or isinstance(end, Value | Expr):
        return None
    import torch

    from tilewright.frontend.torch.dtypes import TORCH
    from tilewright.runtime.interop import as_numpy

    function = torch.logspace if base else torch.linspace
    return n.constant(as_numpy(function(start, end, steps, *base, dtype=TORCH[n.dtype]), function.__name__))


def _spaced(n: Call, start: Any, end: Any) -> Value:
    if not n.dtype.is_float:
        raise n.unsupported("of integers and of symbolic size")
    count = n.shape[0]
    first, last = n.operand(start, n.dtype), n.operand(end, n.dtype)
    gaps = n.operand(dim(maximum(count - 1, 1)), n.dtype)
    step = n.emit("div", n.emit("sub", last, first), gaps)
    place = n.emit("range", start=0, step=1, size=count, dtype=i64)
    back = n.cast(n.emit("sub", n.operand(dim(count - 1), i64), place), n.dtype)
    front = n.emit("add", first, n.emit("mul", step, n.cast(place, n.dtype)))
    rest = n.emit("sub", last, n.emit("mul", step, back))
    closer = n.emit("or", n.emit("lt", place, n.operand(dim(count // 2), i64)), n.emit("eq", place, n.constant(0, i64)))
    return n.emit("select", closer, front, rest)


@rule("eye")
def eye(n: Call, rows: Any, columns: Any = None, **_: Any) -> Value:
    return n.emit("eye", rows=rows, columns=rows if columns is None else columns, k=0, dtype=n.dtype)


@rule("meshgrid")
def meshgrid(n: Call, tensors: Sequence[Value], indexing: str = "ij") -> list[Value]:
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[0], order[1] = 1, 0
    shape = [n.sizes.expr(d) for d in n.results[0].shape]
    results = []
    for t, place in zip(tensors, order, strict=True):
        lone = [1] * len(shape)
        lone[place] = shape[place]  # type: ignore[call-overload]
        results.append(n.broadcast(n.reshape(t, lone), shape))
    return results
