"""Sums of products in steps: a factor that does not depend on an index stands outside of the sum over it.

    C[i, r] +! X[i, j, k] * A[j, r] * B[k, r]           2 I J K R multiplications
    T[i, j, r] +! X[i, j, k] * B[k, r]                  I J K R, a product of matrices
    C[i, r] +! T[i, j, r] * A[j, r]                     I J R

Of all orders in which the indices can be summed the one of least work is taken, if it has clearly less than the single
sum. The steps round, and overflow, where a sum in that order does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import prod

from tilewright.arith import prove_equal
from tilewright.formulas.binding import Bound
from tilewright.formulas.nests import Nest
from tilewright.formulas.syntax import Apply, Name, Node, Read, conjunction, walk
from tilewright.ir.expr import Expr, as_int, is_const
from tilewright.ir.graph import TensorType
from tilewright.support.classes import dataclass

WORTH = 0.75
"""The largest work of several steps, relative to that of the single sum, with which steps replace it."""
MAX_INDICES = 6
"""The largest number of reduced indices for which all orders are tried; sums over more stay as they are."""
LARGEST = 1 << 24
"""The largest number of elements that the result of a step may have."""
UNKNOWN = 64
"""The number that is assumed for a symbolic size."""

Shapes = Mapping[str, Sequence[Expr]]


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of the summed product, or a condition of the sum, with the indices that it depends on."""

    node: Node
    indices: frozenset[str]
    condition: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a factored sum: the product of some factors, summed over some indices."""

    factors: tuple[Factor, ...]
    over: tuple[str, ...]

    @property
    def indices(self) -> frozenset[str]:
        return frozenset().union(*(f.indices for f in self.factors))

    @property
    def left(self) -> frozenset[str]:
        return self.indices - set(self.over)


def factored(bound: Bound, shapes: Shapes) -> tuple[Bound, ...]:
    """The nests of the steps that compute a sum of products, the last of which computes its result; the given nest
    alone if steps are not less work. `shapes` are those of all tensors so far."""
    factors = _factors(bound, shapes)
    if factors is None:
        return (bound,)
    sizes = {i: as_int(e.size) or UNKNOWN for i, e in bound.extents.items()}
    results = [
        (_work(steps, sizes), order, steps)
        for order in permutations(bound.nest.reduced)
        if (steps := _steps(factors, order, bound.nest.left))
    ]
    least = min(results, key=lambda f: (f[0], f[1]))
    single = prod(sizes[i] for i in bound.nest.indices) * (len(factors) - 1)
    if len(least[2]) == 1 or least[0] > WORTH * single or _largest(least[2][:-1], sizes) > LARGEST:
        return (bound,)
    return tuple(_bounds(bound, least[2], shapes))


def _factors(bound: Bound, shapes: Shapes) -> list[Factor] | None:
    """The factors and conditions of the nest if it is a sum of products; None for anything else."""
    nest = bound.nest
    kind = bound.type.dtype
    exact = kind.bits >= 32
    if nest.reducer != "sum" or not exact or not 2 <= len(nest.reduced) <= MAX_INDICES:
        return None
    if any(not is_const(bound.extents[i].start, 0) for i in nest.indices):
        return None
    parts = list(_operands(nest.body, "*"))
    if len(parts) < 3 or any(not any(isinstance(n, Read) for n in walk(p)) for p in parts):
        return None
    conditions = [] if nest.condition is None else list(_operands(nest.condition, "and"))
    if conditions and not all(whole(bound, part, shapes) for part in parts):
        return None  # steps without the condition might read outside
    known = set(nest.indices)
    result = [Factor(p, _mentioned(p, known)) for p in parts]
    return result + [Factor(c, _mentioned(c, known), condition=True) for c in conditions]


def _operands(node: Node, name: str) -> Iterator[Node]:
    if isinstance(node, Apply) and node.name == name:
        for arg in node.args:
            yield from _operands(arg, name)
    else:
        yield node


def _mentioned(node: Node, known: set[str]) -> frozenset[str]:
    return frozenset(n.name for n in walk(node) if isinstance(n, Name) and n.name in known)


def whole(bound: Bound, part: Node, shapes: Shapes) -> bool:
    """Whether `part` reads a whole tensor, with an index that runs over the whole of each dimension."""
    if not isinstance(part, Read) or part.outside:
        return False
    return all(
        isinstance(i, Name)
        and i.name in bound.extents
        and is_const(bound.extents[i.name].start, 0)
        and prove_equal(bound.extents[i.name].size, size)
        for i, size in zip(part.indices, shapes[part.tensor], strict=True)
    )


def _steps(factors: Sequence[Factor], order: Sequence[str], left: Sequence[str]) -> tuple[Step, ...]:
    """The steps that sum the product of `factors` over the indices in the given order; `left` are the result's indices.
    A step also sums over further indices on which no factor but its own depends."""
    rest = list(factors)
    done: set[str] = set()
    steps: list[Step] = []
    for index in order:
        if index in done:
            continue
        group = [f for f in rest if index in f.indices]
        if all(f.condition for f in group):
            return ()
        others = [f for f in rest if f not in group]
        outside = frozenset(left).union(*(f.indices for f in others))
        over = tuple(i for i in order if i not in done and i not in outside and any(i in f.indices for f in group))
        step = Step(tuple(group), over)
        done |= set(over)
        steps.append(step)
        rest = [*others, Factor(Name(f"#{len(steps) - 1}"), step.left)]
    if len(rest) == 1:
        return tuple(steps)
    last = steps.pop()  # what is left multiplies the last sum: both are one step
    return (*steps, Step((*last.factors, *rest[:-1]), last.over))


def _work(steps: Iterable[Step], sizes: Mapping[str, int]) -> int:
    """The number of multiplications of all steps, by the `sizes` of indices."""
    return sum(prod(sizes[i] for i in s.indices) * max(1, len(s.factors) - 1) for s in steps)


def _largest(steps: Iterable[Step], sizes: Mapping[str, int]) -> int:
    return max((prod(sizes[i] for i in s.left) for s in steps), default=0)


def _bounds(bound: Bound, steps: Sequence[Step], shapes: Shapes) -> Iterator[Bound]:
    """Yield for each step of a factored nest the nest of loops that computes it."""
    nest = bound.nest
    created: dict[str, Node] = {}
    for k, step in enumerate(steps):
        parts = [created.get(f.node.name, f.node) if isinstance(f.node, Name) else f.node for f in step.factors]
        body, condition = _joined(step, parts)
        if k == len(steps) - 1:
            yield replace(bound, nest=replace(nest, reduced=step.over, body=body, condition=condition, ranges=()))
            return
        left = tuple(i for i in nest.indices if i in step.left)
        target = _fresh(f"{nest.target}_{k}", shapes)
        created[f"#{k}"] = Read(target, tuple(Name(i) for i in left), at=nest.at)
        part = Nest(target, left, "sum", step.over, body, (), condition, nest.at, nest.label)
        extents = {i: bound.extents[i] for i in part.indices}
        yield Bound(part, extents, TensorType(bound.type.dtype, tuple(extents[i].size for i in left)))


def _joined(step: Step, parts: Sequence[Node]) -> tuple[Node, Node | None]:
    """The product of the step's factors, and the conjunction of its conditions; `parts` are the expressions of both."""
    values = [p for f, p in zip(step.factors, parts, strict=True) if not f.condition]
    body = values[0]
    for value in values[1:]:
        body = Apply("*", (body, value), at=body.at)
    return body, conjunction([p for f, p in zip(step.factors, parts, strict=True) if f.condition])


def _fresh(name: str, shapes: Shapes) -> str:
    while name in shapes:
        name += "_"
    return name


__all__ = ["factored", "whole"]
