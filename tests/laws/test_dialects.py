"""The law of dialects: what models say and what lowering makes of it are distinguished, in the registry and in
graphs."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest

from benchmarks import models
from tilewright import ops
from tilewright.compiler import graph_passes
from tilewright.frontend.common.finish import check_dialect
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.attributes import ConstantArray, fields_of
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import Expr, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.support.errors import VerifyError
from tilewright.targets.target import Target


def dialects(graph: Graph) -> set[str]:
    return {ops.get(node.op).dialect for node in graph.nodes}


@pytest.mark.daily(4)
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
        room = op.reference.__module__.startswith(("tilewright.ops.lowered.", "tilewright.algorithms."))
        assert (op.dialect == "lowered") is room, name


def test_a_frontend_cannot_emit_lowered_operators() -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType(f32, tuple(map(const, (1, 16, 4, 4)))))
    check_dialect(b.finish((ops.emit1(b, "relu", x),)))
    with pytest.raises(VerifyError, match=r"only lowering makes.*lowered\.block_channels"):
        check_dialect(b.finish((ops.emit1(b, "lowered.block_channels", x, block=16),)))


@pytest.mark.parametrize("name", ["nat", "az6"])
def test_every_node_has_the_attributes_of_its_operator(name: str) -> None:
    graph = import_onnx(models.POLICY[name]()).graph
    for _, apply in graph_passes(Target.parse("znver4")):
        graph = apply(graph)
        for node in graph.nodes:
            assert type(node.attrs) is ops.get(node.op).attrs, node.op


def test_attributes_of_every_operator_can_be_written() -> None:
    """Each field is of a type that texts and keys hold."""
    for name in ops.names():
        for field, hint, _ in fields_of(ops.get(name).attrs):
            assert leaves(hint) <= {int, float, bool, str, NoneType, DType, ConstantArray, Expr, Graph}, (name, field)


def leaves(hint: Any) -> set[Any]:
    """The types that a field's values are made of."""
    if get_origin(hint) is Literal:
        return {type(value) for value in get_args(hint)}
    parts = [part for part in get_args(hint) if part is not Ellipsis]
    return set().union(*map(leaves, parts)) if parts else {hint}
