"""Few queries attend to what keys and values are projected from: the same results, where there is less to multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import ops
from tilewright.ir.dtype import boolean, f32
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.verify import verify_graph
from tilewright.ops.interpret import run_graph
from tilewright.ops.lowered.attention import ORDERS
from tilewright.transform.graph.projected import attend_to_sources
from tilewright.transform.graph.rewrite import eliminate_dead

BATCH = Var("b", lo=1)


@dataclass(frozen=True)
class Case:
    """Attention of `queries` over `keys` of a source of width `width`."""

    queries: int = 1
    keys: int = 9
    heads: int = 2
    depth: int = 4
    out_depth: int = 4
    width: int = 8
    order: str = "ssss"
    biases: bool = True
    transposed: bool = False
    mask: str = ""
    guard: bool = False
    flat: bool = False
    same: bool = True


class Net:
    def __init__(self, case: Case) -> None:
        self.case, self.b = case, GraphBuilder("net")

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        return ops.emit1(self.b, op, *inputs, **attrs)

    def input(self, name: str, shape: tuple[Any, ...], dtype: Any = f32) -> Value:
        return self.b.input(name, TensorType(dtype, tuple(d if isinstance(d, Expr) else const(d) for d in shape)))

    def projected(self, source: Value, name: str, depth: int, order: str) -> Value:
        c, out = self.case, self.case.heads * depth
        shape = (out, c.width) if c.transposed else (c.width, out)
        weight = self.b.param(f"w{name}", TensorType(f32, tuple(map(const, shape))))
        y = self.emit("matmul", source, weight, transpose_b=c.transposed)
        if c.biases:
            y = self.emit("add", y, self.b.param(f"b{name}", TensorType(f32, (const(out),))))
        y = self.emit("reshape", y, shape=(BATCH, c.keys, c.heads, depth))
        return y if order == "s" else self.emit("transpose", y, perm=ORDERS[order])

    def attention(self) -> Graph:
        c = self.case
        shape = (BATCH, const(c.queries), const(c.heads), const(c.depth))
        q = self.input("q", tuple(shape[k] for k in ORDERS[c.order[0]]))
        sources = [self.input(n, (BATCH * c.keys, c.width) if c.flat else (BATCH, c.keys, c.width)) for n in "xy"]
        k = self.projected(sources[0], "k", c.depth, c.order[1])
        v = self.projected(sources[0 if c.same else 1], "v", c.out_depth, c.order[2])
        inputs = [q, k, v]
        if c.mask:
            lead = {"keys": (1, 1, 1), "batch": (BATCH, 1, 1), "rows": (c.queries,), "hidden": (BATCH, 1, 1)}[c.mask]
            heads = (1, c.heads) if c.mask == "rows" else ()
            inputs.append(self.input("mask", (*heads, *lead, c.keys), boolean if c.mask == "hidden" else f32))
        attrs = {"order": c.order, "heads": c.heads, "groups": c.heads, "first": (0, 0, 0), "scale": 0.3}
        return self.b.finish(
            (self.emit("lowered.attention", *inputs, **attrs, causal=False, fill=-5.0, guard=c.guard),)
        )


def agree(case: Case) -> bool:
    """Whether the graph is rewritten; results are compared."""
    graph = Net(case).attention()
    after = eliminate_dead(attend_to_sources(graph))
    verify_graph(after)
    rng = np.random.default_rng(case.keys * 31 + case.queries)
    feeds: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for v in (*graph.inputs, *graph.params):
        shape = [int(str(d)) if str(d).isdigit() else 3 * (case.keys if "*" in str(d) else 1) for d in v.shape]
        drawn = rng.standard_normal(shape).astype(np.float32)
        (weights if v in graph.params else feeds)[v.name] = drawn > 0 if v.dtype is boolean else drawn
    (got,), (want,) = (run_graph(g, feeds, weights).values() for g in (after, graph))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return after != graph


cases = st.builds(
    Case,
    queries=st.integers(1, 3),
    keys=st.integers(1, 40),
    heads=st.integers(1, 3),
    depth=st.integers(1, 5),
    out_depth=st.integers(1, 5),
    width=st.integers(1, 20),
    order=st.tuples(st.sampled_from("sht"), st.sampled_from("sh"), st.sampled_from("sh"), st.sampled_from("sht")).map(
        "".join
    ),
    biases=st.booleans(),
    transposed=st.booleans(),
    mask=st.sampled_from(["", "keys", "batch", "rows", "hidden"]),
    guard=st.booleans(),
    flat=st.booleans(),
    same=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_the_same_results(case: Case) -> None:
    agree(case)


@pytest.mark.parametrize("mask", ["", "keys", "batch", "rows"])
@pytest.mark.parametrize("order", ["ssss", "hhhh", "thst", "shhs"])
def test_selected(mask: str, order: str) -> None:
    assert agree(Case(mask=mask, order=order))


@pytest.mark.parametrize(
    "case",
    [Case(queries=9), Case(mask="hidden"), Case(guard=True)],
    ids=["as many queries as keys", "a number takes the place of scores", "rows without keys are zeros"],
)
def test_left_alone(case: Case) -> None:
    assert not agree(case)


def test_masks_that_hide_without_a_bias() -> None:
    assert agree(Case(mask="hidden", biases=False, guard=True))


def test_keys_that_others_read_too() -> None:
    net = Net(Case())
    graph = net.attention()
    (attention,) = [n for n in graph.nodes if n.op == "lowered.attention"]
    keys = attention.inputs[1]
    assert keys is not None
    assert attend_to_sources(Graph(**{**fields(graph), "outputs": (*graph.outputs, keys)})).nodes == graph.nodes


def fields(graph: Graph) -> dict[str, Any]:
    return {name: getattr(graph, name) for name in graph.__dataclass_fields__}
