"""Updates of policies whose products have fewer bits, against f32's: `python -m benchmarks.bench_updates`.

Codes and scales of weights are computed by each `update`, and by each `publish` to a store; an actor that attaches to
the store maps the result. Bar: twice f32's time.
Times are the process's own on a processor, so that other work beside it counts as little as can be.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown

POLICIES = {
    "64-64-64-8": (64, 64, 64, 8),
    "376-400-300-17 (SAC)": (376, 400, 300, 17),
    "512-1024-1024-512": (512, 1024, 1024, 512),
    "1700-1024-512-200": (1700, 1024, 512, 200),
}
PRECISIONS = ("fp32", "int8", "int8w", "int4w")
ROUNDS = 200


def policy(sizes: tuple[int, ...]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A network of products with ReLU between, and its weights."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"w{k}"] = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        weights[f"b{k}"] = np.zeros(outputs, np.float32)
        nodes.append(helper.make_node("Gemm", [x, f"w{k}", f"b{k}"], [f"g{k}"], transB=1))
        nodes.append(helper.make_node("Relu", [f"g{k}"], [f"r{k}"]))
        x = f"r{k}"
    info = helper.make_tensor_value_info
    ends = [info("x", TensorProto.FLOAT, ["n", sizes[0]])], [info(x, TensorProto.FLOAT, ["n", sizes[-1]])]
    graph = helper.make_graph(nodes, "policy", *ends, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), weights


def ratios(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds on a processor of each call over f32's, in turns; under f32's own name its seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    base = np.asarray(times["fp32"])
    return {n: list(np.asarray(t) / base) if n != "fp32" else t for n, t in times.items()}


def calls_of(models: dict[str, Any], weights: dict[str, Any], folder: str) -> dict[str, dict[str, Callable[[], Any]]]:
    """Updates of models, publications to a store of each, and actors that attach to it."""
    publishers = {p: tw.Publisher(f"updates-{p}", m, directory=folder) for p, m in models.items()}
    return {
        "update": {p: lambda m=m: m.update(weights) for p, m in models.items()},
        "publish": {p: lambda u=u: u.publish(weights) for p, u in publishers.items()},
        "attach": {p: lambda p=p: tw.attach(f"updates-{p}", directory=folder).close() for p in models},
    }


def main() -> None:
    rows = []
    for name, sizes in POLICIES.items():
        model, weights = policy(sizes)
        models = {p: tw.compile(model, precision=p) for p in PRECISIONS}
        with tempfile.TemporaryDirectory() as folder:
            for what, calls in calls_of(models, weights, folder).items():
                seen = ratios(calls)
                cells = [f"{np.median(seen[p]):.2f} ({np.quantile(seen[p], 0.25):.2f})" for p in PRECISIONS[1:]]
                rows.append([name, what, f"{1e6 * min(seen['fp32']):.0f}", *cells])
                print(rows[-1], flush=True)
    head = ["policy", "call", "µs of fp32, least", *(f"{p} / fp32" for p in PRECISIONS[1:])]
    text = markdown_table(head, rows) + "\n\nMedians of paired ratios in turns, in parentheses their lower quartiles."
    write_markdown("updates", "Updates in fewer bits against f32 (bar: 2), 1 thread", text)


if __name__ == "__main__":
    main()
