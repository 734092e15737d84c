"""Weights that the program around drives out of a core's own caches: which kernels are told, and what they do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.algorithms.winograd.operators.by_size import ConvBySizeAttrs
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.notes import NonresidentWeights
from tilewright.plans.framework.cost import level, weights_level, working_set
from tilewright.targets.costs import Costs
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group
from tilewright.transform.nonresident import with_nonresident_weights

ROWS, WIDTH = 24, 128
OWN = WIDTH * WIDTH * 4
MACHINE = replace(Target.host(), caches=Caches(l2=4 * OWN, l3=40 * OWN), costs=Costs(), ceilings=Ceilings())
"""A machine whose second level holds two such layers, and whose last one holds twenty; its speeds and fitted constants
are the defaults."""


def chain(layers: int) -> tuple[Graph, dict[str, np.ndarray]]:
    b = GraphBuilder("chain")
    x = b.input("x", tensor(ROWS, WIDTH))
    for k in range(layers):
        x = ops.emit1(b, "relu", ops.emit1(b, "matmul", x, b.param(f"w{k}", tensor(WIDTH, WIDTH))))
    rng = np.random.default_rng(0)
    scale = np.float32(WIDTH**-0.5)
    return b.finish((x,)), {f"w{k}": scale * rng.standard_normal((WIDTH, WIDTH), np.float32) for k in range(layers)}


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("layers", "away"), [(1, ""), (2, ""), (6, "@nonresident_weights(level=l3)"), (36, "@nonresident_weights")]
)
def test_layers_are_told_where_calls_find_their_weights(layers: int, away: str) -> None:
    """One layer fits into the second level, and several would not fit there with each other."""
    # any machine: caches, ceilings and costs are stated
    graph, weights = chain(layers)
    model = tw.compile((graph, weights), target=MACHINE, records=None)
    text = model.show("loops")
    assert set(re.findall(r"@nonresident_weights[^ ]*", text)) == ({away} if away else set())
    prefetches = bool(re.search(r"@prefetch\(buffers=\[\w+_packed\]", text))
    if "l3" not in away:  # where it depends on the machine and the rows what is best
        assert prefetches == bool(away), "the next panel, if not near"
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    want = x.astype(np.float64)
    for k in range(layers):
        want = np.maximum(want @ weights[f"w{k}"], 0)
    np.testing.assert_allclose(model(x), want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def test_of_two_layouts_one_is_read() -> None:
    """The layer that keeps its filters twice is told as well: both together would be away by their own size."""
    # any machine: caches, ceilings and costs are stated
    b = GraphBuilder("layer")
    side = Var("n", lo=8, hi=64)
    x = b.input("x", TensorType(f32, (const(1), const(1), side, side, const(16)), "NCHW16c"))
    second, first = (
        b.param(f"w{m}", TensorType(f32, tuple(map(const, (1, m + 2, m + 2, 1, 1, 16, 32))))) for m in (6, 4)
    )
    attrs = ConvBySizeAttrs(6, 3, 1, 1, (1, 1, 1, 1), 16, 16, 16, 4, (300, 100, 200, 0))
    graph = b.finish((ops.emit1(b, "lowered.conv_by_size", x, second, first, attrs=attrs),))
    (group,) = fuse(graph)
    machine = MACHINE.adjusted(l2=second.known_bytes + first.known_bytes // 2)
    assert level(second.known_bytes + first.known_bytes, machine) == "l3" and level(first.known_bytes, machine) == "l2"
    told = with_nonresident_weights(lower_group(group, "layer"), graph.params, "l3", machine)
    assert NonresidentWeights("l3") in told.func.notes


def test_what_fits_into_the_first_level_goes_without() -> None:
    """The kernel of such a layer is the same in all models."""
    large = MACHINE.adjusted(l1=8 * OWN, l2=8 * OWN)
    assert "nonresident_weights" not in tw.compile(chain(12), target=large, records=None).show("loops")


def test_where_the_weights_of_a_program_are() -> None:
    retained = MACHINE.costs.traffic
    sizes = (retained.resident_l2 * MACHINE.l2, retained.next_call_l3 * MACHINE.l3)
    assert [weights_level(s, MACHINE) for s in sizes] == [None, "l3"]
    assert [weights_level(s + 1, MACHINE) for s in sizes] == ["l3", "memory"]


def test_the_note_moves_weights_away_and_never_nearer() -> None:
    second = (NonresidentWeights("l3"),)
    assert level(working_set(OWN, (), MACHINE), MACHINE) == "l2"
    assert level(working_set(OWN, second, MACHINE), MACHINE) == "l3"
    assert level(working_set(OWN, (NonresidentWeights("memory"),), MACHINE), MACHINE) == "memory"
    assert working_set(1e9, second, MACHINE) == 1e9
