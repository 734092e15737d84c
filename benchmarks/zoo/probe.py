"""Compiles one architecture in this process, compares it with eager PyTorch and times both; prints a row as JSON.

    python -m benchmarks.zoo.probe NAME [--rounds 7] [--compile] [--memory 10]

`bench_zoo` starts it, with a cache folder of its own and a time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

import tilewright as tw
from benchmarks.zoo import built
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.row import TOLERANCE, Row
from tilewright.dynamo.backend import tilewright

TURN_SECONDS = 0.02
FUNCTIONAL = {"native": "auto", "native, fixed sizes": None}
"""The ways of `tw.compile` in turn, and what each says of symbolic sizes."""
DRAWN = "eager PyTorch differs from itself: the model draws random numbers"


class WrongError(Exception):
    """An output that is not eager's."""


def probe(name: str, rounds: int) -> Row:
    """The row of one architecture: the first way that takes it decides, and one that is wrong ends it."""
    entry = built(name)
    with torch.inference_mode(False), torch.no_grad():
        expected = leaves(entry.call(entry.module))
        if not any(len(e.unique()) > 1 for e in expected):
            return Row(name, "not built", "all outputs are one number in eager PyTorch, which shows nothing")
        try:
            compare(expected, leaves(entry.call(entry.module)))
        except WrongError:
            return Row(name, "not built", DRAWN)
        reasons: list[str] = []
        crashed = False
        for way in (*FUNCTIONAL, "torch.compile"):
            start = time.process_time()
            try:
                ours, model = compiled(entry, way)
                seconds = time.process_time() - start
                error = compare(expected, leaves(ours()))
            except tw.Error as refusal:
                reasons.append(f"{way}: {brief(refusal)}")
            except WrongError as wrong:
                return Row(name, "wrong", f"{way}: {wrong}", load=os.getloadavg()[0])
            except Exception as foreign:
                crashed = True
                reasons.append(f"{way}: {type(foreign).__name__}: {brief(foreign)}")
            else:
                row = Row(name, way, "; ".join(reasons), crashed, error, seconds, load=os.getloadavg()[0])
                return timed(row, entry, ours, model, rounds)
    return Row(name, "crashed" if crashed else "refused", "; ".join(reasons), crashed, load=os.getloadavg()[0])


def compiled(entry: Entry, way: str) -> tuple[Callable[[], Any], tw.Model | None]:
    """A call for the example, and the model after it if there is one. What is compiled at the first call is."""
    if way == "torch.compile":
        function = torch.compile(entry.module, backend=tilewright)
        entry.call(function)
        return (lambda: entry.call(function)), None
    model = tw.compile(entry.module, entry.example, dynamic=FUNCTIONAL[way])
    tensors = arguments(entry, model)
    return (lambda: model(*tensors)), model


def arguments(entry: Entry, model: tw.Model) -> list[torch.Tensor]:
    """The example in the order of the model's inputs."""
    if isinstance(entry.example, dict):
        return [entry.example[spec.name] for spec in model.inputs]
    return entry.tensors()


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of nested outputs, in order."""
    result = torch.utils._pytree.tree_leaves(value)
    return [torch.as_tensor(leaf) for leaf in result if leaf is not None and not isinstance(leaf, str)]


def compare(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """The largest difference of an output over its largest magnitude. Raises WrongError above the tolerance."""
    if len(expected) != len(got):
        raise WrongError(f"expected {len(expected)} outputs, got {len(got)}")
    worst = 0.0
    for k, (e, g) in enumerate(zip(expected, got, strict=True)):
        if e.shape != g.shape or e.dtype != g.dtype:
            raise WrongError(f"output {k}: expected {e.dtype}{list(e.shape)}, got {g.dtype}{list(g.shape)}")
        a, b = e.to(torch.float64), g.to(torch.float64)
        differences = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        finite = a[a.isfinite()].abs()
        largest = max(float(finite.max()) if finite.numel() else 0.0, 1e-6)
        error = float(differences.max()) / largest if differences.numel() else 0.0
        if not error <= TOLERANCE:
            raise WrongError(f"output {k} differs from eager by {error:.2g} of its largest, tolerance {TOLERANCE:g}")
        worst = max(worst, error)
    return worst


def timed(row: Row, entry: Entry, ours: Callable[[], Any], model: tw.Model | None, rounds: int) -> Row:
    """The row with times: CPU time of this thread, in turns, medians of the turns and of their ratios."""
    if not rounds:
        return row

    def eager() -> Any:
        return entry.call(entry.module)

    calls = [max(1, round(TURN_SECONDS / turn(side, 1))) for side in (eager, ours)]
    turns = [[turn(side, n) for side, n in zip((eager, ours), calls, strict=True)] for _ in range(rounds)]
    row.eager, row.ours = (statistics.median(side) * 1e6 for side in zip(*turns, strict=True))
    row.ratio = statistics.median(e / o for e, o in turns)
    if model is not None and row.ratio < 1:
        row.slowest = slowest(model, arguments(entry, model))
    return row


def turn(side: Callable[[], Any], calls: int) -> float:
    """Seconds that this thread computed for a call: what else the machine runs is not counted."""
    start = time.thread_time()
    for _ in range(calls):
        side()
    return max((time.thread_time() - start) / calls, 1e-9)


def slowest(model: tw.Model, tensors: Sequence[torch.Tensor]) -> str:
    """The two kinds of kernels that take most of a call, with their shares."""
    shares: dict[str, float] = defaultdict(float)
    for kernel in model.profile(*tensors, repeat=3).kernels:
        shares[kernel.label] += kernel.share
    most = sorted(shares.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{label} {share:.0%}" for label, share in most)


def brief(error: Exception) -> str:
    """The message of an error, in one line: of several problems the first, and how many others there are."""
    if not isinstance(error, tw.Error):
        return (str(error).strip().splitlines() or [""])[0]
    kinds = sorted({" ".join(problem.what.split()) for problem in error.each()})
    return kinds[0] + (f" (and {len(kinds) - 1} more)" if len(kinds) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.probe", description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="by torch.compile alone")
    parser.add_argument("--memory", type=float, default=10, help="GB that this process may have")
    options = parser.parse_args()
    limit = int(options.memory * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    warnings.simplefilter("ignore")
    if options.compile:
        from benchmarks.zoo import compiled  # which reads this module

        print(json.dumps(asdict(compiled.probe(options.name, options.rounds))))
        return
    print(json.dumps(asdict(probe(options.name, options.rounds))))


if __name__ == "__main__":
    main()
