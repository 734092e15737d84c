"""The table of rules: ONNX operator -> function that puts it into the graph as our own operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.scope import Item
from tilewright.ir.graph import Value

Result = Value | Sequence[Value | Item | None]
Rule = Callable[[Call], Result]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of the operators called `names` (of the domain ai.onnx)."""

    def register(f: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = f
        return f

    return register


def find(domain: str, name: str) -> Rule | None:
    import tilewright.frontend.onnx.rules  # noqa: F401  imports every file of rules

    return RULES.get(name) if domain in ("", "ai.onnx") else RULES.get(f"{domain}.{name}")


__all__ = ["RULES", "Result", "Rule", "find", "rule"]
