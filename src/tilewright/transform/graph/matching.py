"""Patterns of graphs as data: by which operators a value is computed, and of what.

    op("div", op("exp", op("sub", "x", "m"), name="e"), op("reduce_sum", "e"))

matches the result of a `div` node whose first operand an `exp` node computes, and so on. An operand is another pattern;
a name, which stands for a value, and for one value wherever it is written; a number, which stands for a constant that
has it in all elements; `Number(name)` for any such constant; None for an operand that is absent; or `ANY`. Operands of
commutative operators are tried in both orders, so a pattern may match in several ways: `matches` yields each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from tilewright.ir.graph import Node, Value
from tilewright.support.classes import dataclass

COMMUTATIVE = frozenset({"add", "mul", "min", "max", "and", "or", "bitand", "bitor", "eq", "ne"})
"""Operators of two operands that may change places."""


class Facts(Protocol):
    """The interface through which patterns query a graph."""

    def producer(self, value: Value | None, *ops: str) -> Node | None:
        """The node that computes a value, if there is one and its operator is among `ops` (any, without these)."""

    def number(self, value: Value | None) -> float | None:
        """The number that all elements of a constant are; None for other values."""

    def only_reader(self, value: Value) -> Node | None:
        """The single node that reads a value which is no output; None if there is none or several."""


@dataclass(frozen=True, slots=True)
class Anything:
    """A pattern that matches any value, and an absent operand."""


ANY = Anything()


@dataclass(frozen=True, slots=True)
class Number:
    """A pattern that matches a constant with one number in all elements, and binds the number to a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Either:
    """A pattern that matches a value if one of `alternatives` does; they are tried in order."""

    alternatives: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """A pattern that matches a value which a node computes.

    ops       the node's operator is one of these; any, if there are none
    operands  patterns of its first operands; further operands may be anything
    name      the name to which the value is bound, if it is not ""
    through   operators of one operand that may stand between the value and the node, in any number
    private   whether the value must have one reader and be no output
    where     a further condition on the node
    """

    ops: tuple[str, ...]
    operands: tuple[Operand, ...] = ()
    name: str = ""
    through: tuple[str, ...] = ()
    private: bool = False
    where: Callable[[Node], bool] | None = None

    def takes(self, name: str) -> bool:
        """Whether the pattern allows a node with the operator `name`."""
        return not self.ops or name in self.ops


Operand = Op | Either | Number | Anything | str | float | None
Bound = Mapping[str, Value | float]
"""Values and numbers by their names in a pattern."""


def op(
    ops: str | Sequence[str],
    *operands: Operand,
    name: str = "",
    through: Sequence[str] = (),
    private: bool = False,
    where: Callable[[Node], bool] | None = None,
) -> Op:
    """The pattern of a value that a node with one of the operators `ops` computes from values that match `operands`.
    `name`, `through`, `private` and `where` are fields of `Op`."""
    return Op((ops,) if isinstance(ops, str) else tuple(ops), operands, name, tuple(through), private, where)


def any_op(*operands: Operand, where: Callable[[Node], bool]) -> Op:
    """The pattern of a value that a node of any operator computes for which `where` holds."""
    return Op((), operands, where=where)


def either(*alternatives: Operand) -> Either:
    """The pattern that matches where one of these does."""
    return Either(alternatives)


def matches(pattern: Operand, value: Value | None, facts: Facts, bound: Bound) -> Iterator[Bound]:
    """The bindings of each way in which a pattern matches a value, added to those in `bound`."""
    match pattern:
        case None:
            if value is None:
                yield bound
        case str():
            if value is not None and bound.get(pattern, value) == value:
                yield {**bound, pattern: value}
        case Anything():
            yield bound
        case Number(name):
            if (number := facts.number(value)) is not None:
                yield {**bound, name: number}
        case Either(alternatives):
            for alternative in alternatives:
                yield from matches(alternative, value, facts, bound)
        case Op():
            yield from _of_value(pattern, value, facts, bound)
        case number:
            if facts.number(value) == number:
                yield bound


def _of_value(pattern: Op, value: Value | None, facts: Facts, bound: Bound) -> Iterator[Bound]:
    if value is None or (pattern.private and facts.only_reader(value) is None):
        return
    while True:
        node = facts.producer(value)
        if node is None:
            return
        if pattern.takes(node.op):
            yield from matches_node(pattern, node, facts, bound)
        if node.op not in pattern.through:
            return
        (value, *_) = node.inputs


def matches_node(pattern: Op, node: Node, facts: Facts, bound: Bound) -> Iterator[Bound]:
    """The bindings of each way in which a pattern matches a node's result, added to those in `bound`."""
    if not pattern.takes(node.op) or len(node.inputs) < len(pattern.operands):
        return
    if pattern.where is not None and not pattern.where(node):
        return
    if pattern.name:
        bound = {**bound, pattern.name: node.outputs[0]}
    yield from _of_operands(pattern.operands, node.inputs, facts, bound)
    if node.op in COMMUTATIVE and len(pattern.operands) == 2 == len(node.inputs) and node.inputs[0] != node.inputs[1]:
        yield from _of_operands(pattern.operands, node.inputs[::-1], facts, bound)


def _of_operands(
    patterns: Sequence[Operand], values: Sequence[Value | None], facts: Facts, bound: Bound
) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for first in matches(patterns[0], values[0], facts, bound):
        yield from _of_operands(patterns[1:], values[1:], facts, first)
