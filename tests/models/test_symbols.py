"""Symbolic dimensions used as data, and indices at run time: right values, whatever the sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")

I64 = onnx.TensorProto.INT64


def same_as_onnxruntime(m: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    expected = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)
    result = tw.compile(m).run(inputs)
    for info_, array in zip(m.graph.output, expected, strict=True):
        np.testing.assert_allclose(result[info_.name], array, rtol=1e-5, atol=1e-6)
        assert np.shape(result[info_.name]) == array.shape


@pytest.mark.parametrize("n", [1, 3, 8])
def test_shapes_are_data(n: int) -> None:
    """The symbol stands in no shape that the kernel sees; a weight times it is not a matter of weights alone."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Size", ["x"], ["count"]),
        node("Cast", ["count"], ["f"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["w", "f"], ["y"]),
        node("Gather", ["s", "zero"], ["k"]),
        node("Sub", ["k", "one"], ["last"]),
        node("Gather", ["w", "last"], ["z"]),
    ]
    weights = {"w": np.arange(1, 9, dtype=np.float32), "zero": np.array([0]), "one": np.array([1])}
    m = model(nodes, [info("x", ["n", 3])], ["s", "count", "y", "z"], weights)
    same_as_onnxruntime(m, {"x": np.zeros((n, 3), np.float32)})


INDEXED = [
    node("Gather", ["x", "i"], ["a"], axis=0),
    node("GatherElements", ["x", "j"], ["b"], axis=0),
    node("GatherND", ["x", "k"], ["c"]),
    node("ScatterElements", ["x", "j", "u"], ["d"], axis=0),
    node("ScatterND", ["x", "k", "c"], ["e"]),
]
INDICES = [info("i", ["p"], I64), info("j", [2, 3], I64), info("k", ["p", 1], I64), info("u", [2, 3])]


def indexed(x: list[int | str]) -> onnx.ModelProto:
    return model(INDEXED, [info("x", x), *INDICES], ["a", "b", "c", "d", "e"])


def test_indices_outside_are_moved_inside() -> None:
    got = tw.compile(indexed([4, 3]))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    u = np.zeros((2, 3), np.float32)
    rows = np.array([-(1 << 63), -5, -1, 0, 4, (1 << 63) - 1])
    j = np.array([[9, -9, 0], [1, -1, 4]])
    result = got.run({"x": x, "i": rows, "j": j, "k": rows[:, None], "u": u})
    np.testing.assert_array_equal(result["a"], x[[0, 0, 3, 0, 3, 3]])
    np.testing.assert_array_equal(result["c"], x[[0, 0, 3, 0, 3, 3]])
    np.testing.assert_array_equal(result["b"], x[[[3, 0, 0], [1, 3, 3]], [[0, 1, 2]] * 2])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_indices_larger_than_the_data(n: int) -> None:
    """With a symbolic width nothing can be refused when compiling; nothing outside is touched at run time."""
    compiled = tw.compile(indexed([2, "n"]))
    x = np.ones((2, n), np.float32)
    j = np.array([[0, 1, 0], [1, 0, 1]])
    result = compiled.run({"x": x, "i": np.array([1]), "j": j, "k": np.array([[1]]), "u": np.full((2, 3), 5, "f4")})
    assert (result["b"] == 1).all()
    assert result["d"].shape == (2, n)
    assert (result["d"][:, : min(n, 3)] == 5).all()


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_empty_data(op: str) -> None:
    (n,) = [n for n in INDEXED if n.op_type == op]
    updates = [info("c", ["p", 3])] if op == "ScatterND" else []
    dims = {"p": 2} if "N" in op or op == "Gather" else None
    with pytest.raises(tw.Error, match="empty") as caught:
        tw.compile(model([n], [info("x", [0, 3]), *INDICES, *updates], [n.output[0]]), dims=dims, fallback="never")
    assert op in str(caught.value)


def test_dimensions_that_are_too_small() -> None:
    m = model([node("Conv", ["x", "w"], ["y"])], [info("x", [1, 1, "n"])], ["y"], {"w": np.ones((1, 1, 3), "f4")})
    compiled = tw.compile(m)
    assert compiled(np.ones((1, 1, 5), np.float32)).shape == (1, 1, 3)
    with pytest.raises(tw.Error, match="n = 1"):
        compiled(np.ones((1, 1, 1), np.float32))
