"""Rules for pooling and for changing the size of images."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.expr import as_int
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
    given = list(value) if isinstance(value, list | tuple) else [value]
    return given * rank if len(given) == 1 else given


def _rank(n: Call) -> int:
    """Spatial dimensions, which the operator's name ends with."""
    name = n.name.removeprefix("aten.").split(".")[0].removesuffix("_with_indices")
    return int(name.removesuffix("d")[-1])


def _pooled(n: Call, op: str, x: Value, rank: int, window: dict[str, Any]) -> Value:
    """Without a batch dimension one is put in front."""
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
    return [max_pool(n, x, kernel, strides, padding, dilation, ceil)]


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
    if divisor is not None:
        raise n.unsupported("with a divisor", got=divisor)
    rank = _rank(n)
    window = _window(n, x, rank, kernel, strides, padding, 1, ceil)
    return _pooled(n, "avg_pool", x, rank, {**window, "count_include_pad": bool(include)})


@rule(
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
)
def adaptive_pool(n: Call, x: Value, size: Any) -> Any:
    """Equal windows where the sizes divide; one window is a reduction."""
    rank = _rank(n)
    largest = "max" in n.name
    wanted = [as_int(d) for d in n.shape[-rank:]]
    axes = tuple(range(x.type.rank - rank, x.type.rank))
    if all(w == 1 for w in wanted):
        result = n.emit("reduce_max" if largest else "reduce_mean", x, axes=axes, keepdims=True)
    else:
        extents = [static(x.shape[a], "a dimension that is pooled adaptively") for a in axes]
        if any(w is None or e % w for e, w in zip(extents, wanted, strict=True)):
            raise n.unsupported("to sizes that do not divide", expected=f"divisors of {extents}", got=wanted)
        kernel = [e // (w or 1) for e, w in zip(extents, wanted, strict=True)]
        window = _window(n, x, rank, kernel, kernel, 0, 1, False)
        extra = {} if largest else {"count_include_pad": True}
        result = _pooled(n, "max_pool" if largest else "avg_pool", x, rank, {**window, **extra})
    return [result] if largest else result
