"""MNN (Alibaba), from the ONNX file through its own converter.

The converter is called through its extension module: `MNN.tools.mnnconvert` would install a package with pip and report
each conversion to a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.peers.common import Arrays, converted, fixed_shapes, load
from tilewright.support.contender import Prepared
from tilewright.support.errors import Error


def _convert(model: str, batch: int, folder: Path) -> None:
    import _tools

    source, target = folder / "model.onnx", folder / "model.mnn"
    onnx.save(fixed_shapes(model, batch), source)
    arguments = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target), "--bizCode", "benchmark"]
    _tools.mnnconvert(["mnnconvert", *arguments])
    source.unlink()
    if not target.exists():
        raise Error("MNN's converter failed", where=model)


def session(model: str, threads: int, batch: int) -> Prepared:
    """`Interpreter.runSession` on tensors that are filled once; "high" is fp32 throughout."""
    import MNN

    folder = converted(f"mnn-{MNN.version()}", model, batch, lambda folder: _convert(model, batch, folder))
    _, inputs = load(model, batch)
    interpreter = MNN.Interpreter(str(folder / "model.mnn"))
    made = interpreter.createSession({"backend": "CPU", "precision": "high", "numThread": threads})
    for name, tensor in interpreter.getSessionInputAll(made).items():
        _fill(tensor, inputs[name], name)
    tensors = interpreter.getSessionOutputAll(made)

    def call() -> object:
        return interpreter.runSession(made)

    def outputs() -> Arrays:
        call()
        return {name: _read(tensor) for name, tensor in tensors.items()}

    # The interpreter owns the session: the closure keeps it.
    return Prepared(call, outputs, {"version": MNN.version()})


def _fill(tensor: Any, array: np.ndarray[Any, Any], name: str) -> None:
    import MNN

    types = {MNN.Halide_Type_Float: np.float32, MNN.Halide_Type_Int: np.int32, MNN.Halide_Type_Uint8: np.uint8}
    if tuple(tensor.getShape()) != array.shape:
        raise Error("MNN changed an input's shape", where=name, expected=array.shape, got=tensor.getShape())
    kind = tensor.getDataType()
    data = np.ascontiguousarray(array, types[kind])
    tensor.copyFrom(MNN.Tensor(data.shape, kind, data, MNN.Tensor_DimensionType_Caffe))


def _read(tensor: Any) -> np.ndarray[Any, Any]:
    import MNN

    shape = tensor.getShape()
    host = MNN.Tensor(shape, MNN.Halide_Type_Float, np.zeros(shape, np.float32), MNN.Tensor_DimensionType_Caffe)
    tensor.copyToHostTensor(host)
    return np.array(host.getNumpyData(), np.float32).reshape(shape)
