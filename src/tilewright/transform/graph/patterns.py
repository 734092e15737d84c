"""Patterns of operators by which another compiler states what it takes.

    Pattern("conv_relu", op("relu", either(op("add", op("conv"), ANY), op("conv"))), priority=10)

They are patterns of `matching.py` without names and numbers, read from the result up to its operands. `ANY` stands for
a value outside of the match: an input or a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from tilewright.ir.graph import Node
from tilewright.support.classes import dataclass
from tilewright.transform.graph import matching
from tilewright.transform.graph.matching import ANY, Anything, Either, Op, Operand, either

Match = Op | Either | Anything
"""A pattern of nodes that belong to the match, or of values outside of it."""


def op(name: str | Sequence[str], *operands: Match, where: Callable[[Node], bool] | None = None) -> Op:
    """The pattern of a node with one of these operators, whose operands match `operands` and for which `where` holds.
    Without `operands` all operands stay outside of the match."""
    return matching.op(name, *operands, where=partial(_holds, len(operands), where))


def _holds(operands: int, where: Callable[[Node], bool] | None, node: Node) -> bool:
    return operands in (0, len(node.inputs)) and (where is None or where(node))


@dataclass(frozen=True)
class Pattern:
    """A pattern of nodes that a compiler takes.

    Args:
        name: for reports.
        root: the operators, from the result up.
        priority: patterns with a higher number are matched first.
        accepts: tells whether the matched nodes, in the graph's order, are taken; None: always.
    """

    name: str
    root: Match
    priority: int = 0
    accepts: Callable[[Sequence[Node]], bool] | None = None

    @cached_property
    def named(self) -> Operand:
        """The root pattern with a name for each operator: one pattern object may occur at several places."""
        return _named(self.root, "")


def _named(pattern: Operand, path: str) -> Operand:
    match pattern:
        case Op():
            operands = (_named(o, f"{path}.{k}") for k, o in enumerate(pattern.operands))
            return replace(pattern, operands=tuple(operands), name=path or ".")
        case Either(alternatives):
            return Either(tuple(_named(o, path) for o in alternatives))
    return pattern


__all__ = ["ANY", "Either", "Match", "Op", "Pattern", "either", "op"]
