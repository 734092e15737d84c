"""Kernels that have time prefetch weights of one that waits for them: which ones, for what, and that results stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.runtime.specs import StepSpec
from tilewright.targets.costs import Costs, Origin
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.target import Target

ROWS, WIDTH, WIDE = 512, 256, 1024
SMALL = replace(
    Target.host(),
    caches=Caches(l2=1 << 19, l3=1 << 20),
    ceilings=Ceilings(memory_bandwidth=8.0, memory_total=12.0),
    costs=Costs(),
)
"""A machine whose last levels do not hold the weights, with stated speeds; its instructions are this one's."""
LARGE = SMALL.adjusted(l3=64 << 20)


def pooled(layers: int = 1, heads: int = 1) -> tuple[Graph, dict[str, np.ndarray]]:
    """Many rows through some layers, their mean through others: they have few products for many weights."""
    b = GraphBuilder("pooled")
    shapes = {
        **{f"w{k}": (WIDTH, WIDTH) for k in range(layers)},
        **{f"v{k}": (WIDE if k else WIDTH, WIDE) for k in range(heads)},
    }
    x = b.input("x", tensor(ROWS, WIDTH))
    params = {name: b.param(name, tensor(*shape)) for name, shape in shapes.items()}
    for k in range(layers):
        x = ops.emit1(b, "relu", ops.emit1(b, "matmul", x, params[f"w{k}"]))
    x = ops.emit1(b, "reduce_mean", x, axes=(0,), keepdims=True)
    for k in range(heads):
        x = ops.emit1(b, "matmul", x, params[f"v{k}"])
    rng = np.random.default_rng(0)
    return b.finish((x,)), {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def steps(model: tw.Model) -> dict[str, StepSpec]:
    return {step.label: step for step in model.manifest.run_steps}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_prefetches_weights_that_a_later_one_waits_for(threads: int) -> None:
    graph, weights = pooled()
    prefetching, ordinary = (tw.compile((graph, weights), target=t, threads=threads) for t in (SMALL, LARGE))
    host, without = (next(s for label, s in steps(m).items() if "relu" in label) for m in (prefetching, ordinary))
    reader = prefetching.manifest.run_steps[-1]
    first = len(graph.inputs) + len(graph.outputs)
    (weight,) = (slot for slot in reader.slots if first <= slot < first + 2)
    assert weight in host.slots and len(host.slots) == len(without.slots) + 1
    assert "@prefetch_share(source=upcoming" in prefetching.show("loops") and "upcoming" not in ordinary.show("loops")
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(prefetching(x), ordinary(x))
    hidden = np.maximum(x.astype(np.float64) @ weights["w0"], 0)
    np.testing.assert_allclose(prefetching(x), hidden.mean(0, keepdims=True) @ weights["v0"], rtol=1e-4, atol=1e-3)


def test_who_prefetches_is_a_decision() -> None:
    # any machine: caches, ceilings and costs are stated
    graph, weights = pooled()
    with deciding() as record:
        usual = tw.compile((graph, weights), target=SMALL)
    (created,) = (d for d in record.decisions if d.key.kind == "ahead")
    assert (
        created.selected.label == created.space.labels[0]
        and created.selected.kind == "ahead"
        and "none" in created.space.labels
    )
    assert created.estimate == min(created.estimates)
    with forcing({created.key.name: "none"}):
        assert "upcoming" not in tw.compile((graph, weights), target=SMALL).show("loops")
    assert "upcoming" in usual.show("loops")


def test_new_weights_are_what_is_used() -> None:
    graph, weights = pooled()
    model = tw.compile((graph, weights), target=SMALL)
    x = np.ones((ROWS, WIDTH), np.float32)
    before = model(x).copy()
    model.update({**weights, "v0": 2 * weights["v0"]})
    np.testing.assert_allclose(model(x), 2 * before, rtol=1e-6)


def test_nothing_is_prefetched_where_weights_stay_or_no_kernel_has_time() -> None:
    graph, weights = pooled()
    assert "upcoming" not in tw.compile((graph, weights), target=LARGE).show("loops")
    slow = SMALL.adjusted(memory_bandwidth=0.01)
    assert "upcoming" not in tw.compile((graph, weights), target=slow).show("loops")


def test_threads_prefetch_no_more_than_memory_delivers_to_all_of_them() -> None:
    graph, weights = pooled()
    # The products take two million cycles of a core, in which one thread may prefetch a megabyte, two half of it.
    slow = SMALL.adjusted(fma_per_cycle=16 / SMALL.lanes(4), memory_bandwidth=0.5, memory_total=0.5)
    prefetching = {t: "upcoming" in tw.compile((graph, weights), target=slow, threads=t).show("loops") for t in (1, 2)}
    assert prefetching == {1: True, 2: False}


@pytest.mark.parametrize(("l3", "prefetching"), [(1 << 20, 1), (8 << 20, 2)])
def test_no_one_prefetches_what_is_driven_out_before_it_is_used(l3: int, prefetching: int) -> None:
    """The second head's weights would have to stay while those of the first come from memory."""
    model = tw.compile(pooled(layers=2, heads=2), target=SMALL.adjusted(l3=l3))
    assert model.show("loops").count("@prefetch_share(source=upcoming") == prefetching


def test_weights_come_from_the_last_level_into_the_second() -> None:
    """Where the last level holds them but is slow, and what the kernel itself touches leaves them room; of one thread
    alone, for a second one has a second level of its own."""
    # any machine: sizes, rates and costs that decide are stated
    graph, weights = pooled(heads=2)
    close = replace(
        SMALL.adjusted(l2=4 << 20, l3=64 << 20, l3_bandwidth=8.0),
        costs=Costs().fitted(Origin("here"), early_l2=0.5),
    )
    machines = {
        "close": (close, 1),
        "two threads": (close, 2),
        "no room": (close.adjusted(l2=2 << 20), 1),
        "no share": (replace(close, costs=Costs()), 1),
    }
    texts = {name: tw.compile((graph, weights), target=t, threads=n).show("loops") for name, (t, n) in machines.items()}
    assert [name for name, text in texts.items() if "@prefetch_share(source=upcoming" in text] == ["close"]
    x = np.ones((ROWS, WIDTH), np.float32)
    results = [np.asarray(tw.compile((graph, weights), target=t)(x)) for t in (close, LARGE)]
    np.testing.assert_allclose(*results, rtol=1e-5)
