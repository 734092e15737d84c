"""Index maps: how a layout sends a buffer's indices to others, as `(i, j) -> (i, j // 16, j % 16)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.ir.rewrite import substitute, variables
from tilewright.schedule.affine import solve
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError


@dataclass(frozen=True, slots=True)
class IndexMap:
    """A map of a buffer's indices to new ones: each of `results` is a new index, as an expression of `variables`, which
    stand for the old indices."""

    variables: tuple[Var, ...]
    results: tuple[Expr, ...]

    def __str__(self) -> str:
        names = ", ".join(v.name for v in self.variables)
        results = ", ".join(map(str, self.results))
        return f"lambda {names}: ({results}{',' if len(self.results) == 1 else ''})"

    def __call__(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The new indices of the element at `indices`."""
        mapping = dict(zip(self.variables, indices, strict=True))
        return tuple(substitute(r, mapping) for r in self.results)

    def inverse(self, indices: Sequence[Expr], shape: Sequence[Expr]) -> tuple[Expr, ...] | None:
        """The old indices, in a buffer of `shape`, of the element whose new ones are `indices`; None if the map cannot
        be solved for them."""
        extents = dict(zip(self.variables, shape, strict=True))
        result = solve(self.results, indices, extents)
        return tuple(result[v] for v in self.variables) if result.keys() == extents.keys() else None


def index_map(f: IndexMap | Callable[..., Any], rank: int | None = None) -> IndexMap:
    """The index map that a Python function describes, which takes old indices and returns new ones. Raises TypeError if
    it is not a function of indices."""
    if isinstance(f, IndexMap):
        return f
    parameters = list(inspect.signature(f).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        names = [f"i{k}" for k in range(rank or 0)]
    else:
        names = [p.name for p in parameters]
    arguments = tuple(Var(name) for name in names)
    results = f(*arguments)
    if not isinstance(results, tuple | list):
        results = (results,)
    exprs = tuple(simplify(as_expr(r)) for r in results)
    foreign = {v.name for e in exprs for v in variables(e)} - set(names)
    if foreign:
        raise ExpressionError(f"an index map mentions only its own indices, not {', '.join(sorted(foreign))}")
    return IndexMap(arguments, exprs)
