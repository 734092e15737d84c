"""Open dimensions that meet a weight's number are that number: other sizes are refused when called."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.support.errors import CallError, ModelError

RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


F, U8, I64 = np.float32, np.uint8, np.int64
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], tuple[int, ...], str]] = {
    "add": ([node("Add", ["x", "w"], ["y"])], {"w": weight(3, 4)}, (5, 3, 4), "f32[a, 3, 4]"),
    "prelu": ([node("PRelu", ["x", "w"], ["y"])], {"w": weight(4)}, (2, 3, 4), "f32[a, b, 4]"),
    "layer norm": (
        [node("LayerNormalization", ["x", "s", "t"], ["y"], axis=1)],
        {"s": weight(3, 4), "t": weight(3, 4)},
        (5, 3, 4),
        "f32[a, 3, 4]",
    ),
    "batch norm": (
        [node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y"])],
        {"s": weight(3), "t": weight(3), "m": weight(3), "v": np.abs(weight(3))},
        (2, 3, 5),
        "f32[a, 3, c]",
    ),
    "gemm of one": ([node("Gemm", ["x", "w"], ["y"])], {"w": weight(1, 4)}, (5, 1), "f32[a, 1]"),
    "matmul of a product of weights": (
        [node("MatMul", ["u", "v"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
        {"u": weight(4, 2), "v": weight(2, 3)},
        (5, 2, 4),
        "f32[a, b, 4]",
    ),
    "conv": ([node("Conv", ["x", "w"], ["y"], group=2)], {"w": weight(4, 3, 2)}, (2, 6, 7), "f32[a, 6, c]"),
    "einsum": (
        [node("Einsum", ["x", "w"], ["y"], equation="bij,bjk->bik")],
        {"w": weight(5, 3, 4)},
        (5, 2, 3),
        "f32[5, b, 3]",
    ),
    "gru": (
        [node("GRU", ["x", "w", "r"], ["y"], hidden_size=2)],
        {"w": weight(1, 6, 3), "r": weight(1, 6, 2)},
        (5, 2, 3),
        "f32[a, b, 3]",
    ),
    "split": ([node("Split", ["x", "s"], ["y", "z"], axis=1)], {"s": np.array([1, 2])}, (4, 3), "f32[a, 3]"),
    "halves": ([node("Split", ["x"], ["y", "z"], axis=1, num_outputs=2)], {}, (3, 4), "f32[a, b]"),
    "squeeze": ([node("Squeeze", ["x", "k"], ["y"])], {"k": np.array([1])}, (4, 1), "f32[a, 1]"),
    "grid": ([node("GridSample", ["x", "g"], ["y"])], {"g": weight(1, 2, 3, 2)}, (1, 2, 4, 5), "f32[1, b, c, d]"),
    "reverse": (
        [node("ReverseSequence", ["x", "n"], ["y"], batch_axis=1, time_axis=0)],
        {"n": np.array([1, 2, 1])},
        (4, 3),
        "f32[a, 3]",
    ),
    "scatter": (
        [node("ScatterND", ["x", "i", "u"], ["y"])],
        {"i": np.array([[0], [2]]), "u": weight(2, 3, 4)},
        (5, 3, 4),
        "f32[a, 3, 4]",
    ),
    "quantised": (
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
            node("QLinearMatMul", ["q", "s0", "z0", "w", "s0", "z0", "s0", "z0"], ["p"]),
            node("DequantizeLinear", ["p", "s0", "z0"], ["y"]),
        ],
        {
            "s": np.full(3, 0.1, F),
            "z": np.full(3, 9, U8),
            "s0": np.array(0.1, F),
            "z0": np.array(9, U8),
            "w": RNG.integers(0, 20, (3, 4)).astype(U8),
        },
        (5, 3),
        "f32[a, 3]",
    ),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CASES)
def test_an_open_size_is_the_number_of_a_weight(name: str) -> None:
    nodes, constants, shape, expected = CASES[name]
    outputs = [n for n in ("y", "z") if any(n in other.output for other in nodes)]
    file = model(nodes, [info("x", tuple("abcd"[: len(shape)]))], outputs, constants, opset=21)
    read = import_onnx(file)
    assert str(read.graph.inputs[0].type) == expected
    compiled = tw.compile(file, fallback="never")
    x = RNG.standard_normal(shape).astype(F)
    for got, wanted in zip(
        compiled.run({"x": x}).values(), onnx.reference.ReferenceEvaluator(file).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    for axis, d in enumerate(read.graph.inputs[0].type.shape):
        if str(d).isdigit():
            wrong = [*shape]
            wrong[axis] += 1
            with pytest.raises(CallError, match=f"wrong dimension {axis}: expected f32"):
                compiled(np.zeros(wrong, F))


def test_equal_parts_need_a_multiple() -> None:
    file = model([node("Split", ["x"], ["y", "z"], num_outputs=2)], [info("x", ("a",))], ["y", "z"])
    with pytest.raises(CallError, match="expected a in"):
        tw.compile(file, fallback="never")(np.zeros(5, F))


def test_sizes_of_another_input_are_numbers_too() -> None:
    """An input that states its size tells the one that it meets."""
    file = model([node("MatMul", ["x", "w"], ["y"])], [info("x", ("a", "b")), info("w", (3, "c"))], ["y"])
    assert [str(v.type) for v in import_onnx(file).graph.inputs] == ["f32[a, 3]", "f32[3, c]"]


def test_a_matrix_that_multiplies_itself_is_square() -> None:
    """The rows of x[n, 4] are as many as its columns in a product with itself: n is 4."""
    file = model([node("MatMul", ["x", "x"], ["y"])], [info("x", ("n", 4))], ["y"])
    compiled = tw.compile(file, fallback="never")
    x = weight(4, 4)
    np.testing.assert_allclose(compiled(x), x.astype(np.float64) @ x, rtol=1e-5, atol=1e-5)
    for rows in (3, 5):
        with pytest.raises(CallError, match=r"wrong dimension 0: expected f32\[4, 4\]"):
            compiled(weight(rows, 4))


def test_two_squares_of_one_size_are_refused() -> None:
    """n rows would be 4 and 5."""
    nodes = [node("MatMul", ["x", "x"], ["y"]), node("MatMul", ["w", "w"], ["z"])]
    file = model(nodes, [info("x", ("n", 4)), info("w", ("n", 5))], ["y", "z"])
    with pytest.raises(ModelError, match="inner dimensions"):
        tw.compile(file, fallback="never")


def test_two_numbers_for_one_size_are_refused() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["x", "v"], ["z"])]
    file = model(nodes, [info("x", ("a", "b"))], ["y", "z"], {"w": weight(3, 2), "v": weight(4, 2)})
    with pytest.raises(ModelError, match="inner dimensions"):
        tw.compile(file, fallback="never")


def test_a_branch_says_nothing_of_sizes() -> None:
    """The branch that fits no size but 3 may never run."""
    from onnx import TensorProto, helper

    branches = {
        f"{which}_branch": helper.make_graph(nodes, which, [], [helper.make_empty_tensor_value_info("r")])
        for which, nodes in (
            ("then", [node("MatMul", ["x", "w"], ["m"]), node("ReduceSum", ["m"], ["r"], keepdims=0)]),
            ("else", [node("ReduceSum", ["x"], ["r"], keepdims=0)]),
        )
    }
    file = model(
        [node("If", ["c"], ["y"], **branches)],
        [info("c", (), TensorProto.BOOL), info("x", ("a", "b"))],
        ["y"],
        {"w": weight(3, 2)},
    )
    with pytest.raises(ModelError, match="inner dimensions"):
        tw.compile(file, fallback="never")
