"""Tilewright, compiled from the ONNX file through the cache on disk."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.common import load
from tilewright.measure.contender import Prepared


def symbolic(model: str, threads: int, batch: int) -> Prepared:
    """Symbolic dimensions left open, results into the caller's buffers."""
    return _into_buffers(model, threads, batch)


def fixed(model: str, threads: int, batch: int) -> Prepared:
    """Tilewright with every symbolic dimension fixed at compile time, as all peers have it."""
    return _into_buffers(model, threads, batch, fixed=True)


def bf16(model: str, threads: int, batch: int) -> Prepared:
    """Products in bfloat16."""
    return _into_buffers(model, threads, batch, fixed=True, precision="bf16")


def int8(model: str, threads: int, batch: int) -> Prepared:
    """Products in 8-bit integers."""
    return _into_buffers(model, threads, batch, fixed=True, precision="int8")


def exact(model: str, threads: int, batch: int) -> Prepared:
    """No fast convolution."""
    return _into_buffers(model, threads, batch, fixed=True, fast="exact")


def strassen(model: str, threads: int, batch: int) -> Prepared:
    """Fast products too."""
    return _into_buffers(model, threads, batch, fixed=True, fast="strassen")


def call(model: str, threads: int, batch: int) -> Prepared:
    """Outputs allocated by each call."""
    compiled, arguments = _compiled(model, threads, batch, fixed=True)
    names = [spec.name for spec in compiled.inputs]
    inputs = dict(zip(names, arguments, strict=True))
    return Prepared(lambda: compiled(*arguments), lambda: compiled.run(inputs), {"version": _version()})


def run(model: str, threads: int, batch: int) -> Prepared:
    """Inputs and outputs in dictionaries, outputs allocated by each call: the counterpart of `session.run`."""
    import tilewright as tw

    path, inputs = load(model, batch)
    compiled = tw.compile(path, threads=threads)
    return Prepared(lambda: compiled.run(inputs), lambda: compiled.run(inputs), {"version": tw.__version__})


def _into_buffers(model: str, threads: int, batch: int, *, fixed: bool = False, **options: str) -> Prepared:
    compiled, arguments = _compiled(model, threads, batch, fixed=fixed, **options)
    outputs = compiled.empty_outputs(*arguments)
    buffers = tuple(outputs.values())
    return Prepared(lambda: compiled(*arguments, out=buffers), lambda: outputs, {"version": _version()})


def _compiled(model: str, threads: int, batch: int, *, fixed: bool, **options: Any) -> tuple[Any, list[Any]]:
    """The compiled model and its inputs in order."""
    import onnx

    import tilewright as tw

    path, inputs = load(model, batch)
    graph = onnx.load(path, load_external_data=False).graph
    symbols = {d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    compiled = tw.compile(path, threads=threads, dims=dict.fromkeys(symbols, batch) if fixed else {}, **options)
    return compiled, [inputs[spec.name] for spec in compiled.inputs]


def _version() -> str:
    import tilewright as tw

    return tw.__version__
