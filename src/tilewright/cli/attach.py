"""`tilewright attach`: run a store's policy as an actor does, and watch its versions."""

from __future__ import annotations

import json as json_library
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tilewright.cli.common import (
    DimOption,
    JsonOption,
    SeedOption,
    ThreadsOption,
    err,
    facts,
    out,
    parse_ranges,
    print_json,
    refuse_unused,
    shape_text,
    time_text,
)
from tilewright.cli.inputs import Array, read_inputs
from tilewright.cli.models import call_sizes, check_dims
from tilewright.cli.publish import DirectoryOption, StoreName
from tilewright.cli.run import check_sizes, input_sizes
from tilewright.runtime.examples import random_inputs
from tilewright.support import flags
from tilewright.support.classes import dataclass

if TYPE_CHECKING:
    from tilewright.live.store import Actor

_SAMPLE = 4096
"""The most samples of durations that are stored for each interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The calls of an actor in some seconds. `age`: seconds since its version was published; `median` and `p99`: of a
    call's duration; `versions`: how many different versions the calls used."""

    version: int
    age: float
    calls: int
    calls_per_second: float
    median: float
    p99: float
    versions: int
    back: int


def attach(
    context: typer.Context,
    name: StoreName,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="[NAME=]FILE", help="An .npy, .npz or .pb file; inputs not given are random."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to call; 0 is one call.")] = 1.0,
    rate: Annotated[float, typer.Option(min=0.0, help="Calls per second; 0 is as fast as it goes.")] = 0.0,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until interrupted, and show what happens live.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Wait so long for the store to exist.")
    ] = 0.0,
    directory: DirectoryOption = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    json: JsonOption = False,
) -> None:
    """Attach to a store as an actor, call its policy, and show the version, its age and the calls per second.

    Nothing is compiled and no weights are copied: the actor maps what the publisher packed. With --watch each line is a
    quarter of a second (with --json, an object on a line), until Ctrl-C.

    ```
    tilewright attach policy
    tilewright attach policy --watch --rate 1000
    tilewright attach policy -i obs=obs.npy --dim batch=8 --json
    ```
    """
    import tilewright

    dims = parse_ranges(dim)
    refuse_unused(context, {"seconds": "with --watch, which goes on"} if watch else {})
    count = flags.THREADS() if threads is None else threads
    start = time.perf_counter()
    with tilewright.attach(name, threads=count, timeout=timeout, directory=directory) as actor:
        attached = time.perf_counter() - start
        arrays = read_inputs(inputs or [], actor.inputs)
        check_dims(dims, actor.manifest.symbols, f"store {name!r}")
        if arrays and len(arrays) == len(actor.inputs):
            refuse_unused(context, {"seed": "where all inputs are given"})
        operands = input_sizes(actor.inputs, arrays)
        check_sizes(dims, operands)
        arrays = random_inputs(actor.inputs, call_sizes(actor, dims) | operands, seed) | arrays
        arguments = [arrays[spec.name] for spec in actor.inputs]
        outputs, _ = actor.versioned(*arguments)
        first = time.perf_counter() - start
        if watch:
            _watch(name, _intervals(actor, arguments, 0.25, rate), json)
            return
        match = next(_intervals(actor, arguments, seconds, rate))
        report = {
            "store": name,
            **asdict(match),
            "attach_seconds": attached,
            "first_answer_seconds": first,
            "inputs": [
                f"{spec.name}: {shape_text(spec.dtype, a.shape)}" for spec, a in _pairs(actor.inputs, arguments)
            ],
            "outputs": [
                f"{spec.name}: {shape_text(spec.dtype, a.shape)}" for spec, a in _pairs(actor.outputs, _tuple(outputs))
            ],
        }
    if json:
        print_json(report)
    else:
        _print(name, report)


def _pairs(specs: Any, arrays: Any) -> Iterator[tuple[Any, Any]]:
    return zip(specs, arrays, strict=True)


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _intervals(actor: Actor, arguments: list[Array], seconds: float, rate: float) -> Iterator[Interval]:
    """Call `actor` with `arguments` in a loop, `rate` times a second (0: without pauses), and yield the statistics of
    each interval of `seconds` seconds."""
    clock = time.perf_counter
    last = actor.version
    while True:
        start = now = clock()
        times: list[float] = []
        seen: set[int] = set()
        calls = back = 0
        while not calls or now < start + seconds:
            before = clock()
            _, version = actor.versioned(*arguments)
            now = clock()
            calls += 1
            if calls <= _SAMPLE:
                times.append(now - before)
            if version != last or not seen:
                back += version < last
                seen.add(version)
                last = version
            if rate and (due := start + calls / rate) > now:
                time.sleep(min(due, start + seconds) - now if due > start + seconds else due - now)
                now = clock()
        median, p99 = (float(v) for v in np.quantile(times, [0.5, 0.99]))
        yield Interval(last, actor.age, calls, calls / max(now - start, 1e-9), median, p99, len(seen), back)


def _watch(name: str, intervals: Iterator[Interval], json: bool) -> None:
    """Print a line for each of `intervals` of the store `name` until the user interrupts, which is the ordinary end."""
    try:
        if json or not out.is_terminal:
            for candidate in intervals:
                if json:
                    print(json_library.dumps(asdict(candidate)), flush=True)
                else:
                    out.print(_line(candidate))
            return
        err.print(f"[dim]{name}: Ctrl-C ends[/dim]")
        with Live(console=out, refresh_per_second=8) as live:
            total = switches = 0
            for candidate in intervals:
                total += candidate.calls
                switches += candidate.versions - 1
                live.update(_board(name, candidate, total, switches))
    except KeyboardInterrupt:
        return


def _line(result: Interval) -> str:
    return (
        f"version {result.version}  age {time_text(result.age)}  {result.calls_per_second:.0f} calls/s  "
        f"median {time_text(result.median)}  p99 {time_text(result.p99)}"
    )


def _board(name: str, result: Interval, total: int, switches: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(min_width=12, justify="right")
    rows = {
        "store": name,
        "version": result.version,
        "age": time_text(result.age),
        "calls/s": f"{result.calls_per_second:.0f}",
        "a call": time_text(result.median),
        "p99": time_text(result.p99),
        "calls": total,
        "new versions": switches,
    }
    for key, cell in rows.items():
        grid.add_row(key, Text(str(cell)))
    return grid


def _print(name: str, report: dict[str, Any]) -> None:
    facts(
        {
            "store": name,
            "version": f"{report['version']}, published {time_text(report['age'])} ago",
            "attached in": f"{time_text(report['attach_seconds'])}; first answer after "
            f"{time_text(report['first_answer_seconds'])}",
            "inputs": "  ".join(report["inputs"]),
            "outputs": "  ".join(report["outputs"]),
            "calls": f"{report['calls']}, {report['calls_per_second']:.0f} per second",
            "a call": f"{time_text(report['median'])}, p99 {time_text(report['p99'])}",
            "versions used": report["versions"],
        }
    )
