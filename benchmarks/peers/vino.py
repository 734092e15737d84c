"""OpenVINO's CPU plugin."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from benchmarks.peers.common import load
from tilewright.measure.contender import Prepared


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def settings(threads: int, precision: str = "f32") -> dict[Any, Any]:
    """For the lowest time of one request; nothing is pinned, because peers take turns on the same cores."""
    import openvino
    import openvino.properties as properties
    import openvino.properties.hint as hints

    return {
        hints.inference_precision(): getattr(openvino.Type, precision),
        hints.performance_mode(): hints.PerformanceMode.LATENCY,
        hints.enable_cpu_pinning(): False,
        hints.enable_hyper_threading(): False,
        properties.num_streams(): 1,
        properties.inference_num_threads(): threads,
    }


def latency(model: str, threads: int, batch: int) -> Prepared:
    """Settings for the lowest time of one request."""
    return _compiled(model, threads, batch, "f32")


def latency_bf16(model: str, threads: int, batch: int) -> Prepared:
    """OpenVINO in bf16 where the machine has instructions for it."""
    return _compiled(model, threads, batch, "bf16")


def _compiled(model: str, threads: int, batch: int, precision: str) -> Prepared:
    import openvino

    path, inputs = load(model, batch)
    graph = _core().read_model(path)
    graph.reshape({name: list(array.shape) for name, array in inputs.items()})
    compiled = _core().compile_model(graph, "CPU", settings(threads, precision))
    request = compiled.create_infer_request()
    for name, array in inputs.items():
        request.get_tensor(name).data[...] = array  # its own buffers: nothing is converted or copied in a call

    def call() -> object:
        return request.infer(share_outputs=True)

    def results() -> dict[str, np.ndarray[Any, Any]]:
        call()
        return {min(port.names): np.array(request.get_tensor(port).data) for port in compiled.outputs}

    return Prepared(call, results, {"version": openvino.__version__})
