"""What the benchmarks compare: each function sets one framework up in a process of its own and returns its call.

They are the contenders' setups of `tilewright.support.paired`. To add a framework, write a function that takes
`model, threads, batch` and returns a `Prepared`, and name it in `PEERS`. Each peer runs with the best settings known
for it, with inputs and outputs in buffers made before the call wherever it can.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.support.contender import Prepared

PEERS: dict[str, str] = {
    "tilewright": "benchmarks.peers:tilewright",
    "tilewright-fixed": "benchmarks.peers:tilewright_fixed",
    "tilewright-run": "benchmarks.peers:tilewright_run",
    "onnxruntime": "benchmarks.peers:onnxruntime_bound",
    "onnxruntime-run": "benchmarks.peers:onnxruntime_run",
    "torch": "benchmarks.peers:torch_eager",
}
DESCRIPTIONS: dict[str, str] = {
    "tilewright": "`model(*inputs, out=buffers)`, compiled with a symbolic batch",
    "tilewright-fixed": "`model(*inputs, out=buffers)`, compiled for the batch that is timed",
    "tilewright-run": "`model.run(inputs)` by names with new outputs, compiled with a symbolic batch",
    "onnxruntime": "IOBinding with inputs and outputs bound once, all optimizations, sequential",
    "onnxruntime-run": "`session.run(None, inputs)`, all optimizations, sequential",
    "torch": "eager, under `torch.inference_mode()`",
}


def tilewright(model: str, threads: int, batch: int) -> Prepared:
    """Tilewright, compiled from the ONNX file (through the cache on disk), writing into the caller's buffers."""
    return _tilewright(model, threads, batch, {})


def tilewright_fixed(model: str, threads: int, batch: int) -> Prepared:
    """The same with every symbolic dimension fixed at compile time."""
    return _tilewright(model, threads, batch, {"batch": batch})


def tilewright_run(model: str, threads: int, batch: int) -> Prepared:
    """Inputs and outputs in dictionaries, outputs allocated by each call: the counterpart of `session.run`."""
    import tilewright as tw

    path, inputs = _load(model, batch)
    compiled = tw.compile(path, threads=threads)
    return Prepared(lambda: compiled.run(inputs), lambda: compiled.run(inputs), {"version": tw.__version__})


def _tilewright(model: str, threads: int, batch: int, dims: dict[str, int]) -> Prepared:
    import tilewright as tw

    path, inputs = _load(model, batch)
    compiled = tw.compile(path, threads=threads, dims=dims)
    arguments = [inputs[spec.name] for spec in compiled.inputs]
    outputs = compiled.empty_outputs(*arguments)
    buffers = tuple(outputs.values())
    return Prepared(lambda: compiled(*arguments, out=buffers), lambda: outputs, {"version": tw.__version__})


def _session(path: str, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def onnxruntime_bound(model: str, threads: int, batch: int) -> Prepared:
    """ONNX Runtime at its fastest: nothing is converted or allocated in a call (1-4 µs less than `session.run`)."""
    import onnxruntime

    path, inputs = _load(model, batch)
    session = _session(path, threads)
    names = [o.name for o in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, inputs), strict=True))
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    bound = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(x)) for name, x in outputs.items()}
    for name, value in bound.items():
        binding.bind_ortvalue_output(name, value)
    return Prepared(
        lambda: session.run_with_iobinding(binding),
        lambda: {name: value.numpy() for name, value in bound.items()},
        {"version": onnxruntime.__version__},
    )


def onnxruntime_run(model: str, threads: int, batch: int) -> Prepared:
    """ONNX Runtime as most programs call it."""
    import onnxruntime

    path, inputs = _load(model, batch)
    session = _session(path, threads)
    names = [o.name for o in session.get_outputs()]
    return Prepared(
        lambda: session.run(None, inputs),
        lambda: dict(zip(names, session.run(None, inputs), strict=True)),
        {"version": onnxruntime.__version__},
    )


def torch_eager(model: str, threads: int, batch: int) -> Prepared:
    """PyTorch in eager mode, for the models that come from PyTorch."""
    import torch

    from benchmarks import torch_models

    _, inputs = _load(model, batch)
    torch.set_num_threads(threads)
    module, _ = torch_models.create(model)
    tensors = [torch.from_numpy(x) for x in inputs.values()]
    names = torch_models.MODELS[model][2]

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    def outputs() -> dict[str, np.ndarray]:
        result = call()
        result = result if isinstance(result, tuple) else (result,)
        return {name: x.numpy() for name, x in zip(names, result, strict=True)}

    return Prepared(call, outputs, {"version": torch.__version__})


def _load(model: str, batch: int) -> tuple[str, dict[str, np.ndarray]]:
    import onnx

    from benchmarks import models

    path = models.load(model)
    return str(path), models.example_inputs(onnx.load(path, load_external_data=False), batch)
