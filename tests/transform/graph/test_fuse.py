"""Where groups end: long chains are cut by what their nodes are, so that what repeats becomes few kernels."""

from __future__ import annotations

import random

import pytest

from tests.transform.graph.graphs import tensor
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ops.registry import emit1
from tilewright.transform.graph.fuse import MAX_NODES, fuse

FUNCTIONS = ("exp", "tanh", "sigmoid", "relu", "abs", "neg", "erf", "sqrt", "sin", "cos")


def chain(names: list[str]) -> Graph:
    builder = GraphBuilder("chain")
    x = builder.input("x", tensor(64, 64))
    for name in names:
        x = emit1(builder, name, x)
    return builder.finish((x,))


@pytest.mark.daily(2)
@pytest.mark.parametrize("period", [2, 7, 23, 35])
def test_a_chain_that_repeats_has_a_small_number_of_kernels(period: int) -> None:
    rng = random.Random(period)
    pattern = [rng.choice(FUNCTIONS) for _ in range(period)]
    groups = fuse(chain((pattern * 1000)[:2000]))
    assert [n.op for g in groups for n in g.nodes] == (pattern * 1000)[:2000]
    assert all(len(g.nodes) <= MAX_NODES for g in groups)
    assert len(groups) <= 2000 // (MAX_NODES // 4)
    assert len({tuple(n.op for n in g.nodes) for g in groups}) <= 6


def test_a_chain_that_fits_is_one_kernel() -> None:
    assert len(fuse(chain(["relu", "tanh"] * (MAX_NODES // 2)))) == 1
