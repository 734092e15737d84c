"""Sums over all elements up to one's own place: each is the one before and one term more.

Y[n, i] +! X[n, j] where j <= i        N I^2 / 2 additions
Y = cumsum(X, axis=1)                  N I
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.arith import prove_equal
from tilewright.formulas.binding import Bound
from tilewright.formulas.factoring import whole
from tilewright.formulas.syntax import Apply, Name, Read, walk
from tilewright.ir.expr import Expr
from tilewright.support.classes import dataclass

_AS_LESS = {"<=": ("<=", False), "<": ("<", False), ">=": ("<=", True), ">": ("<", True)}
"""For each comparison: the one of `<=` and `<` that means the same, and whether its sides have to be swapped."""


@dataclass(frozen=True, slots=True)
class Running:
    """The running sum of `terms` along `axis`: at each place the sum of all up to it, without its own if `exclusive`,
    from the end if `reverse`. `tensor` is the tensor of the terms, if they are the elements of one."""

    terms: Bound
    tensor: str | None
    axis: int
    exclusive: bool
    reverse: bool


def running_sum(bound: Bound, shapes: Mapping[str, Sequence[Expr]]) -> Running | None:
    """The running sum that a nest computes, if it sums terms without i over j <= i (or <, >=, >), both of equal range;
    None for anything else. `shapes` are those of the tensors that are read."""
    nest = bound.nest
    if nest.reducer != "sum" or len(nest.reduced) != 1:
        return None
    (inner,) = nest.reduced
    match nest.condition:
        case Apply(name=name, args=(Name(name=a), Name(name=b))) if name in _AS_LESS:
            less, transposed = _AS_LESS[name]
            low, high = (b, a) if transposed else (a, b)
        case _:
            return None
    place = high if inner == low else low
    if inner not in (low, high) or place not in nest.left:
        return None
    if any(isinstance(n, Name) and n.name == place for n in walk(nest.body)):
        return None
    ranges = bound.extents[inner], bound.extents[place]
    if not prove_equal(ranges[0].start, ranges[1].start) or not prove_equal(ranges[0].size, ranges[1].size):
        return None
    exclusive = less == "<"
    if exclusive and not all(whole(bound, n, shapes) for n in walk(nest.body) if isinstance(n, Read)):
        return None  # a term that no sum has might be read outside
    left = tuple(inner if i == place else i for i in nest.left)
    terms = replace(nest, left=left, reducer=None, reduced=(), condition=None, ranges=())
    names = tuple(map(Name, left))
    ordinary = isinstance(nest.body, Read) and nest.body.indices == names and whole(bound, nest.body, shapes)
    tensor = nest.body.tensor if isinstance(nest.body, Read) and ordinary else None
    return Running(replace(bound, nest=terms), tensor, nest.left.index(place), exclusive, reverse=inner == high)


__all__ = ["Running", "running_sum"]
