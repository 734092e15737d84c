"""Frameworks on a trace of sizes: each round they do the next calls of it, all of them the same ones.

A model is set up once, for all sizes, or peers for one of them alone; a size that was not seen before is met as it
comes. Inputs are made before the clock starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.bench_dynamic import CALLS, TRACES, Trace, inputs_for, quantile_shapes
from benchmarks.peers import vino
from tilewright.measure.contender import Prepared

AT = " at "
"""Between a trace's name and sizes that peers are set up for alone."""
Arrays = dict[str, np.ndarray[Any, Any]]
Call = Callable[[Arrays], Any]


def _chosen(trace: str) -> Trace:
    """The trace of this name; after `AT`, the sizes that all of its calls have."""
    name, _, sizes = trace.partition(AT)
    every = TRACES[name]
    if not sizes:
        return every
    known = dict(zip(every.ranges, map(int, sizes.split("x")), strict=True))
    return replace(every, fixed={**every.fixed, **known}, ranges={}, draw=lambda _: {})


def own(trace: str, threads: int, window: int) -> Prepared:
    """Ours, one compile with symbols."""
    import tilewright as tw

    every, chosen = TRACES[trace.partition(AT)[0]], _chosen(trace)
    model: Any = tw.compile(every.model(), dims=every.dims(blind=False), threads=threads)
    names = [spec.name for spec in model.inputs]
    return _prepared(chosen, window, lambda inputs: model(*[inputs[n] for n in names]), tw.__version__)


def onnxruntime(trace: str, threads: int, window: int) -> Prepared:
    """ONNX Runtime with all optimizations; dimensions that have one value are fixed."""
    import onnxruntime as ort

    chosen = _chosen(trace)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    for name, size in chosen.fixed.items():
        options.add_free_dimension_override_by_name(name, size)
    text = chosen.model().SerializeToString()
    session = ort.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    return _prepared(chosen, window, lambda inputs: session.run(None, inputs), ort.__version__)


def openvino(trace: str, threads: int, window: int) -> Prepared:
    """OpenVINO for the lowest time of one request, told of the ranges of sizes; its outputs are shared, not copied."""
    import openvino as ov

    chosen, core = _chosen(trace), ov.Core()
    proto = chosen.model()
    graph = core.read_model(proto.SerializeToString())
    ranges = {name: ov.Dimension(lo, hi) for name, (lo, hi, _) in chosen.ranges.items()}
    shapes = {}
    for info in proto.graph.input:
        dims = info.type.tensor_type.shape.dim
        sizes = [d.dim_value or chosen.fixed.get(d.dim_param) or ranges[d.dim_param] for d in dims]
        shapes[info.name] = ov.PartialShape([d if isinstance(d, ov.Dimension) else ov.Dimension(d) for d in sizes])
    graph.reshape(shapes)
    request = core.compile_model(graph, "CPU", vino.settings(threads)).create_infer_request()
    call: Call = lambda inputs: list(request.infer(inputs, share_inputs=True, share_outputs=True).values())  # noqa: E731
    return _prepared(chosen, window, call, ov.__version__)


def inductor(trace: str, threads: int, window: int) -> Prepared:
    """PyTorch compiled by Inductor, sizes that vary as symbols, weights folded. All sizes of the trace are met before:
    it compiles anew for those that it specialises on, such as 1."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(models.ROOT / "build" / "peers" / "inductor"))
    import torch
    import torch._inductor.config as config

    from benchmarks.onnx_torch import module

    chosen = _chosen(trace)
    proto = chosen.model()
    torch.set_num_threads(threads)
    torch._dynamo.config.recompile_limit = 64
    config.freezing = True
    config.max_autotune = True
    compiled = torch.compile(module(proto), fullgraph=True)
    names = [info.name for info in proto.graph.input]
    varying = {
        info.name: [k for k, d in enumerate(info.type.tensor_type.shape.dim) if d.dim_param in chosen.ranges]
        for info in proto.graph.input
    }

    @torch.inference_mode()
    def call(inputs: Arrays, marked: bool = False) -> Any:
        tensors = [torch.from_numpy(inputs[n]) for n in names]
        for name, tensor in zip(names, tensors, strict=True) if marked else ():
            for k in varying[name]:
                torch._dynamo.maybe_mark_dynamic(tensor, k)
        return [y.numpy() for y in compiled(*tensors)]

    rng = np.random.default_rng(6)
    for sizes in quantile_shapes(chosen, 3)[1:2] + quantile_shapes(chosen, CALLS):
        call(inputs_for(proto, {**chosen.fixed, **sizes}, rng), marked=True)
    torch.compiler.set_stance(skip_guard_eval_unsafe=True)  # only what distinguishes its versions is tested
    return _prepared(chosen, window, call, torch.__version__)


def _prepared(trace: Trace, window: int, call: Call, version: str) -> Prepared:
    """A contender whose turns are the windows of the trace, one after the other."""
    proto, rng = trace.model(), np.random.default_rng(7)
    calls = [{**trace.fixed, **sizes} for sizes in trace.sizes(seed=0)]
    warm = inputs_for(proto, {**trace.fixed, **trace.sizes(seed=9, count=1)[0]}, rng)
    first = inputs_for(proto, calls[0], np.random.default_rng(8))
    done = 0

    def parts(_: int) -> list[float]:
        nonlocal done
        inputs = [inputs_for(proto, calls[k % len(calls)], rng) for k in range(done, done + window)]
        done += window
        return [_seconds(call, arrays) for arrays in inputs]

    def outputs() -> Arrays:
        result = call(first)
        arrays = result if isinstance(result, list | tuple) else [result]
        return {f"{k}": np.array(a) for k, a in enumerate(arrays)}

    return Prepared(lambda: call(warm), outputs, {"version": version}, parts)


def _seconds(call: Call, supplied: Arrays) -> float:
    start = time.perf_counter()
    call(supplied)
    return time.perf_counter() - start
