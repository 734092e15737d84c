"""MNN (Alibaba), from the ONNX file through its own converter.

The converter is called through its extension module: `MNN.tools.mnnconvert` would install a package with pip and report
each conversion to a server.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.peers.common import Arrays, converted, fixed_shapes, load
from tilewright.measure.contender import Prepared
from tilewright.support.errors import Error


def _convert(model: str, batch: int, folder: Path) -> None:
    import _tools

    source, target = folder / "model.onnx", folder / "model.mnn"
    onnx.save(fixed_shapes(model, batch), source)
    arguments = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target), "--bizCode", "benchmark"]
    with contextlib.chdir(folder):  # it leaves a file with weights in the working directory for a while
        _tools.mnnconvert(["mnnconvert", *arguments])
    source.unlink()
    if not target.exists():
        raise Error("MNN's converter failed", where=model)


def fastest(model: str, threads: int, batch: int) -> Prepared:
    """The better of MNN's two ways to run a model, by a short trial; "high" precision is fp32 throughout.

    A session takes its inputs anew in each call, because it uses their memory for intermediate results; a module does
    not, and it runs loops (LSTM), which a session cannot.
    """
    import MNN

    folder = converted(f"mnn-{MNN.version()}", model, batch, lambda folder: _convert(model, batch, folder))
    path, inputs = load(model, batch)
    declared = onnx.load(path, load_external_data=False).graph.output
    names = [o.name for o in declared]
    ranks = {o.name: len(o.type.tensor_type.shape.dim) for o in declared}
    file = str(folder / "model.mnn")
    module = _module(file, inputs, ranks, threads)
    want = module.outputs() if module.outputs else {}
    try:
        session = _session(file, inputs, ranks, threads)
        got = session.outputs() if session.outputs else {}
        same = all(got[n].shape == want[n].shape and np.allclose(got[n], want[n], 1e-3, 1e-3) for n in names)
    except (KeyError, ValueError):
        same = False
    return session if same and _seconds(session) < _seconds(module) else module


def _seconds(prepared: Prepared) -> float:
    """Best time of a few calls."""
    times = []
    end = time.perf_counter() + 0.05
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        prepared.call()
        times.append(time.perf_counter() - start)
    return min(times)


def _module(file: str, inputs: Arrays, ranks: dict[str, int], threads: int) -> Prepared:
    import MNN
    import MNN.expr as expr
    import MNN.nn as nn

    kinds = {"f": (expr.float, np.float32), "i": (expr.int, np.int32), "u": (expr.uint8, np.uint8)}
    runtime = nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": threads},))
    module = nn.load_module_from_file(file, list(inputs), list(ranks), runtime_manager=runtime)
    variables = []
    for array in inputs.values():
        kind, element = kinds[array.dtype.kind]
        variable = expr.placeholder(array.shape, expr.NCHW, kind)
        variable.write(np.ascontiguousarray(array, element))
        variables.append(variable)

    keep = (variables, runtime)  # the module does not own its runtime

    def call() -> Any:
        return module.onForward(keep[0])

    def outputs() -> Arrays:
        results = [expr.convert(x, expr.NCHW) if x.data_format == expr.NC4HW4 else x for x in call()]
        return {name: _of_rank(np.array(x.read()), ranks[name]) for name, x in zip(ranks, results, strict=True)}

    return Prepared(call, outputs, {"version": MNN.version(), "api": "module"})


def _session(file: str, inputs: Arrays, ranks: dict[str, int], threads: int) -> Prepared:
    import MNN

    kinds = {"f": (MNN.Halide_Type_Float, np.float32), "i": (MNN.Halide_Type_Int, np.int32)}
    kinds["u"] = (MNN.Halide_Type_Uint8, np.uint8)
    interpreter = MNN.Interpreter(file)
    session = interpreter.createSession({"backend": "CPU", "precision": "high", "numThread": threads})
    pairs = []
    for name, tensor in interpreter.getSessionInputAll(session).items():
        kind, element = kinds[inputs[name].dtype.kind]
        array = np.ascontiguousarray(inputs[name], element)
        if tuple(tensor.getShape()) != array.shape:
            raise ValueError(f"input {name} has shape {tensor.getShape()}, expected {array.shape}")
        pairs.append((tensor, MNN.Tensor(array.shape, kind, array, MNN.Tensor_DimensionType_Caffe), array))
    tensors = interpreter.getSessionOutputAll(session)

    def call() -> None:
        for tensor, source, _ in pairs:  # the third keeps the memory of the second
            tensor.copyFrom(source)
        interpreter.runSession(session)

    def outputs() -> Arrays:
        call()
        return {name: _of_rank(_read(tensor), ranks[name]) for name, tensor in tensors.items()}

    return Prepared(call, outputs, {"version": MNN.version(), "api": "session"})


def _read(tensor: Any) -> np.ndarray[Any, Any]:
    import MNN

    shape = tensor.getShape()
    array = np.zeros(shape, np.float32)  # the tensor does not own it
    host = MNN.Tensor(shape, MNN.Halide_Type_Float, array, MNN.Tensor_DimensionType_Caffe)
    tensor.copyToHostTensor(host)
    return np.array(host.getData(), np.float32).reshape(shape)


def _of_rank(array: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    """Without the dimensions of one that MNN appends to a tensor of fewer than four."""
    extra = array.shape[rank:]
    return array.reshape(array.shape[:rank]) if all(size == 1 for size in extra) else array
