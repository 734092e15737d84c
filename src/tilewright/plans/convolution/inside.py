"""The share of a padded convolution's multiply-adds that is computed: loops skip taps outside the image."""

from __future__ import annotations

from math import prod

from tilewright.arith import linear
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.loops import BlockIter
from tilewright.plans.framework.analysis import Stage, factors


def share_inside(anchor: Stage) -> float:
    """The share of all (output position, tap) pairs whose tap lies inside the image: a product over the dimensions in
    which an iterator of the result and one of the reduction are added. Symbolic dimensions count as inside."""
    return prod(
        _inside(index, size, anchor)
        for load in factors(anchor.block) or ()
        for index, size in zip(load.indices, load.buffer.shape, strict=True)
    )


def _inside(index: Expr, size: Expr, anchor: Stage) -> float:
    form, length = linear(index), as_int(size)
    places, taps = (_walking(index, its) for its in (anchor.spatial, anchor.reduce))
    if length is None or len(places) != 1 or len(taps) != 1 or len(form.terms) != 2:
        return 1.0
    (place,), (tap,) = places, taps
    count, window = as_int(place.extent), as_int(tap.extent)
    if count is None or window is None:
        return 1.0
    stride, dilation = form.coefficient(place.var), form.coefficient(tap.var)
    starts = [form.constant + k * dilation for k in range(window)]
    result = sum(0 <= p * stride + start < length for p in range(count) for start in starts)
    return max(result, 1) / (count * window)


def _walking(index: Expr, iters: tuple[BlockIter, ...]) -> list[BlockIter]:
    form = linear(index)
    return [it for it in iters if form.coefficient(it.var)]
