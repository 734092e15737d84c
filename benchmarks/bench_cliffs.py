"""Layers that networks lean on, against eager PyTorch in the same process: where we would be slower than it.

    python -m benchmarks.bench_cliffs [--only NAME...] [--target x86-64-v3] [--rounds 9] [--write]

One thread each, calls in turns, CPU time: the least of the turns on each side, and the median of the turns' ratios,
eager's time by ours: 1 is level and less than 1 a cliff. Results are checked against eager first. `--write`
puts the table into results/cliffs-TARGET.json; that of some layers into one with their names after it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console

import tilewright as tw
from benchmarks.eager_layers import Case, cases
from benchmarks.harness import RESULTS

TURN_SECONDS = 0.01
TOLERANCE = 1e-4
"""The error that is allowed, relative to the largest magnitude of an output: eager itself rounds in another order."""


@dataclass(frozen=True, slots=True)
class Row:
    """A layer's times, microseconds of a call, and eager's time by ours."""

    name: str
    eager: float
    ours: float
    ratio: float


def measure(case: Case, rounds: int, target: str | None) -> Row:
    """The times of a layer on both sides, in turns; raises where the results differ."""
    model = tw.compile(case.module, case.inputs, dynamic=None, target=target)
    with torch.inference_mode():
        check(case, model)

        def eager() -> object:
            return case.module(*case.inputs)

        def ours() -> object:
            return model(*case.inputs)

        calls = [max(1, round(TURN_SECONDS / once(side))) for side in (eager, ours)]
        turns = [[timed(side, n) for side, n in zip((eager, ours), calls, strict=True)] for _ in range(rounds)]
    ratio = statistics.median(e / o for e, o in turns)
    least = [min(side) * 1e6 for side in zip(*turns, strict=True)]
    return Row(case.name, round(least[0], 1), round(least[1], 1), round(ratio, 3))


def check(case: Case, model: tw.Model) -> None:
    expected, got = case.module(*case.inputs), model(*case.inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = got if isinstance(got, tuple | list) else (got,)
    for e, g in zip(expected, got, strict=True):
        error = np.abs(np.asarray(g, np.float64) - e.numpy().astype(np.float64)).max(initial=0)
        bound = TOLERANCE * max(1.0, float(e.abs().max()))
        if not error <= bound:
            raise SystemExit(f"{case.name}: differs from eager by {error:.2g}, expected at most {bound:.2g}")


def once(side: Callable[[], object]) -> float:
    """Seconds of a warm call."""
    side()
    return min(timed(side, 1) for _ in range(3))


def timed(side: Callable[[], object], calls: int) -> float:
    """Seconds that this thread computed for a call: what else the machine runs is not counted."""
    start = time.thread_time()
    for _ in range(calls):
        side()
    return (time.thread_time() - start) / calls


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_cliffs", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="layers whose names contain one of these")
    parser.add_argument("--target", default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(width=120)
    rows = []
    for name, make in cases().items():
        if not any(part in name for part in options.only):
            continue
        try:
            rows.append(measure(make(), options.rounds, options.target))
        except tw.Error as error:
            console.print(f"{name}: {error}", markup=False)
            continue
        r = rows[-1]
        console.print(f"{r.ratio:6.2f}  {r.name:36s} eager {r.eager:10.1f} µs  ours {r.ours:10.1f} µs", markup=False)
    if options.write:
        text = json.dumps([asdict(r) for r in rows], indent=1)
        some = "".join(f"-{part}" for part in options.only if part)
        (RESULTS / f"cliffs-{options.target or 'host'}{some}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
