"""Decide where a product is summed: in vectors, or in the matrix registers that some machines have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import exp, log

from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Node
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import cheapest, decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.symbolic import SYMBOLIC_ROWS, values_of
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.problems import Cycles, crossing

VECTORS, PAIRS, MATRICES, FLAT, GATHERED = "vectors", "pairs", "matrices", "flat", "gathered"
BY_ROWS = "by rows"


def summed_in(a: Assigner, node: Node, ways: Mapping[str, float]) -> str:
    """The name of the chosen way to sum the products of `node`: a decision by `ways`, the estimated cycles of each way
    by name."""
    return cheapest(partial(key_of_nodes, "registers", [node], a.target), ways)


def least_rows(a: Assigner, node: Node, rows: Expr, vectors: Cycles, matrices: Cycles, both: bool) -> int | None:
    """The least number of rows for which `node` is summed in matrix registers, a decision by estimates; 0 is always,
    None is never.

    Args:
        rows: the number of rows. A symbolic one is estimated by the geometric mean over several numbers.
        vectors, matrices: estimated cycles of the two ways, by the number of rows.
        both: whether one layout of the weights serves both ways; else the result is 0 or None.
    """
    known = as_int(rows)
    if known is not None:
        ways = {VECTORS: vectors(known), MATRICES: matrices(known)}
        return 0 if summed_in(a, node, ways) == MATRICES else None
    counts = values_of(rows, SYMBOLIC_ROWS)
    from_rows: dict[int | None, Cycles] = {None: vectors, 0: matrices}
    if both and (least := crossing(max(counts), vectors, matrices)) > 1:
        from_rows[least] = lambda m: vectors(m) if m < least else matrices(m)
    means = {way: exp(sum(log(cycles(m)) for m in counts) / len(counts)) for way, cycles in from_rows.items()}

    def setting(way: int | None) -> Setting:
        return Setting(BY_ROWS, (("least", way),)) if way else Setting(VECTORS if way is None else MATRICES)

    key = partial(key_of_nodes, "registers", [node], a.target)
    return decide(key, sorted(means, key=means.__getitem__), setting, means.__getitem__)
