"""Constant folding of operators on integers and bools: the result is a number, or one of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

_EXACT: dict[str, Callable[[int, int], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def exact(name: str, a: Any, b: Any) -> Any:
    """The exact result of the operator `name` on two numbers of one type, without wrapping; None if it cannot be
    folded."""
    if isinstance(a, bool):
        return {"and": a and b, "or": a or b}.get(name)
    rule = _EXACT.get(name)
    if rule is None or (name in ("floordiv", "mod") and b == 0):
        return None
    return rule(a, b)


def trivial_result(name: str, left: Any, right: Any) -> Literal["left", "right", "zero"] | None:
    """The operand that the binary operator `name` returns unchanged, as in `x + 0`, `x * 1` and `x * 0`; "zero" for `x
    % 1`. `left` and `right` are the operands' values, None for operands that are not constants. None: the operator has
    to be computed."""
    match name, right:
        case (("add" | "sub" | "shl" | "shr" | "or"), (0 | False)) | (("mul" | "floordiv"), 1) | ("and", True):
            return "left"
        case ("mul", 0) | ("and", False) | ("or", True):
            return "right"
        case "mod", 1:
            return "zero"
    match name, left:
        case (("add" | "or"), (0 | False)) | ("mul", 1) | ("and", True):
            return "right"
        case ("mul", 0) | ("and", False) | ("or", True):
            return "left"
    return None
