"""ncnn (Tencent), from the ONNX file through pnnx."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.peers.common import Arrays, converted, fixed_shapes, floats_for_bytes, load
from tilewright.measure.contender import Prepared
from tilewright.support.errors import Error


def _convert(model: str, batch: int, folder: Path) -> None:
    import pnnx

    source = folder / "model.onnx"
    onnx.save(floats_for_bytes(fixed_shapes(model, batch)), source)
    tool = Path(pnnx.__file__).parent / "pnnx"
    done = subprocess.run([tool, source.name, "fp16=0"], cwd=folder, capture_output=True, text=True, check=False)
    for path in folder.iterdir():
        if path.name not in ("model.ncnn.param", "model.ncnn.bin", "model_ncnn.py"):
            path.unlink()
    if not (folder / "model.ncnn.param").exists():
        raise Error("pnnx failed", where=model, got=(done.stderr or done.stdout).strip().splitlines()[-1:])


def _batch_axes(script: str, pattern: str) -> list[int]:
    """The axis of each input or output that is the batch, as the script that pnnx writes beside the model says."""
    return [int(axis) for axis in re.findall(pattern, script)]


def extractor(model: str, threads: int, batch: int) -> Prepared:
    """One extractor a call, as its documentation has it; inputs are wrapped once."""
    import ncnn

    version = importlib.metadata.version("ncnn")
    folder = converted(f"ncnn-{version}", model, batch, lambda folder: _convert(model, batch, folder))
    path, inputs = load(model, batch)
    script = (folder / "model_ncnn.py").read_text()
    into = _batch_axes(script, r"ncnn\.Mat\(.*batch_index=(\d+)\)")
    out = _batch_axes(script, r"\.numpy\(batch_index=(\d+)\)")
    net = ncnn.Net()
    options = net.opt
    options.num_threads = threads
    options.lightmode = True
    options.use_winograd_convolution = options.use_sgemm_convolution = options.use_packing_layout = True
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        if hasattr(options, f"use_{name}"):
            setattr(options, f"use_{name}", False)
    if net.load_param(str(folder / "model.ncnn.param")) or net.load_model(str(folder / "model.ncnn.bin")):
        raise Error("ncnn does not load what pnnx made", where=model)
    mats = [(f"in{i}", _mat(array, axis)) for i, (array, axis) in enumerate(zip(inputs.values(), into, strict=True))]
    names = [o.name for o in onnx.load(path, load_external_data=False).graph.output]

    def call() -> list[Any]:
        extractor = net.create_extractor()
        for name, mat in mats:
            extractor.input(name, mat)
        results = []
        for i in range(len(out)):
            status, mat = extractor.extract(f"out{i}")
            if status:
                raise Error("ncnn's extractor failed", where=model, got=status)
            results.append(mat)
        return results

    def outputs() -> Arrays:
        result = zip(names, call(), out, strict=True)
        return {name: np.array(mat.numpy(batch_index=axis)) for name, mat, axis in result}

    return Prepared(call, outputs, {"version": version})


def _mat(array: np.ndarray[Any, Any], axis: int) -> Any:
    import ncnn

    kind = np.int32 if array.dtype.kind == "i" else np.float32
    return ncnn.Mat(np.ascontiguousarray(array, kind), batch_index=axis).clone()
