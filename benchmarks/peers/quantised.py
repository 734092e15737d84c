"""Models that each framework's own quantiser made, timed by the processor time of their process.

Each function sets one of them up from a file and an input (`save_arrays`), for one thread. `nncf` is a program of its
own, `python -m benchmarks.peers.quantised MODEL SAMPLES RESULT`, for an environment that has OpenVINO and nncf alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.measure.contender import Prepared, load_arrays

Results = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A model's outputs for inputs, by names."""


def tilewright(path: str, feeds: str) -> Prepared:
    """A program that `Model.save` wrote."""
    import tilewright as tw

    inputs = read_feeds(feeds)
    model = tw.load(path, threads=1)
    arguments = [np.ascontiguousarray(inputs[0][spec.name]) for spec in model.inputs]
    outputs = model.empty_outputs(*arguments)
    buffers = tuple(outputs.values())

    def call() -> object:
        return model(*arguments, out=buffers)

    return _prepared(call, inputs, lambda feed: model.run(dict(feed)), tw.__version__)


def onnxruntime(path: str, feeds: str) -> Prepared:
    """A file in QDQ form in ONNX Runtime: buffers bound once, all optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    inputs = read_feeds(feeds)
    binding = session.io_binding()
    for name, value in inputs[0].items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    for name, value in zip(names, session.run(None, inputs[0]), strict=True):
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(value)))

    def results(feed: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(names, session.run(None, dict(feed)), strict=True))

    return _prepared(lambda: session.run_with_iobinding(binding), inputs, results, onnxruntime.__version__)


def openvino(path: str, feeds: str) -> Prepared:
    """An IR file in OpenVINO: latency hint, one stream, its own buffers filled once; layers that are not quantised are
    computed in f32."""
    import openvino

    from benchmarks.peers.vino import settings

    compiled = openvino.Core().compile_model(path, "CPU", settings(1))
    inputs = read_feeds(feeds)
    request, other = compiled.create_infer_request(), compiled.create_infer_request()
    for name, array in inputs[0].items():
        request.get_tensor(name).data[...] = array

    def results(feed: Mapping[str, Any]) -> Mapping[str, Any]:
        got = other.infer(dict(feed))
        return {min(port.names): np.array(got[port]) for port in compiled.outputs}

    return _prepared(lambda: request.infer(share_outputs=True), inputs, results, openvino.__version__)


def _prepared(call: Callable[[], object], inputs: list[dict[str, Any]], results: Results, version: str) -> Prepared:
    """Calls timed by processor time: the time of a process that others interrupt is its own all the same. Outputs are
    those for all inputs, `<number>/<name>`."""

    def timed(count: int) -> tuple[float, list[float]]:
        begin = time.process_time()
        for _ in range(count):
            call()
        return (time.process_time() - begin) / count, []

    def outputs() -> dict[str, Any]:
        return {f"{k}/{name}": np.array(a) for k, feed in enumerate(inputs) for name, a in results(feed).items()}

    return Prepared(call, outputs, {"version": version}, timed=timed)


def read_feeds(path: str) -> list[dict[str, Any]]:
    """Inputs of several calls, from a file of arrays named `<number>/<name>`."""
    feeds: dict[int, dict[str, Any]] = {}
    for key, array in load_arrays(path).items():
        number, _, name = key.partition("/")
        feeds.setdefault(int(number), {})[name] = array
    return [feeds[k] for k in sorted(feeds)]


def nncf(model: Path, samples: Path, result: Path, *, transformer: bool) -> str:
    """Quantises an ONNX file with NNCF for OpenVINO, and gives the versions."""
    import nncf
    import openvino

    graph = openvino.Core().read_model(model)
    feeds = read_feeds(str(samples))
    graph.reshape({name: list(array.shape) for name, array in feeds[0].items()})
    kind = nncf.ModelType.TRANSFORMER if transformer else None
    done = nncf.quantize(graph, nncf.Dataset(feeds), subset_size=len(feeds), model_type=kind)
    openvino.save_model(done, result, compress_to_fp16=False)
    return f"openvino {openvino.__version__}, nncf {nncf.__version__}"


if __name__ == "__main__":
    print(nncf(*map(Path, sys.argv[1:4]), transformer="transformer" in sys.argv[4:]))
