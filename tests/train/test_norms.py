"""Norms of a learning step: their rows are computed once for both ways, with the gradients that they had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1
from tilewright.train.norms import with_shared_rows
from tilewright.transform.graph.norms import recognise_norms
from tilewright.transform.graph.rewrite import eliminate_dead

SHAPE = (3, 4, 6)


def of(*shape: int) -> TensorType:
    return TensorType(f32, tuple(map(as_expr, shape)))


def step(op: str, operands: int) -> Graph:
    """The sum of (a norm of 2 x) ** 3 with its gradients by all operands, and a norm that nothing goes back through."""
    b = GraphBuilder("g")
    x, other = b.input("x", of(*SHAPE)), b.input("other", of(*SHAPE))
    vectors = [b.input(f"v{k}", of(SHAPE[-1])) for k in range(operands - 1)]
    y = emit1(b, op, emit1(b, "add", x, x), *vectors, axis=2, epsilon=1e-5)
    loss = emit1(b, "reduce_sum", emit1(b, "mul", emit1(b, "mul", y, y), y), axes=(0, 1, 2), keepdims=False)
    one = emit1(b, "constant", value=np.float32(1))
    flows = backward(b, b.nodes, {loss: one}, [x, *vectors])
    separate = emit1(b, op, other, axis=2, epsilon=1e-5)
    return b.finish((y, separate, *(flows[v] for v in (x, *vectors))))


@pytest.mark.parametrize(("op", "operands"), [("layer_norm", n) for n in (1, 2, 3)] + [("rms_norm", n) for n in (1, 2)])
def test_rows_are_computed_once(op: str, operands: int) -> None:
    graph = step(op, operands)
    shared = eliminate_dead(recognise_norms(with_shared_rows(graph)))
    assert [n.op for n in shared.nodes].count("sqrt") == 1
    assert [n.inputs[0].name for n in shared.nodes if n.op == op] == ["other"]  # type: ignore[union-attr]
    arrays: dict[str, Any] = {
        v.name: np.random.default_rng(k).standard_normal([int(str(d)) for d in v.shape]).astype(np.float32)
        for k, v in enumerate(graph.inputs)
    }
    want, got = run_graph(graph, arrays), run_graph(shared, arrays)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
