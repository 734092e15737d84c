"""Sizes of symbolic dimensions: names for those that a module does not name, and which of them are equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from tilewright.arith import linear, prove
from tilewright.frontend.common.known import object_array
from tilewright.frontend.stablehlo.module import Type
from tilewright.ir.dim import Dim, DimSizes
from tilewright.ir.expr import Expr, Op, Var, as_expr
from tilewright.ir.expr import call as apply
from tilewright.ir.graph import GraphBuilder
from tilewright.ir.rewrite import fresh_name, substitute, variables
from tilewright.ops.dims import dim, show
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, ShapeError


class Equal(Exception):
    """Two sizes must be equal, which makes a symbol known: the module has to be walked again with it."""

    def __init__(self, symbol: Var, size: Expr) -> None:
        self.symbol, self.size = symbol, size
        super().__init__(f"{symbol} = {size}")


@dataclass(slots=True)
class Sizes:
    """The symbols of one module. `fixed` is what callers say of them by name, `joined` what was found to be equal to
    a symbol, in the order in which it was found."""

    fixed: DimSizes
    joined: list[tuple[Var, Expr]] = field(default_factory=list)
    symbols: dict[str, Var] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    batch: tuple[str, int] | None = None
    """The dimension that is called "batch"."""
    stated: bool = False
    """Whether all conditions on sizes are known beside the module, which says them once more."""
    quotients: dict[Expr, list[tuple[Any, Any]]] = field(default_factory=dict)
    remainders: dict[Expr, list[tuple[Any, Any]]] = field(default_factory=dict)
    """What truncated quotients and remainders of sizes are of."""

    def join(self, found: Equal) -> None:
        self.joined.append((found.symbol, found.size))

    def symbol(self, name: str) -> Var:
        known = self.symbols.get(name)
        if known is None:
            text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)[:40]
            chosen = fresh_name(text if text[:1].isalpha() else f"d_{text}", self.taken)
            known = self.symbols[name] = self.said(name).var(chosen)
        return known

    def expr(self, name: str) -> Expr:
        """The size that a name stands for."""
        symbol = self.symbol(name)
        number = self.fixed.get(name)
        return as_expr(number) if isinstance(number, int) else self.resolved(symbol)

    def said(self, name: str) -> Dim:
        """What callers know of a dimension that is not fixed."""
        known = self.fixed.get(name)
        return known if isinstance(known, Dim) else Dim()

    def named(self, name: str) -> Any:
        """The same as a known array without dimensions."""
        return object_array([self.expr(name)], ())

    def resolved(self, e: Expr) -> Expr:
        for symbol, size in self.joined:
            if symbol in variables(e):
                e = dim(substitute(e, {symbol: size}))
        return e

    def shape(self, name: str, t: Type, said: Sequence[Any] | None) -> tuple[Expr, ...]:
        """The shape of an argument: what is known of it, numbers, or a symbol for each dimension that the type leaves
        open, the first of which is called "batch" where it is an argument's first axis."""
        if t.shape is None:
            raise ShapeError(f"an argument of type {t.element} is not supported")
        found: list[Expr] = []
        for axis, d in enumerate(t.shape):
            if d is not None:
                found.append(as_expr(d))
            elif said is not None:
                found.append(dim(said[axis](self.expr)))
            else:
                if axis == 0 and not self.symbols and self.batch is None:
                    self.batch = (name, axis)
                found.append(self.expr("batch" if self.batch == (name, axis) else f"{name}_dim{axis}"))
        return tuple(found)

    def equal(self, a: Expr, b: Expr) -> None:
        """Two sizes are equal. Raises Equal where that says what a symbol is, ShapeError where it cannot be."""
        a, b = dim(a), dim(b)
        if a is b or prove(apply("eq", a, b)):
            return
        if (common := _common(a, b)) > 1:
            return self.equal(a // common, b // common)
        order = [a, b] if self.age(a) >= self.age(b) else [b, a]  # the symbol that came first stays
        for symbol, size in (order, order[::-1]):
            if isinstance(symbol, Var) and symbol not in variables(size):
                raise Equal(symbol, size)
        raise ShapeError("two sizes that must be equal are not", expected=a, got=b)

    def assume(self, condition: Expr, reason: str, builder: GraphBuilder) -> None:
        """A condition on sizes holds at every call. Raises Equal where it says what a symbol is."""
        if isinstance(condition, Op) and condition.name == "eq":
            try:
                self.equal(*condition.args)
                return
            except ShapeError:
                pass
        builder.assume(condition, reason)

    def age(self, e: Expr) -> int:
        """The position of a symbol among those of the module; -1 for what is none."""
        return next((k for k, v in enumerate(self.symbols.values()) if v is e), -1)

    def equal_shapes(self, a: Sequence[Expr], b: Sequence[Expr]) -> None:
        if len(a) != len(b):
            raise ShapeError("the operands' ranks differ", expected=show(a), got=show(b))
        for x, y in zip(a, b, strict=True):
            self.equal(x, y)

    def check_fixed(self, label: str) -> None:
        """Raise ModelError for sizes that were given for dimensions that the module does not have."""
        unknown = [name for name in self.fixed if name not in self.symbols]
        if unknown:
            raise ModelError(
                "no dimension of the inputs has this name",
                where=label,
                expected=", ".join(self.symbols) or "none",
                got=", ".join(unknown),
            )


def _common(a: Expr, b: Expr) -> int:
    """The greatest number that divides all coefficients of two sizes: 3 of `3*n` and `6*m + 3`."""
    forms = linear(a), linear(b)
    return math.gcd(*(c for form in forms for c in (form.constant, *(c for _, c in form.terms))))
