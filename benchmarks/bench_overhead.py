"""The cost of a call in Python: `model(x)` on a model that only copies 16 floats: `python -m
benchmarks.bench_overhead`.

Compared with ONNX Runtime on the same model. Times are medians over batches of calls in one process; that the calls of
one framework do not disturb the other's is not at stake here, as neither has work for a second thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import harness, models

BARS = {"model(x, out=buffer)": 1.0, "model(x)": 1.5}


def copy_model() -> Path:
    """y = Identity(x) on 16 floats."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [16])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "copy", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    models.FOLDER.mkdir(parents=True, exist_ok=True)
    path = models.FOLDER / "copy16.onnx"
    onnx.save(model, path)
    return path


def microseconds(call: Callable[[], object], calls: int = 20_000, batches: int = 25) -> float:
    """Median over batches of the time of one call, the loop's and lambda's own time taken off."""
    return max(_loop(call, calls, batches) - _loop(lambda: None, calls, batches), 0.0)


def _loop(call: Callable[[], object], calls: int, batches: int) -> float:
    times = []
    for _ in range(batches + 2):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times[2:])


def cases(path: Path) -> dict[str, Callable[[], object]]:
    """Ways to call, by how a user writes them."""
    import onnxruntime

    import tilewright as tw

    x, buffer = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    model = tw.compile(str(path), threads=1)
    inputs, outputs = {"x": x}, {"y": buffer}
    result: dict[str, Callable[[], object]] = {
        "model(x, out=buffer)": lambda: model(x, out=buffer),
        "model(x)": lambda: model(x),
        "model.run(inputs, out=buffers)": lambda: model.run(inputs, out=outputs),
        "model.run(inputs)": lambda: model.run(inputs),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        tensor = torch.arange(16, dtype=torch.float32)
        result["model(tensor), PyTorch"] = lambda: model(tensor)
    for call in result.values():
        call()
    np.testing.assert_array_equal(buffer, x)
    np.testing.assert_array_equal(np.asarray(model(x)), x)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    result["ONNX Runtime session.run(None, inputs)"] = lambda: session.run(None, inputs)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    times = {name: microseconds(call) for name, call in cases(copy_model()).items()}
    rows = [[f"`{name}`", f"{t:.2f}", f"{BARS[name]:g}" if name in BARS else "-"] for name, t in times.items()]
    text = harness.markdown_table(["call", "µs", "bar"], rows)
    print(text)
    if not options.no_report:
        path = harness.write_report("overhead", "Overhead of a call (copy of 16 floats)", times, text)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
