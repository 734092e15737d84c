"""`tilewright show`: the program at each stage of its compilation."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from tilewright.cli.common import (
    DimOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    TargetOption,
    ThreadsOption,
    WinogradOption,
    facts,
    is_quiet,
    open_model,
    parse_dims,
    print_json,
)
from tilewright.cli.compile import describe
from tilewright.support.progress import progress


def show(
    model: ModelArgument,
    graph: Annotated[bool, typer.Option("--graph", help="The graph after all passes (the default).")] = False,
    loops: Annotated[bool, typer.Option("--loops", help="Each kernel's loops, as they are emitted.")] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Each kernel's plan, estimated time, runners-up, primitives.")
    ] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="LLVM IR.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="Assembly.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="The arena against its lower bound, weights, peak.")] = False,
    info: Annotated[bool, typer.Option("--info", help="Inputs, outputs, weights, options, machine.")] = False,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    precision: PrecisionOption = None,
    winograd: WinogradOption = None,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Show a model as the compiler sees it, stage by stage.

    ```
    tilewright show policy.onnx --graph
    tilewright show policy.onnx --loops --asm | less
    tilewright show resnet50.onnx --memory
    tilewright show policy.tw --info
    ```
    """
    asked = {"graph": graph, "schedule": schedule, "loops": loops, "llvm": llvm, "asm": asm, "memory": memory}
    stages = [name for name, wanted in asked.items() if wanted] or ([] if info else ["graph"])
    with progress(f"compile {model.name}", enabled=not is_quiet(json)):
        compiled = open_model(model, threads, parse_dims(dim), precision, winograd, target)
    texts = {stage: compiled.show(stage) for stage in stages}
    about = describe(compiled) | {"target": asdict(compiled.manifest.target)}
    if json:
        print_json(texts | ({"info": about} if info else {}))
        return
    if info:
        facts({name.replace("_", " "): _text(value) for name, value in about.items()})
    for stage, text in texts.items():
        if len(texts) > 1:
            sys.stdout.write(f"==== {stage} ====\n")
        # Written as it is: a table printer would fold long lines of code.
        sys.stdout.write(text.rstrip("\n") + "\n")


def _text(value: object) -> str:
    match value:
        case dict():
            return f"{value['cpu']} ({value['triple']})"
        case list():
            return "  ".join(map(str, value))
    return str(value)
