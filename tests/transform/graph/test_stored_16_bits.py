"""Maps that a convolution reads in bf16 have 16 bits for all their readers, and no kernel only rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import bf16
from tilewright.ir.selection import Precision
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.interpret import run_graph
from tilewright.ops.matmul import Exactness
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.graph.stored_16_bits import store_in_16_bits
from tilewright.transform.graph.stored_codes import store_codes

ZEN4 = Target.parse("znver4")


def blocks(count: int = 3, channels: int = 64, inner: int = 32) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Residual blocks of two convolutions of one pixel, and their weights."""
    rng, nodes, weights, h = np.random.default_rng(0), [], {}, "x"
    for k in range(count):
        for name, shape in ((f"a{k}", (inner, channels, 1, 1)), (f"b{k}", (channels, inner, 1, 1))):
            weights[name] = (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
        nodes += [
            helper.make_node("Conv", [h, f"a{k}"], [f"c{k}"]),
            helper.make_node("Relu", [f"c{k}"], [f"d{k}"]),
            helper.make_node("Conv", [f"d{k}", f"b{k}"], [f"e{k}"]),
            helper.make_node("Add", [f"e{k}", h], [f"f{k}"]),
            helper.make_node("Relu", [f"f{k}"], [f"h{k}"]),
        ]
        h = f"h{k}"
    info = helper.make_tensor_value_info
    ends = [info("x", TensorProto.FLOAT, [1, channels, 14, 14])], [info(h, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), weights


def rounded(x: Any) -> Any:
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def expected(x: Any, weights: dict[str, Any], count: int = 3) -> Any:
    """The blocks in double precision with factors and residual maps rounded to bf16."""
    h = np.asarray(x, np.float64)
    for k in range(count):
        wa, wb = (rounded(weights[f"{n}{k}"])[:, :, 0, 0] for n in "ab")
        read = rounded(h)
        d = np.maximum(np.einsum("kc,nchw->nkhw", wa, read), 0)
        y = np.einsum("kc,nchw->nkhw", wb, rounded(d)) + read
        h = np.maximum(y, 0)
    return h


def test_residual_sums_read_what_convolutions_read() -> None:
    model, weights = blocks()
    imported = import_onnx(model)
    graph, constants = hoist_constants(imported.graph, ())
    after = passed(graph, ZEN4, Options(precision="bf16"))
    assert sum(n.op == "lowered.conv_dot" for n in after.nodes) == 6
    x = np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)
    (got,) = run_graph(after, {"x": x}, {**imported.weights, **constants}).values()
    want = expected(x, weights)
    off = np.abs(got - want) / np.abs(want).max()
    assert off.max() < 4e-3 and off.mean() < 2e-5  # a sum in the middle of two numbers falls to either side
    known, kernels = set(after.inputs), []
    for group in store_codes(fuse(after), ZEN4, frozenset(after.outputs)):
        if known.intersection(group.inputs):
            kernels.append(group)
            known.update(group.outputs)
    layers = [k for k, g in enumerate(kernels) if any(n.op == "lowered.conv_dot" for n in g.nodes)]
    assert layers == list(range(layers[0], layers[0] + 6))  # with no kernel between two of them
    assert all(kernels[k].outputs[0].dtype is bf16 for k in layers[:-1])


@pytest.mark.parametrize("exactness", ["", "f32"])
def test_an_exact_product_reads_sums_of_maps_that_no_layer_rounds(exactness: Exactness) -> None:
    """The last block's first convolution asks for f32: of the sum that it reads both maps stay in f32."""
    model, weights = blocks(2)
    imported = import_onnx(model)
    graph, constants = hoist_constants(imported.graph, ())
    *_, last, _ = (n for n in graph.nodes if n.op == "conv")
    exact = replace(last, attrs=replace(last.of(ConvAttrs), exactness=exactness))
    graph = replace(graph, nodes=tuple(exact if n is last else n for n in graph.nodes))
    after = passed(graph, ZEN4, Options(precision="bf16"))
    assert all(n.selected is None for n in after.nodes)
    x = np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)
    (got,) = run_graph(after, {"x": x}, {**imported.weights, **constants}).values()
    h = np.asarray(x, np.float64)
    for k in range(2):
        read = rounded(h) if k == 0 or not exactness else h  # the first map is the input's
        wa, wb = (weights[f"{n}{k}"][:, :, 0, 0] for n in "ab")
        d = np.maximum(np.einsum("kc,nchw->nkhw", rounded(wa) if k == 0 or not exactness else wa, read), 0)
        residual = h if exactness else read
        h = np.maximum(np.einsum("kc,nchw->nkhw", rounded(wb), rounded(d)) + residual, 0)
    assert np.abs(got - h).mean() / np.abs(h).max() < 3e-5


@pytest.mark.parametrize("target,precision", [("znver4", "fp32"), ("x86-64-v3", "bf16"), ("emeraldrapids", "fp32")])
def test_elsewhere_maps_stay(target: str, precision: Precision) -> None:
    graph = passed(import_onnx(blocks()[0]).graph, Target.parse(target), Options(precision=precision))
    assert not any(n.op == "lowered.conv_dot" or n.output.dtype is bf16 for n in graph.nodes)
    assert store_in_16_bits(graph, Options(precision=precision)) is graph


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_native(precision: str) -> None:
    model, _ = blocks()
    x = np.random.default_rng(2).standard_normal((1, 64, 14, 14)).astype(np.float32)
    exact = tw.compile(model)(x)
    got = tw.compile(model, precision=precision)(x)
    assert np.abs(np.asarray(got) - np.asarray(exact)).max() <= 0.02 * np.abs(exact).max() * (precision == "bf16")
