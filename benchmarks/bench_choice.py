"""The untuned choice against the best setting of all: every setting of a layer's decisions timed and verified.

    python -m benchmarks.bench_choice [--layers NAME...] [--most N]

The tuner does it (`tilewright.tuning`), told to time everything: first the settings of each decision about the graph,
then those of each kernel's plan, with --most N the best N by estimates of each. What its finals verify, in programs
that are loaded anew, is the loss: how much longer the untuned choice takes. A run that is stopped goes on from its
journal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, layers, models
from tilewright.targets.target import Target
from tilewright.tuning import entry
from tilewright.tuning.journal import Journal
from tilewright.tuning.programs import Maker
from tilewright.tuning.result import Tuned
from tilewright.tuning.search import Policy

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


def everything(most: int) -> Policy:
    """A search that times all settings of each decision, or so many."""
    return Policy(prune=float("inf"), most=most, first=most)


def tuned(name: str, most: int) -> Tuned:
    """A layer with all of its settings timed."""
    with tempfile.TemporaryDirectory() as folder:
        path = models.load(layers.read()[name].model)
        maker = Maker(path, Path(folder), threads=1, target=Target.host())
        program = maker.untuned()
        journal = Journal.of(program.manifest.structure_key, maker.target, f"choice {most}", FOLDER)
        return entry.run(maker, program, entry.example_inputs(program, None), journal, everything(most))


def row(name: str, result: Tuned) -> dict[str, Any]:
    """The row of a layer: the loss that is verified, with its interval."""
    return {
        "commit": harness.commit(),
        "layer": name,
        "candidates": sum(sum(r.outcomes.values()) for r in result.rows),
        "space": sum(r.space - 1 for r in result.rows),
        "untuned": " / ".join(r.untuned for r in result.rows),
        "best": " / ".join(r.tuned if r.accepted else r.untuned for r in result.rows),
        "loss": max(result.gain.median, 1.0) - 1.0,
        "interval": [result.gain.low, result.gain.high],
    }


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    mean = statistics.mean(r["loss"] for r in rows)
    table = harness.markdown_table(
        ["layer", "candidates", "untuned", "best", "loss"],
        [[r["layer"], f"{r['candidates']} of {r['space']}", r["untuned"], r["best"], f"{r['loss']:.1%}"] for r in rows],
    )
    part = sum(r["candidates"] < r["space"] for r in rows)
    note = f" Of {part} of them only a part of the space was timed: the best may be among the rest." if part else ""
    return f"Mean loss of the untuned choice over {len(rows)} layers: **{mean:.1%}**.{note}\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), metavar="NAME")
    parser.add_argument("--most", type=int, default=10000, metavar="N", help="of a decision's settings the best N")
    parser.add_argument("--no-report", action="store_true", help="print only")
    args = parser.parse_args()
    results = FOLDER / "rows.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    stored = json.loads(results.read_text()) if results.exists() else []
    rows = {r["layer"]: r for r in stored if r.get("commit") == harness.commit()}  # a table is of one commit
    for name in args.layers:
        rows[name] = row(name, tuned(name, args.most))
        results.write_text(json.dumps(list(rows.values()), indent=1))
        print(f"{name}: {rows[name]['loss']:.1%}, {rows[name]['candidates']} settings", flush=True)
    ordered = [rows[name] for name in LAYERS if name in rows]
    if ordered and not args.no_report:
        print(harness.write_report("choice", "The untuned choice against the best of all", ordered, report(ordered)))


if __name__ == "__main__":
    main()
