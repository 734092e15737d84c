"""Loads with the conditions under which they happen: `select`, `and` and `or` touch only what they need."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.expr import Expr, Load, Op
from tilewright.ir.rewrite import loads, variables
from tilewright.ir.scalar_ops import LAZY
from tilewright.support.classes import dataclass

Conditions = tuple[Expr, ...]


def guarded_loads(e: Expr, wanted: set[Load], conditions: Conditions = ()) -> Iterator[tuple[Load, Conditions]]:
    """Yield the loads of `e` that are in `wanted`, each with the conditions under which it is evaluated; loads that an
    index or a condition needs come first.

    Conditions on elements that no index of these loads reads prove nothing of an index: of several such conditions on
    the same variables only the outermost counts. Otherwise a chain of n functions, each with a branch on the value of
    the one before, would have 2^n sets of conditions.
    """
    read = {x for load in wanted for index in load.indices for x in loads(index)}
    yield from _Walk(wanted, read, set(), {}).walk(e, conditions)


@dataclass(frozen=True, slots=True)
class _Walk:
    """One walk over an expression that yields loads with the conditions under which they are evaluated: `wanted` are
    the loads to be yielded, `read` those that their indices contain, `seen` the expressions already walked under
    certain conditions."""

    wanted: set[Load]
    read: set[Load]
    seen: set[tuple[Expr, Conditions]]
    of_elements: dict[Expr, bool]

    def walk(self, e: Expr, conditions: Conditions) -> Iterator[tuple[Load, Conditions]]:
        """Yield the loads of `e`, which is evaluated under `conditions`."""
        if self.wanted.isdisjoint(loads(e)) or (e, conditions) in self.seen:
            return
        self.seen.add((e, conditions))
        inner: list[tuple[Expr, Conditions]] = [(c, conditions) for c in e.operands]
        if isinstance(e, Op) and e.name in LAZY:
            first, *rest = e.args
            holds = [first, ~first] if e.name != "or" else [~first]
            inner = [(first, conditions), *((c, self._with(conditions, h)) for c, h in zip(rest, holds, strict=False))]
        for child, known in inner:
            yield from self.walk(child, known)
        if isinstance(e, Load) and e in self.wanted:
            yield e, conditions

    def _with(self, conditions: Conditions, condition: Expr) -> Conditions:
        """`conditions` and another one, unless it says no more of an index than those do."""
        if self._is_of_elements(condition):
            own = set(variables(condition))
            if any(self._is_of_elements(c) and own.issubset(variables(c)) for c in conditions):
                return conditions
        return (*conditions, condition)

    def _is_of_elements(self, condition: Expr) -> bool:
        """Whether each comparison of a condition reads an element that no index of the wanted loads reads."""
        known = self.of_elements.get(condition)
        if known is None:
            if isinstance(condition, Op) and condition.name in ("and", "or", "not"):
                known = all(map(self._is_of_elements, condition.args))
            else:
                known = not self.read.issuperset(loads(condition))
            self.of_elements[condition] = known
        return known
