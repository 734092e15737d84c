"""Rules for pooling and for resizing images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arith import simplify
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import static


def _window(n: Call, x: Value, rank: int, kernel: Any, strides: Any, padding: Any, dilations: Any, ceil: bool) -> Any:
    k = _each(kernel, rank)
    return {
        "kernel": tuple(k),
        "strides": tuple(_each(strides, rank) if strides else k),
        "dilations": tuple(_each(dilations, rank)),
        "pads": tuple(_each(padding, rank) * 2),
        "ceil_mode": bool(ceil),
    }


def _each(value: Any, rank: int) -> list[int]:
    listed = list(value) if isinstance(value, list | tuple) else [value]
    return listed * rank if len(listed) == 1 else listed


def _rank(n: Call) -> int:
    """The number of spatial dimensions that the operator's name states: 2 for "max_pool2d"."""
    name = n.name.removeprefix("aten.").split(".")[0].removesuffix("_with_indices")
    return int(name.removesuffix("d")[-1])


def _pooled(n: Call, op: str, x: Value, rank: int, window: dict[str, Any]) -> Value:
    """Pooling `op` of `x` over `rank` spatial dimensions; a batch dimension is added if `x` lacks it."""
    if x.type.rank == rank + 2:
        return n.emit(op, x, **window)
    y = n.emit(op, n.reshape(x, (1, *x.shape)), **window)
    return n.reshape(y, y.shape[1:])


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    n: Call, x: Value, kernel: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Value:
    rank = _rank(n)
    return _pooled(n, "max_pool", x, rank, _window(n, x, rank, kernel, strides, padding, dilation, ceil))


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices")
def max_pool_indices(
    n: Call, x: Value, kernel: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> list[Value]:
    values = max_pool(n, x, kernel, strides, padding, dilation, ceil)
    if 1 not in n.read:
        return [values]
    rank = _rank(n)
    window = _window(n, x, rank, kernel, strides, padding, dilation, ceil)
    flat = _pooled(n, "max_pool_indices", x, rank, {**window, "storage_order": 0})
    # Places in the whole tensor; PyTorch counts in each channel.
    size = n.operand(product(x.shape[-rank:]), i64)
    return [values, n.emit("mod", flat, size)]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    n: Call,
    x: Value,
    kernel: Any,
    strides: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    include: bool = True,
    divisor: Any = None,
) -> Value:
    rank = _rank(n)
    window = _window(n, x, rank, kernel, strides, padding, 1, ceil)
    if divisor is not None:
        if ceil:
            raise n.unsupported("with a divisor and windows beyond the end", got=divisor)
        factor = math.prod(window["kernel"]) / divisor
        return n.single(_divided, x, rank, {**window, "count_include_pad": True}, factor)  # type: ignore[no-any-return]
    return _pooled(n, "avg_pool", x, rank, {**window, "count_include_pad": bool(include)})


def _divided(n: Call, x: Value, rank: int, window: dict[str, Any], factor: float) -> Value:
    mean = _pooled(n, "avg_pool", x, rank, window)
    return n.emit("mul", mean, n.like(factor, mean))


@rule(
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    single=True,
)
def adaptive_pool(n: Call, x: Value, size: Any) -> Any:
    """Adaptive pooling: equal windows if the sizes divide, and a reduction for one window."""
    rank = _rank(n)
    largest = "max" in n.name
    wanted = [as_int(d) for d in n.shape[-rank:]]
    axes = tuple(range(x.type.rank - rank, x.type.rank))
    if as_int(product(n.shape)) == 0:
        return [n.filled(0, x.dtype, n.shape), n.filled(0, i64, n.shape)] if largest else n.filled(0, x.dtype, n.shape)
    if all(w == 1 for w in wanted) and not (largest and (1 in n.read or n.random)):
        result = n.emit("reduce_max" if largest else "reduce_mean", x, axes=axes, keepdims=True)
    else:
        if any(as_int(x.shape[a]) is None for a in axes) and not (largest and 1 in n.read):
            return _open(n, x, axes, largest)
        if any(w is None for w in wanted):
            raise n.unsupported("to symbolic sizes", got=wanted)
        extents = [static(x.shape[a], "a dimension that is pooled adaptively") for a in axes]
        if (largest and 1 in n.read) or any(e % w for e, w in zip(extents, wanted, strict=True) if w):
            return _uneven(n, x, extents, [w or 0 for w in wanted], largest)
        kernel = [e // (w or 1) for e, w in zip(extents, wanted, strict=True)]
        window = _window(n, x, rank, kernel, kernel, 0, 1, False)
        extra = {} if largest else {"count_include_pad": True}
        result = _pooled(n, "max_pool" if largest else "avg_pool", x, rank, {**window, **extra})
    return [result] if largest else result


def _open(n: Call, x: Value, axes: Sequence[int], largest: bool) -> Any:
    """Adaptive pooling (maxima if `largest`, else means) along `axes` of symbolic extent, to a known number of windows:
    each window is a slice, reduced to one element. An axis whose extent stays is skipped."""
    for axis in reversed(axes) if largest else axes:
        extent, count = x.shape[axis], n.shape[axis]
        if extent == count:
            continue
        windows = static(count, "how many windows a dimension has that is pooled adaptively")
        parts = []
        for k in range(windows):
            start, end = (k * extent) // windows, ((k + 1) * extent + (windows - 1)) // windows
            part = n.slice(x, axis, start, simplify(end - start))
            parts.append(_first_maximum(n, part, axis) if largest else _mean(n, part, axis))
        x = n.emit("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
    return [x] if largest else x


def _mean(n: Call, x: Value, axis: int) -> Value:
    return n.emit("reduce_mean", x, axes=(axis,), keepdims=True)


def _first_maximum(n: Call, x: Value, axis: int) -> Value:
    """The largest element of `x` along `axis`, extent 1; in training its gradient flows to its `_place`."""
    result = n.emit("reduce_max", x, axes=(axis,), keepdims=True)
    return n.picked(result, x, _place(n, x, axis), axis)


def _place(n: Call, x: Value, axis: int) -> Value:
    """The index of the largest element of `x` along `axis`, extent 1: of equal ones the first, of NaN the last, as in
    eager PyTorch's pools (its argmax names the first NaN)."""
    first, last = (n.emit("argmax", x, axis=axis, keepdims=True, select_last_index=last) for last in (False, True))
    if not x.dtype.is_float:
        return first
    return n.emit("select", n.emit("isnan", n.emit("reduce_max", x, axes=(axis,), keepdims=True)), last, first)


def _uneven(n: Call, x: Value, extents: Sequence[int], wanted: Sequence[int], largest: bool) -> Any:
    """Adaptive pooling (maxima if `largest`, else means) of `x` from `extents` to `wanted`, with windows of different
    widths, one axis after another: a gather repeats the last element of narrow windows, so that all are equally wide.
    Of equal maxima, the first in row-major order counts, and the last NaN."""
    lead = x.type.rank - len(wanted)
    index = None
    if largest and 1 in n.read:
        plane = np.arange(math.prod(extents)).reshape(extents)
        index = n.broadcast(n.constant(plane, i64), x.shape)
    axes = list(zip(range(lead, x.type.rank), extents, wanted, strict=True))
    for axis, extent, count in reversed(axes) if largest else axes:
        starts = np.arange(count) * extent // count
        widths = -(-(np.arange(1, count + 1) * extent) // count) - starts
        steps = np.arange(widths.max())
        places = n.constant(starts[:, None] + np.minimum(steps, widths[:, None] - 1), i64)
        windows = n.emit("gather", x, places, axis=axis)
        if largest:
            best = _place(n, windows, axis + 1)
        if index is not None:
            index = n.emit("gather_elements", n.emit("gather", index, places, axis=axis), best, axis=axis + 1)
            index = n.reshape(index, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
        if largest:
            x = n.picked(n.emit("reduce_max", windows, axes=(axis + 1,), keepdims=False), windows, best, axis + 1)
            continue
        inside = n.constant(steps < widths[:, None], boolean)
        tail = [1] * (x.type.rank - axis - 1)
        inside = n.reshape(inside, (*inside.shape, *tail))
        total = n.emit("select", inside, windows, n.like(0, windows))
        total = n.emit("reduce_sum", total, axes=(axis + 1,), keepdims=False)
        x = n.emit("div", total, n.reshape(n.constant(widths, total.dtype), (count, *tail)))
    if not largest:
        return x
    return [x] if index is None else [x, index]
