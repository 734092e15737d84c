"""Contenders of a race: a model run by Tilewright, ONNX Runtime and OpenVINO. See `measure/paired.py`.

Each function runs in its own process. All get the same inputs, by name, from a file of `contender.save_arrays`.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME, dtype
from tilewright.measure.contender import Prepared, load_arrays
from tilewright.runtime.examples import Array, random_inputs
from tilewright.runtime.specs import InputSpec

TILEWRIGHT = "tilewright.cli.peers:tilewright"
ONNXRUNTIME = "tilewright.cli.peers:onnxruntime"
OPENVINO = "tilewright.cli.peers:openvino"
RIVALS = {"onnxruntime": ONNXRUNTIME, "openvino": OPENVINO}
"""The functions that run a rival, by the rival's package name."""

Call = Callable[[], object]


def tilewright(
    path: str,
    inputs: str,
    threads: int = 1,
    streams: int = 1,
    compile_seconds: float | None = None,
    dims: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    target: str | None = None,
) -> Prepared:
    """Prepare calls of a compiled file, or of an ONNX file of which only parts are compiled, with positional inputs and
    new outputs. Several streams use `Model.stream`.

    Args:
        compile_seconds: the seconds that compiling took in another process.
        dims, options, target: of `tw.compile`, for an ONNX file.
    """
    import tilewright as tw
    from tilewright.targets.target import Target

    start = time.perf_counter()
    model: Any
    if path.endswith(".tw"):
        model = tw.load(path, threads=threads)
    else:
        machine = None if target is None else Target.on_host(target)
        model = tw.compile(path, threads=threads, dims=dict(dims or {}), target=machine, **(options or {}))
    seconds = time.perf_counter() - start if compile_seconds is None else compile_seconds
    feeds = _arrays(inputs, model.inputs)
    arguments = [feeds[spec.name] for spec in model.inputs]
    own = [model.stream() for _ in range(streams)] if streams > 1 and hasattr(model, "stream") else [model] * streams
    calls = [lambda called=called: called(*arguments) for called in own]
    info = {"version": tw.__version__, "compile_seconds": seconds}
    return Prepared(calls[0], lambda: model.run(feeds), info, timed=Streams(calls).run)


def onnxruntime(path: str, inputs: str, threads: int = 1, streams: int = 1) -> Prepared:
    """Prepare calls of ONNX Runtime's `InferenceSession.run` on the model at `path` with the arrays in the file
    `inputs`: default optimisation, `threads` intra-op threads, new outputs; several streams call one session."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    start = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - start
    arrays = load_arrays(inputs)
    feeds = {i.name: arrays[i.name] for i in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    run = session.run
    info = {"version": ort.__version__, "compile_seconds": seconds}
    calls = [lambda: run(names, feeds)] * streams
    outputs = lambda: dict(zip(names, run(names, feeds), strict=True))  # noqa: E731
    return Prepared(calls[0], outputs, info, timed=Streams(calls).run)


def openvino(path: str, inputs: str, threads: int = 1, streams: int = 1, fixed: bool = True) -> Prepared:
    """Prepare calls of OpenVINO's CPU plug-in in f32, with its latency settings for one stream, or with `streams`
    streams; threads are not pinned, because contenders take turns on the same cores.

    Args:
        fixed: compile for the shapes of the inputs; else dimensions stay open.
    """
    import openvino as ov
    import openvino.properties as properties
    import openvino.properties.hint as hints

    arrays = load_arrays(inputs)
    start = time.perf_counter()
    core = ov.Core()
    graph = core.read_model(path)
    if fixed:
        graph.reshape({port.any_name: list(arrays[_name(port, arrays)].shape) for port in graph.inputs})
    mode = hints.PerformanceMode.LATENCY if streams == 1 else hints.PerformanceMode.THROUGHPUT
    settings = {
        hints.inference_precision(): ov.Type.f32,
        hints.performance_mode(): mode,
        hints.enable_cpu_pinning(): False,
        properties.num_streams(): streams,
        properties.inference_num_threads(): threads * streams,
    }
    compiled = core.compile_model(graph, "CPU", settings)
    seconds = time.perf_counter() - start
    feeds = {port.any_name: arrays[_name(port, arrays)] for port in compiled.inputs}
    requests = [compiled.create_infer_request() for _ in range(streams)]
    calls = [lambda r=r: r.infer(feeds, share_inputs=True) for r in requests]

    def outputs() -> dict[str, Array]:
        results = requests[0].infer(feeds)
        return {name: np.array(results[port]) for port in compiled.outputs for name in port.names}

    return Prepared(
        calls[0], outputs, {"version": ov.__version__, "compile_seconds": seconds}, timed=Streams(calls).run
    )


def _name(port: Any, arrays: Mapping[str, Array]) -> str:
    """The name of an OpenVINO port that is among the names of the arrays, since a port may have several."""
    names: list[str] = [name for name in port.names if name in arrays]
    return names[0]


class Streams:
    """Concurrent callers, each with a thread of its own that lives for all calls."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._pool = ThreadPoolExecutor(len(calls)) if len(calls) > 1 else None
        self._barrier = Barrier(len(calls))

    def run(self, count: int) -> tuple[float, list[float]]:
        """Let each caller make `count` calls. Returns the seconds for a call (total time divided by the calls of all
        callers), and the seconds of each call."""
        if self._pool is None:
            ticks = [_ticks(self._calls[0], count)]
        else:
            ticks = list(self._pool.map(lambda call: self._together(call, count), self._calls))
        elapsed = max(t[-1] for t in ticks) - min(t[0] for t in ticks)
        latencies = [b - a for t in ticks for a, b in pairwise(t)]
        return elapsed / len(latencies), latencies

    def _together(self, call: Call, count: int) -> list[float]:
        self._barrier.wait()
        return _ticks(call, count)


def _ticks(call: Call, count: int) -> list[float]:
    """The times before the first of `count` calls and after each."""
    clock = time.perf_counter
    ticks = [clock()]
    for _ in range(count):
        call()
        ticks.append(clock())
    return ticks


def is_installed(setup: str) -> bool:
    """Whether a contender's framework can be imported."""
    package = setup.rpartition(":")[2]
    return package not in RIVALS or importlib.util.find_spec(package) is not None


def declared_inputs(path: str, dims: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Random arrays by name for the inputs that the ONNX file at `path` declares; initializers are not inputs. `dims`
    are the extents of named dimensions; dimensions without a name are 1. Equal seeds give equal arrays."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    specs = [_spec(value) for value in graph.input if value.name not in weights]
    return random_inputs(specs, dims, seed)


def _arrays(path: str, specs: Sequence[Any]) -> dict[str, Array]:
    """The inputs among `specs` that the file at `path` has, by name, converted to the model's types where NumPy files
    lack these."""
    arrays = load_arrays(path)
    return {s.name: arrays[s.name].astype(BY_NAME[s.dtype].numpy, copy=False) for s in specs if s.name in arrays}


def _spec(value: Any) -> InputSpec:
    import onnx

    tensor = value.type.tensor_type
    element = dtype(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))).name
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return InputSpec(value.name, element, shape)
