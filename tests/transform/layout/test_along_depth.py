"""Layouts on GPUs: what stays with its channels innermost, what changes, and that the graph computes the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.codegen.ptx.cases import emit, tensor
from tilewright import ops
from tilewright.ir.dtype import dtype
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.targets.target import Target
from tilewright.transform.layout.assign import assign_layouts

Array = np.ndarray[Any, Any]
H100 = Target.parse("nvidia-sm_90")


def conv(b: GraphBuilder, x: Value, w: Value, stride: int = 1, pad: int = 0, groups: int = 1) -> Value:
    more = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "groups": groups}
    return emit(b, "conv", x, w, **more)


def network(t: str = "f32") -> Graph:
    """A stem of three channels, a block with a shortcut, channels by themselves, a concatenation, parts, a mean."""
    b = GraphBuilder("network")

    def weight(name: str, *shape: int) -> Value:
        return b.param(name, tensor(*shape, t=t))

    h = emit(b, "relu", conv(b, b.input("x", tensor(2, 3, 9, 9, t=t)), weight("stem", 16, 3, 3, 3), 2, 1))
    h = emit(b, "max_pool", h, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    y = emit(b, "relu", emit(b, "add", conv(b, h, weight("w1", 8, 16, 1, 1)), weight("b1", 1, 8, 1, 1)))
    h = emit(b, "relu", emit(b, "add", conv(b, y, weight("w2", 16, 8, 3, 3), 1, 1), h))
    h = emit(b, "mul", h, emit(b, "sigmoid", conv(b, h, weight("gate", 1, 16, 1, 1))))
    h = conv(b, h, weight("alone", 16, 1, 3, 3), 1, 1, groups=16)
    parts = [emit(b, "slice", h, begin=(0, k, 0, 0), size=(2, n, 5, 5), step=(1, 1, 1, 1)) for k, n in ((3, 7), (0, 5))]
    h = emit(b, "concat", h, *parts, axis=1)
    return b.finish((emit(b, "reduce_mean", h, axes=(2, 3), keepdims=False), h))


def run(graph: Graph, arrays: dict[str, Array]) -> list[Array]:
    """A graph's outputs by the references of its operators."""
    values: dict[Value | None, Any] = {v: arrays[v.name] for v in (*graph.inputs, *graph.params)} | {None: None}
    for node in graph.nodes:
        results = ops.get(node.op).reference([values[v] for v in node.inputs], node.attrs)
        values.update(zip(node.outputs, results, strict=True))
    return [values[v] for v in graph.outputs]


@pytest.mark.parametrize(("t", "tolerance"), [("f32", 1e-5), ("f16", 4e-3)])
def test_the_same_is_computed(t: str, tolerance: float) -> None:
    graph = network(t)
    random = np.random.default_rng(0)
    shapes = {v.name: [int(str(d)) for d in v.shape] for v in (*graph.inputs, *graph.params)}
    arrays = {name: (random.standard_normal(s) / 2).astype(dtype(t).numpy) for name, s in shapes.items()}
    for got, wanted in zip(run(assign_layouts(graph, H100), arrays), run(graph, arrays), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_forms_change_at_the_edges_alone() -> None:
    """Data and the output that is a map, and what weights are packed; a mean of one pixel is the same memory."""
    graph = assign_layouts(network(), H100)
    weights = set(graph.params)
    counts = Counter(n.op for n in graph.nodes if n.inputs[0] not in weights)
    assert counts["lowered.conv_last"] == 5 and counts["conv"] == 0
    assert counts["lowered.block_channels"] == counts["lowered.unblock_channels"] == 1


def test_channels_fill_groups_of_16_bytes() -> None:
    for t, filled in (("f32", 4), ("f16", 8)):
        first = next(n for n in assign_layouts(network(t), H100).nodes if n.op == "lowered.conv_last")
        assert [str(v.shape[-1]) for v in first.inputs if v is not None] == [str(filled)] * 2


def test_what_stays() -> None:
    """Sizes of filters that are symbols, integers, lines and volumes."""
    b = GraphBuilder("others")
    x = emit(b, "cast", b.input("x", tensor(1, 8, 6, 6)), dtype=dtype("i8"))
    y = conv(b, x, b.param("w", tensor(8, 8, 3, 3, t="i8")))
    line = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 1}
    z = emit(b, "conv", b.input("z", tensor(1, 8, 6)), b.param("v", tensor(8, 8, 3)), **line)
    graph = assign_layouts(b.finish((y, z)), H100)
    assert [n.op for n in graph.nodes] == ["cast", "conv", "conv"]


def layer(beside: tuple[int, ...]) -> Graph:
    """relu(x w + c) v + s, of two sequences; s has this shape."""
    b = GraphBuilder("layer")
    h = emit(b, "matmul", b.input("x", tensor(2, 5, 12)), b.param("w", tensor(12, 20)))
    h = emit(b, "add", h, b.param("c", tensor(20)))
    y = emit(b, "matmul", emit(b, "relu", h), b.param("v", tensor(8, 20)), transpose_b=True)
    return b.finish((emit(b, "add", y, b.input("s", tensor(*beside))),))


@pytest.mark.parametrize(("beside", "joined"), [((2, 5, 8), 2), ((5, 8), 1), ((1, 1, 8), 2)])
def test_rows_of_products_by_weights_are_joined(beside: tuple[int, ...], joined: int) -> None:
    """Weights lie along their depth; rows stay separate where pointwise work that follows differs by sequence."""
    graph = layer(beside)
    assigned = assign_layouts(graph, H100)
    products = [n for n in assigned.nodes if n.op == "matmul"]
    assert sum(n.output.type.rank == 2 for n in products) == joined
    assert [n.attrs.transpose_b for n in products] == [True, True]  # type: ignore[attr-defined]
    assert [n.op for n in assigned.nodes if n.inputs[0] in graph.params] == ["transpose"]
    random = np.random.default_rng(0)
    shapes = {v.name: [int(str(d)) for d in v.shape] for v in (*graph.inputs, *graph.params)}
    arrays = {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    for got, wanted in zip(run(assigned, arrays), run(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_products_of_two_values_stay() -> None:
    b = GraphBuilder("scores")
    x, y = b.input("x", tensor(2, 5, 12)), b.input("y", tensor(2, 12, 6))
    assert [n.op for n in assign_layouts(b.finish((emit(b, "matmul", x, y),)), H100).nodes] == ["matmul"]
