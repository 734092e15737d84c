"""One compile for every shape against a compile for each: `python -m benchmarks.bench_dynamic`.

Suite DYN: models whose sizes vary from call to call, with a seeded trace of sizes each. The model compiled once, with
symbols, and one compiled for a shape alone run in turns in one process, at some shapes of the trace: its quantiles.
Ratios are static time by dynamic time: 1.0 is no loss. The first call of a shape that was never seen is timed against
calls that repeat it.

The compiler is told of ranges, and of likely values that are drawn from the same distribution with another seed; with
`--blind` of ranges alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks import dynamic_models as models
from benchmarks.harness import RESULTS, markdown_table, write_report
from benchmarks.policy_suite import dz

Sizes = Mapping[str, int]
CALLS = 500
"""Calls of a trace."""
FIRST_SECONDS = 5.0
"""How long first calls of new shapes are timed."""
HEADER = ["trace", "shapes", "static / dynamic time", "worst", "at", "first call µs more", "arena / static's"]
HEADER += ["code / static's", "MB after it"]


@dataclass(frozen=True, slots=True)
class Trace:
    """A model and the sizes of its calls.

    Args:
        fixed: dimensions that have one value.
        ranges: what the compiler is told of the others.
        draw: the sizes of a call.
    """

    model: Callable[[], onnx.ModelProto]
    fixed: Sizes
    ranges: Mapping[str, tuple[int, int, int]]
    draw: Callable[[np.random.Generator], dict[str, int]]

    def sizes(self, seed: int, count: int = CALLS) -> list[dict[str, int]]:
        rng = np.random.default_rng(seed)
        return [self.draw(rng) for _ in range(count)]

    def dims(self, blind: bool) -> dict[str, Any]:
        """The dimensions that the compiler is told; likely values come of another seed than what is timed."""
        seen = [] if blind else self.sizes(seed=1000, count=200)
        known = {
            name: tw.dim(lo, hi, multiple=by, likely=[call[name] for call in seen])
            for name, (lo, hi, by) in self.ranges.items()
        }
        return {**self.fixed, **known}


def _lognormal(rng: np.random.Generator, median: float, sigma: float, lo: int, hi: int) -> int:
    return int(np.clip(round(float(rng.lognormal(np.log(median), sigma))), lo, hi))


def _image(rng: np.random.Generator) -> dict[str, int]:
    return {name: 32 * int(rng.integers(7, 21)) for name in ("height", "width")}


def _words(rng: np.random.Generator) -> dict[str, int]:
    return {"seq": _lognormal(rng, 40, 0.8, 8, 384)}


TRACES = {
    "BERT, 2 layers, batch 1": Trace(models.bert, {"batch": 1}, {"seq": (1, 512, 1)}, _words),
    "BERT, 2 layers, batch 8": Trace(models.bert, {"batch": 8}, {"seq": (1, 512, 1)}, _words),
    "GPT-2's first pass, 2 layers": Trace(models.prefill, {"batch": 1}, {"seq": (1, 512, 1)}, _words),
    "decoder step, 2 layers": Trace(
        models.decode, {"batch": 1}, {"past": (1, 1024, 1)}, lambda rng: {"past": int(rng.integers(1, 513))}
    ),
    "speech, 2 layers": Trace(
        models.speech, {}, {"frames": (8, 3000, 1)}, lambda rng: {"frames": _lognormal(rng, 600, 0.8, 50, 3000)}
    ),
    "DouZero": Trace(dz, {}, {"batch": (1, 300, 1)}, lambda rng: {"batch": _lognormal(rng, 15, 1.2, 1, 300)}),
    "ranker": Trace(
        models.ranker, {}, {"rows": (1, 2000, 1)}, lambda rng: {"rows": _lognormal(rng, 100, 1.3, 1, 2000)}
    ),
    "U-Net": Trace(models.unet, {}, {"height": (32, 640, 32), "width": (32, 640, 32)}, _image),
    "detector": Trace(models.detector, {}, {"height": (32, 640, 32), "width": (32, 640, 32)}, _image),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A shape: microseconds of both, the median ratio, and how many times the static program's arena ours has."""

    sizes: dict[str, int]
    dynamic: float
    static: float
    ratio: float
    arena: float


def inputs_for(model: onnx.ModelProto, sizes: Sizes, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs; places and ids are small numbers."""
    result = {}
    for info in model.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in info.type.tensor_type.shape.dim]
        floats = info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        counted = np.arange(shape[0]) if len(shape) == 1 else rng.integers(0, 1000, shape)
        result[info.name] = rng.standard_normal(shape).astype(np.float32) if floats else counted.astype(np.int64)
    return result


def quantile_shapes(trace: Trace, count: int) -> list[dict[str, int]]:
    """Distinct shapes of the trace, from its smallest to its largest."""
    order = sorted(trace.sizes(seed=0), key=lambda call: (int(np.prod(list(call.values()))), *call.values()))
    places = {round(k * (len(order) - 1) / max(1, count - 1)) for k in range(count)}
    return list({tuple(order[k].values()): order[k] for k in sorted(places)}.values())


@dataclass(frozen=True, slots=True)
class Row:
    """A trace: its points, what first calls cost, how many times a static program's code and the memory after it."""

    name: str
    points: tuple[Point, ...]
    first: tuple[float, ...]
    code: float
    held: int

    @property
    def cells(self) -> list[str]:
        worst = min(self.points, key=lambda p: p.ratio)
        at = ", ".join(f"{k} {v}" for k, v in worst.sizes.items())
        cells = [self.name, str(len(self.points)), f"{geomean([p.ratio for p in self.points]):.3f}"]
        cells += [f"{worst.ratio:.3f}", at, f"{statistics.median(self.first):.0f}"]
        cells += [f"{max(p.arena for p in self.points):.2f}", f"{self.code:.2f}", f"{self.held / 2**20:.1f}"]
        return cells


def geomean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def measure(name: str, trace: Trace, shapes: Sequence[Sizes], seconds: float, blind: bool) -> Row:
    """A trace at some shapes."""
    rng = np.random.default_rng(2)
    model = trace.model()
    dynamic: Any = tw.compile(model, dims=trace.dims(blind))
    first = first_calls(dynamic, model, trace)
    points, code = [], []
    for sizes in shapes:
        static: Any = tw.compile(model, dims={**trace.fixed, **sizes})
        inputs = inputs_for(model, {**trace.fixed, **sizes}, rng)
        args = [inputs[spec.name] for spec in dynamic.inputs]
        for ours, theirs in zip(_tuple(dynamic(*args)), _tuple(static(*args)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(np.abs(theirs).max()))
        points.append(point(dict(sizes), dynamic, static, args, seconds))
        code.append(_code(static))
        p = points[-1]
        print(f"  {name} {p.sizes}: {p.ratio:.3f}  {p.dynamic:.1f} us, {p.static:.1f} us", flush=True)
    return Row(name, tuple(points), tuple(first), _code(dynamic) / max(code), dynamic.memory().arenas_held)


def point(sizes: dict[str, int], dynamic: Any, static: Any, args: Sequence[Any], seconds: float) -> Point:
    """Both programs in turns, for so many seconds."""
    calls = max(1, int(0.005 / max(1e-7, min(_time(dynamic, args, 1) for _ in range(3)))))
    ratios, times, deadline = [], [], time.perf_counter() + seconds
    while len(ratios) < 7 or time.perf_counter() < deadline:
        a, b, c, d = (_time(f, args, calls) for f in (dynamic, static, static, dynamic))
        ratios.append((b + c) / (a + d))
        times.append(((a + d) / 2 * 1e6, (b + c) / 2 * 1e6))
    own, other = (statistics.median(column) for column in zip(*times, strict=True))
    arena = dynamic.memory(**sizes).arena / max(1, static.memory().arena)
    return Point(sizes, own, other, statistics.median(ratios), arena)


def first_calls(dynamic: Any, model: onnx.ModelProto, trace: Trace, count: int = 40) -> list[float]:
    """The microseconds that first calls of shapes that were not seen take beyond 1.05 times later ones.

    Each call has arrays of its own that were just written: those of the call before would be nearer in the caches.
    """
    rng, result = np.random.default_rng(3), []
    unseen = list({tuple(call.items()): call for call in trace.sizes(seed=5)}.values())[:count]
    deadline = time.perf_counter() + FIRST_SECONDS

    def call(sizes: Sizes) -> float:
        inputs = inputs_for(model, {**trace.fixed, **sizes}, rng)
        return _time(dynamic, [inputs[spec.name] for spec in dynamic.inputs], 1)

    for sizes in unseen:
        if result and time.perf_counter() > deadline:
            break
        first = call(sizes)
        result.append((first - 1.05 * statistics.median(call(sizes) for _ in range(3))) * 1e6)
    return sorted(result)


def _time(call: Callable[..., Any], args: Sequence[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call(*args)
    return (time.perf_counter() - start) / calls


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _code(model: Any) -> int:
    return sum(map(len, model.program.objects.values()))


def report(rows: Sequence[Row], name: str) -> None:
    """Write the table; traces that were not measured now stay as they were."""
    path = RESULTS / f"{name}.json"
    stored = json.loads(path.read_text())["rows"] if path.exists() else []
    known = {cells[0]: cells for cells in stored} | {row.name: row.cells for row in rows}
    table = [known[trace] for trace in TRACES if trace in known]
    title = "Suite DYN: one compile for all shapes against a compile for each, one thread"
    write_report(name, title, table, markdown_table(HEADER, table))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="traces whose names have this in them")
    parser.add_argument("--shapes", type=int, default=7, help="shapes of each trace")
    parser.add_argument("--at", help="one shape instead, as 32 or 64x96")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each shape")
    parser.add_argument("--blind", action="store_true", help="tell the compiler of ranges alone")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of programs, time nothing")
    parser.add_argument("--no-report", action="store_true", help="print only")
    parser.add_argument("--name", default="dynamic", help="of the report")
    options = parser.parse_args(arguments)
    rows = []
    for name, trace in TRACES.items():
        if options.only.lower() not in name.lower():
            continue
        shapes = quantile_shapes(trace, options.shapes)
        if options.at:
            shapes = [dict(zip(trace.ranges, map(int, options.at.split("x")), strict=True))]
        if options.compile_only:
            for dims in (trace.dims(options.blind), *({**trace.fixed, **sizes} for sizes in shapes)):
                tw.compile(trace.model(), dims=dims)
            continue
        rows.append(measure(name, trace, shapes, options.seconds, options.blind))
        print("  ".join(rows[-1].cells), flush=True)
    if rows and not options.no_report:
        report(rows, options.name)


if __name__ == "__main__":
    main()
