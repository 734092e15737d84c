"""The importer's knowledge of each ONNX value while it walks the nodes.

An `Item` is a value of the graph, or an array that is known when compiling and becomes a value only if it is needed
at run time. The known arrays of shape arithmetic are NumPy object arrays of numbers and expressions, so that
`Shape -> Gather -> Mul -> Concat -> Reshape` leaves no trace in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.frontend.common.known import canonical, object_array
from tilewright.ir.dim import Dim, DimSizes, size
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Var, as_expr, as_int
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import collects, stated_numbers
from tilewright.support.classes import dataclass


@dataclass(slots=True)
class Item:
    """The importer's knowledge of one ONNX value: its `type`, and the graph's value, or its array if that is known when
    compiling (`known`), or both.

    `weight`: the array is an initializer that may be changed later, so nothing computed from it may be folded.
    `of_weights`: it depends on no input.
    """

    type: TensorType
    value: Value | None = None
    known: Any = None
    name: str = ""
    weight: bool = False
    of_weights: bool = False

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def is_symbolic(self) -> bool:
        """Whether the item's elements are known, but some of them are expressions of symbols."""
        return self.known is not None and self.known.dtype == object


def known_item(array: Any, t: DType, name: str = "", weight: bool = False) -> Item:
    """The item for the known array `array` (numeric, or of objects) of type `t`, called `name`; `weight` says that it
    is a weight of the model."""
    array = canonical(array, t)
    return Item(TensorType(t, tuple(as_expr(int(d)) for d in array.shape)), None, array, name, weight, of_weights=True)


def as_items(results: Any) -> list[Item | None]:
    """The results of a rule, as items."""
    several = list(results) if isinstance(results, list | tuple) else [results]
    return [Item(r.type, r, name=r.name) if isinstance(r, Value) else r for r in several]


def stated_sizes(items: Sequence[Item | None], inputs: Sequence[Value]) -> frozenset[Expr]:
    """The sizes that a node's file states as constants: those of its operands among `items` that are `inputs` of the
    graph, weights, or computed from weights alone."""
    if not collects():
        return frozenset()
    own = [i for i in items if i is not None and (i.of_weights or any(i.value is value for value in inputs))]
    return stated_numbers() | {d for item in own for d in item.type.shape if (as_int(d) or 0) > 0}


@dataclass(slots=True)
class Scope:
    """The values of one graph or function body by name. An inner graph finds names of the graphs around it through
    `parent`; a function has none."""

    items: dict[str, Item] = field(default_factory=dict)
    parent: Scope | None = None
    prefix: str = ""
    failed: set[str] = field(default_factory=set)
    opsets: dict[str, int] = field(default_factory=dict)
    """Versions of the operator sets, by domain; a function has its own."""
    is_inner: bool = False
    """Whether a loop or a branch is around the nodes."""
    is_branch: bool = False
    """Whether a branch is around the nodes."""

    def find(self, name: str) -> Item | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.items:
                return scope.items[name]
            scope = scope.parent
        return None

    def opset(self, domain: str) -> int:
        return self.opsets.get("" if domain == "ai.onnx" else domain, 1)

    def has_failed(self, name: str) -> bool:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.failed:
                return True
            scope = scope.parent
        return False


@dataclass(slots=True)
class Symbols:
    """The variables of a model's symbolic dimensions, by the names in the file. `fixed`: what the caller states, by
    that name. By the variable's name: `needs`, the ranges that the model requires, and `same`, an earlier variable or a
    number that it must equal."""

    fixed: DimSizes
    needs: Mapping[str, Dim]
    same: Mapping[str, str | int]
    expressions: dict[str, Expr] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)

    def get(self, name: str) -> Expr:
        """The number fixed for `name`, or its variable, whose name is made an identifier."""
        known = self.expressions.get(name)
        if known is None:
            from tilewright.ir.rewrite import fresh_name

            text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)[:40]
            variable = text if text[:1].isalpha() else f"d_{text}"
            if not isinstance(self.fixed.get(name), int):
                variable = fresh_name(variable, self.used_names)
            first = self.same.get(variable) if not isinstance(self.fixed.get(name), int) else None
            while isinstance(first, str) and first in self.same:
                first = self.same[first]
            # A name that the caller uses gives way to another of his alone, any other name to his, wherever it stands.
            if isinstance(first, str) and first in self.fixed and name not in self.fixed:
                self.get(first)
            earlier = [
                e
                for other, e in self.expressions.items()
                if isinstance(e, Var) and e.name == first and (name not in self.fixed or other in self.fixed)
            ]
            if isinstance(first, int) and name not in self.fixed:
                known = as_expr(first)
            else:
                known = earlier[0] if earlier else size(name, self.fixed, variable, self.needs.get(variable))
            self.expressions[name] = known
        return known


__all__ = ["Item", "Scope", "Symbols", "as_items", "canonical", "known_item", "object_array", "stated_sizes"]
