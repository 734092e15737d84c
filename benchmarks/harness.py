"""Side by side: several frameworks on one model, one process each, taking turns; ratios with confidence intervals.

The turns are `tilewright.measure.paired.race`. Here: which frameworks, how sure a ratio is, and the report, which
always states the command line, the versions, the CPU and the threads. Reports go to `benchmarks/results`.
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import models, narrow_models
from benchmarks.peers import EXCLUDED, PEERS
from benchmarks.peers.common import fixed_shapes
from benchmarks.work import Work, count, level
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays
from tilewright.support import machine

_PACKAGES = "numpy llvmlite onnx onnxruntime openvino MNN ncnn pnnx torch jax apache-tvm apache-tvm-ffi"
REFERENCE = "onnxruntime"
"""The peer whose outputs the others' are compared with, where it runs."""
LIMITS = ("limit of compute", "limit of moving")
"""Names of the contenders that show what the machine allows."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model or layer: seconds per call of each peer, and how many times faster the first peer is than each other.

    `repeat` is how many equal layers the call chains: all figures are of one. `flops` and `bytes` are what has to be
    done at least (`work.py`), `limit_seconds` the least time for them here, `bound` what sets it and `share` the
    limit's time as a share of ours, in pairs (`limits.py`): 1 is the machine's limit, more needs a better algorithm.
    """

    model: str
    group: str
    own: str
    batch: int
    threads: int
    rounds: int
    repeat: int
    seconds: dict[str, float]
    spread: dict[str, float]
    speedups: dict[str, Interval]
    errors: dict[str, float]  # largest difference from ONNX Runtime's outputs (or the first peer's), by their scale
    peak_memory: dict[str, int]
    versions: dict[str, str]
    failures: dict[str, str]
    flops: int = 0
    bytes: int = 0
    limit_seconds: float | None = None
    bound: str = ""
    share: Interval | None = None
    commit: str = ""
    date: str = ""

    @property
    def label(self) -> str:
        return self.model if self.batch == 1 else f"{self.model}@{self.batch}"

    @property
    def best(self) -> str | None:
        """The other framework that comes nearest."""
        others = {name: s.median for name, s in self.speedups.items() if name not in EXCLUDED}
        return min(others, key=others.__getitem__) if others else None

    @property
    def own_seconds(self) -> float | None:
        """Time of the first peer, which is compared with the others; None if it failed."""
        return self.seconds.get(self.own)

    @property
    def of_limit(self) -> float | None:
        """The limit's time as a share of the first peer's; None if no limit took part."""
        return self.share.median if self.share else None

    @property
    def error(self) -> float | None:
        """The error of the first peer's outputs; where ONNX Runtime did not run, the smallest difference from a
        peer."""
        return self.errors.get(self.own, min(self.errors.values(), default=None))

    @staticmethod
    def from_json(row: dict[str, Any]) -> Comparison:
        speedups = {name: Interval(**value) for name, value in row["speedups"].items()}
        share = Interval(**row["share"]) if row.get("share") else None
        return Comparison(**{**row, "speedups": speedups, "share": share})


def bootstrap(ratios: Sequence[float], samples: int = 4000, seed: int = 0) -> Interval:
    """Median of paired ratios with its percentile bootstrap interval (Efron 1979)."""
    values = np.asarray(ratios, float)
    picks = np.random.default_rng(seed).integers(0, len(values), (samples, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(float(np.median(values)), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to measure: turns of each peer, about how long a turn and the warming up take, and when it is enough."""

    rounds: int = 30
    turn_seconds: float = 0.02
    warmup_seconds: float = 0.2
    enough_seconds: float = float("inf")


def compare(
    model: str,
    peers: Sequence[str],
    *,
    threads: int = 1,
    batch: int = 1,
    timing: Timing = Timing(),
    repeat: int = 1,
    group: str = "",
    work: Work | None = None,
    team: paired.Team | None = None,
    announce: Callable[[str], None] = lambda _text: None,
) -> Comparison:
    """Times `peers` (names in `PEERS`) on `model`. A peer that is not installed or fails is listed in `failures`.

    `repeat` is how many equal layers the model chains; `work` is that of one (counted in the model if None). The
    machine's limits for it take their turns beside the first peer.
    """
    models.load(model)  # built here, not by several children at once
    missing = {name: PEERS[name].missing for name in peers}
    failures = {name: f"not installed: {', '.join(candidate)}" for name, candidate in missing.items() if candidate}
    contenders = [contender(p, p, model, threads, batch) for p in peers if not missing[p]]
    work = work or count(fixed_shapes(model, batch))
    contenders[1:1] = limits(work, threads) if timing.rounds else []
    with tempfile.TemporaryDirectory() as folder:
        results = paired.race(
            contenders,
            rounds=timing.rounds,
            turn_seconds=timing.turn_seconds,
            warmup_seconds=timing.warmup_seconds,
            enough_seconds=timing.enough_seconds,
            # Workers of other frameworks spin for some 16 ms after their work has ended.
            pause_seconds=0.03 if threads > 1 else 0.0,
            outputs=Path(folder),
            announce=announce,
            team=team,
        )
        candidate = [r for r in results if r.name in LIMITS]
        results = [r for r in results if r.name not in LIMITS]
        errors = _errors(results)
    failures |= {r.name: r.error for r in results if r.error is not None}
    failures |= {
        name: f"wrong result: off by {e:.1e} of the scale" for name, e in errors.items() if e > wrong(name, model)
    }
    good = [r for r in results if r.name not in failures and r.times]
    first, others = results[0], [r for r in good if r is not results[0]]
    evaluated = first if first in good else None
    bound = binding(candidate)
    return Comparison(
        model=model,
        group=group,
        own=peers[0],
        batch=batch,
        threads=threads,
        rounds=len(first.times),
        repeat=repeat,
        seconds={r.name: r.median / repeat for r in good},
        spread={r.name: r.spread for r in good},
        speedups={o.name: speedup(evaluated, o) for o in others} if evaluated else {},
        errors=errors,
        peak_memory={r.name: r.peak_memory for r in good},
        versions={r.name: str(r.info.get("version", "")) for r in good},
        failures=failures,
        flops=work.flops,
        bytes=work.read + work.written,
        limit_seconds=bound.median * bound.info["scale"] if bound else None,
        bound="" if bound is None else "compute" if bound.name == LIMITS[0] else level(work, _caches()),
        share=share(evaluated, bound, repeat) if evaluated and bound else None,
        commit=commit(),
        date=now(),
    )


def contender(name: str, peer: str, model: str, threads: int, batch: int) -> paired.Contender:
    """A peer in a process of its own; what reads the number of threads from the environment finds it there.

    The C library is told to keep freed memory: a framework that allocates its results would otherwise be charged for
    the page faults of fresh memory in each call, which other allocators spare it.
    """
    environment = {v: str(threads) for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(64 << 20)}
    arguments = {"model": model, "threads": threads, "batch": batch}
    return paired.Contender(name, PEERS[peer].setup, arguments, environment)


def limits(work: Work, threads: int) -> list[paired.Contender]:
    """The limits of the machine for the work, as contenders; see `limits.py`."""
    compute = {"flops": work.flops, "threads": threads}
    moving = {"read": work.read, "written": work.written, "threads": threads}
    return [
        paired.Contender(name, f"benchmarks.limits:{function}", arguments)
        for name, function, arguments in zip(LIMITS, ("compute", "moving"), (compute, moving), strict=True)
        if any(arguments[key] for key in arguments if key != "threads")
    ]


def binding(result: Sequence[paired.Result]) -> paired.Result | None:
    """The limit that takes longest; None if none was measured."""
    measured = [r for r in result if r.times]
    return max(measured, key=lambda r: r.median * r.info["scale"], default=None)


def share(evaluated: paired.Result, limit: paired.Result, repeat: int) -> Interval:
    """The limit's time by that of `evaluated`, which does the work `repeat` times, round by round."""
    scale = limit.info["scale"] * repeat
    return bootstrap([theirs * scale / ours for ours, theirs in zip(evaluated.times, limit.times, strict=True)])


def speedup(evaluated: paired.Result, other: paired.Result) -> Interval:
    """How many times faster `evaluated` is, round by round."""
    return bootstrap([theirs / ours for ours, theirs in zip(evaluated.times, other.times, strict=True)])


def exact_p(one: np.ndarray, two: np.ndarray) -> float:
    """P(a difference of means as large, if labels are exchanged at random): all splits are tried (Fisher 1935)."""
    both = np.concatenate([one, two])
    seen = abs(one.mean() - two.mean())
    results = [
        abs(both[list(picked)].mean() - np.delete(both, picked).mean()) >= seen - 1e-9
        for picked in itertools.combinations(range(len(both)), len(one))
    ]
    return float(np.mean(results))


@functools.cache
def _caches() -> dict[int, int]:
    return {c.level: c.bytes for c in machine.describe().caches if c.kind != "Instruction"}


def relative_error(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], scales: Mapping[str, float] | None = None
) -> float:
    """Largest difference over all outputs, each relative to the largest value of that output (or to its scale in
    `scales`, if that is larger); NaN or a missing output count as infinite."""
    worst = 0.0
    for name, expected in want.items():
        if name not in got or got[name].shape != expected.shape or got[name].dtype != expected.dtype:
            return float("inf")
        if expected.size == 0:
            continue
        scale = float(np.abs(expected.astype(np.float64)).max()) or 1.0
        scale = max(scale, (scales or {}).get(name, 0.0))
        difference = np.abs(got[name].astype(np.float64) - expected.astype(np.float64)).max() / scale
        worst = max(worst, float(difference) if np.isfinite(difference) else float("inf"))
    return worst


def wrong(peer: str, model: str = "") -> float:
    """The error from which on a result is no result: a peer that computes something else wins no race. Single precision
    means a thousand roundings of the largest output, ours and others'; docs/accuracy.md allows a layer a fourth. In
    models of 8 bits a level falls to either side by the last bit of a float, and networks spread it. Halves have eleven
    bits."""
    _, kind = narrow_models.split(model) or (model, "")
    if kind == "f16":
        return 2e-2
    return 0.2 if peer.endswith(("bf16", "int8")) or kind else 1e-4


def _errors(results: Sequence[paired.Result]) -> dict[str, float]:
    result = {r.name: load_arrays(str(r.outputs)) for r in results if r.outputs is not None and r.error is None}
    reference = REFERENCE if REFERENCE in result else results[0].name
    if reference not in result:
        return {}
    want = result.pop(reference)
    return {name: relative_error(got, want) for name, got in result.items()}


# ---------------------------------------------------------------- reports


def console() -> Console:
    """A console as wide as the terminal, or wide enough for the tables where there is none."""
    result = Console()
    return result if result.is_terminal else Console(width=160)


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@functools.cache
def commit() -> str:
    """The tree that is measured: its short hash, with a + if the sources were changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=models.ROOT, capture_output=True, text=True, check=False).stdout

    return git("rev-parse", "--short", "HEAD").strip() + ("+" if git("status", "--porcelain", "src") else "")


def environment() -> dict[str, Any]:
    """The machine and the versions, for the head of a report."""
    host = machine.describe()
    packages = {}
    for name in _PACKAGES.split():
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": now(),
        "commit": commit(),
        "cpu": f"{host.model} ({host.cpu}), {host.cores} cores, {host.usable:g} usable",
        "caches": ", ".join(f"{c.name} {c.bytes >> 10} KiB" for c in host.caches),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "versions": packages,
    }


def write_report(name: str, title: str, rows: Any, markdown: str) -> Path:
    """Writes results/NAME.json with the raw figures and results/NAME.md with `markdown` under a head that says how."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    return write_markdown(name, title, markdown)


def write_markdown(name: str, title: str, markdown: str, facts: Mapping[str, Any] | None = None) -> Path:
    """Writes results/NAME.md alone; `facts` are of the `environment` that was measured, the present one if None."""
    facts = environment() if facts is None else facts
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
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(head) + "\n" + markdown.rstrip() + "\n")
    return path


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
