"""`tilewright opt`: runs passes on the text of a graph or of loops."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.common import FastOption, PrecisionOption, TargetOption, accuracy, on_host
from tilewright.support.errors import ModelError

MAX_TEXT = 64 << 20
"""The most bytes of a text; a large model's graph with its constants takes some megabytes."""


def opt(
    text: Annotated[
        Path | None,
        typer.Argument(metavar="TEXT", help="A file with a graph's or loops' text; - for the input."),
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option("--pass", "-p", metavar="NAME", help="A pass by its name; several run in order."),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the names of all passes.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what changed rather than the whole text.")] = False,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
) -> None:
    """Run passes of the compiler on a text, and print what comes out.

    The text is what `tilewright show --graph`, TILEWRIGHT_DUMP or `print` give: `graph @main(...) { ... }` or
    `func @main(...) { ... }`. It is verified before and after each pass. Without `--pass` it is printed as it was read.

    ```
    tilewright opt --pass "fold scales" graph.txt
    tilewright opt -p "canonicalise" -p "keep maps" --diff graph.txt
    tilewright opt --pass "partition loops" --target x86-64-v3 loops.txt
    tilewright opt --list
    ```
    """
    from tilewright.compiler import named_passes
    from tilewright.ops.registry import parse_func, parse_graph
    from tilewright.targets.target import Target
    from tilewright.transform.driver import VERIFY_STAGES, run_passes
    from tilewright.transform.graph.options import Options
    from tilewright.transform.graph.verify import graph_stage
    from tilewright.transform.loops import LOOPS

    machine = on_host(target) or Target.host()
    stages = named_passes(machine, Options(**accuracy(precision, fast)))
    if names:
        for room, several in stages.items():
            sys.stdout.writelines(f"{room:<8} {name}\n" for name in dict.fromkeys(name for name, _ in several))
        return
    if text is None:
        raise typer.BadParameter("which text? (`--list` lists the passes)", param_hint="TEXT")
    source = _read(text)
    head = re.search(r"^\s*(graph|func)\b", source, re.MULTILINE)
    if head is None:
        raise ModelError("not a text of the compiler", where=str(text), expected="graph @name(...) or func @name(...)")
    on_loops = head.group(1) == "func"
    known = dict(reversed([p for room, several in stages.items() if on_loops == (room == "loops") for p in several]))
    for name in passes or ():
        if name not in known:
            others = [room for room, several in stages.items() if name in dict(several)]
            kind = "loops" if on_loops else "graphs"
            where = f"it works on {'loops' if others == ['loops'] else 'graphs'}" if others else "`--list` lists them"
            raise typer.BadParameter(f"no pass over {kind} is called {name!r}; {where}", param_hint="--pass")
    chosen = [(name, known[name]) for name in passes or ()]
    if on_loops:
        func = parse_func(source, source=str(text))
        stage = replace(LOOPS, every=VERIFY_STAGES, end=None)
        before, after = str(func), str(run_passes(func, chosen, stage, what=func.name))
    else:
        graph = parse_graph(source, source=str(text))
        before, after = str(graph), str(run_passes(graph, chosen, graph_stage()))
    if diff:
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
        sys.stdout.writelines(f"{line}\n" for line in lines)
    else:
        sys.stdout.write(after.rstrip("\n") + "\n")


def _read(path: Path) -> str:
    """The text of a file, or of the input."""
    data = sys.stdin.buffer.read(MAX_TEXT + 1) if str(path) == "-" else _bytes(path)
    if len(data) > MAX_TEXT:
        raise ModelError("the text is too long", where=str(path), expected=f"{MAX_TEXT} bytes at most")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ModelError("not a text", where=str(path), expected="UTF-8") from None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_TEXT + 1)
