"""Between two quantised layers there is nothing of floats: all that kernels hand on are codes, and they are few.

Graphs are those of a processor with dot instructions; their numbers are computed by the operators' references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import i8, i16, i32, i64, u8
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.graph.stored_codes import store_codes

TARGET = Target.parse("znver4")


class Qdq:
    """A file with QuantizeLinear and DequantizeLinear around its layers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self.rng = np.random.default_rng(1)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attrs))
        return name

    def coded(self, x: str, scale: float, zero: int = 128) -> str:
        pair = self.constant(np.float32(scale)), self.constant(np.uint8(zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *pair), *pair)

    def weight(self, *shape: int, axis: int = 0) -> str:
        codes = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = (self.rng.random(shape[axis]) * 0.002 + 0.001).astype(np.float32)
        zeros = np.zeros(shape[axis], np.int8)
        return self.op("DequantizeLinear", *map(self.constant, (codes, scales, zeros)), axis=axis)

    def conv(self, x: str, filters: int, channels: int, **attrs: Any) -> str:
        return self.op("Conv", x, self.weight(filters, channels, 3, 3), pads=[1] * 4, **attrs)

    def model(self, shape: list[int], y: str) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        ends = [info("x", TensorProto.FLOAT, shape)], [info(y, TensorProto.FLOAT, None)]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", *ends, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def added(q: Qdq, h: str) -> str:
    return q.op("Add", h, q.coded(q.conv(h, 32, 32), 0.05, 120))


def joined(q: Qdq, h: str) -> str:
    return q.op("Concat", h, q.coded(q.conv(h, 32, 32), 0.05, 120), axis=1)


def resized(q: Qdq, h: str) -> str:
    how = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    return q.op("Resize", h, "", q.constant(np.float32([1, 1, 2, 2])), **how)


def interpolated(mode: str, factor: float, coordinates: str = "half_pixel") -> Callable[[Qdq, str], str]:
    how = {"coordinate_transformation_mode": coordinates, "mode": mode}
    return lambda q, h: q.op("Resize", h, "", q.constant(np.float32([1, 1, factor, factor])), **how)


def normalised(q: Qdq, h: str) -> str:
    return q.op("InstanceNormalization", h, *map(q.constant, np.float32([[1] * 32, [0.1] * 32])))


def transposed(q: Qdq, h: str) -> str:
    return q.op("ConvTranspose", h, q.weight(32, 32, 2, 2, axis=1), strides=[2, 2])


def in_two(q: Qdq, h: str) -> tuple[str, str]:
    first, second = f"v{len(q.nodes)}", f"v{len(q.nodes)}.2"
    q.nodes.append(helper.make_node("Split", [h], [first, second], num_outputs=2, axis=1))
    return first, second


def gated(q: Qdq, h: str) -> str:
    first, second = in_two(q, h)
    return q.conv(q.coded(q.op("Mul", first, q.op("Sigmoid", second)), 0.03, 100), 32, 16)


def transposed_in_groups(groups: int, kernel: int, **attrs: Any) -> Callable[[Qdq, str], str]:
    def layer(q: Qdq, h: str) -> str:
        weight = q.weight(32, 32 // groups, kernel, kernel, axis=1)
        bias = q.constant(np.linspace(-0.1, 0.1, 32, dtype=np.float32))
        return q.op("ConvTranspose", h, weight, bias, strides=[2, 2], group=groups, **attrs)

    return layer


def of_four_filters(q: Qdq, h: str) -> str:
    h = q.op("ConvTranspose", h, q.weight(32, 4, 4, 4, axis=1), strides=[2, 2], pads=[1] * 4)
    return q.conv(q.coded(h, 0.03, 100), 32, 4)


def norm_of_channels(q: Qdq, h: str) -> str:
    h = q.op("Transpose", h, perm=[0, 2, 3, 1])
    h = q.op("LayerNormalization", h, *map(q.constant, np.float32([[1] * 32, [0.1] * 32])))
    return q.op("Transpose", q.op("Gelu", h), perm=[0, 3, 1, 2])


def norm_of_groups(q: Qdq, h: str) -> str:
    return q.op("GroupNormalization", h, *map(q.constant, np.float32([[1] * 32, [0.1] * 32])), num_groups=4)


def widened(q: Qdq, h: str) -> str:
    half = q.coded(q.conv(h, 32, 32, strides=[2, 2]), 0.05, 120)
    return q.op("Add", q.op("Resize", half, "", q.constant(np.float32([1, 1, 2, 2])), mode="nearest"), h)


def repeated(q: Qdq, h: str) -> str:
    row = q.op("Slice", h, *(q.constant(np.int64([k])) for k in (0, 1, 3)))
    return q.op("Add", h, q.op("Expand", row, q.constant(np.int64([1, 32, 6, 6]))))


def in_another_shape(q: Qdq, h: str) -> str:
    h = q.op("Gemm", q.op("Flatten", h), q.weight(1152, 1152, axis=1))
    return q.op("Relu", q.op("Reshape", h, q.constant(np.int64([1, 32, 6, 6]))))


def parted(q: Qdq, h: str) -> str:
    first, second = in_two(q, h)
    return q.op("Concat", q.coded(q.op("Add", first, second), 0.04, 110), first, axis=1)


def shuffled(q: Qdq, h: str) -> str:
    h = q.op("Transpose", q.op("Reshape", h, q.constant(np.int64([0, 2, 16, 6, 6]))), perm=[0, 2, 1, 3, 4])
    return q.op("Reshape", h, q.constant(np.int64([0, 32, 6, 6])))


def pooled(q: Qdq, h: str) -> str:
    most = q.coded(q.op("MaxPool", h, kernel_shape=[3, 3], pads=[1] * 4), 0.02, 0)
    return q.op("Add", most, q.coded(q.op("MaxPool", most, kernel_shape=[3, 3], pads=[1] * 4), 0.02, 0))


def several(q: Qdq, kind: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
    names = [f"v{len(q.nodes)}.{k}" for k in range(count)]
    q.nodes.append(helper.make_node(kind, inputs, names, **attrs))
    return names


def ordered(channels: int) -> Callable[[Qdq, str], str]:
    def layer(q: Qdq, h: str) -> str:
        first = several(q, "TopK", 2, h, q.constant(np.int64([channels])), axis=1)[0]
        return q.op("Concat", *[first] * (32 // channels), axis=1) if channels < 32 else first

    return layer


def scattered(kind: str, *, scaled: bool = False) -> Callable[[Qdq, str], str]:
    def layer(q: Qdq, h: str) -> str:
        source = q.coded(q.conv(h, 32, 32), 0.05, 120) if scaled else h
        update = q.op("Slice", source, *(q.constant(np.int64([k])) for k in (4, 8, 1)))
        if kind == "ScatterElements":
            return q.op(kind, h, q.constant(q.rng.integers(0, 32, (1, 4, 6, 6))), update, axis=1)
        places = q.constant(np.int64([[0, 3], [0, 1], [0, 30], [0, -2]]))
        return q.op(kind, h, places, q.op("Reshape", update, q.constant(np.int64([4, 6, 6]))))

    return layer


def surrounded(mode: str) -> Callable[[Qdq, str], str]:
    def layer(q: Qdq, h: str) -> str:
        h = q.op("Pad", h, q.constant(np.int64([0, 0, 1, 1, 0, 0, 1, 1])), mode=mode)
        return q.op("Slice", h, *(q.constant(np.int64(k)) for k in ([0, 0], [6, 6], [2, 3])))

    return layer


def sampled(padding: str) -> Callable[[Qdq, str], str]:
    def layer(q: Qdq, h: str) -> str:
        grid = q.rng.uniform(-1.2, 1.2, (1, 6, 6, 2)).astype(np.float32)
        return q.op("GridSample", h, q.constant(grid), mode="nearest", padding_mode=padding)

    return layer


def total(axis: int, **attrs: int) -> Callable[[Qdq, str], str]:
    return lambda q, h: q.op("CumSum", h, q.constant(np.int64(axis)), **attrs)


MAPS: dict[str, tuple[Callable[[Qdq, str], str], int]] = {
    "add of two scales": (added, 1),
    "concat of two scales": (joined, 3),
    "resize": (resized, 2),
    "linear": (interpolated("linear", 2), 1),
    "linear, aligned": (interpolated("linear", 1.5, "align_corners"), 1),
    "cubic": (interpolated("cubic", 2), 1),
    "softmax of channels": (lambda q, h: q.op("Softmax", h, axis=1), 3),
    "instance norm": (normalised, 3),
    "average": (lambda q, h: q.op("AveragePool", h, kernel_shape=[3, 3], pads=[1] * 4), 1),
    "transposed": (transposed, 1),
    "transposed, depthwise": (transposed_in_groups(32, 2), 6),
    "transposed, groups": (transposed_in_groups(4, 4, pads=[1] * 4), 8),
    "transposed, depthwise with a window": (
        transposed_in_groups(32, 3, pads=[1] * 4, output_padding=[1, 1]),
        8,
    ),
    "transposed, four filters": (of_four_filters, 9),
    "norm of groups": (norm_of_groups, 5),
    "norm and function of channels": (norm_of_channels, 5),
    "rows of length one": (lambda q, h: q.op("LpNormalization", h, axis=1, p=2), 5),
    "rows of sum one": (lambda q, h: q.op("LpNormalization", h, axis=1, p=1), 5),
    "gate": (gated, 4),
    "resize and add": (widened, 4),
    "repeat": (repeated, 5),
    "matrix": (in_another_shape, 6),
    "eight groups": (lambda q, h: q.conv(h, 32, 4, group=8), 1),
    "groups": (lambda q, h: q.conv(h, 32, 8, group=4), 1),
    "depthwise": (lambda q, h: q.conv(h, 32, 1, group=32), 1),
    "function": (lambda q, h: q.op("Sigmoid", h), 1),
    "greatest": (lambda q, h: q.op("MaxPool", h, kernel_shape=[3, 3], pads=[1] * 4), 2),
    "greatest twice": (pooled, 6),
    "split": (parted, 5),
    "shuffle": (shuffled, 5),
    "pixels in channels": (lambda q, h: q.conv(q.coded(q.op("DepthToSpace", h, blocksize=2), 0.03, 0), 32, 8), 7),
    "resize by a half": (
        lambda q, h: q.op("Resize", h, "", q.constant(np.float32([1, 1, 1.5, 1.5])), mode="nearest"),
        3,
    ),
    "sorted": (ordered(32), 4),
    "first eight": (ordered(8), 5),
    "scatter of places": (scattered("ScatterND"), 7),
    "scatter of places, two scales": (scattered("ScatterND", scaled=True), 8),
    "scatter of elements": (scattered("ScatterElements"), 6),
    "scatter of elements, two scales": (scattered("ScatterElements", scaled=True), 7),
    "gathered elements": (
        lambda q, h: q.op("GatherElements", h, q.constant(q.rng.integers(0, 32, (1, 32, 6, 6))), axis=1),
        3,
    ),
    "zeros around": (surrounded("constant"), 4),
    "edges around": (surrounded("edge"), 4),
    "sample, zeros": (sampled("zeros"), 5),
    "sample, border": (sampled("border"), 5),
    "one operand": (lambda q, h: q.op("Einsum", h, equation="bchw->bcwh"), 3),
    "sums of channels": (total(1), 4),
    "sums from the right": (total(3, exclusive=1, reverse=1), 4),
}
"""Operators between two convolutions, and the most kernels that they may take beside these."""


WIDER = {"sorted": i64, "first": i64, "sums": i16}
"""Other integers that they hand on: places, and sums of codes."""


def between_convolutions(name: str) -> onnx.ModelProto:
    q = Qdq()
    h = q.coded(q.op("Relu", q.conv(q.coded("x", 0.03), 32, 32)), 0.02, 0)
    h = q.coded(MAPS[name][0](q, h), 0.05, 118)
    return q.model([1, 32, 6, 6], q.coded(q.conv(h, 16, 64 if name.startswith("concat") else 32), 0.1))


ROWS: dict[str, Callable[[Qdq, str], str]] = {
    "softmax": lambda q, h: q.op("Softmax", h, axis=-1),
    "layer norm": lambda q, h: q.op("LayerNormalization", h, *map(q.constant, np.float32([[1] * 64, [0.1] * 64]))),
    "log softmax": lambda q, h: q.op("LogSoftmax", h, axis=-1),
    "rms norm": lambda q, h: q.op("RMSNormalization", h, q.constant(np.float32([0.5] * 64)), axis=-1),
    "gelu": lambda q, h: q.op("Gelu", h),
    "mean": lambda q, h: q.op("Sub", h, q.op("ReduceMean", h, q.constant(np.int64([-1])), keepdims=1)),
}


def between_products(name: str) -> onnx.ModelProto:
    q = Qdq()
    h = q.coded(q.op("MatMul", q.coded("x", 0.03), q.weight(64, 64, axis=1)), 0.05, 130)
    h = q.coded(ROWS[name](q, h), 0.02, 90)
    return q.model([1, 20, 64], q.coded(q.op("MatMul", h, q.weight(64, 64, axis=1)), 0.1))


def attention(name: str, length: int = 24, heads: int = 2, depth: int = 16) -> onnx.ModelProto:
    """Attention between two products, with codes around each of its products and its softmax."""
    q, width = Qdq(), heads * depth
    of_keys, of_values = (int(n) for n in name.removeprefix("zeros ").split(", "))

    def headed(x: str, perm: list[int], scale: float, zero: int) -> str:
        h = q.coded(q.op("MatMul", x, q.weight(width, width, axis=1)), scale, zero)
        h = q.op("Reshape", h, q.constant(np.int64([0, 0, heads, depth])))
        return q.op("Transpose", h, perm=perm)

    x = q.coded("x", 0.03)
    scores = q.op("MatMul", headed(x, [0, 2, 1, 3], 0.02, 130), headed(x, [0, 2, 3, 1], 0.02, of_keys))
    scores = q.coded(q.op("Mul", q.coded(scores, 0.05, 125), q.constant(np.float32(depth**-0.5))), 0.02, 125)
    shares = q.coded(q.op("Softmax", scores, axis=-1), 1 / 255, 0)
    h = q.coded(q.op("MatMul", shares, headed(x, [0, 2, 1, 3], 0.02, of_values)), 0.02, 127)
    h = q.op("Reshape", q.op("Transpose", h, perm=[0, 2, 1, 3]), q.constant(np.int64([0, 0, width])))
    return q.model([1, length, width], q.coded(q.op("MatMul", h, q.weight(width, width, axis=1)), 0.02))


def kernels(model: onnx.ModelProto) -> tuple[list[Group], Any]:
    """The kernels of a call, without those of weights alone, and the graph."""
    imported = import_onnx(model)
    graph, constants = hoist_constants(imported.graph, ())
    after = passed(graph, TARGET)
    groups = store_codes(fuse(after), TARGET, frozenset(after.outputs))
    known = set(after.inputs)
    chosen = []
    for group in groups:
        if known.intersection(group.inputs):
            chosen.append(group)
            known.update(group.outputs)
    return chosen, (imported, {**imported.weights, **constants}, after)


SHAPES = {between_convolutions: (1, 32, 6, 6), between_products: (1, 20, 64), attention: (1, 24, 32)}
CASES = [(between_convolutions, name) for name in MAPS] + [(between_products, name) for name in ROWS]
CASES += [(attention, "zeros 120, 110"), (attention, "zeros 128, 128")]


@pytest.mark.daily(5)
@pytest.mark.parametrize("make,name", CASES, ids=[name for _, name in CASES])
def test_nothing_of_floats_is_handed_on(make: Any, name: str) -> None:
    model = make(name)
    chosen, (imported, weights, after) = kernels(model)
    layers = [k for k, g in enumerate(chosen) if any("conv" in n.op or "matmul" in n.op for n in g.nodes)]
    between = [v for g in chosen[: layers[-1]] for v in g.outputs if v.dtype is not i32]  # sums of codes are few
    most = max(as_int(v.type.size) or 0 for v in between)
    handed_on = [v for v in between if 8 * (as_int(v.type.size) or 0) > most]  # so are norms of pixels
    allowed = (u8, i8, *(t for word, t in WIDER.items() if name.startswith(word)))
    assert handed_on and all(v.dtype in allowed for v in handed_on), [str(v.type) for v in handed_on]
    if name in MAPS:
        assert layers[-1] - layers[0] - 1 <= MAPS[name][1], [g.label for g in chosen]
    if make is attention:
        assert sum(n.op == "lowered.matmul_dot" for n in after.nodes) == 6
        assert not any(n.op in ("matmul", "lowered.matmul_packed", "lowered.attention") for n in after.nodes)
    x = np.random.default_rng(3).standard_normal(SHAPES[make]).astype(np.float32)
    (got,) = run_graph(after, {"x": x}, weights).values()
    (want,) = run_graph(imported.graph, {"x": x}, imported.weights).values()
    off = np.abs(got - want) / 0.1
    assert off.max() < 1.01 and (off < 0.01).mean() > 0.97  # a level in the middle falls to either side
    (same,) = run_graph(stored(after), {"x": x}, weights).values()
    assert np.array_equal(got, same)


def stored(graph: Graph) -> Graph:
    """The graph whose nodes are those of its kernels, each with values of its own."""
    nodes: list[Node] = []
    names: dict[Value, Value] = {}
    for k, group in enumerate(store_codes(fuse(graph), TARGET, frozenset(graph.outputs))):
        inside = {v: Value(f"{v.name}.{k}", v.type) for n in group.nodes for v in n.outputs}
        for n in group.nodes:
            inputs = tuple(v if v is None else inside.get(v, names.get(v, v)) for v in n.inputs)
            nodes.append(replace(n, inputs=inputs, outputs=tuple(inside[v] for v in n.outputs)))
        names |= {v: inside[v] for v in group.outputs if v in inside}
    return replace(graph, nodes=tuple(nodes), outputs=tuple(names.get(v, v) for v in graph.outputs))


def test_without_dot_instructions_groups_stay() -> None:
    graph = passed(import_onnx(between_products("softmax")).graph, Target.parse("x86-64-v3"))
    groups = fuse(graph)
    assert store_codes(groups, Target.parse("x86-64-v3"), frozenset(graph.outputs)) == groups


def test_attention_whose_softmax_stays_in_floats_stays_attention() -> None:
    q = Qdq()
    x = q.coded("x", 0.03)
    scores = q.op("MatMul", x, q.op("Transpose", x, perm=[0, 1, 3, 2]))
    shares = q.op("Softmax", q.op("Mul", scores, q.constant(np.float32(0.25))), axis=-1)
    model = q.model([1, 2, 24, 16], q.op("MatMul", shares, x))
    after = passed(hoist_constants(import_onnx(model).graph, ())[0], TARGET)
    assert "lowered.attention" in [n.op for n in after.nodes]


COMPUTED = [(between_convolutions, name) for name in MAPS if name.startswith(("transposed", "norm", "rows", "gate"))]
COMPUTED += [(between_convolutions, "depthwise"), (between_products, "layer norm")]


@pytest.mark.daily(2)
@pytest.mark.costly(3)
@pytest.mark.parametrize("make,name", COMPUTED, ids=[name for _, name in COMPUTED])
def test_this_machine_computes_them(make: Any, name: str) -> None:
    model = make(name)
    imported = import_onnx(model)
    x = np.random.default_rng(3).standard_normal(SHAPES[make]).astype(np.float32)
    (want,) = run_graph(imported.graph, {"x": x}, imported.weights).values()
    off = np.abs(tw.compile(model)(x) - want) / 0.1
    assert off.max() < 1.01 and (off < 0.01).mean() > 0.97
