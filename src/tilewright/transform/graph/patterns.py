"""Patterns of operators: what another compiler says it takes.

    Pattern("conv_relu", op("relu", either(op("add", op("conv"), ANY), op("conv"))), priority=10)

A pattern is read from the result up to its operands. What `ANY` stands for is outside: an input or a weight. Inputs of
`add` and `mul` match in both orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tilewright.ir.graph import Graph, Node, Value
from tilewright.support.classes import dataclass

COMMUTATIVE = frozenset({"add", "mul", "min", "max"})


@dataclass(frozen=True, slots=True)
class Any:
    """Any value, which stays outside."""


@dataclass(frozen=True, slots=True)
class Op:
    """A node of one of these operators for which `where` holds. Without `inputs` all of them stay outside."""

    names: tuple[str, ...]
    inputs: tuple[Match, ...]
    where: Callable[[Node], bool] | None


@dataclass(frozen=True, slots=True)
class Either:
    """The first of these that matches."""

    options: tuple[Match, ...]


Match = Any | Op | Either
ANY = Any()


def op(name: str | Sequence[str], *inputs: Match, where: Callable[[Node], bool] | None = None) -> Op:
    """A node of this operator, or of one of several, whose inputs match these."""
    return Op((name,) if isinstance(name, str) else tuple(name), inputs, where)


def either(*options: Match) -> Either:
    return Either(options)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a compiler takes.

    Args:
        name: for reports.
        root: the operators, from the result up.
        priority: patterns of a higher one are looked for first.
        accepts: whether the nodes that matched, in the graph's order, are taken; None: they are.
    """

    name: str
    root: Match
    priority: int = 0
    accepts: Callable[[Sequence[Node]], bool] | None = None


class Matcher:
    """A graph in which patterns are looked for.

    Args:
        free: whether a node, by its position, may be taken.
    """

    def __init__(self, graph: Graph, free: Callable[[int], bool]) -> None:
        self.nodes = graph.nodes
        self.free = free
        self.made: Mapping[Value, int] = {v: k for k, n in enumerate(graph.nodes) for v in n.outputs}

    def match(self, pattern: Pattern, root: int) -> frozenset[int] | None:
        """The positions of the nodes of which the root is the result, or None."""
        value = self.nodes[root].outputs[0]
        for taken in self._matches(pattern.root, value):
            if taken and (pattern.accepts is None or pattern.accepts([self.nodes[k] for k in sorted(taken)])):
                return taken
        return None

    def _matches(self, match: Match, value: Value | None) -> Iterator[frozenset[int]]:
        match match:
            case Any():
                yield frozenset()
            case Either(options):
                for option in options:
                    yield from self._matches(option, value)
            case Op(names, inputs, where):
                k = None if value is None else self.made.get(value)
                if k is None or not self.free(k):
                    return
                node = self.nodes[k]
                if node.op not in names or (where is not None and not where(node)):
                    return
                orders = [node.inputs] if not inputs else self._orders(node, len(inputs))
                for order in orders:
                    for taken in self._all(inputs, order):
                        yield taken | {k}

    def _orders(self, node: Node, count: int) -> list[tuple[Value | None, ...]]:
        """The operands in the orders in which they may match."""
        if len(node.inputs) != count:
            return []
        return [node.inputs, node.inputs[::-1]] if node.op in COMMUTATIVE and count == 2 else [node.inputs]

    def _all(self, inputs: Sequence[Match], values: Sequence[Value | None]) -> Iterator[frozenset[int]]:
        if not inputs:
            yield frozenset()
            return
        for first in self._matches(inputs[0], values[0]):
            for rest in self._all(inputs[1:], values[1:]):
                yield first | rest


__all__ = ["ANY", "Either", "Match", "Matcher", "Op", "Pattern", "either", "op"]
