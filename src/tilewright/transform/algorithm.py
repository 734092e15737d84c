"""The record of an algorithm: when selection offers it, and how layout assignment rewrites a node by it.

Folders of `tilewright/algorithms/` have `RECORDS` in their module `record`. What is computed as it is defined, or by
pieces, is offered by `transform/select/` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from tilewright.ir.graph import Node
from tilewright.ir.selection import Algorithm
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.support.classes import dataclass
from tilewright.support.discover import modules
from tilewright.transform.select.surroundings import Surroundings

Option = tuple[float, Algorithm]
"""Estimated cycles, of an image for convolutions, and what takes them."""


@dataclass(frozen=True, slots=True)
class Record:
    """An algorithm for nodes of an operator.

    Offers of a lower `turn` are asked first: one that adds to what others take is asked after these.

    Args:
        kind: what a node notes that is computed by it.
        operator: the operator's name.
        offer: the options of a node, from those that there are: with this algorithm where it fits and is allowed, and
            with what others take beside it.
        lower: rewrite a node that notes it, by an `Assigner` of `transform/layout/`; whether it was.
    """

    kind: type[Algorithm]
    operator: str
    offer: Callable[[Surroundings, Node, list[Option]], list[Option]]
    lower: Callable[[Any, Node], bool]
    turn: int = 0


@cache
def records() -> dict[type[Algorithm], Record]:
    """The records of all folders, by what a node notes, in their turns, then in the order of the folders' names."""
    every = [r for m in modules("tilewright.algorithms", "record") for r in m.RECORDS]
    return {r.kind: r for r in sorted(every, key=lambda r: r.turn)}


def unchanged(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options as they are: the offer of an algorithm that another record of its folder offers."""
    return options


def offered(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options of a node and those that algorithms of folders add."""
    for record in records().values():
        if record.operator == node.op:
            options = record.offer(enclosing, node, options)
    return options


def cheapest_algorithm(enclosing: Surroundings, node: Node, options: list[Option]) -> Algorithm:
    """The algorithm of a node: a decision by the estimated cycles of its options."""
    key = partial(key_of_nodes, "algorithm", [node], enclosing.target)
    ordered = sorted(options, key=lambda option: option[0])
    return decide(key, ordered, lambda option: Setting.of(option[1]), lambda option: option[0])[1]


def record_of(node: Node) -> Record | None:
    """The record of the algorithm that a node notes; None where it notes none or one without a folder."""
    return None if node.algorithm is None else records().get(type(node.algorithm))
