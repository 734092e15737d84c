"""Tree ensembles in each framework: LightGBM itself, lleaves (LLVM code of the same model), ONNX Runtime, and ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.measure.contender import Prepared


def rows(count: int, features: int) -> Any:
    return np.random.default_rng(1).normal(size=(count, features)).astype(np.float32)


def own(folder: str, count: int, features: int, threads: int) -> Prepared:
    import tilewright as tw

    start = time.perf_counter()
    model = tw.compile(str(Path(folder) / "model.onnx"), threads=threads)
    seconds = time.perf_counter() - start
    x = rows(count, features)
    y = np.empty_like(model(x))
    return Prepared(lambda: model(x, out=y), lambda: {"y": model(x)}, {"compile_seconds": seconds})


def onnxruntime(folder: str, count: int, features: int, threads: int) -> Prepared:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(Path(folder) / "model.onnx"), options, providers=["CPUExecutionProvider"])
    x = rows(count, features)
    name, out = session.get_inputs()[0].name, session.get_outputs()[0].name
    binding = session.io_binding()
    binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(x))
    value = ort.OrtValue.ortvalue_from_numpy(session.run(None, {name: x})[0])
    binding.bind_ortvalue_output(out, value)
    return Prepared(lambda: session.run_with_iobinding(binding), lambda: {"y": value.numpy()}, {})


def lleaves(folder: str, count: int, features: int, threads: int) -> Prepared:
    import lleaves

    model = lleaves.Model(model_file=str(Path(folder) / "model.txt"))
    start = time.perf_counter()
    model.compile(cache=str(Path(folder) / "lleaves.bin"))
    seconds = time.perf_counter() - start
    x = rows(count, features).astype(np.float64)  # its own type, so that it converts nothing
    return Prepared(
        lambda: model.predict(x, n_jobs=threads), lambda: {"y": model.predict(x)}, {"compile_seconds": seconds}
    )


def lightgbm(folder: str, count: int, features: int, threads: int) -> Prepared:
    import lightgbm

    model = lightgbm.Booster(model_file=str(Path(folder) / "model.txt"))
    x = rows(count, features).astype(np.float64)
    return Prepared(lambda: model.predict(x, num_threads=threads), lambda: {"y": np.asarray(model.predict(x))}, {})
