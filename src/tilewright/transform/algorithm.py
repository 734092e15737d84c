"""The record of an algorithm: when selection offers it, and how layout assignment rewrites a node by it.

Folders of `tilewright/algorithms/` have `RECORDS` in their module `record`. `transform/select/` itself offers the
computation of an operator by its definition and by bf16 pieces.
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
"""(estimated cycles, algorithm): an option for a node. The cycles of a convolution are for one image."""


def computes_floats(node: Node) -> bool:
    """Whether the first result of a node is no integer."""
    return not node.outputs[0].dtype.is_int


@dataclass(frozen=True, slots=True)
class Record:
    """An algorithm for nodes of an operator.

    Records are asked for offers in ascending order of `turn`; one that extends the options of others has a higher turn.

    Args:
        kind: the class of the note that a node carries if this algorithm computes it.
        operator: the operator's name.
        fits: whether it is offered for a node of the operator; by default for all whose result is no integer.
        offer: from the options of a node so far to its options with this algorithm, where that fits and is allowed.
        lower: rewrite a node that carries the note, with an `Assigner` of `transform/layout/`; returns whether it did.
    """

    kind: type[Algorithm]
    operator: str
    offer: Callable[[Surroundings, Node, list[Option]], list[Option]]
    lower: Callable[[Any, Node], bool]
    turn: int = 0
    fits: Callable[[Node], bool] = computes_floats


@cache
def records() -> dict[type[Algorithm], Record]:
    """The records of all algorithm folders, by the class of their notes, ordered by `turn` and then by folder name."""
    every = [r for m in modules("tilewright.algorithms", "record") for r in m.RECORDS]
    return {r.kind: r for r in sorted(every, key=lambda r: r.turn)}


def offered(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options of a node with the offers of all algorithms added that have a record for its operator."""
    for record in records().values():
        if record.operator == node.op and record.fits(node):
            options = record.offer(enclosing, node, options)
    return options


def cheapest_algorithm(enclosing: Surroundings, node: Node, options: list[Option]) -> Algorithm:
    """Choose the algorithm of a node: a decision by the estimated cycles of its options."""
    key = partial(key_of_nodes, "algorithm", [node], enclosing.target)
    ordered = sorted(options, key=lambda option: option[0])
    return decide(key, ordered, lambda option: Setting.of(option[1]), lambda option: option[0])[1]


def record_of(node: Node) -> Record | None:
    """The record of the algorithm that a node carries as a note; None if it carries none, or one that has no folder."""
    return None if node.algorithm is None else records().get(type(node.algorithm))
