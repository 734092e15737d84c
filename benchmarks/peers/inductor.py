"""PyTorch: eager, and compiled by Inductor.

Models that come from PyTorch are the module itself; the others are made from the ONNX file by `onnx_torch`.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from benchmarks import models
from benchmarks.peers.common import Arrays, fixed_shapes, load
from tilewright.measure.contender import Prepared


def compiled(model: str, threads: int, batch: int) -> Prepared:
    """`torch.compile` with weights folded and every choice tried; its caches are kept under `build`."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(models.ROOT / "build" / "peers" / "inductor"))
    import torch
    import torch._inductor.config as config

    torch._dynamo.reset()
    torch.compiler.set_stance("default")
    config.freezing = True
    config.max_autotune = True
    config.cpp_wrapper = False
    prepared = _prepared(model, threads, batch, lambda module: torch.compile(module, dynamic=False, fullgraph=True))
    torch.compiler.set_stance(skip_guard_eval_unsafe=True)  # the inputs stay the same: 30 µs less a call
    return prepared


def eager(model: str, threads: int, batch: int) -> Prepared:
    """PyTorch as most actors run it."""
    return _prepared(model, threads, batch, lambda module: module)


def _prepared(model: str, threads: int, batch: int, compile: Any) -> Prepared:
    import torch

    _, inputs = load(model, batch)
    torch.set_num_threads(threads)
    module, names = _module(model, batch)
    function = compile(module)
    tensors = [torch.from_numpy(x) for x in inputs.values()]

    # One decorated function: a `with` in the call would be set up anew each time.
    @torch.inference_mode()
    def call() -> Any:
        return function(*tensors)

    def outputs() -> Arrays:
        result = call()
        result = result if isinstance(result, tuple) else (result,)
        return {name: x.numpy() for name, x in zip(names, result, strict=True)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    return Prepared(call, outputs, {"version": torch.__version__})


def _module(model: str, batch: int) -> tuple[Any, list[str]]:
    base = model.removesuffix("-torchscript")
    if base in models.TORCH:
        from benchmarks import torch_models

        return torch_models.create(base)[0], torch_models.MODELS[base].outputs
    from benchmarks import onnx_torch

    module = onnx_torch.module(fixed_shapes(model, batch))
    return module, module.outputs
