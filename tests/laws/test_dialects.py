"""The law of dialects: what models say and what lowering makes of it are told apart, in the registry and in graphs."""

from __future__ import annotations

import pytest

from benchmarks import models
from tilewright import ops
from tilewright.compiler import graph_passes
from tilewright.frontend.common.finish import check_dialect
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.support.errors import VerifyError
from tilewright.targets.target import Target


def dialects(graph: Graph) -> set[str]:
    return {ops.get(node.op).dialect for node in graph.nodes}


@pytest.mark.parametrize("name", sorted(models.POLICY))
def test_an_imported_graph_has_source_operators_only(name: str) -> None:
    assert dialects(import_onnx(models.POLICY[name]()).graph) == {"source"}


def test_lowering_makes_lowered_operators() -> None:
    graph = import_onnx(models.POLICY["az6"]()).graph
    for _, apply in graph_passes(Target.parse("znver4")):
        graph = apply(graph)
    assert dialects(graph) == {"source", "lowered"}
    assert "= lowered.conv_winograd(%" in str(graph)


def test_the_room_of_an_operator_is_its_dialect() -> None:
    for name in ops.names():
        op = ops.get(name)
        room = op.reference.__module__.startswith("tilewright.ops.lowered.")
        assert (op.dialect == "lowered") is room, name


def test_a_frontend_cannot_emit_lowered_operators() -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType(f32, tuple(map(const, (1, 16, 4, 4)))))
    check_dialect(b.finish((ops.emit1(b, "relu", x),)))
    with pytest.raises(VerifyError, match=r"only lowering makes.*lowered\.block_channels"):
        check_dialect(b.finish((ops.emit1(b, "lowered.block_channels", x, block=16),)))
