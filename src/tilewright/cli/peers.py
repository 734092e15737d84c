"""Contenders of a race: a model file run by Tilewright and by ONNX Runtime. See `support.paired`.

Each function runs in its own process. All get the same random inputs, made from the ONNX file's own declaration.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.ir.dtype import dtype
from tilewright.measure.contender import Prepared
from tilewright.runtime.examples import Array, random_inputs
from tilewright.runtime.specs import InputSpec

TILEWRIGHT = "tilewright.cli.peers:tilewright"
ONNXRUNTIME = "tilewright.cli.peers:onnxruntime"


def tilewright(
    path: str,
    threads: int = 1,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    symbolic: bool = False,
    options: Mapping[str, Any] | None = None,
    target: str | None = None,
) -> Prepared:
    """The model called with its inputs in order, new outputs each time.

    `symbolic` compiles with symbolic dimensions left open; otherwise `dims` are fixed at compile time. `options` are
    further arguments of `tw.compile`: precision, fast. `target` names another instruction set (`Target.on_host`).
    """
    import tilewright as tw
    from tilewright.targets.target import Target

    feeds = declared_inputs(path, dims or {}, seed)
    start = time.perf_counter()
    machine = None if target is None else Target.on_host(target)
    fixed = {} if symbolic else dict(dims or {})
    model = tw.compile(path, threads=threads, dims=fixed, target=machine, **(options or {}))
    seconds = time.perf_counter() - start
    arguments = [feeds[spec.name] for spec in model.inputs]
    info = {"version": tw.__version__, "compile_seconds": seconds}
    return Prepared(lambda: model(*arguments), lambda: model.run(feeds), info)


def onnxruntime(path: str, threads: int = 1, dims: Mapping[str, int] | None = None, seed: int = 0) -> Prepared:
    """`InferenceSession.run` with default optimisation, `threads` intra-op threads, new outputs each time."""
    import onnxruntime as ort

    feeds = declared_inputs(path, dims or {}, seed)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    start = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - start
    names = [output.name for output in session.get_outputs()]
    run = session.run
    info = {"version": ort.__version__, "compile_seconds": seconds}
    return Prepared(lambda: run(names, feeds), lambda: dict(zip(names, run(names, feeds), strict=True)), info)


def is_installed(setup: str) -> bool:
    """Whether a contender's framework can be imported."""
    return setup != ONNXRUNTIME or importlib.util.find_spec("onnxruntime") is not None


def declared_inputs(path: str, dims: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Random inputs as the ONNX file declares them; initializers are not inputs. Dimensions without a name are 1."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    specs = [_spec(value) for value in graph.input if value.name not in weights]
    return random_inputs(specs, dims, seed)


def _spec(value: Any) -> InputSpec:
    import onnx

    tensor = value.type.tensor_type
    element = dtype(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))).name
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return InputSpec(value.name, element, shape)
