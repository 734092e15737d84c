"""`tilewright tune`: times other settings of a model's decisions, and stores those that are verifiably faster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import (
    DimOption,
    Exit,
    FastOption,
    JsonOption,
    PrecisionOption,
    TargetOption,
    ThreadsOption,
    accuracy,
    err,
    is_quiet,
    on_host,
    out,
    parse_ranges,
    print_line,
    refuse_unused,
    table,
)
from tilewright.cli.models import SourceArgument, source
from tilewright.support import flags

if TYPE_CHECKING:
    from tilewright.tuning.result import Progress, Tuned


def tune(
    context: typer.Context,
    model: SourceArgument,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="When no further candidates are timed. [default: never]")
    ] = None,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    records: Annotated[
        Path | None, typer.Option("--records", metavar="FOLDER", help="Where records go. [default: the user's]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Time again what records decide.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Search nothing: race again what records of other compilers recommend.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Time other tiles, layouts and algorithms than the estimates' and keep those that verifiably win.

    Nothing else should run on the machine meanwhile. A run that is stopped with Ctrl-C keeps what it has verified, and
    the next one goes on from there. After an upgrade `--verify` checks whether each record that this model uses is
    still the best setting, and searches nothing. With `--json` there is a line for each step of the progress, the
    result last.

    ```
    tilewright tune policy.onnx --dim batch=1
    tilewright tune resnet50.onnx --threads 2 --seconds 300
    tilewright tune policy.onnx --verify
    ```
    """
    from tilewright.tuning.entry import tune as run

    if verify:
        refuse_unused(context, {"fresh": "with --verify, which searches nothing"})
    read = source(model)
    count = flags.THREADS() if threads is None else threads
    with _shown(model.name, json) as announce:
        tuned = run(
            read.model,
            example=read.example,
            seconds=seconds,
            threads=count,
            dims=parse_ranges(dim),
            target=on_host(target),
            store=records,
            fresh=fresh,
            verify=verify,
            announce=announce,
            **accuracy(precision, fast),
        )
    if json:
        print_line(tuned.to_dict())
    else:
        _print(tuned, count, verify)
    if tuned.interrupted:
        raise typer.Exit(Exit.INTERRUPTED)


@contextmanager
def _shown(title: str, json: bool) -> Iterator[Callable[[Progress], None]]:
    """Display the run's progress: as lines of JSON, as a bar on a terminal, or not at all."""
    if json:
        yield lambda p: print_line(progress_line(p))
        return
    if is_quiet(json):
        yield lambda _progress: None
        return
    from rich import progress as rich
    from rich.table import Column
    from rich.text import Text

    class Left(rich.ProgressColumn):
        """The remaining time of the search by the clock, as a race may take longer than the time between two progress
        steps."""

        def render(self, task: rich.Task) -> Text:
            return Text(left_text(task.fields["end"] - time.monotonic()))

    columns = [rich.SpinnerColumn(), rich.TextColumn("{task.description}"), rich.BarColumn(20)]
    columns += [rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), Left(Column(no_wrap=True))]
    columns += [rich.TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True))]
    with rich.Progress(*columns, console=err, transient=True) as bars:
        task = bars.add_task(f"tune {title}", total=None, note="", end=math.inf)

        def show(p: Progress) -> None:
            end = time.monotonic() + p.left if p.done < p.total else math.inf
            bars.update(task, completed=p.done, total=p.total or None, note=_note(p), end=end)

        yield show


def left_text(seconds: float) -> str:
    """The remaining time as text: 12.3 -> "12 s left"; "" without a limit."""
    if math.isinf(seconds):
        return ""
    return f"{seconds:.0f} s left" if seconds > 0 else "time is up"


def _note(p: Progress) -> str:
    """The text beside the bar: the number of verified settings, and what is being timed."""
    gain = f"verified {p.gain:.3f} times faster" if p.gain > 1.0 else "nothing verified yet"
    return f"{gain}  {p.level}: {p.next}"


def progress_line(p: Progress) -> dict[str, Any]:
    """Progress as data for JSON."""
    left = None if math.isinf(p.left) else round(p.left, 1)
    return {"level": p.level, "done": p.done, "of": p.total, "seconds_left": left, "gain": p.gain, "next": p.next}


def _print(tuned: Tuned, threads: int, verify: bool = False) -> None:
    if verify and not tuned.rows:
        out.print("no record of another compiler is about a decision of this model")
        return
    rows = []
    for row in sorted(tuned.rows, key=lambda r: -r.share):
        tried = sum(row.outcomes.values())
        failed = tried - row.outcomes.get("timed", 0)
        rows.append(
            [
                row.about if len(row.about) <= 50 else f"{row.about[:47]}...",
                " -> ".join(differences(row.untuned, row.tuned)) or "the same",
                f"{row.share:.0%}",
                f"{tried} of {row.space - 1}" + (f", {failed} failed" if failed else ""),
                str(row.gain) if row.accepted else "not verified" if row.tuned != row.untuned else "-",
                "yes" if row.accepted else "",
            ]
        )
    table("decisions", ["about", "untuned -> tuned", "share", "timed", "gain", "accepted"], rows, left=2)
    verdict = f"{tuned.gain} times faster, verified" if tuned.settings else "nothing better was verified"
    remark = " (known from an earlier run)" if tuned.known else f" ({tuned.timed} candidates, {tuned.seconds:.0f} s)"
    out.print(f"the whole model, {threads} thread{'s' if threads > 1 else ''}: {verdict}{remark}", markup=False)
    if tuned.interrupted:
        out.print("interrupted: what is verified is kept, the next run goes on")


def differences(untuned: str, tuned: str) -> tuple[str, ...]:
    """The labels of the settings `untuned` and `tuned`, without the knobs whose values are equal; () if the labels are
    equal. Both labels are complete if their kinds differ."""
    if untuned == tuned:
        return ()
    (kind, _, mine), (other, _, theirs) = untuned.rpartition(" "), tuned.rpartition(" ")
    if kind != other or not kind:
        return untuned, tuned
    a, b = mine.split(","), theirs.split(",")
    return ",".join(x for x in a if x not in b), ",".join(x for x in b if x not in a)
