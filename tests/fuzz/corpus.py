"""Small valid ONNX models, which the fuzzer damages: between them most families of operators, all quick to compile."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.frontend.onnx.build import info, model, node

I64 = TensorProto.INT64


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _mlp() -> onnx.ModelProto:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=1.5, beta=0.5),
        node("Tanh", ["h"], ["t"]),
        node("MatMul", ["t", "v"], ["y"]),
    ]
    return model(nodes, [info("x", ["n", 3])], ["y"], {"w": _random(5, 3), "b": _random(5), "v": _random(5, 2)})


def _image() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "g", "o", "m", "s"], ["n"], epsilon=1e-3),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
        node("GlobalAveragePool", ["p"], ["a"]),
        node("Flatten", ["a"], ["y"], axis=1),
    ]
    weights = {"k": _random(3, 2, 3, 3), "g": _random(3), "o": _random(3), "m": _random(3), "s": np.abs(_random(3))}
    return model(nodes, [info("x", ["n", 2, 6, 5])], ["y"], weights)


def _reshaping() -> onnx.ModelProto:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Concat", ["b", "minus"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("Pad", ["r", "pads"], ["q"], mode="reflect"),
        node("Slice", ["q", "one", "end", "axes", "step"], ["u"]),
        node("Transpose", ["u"], ["y"], perm=[1, 0]),
    ]
    weights = {
        "zero": np.array([0]),
        "minus": np.array([-1]),
        "pads": np.array([0, 1, 0, 2]),
        "one": np.array([1]),
        "end": np.array([6]),
        "axes": np.array([1]),
        "step": np.array([2]),
    }
    return model(nodes, [info("x", ["n", 2, 3])], ["y"], weights)


def _series() -> onnx.ModelProto:
    rnn = helper.make_node("LSTM", ["s", "w", "r"], ["y", "h", "c"], hidden_size=3, direction="forward")
    nodes = [rnn, node("TopK", ["h", "k"], ["v", "i"], axis=-1, largest=1)]
    weights = {"w": _random(1, 12, 2), "r": _random(1, 12, 3), "k": np.array([2])}
    return model(nodes, [info("s", [3, "b", 2])], ["y", "v", "i"], weights)


def _indices() -> onnx.ModelProto:
    nodes = [
        node("Gather", ["x", "i"], ["a"], axis=0),
        node("GatherElements", ["a", "j"], ["b"], axis=1),
        node("GatherND", ["x", "k"], ["c"]),
        node("ScatterElements", ["x", "j", "b"], ["d"], axis=0, reduction="add"),
        node("OneHot", ["i", "depth", "values"], ["e"], axis=-1),
        node("ScatterND", ["x", "k", "c"], ["f"]),
    ]
    inputs = [info("x", [4, 3]), info("i", [2], I64), info("j", [2, 3], I64), info("k", [2, 1], I64)]
    weights = {"depth": np.int64(4), "values": np.array([0, 1], np.float32)}
    return model(nodes, inputs, ["a", "b", "d", "e", "f"], weights)


def _rows() -> onnx.ModelProto:
    nodes = [
        node("LayerNormalization", ["x", "g", "b"], ["l"], axis=-1),
        node("Softmax", ["l"], ["s"], axis=-1),
        node("ReduceMean", ["s", "axes"], ["m"], keepdims=1),
        node("Sub", ["s", "m"], ["d"]),
        node("CumSum", ["d", "axis"], ["c"], exclusive=1),
        node("ArgMax", ["c"], ["y"], axis=1, keepdims=0),
    ]
    weights = {"g": _random(4), "b": _random(4), "axes": np.array([-1]), "axis": np.int64(1)}
    return model(nodes, [info("x", ["n", 4])], ["y", "c"], weights)


def _pointwise() -> onnx.ModelProto:
    nodes = [
        node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        node("Mod", ["i", "seven"], ["m"]),
        node("Div", ["i", "m"], ["q"]),
        node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
        node("Clip", ["f", "low", "high"], ["c"]),
        node("Greater", ["c", "x"], ["g"]),
        node("Where", ["g", "c", "x"], ["w"]),
        node("Pow", ["w", "two"], ["p"]),
        node("Erf", ["p"], ["y"]),
    ]
    weights = {
        "seven": np.array([7], np.int32),
        "low": np.float32(-2),
        "high": np.float32(2),
        "two": np.array([2], np.float32),
    }
    return model(nodes, [info("x", ["n", 3])], ["y", "q"], weights)


def _joining() -> onnx.ModelProto:
    nodes = [
        node("Split", ["x", "parts"], ["a", "b"], axis=1),
        node("Concat", ["b", "a", "x"], ["c"], axis=1),
        node("Unsqueeze", ["c", "axes"], ["u"]),
        node("Expand", ["u", "shape"], ["e"]),
        node("Tile", ["e", "times"], ["t"]),
        node("Squeeze", ["u", "axes"], ["s"]),
        node("Einsum", ["s", "x"], ["y"], equation="ni,nj->ij"),
    ]
    weights = {
        "parts": np.array([1, 2]),
        "axes": np.array([1]),
        "shape": np.array([1, 2, 1]),
        "times": np.array([1, 1, 2]),
    }
    return model(nodes, [info("x", ["n", 3])], ["t", "y"], weights)


def _resizing() -> onnx.ModelProto:
    nodes = [
        node("Resize", ["x", "", "scales"], ["r"], mode="linear", coordinate_transformation_mode="half_pixel"),
        node("ConvTranspose", ["r", "k"], ["c"], strides=[2, 2], output_padding=[1, 0]),
        node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2], count_include_pad=1),
    ]
    weights = {"scales": np.array([1, 1, 2, 1.5], np.float32), "k": _random(2, 1, 2, 2)}
    return model(nodes, [info("x", [1, 2, 3, 4])], ["y"], weights)


def _control() -> onnx.ModelProto:
    then = helper.make_graph([node("Relu", ["x"], ["p"])], "then", [], [info("p", ["n", 2])])
    other = helper.make_graph([node("Neg", ["x"], ["q"])], "else", [], [info("q", ["n", 2])])
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"])],
        "body",
        [info("k", [], I64), info("go", [], TensorProto.BOOL), info("v", ["n", 2])],
        [info("on", [], TensorProto.BOOL), info("w", ["n", 2])],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["a"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["three", "yes", "a"], ["y"], body=body),
    ]
    return model(nodes, [info("x", ["n", 2])], ["y"], {"yes": np.array(True), "three": np.int64(3)})


def _functions() -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    inner = helper.make_function("f", "Inner", ["x"], ["y"], [node("Sigmoid", ["x"], ["y"])], imports)
    call = helper.make_node("Inner", ["x"], ["a"], domain="f")
    outer = helper.make_function("f", "Outer", ["x"], ["y"], [call, node("Mul", ["a", "x"], ["y"])], imports)
    nodes = [helper.make_node("Outer", ["x"], ["y"], domain="f")]
    return model(nodes, [info("x", ["n", 4])], ["y"], functions=[inner, outer], f=1)


def _quantized() -> onnx.ModelProto:
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("MatMulInteger", ["q", "w", "zero"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
    ]
    rng = np.random.default_rng(1)
    weights = {
        "scale": np.float32(0.1),
        "zero": np.uint8(128),
        "w": rng.integers(0, 255, (3, 2)).astype(np.uint8),
    }
    return model(nodes, [info("x", ["n", 3])], ["f", "d"], weights)


@functools.cache
def corpus() -> dict[str, bytes]:
    """Serialised models by name."""
    makers = (_mlp, _image, _reshaping, _series, _indices, _rows, _pointwise, _joining, _resizing, _control)
    makers += (_functions, _quantized)
    return {make.__name__[1:]: make().SerializeToString() for make in makers}
