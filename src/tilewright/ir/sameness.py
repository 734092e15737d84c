"""Comparisons of expressions that are the same for all elements: `n == m` of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.ir.expr import Expr


class Sameness:
    """The value of `a == b` (or `!=`) where neither mentions an element: a comparison as an expression; as a truth
    value it says whether both are one expression, which holds for programs and shapes whose text is the same."""

    __slots__ = ("a", "b", "name")

    def __init__(self, name: str, a: Expr, b: Expr) -> None:
        self.name, self.a, self.b = name, a, b

    def __bool__(self) -> bool:
        return (self.a is self.b) == (self.name == "eq")

    def as_expr(self) -> Expr:
        """The comparison; a constant where both are one expression, but for floats, which may be NaN."""
        from tilewright.ir.expr import binary, const

        if self.a is self.b and not self.a.dtype.is_float:
            return const(self.name == "eq")
        return binary(self.name, self.a, self.b)

    def __and__(self, other: Any) -> Any:
        return self.as_expr() & other

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self.as_expr() | other

    __ror__ = __or__

    def __invert__(self) -> Expr:
        return ~self.as_expr()

    def __repr__(self) -> str:
        return f"{self.as_expr()}"
