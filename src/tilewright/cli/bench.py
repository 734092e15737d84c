"""`tilewright bench`: time per call side by side with ONNX Runtime, each in its own process, taking turns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.cli import peers
from tilewright.cli.common import (
    DimOption,
    Exit,
    FastOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    TargetOption,
    ThreadsOption,
    WinogradOption,
    accuracy,
    bytes_text,
    err,
    fast_option,
    is_quiet,
    on_host,
    out,
    parse_dims,
    print_json,
    table,
    time_text,
)
from tilewright.cli.run import difference
from tilewright.measure.contender import load_arrays
from tilewright.measure.paired import Contender, Result, race, ratio
from tilewright.support import flags
from tilewright.support.errors import Error, ModelError, Problems
from tilewright.support.progress import progress

_TOLERANCE = 1e-3
"""Largest difference of two outputs, relative to their scale, that counts as equal."""


def bench(
    models: Annotated[list[Path], typer.Argument(help="ONNX files.")],
    threads: ThreadsOption = None,
    dim: DimOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    winograd: WinogradOption = None,
    target: TargetOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender; 30 resolve about 1 %.")] = 30,
    seed: SeedOption = 0,
    alone: Annotated[bool, typer.Option("--alone", help="Time Tilewright only.")] = False,
    json: JsonOption = False,
) -> None:
    """Race a model against ONNX Runtime and compare the outputs.

    Each framework has a process of its own; they take turns, and the ratio is the median over the rounds of the times
    of neighbours, which a busy machine disturbs little. A ratio below 1 means that Tilewright is faster.

    ```
    tilewright bench policy.onnx
    tilewright bench a.onnx b.onnx --threads 2 --dim batch=32 --json
    ```
    """
    count = flags.THREADS() if threads is None else threads
    sizes = parse_dims(dim)
    problems = Problems()
    for path in models:
        if not path.exists():
            problems.add(ModelError("no such file", where=str(path)))
    problems.raise_if_any("nothing was timed")
    on_host(target)
    peer_missing = not alone and not peers.is_installed(peers.ONNXRUNTIME)
    reports = []
    with progress("bench", total=len(models) * (rounds + 2), enabled=not is_quiet(json)) as step:
        for path in models:
            arguments = {"path": str(path), "threads": count, "dims": sizes, "seed": seed}
            ours = arguments | {"options": accuracy(precision, fast_option(fast, winograd)), "target": target}
            contenders = [Contender("tilewright", peers.TILEWRIGHT, ours)]
            if not alone and not peer_missing:
                contenders.append(Contender("onnxruntime", peers.ONNXRUNTIME, arguments))
            with tempfile.TemporaryDirectory() as folder:
                pause = 0.03 if count > 1 and len(contenders) > 1 else 0.0
                results = race(
                    contenders, rounds=rounds, pause_seconds=pause, outputs=Path(folder), announce=lambda t: step(t)
                )
                reports.append(_report(path, results))
    if json:
        print_json({"threads": count, "dims": sizes, "models": reports})
    else:
        _print(reports, count)
    if peer_missing:
        err.print(
            "onnxruntime is not installed: nothing to compare with (pip install 'tilewright\\[bench]', or --alone)"
        )
        raise typer.Exit(Exit.MISSING)
    if any(c["error"] for report in reports for c in report["contenders"]):
        raise typer.Exit(Exit.ERROR)
    if any(not d["equal"] for report in reports for d in report["differences"]):
        raise typer.Exit(Exit.MISMATCH)


def _report(path: Path, results: list[Result]) -> dict[str, Any]:
    ours, *others = results
    return {
        "model": str(path),
        "contenders": [
            {
                "name": r.name,
                "median_seconds": r.median if r.times else None,
                "spread": r.spread,
                "setup_seconds": r.setup_seconds,
                "peak_memory": r.peak_memory,
                "info": dict(r.info),
                "error": r.error,
            }
            for r in results
        ],
        "ratio": ratio(ours, others[0]) if others and ours.times and others[0].times else None,
        "differences": compare_outputs(ours, others[0]) if others else [],
    }


def compare_outputs(ours: Result, other: Result, tolerance: float = _TOLERANCE) -> list[dict[str, Any]]:
    """Each output's largest error relative to the output's scale; empty if one of the two failed."""
    if ours.outputs is None or other.outputs is None:
        return []
    found, wanted = load_arrays(str(ours.outputs)), load_arrays(str(other.outputs))
    return [difference(name, found.get(name), np.asarray(array), tolerance) for name, array in wanted.items()]


def _print(reports: list[dict[str, Any]], threads: int) -> None:
    rows = []
    for report in reports:
        errors = [d["error"] for d in report["differences"]]
        worst = max((e for e in errors if not isinstance(e, str)), default=None)
        verdict = next((e for e in errors if isinstance(e, str)), "-" if worst is None else f"{worst:.1e}")
        for number, c in enumerate(report["contenders"]):
            first = number == 0
            rows.append(
                [
                    Path(report["model"]).stem if first else "",
                    c["name"],
                    f"{time_text(c['median_seconds'])} ±{c['spread']:.0%}" if c["median_seconds"] else "failed",
                    f"{report['ratio']:.3f}" if first and report["ratio"] else "",
                    verdict if first else "",
                    time_text(c["info"].get("compile_seconds", c["setup_seconds"])),
                    bytes_text(c["peak_memory"]),
                ]
            )
    title = f"time per call, {threads} thread{'s' if threads > 1 else ''}"
    columns = ["model", "", "median", "ratio", "error", "compile", "memory"]
    table(title, columns, rows, left=2)
    for report in reports:
        for c in report["contenders"]:
            if c["error"]:
                out.print(str(Error(c["error"], where=f"{Path(report['model']).name}, {c['name']}")), markup=False)
