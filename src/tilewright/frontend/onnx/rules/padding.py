"""The pads of windows, as the file states them or as `auto_pad` implies them, for symbolic sizes too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.onnx.call import Call
from tilewright.ir.expr import Expr, as_int, const, maximum
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims
from tilewright.support.errors import ModelError, ShapeError


def padded(
    n: Call, x: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], fill: Any = 0
) -> tuple[Value, tuple[int, ...]]:
    """(input, pads): `x`, and the pads for an operator with a window of extents `kernel`, `strides` and `dilations`:
    before each dimension, then after each. Where pads depend on a symbolic size, `x` is padded here with `fill`, and
    the returned pads are 0. Raises ModelError for an unknown auto_pad."""
    rank = len(kernel)
    auto = n.text("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        stated = (n.ints("pads", [0] * 2 * rank) or []) if auto == "NOTSET" else [0] * 2 * rank
        if len(stated) != 2 * rank:
            raise ShapeError("pads needs two entries for each spatial dimension", expected=2 * rank, got=stated)
        return x, tuple(stated)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise ModelError("unknown auto_pad", got=auto)
    before, after = same(x.shape[2:], kernel, strides, dilations, upper=auto == "SAME_UPPER")
    pads = (*before, *after)
    if all(as_int(p) is not None for p in pads):
        return x, tuple(as_int(p) or 0 for p in pads)
    wide = [const(0) if as_int(p) is not None else p for p in pads]
    outer = {"before": dims([0, 0, *wide[:rank]]), "after": dims([0, 0, *wide[rank:]])}
    return n.emit("pad", x, mode="constant", value=fill, **outer), tuple(as_int(p) or 0 for p in pads)


def same(
    extents: Sequence[Expr], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], *, upper: bool
) -> tuple[list[Expr], list[Expr]]:
    """(pads before each dimension, pads after) by which auto_pad SAME centres windows of extents `kernel`, with
    `strides` and `dilations`, in the input's `extents`; with `upper`, an odd element is added after, else before."""
    before, after = list[Expr](), list[Expr]()
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        total = missing(extent, d * (k - 1) + 1, s)
        less = dim(total // 2)
        more = dim(total - less)
        before.append(less if upper else more)
        after.append(more if upper else less)
    return before, after


def missing(extent: Expr, span: int, stride: int) -> Expr:
    """The number of elements that SAME adds to a dimension of `extent` elements, so that `ceil(extent / stride)`
    windows, of `span` elements each, lie in it."""
    if stride == 1:
        return const(span - 1)
    windows = (extent + (stride - 1)) // stride
    total = dim((windows - 1) * stride + span - extent)
    return total if span >= stride else dim(maximum(total, 0))
