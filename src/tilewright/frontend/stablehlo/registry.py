"""The table of rules: StableHLO or CHLO operation -> function that puts it into the graph as our own operators.

A rule takes a `Call` and returns a value, an item, or a list of these, one for each result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[F], F]:
    """Register a function as the rule of these operations; names without a dialect are StableHLO's."""

    def register(f: F) -> F:
        for name in names:
            whole = name if "." in name else f"stablehlo.{name}"
            assert whole not in RULES, whole
            RULES[whole] = f
        return f

    return register


def find(name: str) -> Rule | None:
    """The rule of an operation."""
    import tilewright.frontend.stablehlo.rules  # noqa: F401  imports every file of rules

    return RULES.get(name)
