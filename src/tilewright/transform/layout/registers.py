"""Where a product is summed: in vectors, or in the registers of matrices that some machines have beside them."""

from __future__ import annotations

from functools import partial

from tilewright.ir.graph import Node
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import cheapest
from tilewright.transform.layout.assigner import Assigner

VECTORS, MATRICES = "vectors", "matrices"


def in_matrices(a: Assigner, node: Node, vectors: float, matrices: float) -> bool:
    """Whether `node` is summed in registers of matrices: a decision by the estimated cycles of both ways."""
    key = partial(key_of_nodes, "registers", [node], a.target)
    return cheapest(key, {VECTORS: vectors, MATRICES: matrices}) == MATRICES
