"""The result of `==` on expressions that are equal for all elements, such as sizes: `n == m`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.ir.expr import Expr


class Sameness:
    """The result of `a == b` (or `!=`) if neither depends on an element. It can be used as a boolean expression; as a
    truth value it tells whether both are the same expression."""

    __slots__ = ("a", "b", "name")

    def __init__(self, name: str, a: Expr, b: Expr) -> None:
        self.name, self.a, self.b = name, a, b

    def __bool__(self) -> bool:
        return (self.a is self.b) == (self.name == "eq")

    def as_expr(self) -> Expr:
        """The comparison; a constant if both are the same expression, except for floats, which may be NaN."""
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
