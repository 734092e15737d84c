"""Small models with several threads against the same with one: `bench_threads --random COUNT`.

Each model is compiled for one thread and for several, and both are called in turns in one process: back to back, and
with a pause before each call, as an actor makes that steps an environment in between. After a pause, threads sleep
and must be woken. What is above the bound is compiled and timed twice more, and the median of the three counts. Races
during which other processes used a tenth of a core are made again: two threads have no core to spare for them.

Where memory happens to lie makes some slower by more than the bound. So the model for one thread is then timed against
itself, loaded once more, in the same way: "same".
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import tilewright as tw
from benchmarks import harness, models
from benchmarks.random_layers import layers

ROUNDS = 11
"""Turns of each model; the median of their ratios counts."""
TURN_SECONDS = 0.002
SETTLING_CALLS = 100
"""Calls before the first turn, made as the turns make them."""
PAUSES = (0.0, 0.0002)
"""Seconds before each call."""
BOUND = 1.05
"""Times as long as with one thread that a model may take with several."""
OTHERS = 0.1
"""Seconds that other processes may work in one second of a race,"""
TICK = 0.02
"""and two ticks of the system's clock."""
QUIET_TRIES = 2
POLICIES = ("m64", "m256", "nat")
BATCHES = (1, 8, 64)
NAME = "threads-random"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A model's seconds with one thread, several threads' time by it, and where that is above the bound the time of the
    model for one thread, compiled once more."""

    kind: str
    name: str
    pause: float
    one: float
    ratio: float
    same: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A model to be compiled for a number of threads, and its inputs."""

    kind: str
    name: str
    compile: Callable[[int], tw.Model]
    inputs: list[np.ndarray]


def random_cases(first: int, count: int, seed: int) -> Iterator[Case]:
    """`count` of the random layers, from the one at `first` on."""
    for k, layer in enumerate(layers(first + count, seed)):
        if k >= first:
            source = layer.graph, layer.weights()
            yield Case(layer.kind, f"{k}: {layer.name}", lambda n, s=source: tw.compile(s, threads=n), layer.inputs())


def policy_cases() -> Iterator[Case]:
    """The policies at some batches, compiled for the batch and for any."""
    for name in POLICIES:
        path = models.load(name)
        model = onnx.load(path)
        symbols = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
        for batch in BATCHES:
            inputs = list(models.example_inputs(model, batch).values())
            for dims in (dict.fromkeys(symbols, batch), {}):
                compile = lambda n, p=path, d=dims: tw.compile(p, threads=n, dims=d)  # noqa: E731
                yield Case("policy", f"{name}@{batch}{'' if dims else ', any batch'}", compile, inputs)


def measure(cases: Iterator[Case], threads: int, seconds: float) -> Iterator[Ratio]:
    """The cases' ratios, as many as can be timed in so many seconds."""
    end = time.monotonic() + seconds
    for case in cases:
        if time.monotonic() > end:
            return
        for pause in PAUSES:
            one, ratio = steady(case, threads, pause)
            same = steady(case, 1, pause)[1] if ratio > BOUND else None
            yield Ratio(case.kind, case.name, pause, one, ratio, same)


def steady(case: Case, threads: int, pause: float) -> tuple[float, float]:
    """Seconds with one thread and the ratio: of one race, or the median of three if that is above the bound."""
    results = [quiet_race(case, threads, pause)]
    while results[0][1] > BOUND and len(results) < 3:
        results.append(quiet_race(case, threads, pause))
    return sorted(results, key=lambda pair: pair[1])[len(results) // 2]


def quiet_race(case: Case, threads: int, pause: float) -> tuple[float, float]:
    """A race while nothing else runs, if that can be had within some tries."""
    for _ in range(QUIET_TRIES):
        pair = case.compile(1), case.compile(threads)
        start, before = time.monotonic(), _others()
        result = race(*pair, case.inputs, pause)
        if _others() - before <= OTHERS * (time.monotonic() - start) + TICK:
            break
    return result


def _others() -> float:
    """Seconds that the machine's cores have worked for others than this process; 0.0 where the system does not tell."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, soft = map(int, words[1:8])
    own = os.times()
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def race(one: tw.Model, several: tw.Model, inputs: Sequence[np.ndarray], pause: float = 0.0) -> tuple[float, float]:
    """Seconds of a call of the first model, and the median over paired turns of the second's by it."""
    turns = [_turn(model, inputs, pause) for model in (one, several)]
    calls = max(1, round(TURN_SECONDS / (min(turn(3) for turn in turns) + pause)))
    for turn in turns:
        turn(min(SETTLING_CALLS, 50 * calls))
    first: list[float] = []
    results: list[float] = []
    for k in range(ROUNDS):
        pair = [turn(calls) for turn in (turns if k % 2 else turns[::-1])]
        a, b = pair if k % 2 else pair[::-1]
        first.append(a)
        results.append(b / a)
    return statistics.median(first), statistics.median(results)


def _turn(model: tw.Model, inputs: Sequence[np.ndarray], pause: float) -> Callable[[int], float]:
    """Seconds of a call, as the mean over so many, or with a pause before each as their median."""
    out = model(*inputs)

    def back_to_back(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            model(*inputs, out=out)
        return (time.perf_counter() - start) / calls

    def paused(calls: int) -> float:
        times = []
        for _ in range(calls):
            later = time.perf_counter() + pause
            while (start := time.perf_counter()) < later:
                pass
            model(*inputs, out=out)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return paused if pause else back_to_back


def stored_rows(path: Path) -> list[Ratio]:
    """The rows of an earlier run, to which one adds; a run of a thousand layers may be made in parts."""
    return [Ratio(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


def report(rows: Sequence[Ratio], threads: int, facts: dict[str, object] | None) -> str:
    """Writes the report with what is known of the machine, or nothing if that is None; gives its text."""
    parts = []
    for pause in PAUSES:
        mine = [r for r in rows if r.pause == pause]
        title = "Back to back" if not pause else f"A pause of {pause * 1e6:.0f} µs before each call"
        parts += [f"## {title}", "", _by_length([r for r in mine if r.kind != "policy"])]
        worst = sorted(mine, key=lambda r: -r.ratio)[:10]
        parts += ["Slowest of all, by one thread:", "", _table(worst)]
        parts += ["Policies:", "", _table([r for r in mine if r.kind == "policy"])]
    text = "\n".join(parts) + "\n" + " ".join((__doc__ or "").split("\n\n", 1)[1].split()) + "\n"
    if facts is None:
        return text
    harness.RESULTS.mkdir(exist_ok=True)
    content = {"environment": facts, "rows": [dataclasses.asdict(r) for r in rows]}
    (harness.RESULTS / f"{NAME}.json").write_text(json.dumps(content, indent=1) + "\n")
    harness.write_markdown(NAME, f"Random layers with {threads} threads by the same with one", text, facts)
    return text


def _by_length(rows: Sequence[Ratio]) -> str:
    """Ratios of the random layers, by how long they take with one thread."""
    lengths = [(0, 1), (1, 3), (3, 10), (10, 30), (30, 100), (100, 1000), (1000, math.inf)]
    lines = []
    for low, high in [*lengths, (0, math.inf)]:
        some = sorted(r.ratio for r in rows if low <= r.one * 1e6 < high)
        if some:
            geomean = math.exp(statistics.fmean(map(math.log, some)))
            above = sum(r > BOUND for r in some)
            row = [f"{low} to {high}", len(some), f"{geomean:.3f}", f"{some[0]:.2f}", f"{some[-1]:.2f}", above]
            lines.append(row)
    header = ["one thread µs", "layers", "geometric mean", "least", "most", f"above {BOUND}"]
    return harness.markdown_table(header, lines)


def _table(rows: Sequence[Ratio]) -> str:
    lines = [
        [r.kind, r.name, f"{r.one * 1e6:.1f}", f"{r.ratio:.3f}", "-" if r.same is None else f"{r.same:.3f}"]
        for r in rows
    ]
    return harness.markdown_table(["kind", "layer", "one thread µs", "several by one", "same"], lines)
