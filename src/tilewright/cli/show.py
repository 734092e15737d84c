"""`tilewright show`: the program at each stage of its compilation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tilewright.cli.common import (
    DimOption,
    FastOption,
    JsonOption,
    PrecisionOption,
    TargetOption,
    ThreadsOption,
    facts,
    is_quiet,
    parse_ranges,
    print_json,
    refuse_unused,
    table,
)
from tilewright.cli.compile import describe
from tilewright.cli.models import ModelArgument, open_model
from tilewright.support.log import PassRecord, listing_passes
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.plans.framework.decisions import Decision
    from tilewright.plans.framework.space import Setting

RUNNERS_UP = 3
"""How many candidates are shown besides the chosen one."""


def show(
    context: typer.Context,
    model: ModelArgument,
    graph: Annotated[bool, typer.Option("--graph", help="The graph after all passes (the default).")] = False,
    loops: Annotated[bool, typer.Option("--loops", help="Each kernel's loops, as they are emitted.")] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Each kernel's plan, estimated time, runners-up, primitives.")
    ] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="LLVM IR.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="Assembly.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="The arena against its lower bound, weights, peak.")] = False,
    records: Annotated[bool, typer.Option("--records", help="The tuning records that decided something.")] = False,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="What was chosen by an estimate: among what, and the runners-up.")
    ] = False,
    pass_log: Annotated[
        bool,
        typer.Option("--pass-log", help="The passes that ran: times, lines that each added and removed."),
    ] = False,
    info: Annotated[bool, typer.Option("--info", help="Inputs, outputs, weights, options, machine.")] = False,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Show a model as the compiler sees it, stage by stage.

    ```
    tilewright show policy.onnx --graph
    tilewright show policy.onnx --loops --asm | less
    tilewright show resnet50.onnx --memory
    tilewright show resnet50.onnx --decisions --json
    tilewright show policy.onnx --pass-log
    tilewright show policy.tw --info
    ```
    """
    asked = {"graph": graph, "schedule": schedule, "loops": loops, "llvm": llvm, "asm": asm, "memory": memory}
    asked["records"] = records
    stages = [name for name, wanted in asked.items() if wanted] or ([] if info or decisions or pass_log else ["graph"])
    if model.suffix == ".tw":
        refuse_unused(context, {"dim": "on a compiled file: its code is as it is"})
    if decisions and model.suffix == ".tw":
        raise typer.BadParameter("a compiled file does not keep its decisions; show the model", param_hint="MODEL")
    if pass_log and model.suffix == ".tw":
        raise typer.BadParameter("a compiled file went through its passes before; show the model", param_hint="MODEL")
    shown = progress(f"compile {model.name}", enabled=not is_quiet(json))
    with shown, _listing(decisions) as created, _passes(pass_log) as ran:
        compiled = open_model(model, threads, parse_ranges(dim), precision, fast, target)
    texts = {stage: compiled.show(stage) for stage in stages}
    about = describe(compiled) | {"target": asdict(compiled.manifest.target)}
    if json:
        lists: dict[str, object] = {"decisions": [d.to_dict() for d in created]} if decisions else {}
        lists |= {"pass_log": [row._asdict() for row in pass_rows(ran)]} if pass_log else {}
        print_json(texts | lists | ({"info": about} if info else {}))
        return
    if pass_log:
        columns = ("program", "pass", "runs", "ms", "lines added", "removed")
        rows = [(*row[:3], f"{row.seconds * 1e3:.2f}", *(n or "" for n in row[4:])) for row in pass_rows(ran)]
        table("passes", columns, rows, left=2)
    if decisions:
        sys.stdout.writelines(f"{line}\n" for d in created for line in _lines(d))
    if info:
        facts({name.replace("_", " "): _text(value) for name, value in about.items()})
    for stage, text in texts.items():
        if len(texts) > 1:
            sys.stdout.write(f"==== {stage} ====\n")
        # Written as it is: a table printer would fold long lines of code.
        sys.stdout.write(text.rstrip("\n") + "\n")


class PassRow(NamedTuple):
    """One run of a pass over a graph, or the runs of a pass over all kernels' loops."""

    program: str
    name: str
    runs: int
    seconds: float
    added: int
    removed: int


def pass_rows(records: Sequence[PassRecord]) -> list[PassRow]:
    """The rows of the pass log, in order."""
    rows: list[PassRow] = []
    loops: dict[str, PassRow] = {}
    for r in records:
        if r.program in ("graph", "prepare", "run"):
            rows.append(PassRow(r.program, r.name, 1, r.seconds, r.added, r.removed))
        elif r.program:
            sums = loops.get(r.name) or PassRow("loops", r.name, 0, 0.0, 0, 0)
            runs, seconds, added, removed = sums[2:]
            loops[r.name] = sums._replace(
                runs=runs + 1, seconds=seconds + r.seconds, added=added + r.added, removed=removed + r.removed
            )
    return [*rows, *loops.values()]


@contextlib.contextmanager
def _listing(wanted: bool) -> Iterator[list[Decision]]:
    """Collect the decisions made within the context, if wanted."""
    if not wanted:
        yield []
        return
    from tilewright.plans.framework.decisions import deciding

    with deciding() as record:
        yield record.decisions


def _passes(wanted: bool) -> AbstractContextManager[list[PassRecord]]:
    """Collect the passes that run within the context, if wanted."""
    return listing_passes() if wanted else nullcontext([])


def _lines(d: Decision) -> Iterator[str]:
    """A decision as lines of text."""
    yield f"{d.key.kind} of {d.key.text}"
    yield f"  key {d.key.digest}, {len(d.space)} setting{'s' if len(d.space) != 1 else ''}, by {d.why}"
    yield f"  taken: {_setting(d.selected, d.estimate)}"
    for setting, estimate in d.runners_up[:RUNNERS_UP]:
        yield f"  runner-up: {_setting(setting, estimate)}"


def _setting(setting: Setting, cycles: float) -> str:
    return f"{setting.label}  ({cycles:,.0f} cycles)" if cycles else setting.label


def _text(value: object) -> str:
    match value:
        case dict():
            return f"{value['cpu']} ({value['triple']})"
        case list():
            return "  ".join(map(str, value))
    return str(value)
