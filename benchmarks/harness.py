"""Side by side: several frameworks on one model, one process each, taking turns; ratios with confidence intervals.

The turns are `tilewright.support.paired.race`. Here: which frameworks, how sure a ratio is, and the report, which
always states the command line, the versions, the CPU and the threads. Reports go to `benchmarks/results`.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import models
from benchmarks.peers import DESCRIPTIONS, PEERS
from tilewright.support import machine, paired
from tilewright.support.contender import load_arrays

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model: seconds per call of each peer, and the first peer's time as a share of each other's."""

    model: str
    batch: int
    threads: int
    rounds: int
    seconds: Mapping[str, float]
    spread: Mapping[str, float]
    ratios: Mapping[str, Interval]
    errors: Mapping[str, float]  # largest difference of the first peer's outputs, relative to the output's scale
    peak_memory: Mapping[str, int]
    versions: Mapping[str, str]
    failures: Mapping[str, str] = field(default_factory=dict)


def bootstrap(ratios: Sequence[float], samples: int = 4000, seed: int = 0) -> Interval:
    """Median of paired ratios with its percentile bootstrap interval (Efron 1979)."""
    values = np.asarray(ratios, float)
    picks = np.random.default_rng(seed).integers(0, len(values), (samples, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(float(np.median(values)), float(low), float(high))


def compare(
    model: str,
    peers: Sequence[str],
    *,
    threads: int = 1,
    batch: int = 1,
    rounds: int = 30,
    turn_seconds: float = 0.02,
    announce: Callable[[str], None] = lambda _text: None,
) -> Comparison:
    """Times `peers` (names in `PEERS`) on `model`. A peer that fails is listed in `failures`."""
    models.load(model)  # built here, not by several children at once
    environment = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    arguments = {"model": model, "threads": threads, "batch": batch}
    contenders = [paired.Contender(peer, PEERS[peer], arguments, environment) for peer in peers]
    with tempfile.TemporaryDirectory() as folder:
        results = paired.race(
            contenders,
            rounds=rounds,
            turn_seconds=turn_seconds,
            # Workers of other frameworks spin for some 16 ms after their work has ended.
            pause_seconds=0.03 if threads > 1 else 0.0,
            outputs=Path(folder),
            announce=lambda text: announce(f"{model} batch {batch}: {text}"),
        )
        errors = _errors(results)
    first, others = results[0], results[1:]
    ratios = {}
    for other in others:
        if first.times and other.times:
            ratios[other.name] = bootstrap([a / b for a, b in zip(first.times, other.times, strict=True)])
    good = [r for r in results if r.error is None]
    return Comparison(
        model,
        batch,
        threads,
        rounds,
        {r.name: r.median for r in good},
        {r.name: r.spread for r in good},
        ratios,
        errors,
        {r.name: r.peak_memory for r in good},
        {r.name: str(r.info.get("version", "")) for r in good},
        {r.name: r.error for r in results if r.error is not None},
    )


def relative_error(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> float:
    """Largest difference over all outputs, each relative to the largest value of that output; NaN or a missing
    output count as infinite."""
    worst = 0.0
    for name, expected in want.items():
        if name not in got or got[name].shape != expected.shape or got[name].dtype != expected.dtype:
            return float("inf")
        if expected.size == 0:
            continue
        scale = float(np.abs(expected.astype(np.float64)).max()) or 1.0
        difference = np.abs(got[name].astype(np.float64) - expected.astype(np.float64)).max() / scale
        worst = max(worst, float(difference) if np.isfinite(difference) else float("inf"))
    return worst


def _errors(results: Sequence[paired.Result]) -> dict[str, float]:
    first, *others = results
    if first.outputs is None:
        return {}
    got = load_arrays(str(first.outputs))
    return {o.name: relative_error(got, load_arrays(str(o.outputs))) for o in others if o.outputs is not None}


# ---------------------------------------------------------------- reports


def console() -> Console:
    """As wide as the terminal, or wide enough for the tables where there is none."""
    found = Console()
    return found if found.is_terminal else Console(width=160)


def environment() -> dict[str, Any]:
    """The machine and the versions, for the head of a report."""
    host = machine.describe()
    packages = {}
    for name in ("numpy", "llvmlite", "onnx", "onnxruntime", "torch", "apache-tvm-ffi"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=models.ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "command": shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "cpu": f"{host.model} ({host.cpu}), {host.cores} cores, {host.usable:g} usable",
        "caches": ", ".join(f"{c.name} {c.bytes >> 10} KiB" for c in host.caches),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "versions": packages,
    }


def write_report(name: str, title: str, rows: Any, markdown: str) -> Path:
    """Writes results/NAME.json with the raw figures and results/NAME.md with `markdown` under a head that says how."""
    RESULTS.mkdir(exist_ok=True)
    facts = environment()
    (RESULTS / f"{name}.json").write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    head = [
        f"# {title}",
        "",
        f"`{facts['command']}`",
        "",
        f"- {facts['cpu']}; {facts['caches']}",
        f"- {facts['system']}; {versions}",
        f"- commit {facts['commit']}, {facts['date']}, load average at the end {facts['load_average']:.1f}",
        "",
    ]
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(head) + "\n" + markdown.rstrip() + "\n")
    return path


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def describe_peers(peers: Sequence[str]) -> str:
    return "".join(f"- {peer}: {DESCRIPTIONS.get(peer, '')}\n" for peer in peers)
