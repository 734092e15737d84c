"""Reductions over axes that data decides: elements go to places that are computed in each call.

x[3, 4], axis 1:    places  0 0 0 0        results  [3] in memory for all that may be, 12
                            1 1 1 1
                            2 2 2 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arith import prove
from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Expr, as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.support.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class ReducedAxes:
    """Which axes of tensors of one shape are reduced, of as many as are named.

    Args:
        shape: the tensors'.
        count: how many axes are reduced.
        reduced: for each axis whether it is, as scalars.
        places: where the result of each element stands, i64[elements].
    """

    n: Emitter
    shape: tuple[Expr, ...]
    count: int
    reduced: tuple[Value, ...]
    places: Value

    def reduce(self, x: Value, how: str, start: Any) -> Value:
        """All results in order, in a vector for as many as may be; `how` is a reduction of `scatter_elements`."""
        n = self.n
        rows = n.emit("broadcast", n.like(start, x), shape=(self._room,))
        flat = n.reshape(x, (product(self.shape),))
        return n.emit("scatter_elements", rows, self.places, flat, axis=0, reduction=how)

    def spread(self, results: Value) -> Value:
        """For each element the result that it is part of."""
        return self.n.reshape(self.n.emit("gather", results, self.places, axis=0), self.shape)

    def elements(self, t: DType) -> Value:
        """How many elements each result is of."""
        n = self.n
        one, total = n.constant(1, i64), n.constant(1, i64)
        for flag, d in zip(self.reduced, self.shape, strict=True):
            total = n.emit("mul", total, n.emit("select", flag, n.symbols([d], i64, ()), one))
        return n.cast(total, t)

    def shaped(self, results: Value, keepdims: bool) -> Value:
        """The results as a tensor, whose dimensions are symbols that data decides."""
        n = self.n
        one = n.constant(1, i64)
        sizes = [n.symbols([d], i64, ()) for d in self.shape]
        kept = [n.emit("select", flag, one, s) for flag, s in zip(self.reduced, sizes, strict=True)]
        wanted = kept if keepdims else self._rest(sizes)
        bounds = self.shape if keepdims else (self._largest(),) * len(wanted)
        dims = [n.bounded(v, d if prove(d >= 1) else dim(d + 1)) for v, d in zip(wanted, bounds, strict=True)]
        return n.reshape(n.slice(results, 0, 0, product(dims)), dims)

    @property
    def _room(self) -> Expr:
        """At most as many results as there are elements, but some where there are none."""
        return dim(product(d if prove(d >= 1) else d + 1 for d in self.shape))

    def _largest(self) -> Expr:
        numbers = [as_int(d) for d in self.shape]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            raise UnsupportedError("axes that data decides, of symbolic dimensions, are not supported")
        return dim(max(known))

    def _rest(self, sizes: Sequence[Value]) -> list[Value]:
        """The sizes of the axes that are not reduced, in order."""
        n, zero, one = self.n, self.n.constant(0, i64), self.n.constant(1, i64)
        found = [zero] * (len(sizes) - self.count)
        before = zero
        for flag, size in zip(self.reduced, sizes, strict=True):
            for j, so_far in enumerate(found):
                here = n.emit("and", n.emit("eq", before, n.constant(j, i64)), n.emit("eq", flag, n.constant(False)))
                found[j] = n.emit("select", here, size, so_far)
            before = n.emit("add", before, n.emit("select", flag, zero, one))
        return found


def reduced_axes(n: Emitter, x: Value, axes: Sequence[Any]) -> ReducedAxes:
    """The axes of `x` that are named, as numbers or scalars of i64 that count from the end where they are negative."""
    rank = x.type.rank
    flags: list[Value] = []
    scalars = [v if isinstance(v, Value) else n.constant(v, i64) for v in axes]
    for k in range(rank):
        flag = n.constant(False)
        for v in scalars:
            same = n.emit("or", n.emit("eq", v, n.constant(k, i64)), n.emit("eq", v, n.constant(k - rank, i64)))
            flag = n.emit("or", flag, same)
        flags.append(flag)
    zero, one = n.constant(0, i64), n.constant(1, i64)
    stride, place = one, zero
    for k in reversed(range(rank)):
        along = n.emit("range", start=0, step=1, size=x.shape[k], dtype=i64)
        along = n.reshape(along, [x.shape[k] if j == k else 1 for j in range(rank)])
        place = n.emit("add", place, n.emit("mul", along, n.emit("select", flags[k], zero, stride)))
        kept = n.emit("select", flags[k], one, n.symbols([x.shape[k]], i64, ()))
        stride = n.emit("mul", stride, kept)
    return ReducedAxes(n, x.shape, len(axes), tuple(flags), n.reshape(place, (product(x.shape),)))


__all__ = ["ReducedAxes", "reduced_axes"]
