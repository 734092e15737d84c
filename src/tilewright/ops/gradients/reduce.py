"""Gradients of reductions and cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr, as_int, const, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import axes_of, dims
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.reduce import ReduceAttrs
from tilewright.ops.scan import CumulativeAttrs

Result = Sequence[Value | None]


def with_unit_dims(b: Backward, value: Value) -> Value:
    """A reduction's result, or its gradient, in which the reduced dimensions have size 1."""
    attrs, x = b.of(ReduceAttrs), b.x()
    axes = axes_of(attrs.axes, x.type.rank)
    return b.reshape(value, [const(1) if k in axes else d for k, d in enumerate(x.shape)])


def count(b: Backward, extents: Sequence[Expr], like: Value) -> Value:
    """The product of `extents` as a scalar of `like`'s type."""
    number = as_int(product(extents))
    if number is not None:
        return b.like(number, like)
    whole = b.emit("range", start=product(extents), step=0, size=1, dtype=like.dtype)
    return b.reshape(whole, ())


@gradient("reduce_sum")
def total(b: Backward) -> Result:
    return [b.broadcast(with_unit_dims(b, b.g), b.x().shape)]


@gradient("reduce_mean")
def mean(b: Backward) -> Result:
    x = b.x()
    axes = axes_of(b.of(ReduceAttrs).axes, x.type.rank)
    share = b.div(with_unit_dims(b, b.g), count(b, [x.shape[k] for k in axes], b.g))
    return [b.broadcast(share, x.shape)]


@gradient("reduce_max", "reduce_min")
def extreme(b: Backward) -> Result:
    """The gradient of a maximum or minimum, shared evenly by equal extremes."""
    x = b.x()
    same = b.emit("cast", b.emit("eq", x, with_unit_dims(b, b.y)), dtype=x.dtype)
    several = b.sum(same, axes_of(b.of(ReduceAttrs).axes, x.type.rank))
    return [b.mul(same, b.div(with_unit_dims(b, b.g), several))]


@gradient("reduce_prod")
def prod(b: Backward) -> Result:
    """The gradient of a product of elements: for each element the product of the elements before it times the product
    of the elements after it, which is right for zeros too."""
    x, rank = b.x(), b.x().type.rank
    axes = axes_of(b.of(ReduceAttrs).axes, rank)
    perm = [*(k for k in range(rank) if k not in axes), *axes]
    moved = b.transpose(x, perm)
    flat = b.reshape(moved, dims([*moved.shape[: rank - len(axes)], product([x.shape[k] for k in axes])]))
    before, after = (b.emit("cumprod", flat, axis=-1, exclusive=True, reverse=r) for r in (False, True))
    others = b.transpose(b.reshape(b.mul(before, after), moved.shape), [perm.index(k) for k in range(rank)])
    return [b.mul(with_unit_dims(b, b.g), others)]


@gradient("cumsum")
def cumsum(b: Backward) -> Result:
    attrs = b.of(CumulativeAttrs)
    return [b.emit("cumsum", b.g, axis=attrs.axis, exclusive=attrs.exclusive, reverse=not attrs.reverse)]
