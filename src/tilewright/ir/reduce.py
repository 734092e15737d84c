"""Reductions as expressions: what stands at the top of a tensor expression's body."""

from __future__ import annotations

from tilewright.ir.expr import Expr, Var
from tilewright.ir.interning import keep, known
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Reducer:
    """A commutative, associative combination of tuples: `result` is an expression of the variables `lhs` (so far) and
    `rhs` (new), and `identity` is the value to start from. All four are tuples of equal length, with one entry for each
    reduced value."""

    name: str
    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Expr, ...]


class Reduce(Expr):
    """One value, number `index`, of the reduction of `values` over `axes` (variables with extents) where `condition`
    holds.

    Only stands at the top of a tensor expression's body; lowering to loops turns it into a block with an init.
    """

    __slots__ = ("axes", "condition", "index", "reducer", "values")
    reducer: Reducer
    values: tuple[Expr, ...]
    axes: tuple[tuple[Var, Expr], ...]
    condition: Expr
    index: int

    def __new__(
        cls,
        reducer: Reducer,
        values: tuple[Expr, ...],
        axes: tuple[tuple[Var, Expr], ...],
        condition: Expr,
        index: int = 0,
    ) -> Reduce:
        identity = (Reduce, reducer, values, axes, condition, index)
        node: Reduce | None = known(identity)
        if node is None:
            node = object.__new__(cls)
            node.reducer, node.values, node.axes = reducer, values, axes
            node.condition, node.index, node.dtype = condition, index, values[index].dtype
            node = keep(identity, node)
        return node

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*self.values, *(extent for _, extent in self.axes), self.condition)
