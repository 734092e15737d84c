"""Random layers against ONNX Runtime and OpenVINO: where either of them would be faster.

    python -m benchmarks.bench_random_peers [--count 1500] [--seed 0] [--kinds conv1x1] [--seconds 300] [--write]

Layers are those of `random_layers`, written as ONNX models. All three run in one process with one thread each and take
turns, each with buffers that were made before; the least of a side's turns counts, so that many layers can be looked
at. A layer below 1 is looked into with one framework a process. `--write` puts the table into
results/random-peers.md.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino

import tilewright as tw
from benchmarks import harness
from benchmarks.peers import vino
from benchmarks.random_layers import Array, Layer, layers
from tilewright.codegen.onnx.emit import onnx_model
from tilewright.support.progress import progress

TURN, TURNS = 0.004, 5
SHOWN = 1.1
"""Layers that the best peer takes less than so many times our time for are listed."""
TOLERANCE = 2e-4
"""The error that is allowed, relative to the largest element: weights of random layers are positive, so that norms in
front of them cancel digits."""


@dataclass(frozen=True, slots=True)
class Row:
    """A layer's least times, microseconds of a call: ours, ONNX Runtime's, OpenVINO's."""

    kind: str
    name: str
    ours: float
    ort: float
    vino: float

    @property
    def ratio(self) -> float:
        """The best peer's time by ours."""
        return min(self.ort, self.vino) / self.ours


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_random_peers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", help="of these kinds of layers alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--write", action="store_true", help="write results/random-peers.md")
    options = parser.parse_args(arguments)
    result, end = [], time.monotonic() + options.seconds
    chosen = [x for x in layers(options.count, options.seed) if not options.kinds or x.kind in options.kinds]
    with tempfile.TemporaryDirectory() as folder, progress("layers", len(chosen)) as step:
        for layer in chosen:
            if time.monotonic() > end:
                break
            step(layer.name)
            result.append(race(layer, Path(folder) / "layer.onnx"))
    text = report(result)
    harness.console().print(text)
    if options.write:
        title = f"Random layers: the best of ONNX Runtime and OpenVINO by Tilewright, {len(result)} layers, one thread"
        harness.write_markdown("random-peers", title, text)


def race(layer: Layer, path: Path) -> Row:
    """All three on one layer; raises where results differ."""
    proto = onnx_model(layer.graph, layer.weights())
    onnx.save(proto, path)
    inputs = dict(zip((v.name for v in proto.graph.input), layer.inputs(), strict=True))
    sides = [ours(proto, inputs), ort(path, inputs), openvinos(path, inputs)]
    results = [call() for call, _ in sides]
    for got in results[1:]:
        error = np.abs(results[0].astype(np.float64) - got).max(initial=0) / np.abs(got).max(initial=1e-30)
        if not error <= TOLERANCE:
            raise SystemExit(f"{layer.kind} {layer.name}: results differ by {error:.1e} of the largest element")
    timers = [timeit.Timer(call) for _, call in sides]
    counts = [max(1, int(TURN / max(1e-7, timer.timeit(3) / 3))) for timer in timers]
    best = [math.inf] * len(timers)
    for _ in range(TURNS):
        best = [min(b, t.timeit(n) / n) for b, t, n in zip(best, timers, counts, strict=True)]
    return Row(layer.kind, layer.name, *(1e6 * b for b in best))


Side = tuple[Callable[[], Array], Callable[[], object]]
"""A call that returns a copy of the result, and the call that is timed."""


def ours(proto: onnx.ModelProto, inputs: dict[str, Array]) -> Side:
    model = tw.compile(proto, threads=1)
    args = [inputs[spec.name] for spec in model.inputs]
    out = np.array(model(*args))
    return lambda: np.array(model(*args)), lambda: model(*args, out=out)


def ort(path: Path, inputs: dict[str, Array]) -> Side:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    (result,) = session.run(None, inputs)
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    binding.bind_ortvalue_output(session.get_outputs()[0].name, onnxruntime.OrtValue.ortvalue_from_numpy(result.copy()))
    return lambda: result, lambda: session.run_with_iobinding(binding)


def openvinos(path: Path, inputs: dict[str, Array]) -> Side:
    request = openvino.Core().compile_model(path, "CPU", vino.settings(1)).create_infer_request()
    for name, value in inputs.items():
        request.get_tensor(name).data[...] = value

    def call() -> object:
        return request.infer(share_outputs=True)

    def result() -> Array:
        call()
        return np.array(request.get_output_tensor(0).data)

    return result, call


def report(rows: Sequence[Row]) -> str:
    """A table by kind, and the layers that a peer comes close to."""
    table = []
    for kind in (*sorted({r.kind for r in rows}), ""):
        of = [r.ratio for r in rows if kind in ("", r.kind)]
        if of:
            mean = math.exp(sum(map(math.log, of)) / len(of))
            table.append((kind or "all", len(of), f"{mean:.2f}", f"{min(of):.2f}", sum(r < 1 for r in of)))
    inner = [
        (f"{r.kind} {r.name}", f"{r.ours:.1f}", f"{r.ort:.1f}", f"{r.vino:.1f}", f"{r.ratio:.2f}")
        for r in sorted((r for r in rows if r.ratio < SHOWN), key=lambda r: r.ratio)
    ]
    return "\n\n".join(
        [
            harness.markdown_table(("kind", "layers", "best peer by ours, mean", "least", "below 1"), table),
            f"Below {SHOWN}, least times in microseconds:",
            harness.markdown_table(("layer", "ours", "ONNX Runtime", "OpenVINO", "best by ours"), inner),
        ]
    )


if __name__ == "__main__":
    main()
