"""Functions without a plan against naive C and the best of their peers: `python -m benchmarks.bench_comprehension`.

The loops of the formula by `cc -O3 -march=native`; `opt_einsum` over NumPy, PyTorch eagerly and through Inductor (and
numba, which is no dependency: not run). One process a peer, taking turns, one thread. Ours is not tuned.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comprehension_suite import SUITE, Case
from benchmarks.harness import RESULTS, markdown_table, write_report
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays

PEERS = ("naive", "einsum", "eager", "inductor")
HEADER = ["function", "µs", "naive C", "opt_einsum", "PyTorch", "Inductor", "least", "difference"]
ONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def compare(case: Case, peers: Sequence[str], rounds: int, team: paired.Team) -> dict[str, Any]:
    """One function: seconds of each, and how many times ours are contained in theirs, by pairs."""
    names = ("own", *(p for p in peers if p != "einsum" or case.einsum))
    contenders = [
        paired.Contender(n, f"benchmarks.peers.comprehension:{n}", {"case": case.name}, environment=ONE) for n in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        raced = paired.race(
            contenders, rounds=rounds, turn_seconds=0.004, warmup_seconds=0.02, outputs=Path(folder), team=team
        )
        result = dict(zip(names, raced, strict=True))
        values = {n: load_arrays(str(r.outputs))["y"].astype(float) for n, r in result.items() if r.times and r.outputs}
    if "own" not in values:
        raise SystemExit(f"{case.name}: {result['own'].error}")
    scale = max(1e-30, float(np.abs(values["own"]).max()))
    off = max((float(np.abs(v - values["own"]).max()) / scale for n, v in values.items() if n != "own"), default=0.0)
    seconds = {n: r.median for n, r in result.items() if r.times}
    ratios = {n: paired.ratio(result[n], result["own"]) for n in seconds if n != "own"}
    failed = {n: r.error for n, r in result.items() if r.error}
    return {"name": case.name, "seconds": seconds, "ratios": ratios, "difference": off, "failed": failed}


def row(result: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ratios = result["ratios"]
    cells = [f"{ratios[p]:.2f}" if p in ratios else "-" for p in PEERS]
    best = min((v for p, v in ratios.items() if p != "naive"), default=float("nan"))
    own = f"{result['seconds']['own'] * 1e6:.1f}"
    return [result["name"], own, *cells, f"{best:.2f}", f"{result['difference']:.0e}"]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many reach the bars."""
    naive = [r["ratios"]["naive"] for r in rows if "naive" in r["ratios"]]
    best = [min(v for p, v in r["ratios"].items() if p != "naive") for r in rows if len(r["ratios"]) > 1]
    return (
        f"{len(rows)} functions. Against naive C: geometric mean {_mean(naive):.2f}, at least 3 times faster on "
        f"{sum(v >= 3 for v in naive)} of {len(naive)}. Against the best of the others: geometric mean "
        f"{_mean(best):.2f}, no slower on {sum(v >= 1 for v in best)} of {len(best)}."
    )


def _mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="of the functions, by number")
    parser.add_argument("--count", type=int, default=len(SUITE))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--add", action="store_true", help="to the functions that the report has")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    path = RESULTS / "comprehension.json"
    known = {r["name"]: r for r in json.loads(path.read_text())["rows"]} if options.add and path.exists() else {}
    with paired.Team() as team:
        for case in SUITE[options.first : options.first + options.count]:
            known[case.name] = compare(case, options.peers.split(","), options.rounds, team)
            print("  ".join(row(known[case.name])), flush=True)
    rows = [known[c.name] for c in SUITE if c.name in known]
    print(summary(rows))
    if not options.no_report:
        title = "Functions without a plan, one thread: how many times faster than others"
        write_report("comprehension", title, rows, f"{summary(rows)}\n\n{markdown_table(HEADER, list(map(row, rows)))}")


if __name__ == "__main__":
    main()
