"""`tw.Session` beside ONNX Runtime's own session: what they say of models, what they give, what they refuse."""

from __future__ import annotations

import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as their_errors

import tilewright as tw
import tilewright.onnxruntime as ours
from tests.frontend.onnx.build import info, model, node
from tilewright.onnxruntime.capi import onnxruntime_pybind11_state as our_errors

F32 = np.float32


def linear(batch: Any = "n") -> onnx.ModelProto:
    """y = x w + b, z = -y."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"]), node("Neg", ["y"], ["z"])]
    weights = {"w": np.arange(6, dtype=F32).reshape(2, 3), "b": np.ones(3, F32)}
    return model(nodes, [info("x", [batch, 2])], [info("y", [batch, 3]), info("z", [batch, 3])], weights)


def both(proto: onnx.ModelProto, **options: Any) -> tuple[Any, Any]:
    data = proto.SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ours.InferenceSession(data, **options), theirs.InferenceSession(data, **options)


def described(args: Any) -> list[tuple[str, str, list[Any]]]:
    return [(a.name, a.type, a.shape) for a in args]


SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, "k"]))
OPTIONAL = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))


def several() -> dict[str, tuple[onnx.ModelProto, dict[str, Any]]]:
    """Models of many types, each with a feed."""
    ones = np.ones((3, 2), F32)
    kinds = {
        kind: (
            model([node("Identity", ["x"], ["y"])], [info("x", [None, 2], kind)], [info("y", [None, 2], kind)]),
            ones,
        )
        for kind in (
            *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT8),
            *(TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32, TensorProto.UINT32),
            *(TensorProto.INT64, TensorProto.UINT64),
        )
    }
    named: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
        TensorProto.DataType.Name(k): (m, {"x": x.astype(helper.tensor_dtype_to_np_dtype(k))})
        for k, (m, x) in kinds.items()
    }
    text = TensorProto.STRING
    strings = model([node("Identity", ["x"], ["y"])], [info("x", [2], text)], [info("y", [2], text)])
    at = model(
        [node("SequenceAt", ["s", "k"], ["y"])],
        [helper.make_value_info("s", SEQUENCE), info("k", [], TensorProto.INT64)],
        [info("y", [2, "k"])],
    )
    construct = model(
        [node("SequenceConstruct", ["a", "b"], ["s"])],
        [info("a", [2, 1]), info("b", [2, 1])],
        [helper.make_value_info("s", SEQUENCE)],
    )
    has = model(
        [node("OptionalHasElement", ["o"], ["y"])],
        [helper.make_value_info("o", OPTIONAL)],
        [info("y", [], TensorProto.BOOL)],
    )
    inferred = model([node("Relu", ["x"], ["y"])], [info("x", ["n", 4])], [info("y", None)])
    scalar = model([node("ReduceSum", ["x"], ["y"], keepdims=0)], [info("x", ["n", 4])], [info("y", [])])
    two = [np.ones((2, 1), F32), np.zeros((2, 1), F32)]
    return named | {
        "linear": (linear(), {"x": ones}),
        "static": (linear(3), {"x": ones}),
        "strings": (strings, {"x": np.array(["Olá", "你好"])}),
        # ONNX Runtime 1.32 reads bytes up to a zero, which "S3" has no room for.
        "bytes": (strings, {"x": np.array([b"one", b"two"], "S8")}),
        "void": (strings, {"x": np.array([b"one", b"two"], np.void)}),
        "list of strings": (strings, {"x": ["a", "b"]}),
        "sequence in": (at, {"s": two, "k": np.array(1)}),
        "sequence out": (construct, {"a": two[0], "b": two[1]}),
        "optional": (has, {"o": np.ones(2, F32)}),
        "optional, empty": (has, {"o": None}),
        "inferred": (inferred, {"x": np.ones((2, 4), F32)}),
        "scalar": (scalar, {"x": np.ones((2, 4), F32)}),
        "list": (linear(), {"x": [[1, 2], [3, 4]]}),
        "strides": (linear(), {"x": np.ones((2, 5), F32).T[:, ::-1]}),
        "empty": (linear(), {"x": np.ones((0, 2), F32)}),
    }


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", several())
def test_the_same_names_types_shapes_and_results(name: str) -> None:
    proto, feed = several()[name]
    dims = {"dims": {"n": tw.dim(0, 100)}} if name == "empty" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine = ours.InferenceSession(proto.SerializeToString(), **dims)
        other = theirs.InferenceSession(proto.SerializeToString())
        assert described(mine.get_inputs()) == described(other.get_inputs())
        assert described(mine.get_outputs()) == described(other.get_outputs())
        assert list(map(str, mine.get_inputs())) == list(map(str, other.get_inputs()))
        got, want = mine.run(None, feed), other.run(None, feed)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


def test_outputs_by_name() -> None:
    mine, other = both(linear())
    x = {"x": np.ones((3, 2), F32)}
    for names in (None, [], ["z"], ["z", "y"], ("y",), ["y", "y"]):
        for a, b in zip(mine.run(names, x), other.run(names, x), strict=True):
            np.testing.assert_array_equal(a, b)


WRONG: dict[str, tuple[Any, Any]] = {
    "type": (None, {"x": np.ones((3, 2))}),
    "rank": (None, {"x": np.ones(2, F32)}),
    "size": (None, {"x": np.ones((3, 4), F32)}),
    "nothing": (None, {}),
    "another input": (None, {"x": np.ones((3, 2), F32), "w": np.ones((2, 3), F32)}),
    "another output": (["q"], {"x": np.ones((3, 2), F32)}),
    "a text for names": ("y", {"x": np.ones((3, 2), F32)}),
    "a text": (None, {"x": "abc"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_same_kinds_of_errors(name: str) -> None:
    mine, other = both(linear())
    names, feed = WRONG[name]
    with pytest.raises(Exception) as want:
        other.run(names, feed)
    with pytest.raises(Exception) as got:
        mine.run(names, feed)
    assert type(got.value).__name__ == type(want.value).__name__
    text = str(want.value).split("INVALID_ARGUMENT : ")[-1]
    if name not in ("a text for names",):
        assert text.splitlines()[0].strip() in str(got.value)


def test_errors_are_of_both_worlds(tmp_path: Path) -> None:
    assert issubclass(our_errors.InvalidArgument, tw.Error)
    for name in (
        "Fail",
        "InvalidArgument",
        "NoSuchFile",
        "NoModel",
        "InvalidProtobuf",
        "InvalidGraph",
        "NotImplemented",
    ):
        assert issubclass(getattr(our_errors, name), Exception) and hasattr(their_errors, name)
    for bad in (str(tmp_path / "none.onnx"), b"garbage"):
        with pytest.raises(Exception) as want:
            theirs.InferenceSession(bad)
        with pytest.raises(tw.Error) as got:
            ours.InferenceSession(bad)
        assert type(got.value).__name__ == type(want.value).__name__
    with pytest.raises(TypeError, match="Unable to load from type"):
        ours.InferenceSession(5)
    with pytest.raises(our_errors.NotImplemented):
        ours.InferenceSession(model([node("Nonsense", ["x"], ["y"])], [info("x", [2])], ["y"]))


def test_from_every_source(tmp_path: Path) -> None:
    proto, x = linear(), np.ones((3, 2), F32)
    want = theirs.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    onnx.save(proto, tmp_path / "m.onnx")
    compiled = tw.compile(proto)
    compiled.save(tmp_path / "m.tw")
    for source in (
        str(tmp_path / "m.onnx"),
        tmp_path / "m.onnx",
        proto.SerializeToString(),
        proto,
        tmp_path / "m.tw",
        compiled,
    ):
        session = tw.Session(source)
        assert [i.type for i in session.get_inputs()] == ["tensor(float)"]
        for a, b in zip(session.run(None, {"x": x}), want, strict=True):
            np.testing.assert_array_equal(a, b)
    assert isinstance(session.model, tw.Model)


def test_metadata() -> None:
    proto = linear()
    proto.producer_name, proto.domain, proto.model_version, proto.doc_string = "me", "here", 7, "a line"
    proto.graph.doc_string = "another"
    helper.set_model_props(proto, {"k": "v"})
    mine, other = both(proto)
    for name in "producer_name graph_name domain version description graph_description custom_metadata_map".split():
        assert getattr(mine.get_modelmeta(), name) == getattr(other.get_modelmeta(), name)


def test_options_have_the_same_names_and_defaults() -> None:
    for mine, other in ((ours.SessionOptions(), theirs.SessionOptions()), (ours.RunOptions(), theirs.RunOptions())):
        for name in dir(mine):
            if not name.startswith("_") and not callable(getattr(mine, name)) and hasattr(other, name):
                assert getattr(mine, name) == getattr(other, name) or int(getattr(mine, name)) == int(
                    getattr(other, name)
                )
    options = ours.SessionOptions()
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        options.intra_op_num_threads = "1"  # type: ignore[assignment]
    options.intra_op_num_threads = 2
    assert ours.InferenceSession(linear(), options).model.threads == 2
    with pytest.raises(RuntimeError, match="does not have configuration with key: k"):
        options.get_session_config_entry("k")
    options.add_session_config_entry("k", "v")
    assert options.get_session_config_entry("k") == "v"


def test_sizes_and_initializers_of_options() -> None:
    options, other = ours.SessionOptions(), theirs.SessionOptions()
    w = np.full((2, 3), 2, F32)
    value = theirs.OrtValue.ortvalue_from_numpy(w)
    other.add_initializer("w", value)
    options.add_initializer("w", ours.OrtValue.ortvalue_from_numpy(w))
    for o in (options, other):
        o.add_free_dimension_override_by_name("n", 3)
    data, x = linear().SerializeToString(), {"x": np.ones((3, 2), F32)}
    mine, their = ours.InferenceSession(data, options), theirs.InferenceSession(data, other)
    assert (
        described(mine.get_outputs())
        == described(their.get_outputs())
        == [("y", "tensor(float)", [3, 3]), ("z", "tensor(float)", [3, 3])]
    )
    np.testing.assert_array_equal(mine.run(["y"], x)[0], their.run(["y"], x)[0])
    with pytest.raises(our_errors.InvalidArgument, match="index: 0 Got: 4 Expected: 3"):
        mine.run(None, {"x": np.ones((4, 2), F32)})


def test_arrays_of_the_other_order_of_bytes() -> None:
    """ONNX Runtime reads their bytes as they are: other numbers."""
    session = ours.InferenceSession(linear())
    with pytest.raises(our_errors.InvalidArgument, match=r"order of bytes for input: x.*astype\('<f4'\)"):
        session.run(None, {"x": np.ones((4, 2), ">f4")})


def test_initializers_that_a_feed_overrides() -> None:
    proto = linear()
    proto.graph.input.append(info("w", [2, 3]))
    mine, other = both(proto)
    assert described(mine.get_overridable_initializers()) == described(other.get_overridable_initializers())
    assert described(mine.get_inputs()) == described(other.get_inputs())
    for feed in ({}, {"w": np.full((2, 3), 3, F32)}, {}, {"w": np.zeros((2, 3), F32)}):
        x = {"x": np.ones((3, 2), F32)} | feed
        np.testing.assert_array_equal(mine.run(["y"], x)[0], other.run(["y"], x)[0])


def test_bindings() -> None:
    x, y = np.ones((3, 2), F32), np.empty((3, 3), F32)
    results = []
    for world, session in zip((ours, theirs), both(linear()), strict=True):
        binding = session.io_binding()
        with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: q in the def list"):
            binding.bind_cpu_input("q", x)
        with pytest.raises(RuntimeError, match="At least one output should be requested"):
            session.run_with_iobinding(binding)
        binding.bind_input("x", "cpu", 0, np.float32, [3, 2], x.ctypes.data)
        binding.bind_output("z")
        binding.bind_output("y", "cpu", 0, np.float32, [3, 3], y.ctypes.data)
        y[:] = 0
        session.run_with_iobinding(binding)
        z, _ = binding.copy_outputs_to_cpu()
        values = binding.get_outputs()
        assert [v.shape() for v in values] == [[3, 3], [3, 3]] and values[0].data_type() == "tensor(float)"
        results += [(z.copy(), y.copy())]
        out = world.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32)
        binding.clear_binding_outputs()
        binding.bind_ortvalue_input("x", world.OrtValue.ortvalue_from_numpy(2 * x))
        binding.bind_ortvalue_output("y", out)
        session.run_with_iobinding(binding)
        results[-1] += (out.numpy().copy(),)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(our_errors.InvalidArgument, match="programs run on the processor"):
        ours.InferenceSession(linear()).io_binding().bind_output("y", "cuda")


def test_values() -> None:
    x = np.arange(6, dtype=F32).reshape(3, 2)
    for world in (ours, theirs):
        value = world.OrtValue.ortvalue_from_numpy(x)
        assert (value.shape(), value.data_type(), value.element_type()) == ([3, 2], "tensor(float)", 1)
        assert (value.is_tensor(), value.has_value(), value.device_name()) == (True, True, "cpu")
        assert value.data_ptr() == x.ctypes.data
        value.update_inplace(x + 1)
        x -= 1
    bits = ours.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(4, np.uint16), TensorProto.BFLOAT16)
    assert bits.data_type() == "tensor(bfloat16)" and bits.element_type() == TensorProto.BFLOAT16
    assert np.array_equal(ours.OrtValue.from_dlpack(ours.OrtValue(x).to_dlpack()).numpy(), x)
    session = tw.Session(linear())
    assert [v.shape() for v in session.run_with_ort_values(["y"], {"x": ours.OrtValue(x)})] == [[3, 3]]


def test_asynchronous_runs() -> None:
    session, x = tw.Session(linear()), np.ones((3, 2), F32)
    done, seen = threading.Event(), []

    def callback(results: list[Any], data: Any, error: str) -> None:
        seen.append((results, data, error))
        done.set()

    session.run_async(["y"], {"x": x}, callback, "mine")
    assert done.wait(10)
    np.testing.assert_array_equal(seen[0][0][0], session.run(["y"], {"x": x})[0])
    assert seen[0][1:] == ("mine", "")
    done.clear()
    session.run_async(["y"], {"x": x.astype(np.float64)}, callback, "mine")
    assert done.wait(10)
    assert seen[1][0] == [] and "Unexpected input data type" in seen[1][2]


def test_profile_and_terminate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ours.SessionOptions()
    options.enable_profiling = True
    session = ours.InferenceSession(linear(), options)
    session.run(None, {"x": np.ones((3, 2), F32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [e["name"] for e in events] == ["session_initialization", "model_run"]
    run = ours.RunOptions()
    run.terminate = True
    with pytest.raises(our_errors.Fail, match="terminate flag"):
        session.run(None, {"x": np.ones((3, 2), F32)}, run)


def test_the_file_of_the_model_is_written(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "o.bin")
    ours.InferenceSession(linear(), options)
    assert os.path.getsize(tmp_path / "o.bin")
    x = {"x": np.ones((3, 2), F32)}
    want = ours.InferenceSession(linear()).run(None, x)
    for world in (ours, theirs):
        np.testing.assert_array_equal(world.InferenceSession(str(tmp_path / "o.onnx")).run(None, x)[0], want[0])


def test_external_data_with_options(tmp_path: Path) -> None:
    proto = linear()
    proto.graph.input.append(info("b", [3]))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    x = {"x": np.ones((3, 2), F32)}
    for size in (None, 3):
        mine, other = ours.SessionOptions(), theirs.SessionOptions()
        if size:
            mine.add_free_dimension_override_by_name("n", size)
            other.add_free_dimension_override_by_name("n", size)
        mine.optimized_model_filepath = str(tmp_path / f"written{size}.onnx")
        session = ours.InferenceSession(str(tmp_path / "m.onnx"), mine)
        their = theirs.InferenceSession(str(tmp_path / "m.onnx"), other)
        for feed in (x, x | {"b": np.full(3, 5, F32)}, x):
            np.testing.assert_array_equal(session.run(["y"], feed)[0], their.run(["y"], feed)[0])
        written = theirs.InferenceSession(mine.optimized_model_filepath)
        np.testing.assert_array_equal(written.run(["y"], x)[0], their.run(["y"], x)[0])


def test_providers() -> None:
    session = ours.InferenceSession(linear(), providers=["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"] == ours.get_available_providers()
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
        ours.InferenceSession(linear(), providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="Unknown Provider Type: Nonsense"):
        session.set_providers(["Nonsense"])
    with pytest.raises(ValueError, match="should be a sequence"):
        ours.InferenceSession(linear(), providers=3)


def test_what_cannot_be_had_says_so() -> None:
    with pytest.raises(our_errors.Fail, match="cannot be used"):
        ours.SessionOptions().register_custom_ops_library("lib.so")
    with pytest.raises(our_errors.Fail, match="adapters are not supported"):
        ours.RunOptions().add_active_adapter(None)
    with pytest.raises(AttributeError, match=r"tilewright.onnxruntime has no 'SparseTensor'"):
        _ = ours.SparseTensor
    with pytest.raises(TypeError):
        ours.InferenceSession(linear(), nonsense=1)


def test_several_threads_share_a_session() -> None:
    session, other = both(linear())
    wrong = []

    def call(n: int) -> None:
        x = {"x": np.full((n, 2), n, F32)}
        want = other.run(None, x)
        for _ in range(50):
            if not all(map(np.array_equal, session.run(None, x), want)):
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(1, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
