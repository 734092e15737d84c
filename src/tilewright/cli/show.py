"""`tilewright show`: the program at each stage of its compilation."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tilewright.cli.common import (
    DimOption,
    JsonOption,
    ModelArgument,
    ThreadsOption,
    is_quiet,
    open_model,
    parse_dims,
    print_json,
)
from tilewright.support.progress import progress


def show(
    model: ModelArgument,
    graph: Annotated[bool, typer.Option("--graph", help="The graph after all passes (the default).")] = False,
    loops: Annotated[bool, typer.Option("--loops", help="Each kernel's loops, as they are emitted.")] = False,
    schedule: Annotated[bool, typer.Option("--schedule", help="The primitives applied to each kernel.")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="LLVM IR.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="Assembly.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="The arena against its lower bound, weights, peak.")] = False,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    json: JsonOption = False,
) -> None:
    """Show a model as the compiler sees it, stage by stage.

    tilewright show policy.onnx --graph
    tilewright show policy.onnx --loops --asm | less
    tilewright show resnet50.onnx --memory
    """
    asked = {"graph": graph, "schedule": schedule, "loops": loops, "llvm": llvm, "asm": asm, "memory": memory}
    stages = [name for name, wanted in asked.items() if wanted] or ["graph"]
    with progress(f"compile {model.name}", enabled=not is_quiet(json)):
        compiled = open_model(model, threads, parse_dims(dim))
    texts = {stage: compiled.show(stage) for stage in stages}
    if json:
        print_json(texts)
        return
    for stage, text in texts.items():
        if len(texts) > 1:
            sys.stdout.write(f"==== {stage} ====\n")
        # Written as it is: a table printer would fold long lines of code.
        sys.stdout.write(text.rstrip("\n") + "\n")
