"""Names around sessions beside ONNX Runtime's own: devices, memory, messages, types of options, files in memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest

import tilewright as tw
import tilewright.onnxruntime as ours
from tests.frontend.onnx.build import info, model, node

F32 = np.float32


def scaled() -> onnx.ModelProto:
    """y = x w + 1, with the weights as numbers of the message, not as bytes."""
    w = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 40], np.arange(80, dtype=F32))
    proto = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "one"], ["y"])],
        [info("x", ["n", 2])],
        [info("y", ["n", 40])],
        {"one": np.ones(1, F32)},
    )
    proto.graph.initializer.append(w)
    return proto


@pytest.mark.parametrize("name", ["cpu", "cuda", "dml", "gpu", "webgpu", "cann", "npu"])
def test_devices_have_the_same_numbers(name: str) -> None:
    for arguments in ((name, 1), (name, 0, 0x8086))[: 1 if name == "dml" else 2]:  # whose maker is always Microsoft
        mine, other = (world.OrtDevice.make(*arguments) for world in (ours, theirs))
        for word in ("device_id", "device_type", "device_vendor_id", "device_mem_type"):
            assert getattr(mine, word)() == getattr(other, word)(), word


def test_devices_that_are_none_and_those_without_programs() -> None:
    for world in (ours, theirs):
        with pytest.raises(Exception, match="Unsupported device type"):
            world.OrtDevice.make("toaster", 0)
    x = np.ones((1, 2), F32)
    with pytest.raises(tw.Error, match="programs run on the processor"):
        ours.OrtValue.ortvalue_from_numpy(x, ours.OrtDevice.make("cuda", 0))
    assert ours.OrtValue.ortvalue_from_numpy(x, ours.OrtDevice.make("cpu", 0)).shape() == [1, 2]


@pytest.mark.parametrize("kind", ["OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtMemoryInfoDeviceType", "OrtMemType"])
def test_enumerations_have_the_same_numbers(kind: str) -> None:
    mine, other = getattr(ours, kind), getattr(theirs, kind)
    names = {n for n in dir(other) if n.isupper()}
    assert set(mine.__members__) == names
    assert {n: int(getattr(mine, n)) for n in names} == {n: int(getattr(other, n)) for n in names}


def test_descriptions_of_memory() -> None:
    for build in (
        lambda w: w.OrtMemoryInfo("Cpu", w.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, w.OrtMemType.DEFAULT),
        lambda w: w.OrtMemoryInfo.create_v2(
            "Mine",
            w.OrtMemoryInfoDeviceType.GPU,
            0x10DE,
            1,
            w.OrtDeviceMemoryType.DEFAULT,
            128,
            w.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        ),
    ):
        mine, other = build(ours), build(theirs)
        for word in ("name", "allocator_type", "device_id", "mem_type", "device_mem_type", "device_vendor_id"):
            a, b = getattr(mine, word), getattr(other, word)
            assert a == b or int(a) == int(b), word


def test_messages_of_sessions_go_to_a_function() -> None:
    seen: list[tuple[Any, ...]] = []
    log = logging.getLogger("tilewright.session")
    level, handlers = log.level, list(log.handlers)
    try:
        ours.set_default_logger_callback(lambda *words: seen.append(words), severity=1)
        options = ours.SessionOptions()
        options.logid = "mine"
        ours.InferenceSession(scaled(), options)
        ((severity, category, logid, place, text),) = seen
        assert (severity, category, logid) == (1, "tilewright.session", "mine")
        assert place.startswith("session.py:") and "1 inputs, 1 outputs, ready in" in text
        ours.set_default_logger_severity(2)
        ours.InferenceSession(scaled(), options)
        ours.set_default_logger_callback(lambda *words: seen.append(words), severity=0)
        assert len(log.handlers) == len(handlers) + 1  # the earlier one has gone
        ours.set_default_logger_callback(None)
        ours.InferenceSession(scaled(), options)
        assert len(seen) == 1 and log.handlers == handlers
    finally:
        ours.set_default_logger_callback(None)
        log.setLevel(level)


def test_a_function_for_messages_that_fails_does_not_end_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no room for messages")

    log = logging.getLogger("tilewright.session")
    level = log.level
    try:
        ours.set_default_logger_callback(fail, severity=0)
        ours.InferenceSession(scaled())
        assert "no room for messages" in capsys.readouterr().err
    finally:
        ours.set_default_logger_callback(None)
        log.setLevel(level)


@pytest.mark.parametrize("arguments", [(print, 5), (print, -1), ("no function", 2), (None, 7)])
def test_severities_and_functions_that_are_none_are_refused_by_both(arguments: tuple[Any, int]) -> None:
    for world in (ours, theirs):
        with pytest.raises(RuntimeError):
            world.set_default_logger_callback(*arguments)
        with pytest.raises(RuntimeError):
            world.set_default_logger_severity(9)
    with pytest.raises(RuntimeError, match="a severity is"):
        ours.set_default_logger_severity(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("graph_optimization_level", 5), ("execution_mode", 0), ("execution_order", "DEFAULT")]
)
def test_numbers_are_no_values_of_an_enumeration(name: str, value: Any) -> None:
    for world in (ours, theirs):
        options = world.SessionOptions()
        with pytest.raises(TypeError):
            setattr(options, name, value)
        setattr(options, name, getattr(options, name))


def test_initializers_in_files_that_are_in_memory(tmp_path: Path) -> None:
    proto, x = scaled(), {"x": np.array([[1, 2], [3, 4]], F32)}
    want = theirs.InferenceSession(proto.SerializeToString()).run(None, x)[0]
    w = np.arange(80, dtype=F32).reshape(2, 40)
    contents = b"????" + w.tobytes()
    del proto.graph.initializer[1]
    tensor = onnx.numpy_helper.from_array(w, "w")
    onnx.external_data_helper.set_external_data(tensor, "nowhere.bin", offset=4, length=w.nbytes)
    tensor.ClearField("raw_data")
    proto.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for source in (proto.SerializeToString(), str(tmp_path / "m.onnx")):
        results = []
        for world in (ours, theirs):
            options = world.SessionOptions()
            options.add_external_initializers_from_files_in_memory(["nowhere.bin"], [contents], [len(contents)])
            results += [world.InferenceSession(source, options).run(None, x)[0]]
        np.testing.assert_array_equal(results[0], want)
        np.testing.assert_array_equal(results[1], want)
    for buffer, length in ((contents[:-1], len(contents) - 1), (b"", 0)):
        options = ours.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["nowhere.bin"], [buffer], [length])
        with pytest.raises(tw.Error, match="does not fit its file"):
            ours.InferenceSession(proto.SerializeToString(), options)
    options = ours.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["nowhere.bin"], [contents], [len(contents)])
    proto.graph.initializer[-1].external_data.add(key="location", value="elsewhere.bin")  # the last of two counts
    with pytest.raises(tw.Error, match=r"elsewhere\.bin|another file"):
        ours.InferenceSession(proto.SerializeToString(), options)
    ours.SessionOptions().add_external_initializers_from_files_in_memory(["a"], [np.zeros((0, 3), F32)], [0])
    columns: Any = np.zeros((4, 4), F32)[:, :2]
    for names, buffers, lengths in (
        (["a"], [], []),
        (["a"], [b"12"], [3]),
        (["a"], [b"12"], [-1]),
        (["a"], [columns], [8]),
    ):
        with pytest.raises(RuntimeError):
            ours.SessionOptions().add_external_initializers_from_files_in_memory(names, buffers, lengths)


def test_initializers_of_any_form_are_written_to_the_file_beside_the_model(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "o.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "100")
    ours.InferenceSession(scaled(), options)
    assert (tmp_path / "o.bin").stat().st_size >= 320
    x = {"x": np.array([[1, 2], [3, 4]], F32)}
    want = theirs.InferenceSession(scaled().SerializeToString()).run(None, x)[0]
    for world in (ours, theirs):
        np.testing.assert_array_equal(world.InferenceSession(str(tmp_path / "o.onnx")).run(None, x)[0], want)


def test_inputs_have_no_device_of_their_own() -> None:
    session = ours.InferenceSession(scaled())
    assert session.get_input_epdevices() == [None]
    assert len(theirs.InferenceSession(scaled().SerializeToString()).get_input_epdevices()) == 1
