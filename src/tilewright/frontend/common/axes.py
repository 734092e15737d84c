"""Reductions and reshapes whose axes or shapes are tensors computed in each call. A reduction scatters each element to
a place that the call computes.

x[3, 4], axis 1:    places  0 0 0 0        results  [3] in memory for all that may be, 12
                            1 1 1 1
                            2 2 2 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arith import prove
from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Expr, as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import axes_of, axis_of, dim
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class ReducedAxes:
    """A reduction of a tensor over axes that data decides: `count` of its axes, which are true in `reduced`
    (bool[rank]); `places` has for each element the number of the result that it belongs to.

    Args:
        shape: of the tensors to reduce.
        count: how many axes are reduced.
        reduced: for each axis whether it is, bool[rank].
        places: where the result of each element stands, i64[elements].
    """

    n: Emitter
    shape: tuple[Expr, ...]
    count: int
    reduced: Value
    places: Value

    def reduce(self, x: Value, how: str, start: Any) -> Value:
        """The reduction of `x` as a vector that begins with the results in order; as data decides their number, it is
        as long as the largest number possible.

        Args:
            how: a reduction of `scatter_elements`.
            start: the value of each result before the first element is added.
        """
        n = self.n
        rows = n.emit("broadcast", n.like(start, x), shape=(self._room,))
        flat = n.reshape(x, (product(self.shape),))
        return n.emit("scatter_elements", rows, self.places, flat, axis=0, reduction=how)

    def spread(self, results: Value) -> Value:
        """The `results` of a reduction broadcast back: a tensor of the original shape in which each element is replaced
        by the result of its group."""
        return self.n.reshape(self.n.emit("gather", results, self.places, axis=0), self.shape)

    def elements(self, t: DType) -> Value:
        """The number of elements that each result combines (the product of the reduced extents), as a scalar of type
        `t`."""
        n = self.n
        sizes = n.emit("select", self.reduced, vector(n, self.shape), n.constant(1, i64))
        return n.cast(n.emit("reduce_prod", sizes, axes=(0,), keepdims=False), t)

    def shaped(self, results: Value, keepdims: bool) -> Value:
        """The results (from `reduce`) as a tensor of the reduced shape. Its dimensions are new symbols whose values
        each call computes; with `keepdims` reduced axes stay, with extent 1."""
        n, sizes = self.n, vector(self.n, self.shape)
        if keepdims:
            wanted, bounds = n.emit("select", self.reduced, n.constant(1, i64), sizes), list(self.shape)
        else:
            count = len(self.shape) - self.count
            wanted, bounds = unnamed(n, self.reduced, sizes, count), [self._largest()] * count
        dims = [n.bounded(scalar(n, wanted, k), d if prove(d >= 1) else dim(d + 1)) for k, d in enumerate(bounds)]
        return n.reshape(n.slice(results, 0, 0, product(dims)), dims)

    @property
    def _room(self) -> Expr:
        """The size of a vector that holds all results: the number of elements, but 1 or more."""
        return dim(product([d if prove(d >= 1) else d + 1 for d in self.shape]))

    def _largest(self) -> Expr:
        numbers = [as_int(d) for d in self.shape]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            raise UnsupportedError("axes that data decides, of symbolic dimensions, are not supported")
        return dim(max(known))


def reduced_axes(n: Emitter, x: Value, axes: Sequence[Any], *, once: bool) -> ReducedAxes:
    """The reduction over `axes`, where data may decide them; with `once`, the call checks that no axis is named
    twice."""
    rank = x.type.rank
    reduced = named(n, axes, rank, once=once)
    retained = n.emit("select", reduced, n.constant(1, i64), vector(n, x.shape))
    strides = n.emit("cumprod", retained, axis=0, exclusive=True, reverse=True)
    strides = n.emit("select", reduced, n.constant(0, i64), strides)
    place = n.constant(0, i64)
    for k in range(rank):
        along = n.emit("range", start=0, step=1, size=x.shape[k], dtype=i64)
        along = n.reshape(along, [x.shape[k] if j == k else 1 for j in range(rank)])
        place = n.emit("add", place, n.emit("mul", along, scalar(n, strides, k)))
    return ReducedAxes(n, x.shape, len(axes), reduced, n.reshape(place, (product(x.shape),)))


# --- vectors of a few numbers: each is a small kernel, so that expressions stay small ---------------------------------


def vector(n: Emitter, numbers: Sequence[Any]) -> Value:
    """`numbers` (numbers, expressions of symbols, or i64 scalars of the graph) as one i64 vector."""
    parts = [n.reshape(v if isinstance(v, Value) else n.symbols([v], i64, (1,)), (1,)) for v in numbers]
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=0)


def scalar(n: Emitter, numbers: Value, k: int) -> Value:
    """Element `k` of a vector, as a scalar."""
    return n.reshape(n.slice(numbers, 0, k, 1), ())


def named(n: Emitter, axes: Sequence[Any], rank: int, *, once: bool = True) -> Value:
    """bool[rank]: for each axis of a tensor of that rank whether it is listed in `axes`."""
    return n.emit("gt", _times_named(n, places_of(n, axes, rank, once=once), rank), n.constant(0, i64))


def places_of(n: Emitter, axes: Sequence[Any], rank: int, *, once: bool = True) -> Value:
    """`axes`, of which negative ones count from the end, as i64[axes] counted from 0. The call checks that a tensor of
    `rank` has them and, with `once`, that none is listed twice."""
    if not any(isinstance(a, Value) for a in axes):
        if once:
            axes_of(axes, rank)
        return n.constant([axis_of(int(a), rank) for a in axes], i64)
    indices = n.all_within(vector(n, axes), -rank, rank - 1, OUTSIDE)
    places = _from_start(n, indices, rank)
    return _distinct(n, places, rank, places) if once and len(axes) > 1 else places


def with_all_axes(n: Emitter, x: Value, axes: Sequence[Any]) -> Value:
    """`x`, for which the call checks that `axes` are all of its axes in some order."""
    rank, indices = x.type.rank, vector(n, axes)
    x = n.all_within(indices, -rank, rank - 1, OUTSIDE, of=x)
    return _distinct(n, _from_start(n, indices, rank), rank, x) if rank > 1 else x


OUTSIDE = "an axis is outside the tensor"


def _from_start(n: Emitter, axes: Value, rank: int) -> Value:
    """`axes` with `rank` added to the negative ones."""
    return n.emit("select", n.emit("lt", axes, n.constant(0, i64)), n.emit("add", axes, n.constant(rank, i64)), axes)


def _distinct(n: Emitter, places: Value, rank: int, of: Value) -> Value:
    """`of`, with a check at each call that no two entries of `places`, axes of a tensor of this rank, are equal."""
    times = _times_named(n, places, rank)
    most = n.emit("reduce_max", times, axes=(0,), keepdims=False)
    twice = n.emit("argmax", times, axis=0, keepdims=False, select_last_index=False)
    return n.require(of, n.emit("le", most, n.constant(1, i64)), twice, "an axis is named twice")


def _times_named(n: Emitter, places: Value, rank: int) -> Value:
    """A vector i64[rank] with the number of times that each axis occurs in `places`."""
    along = n.emit("range", start=0, step=1, size=rank, dtype=i64)
    same = n.emit("eq", n.reshape(places, (places.shape[0], 1)), n.reshape(along, (1, rank)))
    return n.emit("reduce_sum", n.cast(same, i64), axes=(0,), keepdims=False)


def unnamed(n: Emitter, flags: Value, sizes: Value, count: int) -> Value:
    """The first `count` entries of the vector `sizes` at positions where `flags` is false, in order."""
    rank = flags.shape[0]
    order = n.emit_all("topk", n.cast(flags, i64), axis=0, k=rank, largest=False)[1]
    return n.slice(n.emit("gather", sizes, order, axis=0), 0, 0, count)


def reshaped(n: Emitter, x: Value, sizes: Value, what: str = "the shape is for another number of elements") -> Value:
    """`x` reshaped to `sizes`, which the call computes; a -1 stands for the size that the others leave. A shape for
    another number of elements is an error of the call, which says `what`."""
    one, rest = n.constant(1, i64), n.constant(-1, i64)
    total, rank = n.symbols([x.type.size], i64, ()), as_int(sizes.shape[0])
    assert rank is not None
    is_rest = n.emit("eq", sizes, rest)
    others = n.emit("reduce_prod", n.emit("select", is_rest, one, sizes), axes=(0,), keepdims=False)
    whole = n.emit("select", is_rest, n.emit("truncdiv", total, n.emit("max", others, one)), sizes)
    least = n.emit("reduce_min", whole, axes=(0,), keepdims=False)
    result = n.emit("reduce_prod", whole, axes=(0,), keepdims=False)
    fits = n.emit("and", n.emit("eq", result, total), n.emit("ge", least, n.constant(0, i64)))
    whole = n.require(whole, fits, result, what, str(x.type.size))
    dims = [n.extent(scalar(n, whole, k)) for k in range(rank)]
    flat = n.reshape(x, (x.type.size,))
    return n.reshape(n.slice(flat, 0, 0, product(dims)), dims)


__all__ = [
    "ReducedAxes",
    "named",
    "places_of",
    "reduced_axes",
    "reshaped",
    "scalar",
    "unnamed",
    "vector",
    "with_all_axes",
]
