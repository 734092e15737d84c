"""Events that could end a process: sessions that outlive the interpreter, forks, callbacks that fail, a library that is
loaded again. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

_COMMON = """
import numpy as np, onnx, onnxruntime, tilewright.ort
from onnx import TensorProto, helper
onnxruntime.set_default_logger_severity(4)
info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", info[:1], info[1:])
data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
x = np.arange(8, dtype=np.float32).reshape(2, 4)

def opened():
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(tilewright.ort.register(), {"threads": "1"})
    return onnxruntime.InferenceSession(data, options, enable_fallback=0)

def checked(session):
    (y,) = session.run(None, {"x": x})
    assert np.allclose(y.sum(1), 1) and np.allclose(y[0], y[1])
"""


def run(code: str) -> str:
    """Run this code in a process of its own, which must exit with 0, and return what it prints."""
    source = Path(__file__).parents[2] / "src"
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-X", "faulthandler", "-c", _COMMON + textwrap.dedent(code)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_session_outlives_the_interpreter() -> None:
    out = run("""
        import builtins
        builtins.kept = opened()
        builtins.binding = builtins.kept.io_binding()
        checked(builtins.kept)
        print("end")
    """)
    assert out == "end\n"


def test_a_library_can_be_unregistered_and_registered_once_more() -> None:
    out = run("""
        for _ in range(3):
            session = opened()
            try:
                tilewright.ort.unregister()
            except tilewright.Error as error:
                assert "sessions still use the provider" in str(error)
            checked(session)
            del session
            tilewright.ort.unregister()
            assert all(d.ep_name != tilewright.ort.NAME for d in onnxruntime.get_ep_devices())
        tilewright.ort.unregister()
        kept = opened()
        onnxruntime.unregister_execution_provider_library(tilewright.ort.NAME)  # without our knowing
        checked(opened())
        checked(kept)
        print(onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).get_providers())
    """)
    assert out == "['CPUExecutionProvider']\n"


def test_a_forked_process_goes_on_with_its_sessions() -> None:
    run("""
        import os
        session = opened()
        checked(session)
        child = os.fork()
        if not child:
            checked(session)
            checked(opened())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        checked(session)
    """)


def test_whatever_fails_in_python_is_a_status() -> None:
    """An error while nodes are chosen leaves all of them to ONNX Runtime."""
    out = run("""
        from tilewright.ort import provider
        good, run = opened(), provider.Computed.run
        for error in (ValueError("broken"), KeyboardInterrupt(), SystemExit(3), MemoryError()):
            def fails(*arguments):
                raise error
            for name in ("group", "parse_options", "read_graph", "run"):
                kept = getattr(provider, name, None)
                (setattr(provider, name, fails) if kept else setattr(provider.Computed, name, fails))
                try:
                    good.run(None, {"x": np.empty((0, 4), np.float32)}) if name == "run" else checked(opened())
                    print(name, "is done by ONNX Runtime")
                except Exception as error:
                    print(name, "tilewright: " in str(error))
                setattr(provider, name, kept) if kept else setattr(provider.Computed, name, run)
            checked(good)
    """)
    once = ["group is done by ONNX Runtime", "parse_options True", "read_graph is done by ONNX Runtime", "run True"]
    assert out.splitlines() == 4 * once
