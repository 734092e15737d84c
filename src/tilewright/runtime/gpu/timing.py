"""Times of a model on a GPU, by the device's own clock: events around launches of its graph."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.native import CALL, ENTRIES, GRAPH
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds of a call on the device.

    Attributes:
        graph: one launch of the graph with its kernels, in a sequence of many launches.
        submitted: the host's time to launch the graph.
        launched: the host's time to launch one kernel, without a graph.
        call: a call from Python, including copies.
    """

    graph: float
    submitted: float
    launched: float
    call: float


def times(model: Model, *inputs: Any, repeat: int = 20, rounds: int = 5) -> DeviceTimes:
    """The seconds of a model's call: for each way of launching it the least of `rounds` measurements, of `repeat`
    launches each. Raises CallError for a model of another machine; nothing else may call the model meanwhile."""
    engine = model._engine
    device = engine.device
    if device is None:
        raise CallError("not a program for a GPU", where=f"program {model.name!r}")
    called = _least(lambda: model(*inputs), rounds)
    bound = model._measured(inputs)
    dims = np.array([*bound.dims, 0], np.int64)
    call = engine.device_calls[0]
    entry = call[CALL.entries] + (call[CALL.next] - 1) % ENTRIES * call[CALL.entry_size]
    graph = ctypes.c_int64.from_address(entry + GRAPH.graph).value
    steps = max(1, len(model.manifest.run_steps))
    with device.current():
        stream = call[CALL.stream]

        def submit(which: int) -> float:
            start = time.perf_counter()
            device.repeat(call, which, dims.ctypes.data, repeat)
            took = time.perf_counter() - start
            device.driver.call("cuStreamSynchronize", stream)
            return took / repeat

        submit(graph)
        submitted = min(submit(graph) for _ in range(rounds))
        on_device = min(_between(device, call, graph, dims, repeat) for _ in range(rounds))
        launched = min(submit(0) for _ in range(rounds)) / steps
    return DeviceTimes(on_device, submitted, launched, called)


def _between(device: Device, call: Any, graph: int, dims: Any, repeat: int) -> float:
    """Seconds of one launch of `graph` with the sizes `dims`: the time between two events around `repeat` launches,
    divided by their number."""
    d, stream = device.driver, call[CALL.stream]
    events = [d.number("cuEventCreate", ctypes.c_int(0)) for _ in range(2)]
    try:
        d.call("cuEventRecord", events[0], stream)
        device.repeat(call, graph, dims.ctypes.data, repeat)
        d.call("cuEventRecord", events[1], stream)
        d.call("cuEventSynchronize", events[1])
        out = ctypes.c_float(0)
        d.call("cuEventElapsedTime", ctypes.addressof(out), *events)
    finally:
        for event in events:
            d.result("cuEventDestroy_v2", event)
    return out.value / 1000 / repeat


def _least(function: Any, rounds: int) -> float:
    results = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        function()
        results.append(time.perf_counter() - start)
    return min(results)


def copy_bandwidth(device: Device, nbytes: int = 1 << 28, repeat: int = 20) -> float:
    """Bytes a second, read and written, of the driver's own copies within the device: the best of several runs of
    `repeat` copies of `nbytes` bytes."""
    call = device.call_state()
    stream = call[CALL.stream]
    one, two = device.allocate(nbytes), device.allocate(nbytes)
    d = device.driver
    with device.current():
        least = 0.0
        for _ in range(4):
            start = time.perf_counter()
            for _ in range(repeat):
                d.call("cuMemcpyAsync", two.address, one.address, nbytes, stream)
            d.call("cuStreamSynchronize", stream)
            took = (time.perf_counter() - start) / repeat
            least = took if not least else min(least, took)
    one.free()
    two.free()
    return 2 * nbytes / least


__all__ = ["DeviceTimes", "copy_bandwidth", "times"]
