"""The untuned choice against the best setting of all: every candidate of a layer compiled, run and ranked.

    python -m benchmarks.bench_choice [--layers NAME...] [--compile | --measure]

What the compiler decides for a layer (`tilewright.plans.framework.decisions`) is enumerated: each setting of each
decision about the graph, and for each of those every setting of each kernel's plan (with --most N a part of them). The
candidates are timed quickly, those near the best taken turns with the untuned one until medians settle, and the last
two raced against each other, loaded anew a few times, for where memory happens to lie is worth some percents. The loss
is how much longer the untuned one takes. Compiling and measuring can be done apart, for the first needs no quiet
machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks import harness, layers, models
from tilewright.plans.framework.decisions import Decision, deciding
from tilewright.support.progress import progress

LAYERS = (
    "conv3x3-64-64-56",
    "conv3x3-256-256-14",
    "conv3x3-128-128-56-s2",
    "conv1x1-256-64-56",
    "conv1x1-1024-256-14",
    "conv7x7-3-64-224-s2",
    "gemm-512x512x512",
    "gemm-128x768x3072",
    "gemm-4x512x512",
    "gemv-1x3072x768",
    "depthwise3x3-144-144-56",
    "softmax-1536x128",
)
FOLDER = models.ROOT / "build" / "choice"
NEAR = 1.15
"""Candidates within this of the best quick time are measured again."""
FINALISTS = 12
ROUNDS = 15
COPIES = 5
LAST_ROUNDS = 11
"""Of each of the copies."""
QUICK_SECONDS = 0.004
QUICK_ROUNDS = 7
"""Short turns far apart, of which the best counts: what disturbs a machine lasts longer than one."""

Forced = dict[str, str]


def settings(model: Path) -> Iterator[tuple[Forced, list[Decision]]]:
    """Every setting to try, the untuned one (nothing forced) first, each with the decisions it met."""
    _, made = compiled(model, {})
    yield {}, made
    layout = [d for d in made if not _is_kernel(d) and len(d.space) > 1]
    for labels in itertools.product(*[d.space.labels for d in layout]):
        chosen = {d.key.name: label for d, label in zip(layout, labels, strict=True)}
        untuned = all(label == d.taken.label for d, label in zip(layout, labels, strict=True))
        met = made if untuned else compiled(model, chosen)[1]
        if not untuned:
            yield chosen, met
        for d in met:
            if _is_kernel(d):
                mine = [s for s in d.space if s.kind == d.taken.kind and s != d.taken]
                yield from (({**chosen, d.key.name: s.label}, met) for s in mine)


def _is_kernel(d: Decision) -> bool:
    return d.key.kind == "plan"


def compiled(model: Path, forced: Mapping[str, str]) -> tuple[tw.Model, list[Decision]]:
    with deciding(forced) as record:
        result = tw.compile(model, threads=1)
    return result, record.made


def describe(forced: Forced, made: Sequence[Decision]) -> str:
    """The labels of the decisions that had an alternative, layouts first."""
    several = [d for d in made if len(d.space) > 1]
    several.sort(key=_is_kernel)
    return " / ".join(forced.get(d.key.name, d.taken.label) for d in several) or "no choice"


def some(everything: Sequence[tuple[Forced, list[Decision]]], most: int) -> list[tuple[Forced, list[Decision]]]:
    """The first, half of what is wanted by the estimates, and of the others as many as are wanted, drawn by chance."""
    if len(everything) <= most:
        return list(everything)
    ranked = sorted(everything[1:], key=lambda s: distance(*s))
    half = most // 2
    return [everything[0], *ranked[:half], *random.Random(0).sample(ranked[half:], most - 1 - half)]


def distance(forced: Forced, made: Sequence[Decision]) -> float:
    """How much worse than the best the estimates say a setting is: the product over its decisions."""
    result = 1.0
    for d in made:
        estimates = dict(zip(d.space.labels, d.estimates, strict=True))
        if min(d.estimates) > 0:
            result *= estimates[forced.get(d.key.name, d.taken.label)] / min(d.estimates)
    return result


def compile_all(name: str, most: int) -> int:
    """Compile the candidates of a layer into a folder of its own; how many there are, compiled or not."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = models.load(layers.read()[name].model)
    index = []
    everything = list(settings(path))
    with progress(name) as step:
        for number, (forced, made) in enumerate(some(everything, most)):
            file = folder / f"{number}.tw"
            compiled(path, forced)[0].save(file)
            index.append({"file": file.name, "label": describe(forced, made), "space": len(everything)})
            step("")
    (folder / "index.json").write_text(json.dumps(index))
    return len(everything)


@dataclass(slots=True)
class Contender:
    number: int
    label: str
    call: Callable[[], object]
    calls: int
    times: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def turn(self) -> float:
        """Time some calls, after one that brings back into the caches what others have displaced."""
        self.call()
        start = time.perf_counter()
        for _ in range(self.calls):
            self.call()
        self.times.append((time.perf_counter() - start) / self.calls)
        return self.times[-1]


def load(name: str, number: int, entry: Mapping[str, Any], inputs: Mapping[str, Any], calls: int = 1) -> Contender:
    """A candidate of a layer, ready to run."""
    model = tw.load(FOLDER / name / entry["file"], threads=1)
    arguments = [inputs[i.name] for i in model.inputs]
    out = next(iter(model.empty_outputs(*arguments).values()))
    return Contender(number, entry["label"], _caller(model, arguments, out), calls, [])


def _caller(model: tw.Model, arguments: list[Any], out: np.ndarray[Any, Any]) -> Callable[[], object]:
    return lambda: model(*arguments, out=out)


def measure(name: str) -> dict[str, Any]:
    """Rank a layer's candidates."""
    index = json.loads((FOLDER / name / "index.json").read_text())
    inputs = models.example_inputs(onnx.load(models.load(layers.read()[name].model)))
    contenders = [load(name, number, entry, inputs) for number, entry in enumerate(index)]
    untuned = contenders[0]
    untuned.call()
    calls = max(1, math.ceil(QUICK_SECONDS / max(untuned.turn(), 1e-7)))
    for c in contenders:
        c.turn()
        c.calls = calls
    take_turns(contenders, QUICK_ROUNDS)
    quick = {c.number: min(c.times) for c in contenders}
    ranked = sorted(contenders, key=lambda c: quick[c.number])
    best = quick[ranked[0].number]
    near = [c for c in ranked if quick[c.number] <= NEAR * best][:FINALISTS]
    take_turns(near if untuned in near else [*near, untuned], ROUNDS)
    winner = min(near, key=lambda c: c.median)
    copies = [[load(name, c.number, index[c.number], inputs, calls) for c in (winner, untuned)] for _ in range(COPIES)]
    ratio = statistics.median(take_turns(pair, LAST_ROUNDS) for pair in copies) if winner is not untuned else 1.0
    return {
        "commit": harness.commit(),
        "layer": name,
        "candidates": len(contenders),
        "space": index[0]["space"],
        "untuned": untuned.label,
        "best": winner.label,
        "untuned_us": untuned.median * 1e6,
        "best_us": winner.median * 1e6,
        "rank": 1 + sum(quick[c.number] < quick[untuned.number] for c in contenders),
        "loss": max(ratio, 1.0) - 1.0,
        "all_us": {c.label: quick[c.number] * 1e6 for c in ranked},
    }


def take_turns(contenders: Sequence[Contender], rounds: int) -> float:
    """Rounds in alternating order; the median over the rounds of last / first."""
    for c in contenders:
        c.times = []
    for k in range(rounds):
        for c in contenders if k % 2 == 0 else reversed(contenders):
            c.turn()
    first, last = contenders[0], contenders[-1]
    return statistics.median(b / a for a, b in zip(first.times, last.times, strict=True))


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    mean = statistics.mean(r["loss"] for r in rows)
    table = harness.markdown_table(
        ["layer", "candidates", "untuned", "best", "µs untuned", "µs best", "rank", "loss"],
        [
            [r["layer"], f"{r['candidates']} of {r['space']}", r["untuned"], r["best"]]
            + [f"{r['untuned_us']:.1f}", f"{r['best_us']:.1f}", r["rank"], f"{r['loss']:.1%}"]
            for r in rows
        ],
    )
    part = sum(r["candidates"] < r["space"] for r in rows)
    note = f" Of {part} of them only a part of the space was timed: the best may be among the rest." if part else ""
    return f"Mean loss of the untuned choice over {len(rows)} layers: **{mean:.1%}**.{note}\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), metavar="NAME")
    parser.add_argument(
        "--most",
        type=int,
        default=10000,
        metavar="N",
        help="of a layer's candidates N: half by estimate, half by chance",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--compile", action="store_true", help="compile the candidates only")
    what.add_argument("--measure", action="store_true", help="measure those that were compiled before only")
    args = parser.parse_args()
    if not args.measure:
        for name in args.layers:
            print(f"{name}: {compile_all(name, args.most)} candidates", flush=True)
    if args.compile:
        return
    results = FOLDER / "rows.json"
    kept = json.loads(results.read_text()) if results.exists() else []
    rows = {r["layer"]: r for r in kept if r.get("commit") == harness.commit()}  # a table is of one commit
    for name in args.layers:
        rows[name] = measure(name)
        results.write_text(json.dumps(list(rows.values()), indent=1))
        print(f"{name}: {rows[name]['loss']:.1%} of {rows[name]['best_us']:.1f} µs", flush=True)
    ordered = [rows[name] for name in LAYERS if name in rows]
    if ordered:
        print(harness.write_report("choice", "The untuned choice against the best of all", ordered, report(ordered)))


if __name__ == "__main__":
    main()
