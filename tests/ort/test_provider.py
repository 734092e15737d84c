"""The execution provider in ONNX Runtime's own sessions: the same models by its CPU provider are the reference."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright.ort
from tilewright.ort.registration import NAME, _providers
from tilewright.support.errors import UnsupportedError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    onnxruntime.set_default_logger_severity(4)
    yield
    gc.collect()


def model(nodes: Sequence[onnx.NodeProto], inputs: Any, outputs: Any, weights: Any = (), opset: int = 17) -> bytes:
    infos = [[helper.make_tensor_value_info(*v) for v in side] for side in (inputs, outputs)]
    tensors = [numpy_helper.from_array(array, name) for name, array in dict(weights).items()]
    graph = helper.make_graph(list(nodes), "graph", infos[0], infos[1], tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def sessions(data: bytes, **options: str) -> tuple[Any, Any]:
    """The session with the provider, and ONNX Runtime's own."""
    chosen = onnxruntime.SessionOptions()
    chosen.add_provider_for_devices(tilewright.ort.register(), {"threads": "1", **options})
    ours = onnxruntime.InferenceSession(data, chosen, enable_fallback=0)  # else an error is hidden by another try
    assert NAME in ours.get_providers()
    return ours, onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def check(data: bytes, *feeds: dict[str, Any], left: Sequence[str] = (), tolerance: float = 1e-5) -> None:
    """Compare the outputs for these inputs; `left` are the operators of the nodes that are not ours."""
    ours, reference = sessions(data)
    assert sorted(text.partition(":")[0] for text in tilewright.ort.left()[-1]) == sorted(left)
    for feed in feeds:
        for got, want in zip(ours.run(None, feed), reference.run(None, feed), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, tolerance, tolerance)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def mlp() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    weights = {"w": array(8, 4), "b": array(4)}
    return model(nodes, [("x", FLOAT, ["n", 8])], [("y", FLOAT, ["n", 4])], weights)


def test_a_whole_model_with_a_dynamic_size() -> None:
    check(mlp(), *({"x": array(n, 8)} for n in (1, 3, 64, 3, 0)))


def test_a_node_that_is_lacking_is_left_between_two_programs() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("BitShift", ["k", "k"], ["s"], direction="LEFT"),
        helper.make_node("Inverse", ["a"], ["d"], domain="com.microsoft"),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "a"], ["y"]),
    ]
    data = model(nodes, [("x", FLOAT, ["n", 4, 4]), ("k", TensorProto.UINT8, [2])],
                 [("y", FLOAT, ["n", 4, 4]), ("s", TensorProto.UINT8, [2])], {"w": array(4, 4)})  # fmt: skip
    feeds = ({"x": array(n, 4, 4), "k": np.array([1, 2], np.uint8)} for n in (2, 5))
    check(data, *feeds, left=["Inverse"], tolerance=1e-3)


def test_an_unread_node_does_not_exclude_the_others() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["unread"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    data = model(nodes, [("x", FLOAT, ["n", 8])], [("y", FLOAT, ["n", 4])], {"w": array(8, 4)})
    check(data, *({"x": array(n, 8)} for n in (1, 3)))


def test_a_loop_is_claimed_with_its_body_and_what_that_reads() -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["h", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["t"]),
         helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("h", FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("t", FLOAT, ["n", 4])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["many", "", "x"], ["y"], body=body)]
    data = model(nodes, [("many", INT64, []), ("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], {"w": array(4, 4)})
    check(data, *({"many": np.array(k), "x": array(2, 4)} for k in (0, 1, 5)))


def test_sizes_that_data_decides() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Relu", ["x"], ["r"])]
    data = model(nodes, [("x", FLOAT, ["n"])], [("i", INT64, [1, "k"]), ("r", FLOAT, ["n"])])
    check(data, {"x": np.array([0, 1, 0, 2], np.float32)}, {"x": np.zeros(7, np.float32)}, {"x": array(50)})


def test_what_only_a_call_tells_is_left() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    data = model(nodes, [("x", FLOAT, ["n"]), ("shape", INT64, ["r"])], [("y", FLOAT, None)])
    feeds = ({"x": array(12), "shape": np.array(s)} for s in ([3, 4], [2, 3, 2]))
    check(data, *feeds, left=["Reshape", "Relu"])


def test_texts_are_left() -> None:
    nodes = [
        helper.make_node("Identity", ["t"], ["u"]),
        helper.make_node("Sigmoid", ["x"], ["y"]),
    ]
    data = model(nodes, [("t", TensorProto.STRING, [2]), ("x", FLOAT, [3])],
                 [("u", TensorProto.STRING, [2]), ("y", FLOAT, [3])])  # fmt: skip
    ours, reference = sessions(data)
    feed = {"t": np.array(["ab", "c"], object), "x": array(3)}
    for got, want in zip(ours.run(None, feed), reference.run(None, feed), strict=True):
        assert (got == want).all() if got.dtype == object else np.allclose(got, want)


def test_all_kinds_of_attributes_and_element_types() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2], auto_pad="NOTSET"),
        helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.25),
        helper.make_node("Cast", ["b"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["k"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.array([7], np.int64))),
        helper.make_node("Equal", ["k", "c"], ["e"]),
    ]
    outputs = [("b", FLOAT, None), ("h", TensorProto.FLOAT16, None), ("d", TensorProto.DOUBLE, None),
               ("e", TensorProto.BOOL, None)]  # fmt: skip
    data = model(nodes, [("x", FLOAT, [1, 3, "h", 9]), ("k", INT64, [4])], outputs,
                 {"w": array(5, 3, 3, 3), "s": np.array([4])})  # fmt: skip
    check(data, *({"x": array(1, 3, h, 9), "k": np.array([1, 7, 3, 7])} for h in (9, 12)), tolerance=1e-3)


def test_an_initializer_that_callers_may_replace() -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    data = model(nodes, [("x", FLOAT, [4]), ("w", FLOAT, [4])], [("y", FLOAT, [4])], {"w": array(4)})
    check(data, {"x": array(4)}, {"x": array(4), "w": np.full(4, 3, np.float32)})


def test_bound_memory() -> None:
    ours, reference = sessions(mlp())
    x, y = array(5, 8), np.empty((5, 4), np.float32)
    binding = ours.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    ours.run_with_iobinding(binding)
    np.testing.assert_allclose(y, reference.run(None, {"x": x})[0], 1e-5, 1e-6)
    unaligned = np.empty(8 * 5 * 4 + 1, np.uint8)[1:].view(np.uint8)  # an odd address
    binding.bind_output("y", "cpu", 0, np.float32, (5, 4), unaligned.ctypes.data)
    ours.run_with_iobinding(binding)
    np.testing.assert_array_equal(unaligned[: y.nbytes].tobytes(), y.tobytes())


def test_an_output_that_is_bound_to_an_input_is_no_harm() -> None:
    data = model([helper.make_node("Softmax", ["x"], ["y"])], [("x", FLOAT, [64, 64])], [("y", FLOAT, [64, 64])])
    ours, reference = sessions(data)
    x = array(64, 64)
    want, binding = reference.run(None, {"x": x})[0], ours.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", value)
    ours.run_with_iobinding(binding)
    np.testing.assert_allclose(value.numpy(), want, 1e-5, 1e-6)


def test_two_sessions_in_two_threads() -> None:
    pairs = [sessions(mlp()) for _ in range(2)]
    wrong: list[int] = []

    def calls(k: int) -> None:
        ours, reference = pairs[k]
        for n in range(1, 60):
            x = array(n % 7 + 1, 8) + k
            if not np.allclose(ours.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], 1e-5, 1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=calls, args=(k % 2,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_errors_are_statuses_with_our_words() -> None:
    nodes = [helper.make_node("MatMul", ["x", "y"], ["z"])]
    data = model(nodes, [("x", FLOAT, ["n", "k"]), ("y", FLOAT, ["k", "m"])], [("z", FLOAT, ["n", "m"])])
    ours, _ = sessions(data)
    with pytest.raises(Exception, match=r"tilewright: .*'y'"):
        ours.run(None, {"x": array(2, 3), "y": array(4, 5)})
    assert ours.run(None, {"x": array(2, 3), "y": array(3, 5)})[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "0"}, "not a number of threads"),
        ({"threads": "many"}, "not a number of threads"),
        ({"precision": "fp7"}, "no such setting of precision"),
        ({"speed": "high"}, "the provider has no such option"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        sessions(mlp(), **options)


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.19.2")
    with pytest.raises(UnsupportedError, match=r"expected 1\.\d+.*got 1\.19\.2"):
        tilewright.ort.register()


def test_nothing_stays_of_a_session() -> None:
    tilewright.ort.register()
    (provider,) = _providers
    gc.collect()
    before = len(provider.sessions), len(provider.nodes)
    pair = sessions(mlp())
    assert (len(provider.sessions), len(provider.nodes)) == (before[0] + 1, before[1] + 1)
    del pair
    gc.collect()
    assert (len(provider.sessions), len(provider.nodes)) == before
