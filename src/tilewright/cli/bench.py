"""`tilewright bench`: time per call side by side with other runtimes, each in its own process, taking turns."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.cli import peers, picture
from tilewright.cli.common import (
    DimOption,
    Exit,
    FastOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    TargetOption,
    ThreadsOption,
    bytes_text,
    err,
    is_quiet,
    on_host,
    out,
    parse_dims,
    parse_ranges,
    print_json,
    refuse_unused,
    table,
    time_text,
)
from tilewright.cli.entries import Choices, Entry, entry
from tilewright.cli.models import FORMS, check_output
from tilewright.cli.run import difference
from tilewright.measure.contender import load_arrays
from tilewright.measure.paired import Result, Team, race, ratio
from tilewright.support import flags
from tilewright.support.errors import Error
from tilewright.support.progress import progress

_TOLERANCE = 1e-3
"""The largest difference of two outputs, relative to their scale, that counts as equal."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_PAUSE = 0.03
"""The pause in seconds between turns of contenders whose workers spin."""
_STREAMS_TURN = 0.05
"""Seconds of a turn with several streams, whose common begin and end take some 0.1 ms."""


def bench(
    context: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help=f".tw files that were compiled before, or models: {FORMS}.")
    ],
    threads: ThreadsOption = None,
    streams: Annotated[
        int, typer.Option("--streams", min=1, help="Callers side by side, each with --threads threads of its own.")
    ] = 1,
    dim: DimOption = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="NAME=N,N,...",
            help="A race at each of these sizes of a dimension, by one program for all: `--sweep batch=1,8,64`.",
        ),
    ] = None,
    rival: Annotated[
        list[str] | None,
        typer.Option(
            "--rival", metavar="onnxruntime|openvino", help="Race against this. May be repeated. [default: onnxruntime]"
        ),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Time Tilewright only.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender; 30 resolve about 1 %.")] = 30,
    duration: Annotated[
        float | None,
        typer.Option("--duration", min=0.01, metavar="SECONDS", help="Take turns for so long, in place of --rounds."),
    ] = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    seed: SeedOption = 0,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw the times and the throughput over the sizes of --sweep.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Race a model against ONNX Runtime and OpenVINO and compare the outputs.

    Each framework runs in a process of its own; they take turns. The ratio is the median over the rounds of our time
    divided by the rival's time measured next to it, which a busy machine disturbs little. A ratio below 1 means that
    Tilewright is faster.

    *median* is the median over the rounds of the mean time of a call; with several streams, of the time of all calls
    divided by their number. *p50* to *p99.9* are quantiles of single calls' times, as each caller waited: "-" where
    there were too few calls (--duration makes more).

    ```
    tilewright bench policy.onnx
    tilewright bench policy.onnx --rival openvino --duration 10
    tilewright bench policy.tw --streams 4 --duration 5
    tilewright bench policy.onnx --sweep batch=1,2,4,8,16,32 --png policy.png
    tilewright bench policies.py:make_actor
    tilewright bench a.onnx b.onnx --threads 2 --dim batch=32 --json
    ```

    Exit code 3: an output differs from a rival's. 4: a rival is not installed.
    """
    if duration is not None:
        refuse_unused(context, {"rounds": "with --duration"})
    if alone:
        refuse_unused(context, {"rival": "with --alone"})
    if sweep is None:
        refuse_unused(context, {"png": "without --sweep: it draws times over sizes"})
    picture.check(png)
    check_output(png, models, "--png")
    on_host(target)
    wanted = () if alone else _rivals(rival)
    missing = [name for name in wanted if not peers.is_installed(peers.RIVALS[name])]
    swept = _sweep(sweep)
    count = flags.THREADS() if threads is None else threads
    choices = Choices(
        threads=count,
        streams=streams,
        dims=_dims(dim, swept),
        precision=precision,
        fast=fast,
        target=target,
        seed=seed,
        rivals=tuple(name for name in wanted if name not in missing),
    )
    each = 1 if duration is not None else rounds + 1 + len(choices.rivals)
    total = None if duration is not None else len(models) * (1 + len(swept or [{}]) * each)
    with progress("bench", total=total, enabled=not is_quiet(json)) as step:
        reports = [
            r for m in models for r in _raced(m, choices, swept, rounds if duration is None else None, duration, step)
        ]
    if json:
        sizes = {name: said if isinstance(said, int) else str(said) for name, said in choices.dims.items()}
        print_json({"threads": count, "streams": streams, "dims": sizes, "models": reports})
    else:
        _print(reports, choices)
    if png is not None:
        picture.save_sweep(png, reports, _callers(choices))
        if not json:
            out.print(f"picture: {png}", soft_wrap=True)
    _end(reports, missing)


def _end(reports: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> None:
    """Say which rivals are `missing`, and exit with the code for failed runs in `reports`, differing outputs or missing
    rivals; return if all is well."""
    for name in missing:
        extra = "bench" if name == "onnxruntime" else "peers"
        hint = f"pip install 'tilewright\\[{extra}]', or --alone"
        err.print(f"{name} is not installed: nothing to compare with ({hint})")
    if any(c["error"] for report in reports for c in report["contenders"]):
        raise typer.Exit(Exit.ERROR)
    if any(not d["equal"] for report in reports for d in report["differences"]):
        raise typer.Exit(Exit.MISMATCH)
    if missing:
        raise typer.Exit(Exit.MISSING)


def _rivals(names: Sequence[str] | None) -> tuple[str, ...]:
    for name in names or ():
        if name not in peers.RIVALS:
            raise typer.BadParameter(f"{name!r}: expected {' or '.join(peers.RIVALS)}", param_hint="--rival")
    return tuple(dict.fromkeys(names or ("onnxruntime",)))


def _sweep(text: str | None) -> list[dict[str, int]]:
    """`"n=1,2"` -> [{"n": 1}, {"n": 2}]; a usage error otherwise."""
    if text is None:
        return []
    name, _, sizes = text.partition("=")
    try:
        return [parse_dims([f"{name}={size}"]) for size in dict.fromkeys(sizes.split(","))]
    except typer.BadParameter:
        raise typer.BadParameter(f"{text!r}: expected NAME=N,N,...", param_hint="--sweep") from None


def _dims(dim: list[str] | None, swept: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """The dimensions that the user stated in `dim`; the swept one gets a range that includes its sizes in `swept`,
    which count as likely. Raises typer.BadParameter for a dimension in both."""
    from tilewright.ir.dim import LIKELY_COUNT
    from tilewright.ir.dim import dim as known

    dims: dict[str, Any] = dict(parse_ranges(dim))
    if swept:
        ((name, _),) = swept[0].items()
        sizes = [at[name] for at in swept]
        if name in dims:
            raise typer.BadParameter(f"{name} has sizes by --sweep and is said by --dim", param_hint="--sweep")
        dims[name] = known(min(sizes), max(sizes), likely=sizes if len(sizes) <= LIKELY_COUNT else ())
    return dims


def _raced(
    path: Path,
    choices: Choices,
    swept: Sequence[dict[str, int]],
    rounds: int | None,
    duration: float | None,
    step: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The reports of races of the model at `path` against the other engines of `choices`: one report, or one for each
    size in `swept`. A race ends after `rounds` rounds or `duration` seconds; None is no limit. `step` is called with a
    description of each step."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        team = stack.enter_context(Team())
        step(f"compile {path.name}")
        created = _entry(path, choices, swept, folder)
        spins = choices.threads > 1 or choices.streams > 1
        reports = []
        for sizes in swept or [{}]:
            contenders = created.contenders(choices, sizes, folder, fixed=not swept)
            results = race(
                contenders,
                rounds=rounds,
                turn_seconds=0.01 if choices.streams == 1 else _STREAMS_TURN,
                pause_seconds=_PAUSE if spins and len(contenders) > 1 else 0.0,
                enough_seconds=math.inf if duration is None else duration,
                outputs=folder,
                announce=step,
                team=team,
            )
            reports.append(_report(path, created, sizes, results, choices))
    return reports


def _entry(path: Path, choices: Choices, swept: Sequence[dict[str, int]], folder: Path) -> Entry:
    """The model at `path`, compiled for the race, with its temporary files in `folder`. A compiled file must admit the
    sizes in `swept`."""
    if path.suffix != ".tw" or not swept:
        return entry(path, choices, folder)
    (name,) = swept[0]
    stated = {n: swept[0][name] if n == name else said for n, said in choices.dims.items()}
    return entry(path, choices.stating(stated), folder)


def _report(
    path: Path, created: Entry, sizes: Mapping[str, int], results: list[Result], choices: Choices
) -> dict[str, Any]:
    ours, *others = results
    remarks = [created.remark] if created.remark else []
    if choices.rivals and created.theirs is None:
        remarks.append(f"no rival: {created.why}")
    return {
        "model": str(path),
        "name": created.name,
        "sizes": dict(sizes),
        "contenders": [_contender(r) for r in results],
        "ratio": _ratio(ours, others[0]) if others else None,
        "ratios": {other.name: _ratio(ours, other) for other in others},
        "differences": [d for other in others for d in compare_outputs(ours, other)],
        "remarks": remarks,
    }


def _ratio(ours: Result, other: Result) -> float | None:
    return ratio(ours, other) if ours.times and other.times else None


def _contender(r: Result) -> dict[str, Any]:
    """A contender's result as JSON data; percentiles are None if there were too few calls."""
    calls = len(r.latencies)
    latencies = np.asarray(r.latencies)
    enough = {name: calls * (1 - q) >= 1 for name, q in PERCENTILES.items()}
    return {
        "name": r.name,
        "median_seconds": r.median if r.times else None,
        "spread": r.spread,
        "calls": calls,
        "calls_per_second": 1 / r.median if r.times else None,
        **{n: float(np.quantile(latencies, q)) if enough[n] else None for n, q in PERCENTILES.items()},
        "setup_seconds": r.setup_seconds,
        "peak_memory": r.peak_memory,
        "info": dict(r.info),
        "error": r.error,
    }


def compare_outputs(ours: Result, other: Result, tolerance: float = _TOLERANCE) -> list[dict[str, Any]]:
    """Each output's largest error, relative to that output's scale, and whether it is within `tolerance`, as data for
    JSON; empty if one of the two runs failed."""
    if ours.outputs is None or other.outputs is None:
        return []
    created, wanted = load_arrays(str(ours.outputs)), load_arrays(str(other.outputs))
    # A port of OpenVINO may have further names.
    wanted = {name: array for name, array in wanted.items() if name in created} or wanted
    return [
        {**difference(name, created.get(name), np.asarray(array), tolerance), "rival": other.name}
        for name, array in wanted.items()
    ]


def _print(reports: Sequence[Mapping[str, Any]], choices: Choices) -> None:
    races, calls = [], []
    for report in reports:
        title = " ".join([report["name"], *(f"{n}={size}" for n, size in report["sizes"].items())])
        for number, c in enumerate(report["contenders"]):
            names = [title if number == 0 else "", c["name"]]
            quotient = report["ratios"].get(c["name"])
            races.append(
                [
                    *names,
                    f"{time_text(c['median_seconds'])} ±{c['spread']:.0%}" if c["median_seconds"] else "failed",
                    f"{quotient:.3f}" if quotient else "",
                    _verdict(report, c["name"]),
                    time_text(c["info"].get("compile_seconds") or c["setup_seconds"]),
                    bytes_text(c["peak_memory"]),
                ]
            )
            percentiles = [time_text(c[p]) if c[p] is not None else "-" for p in PERCENTILES]
            rate = f"{c['calls_per_second']:,.0f}" if c["calls_per_second"] else "-"
            calls.append([*names, *percentiles, rate, f"{c['calls']:,}"])
    columns = ["model", "", "median", "ratio", "error", "compile", "memory"]
    table(f"time per call, {_callers(choices)}", columns, races, left=2)
    table("single calls", ["model", "", "p50", "p90", "p99", "p99.9", "calls/s", "timed"], calls, left=2)
    for text in dict.fromkeys(f"{r['name']}: {remark}" for r in reports for remark in r["remarks"]):
        out.print(text, markup=False, soft_wrap=True)
    for report in reports:
        for c in report["contenders"]:
            if c["error"]:
                out.print(str(Error(c["error"], where=f"{Path(report['model']).name}, {c['name']}")), markup=False)


def _callers(choices: Choices) -> str:
    """The numbers of threads and streams in words."""
    streams = f", {choices.streams} streams" if choices.streams > 1 else ""
    return f"{choices.threads} thread{'s' if choices.threads > 1 else ''}{streams}"


def _verdict(report: Mapping[str, Any], rival: str) -> str:
    """The largest error between our outputs and those of `rival` as text, or the reason why they cannot be compared; ""
    if nothing was compared."""
    errors = [d["error"] for d in report["differences"] if d["rival"] == rival]
    texts = [e for e in errors if isinstance(e, str)]
    return texts[0] if texts else f"{max(errors):.1e}" if errors else ""
