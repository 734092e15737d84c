"""Models of f16 and bf16 from end to end: sums and norms are of f32, what kernels hand on has 16 bits, and processors
with arithmetic of 16 bits are given instructions of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import compile_program, passed
from tilewright.frontend.onnx import import_onnx
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.stored_codes import store_codes

KINDS = {"f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
LENGTH = 4096
"""Elements of a sum: in 16 bits one of ones ends at 2,048 (f16) or 256 (bf16)."""

Array = np.ndarray[Any, Any]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def in_rows(y: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: y(x)[:, None]


REDUCING: dict[str, tuple[str, list[str], dict[str, Any], Callable[[Array], Array]]] = {
    "sum": ("ReduceSum", ["x", "last"], {}, lambda x: x.sum(-1, keepdims=True)),
    "mean": ("ReduceMean", ["x", "last"], {}, lambda x: x.mean(-1, keepdims=True)),
    "length": ("ReduceL2", ["x", "last"], {}, lambda x: np.sqrt((x * x).sum(-1, keepdims=True))),
    "squares": ("ReduceSumSquare", ["x", "last"], {}, lambda x: (x * x).sum(-1, keepdims=True)),
    "exponentials": ("ReduceLogSumExp", ["x", "last"], {}, lambda x: np.log(np.exp(x).sum(-1, keepdims=True))),
    "softmax": ("Softmax", ["x"], {"axis": -1}, softmax),
    "layer norm": ("LayerNormalization", ["x", "ones"], {"axis": -1}, normalised),
    "rms norm": ("RMSNormalization", ["x", "ones"], {}, lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)),
    "product": ("MatMul", ["x", "column"], {}, lambda x: x.sum(-1, keepdims=True)),
    "average": ("GlobalAveragePool", ["map"], {}, lambda x: x.mean(-1).reshape(1, 2, 1, 1)),
    "instance norm": (
        "InstanceNormalization",
        ["map", "two", "none"],
        {},
        lambda x: normalised(x).reshape(1, 2, 64, 64),
    ),
    "convolution": ("Conv", ["map", "filter"], {}, lambda x: x.sum().reshape(1, 1, 1, 1)),
}


def reducing(kind: str) -> onnx.ModelProto:
    """All these operators on one x[2, LENGTH] of f32 that is rounded to 16 bits, with results of f32."""
    number, dtype = KINDS[kind]
    op = helper.make_node
    nodes = [op("Cast", ["x32"], ["x"], to=number), op("Reshape", ["x", "shape"], ["map"])]
    for name, (kind_of, inputs, attrs, _) in REDUCING.items():
        nodes += [
            op(kind_of, inputs, [f"{name} 16"], **attrs),
            op("Cast", [f"{name} 16"], [name], to=TensorProto.FLOAT),
        ]
    arrays = {"ones": (LENGTH,), "column": (LENGTH, 1), "filter": (1, 2, 64, 64), "two": (2,)}
    weights = [numpy_helper.from_array(np.ones(size, dtype), name) for name, size in arrays.items()]
    weights += [numpy_helper.from_array(np.zeros(2, dtype), "none"), numpy_helper.from_array(np.int64([-1]), "last")]
    weights.append(numpy_helper.from_array(np.int64([1, 2, 64, 64]), "shape"))
    info = helper.make_tensor_value_info
    results = [info(name, TensorProto.FLOAT, None) for name in REDUCING]
    graph = helper.make_graph(nodes, "g", [info("x32", TensorProto.FLOAT, [2, LENGTH])], results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_norms_are_of_f32(kind: str) -> None:
    dtype = KINDS[kind][1]
    x = (1 + np.arange(2 * LENGTH).reshape(2, LENGTH) % 3 / 4).astype(dtype)
    results = tw.compile(reducing(kind)).run({"x32": x.astype(np.float32)})
    for name, (*_, exact) in REDUCING.items():
        want = exact(x.astype(np.float64))
        steps = np.abs(results[name] - want) / np.spacing(np.abs(want).astype(dtype)).astype(np.float64)
        assert steps.max() <= 1.01, name  # rounded once, perhaps to the other side


def network(dtype: Any) -> onnx.ModelProto:
    rng, op = np.random.default_rng(0), helper.make_node

    def normal(*size: int) -> Array:
        return (rng.standard_normal(size) / np.sqrt(np.prod(size[1:]))).astype(dtype)

    weights = {"w1": normal(32, 16, 3, 3), "w2": normal(32, 32, 3, 3), "w3": normal(10, 32)}
    nodes = [
        op("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        op("Relu", ["a"], ["b"]),
        op("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
        op("Add", ["c", "b"], ["d"]),
        op("Sigmoid", ["d"], ["e"]),
        op("GlobalAveragePool", ["e"], ["f"]),
        op("Flatten", ["f"], ["g"]),
        op("Gemm", ["g", "w3"], ["y"], transB=1),
    ]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    ends = [info("x", number, [1, 16, 12, 12])], [info("y", number, [1, 10])]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def bytes_handed_on(model: onnx.ModelProto, target: str) -> int:
    """Bytes that the kernels of a call write, without the copy in blocks of f32 that is made of the model's input."""
    machine = Target.parse(target)
    graph = passed(hoist_constants(import_onnx(model).graph, ())[0], machine)
    known, total = set(graph.inputs), 0
    for group in store_codes(fuse(graph), machine, frozenset(graph.outputs)):
        if known.intersection(group.inputs):
            of_input = graph.inputs[0] in group.inputs or group.nodes[-1].op == "lowered.block_channels"
            known.update(group.outputs)
            total += 0 if of_input else sum(v.known_bytes for v in group.outputs)
    return total


@pytest.mark.parametrize("target", ["x86-64-v3", "znver4", "sapphirerapids"])
def test_kernels_hand_on_16_bits(target: str) -> None:
    narrow, whole = (bytes_handed_on(network(t), target) for t in (np.float16, np.float32))
    assert whole <= narrow * 2 <= 1.01 * whole  # the one row of the last product is widened before it


def test_onnx_runtime_agrees() -> None:
    model = network(np.float16)
    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float16)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (exact,) = onnxruntime.InferenceSession(network(np.float32).SerializeToString()).run(None, {"x": x.astype("f4")})
    got = tw.compile(model)(x)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype("f4"), want.astype("f4"), atol=4e-3)
    assert np.abs(got - exact).max() <= 1.5 * np.abs(want - exact).max() + 1e-3


def test_processors_with_arithmetic_of_16_bits_use_it() -> None:
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Mul", ["x", "y"], ["a"]), helper.make_node("Add", ["a", "x"], ["z"])]
    ends = [info(n, TensorProto.FLOAT16, [8, 256]) for n in "xy"], [info("z", TensorProto.FLOAT16, [8, 256])]
    graph = helper.make_graph(nodes, "g", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def instructions(target: str) -> set[str]:
        text = compile_program(model, target=Target.parse(target)).texts["asm"]
        return set(re.findall(r"\bv[a-z0-9]+\b", text() if callable(text) else text))

    assert any(re.fullmatch(r"vfmadd\d+ph", name) for name in instructions("sapphirerapids"))
    assert {"vcvtph2ps", "vmulps"} <= instructions("znver4")
