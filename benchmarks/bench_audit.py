"""Estimates against the clock: random layers of every operator and plan, measured time by estimated time.

    python -m benchmarks.bench_audit [--count 500] [--seed 0] [--target x86-64-v3] [--seconds 120]

Each layer is compiled as users compile it ("auto") and with exact algorithms only, and timed in turns. A kernel's ratio
is its time by the estimate of its plan: estimates decide among algorithms, so a plan outside 0.5 to 2 is a defect to be
mended, or an exception that has a name. Kernels shorter than `SHORTEST` are left out: a call alone takes so long. The
report goes to results/audit-TARGET.json, the picture beside it where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright as tw
from benchmarks.harness import RESULTS
from benchmarks.random_layers import Layer, layers, lowered
from tilewright.plans import plan
from tilewright.support.progress import progress
from tilewright.targets.target import Target

LOW, HIGH = 0.5, 2.0
SLOWER = 1.1
"""Times of "auto" against "exact" from which on the choice of an algorithm was wrong."""
SHORTEST = 20e-6
"""Seconds."""
PROFILES = 3
TURNS = 7
TURN_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Timed:
    """One kernel of a layer: its plan, its time and the estimate, in seconds."""

    kind: str
    layer: str
    plan: str
    knobs: str
    seconds: float
    estimate: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.estimate


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer by all algorithms and by exact ones only, seconds of a call."""

    kind: str
    layer: str
    auto: float
    exact: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_audit", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", help="of these kinds of layers alone, such as grouped max_pool")
    parser.add_argument("--target", default="host")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--outliers", type=int, default=30, help="how many to show")
    options = parser.parse_args(arguments)
    target = Target.parse(options.target)
    timed: list[Timed] = []
    choices: list[Choice] = []
    end = time.monotonic() + options.seconds
    with progress("layers", options.count) as step:
        for layer in layers(options.count, options.seed):
            if time.monotonic() > end:
                break
            if options.kinds and layer.kind not in options.kinds:
                continue
            choice, found = audited(layer, target)
            choices += [] if choice is None else [choice]
            timed += found
            step(layer.name)
    report(timed, choices, options.outliers)
    parts = {"kernels": timed, "choices": choices}
    text = {name: [dataclasses.asdict(row) for row in rows] for name, rows in parts.items()}
    (RESULTS / f"audit-{options.target}.json").write_text(json.dumps({"seed": options.seed, **text}, indent=1) + "\n")
    draw(timed, options.target)


def audited(layer: Layer, target: Target) -> tuple[Choice | None, list[Timed]]:
    """A layer's times by both settings, if these differ, and those of its kernels against their estimates."""
    models = [tw.compile((layer.graph, layer.weights()), target=target, fast=w) for w in ("auto", "exact")]
    inputs = layer.inputs()
    times: list[list[float]] = [[], []]
    calls = [1, 1]
    for turn in range(TURNS + 1):
        for k, model in enumerate(models):
            start = time.perf_counter()
            for _ in range(calls[k]):
                model(*inputs)
            seconds = (time.perf_counter() - start) / calls[k]
            if turn:
                times[k].append(seconds)
            else:
                calls[k] = max(1, min(1000, round(TURN_SECONDS / seconds)))
    # What else runs here only makes turns longer.
    choice = Choice(layer.kind, layer.name, *map(min, times)) if _differ(models) else None
    return choice, _kernels(layer, models[0], inputs, target)


def _differ(models: Sequence[tw.Model]) -> bool:
    """Whether two models of a layer are different programs."""
    first, second = (str(m.show("graph")) for m in models)
    return first != second


def _kernels(layer: Layer, model: tw.Model, inputs: list[np.ndarray], target: Target) -> list[Timed]:
    """The kernels of a call. Where the compiler groups them in another way, as for views, none has an estimate here."""
    run, _ = lowered(layer, target)
    profiles = [model.profile(*inputs).kernels for _ in range(PROFILES)]
    if [k.label for k in run] != [k.label for k in profiles[0]]:
        return []
    found = []
    for kernel, *measured in zip(run, *profiles, strict=True):
        planned = plan(kernel.func, target)
        estimate = (planned.chosen.cost or planned.least).cycles / target.frequency / 1e9
        seconds = min(m.seconds for m in measured)
        if max(seconds, estimate) > SHORTEST and estimate:
            found.append(Timed(layer.kind, layer.name, planned.plan, planned.chosen.label, seconds, estimate))
    return found


def report(timed: Sequence[Timed], choices: Sequence[Choice], most: int) -> None:
    """A table by plan, the kernels outside the range, the layers whose algorithm was not worth it."""
    console = Console(width=170)
    table = Table("plan", "kernels", "5 %", "median", "95 %", f"outside {LOW}-{HIGH}")
    plans: dict[str, list[float]] = defaultdict(list)
    for t in timed:
        plans[t.plan].append(t.ratio)
    for name, ratios in sorted(plans.items()):
        ends = np.quantile(ratios, [0.05, 0.5, 0.95])
        outside = sum(not LOW <= r <= HIGH for r in ratios)
        table.add_row(name, str(len(ratios)), *(f"{e:.2f}" for e in ends), str(outside))
    console.print(table)
    far = sorted((t for t in timed if not LOW <= t.ratio <= HIGH), key=lambda t: -abs(math.log(t.ratio)))
    for t in far[:most]:
        console.print(
            f"{t.ratio:6.2f}  {t.plan}: {t.knobs}  {t.kind} {t.layer}  {t.seconds * 1e6:.0f} µs", markup=False
        )
    slow = sorted((c for c in choices if c.auto > SLOWER * c.exact), key=lambda c: -c.auto / c.exact)
    console.print(
        f"{len(slow)} of {len(choices)} layers with another algorithm are slower than exact ones by more than {SLOWER}:"
    )
    for c in slow[:most]:
        console.print(f"{c.auto / c.exact:6.2f}  {c.kind} {c.layer}  {c.auto * 1e6:.0f} µs", markup=False)


def draw(timed: Sequence[Timed], target: str) -> None:
    """results/audit-TARGET.png: the ratios by estimate, a colour a plan; nothing without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None or not timed:
        return
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 6))
    for name in sorted({t.plan for t in timed}):
        own = [t for t in timed if t.plan == name]
        axes.loglog([t.estimate * 1e6 for t in own], [t.ratio for t in own], ".", label=f"{name} ({len(own)})")
    for end in (LOW, 1, HIGH):
        axes.axhline(end, color="grey", linewidth=0.7, linestyle="-" if end == 1 else "--")
    axes.set(xlabel="estimate, µs", ylabel="time / estimate", title=f"kernels of random layers, {target}")
    axes.legend(fontsize=8)
    figure.savefig(RESULTS / f"audit-{target}.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
