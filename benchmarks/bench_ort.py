"""Models in ONNX Runtime's sessions on our execution provider, against the same by `tw.compile` and ONNX Runtime's own
provider: `python -m benchmarks.bench_ort --write` (or `make bench-ort`).

For each model: the largest difference of the outputs from those of ONNX Runtime's CPU provider, how many nodes are left
to it, and times in one process, in turns; what a session costs that takes these inputs and computes nothing is taken
once more by itself, since no provider can save it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tilewright as tw
import tilewright.ort
from benchmarks import light_models, models
from benchmarks.harness import relative_error

RESULTS = models.ROOT / "benchmarks" / "results" / "ort.md"
LIGHT = [f"light-{name}" for name in light_models.names()]
OURS = "m64 m256 nat nl imp imp84 hok1 hok3 dz txl az6 towers256".split()
BAR = 1.05
TURN, MIN_TURNS = 3, 5
"""Calls of a turn, and the least number of turns of each contender."""


@dataclass(frozen=True)
class Row:
    """One model: microseconds of a call alone, ratios of times to that, and the error."""

    name: str
    left: int
    error: float
    alone: float
    inside: float
    bound: float
    cpu: float
    empty: float
    empty_bound: float

    @property
    def without_empty(self) -> float:
        """A session's time by `run`, without that of one that computes nothing."""
        return self.inside - self.empty

    @property
    def bound_without_empty(self) -> float:
        """The time with memory that is bound, without that of a session that computes nothing."""
        return self.bound - self.empty_bound


def measured(name: str, seconds: float, threads: int) -> Row:
    """Compile a model three times, compare and race."""
    path = models.load(name)
    proto = onnx.load(path)
    feed = models.example_inputs(proto)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    reference = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    empty = onnxruntime.InferenceSession(_without_nodes(proto), options, providers=["CPUExecutionProvider"])
    options.add_provider_for_devices(tilewright.ort.register(), {"threads": str(threads)})
    session = onnxruntime.InferenceSession(str(path), options)
    left = len(tilewright.ort.left()[-1])
    names = [o.name for o in session.get_outputs()]
    want, got = (dict(zip(names, s.run(None, feed), strict=True)) for s in (reference, session))
    model = tw.compile(path, threads=threads)
    binding, empty_binding = (_bound(s, feed) for s in (session, empty))
    calls: list[Callable[[], Any]] = [
        lambda: model.run(feed),
        lambda: session.run(None, feed),
        lambda: session.run_with_iobinding(binding),
        lambda: reference.run(None, feed),
        lambda: empty.run(None, feed),
        lambda: empty.run_with_iobinding(empty_binding),
    ]
    # The thread's own time does not count other processes of the machine, but no other threads either.
    alone, *others = race(calls, seconds, time.thread_time if threads == 1 else time.perf_counter)
    return Row(name, left, relative_error(got, want), 1e6 * alone, *(t / alone for t in others))


def _without_nodes(model: onnx.ModelProto) -> bytes:
    """A model of the same inputs, whose one output is the shape of the first."""
    known = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in known]
    output = onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [None])
    node = onnx.helper.make_node("Shape", [inputs[0].name], ["shape"])
    graph = onnx.helper.make_graph([node], "empty", inputs, [output])
    data: bytes = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    ).SerializeToString()
    return data


def _bound(session: onnxruntime.InferenceSession, feed: dict[str, Any]) -> Any:
    """Bindings of a session's inputs, and of its outputs to memory that it makes."""
    binding = session.io_binding()
    for k, x in feed.items():
        binding.bind_cpu_input(k, x)
    for o in session.get_outputs():
        binding.bind_output(o.name)
    return binding


def race(calls: Sequence[Callable[[], Any]], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Seconds of a call of each: the lower quartile of many calls, in turns of a few, which other processes disturb
    least."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(8):  # trials of numbers of threads, and sizes that are new
            call()
    end, k = time.perf_counter() + seconds, 0
    while k < MIN_TURNS or time.perf_counter() < end:
        for c in (range(len(calls)), reversed(range(len(calls))))[k % 2]:
            for _ in range(TURN):
                start = clock()
                calls[c]()
                times[c].append(clock() - start)
        k += 1
    return [float(np.quantile(t, 0.25)) for t in times]


def report(rows: Sequence[Row], threads: int) -> str:
    """The table."""
    lines = [
        "# Inside ONNX Runtime",
        "",
        f"`make bench-ort`: sessions of ONNX Runtime {onnxruntime.__version__} on our execution provider, "
        f"{threads} thread{'s' if threads > 1 else ''}, against",
        "calls of what `tw.compile` makes of the same file (`model.run`, by names): lower quartiles of many calls, in",
        "turns. A ratio below 1 means that the session is faster. The error is the largest difference from ONNX",
        "Runtime's CPU provider, by the largest value of the output; `left` counts the nodes that ONNX Runtime runs.",
        "`less empty`: without what a session of ONNX Runtime's CPU provider takes that has the model's inputs and",
        "gives the shape of the first, which no provider can save. Times are the thread's own.",
        "",
        "| model | left | error | alone µs | session / alone | less empty | bound memory / alone | less empty "
        "| ONNX Runtime's CPU / alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.name} | {r.left} | {r.error:.1e} | {r.alone:.4g} | {r.inside:.3f} | {r.without_empty:.3f} "
        f"| {r.bound:.3f} | {r.bound_without_empty:.3f} | {r.cpu:.2f} |"
        for r in rows
    ]
    kinds = ("inside", "without_empty", "bound", "bound_without_empty", "cpu")
    means = [f"{np.exp(np.mean(np.log([getattr(r, k) for r in rows]))):.3f}" for k in kinds]
    lines += [f"| geometric mean | | | | {' | '.join(means)} |", ""]
    within = sum(r.bound <= BAR for r in rows), sum(r.bound_without_empty <= BAR for r in rows)
    lines += [
        f"Required is that a session takes at most {BAR} of the time alone: with bound memory "
        f"{within[0]} of {len(rows)} do,",
        f"and {within[1]} without ONNX Runtime's own time.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join([*OURS, *LIGHT]), help="names, comma-separated")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a model's race")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(models.ROOT)}")
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        rows.append(measured(name, options.seconds, options.threads))
        gc.collect()
        print(rows[-1], flush=True)
    text = report(rows, options.threads)
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
